"""Predictions for every usable published run, and how wrong they are where nothing was fitted on them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scaling_lib import units
from scaling_lib.validation.fits import NEAR, Assumptions, Errors, Figures, Fit, Priced, held_out, in_sample, priced
from scaling_lib.validation.runs import published, setup, why_unusable

LONG = 32768
"""Tokens in a sequence above which a run is not on the clean list."""

CLEAN = f"not fp4, at most {LONG} tokens in a sequence, not one of a sweep over features of a compiler or framework"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One usable run.

    Args:
        id: of the run.
        model: its name.
        chip: which.
        kind: "tpu" or "gpu".
        code: the code base.
        precision: of the matmuls.
        chips: how many.
        plan: in words.
        published_s: seconds of a step.
        predicted_s: with the efficiency of its whole group, which was fitted on this run too.
        efficiency: with which the prediction would be right.
        held_out: mean error of the splits in which the run was tested; None where it never was, as in a group of one.
        baseline: mean error of the baseline in the same splits.
        clean: whether it is on the clean list.
    """

    id: str
    model: str
    chip: str
    kind: str
    code: str
    precision: str
    chips: int
    plan: str
    published_s: float
    predicted_s: float
    efficiency: float
    held_out: float | None
    baseline: float | None
    clean: bool

    @property
    def error(self) -> float:
        """Predicted over published, minus 1, with the efficiency of the whole group."""
        return self.predicted_s / self.published_s - 1

    @property
    def group(self) -> str:
        """Chip, code base and precision, which share an efficiency."""
        return f"{self.chip}, {self.code}, {self.precision}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of `training`.

    Args:
        rows: of usable runs, by group.
        unusable: why, for each of the other runs.
        figures: of the model, by what was tested: "all", "clean", "by model", "clean by model", and "in sample", where every
            run was fitted as well.
        baseline: the same of the baseline.
        splits: how often.
        seed: of the random halves.
        assumptions: what was taken to hold in all runs.
    """

    rows: tuple[Row, ...]
    unusable: Mapping[str, str]
    figures: Mapping[str, Figures]
    baseline: Mapping[str, Figures]
    splits: int
    seed: int
    assumptions: Assumptions

    @property
    def alone(self) -> tuple[str, ...]:
        """Ids of runs that are a group of one: no held-out figure has them."""
        return tuple(rows[0].id for rows in self.groups.values() if len(rows) == 1)

    @property
    def groups(self) -> dict[str, list[Row]]:
        """Rows that share an efficiency."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return found

    def sensitivity(self) -> dict[str, dict[str, Figures]]:
        """The figures with other assumptions, one changed at a time; as many splits, and the same seed."""
        changes: dict[str, list[float]] = {"exposed": [0.5, 1.0], "passes": [1.0, 2.0, 3.0], "growth": [0.0, 0.04]}
        found = {}
        for name, values in changes.items():
            for value in values:
                changed = replace(self.assumptions, **{name: value})
                found[f"{name} {value:g}"] = dict(training(self.splits, seed=self.seed, assumptions=changed).figures)
        return found

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {**asdict(self), "rows": [{**asdict(row), "error": row.error} for row in self.rows], "alone": list(self.alone)}

    def __str__(self) -> str:
        counts = Counter(self.unusable.values())
        a = self.assumptions
        lines = [
            f"{len(self.rows)} of {len(self.rows) + len(self.unusable)} published runs; "
            f"{self.splits} random halves, fitted on one and tested on the other",
            "",
            f"{'':24}{'runs':>5}  {'median error':>24}  {f'within {NEAR:.0%}':>24}  {'baseline':>16}",
            *(_line(name, figures, self.baseline[name]) for name, figures in self.figures.items()),
            "",
            "In brackets: 5th to 95th percentile of the halves. Baseline: 6N and attention, over the peak, times a constant.",
            f"clean: {CLEAN}.",
            "by model: all runs of a model in one half.",
            f"assumed in all runs, chosen with all in view: exposed {a.exposed:.3g}, passes {a.passes:g}, growth {a.growth:g}",
            "",
            f"{'group':38}{'runs':>5}{'efficiency':>12}{'in sample':>11}{'held out':>10}{'worst':>8}",
            *(_group(name, rows) for name, rows in self.groups.items()),
            "",
            f"in a group of one, so not held out: {len(self.alone)} ({', '.join(self.alone)})",
            f"not usable: {sum(counts.values())}, for " + ", ".join(f"{why} {n}" for why, n in counts.most_common()),
        ]
        return "\n".join(lines)


