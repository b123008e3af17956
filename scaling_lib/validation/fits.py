"""From a run to predicted seconds, with one efficiency for each group of runs; and how errors are counted.

What a chip computes is known; how well code hides its wires behind math is not. Three assumptions stand for that, the same
for all runs. They were chosen by looking at all runs, so the held-out figures test the efficiencies and not them:
`Report.sensitivity` says what the figures would be with others, and `blind` what they are where these are chosen blindly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from scaling_lib.training import StepEstimate, estimate
from scaling_lib.training.step import Step
from scaling_lib.transformer import parameters
from scaling_lib.validation.runs import Setup

NEAR = 0.10
"""Relative error up to which a prediction counts as near."""

WIRES = tuple(f"{part}{far}" for part in ("tensor", "fsdp", "pipeline") for far in ("", ".dcn"))
"""Collectives in the way of math. Gradients' (data) and keys and values (context) hide behind it."""


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What is taken to hold in all published runs.

    Args:
        exposed: share of the time of tensor, FSDP and pipeline collectives that math does not hide.
        passes: time of everything elementwise, over that of the bytes counted at the peak of HBM. Kernels read and write more
            than a perfect fusion would, and slower.
        growth: part by which a step takes longer for each doubling of slices over DCN.
    """

    exposed: float = 2 / 3
    passes: float = 2.5
    growth: float = 0.02


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A run with its estimate at full efficiency, from which its seconds at any other follow.

    Args:
        setup: of the run.
        estimate: what `training.estimate` says at an efficiency of 1.
        step: its step, with the bubble of the run and elementwise time as assumed.
        growth: factor for slices over DCN.
    """

    setup: Setup
    estimate: StepEstimate
    step: Step
    growth: float

    def seconds(self, efficiency: float) -> float:
        """Predicted seconds of a step; math alone depends on the efficiency."""
        step = replace(self.step, math_s=self.step.math_s / efficiency)
        return float(step.seconds(self.estimate.shown)) * self.growth

    @property
    def baseline_s(self) -> float:
        """The one-line estimate at full efficiency: 6N and attention as the source counts it, over the peak of all chips."""
        of, model = self.setup, self.setup.model
        pairs = {"full": 1.0, "causal": 0.5}.get(of.run.attention, 0.0) * of.T
        flops = 6 * parameters(model).total + 12 * model.L * model.N * model.H * pairs
        return flops * of.batch * of.T / (of.slice.chips * of.slice.chip.flops_per_s(of.plan.math))

    def efficiency(self) -> float:
        """The one at which the prediction is what was published; 10 where what is no math already takes longer."""
        low, high = 1e-3, 10.0
        for _ in range(50):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.seconds(middle) > self.setup.step_s else (low, middle)
        return high


