"""Which links the mesh axes of a plan lie on, and what a byte costs over them.

A placement cuts each physical axis of the slice, such as an axis of its torus, into parts for mesh axes. A part next to the
chip is a line of neighbors; a part outside of it leaps over them, and all who leap share the links in between. Derived in
chapters/05-training.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from scaling_lib import collectives, units
from scaling_lib.collectives import Group
from scaling_lib.hardware import Slice
from scaling_lib.training.either import Number

Place = int | str
Placement = Mapping[str, Mapping[Place, int]]

AXES = ("tensor", "expert", "context", "fsdp", "data", "pipeline")
"""Mesh axes, the one that talks most first: on a shared physical axis it has the part next to the chip."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "tensor": ("tensor",),
    "expert": ("expert",),
    "context": ("context",),
    "shard": ("expert", "context", "fsdp"),
    "expert_shard": ("context", "fsdp"),
    "data": ("data",),
    "pipeline": ("pipeline",),
}
"""Mesh axes that take part in one collective together. Dense weights are shared out over "shard", experts over "expert_shard"."""


@dataclass(frozen=True, kw_only=True)
class Wires:
    """What a byte costs a group of devices, near (ICI or the fabric of a node) and far (DCN), in seconds; numbers or arrays.

    Args:
        ways: devices of the group.
        gather_s: all-gather or reduce-scatter, near, for each byte of the gathered array; an all-reduce takes twice that.
        far_gather_s: the same over DCN, where each device carries its part alone.
        all_to_all_s: for each byte that a device has, near.
        far_all_to_all_s: the same over DCN.
        permute_s: to the next device, for each byte. 0 where some go over DCN, for those set the pace.
        far_permute_s: the same over DCN.
        latency_s: hops to the farthest device, times the seconds of a hop; None where none is asked for, nor a start.
        start_s: seconds before the first byte moves; 0 for a group of one.
        uses: for each physical axis, in the order of `physical`, 1 where the group lies on it and 0 elsewhere.
    """

    ways: Number = 1
    gather_s: Number = 0.0
    far_gather_s: Number = 0.0
    all_to_all_s: Number = 0.0
    far_all_to_all_s: Number = 0.0
    permute_s: Number = 0.0
    far_permute_s: Number = 0.0
    latency_s: Number = None
    start_s: Number = 0.0
    uses: tuple[Number, ...] = ()


def physical(slice: Slice) -> dict[Place, int]:
    """The axes that a slice offers, with their sizes, those of one chip first.

    TPUs: "chip" for the two devices of a TPU7x chip, the axes of the torus by number, and "dcn" for several slices. GPUs:
    "node" for the fabric, and "dcn" for all nodes.
    """
    if slice.chip.kind != "tpu":
        return {"node": slice.shape[0], "dcn": slice.shape[1] * slice.count}
    return {"chip": slice.chip.devices, **dict(enumerate(slice.shape)), "dcn": slice.count}