def training(splits: int = 100, *, seed: int = 0, assumptions: Assumptions | None = None) -> Report:
    """Every usable published run against `training.estimate`, with one efficiency for each chip, code base and precision.

    Args:
        splits: random halves, one after the other.
        seed: of these; the same gives the same report.
        assumptions: what holds in all runs; the usual ones if not given.

    Raises:
        ValueError: for splits that are no whole number of at least 1.
    """
    splits, usual = units.size("splits", splits), assumptions or Assumptions()
    unusable = {run.id: why for run in published() if (why := why_unusable(run))}
    every = _priced(usual)
    model = [_fit(one, one.seconds, one.efficiency()) for one in every]
    base = [_fit(one, _over(one.baseline_s), one.baseline_s / one.setup.step_s) for one in every]
    clean = {one.setup.run.id for one in every if _clean(one)}
    tested = {name: _tests(fits, splits, seed, clean) for name, fits in (("model", model), ("baseline", base))}
    errors, fitted = held_out(model, splits, seed), in_sample(model)
    base_errors = held_out(base, splits, seed)
    rows = tuple(
        _row(one, fit, fitted[fit.id], _mean(errors, fit.id), _mean(base_errors, fit.id), fit.id in clean)
        for one, fit in zip(every, model, strict=True)
    )
    return Report(
        rows=rows, unusable=unusable, figures=tested["model"], baseline=tested["baseline"],
        splits=splits, seed=seed, assumptions=usual,
    )  # fmt: skip


def model_fits(assumptions: Assumptions) -> list[Fit]:
    """Every usable run, priced with these assumptions."""
    return [_fit(one, one.seconds, one.efficiency()) for one in _priced(assumptions)]


def _priced(assumptions: Assumptions) -> list[Priced]:
    """Every usable run, by group."""
    usable = (setup(run) for run in published() if not why_unusable(run))
    return sorted((priced(each, assumptions) for each in usable), key=lambda one: one.setup.group)


def _fit(one: Priced, seconds: Callable[[float], float], constant: float) -> Fit:
    run = one.setup.run
    sister = str(sorted(asdict(replace(one.setup.model, name="")).items(), key=lambda item: item[0]))
    return Fit(id=run.id, group=one.setup.group, sister=sister, published_s=one.setup.step_s, seconds=seconds, constant=constant)


def _over(baseline_s: float) -> Callable[[float], float]:
    return lambda constant: baseline_s / constant


def _clean(one: Priced) -> bool:
    return one.setup.run.precision != "fp4" and one.setup.T <= LONG and not one.setup.run.sweep


def _tests(fits: Sequence[Fit], splits: int, seed: int, clean: Iterable[str]) -> dict[str, Figures]:
    rows, models = held_out(fits, splits, seed), held_out(fits, splits, seed, by_model=True)
    fitted: Errors = {name: [error] for name, error in in_sample(fits).items()}
    ids = frozenset(clean)
    return {
        "all": Figures.of(rows),
        "clean": Figures.of(rows, ids),
        "by model": Figures.of(models),
        "clean by model": Figures.of(models, ids),
        "in sample": Figures.of(fitted),
    }


def _row(one: Priced, fit: Fit, error: float, held: float | None, baseline: float | None, clean: bool) -> Row:
    of = one.setup
    chip, code, precision = of.group
    return Row(
        id=of.run.id, model=of.run.model, chip=chip, kind=of.slice.chip.kind, code=code, precision=precision,
        chips=of.slice.chips, plan=str(of.plan), published_s=of.step_s, predicted_s=of.step_s * (1 + error),
        efficiency=fit.constant, held_out=held, baseline=baseline, clean=clean,
    )  # fmt: skip


def _mean(errors: Errors, name: str) -> float | None:
    tested = [error for error in errors.get(name, ()) if error is not None]
    return statistics.mean(tested) if tested else None


def _line(name: str, of: Figures, baseline: Figures) -> str:
    def spread(value: float, low: float, high: float) -> str:
        return f"{value:.1%} ({low:.1%} to {high:.1%})" if low < high else f"{value:.1%}"

    median, near = spread(of.median, *of.median_spread), spread(of.near, *of.near_spread)
    return f"{name:24}{of.runs:5d}  {median:>24}  {near:>24}  {baseline.median:>7.1%}{baseline.near:>8.1%}"


def _group(name: str, rows: Sequence[Row]) -> str:
    efficiency = statistics.median(row.efficiency for row in rows)
    tested = [abs(row.held_out) for row in rows if row.held_out is not None]
    fitted = statistics.median(abs(row.error) for row in rows)
    held = f"{statistics.median(tested):>10.1%}{max(tested):>8.1%}" if tested else f"{'-':>10}{'-':>8}"
    return f"{name:38}{len(rows):5d}{efficiency:12.2f}{fitted:11.1%}{held}"
