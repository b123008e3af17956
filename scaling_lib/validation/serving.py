"""Bound and estimate against every usable result of serving, and how wrong the estimate is where nothing was fitted on it.

The estimate has three constants for TPUs, and three for GPUs. For each result of decoding they are fitted on all others; the
results without a stated batch are never fitted, and test what decoding taught.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scaling_lib import units
from scaling_lib.catalog.serving import inference_runs
from scaling_lib.validation.served import Constants, Kind, server, why_unusable

NEAR = 0.25
"""Relative error up to which a prediction counts as near."""

PARTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
STARTS_S = (0.0, 5e-6, 10e-6, 20e-6, 40e-6)
GRID = tuple(Constants(efficiency=e, hbm_efficiency=h, start_s=s) for e, h, s in itertools.product(PARTS, PARTS, STARTS_S))
"""Constants that are tried."""


@dataclass(frozen=True, kw_only=True)
class ServingRow:
    """One usable result.

    Args:
        id: of the result.
        model: its name.
        chip: which.
        chips: how many.
        code: the code base.
        kind: "decode", "prefill" or "largest batch"; see `served.Server`.
        measured_s: seconds, as there.
        bound_s: that nothing can beat.
        predicted_s: with constants that were not fitted on this result; None where it cannot be priced.
        constants: those.
        why: why it cannot be priced.
    """

    id: str
    model: str
    chip: str
    chips: int
    code: str
    kind: Kind
    measured_s: float
    bound_s: float
    predicted_s: float | None
    constants: Constants | None
    why: str

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1

    @property
    def group(self) -> str:
        """Model and chip, or for decoding the code base and chip."""
        return f"{self.code} {self.chip}" if self.kind == "decode" else f"{self.model} {self.chip}"


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How wrong some predictions are: rows, share within 25 %, median of the absolute errors, and the mean of the signed ones."""

    rows: int
    near: float
    median: float
    bias: float

    @staticmethod
    def of(rows: Iterable[ServingRow]) -> Accuracy:
        """Of those that are priced.

        Raises:
            ValueError: where none is.
        """
        errors = [row.error for row in rows if row.error is not None]
        if not errors:
            raise ValueError("none of these results is priced")
        size = [abs(error) for error in errors]
        near = sum(each <= NEAR for each in size) / len(size)
        return Accuracy(rows=len(errors), near=near, median=statistics.median(size), bias=statistics.mean(errors))

    @property
    def predictive(self) -> bool:
        """Whether at least half of the predictions are within 25 %."""
        return self.near >= 0.5

    def __str__(self) -> str:
        return f"{self.near:5.0%} of {self.rows:3d} within {NEAR:.0%}, median {self.median:.0%}, mean {self.bias:+.0%}"


