"""A contest of training plans, each scored by its time against the best that the search finds.

How much of its communication a step hides, nobody knows before it runs. So a plan is held against two bests: the fastest
where all hides, and the fastest where nothing does. Played in labs/06-training-llama.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.search.best import best_training_plans
from scaling_lib.search.choices import Choices
from scaling_lib.search.result import Search
from scaling_lib.training import Plan, StepEstimate, estimate, why_not
from scaling_lib.training.pipeline import SCHEDULES
from scaling_lib.training.wires import AXES
from scaling_lib.transformer import Transformer

MEDALS = {"gold": 1.05, "silver": 1.2, "bronze": 1.5}
"""For each medal, how many times the time of the best a plan may take, at the worse end of its band."""
RULES = ("weights", "gradients", "reduced", "master", "moments", "activations", "math", "dropout", "flash")
"""What all plans of a contest share: the arithmetic of the training. How it is split is free."""
WORTH = 0.01
"""A change that saves less than this part of the time is not named."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The two bests that plans are held against; see `contest`.

    Args:
        base: has what all plans share, `RULES`.
        hidden: the search for the fastest step where all communication hides.
        shown: the search for the fastest where nothing hides.
    """

    base: Plan
    hidden: Search
    shown: Search

    def price(self, plan: Plan) -> StepEstimate:
        """The estimate of a plan, in the terms of the contest."""
        of = self.hidden
        return estimate(of.model, of.slice, plan, of.batch, T=of.T)

    def ratios(self, step: StepEstimate) -> tuple[float, float]:
        """Times of the best that a step takes: where all hides, and where nothing does."""
        return step.lower_s / self.hidden.best[0].lower_s, step.upper_s / self.shown.best[0].upper_s


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a plan does in a contest; prints in words.

    Args:
        estimate: of the plan.
        hidden_ratio: times that its step takes of the best one's, where all communication hides.
        shown_ratio: the same, where nothing hides.
        change: the one change that helps most, in words: of the time, or, for a plan that does not fit, of memory. None where
            no single one helps.
        changed: the score after that change, without a further one.
    """

    estimate: StepEstimate
    hidden_ratio: float
    shown_ratio: float
    change: str | None = None
    changed: Score | None = None

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.estimate.fits

    @property
    def ratio(self) -> float:
        """The worse end of the band, by which plans are ranked."""
        return max(self.hidden_ratio, self.shown_ratio)

    @property
    def medal(self) -> str | None:
        """A name in `MEDALS`; None for slower plans, and for those that do not fit."""
        return next((medal for medal, most in MEDALS.items() if self.fits and self.ratio <= most), None)

    @property
    def ok(self) -> bool:
        """Whether it wins gold, which labs ask for."""
        return self.medal == "gold"

    @property
    def band(self) -> str:
        """The two ratios, the smaller first."""
        low, high = sorted((self.hidden_ratio, self.shown_ratio))
        return f"{low:.2f} to {high:.2f}"

    def __str__(self) -> str:
        e = self.estimate
        held, has = (units.human(float(size), "GiB") for size in (e.memory.total, e.usable_bytes))
        lines = [
            f"{e.plan}: {self.band} times the best step, {self.medal or 'no medal'}",
            f"{units.human(e.lower_s, 's')} where all hides, {units.human(e.upper_s, 's')} where nothing does",
            f"{'fits' if self.fits else 'does not fit'}: {held} of {has}",
            f"{e.binds} binds: {e.inequality}",
        ]
        if self.changed is None:
            return "\n".join([*lines, f"no single change helps by more than {100 * WORTH:g} %"])
        after, gib = self.changed, units.human(float(self.changed.estimate.memory.total), "GiB")
        return "\n".join([*lines, f"would help most: {self.change}: {after.band} times, {gib}"])

    __repr__ = __str__


