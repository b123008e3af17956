"""Who takes part in a collective, and over which wires."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from scaling_lib import units
from scaling_lib.hardware import Slice

Ici = Literal["achievable", "peak"]
Per = Literal["device", "chip"]


@dataclass(frozen=True, kw_only=True)
class Group:
    """The devices of one collective and the wires between them: torus axes, or a switch to which each has one port.

    Args:
        sizes: members along each torus axis; one number behind a switch.
        wraps: for each torus axis, whether it is a ring; a line otherwise. Empty means a switch.
        link_bytes_per_s: one link or port, one way, as much of it as one member has to itself.
        ways: 2 where rings carry both ways at once, the default, as the hardware can; 1 for one way around.
        hop_s: seconds a hop takes at least. No source states it for any chip, so it is 0 unless given.
        start_s: seconds before the first byte moves.
        efficiency: which part of `link_bytes_per_s` is reached. All of it unless given; see `tpu7x_calibration`.

    Raises:
        ValueError: for figures out of range, and for a line used one way, whose first member would receive nothing.

    NB: whole axes only, straight; for a twisted torus see `torus.Torus.all_to_all_load`.
    """

    sizes: tuple[int, ...]
    wraps: tuple[bool, ...] = ()
    link_bytes_per_s: float
    ways: Literal[1, 2] = 2
    hop_s: float = 0.0
    start_s: float = 0.0
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(units.size("sizes", n) for n in self.sizes))
        object.__setattr__(self, "wraps", tuple(self.wraps))
        if len(self.wraps) != len(self.sizes) and (self.wraps or len(self.sizes) != 1):
            raise ValueError(f"wraps={self.wraps}: give one for each of sizes={self.sizes}, or none and one size for a switch")
        if self.ways not in (1, 2):
            raise ValueError(f"ways={self.ways!r} is neither 1 nor 2")
        lines = [n for n, wrap in zip(self.sizes, self.wraps, strict=False) if n > 1 and not wrap]
        if self.ways == 1 and lines:
            raise ValueError(f"ways=1 on a line: sizes={self.sizes}, wraps={self.wraps}; one way around needs rings, use ways=2")
        for name in ("link_bytes_per_s", "efficiency"):
            if units.number(name, getattr(self, name)) <= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be positive")
        if self.efficiency > 2:
            raise ValueError(f"efficiency={self.efficiency!r} is a part of the bandwidth, like 0.9; was a percentage meant?")
        units.number("hop_s", self.hop_s, minimum=0)
        units.number("start_s", self.start_s, minimum=0)

    @property
    def members(self) -> int:
        """How many devices take part."""
        return math.prod(self.sizes)

    @property
    def links(self) -> int:
        """Links into the member that has fewest: `ways` for a ring, 1 for a line or a switch; axes add."""
        if not self.wraps:
            return 1
        return sum(self.ways if wrap else 1 for n, wrap in zip(self.sizes, self.wraps, strict=True) if n > 1)

    @property
    def hops(self) -> int:
        """Links to the farthest member: half of a ring, all of it one way around, all of a line, 1 through a switch."""
        if not self.wraps:
            return int(self.members > 1)
        return sum(n // 2 if wrap and self.ways == 2 else n - 1 for n, wrap in zip(self.sizes, self.wraps, strict=True))

    @property
    def share(self) -> float:
        """The part of a gathered array that a member must receive, (n - 1)/n; textbooks call it 1 and get V/W."""
        return (self.members - 1) / self.members

    def but(self, **changes: Any) -> Group:
        """This group with some arguments changed, like `group.but(ways=1)`."""
        return replace(self, **changes)


def over(
    slice: Slice,
    *axes: int,
    per: Per = "device",
    ways: Literal[1, 2] = 2,
    ici: Ici = "achievable",
    hop_s: float = 0.0,
    start_s: float = 0.0,
    efficiency: float = 1.0,
) -> Group:
    """The group along some axes of one slice, all of them if none is named; what runs beside it uses other links.

    Args:
        slice: TPUs: `axes` are those of its torus. GPUs: axis 0 is a node, over its fabric; axis 1 is GPUs of the same
            place in every node, over DCN.
        axes: which axes, whole, from 0.
        per: "device" has one device of each chip as member, with its share of each link (half on TPU7x, whose two devices
            do the same at once). "chip" has a chip as member, for a collective that joins its devices as well;
            `array_bytes` is then what the chip must hold once, and the way from device to device is left out.
        ways: as in `Group`.
        ici: which figure of a TPU link: what large transfers achieve, or what the vendor states.
        hop_s: as in `Group`.
        start_s: as in `Group`.
        efficiency: as in `Group`.

    Raises:
        ValueError: for axes that the slice has not, and for GPUs inside and between nodes at once: those are two groups,
            whose costs add.
    """
    _check(slice)
    if ici not in ("achievable", "peak"):
        raise ValueError(f"ici={ici!r} is neither 'achievable' nor 'peak'")
    last = len(slice.shape) - 1
    for axis in axes:
        if type(axis) is not int or not 0 <= axis <= last or axes.count(axis) > 1:
            raise ValueError(f"axes={axes}: {slice} has axes 0 to {last}; name each at most once")
    chosen = axes or tuple(range(last + 1))
    chip, sharers = slice.chip, _sharers(slice, per)
    if chip.kind == "tpu":
        link = chip.ici_link_bytes_per_s if ici == "achievable" else chip.ici_link_peak_bytes_per_s
        sizes, wraps = tuple(slice.shape[axis] for axis in chosen), tuple(slice.wraps[axis] for axis in chosen)
        return Group(
            sizes=sizes,
            wraps=wraps,
            link_bytes_per_s=link / sharers,
            ways=ways,
            hop_s=hop_s,
            start_s=start_s,
            efficiency=efficiency,
        )
    used = [axis for axis in chosen if slice.shape[axis] > 1] or [chosen[0]]
    if len(used) > 1:
        raise ValueError(f"axes={chosen}: {slice} has two networks; take over(slice, 0) and over(slice, 1) and add the costs")
    port = chip.fabric_bytes_per_s if used[0] == 0 else chip.dcn_bytes_per_s
    size = (slice.shape[used[0]],)
    return Group(sizes=size, link_bytes_per_s=port, hop_s=hop_s, start_s=start_s, efficiency=efficiency)


def across(slice: Slice, *, per: Per = "device", hop_s: float = 0.0, start_s: float = 0.0, efficiency: float = 1.0) -> Group:
    """The group of one device from each of the `count` slices, over DCN, each with its chip's share of the hosts' network.

    Args:
        slice: the slices, like `slice_of("v5p:8x8x8", count=4)`.
        per: as in `over`.
        hop_s: as in `Group`; through DCN all are one hop apart.
        start_s: as in `Group`.
        efficiency: as in `Group`.
    """
    _check(slice)
    port = slice.chip.dcn_bytes_per_s / _sharers(slice, per)
    return Group(sizes=(slice.count,), link_bytes_per_s=port, hop_s=hop_s, start_s=start_s, efficiency=efficiency)


def _check(slice: Slice) -> None:
    if not isinstance(slice, Slice):
        raise ValueError(f"slice={slice!r} is not a Slice; look it up with hardware.slice_of(...)")


def _sharers(slice: Slice, per: Per) -> int:
    """Devices of a chip that use its links side by side."""
    if per not in ("device", "chip"):
        raise ValueError(f"per={per!r} is neither 'device' nor 'chip'")
    return slice.chip.devices if per == "device" and slice.chip.kind == "tpu" else 1
