"""What others measured of serving: every row of `published_inference.csv`, with its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from scaling_lib.catalog.rows import distinct, in_file, typed


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceRun:
    """What somebody published about a server; None or "" where it was not stated.

    Args:
        id: unique.
        model: its name, of `models` where the shape is known.
        chip: of `chip_figures` where its figures are known.
        chips: all of them.
        shape: of a TPU slice.
        replicas: independent servers among which the chips are shared; 1 if not stated otherwise.
        tensor, kv_batch, width, data, expert: ways, as of `inference.Layout`, counted in devices.
        code: the code base.
        phase: "prefill", "decode", or "serving" where both share the chips.
        batch: sequences at a time, of all replicas.
        input: tokens of a prompt; of the cache, for a decode step.
        output: new tokens.
        cache: tokens for which a static cache has room, for each sequence.
        chunk: tokens of a prompt that go through with a decode step, at most.
        weights: dtype.
        kv: dtype of the cache.
        metric: "step_s" and "prefill_s" are seconds of a step and of a prefill, "input tokens/s" and "output tokens/s" rates of
            all chips; "other" is no time.
        value: in base units.
        source: where.
        date: of the source, or when it was read.
        known: how: seen or secondary.
        note: what else to know.
    """

    id: str
    model: str
    chip: str
    chips: int
    shape: str
    replicas: int
    tensor: int | None
    kv_batch: int | None
    width: int | None
    data: int | None
    expert: int | None
    code: str
    phase: str
    batch: int | None
    input: int | None
    output: int | None
    cache: int | None
    chunk: int | None
    weights: str
    kv: str
    metric: str
    value: float
    source: str
    date: str
    known: str
    note: str


WORDS: Mapping[str, tuple[str, ...]] = {
    "phase": ("prefill", "decode", "serving"),
    "weights": ("bf16", "fp8", "fp4", "int8"),
    "kv": ("", "bf16", "fp8", "int8"),
    "metric": ("step_s", "prefill_s", "input tokens/s", "output tokens/s", "other"),
    "known": ("seen", "secondary"),
}


@cache
def inference_runs() -> tuple[InferenceRun, ...]:
    """Every row of `published_inference.csv`, in file order."""
    return read_inference_runs(in_file("published_inference.csv"))


def read_inference_runs(rows: Iterable[Mapping[str, str]]) -> tuple[InferenceRun, ...]:
    """Rows of text, such as `csv.DictReader` gives, as results of serving.

    Raises:
        ValueError: for a column that is missing or unknown, a number that is none or not positive, an id that comes twice, a
            word that a column does not have, and a row without source; the id and the column are named.
    """
    return distinct(_run(row) for row in rows)


def _run(row: Mapping[str, str]) -> InferenceRun:
    return typed(InferenceRun, row, required=("id", "model", "chip", "source"), words=WORDS, defaults={"replicas": "1"})
