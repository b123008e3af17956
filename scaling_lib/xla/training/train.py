"""Training in a notebook: a run with a progress bar that may be stopped and gone on with, and the proof that two runs agree.

Used in labs/05a to 05e.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from scaling_lib import units

Tree = Any  # of arrays
Step = Callable[[Tree, Tree, Any], tuple[Tree, Tree, Any, Any]]


def squares(tree: Tree) -> jax.Array:
    """Sum of the squares of all numbers in a tree."""
    return jnp.sum(jnp.stack([jnp.vdot(x, x) for x in jax.tree.leaves(tree)]))


def clip(gradients: Tree, norm: jax.Array, most: float = 1.0) -> Tree:
    """Gradients, or a device's part of them, scaled so that the norm of all is at most `most`.

    Args:
        gradients: the tree.
        norm: of all gradients, wherever they are. That of a part would scale the parts differently.
        most: the bound.
    """
    scale = jnp.minimum(1.0, most / norm)
    return jax.tree.map(lambda g: g * scale, gradients)


@dataclass
class Training:
    """A run: where it starts, and how far it is.

    `run` may be interrupted, and goes on where it was stopped: every step's results are kept in one assignment, and nothing is
    donated, so that an interrupt between two lines loses at most the step that it hits.

    Args:
        step: (weights, optimizer state, batch) -> (weights, state, loss, norm of the gradients), all after or in this step.
        params: weights to start from.
        state: of the optimizer.
        batch: the batch of a step by its number, as `text.batches` gives it.
        name: for the progress bar and messages.
        begun: steps that were done before, as after a restored checkpoint.
    """

    step: Step
    params: Tree
    state: Tree
    batch: Callable[[int], Any]
    name: str = "training"
    begun: int = 0
    log: tuple[tuple[float, float], ...] = field(default=(), init=False)

    @property
    def done(self) -> int:
        """Steps that the weights have seen."""
        return self.begun + len(self.log)

    @property
    def losses(self) -> np.ndarray[Any, Any]:
        """In nats a token, one a step of this run."""
        return np.array([loss for loss, _ in self.log])

    @property
    def norms(self) -> np.ndarray[Any, Any]:
        """Of the gradients before they are clipped, one a step."""
        return np.array([norm for _, norm in self.log])

    def run(self, until: int, *, bar: bool = True) -> Training:
        """Train until so many steps are done, with a progress bar if wanted; does nothing where they are.

        An interrupt ends it with a message that says how to go on.
        """
        until = units.size("until", until)
        try:
            with tqdm(total=until, initial=min(self.done, until), desc=self.name, leave=False, disable=not bar) as progress:
                while self.done < until:
                    params, state, loss, norm = self.step(self.params, self.state, self.batch(self.done))
                    entry = (float(loss), float(norm))
                    self.params, self.state, self.log = params, state, (*self.log, entry)
                    progress.update()
                    progress.set_postfix_str(f"loss {entry[0]:.3f}", refresh=False)
        except KeyboardInterrupt:
            print(f"{self.name}: stopped after {self.done} of {until} steps; run this cell again to go on")
        return self

    def __repr__(self) -> str:
        if not self.log:
            return f"{self.name}: {self.done} steps done"
        return f"{self.name}: {self.done} steps, loss {self.losses[0]:.2f} to {np.mean(self.losses[-10:]):.2f} nats a token"


@dataclass(frozen=True)
class Comparison:
    """How far two runs are apart; `ok` where each is within the tolerance.

    Args:
        steps: how many were compared.
        loss: largest difference of a step's loss, over the loss.
        norm: the same of gradient norms.
        weights: largest difference of a tensor's values, over how far that tensor has moved: both as root of the sum of squares.
        worst: the name of that tensor.
        tolerance: for each of the three.
    """

    steps: int
    loss: float
    norm: float
    weights: float
    worst: str
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the runs agree."""
        return max(self.loss, self.norm, self.weights) <= self.tolerance

    def __repr__(self) -> str:
        found = f"losses to {self.loss:.0e}, gradient norms to {self.norm:.0e}, weights to {self.weights:.0e} of their way"
        where = "" if self.weights <= self.tolerance else f" ({self.worst})"
        verdict = "agree" if self.ok else f"DIFFER by more than {self.tolerance:.0e}"
        return f"{self.steps} steps {verdict}: {found}{where}"


def compare(run: Training, one: Training, start: Tree, tolerance: float = 1e-3) -> Comparison:
    """Whether a run on many devices did what the run on one did.

    Adam divides a gradient by its own size, so that a factor in all gradients leaves its steps as they are: the norms of the
    gradients show it.

    Args:
        run: on many devices.
        one: on one, with the same batches.
        start: the weights that both began with, in the tree of both.
        tolerance: relative, see `Comparison`. The same numbers summed in another order differ in the last digits, and a step of
            training makes more of that.

    Raises:
        ValueError: where the two have not come to the same step, with the remedy.
    """
    if run.done != one.done or run.begun < one.begun or not run.log:
        behind = min(run, one, key=lambda training: training.done)
        raise ValueError(
            f"{run.name!r} is at step {run.done} from {run.begun}, {one.name!r} at {one.done} from {one.begun}; "
            f"run the training cell of {behind.name!r} first"
        )

    def moved(path: Any, first: Any, have: Any, want: Any) -> tuple[float, str]:
        first, have, want = (np.asarray(x, np.float64) for x in (first, have, want))
        off = np.linalg.norm(have - want) / np.linalg.norm(want - first)
        return float(np.nan_to_num(off, nan=np.inf)), jax.tree_util.keystr(path)

    pairs = jax.tree_util.tree_map_with_path(moved, start, run.params, one.params)
    weights, worst = max(jax.tree.leaves(pairs, is_leaf=lambda x: isinstance(x, tuple)))
    same = slice(run.begun - one.begun, None)
    losses, norms = (max(map(apart, a, b[same])) for a, b in ((run.losses, one.losses), (run.norms, one.norms)))
    return Comparison(len(run.log), losses, norms, weights, worst, tolerance)


def apart(have: float, want: float) -> float:
    """How far a number is from another, over the other."""
    return float(np.nan_to_num(abs(have - want) / abs(want), nan=np.inf))
