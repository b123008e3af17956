"""Puzzles on simulated devices: a result wanted from sharded arrays, at no more than the best-known cost.

A reader writes what one device does with its parts. The check runs it, compares with NumPy, compiles it, and counts what a device
sends and multiplies. Derived in labs/03-sharding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from scaling_lib import units
from scaling_lib.sharding import Sharding, cheapest, parse_product
from scaling_lib.xla import arrays, simulate
from scaling_lib.xla.program import Collective, Program, hlo

PERMUTES = ("collective-permute", "collective-permute-start")
_ABOVE = 1 + 1e-9  # sums of fractions of bytes
_ITEMSIZE = units.itemsize("f32")
_VALUES = np.arange(-3, 4, dtype=np.float32)  # small whole numbers: float32 sums of them are exact, in any order


@dataclass(frozen=True)
class Attempt:
    """What the check says of an answer: `ok`, `words` for the reader, and the program, where there is one."""

    ok: bool
    words: str
    program: Program | None = None

    def __repr__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Puzzle:
    """A result wanted from sharded arrays, and the cost to reach.

    Args:
        mesh: simulated devices, from `simulate.mesh`.
        operands: each array as the devices hold it, like "A[I_X, J]".
        result: how they are to hold the result.
        sizes: of each dimension, of the whole arrays.
        reference: what NumPy makes of the whole arrays; the numbers are small and whole, so that it must be met exactly.
        best_bytes: that a device sends, at the best known.
        best_flops: of a device's matmuls, at the best known; None where they do not count.
        kinds: the only collectives to use, by HLO's names; any, where it is left out.
        overlapped: whether the matmuls must be able to run beside permutes: at most one part in as many as there are devices
            may be needed by all permutes, or need all of them.
    """

    mesh: Mesh
    operands: Sequence[str]
    result: str
    sizes: dict[str, int]
    reference: Callable[..., np.ndarray[Any, Any]]
    best_bytes: float
    best_flops: float | None = None
    kinds: Sequence[str] | None = None
    overlapped: bool = False

    @classmethod
    def of_product(cls, mesh: Mesh, product: str, **sizes: int) -> Puzzle:
        """The puzzle of one product: no more work than an even share, then as few bytes as any plan of whole-axis steps.

        Args:
            mesh: simulated devices, from `simulate.mesh`.
            product: the notation, like "A[I_X, J] · B[J, K_X] -> C[I, K_X]".
            sizes: of each dimension, of the whole arrays.
        """
        asked, axes = parse_product(product, mesh.shape), dict(mesh.shape)

        def sent(kind: str, over: tuple[str, ...], array_bytes: float) -> float:
            hlo_kind = "collective-permute" if kind == "permute" else kind
            return Collective(hlo_kind, over, math.prod(axes[axis] for axis in over), "f32", 0, array_bytes).sent_bytes

        most = sum(_ITEMSIZE * math.prod(sizes[dim] for dim in array.dims) for array in asked.arrays)

        def work(local: Mapping[str, int]) -> float:
            return 4 * most * math.prod(local.values())  # one multiplication outweighs all bytes

        plan = cheapest(asked, sizes, axes, price=sent, compute=work, itemsize=_ITEMSIZE)
        a, b, c = ([asked.dims.index(dim) for dim in array.dims] for array in asked.arrays)
        return cls(
            mesh,
            (str(asked.a), str(asked.b)),
            str(asked.c),
            sizes,
            lambda left, right: np.einsum(left, a, right, b, c),
            best_bytes=plan.communication_s,
            best_flops=2 * plan.compute_s / (4 * most),
        )

    def whole(self, local: Callable[..., Any]) -> Callable[..., jax.Array]:
        """`local`, which works on a device's parts, as a function of whole arrays."""
        held, wanted = [arrays.sharding(self.mesh, text).spec for text in self.operands], arrays.sharding(self.mesh, self.result)
        return jax.jit(
            jax.shard_map(local, mesh=self.mesh, in_specs=tuple(held), out_specs=wanted.spec, check_vma=False),
            out_shardings=wanted,
        )

    def check(self, local: Any) -> Attempt:
        """Run, compare, compile and count an answer.

        Args:
            local: takes one device's part of each operand and gives its part of the result; `...` or a function that
                returns nothing is not answered yet.
        """
        if local is ...:
            return NOT_YET
        given: list[Any] = []
        try:
            jax.eval_shape(self.whole(_noting(local, given)), *self._specs)
        except Exception as error:  # the reader's code: whatever it raises is the answer's fault
            if not given or getattr(given[0], "shape", None) is not None:
                return Attempt(False, f"Not yet, it does not run: {first_line(error)}")
        if given[0] is None:
            return NOT_YET
        part = Sharding.parse(self.result, self.mesh.shape).local_shape(self.sizes, self.mesh.shape)
        if (have := getattr(given[0], "shape", None)) != part:
            return Attempt(False, f"Not yet: a device is to end with an array of shape {part}, not {have}.")
        return self._wrong(local) or self._counted(simulate.compile(self.whole(local), *self._specs, name="attempt"))

    @property
    def _specs(self) -> list[jax.ShapeDtypeStruct]:
        named = [(text, Sharding.parse(text, self.mesh.shape).dims) for text in self.operands]
        return [arrays.spec(self.mesh, text, "f32", **{dim: self.sizes[dim] for dim in dims}) for text, dims in named]

    def _shape(self, text: str) -> tuple[int, ...]:
        return tuple(self.sizes[dim] for dim in Sharding.parse(text, self.mesh.shape).dims)

    def _wrong(self, local: Callable[..., Any]) -> Attempt | None:
        """What is said where a device ends with other numbers than NumPy has."""
        draw = partial(np.random.default_rng(0).choice, _VALUES)
        values = [draw(self._shape(text)) for text in self.operands]
        placed = (arrays.place(self.mesh, text, value) for text, value in zip(self.operands, values, strict=True))
        made, right = self.whole(local)(*placed), self.reference(*values)
        parts = [(np.asarray(part.data), right[part.index]) for part in made.addressable_shards]
        devices = sum(not np.array_equal(have, want) for have, want in parts)
        return Attempt(False, f"Not yet: {devices} of {len(parts)} devices end with wrong numbers.") if devices else None

    def _counted(self, program: Program) -> Attempt:
        """The verdict on a right result."""
        used = sorted({one.kind for one in program.collectives})
        if self.kinds is not None and (extra := [kind for kind in used if kind not in self.kinds]):
            return Attempt(False, f"Right numbers, but by {', '.join(extra)}; use {', '.join(self.kinds)} alone.", program)
        sent, by = program.sent_bytes(), f" by {', '.join(used)}" if used else ""
        if sent > self.best_bytes * _ABOVE:
            best = f"{sent / self.best_bytes:.3g} times the best known" if self.best_bytes else "the best known sends nothing"
            return Attempt(False, f"Right numbers, but {units.human(sent, 'B')} sent a device{by}: {best}.", program)
        if self.best_flops is not None and program.flops > self.best_flops * _ABOVE:
            much = f"{program.flops / self.best_flops:.3g} times the work"
            return Attempt(False, f"Right numbers, but a device multiplies {much} of the best known.", program)
        if self.overlapped and (alone := unhidden(program)) * self.mesh.size > _ABOVE:
            where = f"{alone:.0%} of the matmul stands before all permutes or after them"
            return Attempt(False, f"Right numbers, but {where}; multiply a part in every round.", program)
        best = (
            "the best known" if sent * _ABOVE >= self.best_bytes else f"below the best known, {units.human(self.best_bytes, 'B')}"
        )
        return Attempt(True, f"Right: {units.human(sent, 'B')} sent a device{by}, {best}.", program)