def placements(sizes: Mapping[str, int], slice: Slice) -> Iterator[Placement]:
    """Every way to lay mesh axes of these sizes on the slice; of ways that differ by exchanging equal torus axes, one.

    The sizes must multiply to `slice.devices`; then there is one, for axes may be cut into any factors.
    """
    places = physical(slice)
    used = [axis for axis in AXES if sizes.get(axis, 1) > 1]
    alike = twins(slice)

    def lay(at: int, left: dict[Place, int], so_far: dict[str, dict[Place, int]]) -> Iterator[Placement]:
        if at == len(used):
            rows = {place: tuple(so_far[axis].get(place, 1) for axis in used) for place in places}
            if all(rows[a] >= rows[b] for a, b in alike):
                yield so_far
            return
        for part in _parts(sizes[used[at]], list(left.items())):
            rest = {place: size // part.get(place, 1) for place, size in left.items()}
            yield from lay(at + 1, rest, {**so_far, used[at]: part})

    return lay(0, places, {})


def twins(slice: Slice) -> list[tuple[Place, Place]]:
    """Pairs of torus axes of one kind, which can be exchanged."""

    def alike(a: int, b: int) -> bool:
        return slice.shape[a] == slice.shape[b] and slice.wraps[a] == slice.wraps[b]

    axes = [place for place in physical(slice) if isinstance(place, int)]
    return [(a, b) for a, b in itertools.combinations(axes, 2) if alike(a, b)]


def whole(placement: Mapping[str, object], slice: Slice) -> dict[str, dict[Place, int]]:
    """A placement as users write it, `{"fsdp": (0, 1), "tensor": {2: 8}, "data": {2: 2}}`, with every part by its size.

    Raises:
        ValueError: for axes that do not exist, and for parts that do not multiply to a physical axis.
    """
    places, found = physical(slice), {}
    for axis, where in placement.items():
        if axis not in AXES:
            raise ValueError(f"placement names {axis!r}; mesh axes are {', '.join(map(repr, AXES))}")
        if isinstance(where, Mapping):
            parts = dict(where)
        else:
            listed = where if isinstance(where, (tuple, list)) else (where,)
            parts = {place: places.get(place, 0) for place in listed}
        strange = [place for place in parts if place not in places]
        if strange:
            raise ValueError(f"placement[{axis!r}] names {strange[0]!r}; {slice} has {', '.join(map(repr, places))}")
        found[axis] = parts
    for place, size in places.items():
        product = math.prod(parts.get(place, 1) for parts in found.values())
        if product != size:
            raise ValueError(f"placement uses {product} of axis {place!r}, which has {size}; parts of an axis multiply to it")
    return found


def wires(
    slice: Slice,
    placement: Placement,
    group: str,
    *,
    ici: Literal["achievable", "peak"] = "achievable",
    hop_s: float = 0.0,
    start_s: float = 0.0,
) -> Wires:
    """What a byte costs one of `GROUPS`, as `scaling_lib.collectives` prices it. Whole torus axes cost what `over` says.

    Args:
        slice: where.
        placement: of all mesh axes, sizes written out; see `whole`.
        group: whose wires.
        ici: which figure of a TPU link.
        hop_s: as of `collectives.Group`.
        start_s: as of `collectives.Group`.

    Raises:
        ValueError: for another figure than these, and seconds below 0.

    NB: the two devices of a TPU7x chip exchange at no cost, and halve the chip's links where they do not gather together.
    Each is priced alone; `Step.links_s` adds up what shares links.
    """
    members = GROUPS[group]
    inside = AXES[: AXES.index(members[0])]
    extent = {place: _ways(placement, members, place) for place in physical(slice)}
    steps = {place: _ways(placement, inside, place) for place in physical(slice)}
    key = tuple((place, extent[place], steps[place]) for place in extent)
    return wires_over(slice, key, ici, hop_s, start_s)


@lru_cache(maxsize=4096)
def wires_over(slice: Slice, key: tuple[tuple[Place, int, int], ...], ici: str, hop_s: float, start_s: float) -> Wires:
    """What a byte costs a group that has, of each physical axis, so many ways at such a stride; see `wires`."""
    if ici not in ("achievable", "peak"):
        raise ValueError(f"ici={ici!r} is neither 'achievable' nor 'peak'")
    hop_s, start_s = units.number("hop_s", hop_s, minimum=0), units.number("start_s", start_s, minimum=0)
    chip = slice.chip
    devices = chip.devices if chip.kind == "tpu" else 1
    pair = next((ways for place, ways, _ in key if place == "chip"), 1)
    near: list[Group] = []
    for place, ways, stride in key:
        if ways == 1 or place in ("chip", "dcn"):
            continue
        if place == "node":
            near.append(Group(sizes=(ways,), link_bytes_per_s=chip.fabric_bytes_per_s, hop_s=hop_s))
        else:
            assert isinstance(place, int)
            link = chip.ici_link_bytes_per_s if ici == "achievable" else chip.ici_link_peak_bytes_per_s
            ring = slice.wraps[place] and ways * stride == slice.shape[place]
            shared = link / devices / stride
            near.append(Group(sizes=(ways,), wraps=(ring,), link_bytes_per_s=shared, hop_s=hop_s * stride))
    floors = hop_s > 0 or start_s > 0
    n = math.prod(group.members for group in near)
    far = next((ways for place, ways, _ in key if place == "dcn"), 1)
    far_group = Group(sizes=(far,), link_bytes_per_s=chip.dcn_bytes_per_s / devices, hop_s=hop_s) if far > 1 else None
    rate = sum(group.share / collectives.all_gather(1.0, group).bandwidth_s for group in near)
    return Wires(
        ways=n * pair * far,
        gather_s=(n - 1) / n / (rate * pair) if near else 0.0,
        all_to_all_s=max((collectives.all_to_all(1.0, group).bandwidth_s for group in near), default=0.0),
        permute_s=0.0 if far_group else max((collectives.permute(1.0, group).bandwidth_s for group in near), default=0.0),
        far_gather_s=collectives.all_gather(1.0, far_group).bandwidth_s / (n * pair) if far_group else 0.0,
        far_all_to_all_s=collectives.all_to_all(1.0, far_group).bandwidth_s if far_group else 0.0,
        far_permute_s=collectives.permute(1.0, far_group).bandwidth_s if far_group else 0.0,
        latency_s=sum(group.hops * group.hop_s for group in [*near, *([far_group] if far_group else [])]) if floors else None,
        start_s=start_s if n * pair * far > 1 else 0.0,
        uses=tuple(int(ways > 1) for _, ways, _ in key),
    )


def _ways(placement: Placement, axes: Collection[str], place: Place) -> int:
    return math.prod(placement[axis].get(place, 1) for axis in axes if axis in placement)


def _parts(ways: int, left: list[tuple[Place, int]]) -> Iterator[dict[Place, int]]:
    """Every way to make `ways` out of factors of what is left of the physical axes."""
    if not left:
        if ways == 1:
            yield {}
        return
    (place, size), rest = left[0], left[1:]
    common = math.gcd(ways, size)
    for part in (d for d in range(common, 0, -1) if common % d == 0):
        for others in _parts(ways // part, rest):
            yield {place: part, **others} if part > 1 else others
