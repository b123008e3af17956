"""Prompts that begin alike: what it saves to keep the cache of the beginning, and where to keep it.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference.estimate import USUAL, prefill
from scaling_lib.inference.facts import cache_bytes
from scaling_lib.inference.layout import Layout
from scaling_lib.inference.speed import Speed
from scaling_lib.inference.step import Step
from scaling_lib.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """What a cached prefix saves.

    Args:
        miss: prefill of the whole prompt.
        hit: prefill of what follows the prefix.
        load_s: seconds to bring the cached prefix from the hosts' memory, all hosts of the slice at once.
        prefix_bytes: of the cache of one prefix, all devices together, each byte once.
        rate: part of the prompts that begin with it.
    """

    miss: Step
    hit: Step
    load_s: float
    prefix_bytes: float
    rate: float

    @property
    def mean_s(self) -> float:
        """Prefill of the mean prompt, with the prefix in HBM."""
        return self.rate * self.hit.seconds + (1 - self.rate) * self.miss.seconds

    @property
    def speedup(self) -> float:
        """Prefills in the time of one without it."""
        return self.miss.seconds / self.mean_s

    @property
    def load_pays(self) -> bool:
        """Whether loading the prefix from the hosts takes less than reading it again."""
        return self.load_s + self.hit.seconds < self.miss.seconds

    def kept(self, room_bytes: float) -> int:
        """Prefixes of this length that so many bytes hold."""
        return int(units.number("room_bytes", room_bytes, minimum=0) // self.prefix_bytes)


def prefix(
    model: Transformer | str,
    slice: Slice | str,
    layout: Layout,
    *,
    prompt: int,
    cached: int,
    rate: float = 1.0,
    speed: Speed = USUAL,
) -> Prefix:
    """What it saves that the first `cached` of `prompt` tokens are in the cache, for a part `rate` of the prompts.

    Raises:
        ValueError: as of `prefill`; for a rate that is no part of 1, and no cached tokens.
    """
    if not 0 <= units.number("rate", rate) <= 1:
        raise ValueError(f"rate={rate!r} is a part of the prompts, 0 to 1")
    cached = units.size("cached", cached)
    miss = prefill(model, slice, layout, prompt=prompt, speed=speed)
    hit = prefill(miss.model, miss.slice, layout, prompt=prompt, cached=cached, speed=speed)
    held = cache_bytes(miss.model, tokens=cached, kv=layout.kv, kv_scale=layout.kv_scale)
    load_s = held / (miss.slice.chips * miss.slice.chip.pcie_bytes_per_s)
    return Prefix(miss=miss, hit=hit, load_s=load_s, prefix_bytes=held, rate=float(rate))
