"""The catalog: every published number the course uses, each with its source.

Data files in long form; where sources conflict all of them stand here and one is chosen (docs/adr/0004).
Shown in chapters/appendix-chips.md and chapters/appendix-models.md.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEntry:
    """One published model: its shape, what was published about it, and where.

    `shape` holds the arguments of `transformer.Transformer` as text, under their names, without those left at their default;
    "experts.top_k" is one of `Experts`. `published_total` and `published_active` are the parameters that a source states, None
    where none was read; `published_counting` says which convention of `active_parameters` reproduces the latter. `known` is how
    we know the shape: seen, secondary, or derived where part of it was inferred from a published total.
    """

    name: str
    family: str
    shape: Mapping[str, str] = field(hash=False)
    published_total: int | None
    published_active: int | None
    published_counting: str
    source: str
    date: str
    known: str
    note: str


@cache
def models() -> tuple[ModelEntry, ...]:
    """Every row of `models.csv`, in file order."""
    facts = {f.name for f in fields(ModelEntry)}
    entries = []
    for row in _rows("models.csv"):
        shape = {name: text for name, text in row.items() if text and name not in facts}
        known: dict[str, Any] = {name: row[name] for name in facts - {"shape"}}
        for name in ("published_total", "published_active"):
            known[name] = int(row[name]) if row[name] else None
        entries.append(ModelEntry(shape=shape, **known))
    return tuple(entries)


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