def priced(setup: Setup, assumptions: Assumptions) -> Priced:
    """A run, priced by `training.estimate`."""
    shown = {"elementwise": 1.0, **dict.fromkeys(WIRES, assumptions.exposed)}
    e = estimate(setup.model, setup.slice, setup.plan, setup.batch, T=setup.T, causal=setup.causal, overlap=shown)
    parts = {**e.step.parts_s, "elementwise": e.step.parts_s["elementwise"] * assumptions.passes}
    step = replace(e.step, parts_s=parts, bubble=setup.bubble)
    return Priced(setup=setup, estimate=e, step=step, growth=1 + assumptions.growth * math.log2(setup.slice.count))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A run as the fit sees it: predicted seconds for a constant, and the constant that would be right.

    Args:
        id: of the run.
        group: which runs share a constant.
        sister: runs with the same do not test each other when models are split.
        published_s: seconds of a step.
        seconds: of a constant.
        constant: for which `seconds` is `published_s`.
    """

    id: str
    group: tuple[str, str, str]
    sister: str
    published_s: float
    seconds: Callable[[float], float]
    constant: float

    def error(self, constant: float) -> float:
        """Predicted over published, minus 1."""
        return self.seconds(constant) / self.published_s - 1


Errors = Mapping[str, Sequence[float | None]]
"""For each run, its error in each split; None where it was in the half that was fitted."""


def halves(fits: Sequence[Fit], random: Random, *, by_model: bool = False) -> tuple[frozenset[str], frozenset[str]]:
    """Ids of a random half of each group, and of the other. Of an odd number either may be the larger, by chance.

    Args:
        fits: all runs. A group of one, or of one model where models are split, cannot be split: it is in neither.
        random: where halves come from.
        by_model: whether all runs of a model are in one half.
    """
    train: set[str] = set()
    test: set[str] = set()
    for group in _groups(fits).values():
        cut: dict[str, list[str]] = {}
        for fit in group:
            cut.setdefault(fit.sister if by_model else fit.id, []).append(fit.id)
        if len(cut) < 2:
            continue
        names = random.sample(sorted(cut), len(cut))
        half = (len(names) + random.randrange(2)) // 2
        train |= {each for name in names[:half] for each in cut[name]}
        test |= {each for name in names[half:] for each in cut[name]}
    return frozenset(train), frozenset(test)


def held_out(fits: Sequence[Fit], splits: int, seed: int, *, by_model: bool = False) -> Errors:
    """Errors of runs whose group's constant was fitted on others, as `halves` cuts them; arguments as there.

    Args:
        fits: all runs.
        splits: how often they are cut.
        seed: of the random halves.
        by_model: as of `halves`.
    """
    random = Random(seed)
    found: dict[str, list[float | None]] = {}
    for split in range(splits):
        train, test = halves(fits, random, by_model=by_model)
        errors = in_sample(fits, on=train)
        for name in train | test:
            found.setdefault(name, [None] * splits)[split] = errors[name] if name in test else None
    return found


def in_sample(fits: Iterable[Fit], on: Collection[str] | None = None) -> dict[str, float]:
    """Errors of runs with the median of the constants of their group.

    Args:
        fits: the runs.
        on: ids of those whose constants count; all if not given. Groups without any are left out.
    """
    errors: dict[str, float] = {}
    for group in _groups(fits).values():
        constants = [fit.constant for fit in group if on is None or fit.id in on]
        if constants:
            constant = statistics.median(constants)
            errors |= {fit.id: fit.error(constant) for fit in group}
    return errors


def _groups(fits: Iterable[Fit]) -> dict[tuple[str, str, str], list[Fit]]:
    groups: dict[tuple[str, str, str], list[Fit]] = {}
    for fit in fits:
        groups.setdefault(fit.group, []).append(fit)
    return groups


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How wrong predictions are.

    Args:
        runs: that were tested.
        median: of the absolute relative errors, all splits together.
        near: share of errors within 10 %.
        median_spread: 5th and 95th percentile of the median over the splits.
        near_spread: the same of the share.
    """

    runs: int
    median: float
    near: float
    median_spread: tuple[float, float]
    near_spread: tuple[float, float]

    @staticmethod
    def of(errors: Errors, ids: Collection[str] | None = None) -> Figures:
        """Those of some runs; of all if not given.

        Raises:
            ValueError: where none of them has an error.
        """
        rows = [row for name, row in errors.items() if ids is None or name in ids]
        splits = [[abs(error) for error in column if error is not None] for column in zip(*rows, strict=True)]
        splits = [split for split in splits if split]
        if not splits:
            raise ValueError("none of these runs was tested; give some of groups with at least two")
        every = [error for split in splits for error in split]
        return Figures(
            runs=len(rows),
            median=statistics.median(every),
            near=_near(every),
            median_spread=_spread([statistics.median(split) for split in splits]),
            near_spread=_spread([_near(split) for split in splits]),
        )

    def __str__(self) -> str:
        return f"median {self.median:.1%}, within {NEAR:.0%}: {self.near:.1%} of {self.runs} runs"


def _near(errors: Sequence[float]) -> float:
    return sum(error <= NEAR for error in errors) / len(errors)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[round(0.05 * last)], ordered[round(0.95 * last)]
