"""The catalog: every published number the course uses, each with its source.

Data files in long form; where sources conflict all of them stand here and one is chosen (docs/adr/0004).
Shown in chapters/appendix-chips.md and chapters/appendix-models.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from scaling_lib.catalog.rows import distinct, in_file, typed


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


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """What somebody published about one training step; None or "" where it was not stated.

    Args:
        id: unique.
        model: its name, of `models` where the shape is known.
        chip: of `chip_figures` where its figures are known.
        chips: of all slices.
        slices: joined by DCN; 1 for GPUs.
        shape: of a TPU slice. Where the source counts chips only, the one most like a cube.
        T: tokens in a sequence.
        batch: sequences of a step.
        data, fsdp, tensor, pipeline, context, expert: ways, as printed.
        virtual_stages: chunks of layers a stage has.
        micro_batch: sequences.
        sequence_parallel: whether what is D wide is split over the tensor ways.
        precision: of the layers' matmuls: a dtype, or "mxfp8".
        remat: what is kept for the backward pass, as the source calls it.
        code: the code base.
        attention: which attention the source's FLOPs count, "full", "causal" or "none".
        step_s: seconds of a step.
        step_from: "printed", or what the seconds were derived from: "tokens/s", "TFLOP/s" or "run time".
        sweep: one of several runs that switch a feature of compiler or framework on and off.
        source: where.
        date: of the source, or when it was read.
        known: how: seen or secondary.
        note: what else to know.
    """

    id: str
    model: str
    chip: str
    chips: int | None
    slices: int
    shape: str
    T: int | None
    batch: int | None
    data: int | None
    fsdp: int | None
    tensor: int | None
    pipeline: int | None
    context: int | None
    expert: int | None
    virtual_stages: int | None
    micro_batch: int | None
    sequence_parallel: bool | None
    precision: str
    remat: str
    code: str
    attention: str
    step_s: float | None
    step_from: str
    sweep: bool
    source: str
    date: str
    known: str
    note: str


@cache
def training_runs() -> tuple[TrainingRun, ...]:
    """Every row of `published_training.csv`, in file order."""
    return read_training_runs(in_file("published_training.csv"))


def read_training_runs(rows: Iterable[Mapping[str, str]]) -> tuple[TrainingRun, ...]:
    """Rows of text, such as `csv.DictReader` gives, as training runs.

    Raises:
        ValueError: for a column that is missing or unknown, a number that is none or not positive, an id that comes twice, a
            word that a column does not have, and a row without source; the id and the column are named.
    """
    return distinct(_training_run(row) for row in rows)


_WORDS: Mapping[str, tuple[str, ...]] = {
    "precision": ("", "bf16", "f16", "fp8", "mxfp8", "fp4", "int8"),
    "attention": ("", "full", "causal", "none"),
    "step_from": ("", "printed", "tokens/s", "TFLOP/s", "run time"),
    "sequence_parallel": ("", "yes", "no"),
    "sweep": ("", "yes"),
    "known": ("seen", "secondary"),
}


def _training_run(row: Mapping[str, str]) -> TrainingRun:
    run = typed(TrainingRun, row, required=("id", "model", "source"), words=_WORDS, defaults={"slices": "1"})
    if bool(row["step_s"]) != bool(row["step_from"]):
        raise ValueError(f"run {row['id']!r}: step_s={row['step_s']!r} and step_from={row['step_from']!r} go together")
    return run


@cache
def models() -> tuple[ModelEntry, ...]:
    """Every row of `models.csv`, in file order."""
    facts = {f.name for f in fields(ModelEntry)}
    entries = []
    for row in in_file("models.csv"):
        shape = {name: text for name, text in row.items() if text and name not in facts}
        known: dict[str, Any] = {name: row[name] for name in facts - {"shape"}}
        for name in ("published_total", "published_active"):
            known[name] = int(row[name]) if row[name] else None
        entries.append(ModelEntry(shape=shape, **known))
    return tuple(entries)


@cache
def chip_figures() -> tuple[Figure, ...]:
    """Every row of `chips.csv`, in file order: the chosen figure of a quantity first, then those it conflicts with."""
    return tuple(Figure(**row | {"chosen": row["chosen"] == "yes"}) for row in in_file("chips.csv"))


def measurements(chip: str) -> tuple[Measurement, ...]:
    """Published speeds of matmuls, HBM and collectives on the chip of this name, by size, from `published_microbench.csv`."""
    rows = [row for row in in_file("published_microbench.csv") if row["chip"] == chip]
    return tuple(Measurement(**row | {name: float(row[name]) for name in ("size", "value")}) for row in rows)