@dataclass(frozen=True, kw_only=True)
class ServingReport:
    """The result of `inference`.

    Args:
        rows: of usable results.
        unusable: why, for each of the others.
        constants: fitted on all results of decoding, by the kind of chip.
    """

    rows: tuple[ServingRow, ...]
    unusable: Mapping[str, str]
    constants: Mapping[str, Constants]

    def priced(self, kind: Kind) -> tuple[ServingRow, ...]:
        """Rows of a kind that have an estimate."""
        return tuple(row for row in self.rows if row.kind == kind and row.error is not None)

    @property
    def violations(self) -> tuple[ServingRow, ...]:
        """Rows that were measured to be faster than their bound."""
        return tuple(row for row in self.rows if row.bound_s > row.measured_s)

    @property
    def tightest(self) -> ServingRow:
        """The row that comes nearest to its bound."""
        return max(self.rows, key=lambda row: row.bound_s / row.measured_s)

    @property
    def decode(self) -> Accuracy:
        """Of results whose batch is known, each predicted from the others."""
        return Accuracy.of(self.priced("decode"))

    @property
    def largest_batch(self) -> Accuracy:
        """Of results whose batch is not known, none of which was fitted."""
        return Accuracy.of(self.priced("largest batch"))

    @property
    def groups(self) -> dict[str, Accuracy]:
        """Accuracy of each group, decoding first."""
        found: dict[str, list[ServingRow]] = {}
        kinds: tuple[Kind, ...] = ("decode", "largest batch", "prefill")
        for row in (row for kind in kinds for row in self.priced(kind)):
            found.setdefault(f"{row.kind}: {row.group}", []).append(row)
        return {name: Accuracy.of(rows) for name, rows in found.items()}

    @property
    def not_predictive(self) -> tuple[str, ...]:
        """Groups of which less than half are within 25 %."""
        return tuple(name for name, accuracy in self.groups.items() if not accuracy.predictive)

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        rows = [asdict(row) | {"error": row.error, "group": row.group} for row in self.rows]
        groups = {name: asdict(accuracy) for name, accuracy in self.groups.items()}
        return {
            "rows": rows, "unusable": dict(self.unusable),
            "constants": {kind: asdict(of) for kind, of in self.constants.items()},
            "violations": [row.id for row in self.violations], "decode": asdict(self.decode),
            "largest_batch": asdict(self.largest_batch), "groups": groups, "not_predictive": list(self.not_predictive),
        }  # fmt: skip

    def __str__(self) -> str:
        tight = self.tightest
        counts = Counter(self.unusable.values())
        unpriced = Counter(row.why for row in self.rows if row.error is None)
        broken = ", ".join(row.id for row in self.violations) or "none"
        far = ", ".join(
            f"{row.id} {row.model} {row.chip} {row.error:+.0%}"
            for row in self.priced("decode")
            if row.error is not None and abs(row.error) > NEAR
        )
        return "\n".join(
            [
                f"{len(self.rows)} of {len(self.rows) + len(self.unusable)} published results; faster than their bound: {broken}",
                f"nearest to it: {tight.id}, {tight.model} on {tight.chip}, at {tight.bound_s / tight.measured_s:.0%}",
                *(
                    f"{kind}: {of.efficiency:g} of the peak, {of.hbm_efficiency:g} of the bandwidth, "
                    f"{units.human(of.start_s, 's')} a collective"
                    for kind, of in self.constants.items()
                ),
                "",
                f"decode, each from the others:     {self.decode}",
                f"largest batch, none was fitted:   {self.largest_batch}",
                "",
                *(f"{name:48}{accuracy}" for name, accuracy in self.groups.items()),
                "",
                f"not predictive (less than half within {NEAR:.0%}): {', '.join(self.not_predictive) or 'none'}",
                f"decode rows further off: {far or 'none'}",
                "not usable: " + ", ".join(f"{why} {n}" for why, n in counts.most_common()),
                "a bound alone: " + ", ".join(f"{why} {n}" for why, n in unpriced.most_common()),
            ]
        )


def inference() -> ServingReport:
    """Every usable published result of serving against `inference.bound` and the estimate."""
    unusable = {run.id: why for run in inference_runs() if (why := why_unusable(run))}
    servers = [server(run) for run in inference_runs() if run.id not in unusable]
    fitted = [one for one in servers if one.kind == "decode" and one.priced]
    errors: dict[str, dict[str, list[float]]] = {}
    for one in fitted:
        row = [one.seconds(constants) / one.measured_s - 1 for constants in GRID]
        errors.setdefault(one.chip_kind, {})[one.run.id] = row
    of_all = {kind: best(list(rows.values())) for kind, rows in errors.items()}
    rows = []
    for one in servers:
        constants = None
        if one.priced:
            of_kind = errors[one.chip_kind]
            others = [row for name, row in of_kind.items() if name != one.run.id]
            constants = best(others) if one.run.id in of_kind else of_all[one.chip_kind]
        rows.append(
            ServingRow(
                id=one.run.id,
                model=one.run.model,
                chip=one.run.chip,
                chips=one.run.chips,
                code=one.run.code,
                kind=one.kind,
                measured_s=one.measured_s,
                bound_s=one.bound_s,
                constants=constants,
                predicted_s=one.seconds(constants) if constants else None,
                why=one.why,
            )
        )
    return ServingReport(rows=tuple(rows), unusable=unusable, constants=of_all)


def best(errors: Sequence[Sequence[float]]) -> Constants:
    """The constants of `GRID` with the most errors within 25 %, and of these with the least mean error.

    Args:
        errors: of each result, one for each entry of the grid.
    """

    def score(at: int) -> tuple[int, float]:
        size = [abs(row[at]) for row in errors]
        return sum(each > NEAR for each in size), statistics.mean(size)

    return GRID[min(range(len(GRID)), key=score)]
