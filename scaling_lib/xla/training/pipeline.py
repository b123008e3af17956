"""A pipeline schedule played on devices in lockstep: which stage does what in which tick, and the program that does it.

Every tick, each stage does one job of its schedule or none; then activations move to the next stage and gradients to the one
before. Schedules are those of `training.pipeline`. Used in labs/05c-pipeline.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from scaling_lib.training import pipeline as pipelines

Tree = Any  # of arrays
Ints = np.ndarray[Any, np.dtype[np.int32]]
Stage = Callable[[Tree, jax.Array, Tree], tuple[jax.Array, jax.Array]]
lax: Any = jax.lax  # JAX is typed in part

IDLE, FORWARD, BACKWARD = 0, 1, 2


@dataclass(frozen=True)
class Timetable:
    """What every stage does in every tick.

    Args:
        jobs: [ticks, stages], IDLE, FORWARD or BACKWARD.
        microbatches: [ticks, stages], of which one; 0 where idle.
        slots: microbatches whose input a stage has room for; microbatch i lies in slot i mod slots.
    """

    jobs: Ints
    microbatches: Ints
    slots: int

    @property
    def ticks(self) -> int:
        """How many there are."""
        return len(self.jobs)

    @property
    def bubble(self) -> float:
        """Time a stage stands idle over the time it works, where each job takes one tick."""
        return float((self.jobs == IDLE).sum() / (self.jobs != IDLE).sum())

    def __str__(self) -> str:
        """One line a stage: `F3` is the forward pass of microbatch 3."""
        letters = np.array([".", "F", "B"])[self.jobs]
        numbers = np.where(self.jobs == IDLE, "", self.microbatches.astype(str))
        return "\n".join(
            " ".join(f"{a}{b}".ljust(2) for a, b in zip(*rows, strict=True)) for rows in zip(letters.T, numbers.T, strict=True)
        )


def timetable(schedule: Literal["gpipe", "1f1b"], stages: int, microbatches: int) -> Timetable:
    """The ticks of a schedule whose jobs all take one.

    Args:
        schedule: all forward passes first, or forward and backward in turn.
        stages: parts of the model.
        microbatches: of one step.

    Raises:
        ValueError: for another schedule, and as `pipeline.check`.
    """
    if schedule not in ("gpipe", "1f1b"):
        raise ValueError(f"schedule={schedule!r} is not played here; give 'gpipe' or '1f1b'")
    run = pipelines.simulate(schedule, stages, microbatches, forward_s=1.0, backward_s=1.0)
    jobs = np.zeros((round(run.makespan_s), stages), np.int32)
    numbers = np.zeros_like(jobs)
    for job in (one for of_stage in run.jobs for one in of_stage):
        tick = round(job.start_s)
        jobs[tick, job.stage] = FORWARD if job.kind == "forward" else BACKWARD
        numbers[tick, job.stage] = job.microbatch
    return Timetable(jobs, numbers, _slots(jobs, numbers, microbatches))


def _slots(jobs: Ints, numbers: Ints, microbatches: int) -> int:
    """The fewest slots in which nothing that is still needed is written over.

    An input of stage s lies there from the tick after the forward pass of s - 1 to its own backward pass.
    """
    done = {(int(jobs[t, s]), s, int(numbers[t, s])): t for t, s in np.argwhere(jobs).tolist()}
    held = [
        (done[FORWARD, s - 1, i] + 1 if s else done[FORWARD, 0, i], done[BACKWARD, s, i], s, i)
        for s in range(jobs.shape[1])
        for i in range(microbatches)
    ]
    for slots in range(1, microbatches):
        at: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for first, last, stage, i in held:
            at.setdefault((stage, i % slots), []).append((first, last))
        if all(a[1] < b[0] for spans in at.values() for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False)):
            return slots
    return microbatches


def value_and_grad(
    stage: Stage, table: Timetable, params: Tree, batch: Tree, stream: jax.ShapeDtypeStruct, axis: str, move: Callable[..., Any]
) -> tuple[jax.Array, Tree]:
    """The loss and the gradients of one device's weights, for the mean over all microbatches; called inside `jax.shard_map`.

    Args:
        stage: (weights, input, microbatch) -> (output, loss): what a device's layers do. The loss counts on the last stage alone,
            and is to be 0 on the others. A backward pass runs it again from its input.
        table: who does what when.
        params: this device's weights.
        batch: whose arrays have the microbatches as first dimension.
        stream: shape and dtype of what moves between stages.
        axis: the mesh axis of the stages.
        move: (array, by) -> what the stage `by` places before this one has: the permutes. What nobody sends is zero.

    Returns:
        The loss, on the last stage, and zero on others; and gradients of this device's weights, of its own jobs.
    """
    me, stages = lax.axis_index(axis), table.jobs.shape[1]
    count = len(jax.tree.leaves(batch)[0])
    room = jnp.zeros((table.slots, *stream.shape), stream.dtype)
    nothing = jnp.zeros(stream.shape, stream.dtype)

    def forward(held: Tree) -> Tree:
        inputs, _, total, number, gradients = held
        out, loss = stage(params, inputs[number % table.slots], _part(batch, number))
        return out, nothing, total + loss / count, gradients

    def backward(held: Tree) -> Tree:
        inputs, coming, total, number, gradients = held
        slot = number % table.slots
        _, pull = jax.vjp(lambda w, x: stage(w, x, _part(batch, number)), params, inputs[slot])
        more, back = pull((coming[slot], jnp.asarray(1 / count, total.dtype)))
        return nothing, back, total, jax.tree.map(jnp.add, gradients, more)

    def idle(held: Tree) -> Tree:
        return nothing, nothing, held[2], held[4]

    def tick(carry: Tree, row: Tree) -> tuple[Tree, None]:
        inputs, coming, total, gradients = carry
        kinds, numbers = row
        held = inputs, coming, total, numbers[me], gradients
        out, back, total, gradients = lax.switch(kinds[me], (idle, forward, backward), held)
        inputs = _arrive(inputs, move(out, 1), me - 1, FORWARD, row, table.slots, stages)
        coming = _arrive(coming, move(back, -1), me + 1, BACKWARD, row, table.slots, stages)
        return (inputs, coming, total, gradients), None

    begin = room, room, jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    (_, _, loss, gradients), _ = lax.scan(tick, begin, (jnp.asarray(table.jobs), jnp.asarray(table.microbatches)))
    return loss, gradients


def _part(batch: Tree, number: jax.Array) -> Tree:
    return jax.tree.map(lambda x: x[number], batch)


def _arrive(room: jax.Array, new: jax.Array, sender: jax.Array, kind: int, row: Tree, slots: int, stages: int) -> jax.Array:
    """The room with what a neighbor made in this tick; as it was where the neighbor made nothing of that kind."""
    kinds, numbers = row
    at = jnp.clip(sender, 0, stages - 1)
    made = (sender == at) & (kinds[at] == kind)
    slot = numbers[at] % slots
    written: jax.Array = jnp.where(made, room.at[slot].set(new), room)
    return written
