"""Pipeline schedules: which jobs a stage does, in which order, and which stage holds which part of the model.

A job is a forward pass, a backward pass or a weight gradient of one microbatch through one chunk of layers. Chunks are numbered
along the model; with p stages and v chunks a stage, chunk c lies on stage c mod p. Derived in chapters/05-training.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward", "weight"]


class Step(NamedTuple):
    """One job, as it stands in a stage's order."""

    kind: Kind
    chunk: int
    microbatch: int


def order(schedule: str, stage: int, stages: int, microbatches: int, virtual: int) -> list[Step]:
    """All jobs of one stage, first to last; the arguments are checked by the caller."""
    return _ORDERS[schedule](stage, stages, microbatches, virtual)


def needs(step: Step, chunks: int) -> Step | None:
    """The job that must be over before `step` can start, besides those before it in its stage's order.

    Args:
        step: a job of any schedule.
        chunks: of the whole model, one a virtual stage.
    """
    kind, chunk, microbatch = step
    if kind == "forward":
        return Step("forward", chunk - 1, microbatch) if chunk else None
    if kind == "backward" and chunk < chunks - 1:
        return Step("backward", chunk + 1, microbatch)
    return Step("forward" if kind == "backward" else "backward", chunk, microbatch)


def _gpipe(stage: int, p: int, m: int, v: int) -> list[Step]:
    """All forward passes, then all backward passes; the last microbatch comes back first."""
    return [Step("forward", stage, i) for i in range(m)] + [Step("backward", stage, i) for i in reversed(range(m))]


def _one_forward_one_backward(stage: int, p: int, m: int, v: int) -> list[Step]:
    return _in_turn([Step("forward", stage, i) for i in range(m)], [Step("backward", stage, i) for i in range(m)], p - stage - 1)


def _interleaved(stage: int, p: int, m: int, v: int) -> list[Step]:
    """Groups of p microbatches go through a stage's chunks one chunk after the other, as in Megatron-LM."""
    at = [(chunk, group + i) for group in range(0, m, p) for chunk in range(v) for i in range(p)]
    forward = [Step("forward", chunk * p + stage, i) for chunk, i in at]
    backward = [Step("backward", (v - 1 - chunk) * p + stage, i) for chunk, i in at]
    return _in_turn(forward, backward, 2 * (p - stage - 1) + (v - 1) * p)


def _zero_bubble(stage: int, p: int, m: int, v: int) -> list[Step]:
    """ZB-H1: 1F1B whose weight gradients come p - 1 microbatches late on every stage, and fill the idle time at the end."""
    weights = [Step("weight", stage, i) for i in range(m)]
    steps: list[Step] = []
    started = done = 0
    for step in _one_forward_one_backward(stage, p, m, v):
        steps.append(step)
        started += step.kind == "forward"
        if step.kind == "backward" and started >= p:
            steps.append(weights[done])
            done += 1
    return steps + weights[done:]


def _in_turn(forward: list[Step], backward: list[Step], warm_up: int) -> list[Step]:
    """Some forward passes, then forward and backward in turn, then the backward passes that are left."""
    warm_up = min(warm_up, len(forward))
    steps = forward[:warm_up]
    for ahead, back in zip(forward[warm_up:], backward, strict=False):
        steps += [ahead, back]
    return steps + backward[len(forward) - warm_up :]


_ORDERS: Mapping[str, Callable[[int, int, int, int], list[Step]]] = MappingProxyType(
    {"gpipe": _gpipe, "1f1b": _one_forward_one_backward, "interleaved": _interleaved, "zero-bubble": _zero_bubble}
)
