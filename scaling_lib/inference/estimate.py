"""What a decode step and a prefill take: time by part, memory, what binds.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.inference.facts import Facts, Reads
from scaling_lib.inference.forward import Pass, price, rates, wires_of
from scaling_lib.inference.layout import Layout, located, why_not
from scaling_lib.inference.speed import Speed
from scaling_lib.inference.step import Step
from scaling_lib.training.wires import Placement, Wires
from scaling_lib.transformer import Transformer
from scaling_lib.transformer import model as model_of

USUAL = Speed()


def decode_step(
    model: Transformer | str,
    slice: Slice | str,
    layout: Layout,
    batch: int,
    *,
    context: int,
    cache: int | None = None,
    reads: Reads = "used",
    new: int = 1,
    speed: Speed = USUAL,
) -> Step:
    """What one decode step takes: one more token for every sequence of the batch.

    >>> decode_step("Llama-3 70B", "v5e:2x4", Layout(tensor=8, weights="int8", kv="int8"), 32, context=8192).fits
    True

    Args:
        model: or its name in the catalog.
        slice: or its name.
        layout: which is checked against both.
        batch: sequences, all devices together.
        context: tokens of each, the new one included.
        cache: tokens for which the cache has room, for each sequence; `context` if not given.
        reads: what attention reads of the cache: what is "used", or "all" of it, as attention over a static cache does.
        new: tokens that are computed of each sequence; more than 1 to verify guesses in speculative decoding.
        speed: what chips and wires reach, and what hides.

    Raises:
        ValueError: for a layout that cannot run, a context beyond the cache or beyond the model's table of positions, and
            sizes out of range. A batch beyond the memory is a result: `fits` is False, and `lacking` says what would do.

    NB: samplers are taken to work on shards of the logits, so these do not travel. Experts are taken to be chosen evenly.
    """
    model, slice = resolved(model, slice, layout)
    new, context = units.size("new", new), units.size("context", context)
    cache = checked(model, context, cache)
    if new > context:
        raise ValueError(f"new={new} tokens are more than context={context}, which includes them")
    if reads not in ("used", "all"):
        raise ValueError(f"reads={reads!r} is neither 'used' nor 'all'")
    facts = Facts.of(model, layout, T=new, S=context, cache=cache, reads=reads, causal=speed.causal)
    return _priced("decode", model, slice, layout, units.size("batch", batch), new, context, cache, (facts,), speed)


def prefill(
    model: Transformer | str,
    slice: Slice | str,
    layout: Layout,
    *,
    prompt: int,
    batch: int = 1,
    chunk: int | None = None,
    cached: int = 0,
    cache: int | None = None,
    speed: Speed = USUAL,
) -> Step:
    """What it takes to read prompts into the cache, up to the first new token.

    Args:
        model: or its name in the catalog.
        slice: or its name.
        layout: which is checked against both.
        prompt: tokens of each prompt.
        batch: prompts that are read together.
        chunk: tokens of a pass; the whole prompt if not given. Each chunk reads the weights and the earlier cache once more.
        cached: of the prompt, tokens at its start whose keys and values are in the cache already: a prefix that was seen.
        cache: tokens for which there is room; `prompt` if not given.
        speed: what chips and wires reach, and what hides.

    Raises:
        ValueError: as of `decode_step`, and for a cached prefix that leaves nothing to compute.
    """
    model, slice = resolved(model, slice, layout)
    prompt = units.size("prompt", prompt)
    cached = 0 if cached == 0 else units.size("cached", cached)
    if cached >= prompt:
        raise ValueError(f"cached={cached} of prompt={prompt} tokens leaves none to compute; the last one always is: give fewer")
    size = prompt - cached if chunk is None else units.size("chunk", chunk)
    cache = checked(model, prompt, cache)
    ends = [*range(cached + size, prompt, size), prompt]
    starts = [cached, *ends[:-1]]
    facts = tuple(
        Facts.of(model, layout, T=end - start, S=end, cache=cache, decode=False, causal=speed.causal)
        for start, end in zip(starts, ends, strict=True)
    )
    return _priced("prefill", model, slice, layout, units.size("batch", batch), prompt - cached, prompt, cache, facts, speed)


def resolved(model: Transformer | str, slice: Slice | str, layout: Layout) -> tuple[Transformer, Slice]:
    """The model and the slice that were named, which a layout must fit."""
    model = model_of(model) if isinstance(model, str) else model
    slice = slice_of(slice) if isinstance(slice, str) else slice
    if not isinstance(layout, Layout):
        raise ValueError(f"layout={layout!r}: give inference.Layout(...)")
    if why := why_not(layout, model, slice):
        raise ValueError(why)
    return model, slice


def checked(model: Transformer, context: int, cache: int | None) -> int:
    """Tokens for which a sequence has room, `context` if not given; refuses a context beyond that or the model's positions."""
    cache = context if cache is None else units.size("cache", cache)
    if context > cache:
        raise ValueError(
            f"context={context} tokens are beyond the cache, which has room for {cache}; give cache={context} or more"
        )
    if model.learned_positions and context > model.learned_positions:
        most = model.learned_positions
        raise ValueError(
            f"context={context} is beyond the table of positions of {model}, which has {most} rows; give at most {most}"
        )
    return cache


def _priced(
    phase: Literal["decode", "prefill"], model: Transformer, slice: Slice, layout: Layout, batch: int, new: int, context: int,
    cache: int, facts: tuple[Facts, ...], speed: Speed,
) -> Step:  # fmt: skip
    """At the placement that is fastest."""
    rate = rates(slice, layout, speed)
    found: list[tuple[float, tuple[Pass, ...], Placement]] = []
    for wires, placement in placed(layout, slice, speed):
        passes = tuple(price(each, layout, wires, rate, speed, batch) for each in facts)
        found.append((math.fsum(float(each.seconds(speed)) for each in passes), passes, placement))
    _, passes, placement = min(found, key=lambda one: one[0])
    return Step(
        phase=phase, model=model, slice=slice, layout=layout.but(placement=placement), speed=speed, batch=batch, new=new,
        context=context, cache=cache, facts=facts, passes=passes, usable_bytes=rate.usable_bytes,
    )  # fmt: skip


def placed(layout: Layout, slice: Slice, speed: Speed) -> tuple[tuple[Mapping[str, Wires], Placement], ...]:
    """The placements a layout can have, of those with the same wires one, and what bytes cost there."""
    if layout.placement is not None:
        (placement,) = located(layout, slice)
        return ((wires_of(slice, placement, speed), placement),)
    return _placed(layout, slice, speed.ici, speed.hop_s, speed.start_s)


@lru_cache(maxsize=4096)
def _placed(
    layout: Layout, slice: Slice, ici: Literal["achievable", "peak"], hop_s: float, start_s: float
) -> tuple[tuple[Mapping[str, Wires], Placement], ...]:
    found: dict[tuple[Wires, ...], tuple[Mapping[str, Wires], Placement]] = {}
    speed = Speed(ici=ici, hop_s=hop_s, start_s=start_s)
    for placement in located(layout, slice):
        wires = wires_of(slice, placement, speed)
        found.setdefault(tuple(wires.values()), (wires, placement))
    return tuple(found.values())
