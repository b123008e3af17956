"""What part of the peak matmuls reached in the published training runs of a chip. Shown in chapters/06-training-llama.md."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from scaling_lib.hardware import chip as chip_of
from scaling_lib.validation.fits import Assumptions, priced
from scaling_lib.validation.runs import published, setup, why_unusable


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Efficiencies with which a chip's published runs would be predicted right.

    Args:
        chip: which.
        code: the code base with the most runs.
        precision: of the matmuls.
        runs: of that code base at that precision.
        efficiency: their median.
        low: the lowest.
        high: the highest.
    """

    chip: str
    code: str
    precision: str
    runs: int
    efficiency: float
    low: float
    high: float

    def __str__(self) -> str:
        runs = "1 published run" if self.runs == 1 else f"{self.runs} published runs"
        spread = f", {self.low:.2f} to {self.high:.2f}" if self.runs > 1 else ""
        return f"{runs} of {self.code} on {self.chip} in {self.precision}{spread}"


def reached(chip: str, precision: str = "bf16", *, assumptions: Assumptions | None = None) -> Reached:
    """The efficiency for `training.estimate` that the published runs of a chip ask for.

    Args:
        chip: its name.
        precision: of the matmuls.
        assumptions: what holds in all runs; the usual ones if not given.

    Raises:
        ValueError: for an unknown chip, and for one without a usable run at that precision.
    """
    name, usual = chip_of(chip).name, assumptions or Assumptions()
    usable = [run for run in published() if not why_unusable(run)]
    found: dict[str, list[float]] = {}
    for run in usable:
        if (run.chip, run.precision) == (name, precision):
            found.setdefault(run.code, []).append(priced(setup(run), usual).efficiency())
    if not found:
        have = ", ".join(sorted({run.chip for run in usable if run.precision == precision})) or "no chip"
        raise ValueError(f"no published run on {name} in {precision} can be priced; there are some on {have}")
    code, values = max(found.items(), key=lambda each: len(each[1]))
    return Reached(
        chip=name, code=code, precision=precision, runs=len(values),
        efficiency=statistics.median(values), low=min(values), high=max(values),
    )  # fmt: skip
