"""What a search found, in words and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.training import Plan, StepEstimate
from scaling_lib.training.estimate import MEMORY
from scaling_lib.training.wires import AXES
from scaling_lib.transformer import Transformer

RESOLUTION_S = 1e-9
"""Steps are compared to the nanosecond: below, figures differ by rounding."""

Change = Literal["batch", "slice", "uneven_stages", "offload"]


@dataclass(frozen=True)
class Reason:
    """Why splits cannot run: how many of them, and a sentence about one, with the number at fault."""

    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.count:,} splits, such as: {self.example}"


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """A change with which a plan can run: it was searched for, and found.

    Args:
        change: what is changed.
        value: to what: sequences, a slice, True for uneven stages, what is offloaded.
        estimate: the best of the plans that were looked at there; a full search may find a better one.
    """

    change: Change
    value: Any
    estimate: StepEstimate

    def __str__(self) -> str:
        e = self.estimate
        held, has = (units.human(float(size), "GiB") for size in (e.memory.total, e.usable_bytes))
        value = e.slice if self.change == "slice" else self.value
        return f"{self.change}={value}: {e.plan}; step {units.human(e.seconds, 's')}, MFU {e.mfu:.1%}, {held} of {has} a device"


@dataclass(frozen=True, kw_only=True)
class Search:
    """The best plans, and what became of the others.

    A split is a plan without its placement. What refuses a split refuses it wherever it lies, so reasons count splits; `plans`
    counts placements as well.

    Args:
        model: the model.
        slice: where it trains.
        batch: sequences of a step.
        T: tokens in a sequence.
        best: fastest first, each split with its fastest placement. Where steps are as long to the nanosecond, the shorter upper
            bound comes first, then the lesser memory. Empty where nothing can run.
        runner_up: the fastest plan that uses other mesh axes than the best; None where there is none.
        plans: plans priced in full, those that do not fit included.
        splits: all there are, those refused included.
        reasons: for each rule, and for "memory", how many splits it refuses. Each is counted under the first that does.
        why_none: where nothing can run, why, in a sentence: a factor of the devices that divides nothing they share, or the bytes
            that the split with the least memory lacks.
        nearest: where nothing can run, what to change, each tried.
        seconds: that the search took.
    """

    model: Transformer
    slice: Slice
    batch: int
    T: int
    best: tuple[StepEstimate, ...]
    runner_up: StepEstimate | None
    plans: int
    splits: int
    reasons: Mapping[str, Reason]
    why_none: str | None
    nearest: tuple[Nearest, ...]
    seconds: float

    @property
    def feasible(self) -> int:
        """Splits that can run."""
        return self.splits - sum(reason.count for reason in self.reasons.values())

    def explain(self) -> str:
        """The answer in words: the best plan and why, what binds, what cannot run and why."""
        looked = f"{self.splits:,} splits, {self.plans:,} plans priced in {units.human(self.seconds, 's')}"
        lines = [f"{self.model} on {self.slice}, {self.batch} sequences of {self.T}: {looked}; {self.feasible:,} splits can run"]
        if self.best:
            lines += [f"best: {_described(self.best[0])}", self._why(), self._binds()]
        else:
            lines.append(f"No plan can run: {self.why_none}.")
        lines += [f"{kind}: {reason}" for kind, reason in self.reasons.items()]
        if self.nearest:
            lines += ["With one thing changed, these can:", *(f"  {change}" for change in self.nearest)]
        return "\n".join(lines)

    def _why(self) -> str:
        best, other = self.best[0], self.runner_up
        if other is None:
            return "No plan with other axes can run."
        longer_s = other.seconds - best.seconds
        if same := longer_s < RESOLUTION_S:
            ours, theirs = (units.human(e.upper_s, "s", digits=4) for e in (best, other))
            what = f"As long, but with nothing hidden {ours} against {theirs}"
        else:
            what = f"It takes {units.human(longer_s, 's')} longer, {longer_s / best.seconds:.2%} of the step"
        return f"next with other axes: {_described(other)}\n{what}; {_dearer(best, other, nothing_hidden=same)}"

    def _binds(self) -> str:
        best = self.best[0]
        return f"{best.binds} binds: {best.inequality}"

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON can hold it; seconds and bytes in base units."""
        return {
            "model": str(self.model),
            "slice": str(self.slice),
            "batch": self.batch,
            "T": self.T,
            "best": [_data(one) for one in self.best],
            "runner_up": self.runner_up and _data(self.runner_up),
            "plans": self.plans,
            "splits": self.splits,
            "feasible": self.feasible,
            "reasons": {kind: vars(reason) for kind, reason in self.reasons.items()},
            "why_none": self.why_none,
            "nearest": [
                {"change": one.change, "value": _plain(one.value), "estimate": _data(one.estimate), "words": str(one)}
                for one in self.nearest
            ],
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        return self.explain()


def _dearer(best: StepEstimate, other: StepEstimate, *, nothing_hidden: bool) -> str:
    """The part of the other step that would make the best one longest, were it in its place."""
    ours, theirs = best.step, other.step
    swapped = {name: replace(ours, parts_s={**ours.parts_s, name: seconds}) for name, seconds in theirs.parts_s.items()}
    for name, of in {"math": "math_s", "bubble": "bubble", "optimizer": "optimizer_s", "shared links": "links_s"}.items():
        swapped[name] = replace(ours, **{of: getattr(theirs, of)})
    part = max(swapped, key=lambda name: swapped[name].upper_s if nothing_hidden else swapped[name].seconds(best.shown))

    def seconds(estimate: StepEstimate) -> str:
        return units.human(float(estimate.step.links_s) if part == "shared links" else estimate.parts_s.get(part, 0.0), "s")

    return f"{part} {seconds(best)} against {seconds(other)}"


def lacking(estimate: StepEstimate) -> str:
    """What a plan that does not fit lacks."""
    held, has = float(estimate.memory.total), estimate.usable_bytes
    part = max(MEMORY, key=lambda name: float(getattr(estimate.memory, name)))
    needs, of_it, lacks = (units.human(size, "GiB") for size in (held, float(getattr(estimate.memory, part)), held - has))
    return (
        f"{_named(estimate.plan)} needs {needs} a device, {of_it} of it for {part}; "
        f"{estimate.slice.chip} has {units.human(has, 'GiB')}, so {lacks} are lacking"
    )


def _named(plan: Plan) -> str:
    extras = [f"zero {plan.zero}"] * (plan.fsdp * plan.context * plan.expert > 1)
    extras += [plan.schedule + f" of {plan.virtual_stages} chunks" * (plan.virtual_stages > 1)] * (plan.pipeline > 1)
    return ", ".join([str(plan), *extras])


def _described(e: StepEstimate) -> str:
    held, has = (units.human(float(size), "GiB") for size in (e.memory.total, e.usable_bytes))
    return (
        f"{_named(e.plan)}: step {units.human(e.seconds, 's')} ({units.human(e.lower_s, 's')} to {units.human(e.upper_s, 's')}), "
        f"MFU {e.mfu:.1%}, {held} of {has} a device"
    )


def _data(e: StepEstimate) -> dict[str, Any]:
    totals = ("seconds", "lower_s", "upper_s", "mfu", "hfu", "tokens_per_s", "binds", "fits", "usable_bytes")
    return {
        "slice": str(e.slice),
        "batch": e.batch,
        "plan": _plan(e.plan),
        **{name: getattr(e, name) for name in totals},
        "parts_s": e.parts_s,
        "memory_bytes": {**{name: float(size) for name, size in vars(e.memory).items() if name != "accumulates"},
                         "total": float(e.memory.total)},
        "inequality": vars(e.inequality),
    }  # fmt: skip


def _plan(plan: Plan) -> dict[str, Any]:
    placement = {axis: {str(place): ways for place, ways in parts.items()} for axis, parts in (plan.placement or {}).items()}
    return {name: _plain(value) for name, value in vars(plan).items() if name not in AXES} | plan.axes | {"placement": placement}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Slice) else value
