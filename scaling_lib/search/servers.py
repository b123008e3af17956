"""Every layout on every slice of a generation, priced for many batches at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from scaling_lib.hardware import Slice
from scaling_lib.inference import Layout, Speed, disaggregation, prefill, sizing
from scaling_lib.inference.estimate import placed
from scaling_lib.inference.facts import Facts
from scaling_lib.inference.forward import memory, price, rates
from scaling_lib.inference.layout import GROUPS, RULES
from scaling_lib.inference.server import Engine, token_s
from scaling_lib.inference.sizing import MOST_SEQUENCES
from scaling_lib.inference.step import largest
from scaling_lib.training.wires import Wires
from scaling_lib.transformer import Transformer

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of all servers: requests of one size, an engine, and what is assumed of speed."""

    model: Transformer
    input: int
    output: int
    engine: Engine
    base: Layout
    speed: Speed


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """One layout on one slice at every batch that fits.

    Args:
        slice: where.
        layout: with its placement.
        batch: sequences, an array; empty where not one fits.
        ttft_s: seconds to the first token.
        tpot_s: seconds from token to token, for each batch.
        chip_s: seconds of a chip for each token.
        lacks_bytes: of a device, for one sequence; 0 where one fits.
    """

    slice: Slice
    layout: Layout
    batch: Floats
    ttft_s: float
    tpot_s: Floats
    chip_s: Floats
    lacks_bytes: float


def layouts(question: Question, slice: Slice, refused: dict[str, int]) -> Iterator[Layout]:
    """Layouts of a slice that the model allows; those refused are counted by rule."""
    for layout in sizing.layouts(question.model, slice, question.base):
        if rule := next((rule for rule in RULES if rule.why(layout, question.model)), None):
            refused[rule.kind] = refused.get(rule.kind, 0) + 1
        else:
            yield layout


def candidates(question: Question, slice: Slice, layout: Layout) -> Candidates:
    """A layout at all its batches, at the placement whose largest batch decodes fastest."""
    q, room = question, question.input + question.output
    facts = Facts.of(q.model, layout, T=1, S=q.input + q.output // 2, cache=room, causal=q.speed.causal)
    reading = Facts.of(q.model, layout, T=q.input, S=q.input, cache=room, decode=False, causal=q.speed.causal)
    rate, alone = rates(slice, layout, q.speed), memory(reading, layout, 1)
    has = rate.usable_bytes - (float(alone.working) if q.engine == "continuous" else 0.0)
    lacks = max(float(memory(facts, layout, 1).total) - has, float(alone.total) - rate.usable_bytes, 0.0)
    if lacks:
        none = np.array([])
        return Candidates(slice=slice, layout=layout, batch=none, ttft_s=0.0, tpot_s=none, chip_s=none, lacks_bytes=lacks)
    batch = batches(largest(lambda batch: bool(memory(facts, layout, batch).total <= has), MOST_SEQUENCES))
    every = placed(layout, slice, q.speed)
    wires = {group: _stacked([of[group] for of, _ in every]) for group in GROUPS}
    seconds = price(facts, layout, wires, rate, q.speed, batch).seconds(q.speed)
    seconds = np.broadcast_to(seconds, (len(every), len(batch)))
    fastest = int(np.argmin(seconds[:, -1]))
    (_, placement), step_s = every[fastest], seconds[fastest]
    layout = layout.but(placement=placement)
    read_s = ttft_s = prefill(q.model, slice, layout, prompt=q.input, speed=q.speed).seconds
    if q.engine == "disaggregated":
        ttft_s += disaggregation.transfer_s(q.model, slice, tokens=q.input, kv=layout.kv, kv_scale=layout.kv_scale)
    return Candidates(
        slice=slice, layout=layout, batch=batch, ttft_s=ttft_s, lacks_bytes=0.0,
        tpot_s=np.asarray(token_s(q.engine, step_s, read_s, batch, q.output)),
        chip_s=slice.chips * (step_s / batch + read_s / q.output),  # the same work, on these chips or on others
    )  # fmt: skip


def _stacked(wires: list[Wires]) -> Wires:
    """The same group over several placements: columns, to be priced with a row of batches."""
    if len(set(wires)) == 1:
        return wires[0]
    columns = {f.name: [getattr(one, f.name) for one in wires] for f in fields(Wires)}
    uses = tuple(np.array(axis)[:, None] for axis in zip(*columns.pop("uses"), strict=True))
    return Wires(**{name: np.array(column)[:, None] for name, column in columns.items()} | {"ways": wires[0].ways}, uses=uses)


def batches(most: int) -> Floats:
    """Batches up to the largest: eight for each doubling, and the largest."""
    steps = np.unique(np.round(2 ** np.arange(0, math.log2(most) + 0.125, 0.125)).astype(np.int64))
    return np.unique(np.append(steps[steps <= most], most)).astype(np.float64)
