"""A training step written for one device, with its collectives: run on a mesh, compiled, and checked against one device.

Used in labs/05a to 05e.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scaling_lib.xla import simulate
from scaling_lib.xla.program import Program
from scaling_lib.xla.puzzle import Attempt
from scaling_lib.xla.training.train import Step, Training, apart

Tree = Any  # of arrays, or of their layouts
Layouts = tuple[Tree, Tree, Tree]


def step(body: Callable[..., Any], mesh: Mesh, layouts: Layouts) -> Step:
    """The step of whole arrays that `body` is of each device's parts.

    Args:
        body: (weights, state, batch) -> (weights, state, loss, norm), with collectives over the axes of the mesh.
        mesh: from `simulate.mesh`.
        layouts: of weights, state and batch: a `PartitionSpec` for all of it, or a tree of them. Loss and norm are the same on
            all devices.

    NB: `check_vma=False` turns off a check of JAX that refuses results which it cannot prove to be equal where they are said to
    be, and with it JAX's own sums in gradients: here all collectives are written down, and one that is missing is found by the
    comparison with one device.
    """
    nowhere = PartitionSpec()  # type: ignore[no-untyped-call]
    outs = (*layouts[:2], nowhere, nowhere)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=layouts, out_specs=outs, check_vma=False)
    where = jax.tree.map(lambda layout: NamedSharding(mesh, layout), layouts, is_leaf=_is_layout)
    compiled = jax.jit(mapped)

    def placed(*trees: Tree) -> Any:
        return compiled(*jax.device_put(trees, where))  # else the first step, from one device, is compiled for itself

    return placed


def _is_layout(tree: Tree) -> bool:
    return isinstance(tree, PartitionSpec)


def compile(step: Step, mesh: Mesh, layouts: Layouts, *trees: Tree, name: str = "step") -> Program:
    """The program of a step, whose new weights and state take the memory of the old.

    Args:
        step: that `step` made.
        mesh: from `simulate.mesh`.
        layouts: as of `step`.
        trees: weights, state and batch, of whose arrays only shapes count.
        name: what to call it.
    """

    def one(layout: Any, part: Tree) -> Tree:
        where = NamedSharding(mesh, layout)
        spec: Any = jax.ShapeDtypeStruct
        return jax.tree.map(lambda x: spec(x.shape, x.dtype, sharding=where), part)

    specs = (jax.tree.map(one, layout, tree, is_leaf=_is_layout) for layout, tree in zip(layouts, trees, strict=True))
    return simulate.compile(step, *specs, donate=(0, 1), name=name)


def check(answer: Any, training: Callable[[Any], Training], one: Training, steps: int = 5, tolerance: float = 1e-3) -> Attempt:
    """Whether a reader's part of a step does on many devices what the whole does on one.

    Args:
        answer: the reader's function, or `...`; one that returns nothing is not answered yet.
        training: makes a run of it.
        one: the run on one device, of at least so many steps.
        steps: how many are tried.
        tolerance: relative, of losses and gradient norms.

    Raises:
        ValueError: where the run on one device has fewer steps.
    """
    if len(one.log) < steps:
        raise ValueError(f"{one.name!r} has done {len(one.log)} of {steps} steps; run its training cell first")
    given: list[Any] = []

    def noted(*parts: Any) -> Any:
        given.append(answer(*parts))
        return given[-1]

    if answer is ...:
        return _NOT_YET
    try:
        run = training(noted)
        run.run(run.begun + steps, bar=False)
    except Exception as error:  # the reader's code: whatever it raises is the answer's fault
        if (given and given[-1] is None) or "NoneType" in str(error):
            return _NOT_YET
        return Attempt(False, f"Not yet, it does not run: {(str(error).strip() or type(error).__name__).splitlines()[0]}")
    for what, have, want in (("loss", run.losses, one.losses), ("gradient norm", run.norms, one.norms)):
        off = [apart(a, b) for a, b in zip(have, want[:steps], strict=True)]
        wrong = [i for i, difference in enumerate(off) if not difference <= tolerance]
        if wrong:
            at = wrong[0]
            return Attempt(False, f"Not yet: the {what} of step {at} is {have[at]:.4g}, and on one device {want[at]:.4g}.")
    return Attempt(True, f"Right: {steps} steps as on one device, to {max(map(apart, run.losses, one.losses[:steps])):.0e}.")


_NOT_YET = Attempt(False, "Not answered yet: replace the ... with your code.")
