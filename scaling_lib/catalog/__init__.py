"""The catalog: every published number the course uses, each with its source.

Data files in long form; where sources conflict all of them stand here and one is chosen (docs/adr/0004).
Shown in chapters/appendix-chips.md.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number of one chip from one source.

    `value` is text as in the file, in the base unit `unit`; `convention` says its scope (per chip, one way, dense);
    `known` is how we know it: seen, secondary, measured, compiler or derived.
    """

    chip: str
    quantity: str
    value: str
    unit: str
    convention: str
    source: str
    date: str
    known: str
    chosen: bool


@cache
def chip_figures() -> tuple[Figure, ...]:
    """Every row of `chips.csv`, in file order: the chosen figure of a quantity first, then those it conflicts with."""
    text = resources.files(__name__).joinpath("chips.csv").read_text(encoding="utf-8")
    return tuple(
        Figure(**{**row, "chosen": row["chosen"] == "yes"})  # type: ignore[arg-type]  # csv gives text for every column
        for row in csv.DictReader(text.splitlines())
    )
