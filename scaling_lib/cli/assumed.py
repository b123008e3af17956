"""What the days and dollars of a plan rest on: the matmuls' efficiency, time lost to failures, and the price with its source."""

from __future__ import annotations

from dataclasses import dataclass

from scaling_lib import catalog
from scaling_lib.cli import quantities
from scaling_lib.hardware import Chip

PUBLISHED = "published"
"""In place of an efficiency: what the chip's published runs reached."""


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What a bill rests on.

    Args:
        efficiency: part of the peak that matmuls reach.
        why: where that is from.
        overlap: whether communication hides behind the math, "full" or "none".
        tokens: the budget; None without one.
        goodput: part of the time in which steps run that count.
        usd: of a chip and hour; None where nobody states it.
        source: of the price.
    """

    efficiency: float
    why: str
    overlap: str
    tokens: int | None
    goodput: float
    usd: float | None
    source: str

    def __str__(self) -> str:
        parts = [f"matmuls at {self.efficiency:.3g} of the peak ({self.why})"]
        if self.tokens is not None:
            parts.append("links hide behind math (--overlap none: nothing does)" if self.overlap == "full" else "nothing hides")
            parts.append(
                "no time lost to failures (--goodput 0.95 would lose 5 %)"
                if self.goodput == 1
                else f"{self.goodput:.1%} of the time in steps that count"
            )
            parts.append("no price" if self.usd is None else f"{self.usd:g} USD a chip and hour ({self.source})")
        return "assumed: " + "; ".join(parts)


def assumed(
    chip: Chip, *, math: str, efficiency: str, overlap: str, tokens: str | None, goodput: str, price: str | None
) -> Assumed:
    """The options of a command as what they assume.

    Raises:
        ValueError: for what does not read so, a goodput that is no part of 1, and a chip without published runs.
    """
    part, why = _efficiency(chip, math, efficiency)
    share = quantities.number("--goodput", goodput)
    if not 0 < share <= 1:
        raise ValueError(f"--goodput={goodput} is a part of the time; give more than 0, and at most 1")
    usd, source = (quantities.number("--price", price), "as given") if price is not None else _listed(chip)
    budget = None if tokens is None else quantities.quantity("--tokens", tokens)
    return Assumed(efficiency=part, why=why, overlap=overlap, tokens=budget, goodput=share, usd=usd, source=source)


def _efficiency(chip: Chip, math: str, given: str) -> tuple[float, str]:
    if given != PUBLISHED:
        part = quantities.number("--efficiency", given)
        return part, f"a bound; --efficiency {PUBLISHED} is what runs on {chip.name} reached" if part == 1 else "as given"
    from scaling_lib import validation

    try:
        found = validation.reached(chip.name, math)
    except ValueError as error:
        raise ValueError(f"--efficiency={given}: {error}; give a number, like 0.7") from error
    return found.efficiency, f"median of {found}"


def _listed(chip: Chip) -> tuple[float | None, str]:
    """The catalog's price of a chip and hour, where anyone states one, and who does."""
    for row in catalog.chip_figures():
        if (row.chip, row.quantity, row.chosen) == (chip.name, "usd_per_hour", True):
            dated = row.source if row.date in row.source else f"{row.source}, {row.date}"
            return chip.usd_per_hour, f"{row.convention}; {dated}"
    return None, ""
