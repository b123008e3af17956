"""A priced decode step or prefill, and what can be asked of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference import forward
from scaling_lib.inference.facts import Facts
from scaling_lib.inference.forward import Memory, Pass
from scaling_lib.inference.layout import Layout
from scaling_lib.inference.speed import Speed
from scaling_lib.training.traffic import Traffic
from scaling_lib.transformer import Transformer


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
        """Seconds of every part that takes any, each on its own.

        "weights" and "cache" are read, "math" and "attention" computed; "elementwise" is the memory traffic of all else, and
        collectives have the name of what asks for them.
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
        binds = f"{self.binds} binds"
        if self.binds == "weights":
            binds += f"; math would take as long from a batch of {units.human(self.critical_batch)} on"
        return "\n".join(
            [
                f"{self.phase} of {self.model} on {self.slice}: {self.layout}; {what}",
                f"{units.human(self.seconds, 's')} ({low} to {high}), {rate} tokens/s; {binds}",
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


def largest_batch(step: Step, *, beside_bytes: float = 0.0) -> int:
    """The most sequences for which a step has memory, with room in the cache as it has, and so many bytes beside it."""
    has = step.usable_bytes - beside_bytes

    def fits(batch: int) -> bool:
        return all(forward.memory(each, step.layout, batch).total <= has for each in step.facts)

    return largest(fits, units.MAX_SIZE)


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, where all smaller ones do; 0 for none."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
