"""The catalog: every published number the course uses, each with its source.

Data files in long form; where sources conflict all of them stand here and one is chosen (docs/adr/0004).
Shown in chapters/appendix-chips.md.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One speed that somebody measured and published.

    `what` names the program and what `size` counts; `value` is in base units of `unit`; `convention` says what ran it.
    """

    chip: str
    what: str
    size: float
    value: float
    unit: str
    convention: str
    source: str
    date: str
    known: str


@cache
def chip_figures() -> tuple[Figure, ...]:
    """Every row of `chips.csv`, in file order: the chosen figure of a quantity first, then those it conflicts with."""
    return tuple(Figure(**row | {"chosen": row["chosen"] == "yes"}) for row in _rows("chips.csv"))


def measurements(chip: str) -> tuple[Measurement, ...]:
    """Published speeds of matmuls, HBM and collectives on the chip of this name, by size, from `published_microbench.csv`."""
    rows = [row for row in _rows("published_microbench.csv") if row["chip"] == chip]
    return tuple(Measurement(**row | {name: float(row[name]) for name in ("size", "value")}) for row in rows)


def _rows(file: str) -> list[dict[str, Any]]:
    text = resources.files(__name__).joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
