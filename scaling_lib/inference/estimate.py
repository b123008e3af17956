"""What a decode step and a prefill take: time by part, memory, what binds.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.inference.facts import Facts, Reads
from scaling_lib.inference.forward import Memory, Pass, price, rates, wires_of
from scaling_lib.inference.layout import Layout, located, why_not
from scaling_lib.inference.speed import Speed
from scaling_lib.training.traffic import Traffic
from scaling_lib.training.wires import Placement, Wires
from scaling_lib.transformer import Transformer
from scaling_lib.transformer import model as model_of

USUAL = Speed()


@dataclass(frozen=True, kw_only=True)
class Step:
    """A priced decode step, or a prefill; times in seconds, memory per device.

    Args:
        phase: "decode" for one pass that makes a token of every sequence, "prefill" for a prompt.
        model: the model.
        slice: where it is served.
        layout: as given, with the placement that was used.
        speed: what was assumed.
        batch: sequences.
        new: tokens of each sequence that are computed.
        context: tokens of each sequence at the end, new ones included.
        cache: tokens for which there is room in the cache, for each sequence.
        facts: numbers of the model that went in, for each pass.
        passes: forward passes: one, or one for each chunk of a prefill.
        usable_bytes: memory of a device that a program can have.
    """

    phase: Literal["decode", "prefill"]
    model: Transformer
    slice: Slice
    layout: Layout
    speed: Speed
    batch: int
    new: int
    context: int
    cache: int
    facts: tuple[Facts, ...]
    passes: tuple[Pass, ...]
    usable_bytes: float

    @cached_property
    def seconds(self) -> float:
        """With the overlap that was asked for."""
        return math.fsum(float(each.seconds(self.speed)) for each in self.passes)

    @cached_property
    def lower_s(self) -> float:
        """Where memory, math and wires work side by side."""
        return math.fsum(float(each.lower_s) for each in self.passes)

    @cached_property
    def upper_s(self) -> float:
        """Where nothing hides."""
        return math.fsum(float(each.upper_s) for each in self.passes)

    @cached_property
    def parts_s(self) -> dict[str, float]:
        """Seconds of every part that takes any, each on its own: "weights" and "cache" are read, "math" and "attention" computed.

        The rest are "elementwise" and collectives by what asks for them.
        """
        names = dict.fromkeys(name for each in self.passes for name in each.parts_s)
        found = {name: math.fsum(float(each.parts_s.get(name, 0.0)) for each in self.passes) for name in names}
        return {name: seconds for name, seconds in found.items() if seconds}

    @property
    def binds(self) -> str:
        """The part that takes longest."""
        return max(self.parts_s, key=lambda part: self.parts_s[part])

    @property
    def memory(self) -> Memory:
        """By part, on a device, at its peak."""
        return max((each.memory for each in self.passes), key=lambda memory: float(memory.total))

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return bool(self.memory.total <= self.usable_bytes)

    @property
    def collectives(self) -> tuple[Traffic, ...]:
        """Every collective, of all passes."""
        return tuple(row for each in self.passes for row in each.traffic)

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all sequences, all chips together."""
        return self.batch * self.new / self.seconds

    @property
    def critical_batch(self) -> float:
        """Sequences for which the math of matmuls takes as long as reading the weights, as they are read now."""
        return self.batch * self.parts_s["weights"] / self.parts_s["math"]

    def explain(self) -> str:
        """The step in words."""
        held, usable = (units.human(float(size), "GiB") for size in (self.memory.total, self.usable_bytes))
        rate = units.human(self.tokens_per_s)
        what = f"{self.batch} sequences, {self.new} new of {self.context} tokens each"
        low, high = units.human(self.lower_s, "s"), units.human(self.upper_s, "s")
        fits = "fits" if self.fits else f"does not fit: {self.lacking}"
        return "\n".join(
            [
                f"{self.phase} of {self.model} on {self.slice}: {self.layout}; {what}",
                f"{units.human(self.seconds, 's')} ({low} to {high}), {rate} tokens/s; {self.binds} binds",
                "time: " + ", ".join(f"{name} {units.human(seconds, 's')}" for name, seconds in self.parts_s.items()),
                f"memory {held} of {usable} a device, {fits}",
                "of it " + ", ".join(f"{name} {units.human(size, 'GiB')}" for name, size in self.memory.parts.items() if size),
            ]
        )

    @property
    def lacking(self) -> str:
        """What is lacking where memory does not suffice, and what would do."""
        memory, has = self.memory, self.usable_bytes
        short = units.human(float(memory.total) - has, "GiB")
        if float(memory.weights) >= has:
            weights = units.human(float(memory.weights), "GiB")
            return (
                f"{short} a device are lacking, for the weights alone take {weights}; take more chips, or weights of fewer bits"
            )
        from scaling_lib.inference.limits import largest_batch  # it prices steps, as this module does

        most = largest_batch(self)
        if most:
            return f"{short} a device are lacking; a batch of {most} fits"
        return f"{short} a device are lacking, and not one sequence of {self.cache} tokens fits; take more chips, or fewer bits"

    def to_json(self) -> dict[str, Any]:
        """All of it, in base units, as JSON can hold it."""
        names = ("phase", "batch", "new", "context", "cache", "seconds", "lower_s", "upper_s", "parts_s", "binds", "tokens_per_s")
        return {
            "model": str(self.model),
            "slice": str(self.slice),
            "layout": layout_json(self.layout),
            **{name: getattr(self, name) for name in names},
            "critical_batch": self.critical_batch,
            "memory_bytes": self.memory.parts | {"total": float(self.memory.total)},
            "usable_bytes": self.usable_bytes,
            "fits": self.fits,
        }

    def __str__(self) -> str:
        return self.explain()


