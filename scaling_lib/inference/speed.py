"""What chips and wires are taken to reach, and what hides behind what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scaling_lib import units

HOP_S = 1e-6
"""Seconds a hop takes at least. No vendor states it; a microsecond is the usual guess (chapters/03-sharding.md)."""

EXCHANGES = ("tensor", "data", "expert", "kv_batch", "sequence", "width")
COLLECTIVES = tuple(f"{part}{far}" for part in EXCHANGES for far in ("", ".dcn"))
"""Parts of a pass that are collectives, by what asks for them; a ".dcn" is what the part moves over DCN."""

Overlap = Literal["full", "ops", "none"] | Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What chips and wires are taken to reach.

    Args:
        overlap: what hides. "ops", the default: each kind of matmul reads its weights, and attention its cache, while it
            computes; these and collectives follow one another, as a token's way through a layer wants. "full": all memory
            traffic, all math and all collectives side by side. "none": everything one after the other. Or for each collective
            the share that shows, like `{"tensor": 0.5}`, where those not named are hidden; the rest as with "ops".
        efficiency: part of the dense peak that matmuls reach.
        hbm_efficiency: part of the memory's peak bandwidth.
        ici: which figure of a TPU link: what large transfers achieve, or what the vendor states.
        hop_s: seconds a hop takes at least: the floor of a collective, which small batches meet. It holds for DCN as well, where
            tens of microseconds are usual: give more for a layout that splits layers over slices or nodes.
        start_s: seconds before the first byte of a collective moves.
        causal: whether attention skips the scores that its mask hides.

    Raises:
        ValueError: for shares that are no part of 1, seconds below 0 and unknown words.
    """

    overlap: Overlap = field(default="ops", hash=False)
    efficiency: float = 1.0
    hbm_efficiency: float = 1.0
    ici: Literal["achievable", "peak"] = "achievable"
    hop_s: float = HOP_S
    start_s: float = 0.0
    causal: bool = True

    def __post_init__(self) -> None:
        for name in ("efficiency", "hbm_efficiency"):
            if not 0 < units.number(name, getattr(self, name)) <= 1:
                raise ValueError(f"{name}={getattr(self, name)!r} is a part of the peak, above 0 and up to 1")
        for name in ("hop_s", "start_s"):
            units.number(name, getattr(self, name), minimum=0)
        if self.ici not in ("achievable", "peak"):
            raise ValueError(f"ici={self.ici!r} is neither 'achievable' nor 'peak'")
        if self.overlap in ("full", "ops", "none"):
            return
        if not isinstance(self.overlap, Mapping):
            raise ValueError(f"overlap={self.overlap!r} is unknown; give 'full', 'ops', 'none', or shares like {{'tensor': 0.5}}")
        for part, share in self.overlap.items():
            if part not in COLLECTIVES:
                raise ValueError(f"overlap names {part!r}; {units.near(str(part), COLLECTIVES)}")
            if units.number(f"overlap[{part!r}]", share, minimum=0) > 1:
                raise ValueError(f"overlap[{part!r}]={share!r} is a share, 0 to 1")

    @property
    def shown(self) -> Mapping[str, float]:
        """For each collective the share that shows beside the matmuls."""
        return self.overlap if isinstance(self.overlap, Mapping) else dict.fromkeys(COLLECTIVES, 1.0)

    def but(self, **changes: Any) -> Speed:
        """This speed with some arguments changed."""
        return replace(self, **changes)