def contest(
    model: Transformer | str,
    slice: Slice | str,
    batch: int,
    *,
    T: int,
    base: Plan = Plan(),  # noqa: B008  # frozen
    choices: Choices | None = None,
) -> Contest:
    """Searches for the bests of a contest, twice.

    >>> on = contest("Llama-3 8B", "v5e:4x4", 16, T=4096, choices=Choices(remat="full"))
    >>> score(Plan(fsdp=16, remat="full"), on).medal
    'gold'

    Args:
        model: as of `best_training_plans`, like all that follow.
        slice: the same.
        batch: the same.
        T: the same.
        base: the same.
        choices: the same.

    Raises:
        ValueError: as `best_training_plans`, and where no plan can run: says why.
    """
    how: dict[str, Any] = {"T": T, "base": base, "choices": choices, "keep": 1}
    hidden, shown = (best_training_plans(model, slice, batch, overlap=overlap, **how) for overlap in ("full", "none"))
    if not hidden.best:
        raise ValueError(f"slice={str(hidden.slice)!r} can run no plan to compare with: {hidden.why_none}")
    return Contest(base=base, hidden=hidden, shown=shown)


def score(plan: Plan, on: Contest) -> Score:
    """How a plan does in a contest.

    Args:
        plan: one that can run there; one that does not fit is scored too, and gets no medal.
        on: the contest.

    Raises:
        ValueError: for a plan that cannot run, as `training.estimate`, or that changes the arithmetic.
    """
    for name in RULES:
        if (given := getattr(plan, name)) != (rule := getattr(on.base, name)):
            raise ValueError(f"{name}={given!r} is against the rules of this contest; give {name}={rule!r}")
    found = _scored(plan, on)
    better = [(words, after) for words, other in _changes(plan, on) if _helps(after := _scored(other, on), found)]
    if not better:
        return found
    words, after = min(better, key=lambda one: _rank(one[1]))
    ratios = {"hidden_ratio": found.hidden_ratio, "shown_ratio": found.shown_ratio}
    return Score(estimate=found.estimate, **ratios, change=words, changed=after)


def _scored(plan: Plan, on: Contest) -> Score:
    step = on.price(plan)
    hidden, shown = on.ratios(step)
    return Score(estimate=step, hidden_ratio=hidden, shown_ratio=shown)


def _rank(score: Score) -> tuple[bool, float]:
    return not score.fits, score.ratio if score.fits else float(score.estimate.memory.total)


def _helps(after: Score, before: Score) -> bool:
    if before.fits:
        return after.fits and after.ratio < (1 - WORTH) * before.ratio
    return after.fits or _rank(after)[1] < (1 - WORTH) * _rank(before)[1]


def _changes(plan: Plan, on: Contest) -> Iterator[tuple[str, Plan]]:
    """Plans that differ in one thing and can run, in words."""
    of = on.hidden
    for change in _single(plan):
        words = ", ".join(f"{name}={value!r}" for name, value in change.items())
        moved = any(axis in change for axis in AXES)
        try:
            other = plan.but(**change, placement=None if moved else plan.placement)
        except ValueError:  # not a plan at all, such as zero=0 with FSDP ways
            continue
        if why_not(other, of.model, of.slice, of.batch, of.T) is None:
            yield words, other


def _single(plan: Plan) -> Iterator[dict[str, Any]]:
    """One thing each: a factor of two from one axis to another, or all of it; how often, how, and what is kept."""
    for giver, taker in permutations(AXES, 2):
        have, takes = getattr(plan, giver), getattr(plan, taker)
        for factor in {2, have} - {1}:
            if have % factor == 0:
                yield {giver: have // factor, taker: takes * factor}
    halved = [plan.microbatches // 2] if plan.microbatches % 2 == 0 else []
    several: dict[str, Any] = {
        "microbatches": [2 * plan.microbatches, *halved],
        "remat": ["none", "selective", "full"],
        "zero": range(4),
        "sequence_parallel": [not plan.sequence_parallel],
        "context_by": ["ring", "gather"],
        "schedule": [name for name in SCHEDULES if plan.pipeline > 1],
        "virtual_stages": [2 * plan.virtual_stages] if plan.schedule == "interleaved" else [],
        "loss_chunks": [8],
    }
    for name, values in several.items():
        yield from ({name: value} for value in values if value != getattr(plan, name))
