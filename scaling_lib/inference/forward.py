"""One forward pass in serving: its memory, and its time by part.

The formulas take numbers or arrays for the batch; see docs/adr/0012. Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from scaling_lib.hardware import Slice
from scaling_lib.inference.facts import Facts
from scaling_lib.inference.layout import AXES, GROUPS, Layout
from scaling_lib.inference.speed import COLLECTIVES, Overlap, Speed
from scaling_lib.inference.traffic import pass_traffic
from scaling_lib.training import Plan
from scaling_lib.training.either import Number, ceil_div, maximum
from scaling_lib.training.step import Rates
from scaling_lib.training.traffic import Traffic, seconds
from scaling_lib.training.wires import Placement, Wires, physical, wires_along

OPS = ("weights", "math", "cache", "attention", "elementwise")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device, by part; numbers or arrays.

    Args:
        weights: all that the device has of them.
        cache: keys and values, as much as is reserved.
        working: activations of one layer, and the sequences that come together from data ways.
        logits: of the last token of each sequence, in float32.
    """

    weights: Number
    cache: Number
    working: Number
    logits: Number

    @property
    def total(self) -> Number:
        """All together."""
        return self.weights + self.cache + self.working + self.logits

    @property
    def parts(self) -> dict[str, float]:
        """Each part by its name."""
        return {f.name: float(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A priced forward pass; seconds of each part on its own, numbers or arrays.

    Args:
        weights_s: reading the weights, of experts those that some token goes through.
        math_s: matmuls with weights.
        cache_s: reading keys and values.
        attention_s: scores and contexts.
        elementwise_s: memory traffic of all else.
        exchange_s: collectives by part, near and far.
        links_s: seconds that the busiest wires carry something.
        traffic: every collective.
        memory: of a device.
    """

    weights_s: Number
    math_s: Number
    cache_s: Number
    attention_s: Number
    elementwise_s: Number
    exchange_s: Mapping[str, Number]
    links_s: Number
    traffic: tuple[Traffic, ...]
    memory: Memory

    @cached_property
    def parts_s(self) -> dict[str, Number]:
        """Seconds of all parts by name."""
        return {name: getattr(self, f"{name}_s") for name in OPS} | dict(self.exchange_s)

    def seconds(self, speed: Speed) -> Number:
        """Seconds of the pass, with the overlap that is asked for."""
        overlap: Overlap = speed.overlap
        if overlap == "full":
            return self.lower_s
        if overlap == "none":
            return self.upper_s
        shown = speed.shown
        exposed = sum(shown.get(name, 0.0) * of_part for name, of_part in self.exchange_s.items())
        return maximum(self.ops_s + exposed, self.links_s)

    @property
    def ops_s(self) -> Number:
        """Matmuls and attention, each at the longer of math and memory, one after the other."""
        return maximum(self.weights_s, self.math_s) + maximum(self.cache_s, self.attention_s) + self.elementwise_s

    @property
    def lower_s(self) -> Number:
        """Where memory, math and wires work side by side."""
        return maximum(self.weights_s + self.cache_s + self.elementwise_s, self.math_s + self.attention_s, self.links_s)

    @property
    def upper_s(self) -> Number:
        """Where nothing hides."""
        return sum(self.parts_s.values())


def rates(slice: Slice, layout: Layout, speed: Speed) -> Rates:
    """What one device does in a second.

    Raises:
        ValueError: for a dtype whose peak no source states for this chip.
    """
    return Rates.of(slice, Plan(math=layout.math, activations=layout.activations), speed.efficiency)


def wires_of(slice: Slice, placement: Placement, speed: Speed) -> dict[str, Wires]:
    """What a byte costs each of `layout.GROUPS`."""
    how: dict[str, Any] = {"ici": speed.ici, "hop_s": speed.hop_s, "start_s": speed.start_s}
    alone = Wires(uses=(0,) * len(physical(slice)))
    return {
        name: wires_along(slice, placement, members, AXES[: AXES.index(members[0])], **how)
        if any(ways > 1 for axis in members for ways in placement.get(axis, {}).values())
        else alone
        for name, members in GROUPS.items()
    }


def price(facts: Facts, layout: Layout, wires: Mapping[str, Wires], rates: Rates, speed: Speed, batch: Number) -> Pass:
    """The pass for one batch, or for an array of batches. Sequences that do not divide by the ways are rounded up.

    Nothing is checked; `layout.why_not` says what must hold.
    """
    own, cached = held(layout, batch)
    hbm = rates.hbm_bytes_per_s * speed.hbm_efficiency
    touched = 1 - (1 - facts.routed) ** (batch * facts.T)
    traffic = pass_traffic(facts, layout, wires, own, cached)
    exchange_s, links_s = _exchange(traffic)
    return Pass(
        weights_s=(facts.read_bytes + touched * facts.expert_bytes) / hbm,
        math_s=own * (facts.math_flops / rates.math_flops_per_s + facts.head_flops / rates.attention_flops_per_s),
        cache_s=cached * facts.kv_read_bytes / hbm,
        attention_s=cached * facts.attention_flops / rates.attention_flops_per_s,
        elementwise_s=own * facts.elementwise_bytes / hbm,
        exchange_s=exchange_s,
        links_s=links_s,
        traffic=traffic,
        memory=memory(facts, layout, batch),
    )


def together(first: Pass, second: Pass) -> Pass:
    """Two passes of one layout in one: the sequences of both go through the weights at once. Memory is that of both."""
    both = zip(first.traffic, second.traffic, strict=True)
    traffic = tuple(replace(a, array_bytes=a.array_bytes + b.array_bytes) for a, b in both)
    exchange_s, links_s = _exchange(traffic)
    held, more = first.memory, second.memory
    return Pass(
        weights_s=maximum(first.weights_s, second.weights_s),
        **{f"{name}_s": getattr(first, f"{name}_s") + getattr(second, f"{name}_s") for name in OPS[1:]},
        exchange_s=exchange_s,
        links_s=links_s,
        traffic=traffic,
        memory=Memory(
            weights=held.weights,
            cache=held.cache + more.cache,
            working=held.working + more.working,
            logits=held.logits + more.logits,
        ),
    )


def _exchange(traffic: tuple[Traffic, ...]) -> tuple[dict[str, Number], Number]:
    """Seconds of collectives by part, and seconds that the busiest wires carry something."""
    found: dict[str, Number] = {}
    wires = {row.group: row.wires for row in traffic}
    near, far = dict.fromkeys(wires, 0.0), 0.0
    for (part, group), (near_s, far_s) in seconds(traffic).items():
        found[part] = found.get(part, 0.0) + near_s
        found[f"{part}.dcn"] = found.get(f"{part}.dcn", 0.0) + far_s
        near[group], far = near[group] + near_s, far + far_s
    axes = zip(*(of.uses for of in wires.values()), strict=True)
    links = [sum(near[group] * used for group, used in zip(wires, axis, strict=True)) for axis in axes]
    return {name: found[name] for name in COLLECTIVES if name in found}, maximum(far, *links) if links else 0.0


def memory(facts: Facts, layout: Layout, batch: Number) -> Memory:
    """What one device holds."""
    own, cached = held(layout, batch)
    together = facts.stream_bytes * own * layout.data * layout.gathers
    return Memory(
        weights=facts.weights_bytes + facts.expert_bytes + 0.0 * batch,
        cache=cached * facts.kv_bytes,
        working=own * facts.working_bytes + together,
        logits=own * facts.logits_bytes,
    )


def held(layout: Layout, batch: Number) -> tuple[Number, Number]:
    """Sequences of one data way, and of the cache on one device."""
    own = ceil_div(batch, layout.data)
    return own, ceil_div(own, layout.kv_batch * layout.width)
