"""Two smaller checks: Korthikanti's eight runs with two constants, and growing clusters with one constant from the smallest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scaling_lib.validation.fits import Assumptions, Priced, priced
from scaling_lib.validation.runs import published, setup

KORTHIKANTI = ("T134", "T133", "T136", "T135", "T138", "K530", "K1T", "T139")
"""Table 5 of arXiv 2205.05198: 22B, 175B, 530B and 1T, each with full and with selective recomputation."""

SCALINGS = {
    "MLPerf Llama-3.1 405B, GB200": ("T116", "T117", "T118", "T119", "T120", "T121", "T122"),
    "MLPerf Llama-3.1 405B, H100": ("T112", "T113", "T114"),
    "Llama 3 405B, H100": ("T158", "T160"),
}
"""Runs of one model and code base, the smallest cluster first."""

VIRTUAL_STAGES = 8
"""Assumed where a run of `SCALINGS` does not state them: one layer a virtual stage with 16 stages, two with 8."""

_PASSES = [1 + 0.25 * step for step in range(17)]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Predictions for a few runs, and the constants they were made with.

    Args:
        title: which runs.
        efficiency: part of the peak that math reaches.
        assumptions: the others.
        runs: for each, its id, model, chips, seconds predicted and published.
        fitted: ids of the runs that the constants were fitted on.
    """

    title: str
    efficiency: float
    assumptions: Assumptions
    runs: tuple[tuple[str, str, int, float, float], ...]
    fitted: tuple[str, ...]

    @property
    def errors(self) -> dict[str, float]:
        """Predicted over published, minus 1, of each run that tells something: all, where all were fitted."""
        told = {name: predicted / known - 1 for name, _, _, predicted, known in self.runs}
        rest = {name: error for name, error in told.items() if name not in self.fitted}
        return rest or told

    @property
    def mean(self) -> float:
        """Of the absolute errors."""
        return statistics.mean(map(abs, self.errors.values()))

    @property
    def worst(self) -> float:
        """The largest absolute error."""
        return max(map(abs, self.errors.values()))

    def __str__(self) -> str:
        lines = [f"{self.title}: mean {self.mean:.2%}, worst {self.worst:.2%} (efficiency {self.efficiency:.3f})"]
        for name, model, chips, predicted, known in self.runs:
            fitted = "  fitted" if name in self.fitted and len(self.fitted) < len(self.runs) else ""
            error = predicted / known - 1
            times = f"{predicted:8.3f} s  published {known:8.3f} s  {error:+6.1%}"
            lines.append(f"  {name:5} {model:16} {chips:6d} chips  {times}{fitted}")
        return "\n".join(lines)


def korthikanti(*, constants: int = 2, leave_out: str | None = None) -> Scaling:
    """Korthikanti's eight runs with at most two constants, fitted on the same eight by least squares of relative errors.

    Args:
        constants: 2 for the efficiency and `Assumptions.passes`; 1 for the efficiency alone, with the assumptions of all runs.
        leave_out: a model's name; its runs are not fitted, and are the ones whose errors count.

    Raises:
        ValueError: for another number of constants, or a model that is none of the four.
    """
    if constants not in (1, 2):
        raise ValueError(f"constants={constants!r}; give 1 or 2")
    usual = Assumptions()
    choices = [usual] if constants == 1 else [replace(usual, passes=passes) for passes in _PASSES]
    fits = []
    for assumptions in choices:
        every = _priced(KORTHIKANTI, assumptions)
        train = [one for one in every if one.setup.model.name != leave_out]
        if leave_out is not None and len(train) == len(every):
            raise ValueError(f"leave_out={leave_out!r} is none of {', '.join(sorted({o.setup.model.name for o in every}))}")
        efficiency = _least_squares(train)
        fits.append((_squares(train, efficiency), efficiency, assumptions, every, train))
    _, efficiency, assumptions, every, train = min(fits, key=lambda fit: fit[0])
    title = f"Korthikanti 2022, {constants} constant{'s' * (constants > 1)}" + (f", without {leave_out}" if leave_out else "")
    return _scaling(title, efficiency, assumptions, every, train)


def strong_scaling(assumptions: Assumptions | None = None) -> tuple[Scaling, ...]:
    """Runs on growing clusters, predicted with the efficiency of the smallest."""
    usual = assumptions or Assumptions()
    found = []
    for title, ids in SCALINGS.items():
        every = _priced(ids, usual, VIRTUAL_STAGES)
        found.append(_scaling(title, every[0].efficiency(), usual, every, every[:1]))
    return tuple(found)


def _priced(ids: Sequence[str], assumptions: Assumptions, virtual_stages: int | None = None) -> list[Priced]:
    runs = {run.id: run for run in published()}
    return [priced(setup(runs[name], virtual_stages=virtual_stages), assumptions) for name in ids]


def _scaling(
    title: str, efficiency: float, assumptions: Assumptions, every: Iterable[Priced], train: Iterable[Priced]
) -> Scaling:
    rows = tuple(
        (one.setup.run.id, one.setup.model.name, one.setup.slice.chips, one.seconds(efficiency), one.setup.step_s)
        for one in every
    )
    fitted = tuple(one.setup.run.id for one in train)
    return Scaling(title=title, efficiency=efficiency, assumptions=assumptions, runs=rows, fitted=fitted)


def _squares(train: Sequence[Priced], efficiency: float) -> float:
    return sum((one.seconds(efficiency) / one.setup.step_s - 1) ** 2 for one in train)


def _least_squares(train: Sequence[Priced]) -> float:
    """The efficiency with the least squares, which fall towards it from both sides, by golden section."""
    low, high, ratio = 0.05, 1.5, (math.sqrt(5) - 1) / 2
    while high - low > 1e-5:
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if _squares(train, a) < _squares(train, b) else (a, high)
    return (low + high) / 2
