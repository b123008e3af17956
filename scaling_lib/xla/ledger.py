"""Collectives of a training step, predicted beside compiled, and what the compiler did otherwise, in words and bytes.

Bytes are what one device sends in a step. Derived in chapters/05-training.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from scaling_lib import units
from scaling_lib.training import StepEstimate
from scaling_lib.xla.program import Collective, Program

GROUPS: Mapping[str, str] = {"shard": "fsdp", "data": "data", "tensor": "tensor"}
"""Mesh axes of `xla.judge` by the groups of `training.Traffic`."""
AGAIN = "rematted_computation"
"""In the names of operations that run again in the backward pass."""
LEAST = 0.005
"""Differences below this part of all that is predicted are not named."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What the collectives of one kind along some mesh axes send, by estimate and by program."""

    axes: tuple[str, ...]
    kind: str
    predicted_bytes: float
    compiled_bytes: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that the compiler does otherwise, and the bytes that it sends more for it, or less."""

    what: str
    sent_bytes: float

    def __str__(self) -> str:
        sign = "+" if self.sent_bytes >= 0 else "−"
        return f"{self.what}: {sign}{units.human(abs(self.sent_bytes), 'B')}"


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All collectives of a step; see `read`."""

    rows: tuple[Moved, ...]
    differences: tuple[Difference, ...]

    @property
    def predicted_bytes(self) -> float:
        """By the estimate."""
        return sum(row.predicted_bytes for row in self.rows)

    @property
    def compiled_bytes(self) -> float:
        """By the program."""
        return sum(row.compiled_bytes for row in self.rows)

    @property
    def reconciled_bytes(self) -> float:
        """By the estimate, had it known of the differences."""
        return self.predicted_bytes + sum(one.sent_bytes for one in self.differences)

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was compiled."""
        return self.predicted_bytes / self.compiled_bytes - 1 if self.compiled_bytes else 0.0

    @property
    def error_left(self) -> float:
        """What the differences leave unexplained, the same way."""
        return self.reconciled_bytes / self.compiled_bytes - 1 if self.compiled_bytes else 0.0


def read(estimate: StepEstimate, program: Program) -> Ledger:
    """The collectives of a compiled training step of `xla.llama` beside those of its estimate.

    Args:
        estimate: of the plan.
        program: which fits. One for simulated devices, which know no bf16, has twice the bytes: the prediction is doubled.

    Raises:
        ValueError: for a program that does not fit, and so sends nothing.
    """
    scale = 2.0 if program.target.startswith("cpu") and estimate.plan.activations == "bf16" else 1.0
    predicted: dict[tuple[tuple[str, ...], str], float] = {}
    key: tuple[tuple[str, ...], str]
    for row in estimate.collectives:
        key = (GROUPS[row.group],), row.kind
        predicted[key] = predicted.get(key, 0.0) + scale * float(row.sent_bytes)
    compiled: dict[tuple[tuple[str, ...], str], float] = {}
    for one in program.collectives:
        key = one.axes, "permute" if one.kind == "collective-permute" else one.kind
        compiled[key] = compiled.get(key, 0.0) + _sent(one)
    rows = tuple(
        Moved(
            axes=axes, kind=kind, predicted_bytes=predicted.get((axes, kind), 0.0), compiled_bytes=compiled.get((axes, kind), 0.0)
        )
        for axes, kind in sorted(predicted.keys() | compiled.keys())
    )
    least = LEAST * sum(predicted.values())
    found = _differences(estimate, program, scale)
    return Ledger(rows=rows, differences=tuple(one for one in found if abs(one.sent_bytes) >= least))


def _differences(estimate: StepEstimate, program: Program, scale: float) -> Iterator[Difference]:
    found = _Found(estimate, program, scale)
    yield Difference(what="collective matmuls: loops that send more blocks than a collective", sent_bytes=found.windows_bytes)
    yield Difference(what="float32 in place of bf16, for gradients made in it", sent_bytes=found.wide_bytes)
    for group, axis in GROUPS.items():
        if found.predicted(axis, "reduce-scatter"):
            what = f"all-reduce in place of reduce-scatter along {axis}"
            yield Difference(what=what, sent_bytes=found.whole_bytes(group, axis))
    yield from found.of_chunks()
    yield Difference(what="weights gathered once more for what runs again", sent_bytes=found.gathered_again_bytes)
    yield from found.of_activations()


@dataclass(frozen=True)
class _Found:
    """What the differences are counted from. `scale` is bytes of an element in the program over those in the estimate."""

    estimate: StepEstimate
    program: Program
    scale: float

    def predicted(self, axis: str, *kinds: str) -> float:
        """Bytes that the estimate has for some kinds along an axis."""
        rows = (row for row in self.estimate.collectives if GROUPS[row.group] == axis and row.kind in kinds)
        return self.scale * sum(float(row.sent_bytes) for row in rows)

    def compiled(self, axis: str, *kinds: str) -> float:
        """The same in the program, in the dtype of the estimate and without what loops send more."""
        return sum(self._plain(one) for one in self.program.collectives if axis in one.axes and one.kind in kinds)

    def _plain(self, one: Collective) -> float:
        return (1 - self._wide(one)) * (_sent(one) - self._more(one))

    def _wide(self, one: Collective) -> float:
        """Part of its bytes that float32 costs."""
        return 0.5 if self.scale == 1 and one.dtype == "f32" and self.estimate.plan.activations == "bf16" else 0.0

    @property
    def wide_bytes(self) -> float:
        return sum(self._wide(one) * (_sent(one) - self._more(one)) for one in self.program.collectives)

    @cached_property
    def _loops(self) -> dict[_Loop, tuple[float, float]]:
        """Of the permutes of collective matmuls, by source: blocks that are sent for each matmul, and matmuls."""
        blocks: Counter[_Loop] = Counter()
        for one in self.program.collectives:
            if one.form == "collective matmul":
                blocks[_loop(one)] += one.times
        return {loop: _matmuls(count / self._runs(loop.op_name), self._ways(loop.axes)) for loop, count in blocks.items()}

    def _ways(self, axes: tuple[str, ...]) -> int:
        return math.prod(self.program.axes[axis] for axis in axes)

    def _runs(self, op_name: str) -> int:
        """How often the loop runs in which an operation stands: that over the layers, or that over the parts of the loss."""
        if "while" not in op_name:
            return 1
        return self.estimate.plan.loss_chunks if "DV" in op_name else self.estimate.model.L

    def _more(self, one: Collective) -> float:
        """Bytes that a loop's permute sends beyond its share of a collective: all but one block of each part."""
        if one.form != "collective matmul":
            return 0.0
        blocks, matmuls = self._loops[_loop(one)]
        return _sent(one) * (1 - matmuls * (self._ways(one.axes) - 1) / blocks)

    @property
    def windows_bytes(self) -> float:
        return sum(map(self._more, self.program.collectives))

    def whole_bytes(self, group: str, axis: str) -> float:
        """An all-reduce sends twice what a reduce-scatter would."""
        meant = sum(float(row.sent_bytes) for row in self.estimate.collectives if row.kind == "all-reduce" and row.group == group)
        return (self.compiled(axis, "all-reduce") - self.scale * meant) / 2

    def of_chunks(self) -> Iterator[Difference]:
        """With the loss in parts, the loop over them gathers the head for each, twice, and reduces its gradient for each."""
        parts = self.estimate.plan.loss_chunks
        head = [row for row in self.estimate.collectives if row.group == "shard" and row.what.startswith("head")]
        gathered, reduced = (
            self.scale * sum(float(row.sent_bytes) for row in head if row.kind == kind)
            for kind in ("all-gather", "reduce-scatter")
        )
        yield Difference(
            what="the head gathered for each part of the loss, forward and again",
            sent_bytes=(2 * parts - 1) * gathered * (parts > 1),
        )
        yield Difference(what="the head's gradient reduced for each part of the loss", sent_bytes=(parts - 1) * reduced)

    @property
    def gathered_again_bytes(self) -> float:
        """Gathers beyond two for each layer, of which those of what runs again are the third."""
        axis, kinds = "fsdp", ("all-gather", "reduce-scatter", "collective-permute")
        if self.estimate.plan.fsdp == 1:
            return 0.0
        beyond = self.compiled(axis, *kinds) + self.compiled(axis, "all-reduce") / 2 - self.predicted(axis, *kinds)
        beyond -= sum(one.sent_bytes for one in self.of_chunks())
        again = sum(self._plain(one) for one in self.program.collectives if axis in one.axes and AGAIN in one.op_name)
        return min(max(0.0, beyond), again)

    def of_activations(self) -> Iterator[Difference]:
        """What the tensor ways do otherwise in the layers' backward pass, counted in whole activations."""
        plan, ways = self.estimate.plan, self.estimate.plan.tensor
        if ways == 1:
            return
        sequences = self.estimate.batch / plan.replicas
        whole = self.scale * float(self.estimate.facts.stream_bytes) * sequences
        once, layers = whole * (ways - 1) / ways, self.estimate.model.L

        def times(wanted: Callable[[Collective], bool]) -> float:
            """How many activations in a layer such collectives gather or reduce."""
            total = sum(self._activations(one, whole) for one in self.program.collectives if wanted(one) and "tensor" in one.axes)
            return total / layers

        sums = times(lambda one: _backward(one) and _reduces(one)) - 2
        gathers = times(lambda one: one.kind == "all-gather") - (4 + 2) * plan.sequence_parallel
        cost = once * layers * (1 if plan.sequence_parallel else 2)
        yield Difference(
            what="each matmul's part of a gradient reduced on its own, before they are added", sent_bytes=sums * cost
        )
        yield Difference(what="activations gathered once more for gradients of weights", sent_bytes=gathers * once * layers)

    def _activations(self, one: Collective, whole: float) -> float:
        if "while" not in one.op_name or "DV" in one.op_name:
            return 0.0
        if one.form == "collective matmul":
            blocks, matmuls = self._loops[_loop(one)]
            return one.times * matmuls / blocks
        size = one.array_bytes / whole
        return round(size) * one.times if abs(size - round(size)) < 0.1 else 0.0


class _Loop(NamedTuple):
    """Permutes of one source that send blocks of one size."""

    op_name: str
    axes: tuple[str, ...]
    elements: int


def _loop(one: Collective) -> _Loop:
    return _Loop(one.op_name, one.axes, one.elements)


def _matmuls(blocks: float, ways: int) -> tuple[float, float]:
    """Blocks, and the loops that send them: one in both directions sends n + 1 blocks, one in a single direction n − 1 or n."""
    whole = blocks / (ways + 1)
    return blocks, whole if whole == round(whole) else max(1, round(blocks / ways))


def _backward(one: Collective) -> bool:
    return "transpose" in one.op_name and AGAIN not in one.op_name


def _reduces(one: Collective) -> bool:
    return one.kind in ("all-reduce", "reduce-scatter") or one.form == "collective matmul"


def _sent(one: Collective) -> float:
    return one.sent_bytes * one.times