NOT_YET = Attempt(False, "Not answered yet: replace the ... with your code.")


def _noting(local: Callable[..., Any], given: list[Any]) -> Callable[..., Any]:
    """`local`, keeping note of what it returns: the reason why JAX refuses it is often that it is nothing."""

    def noted(*parts: jax.Array) -> Any:
        given.append(local(*parts))
        return given[0]

    return noted


def unhidden(program: Program) -> float:
    """The part of all FLOPs in matmuls that every permute needs, or that need every permute: no schedule hides one behind them.

    In a loop that permutes, one round counts by itself.
    """
    module, flops = hlo.parse(program.text), {one.name: one.flops * one.times for one in program.matmuls}

    def inside(one: hlo.Instruction) -> Iterator[hlo.Instruction]:
        yield one
        for name in one.called:
            for inner in module.computations[name].instructions.values():
                yield from inside(inner)

    def alone(computation: str) -> int:
        needs: dict[str, set[str]] = {}  # operands stand before their users
        nodes = module.computations[computation].instructions
        for name, one in nodes.items():
            needs[name] = {*one.operands}.union(*(needs[operand] for operand in one.operands))
        permutes = {name for name, one in nodes.items() if any(part.opcode in PERMUTES for part in inside(one))}
        found = sum(alone(name) for permute in permutes for name in nodes[permute].called)
        for name in nodes.keys() - permutes:
            if permutes <= needs[name] or all(name in needs[permute] for permute in permutes):
                found += sum(flops.get(part.name, 0) for part in inside(nodes[name]))
        return found

    return alone(module.entry) / program.flops


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