def layout_json(layout: Layout) -> dict[str, Any]:
    """A layout as JSON can hold it: ways, dtypes, and where the axes lie."""
    quantization = layout.quantization
    placement = {axis: {str(place): ways for place, ways in of.items()} for axis, of in (layout.placement or {}).items()}
    dtypes = {name: getattr(layout, name) for name in ("weights", "kv", "kv_scale", "activations", "math")}
    named = None if quantization is None else vars(quantization) | {"parts": sorted(quantization.parts)}
    return layout.axes | {"expert": layout.expert, **dtypes, "quantization": named, "placement": placement}


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
    model, slice = _found(model, slice, layout)
    new, context = units.size("new", new), units.size("context", context)
    cache = _checked(model, context, cache)
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
    model, slice = _found(model, slice, layout)
    prompt = units.size("prompt", prompt)
    cached = 0 if cached == 0 else units.size("cached", cached)
    if cached >= prompt:
        raise ValueError(f"cached={cached} of prompt={prompt} tokens leaves none to compute; the last one always is: give fewer")
    size = prompt - cached if chunk is None else units.size("chunk", chunk)
    cache = _checked(model, prompt, cache)
    ends = [*range(cached + size, prompt, size), prompt]
    starts = [cached, *ends[:-1]]
    facts = tuple(
        Facts.of(model, layout, T=end - start, S=end, cache=cache, decode=False, causal=speed.causal)
        for start, end in zip(starts, ends, strict=True)
    )
    return _priced("prefill", model, slice, layout, units.size("batch", batch), prompt - cached, prompt, cache, facts, speed)


def _found(model: Transformer | str, slice: Slice | str, layout: Layout) -> tuple[Transformer, Slice]:
    model = model_of(model) if isinstance(model, str) else model
    slice = slice_of(slice) if isinstance(slice, str) else slice
    if not isinstance(layout, Layout):
        raise ValueError(f"layout={layout!r}: give inference.Layout(...)")
    if why := why_not(layout, model, slice):
        raise ValueError(why)
    return model, slice


def _checked(model: Transformer, context: int, cache: int | None) -> int:
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
