"""The collectives, each priced by the bytes over its busiest link.

Everywhere, `array_bytes` is the larger array that one device holds: the gathered one of an all-gather, the unreduced one of a
reduce-scatter. Derived in chapters/03-sharding.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from scaling_lib import units
from scaling_lib.collectives.groups import Group


@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """What one collective takes. Costs add, one collective after the other, and scale by a number.

    Args:
        sent_bytes: bytes a device sends, what it passes on included; the mean over devices, for those of a line differ.
        link_bytes: bytes over the busiest link, one way.
        start_s: seconds before the first byte moves.
        latency_s: hops, times the seconds of a hop; a floor.
        bandwidth_s: seconds that `link_bytes` take.
        seconds: the start, then the longer of latency and bandwidth.

    NB: collectives that run at the same time over the same links share them; this is the cost of one alone.
    """

    sent_bytes: float = 0.0
    link_bytes: float = 0.0
    start_s: float = 0.0
    latency_s: float = 0.0
    bandwidth_s: float = 0.0
    seconds: float = 0.0

    @property
    def binds(self) -> Literal["bandwidth", "latency", "start", "nothing"]:
        """Which term takes longest; "nothing" where all are 0."""
        if not self.seconds:
            return "nothing"
        if self.bandwidth_s >= max(self.latency_s, self.start_s):
            return "bandwidth"
        return "latency" if self.latency_s >= self.start_s else "start"

    def __add__(self, other: CollectiveCost) -> CollectiveCost:
        if not isinstance(other, CollectiveCost):
            return NotImplemented
        return CollectiveCost(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __mul__(self, times: float) -> CollectiveCost:
        units.number("times", times, minimum=0)
        return CollectiveCost(**{f.name: getattr(self, f.name) * times for f in fields(self)})

    __rmul__ = __mul__

    def __radd__(self, other: object) -> CollectiveCost:
        return self if other == 0 else NotImplemented  # so that sum(costs) works

    def __str__(self) -> str:
        return f"{units.human(self.seconds, 's')}, {self.binds} binds ({units.human(self.link_bytes, 'B')} over the busiest link)"


def all_gather(array_bytes: float, group: Group) -> CollectiveCost:
    """Every device gets the parts of all: A[I_X] → A[I].

    Args:
        array_bytes: the gathered array, as each device holds it afterwards.
        group: who takes part.

    Returns:
        Each member must receive (n - 1)/n of the array, over all its links at once. The textbook's V/W, with W both ways of
        a ring, is this without the (n - 1)/n. A line takes twice as long as a ring: its ends have one link.

    NB: over several axes the links are taken to be used evenly. By Edmonds' theorem on disjoint trees that is possible, with
    array parts small enough; a program that gathers axis by axis takes longer.
    Derived in chapters/03-sharding.md.
    """
    moved = _bytes(array_bytes, group) * group.share
    return _cost(group, sent=moved, link=moved / max(1, group.links))


def reduce_scatter(array_bytes: float, group: Group) -> CollectiveCost:
    """Every device gets its part of the sum: A[I] {U_X} → A[I_X]. The all-gather backward, at the same cost.

    Args:
        array_bytes: the unreduced array, as each device holds it before.
        group: who takes part.
    """
    return all_gather(array_bytes, group)


def all_reduce(array_bytes: float, group: Group, *, in_network: bool = False) -> CollectiveCost:
    """Every device gets the sum: A[I] {U_X} → A[I]. A reduce-scatter and an all-gather, started once.

    Args:
        array_bytes: the array, as each device holds it before and afterwards.
        group: who takes part.
        in_network: whether the switches add (NVLink SHARP): each port then carries (n + 1)/n of the array each way: all
            of it up to be added, then the finished part of this device.

    Raises:
        ValueError: for in_network on a torus, whose links do not add.

    NB: on a line the two halves keep different links busy. Reduced to one end and broadcast back at the same time, piece by
    piece, the array would cross each link once each way: up to half the time. No source says that a compiler does it.
    """
    if in_network and group.wraps:
        raise ValueError(f"in_network=True: sizes={group.sizes} is a torus, which has no switches; leave it out")
    if in_network and group.members > 1:
        moved = _bytes(array_bytes, group) * (group.members + 1) / group.members
        return _cost(group, sent=moved, link=moved, hops=2 * group.hops)
    half = all_gather(array_bytes, group)
    return _cost(group, sent=2 * half.sent_bytes, link=2 * half.link_bytes, hops=2 * group.hops)


def all_to_all(array_bytes: float, group: Group) -> CollectiveCost:
    """Every device sends a different part to every other: A[I_X, J] → A[I, J_X].

    Args:
        array_bytes: the array on one device, before as afterwards; 1/n of the whole array.
        group: who takes part.

    Returns:
        On a ring of n devices, n even, n/8 of `array_bytes` crosses each link each way; (n - 1)/2 of it, one way around.
        Beside an all-gather of the whole array that is n/(n - 1) times the textbook's 1/4, and exactly 1/2 one way around.
        On a torus the axis that is longest, or does not wrap, sets the time.

    NB: the same to every device; tokens routed to experts are not spread so evenly. Routes are shortest, ties both ways.
    Derived in chapters/03-sharding.md.
    """
    message = _bytes(array_bytes, group) / group.members
    if not group.wraps:
        return _cost(group, sent=message * (group.members - 1), link=message * (group.members - 1))
    one_way = group.ways == 1
    loads = (
        group.members // n * (n * (n - 1) / 2 if one_way else n * n // 4 / (2 if wrap else 1))
        for n, wrap in zip(group.sizes, group.wraps, strict=True)
    )
    return _cost(group, sent=message * _hops_to_all(group), link=message * max(loads))


def permute(array_bytes: float, group: Group, *, shift: int = 1) -> CollectiveCost:
    """Every device sends its array to the one `shift` places on, cyclically.

    Args:
        array_bytes: the array on one device.
        group: one torus axis, or a switch.
        shift: places from sender to receiver; negative for the other way.

    Returns:
        A ring takes the shorter way around. On a line those who leave the end go all the way back, over the links the other
        way: a shift by one costs no more bytes a link, but n - 1 hops.

    Raises:
        ValueError: for several axes, and for a shift by no place.
    """
    moved, n = _bytes(array_bytes, group), group.members
    ring = [wrap for size, wrap in zip(group.sizes, group.wraps, strict=False) if size > 1]
    if len(ring) > 1:
        raise ValueError(f"group of sizes={group.sizes} has several axes; shift along one of them")
    if isinstance(shift, bool) or not isinstance(shift, int) or (n > 1 and shift % n == 0):
        raise ValueError(f"shift={shift!r} moves nothing among {n}; give a whole number from 1 to {n - 1}")
    on = shift % n
    back = n - on
    if not ring:
        return _cost(group, sent=moved, link=moved)
    if ring[0]:
        hops = on if group.ways == 1 else min(on, back)
        return _cost(group, sent=hops * moved, link=hops * moved, hops=hops)
    return _cost(group, sent=2 * on * back / n * moved, link=min(on, back) * moved, hops=max(on, back))


def broadcast(array_bytes: float, group: Group) -> CollectiveCost:
    """Every device gets the array of one.

    Args:
        array_bytes: the array.
        group: who takes part.

    Returns:
        The array crosses each link of a member in equal parts, passed on while more arrives. Where members have unlike
        numbers of links the one with the fewest, a corner, sets the time.
    """
    moved = _bytes(array_bytes, group)
    return _cost(group, sent=moved * group.share, link=moved / max(1, group.links))


def gather(array_bytes: float, group: Group) -> CollectiveCost:
    """One device gets the parts of all. As long as an all-gather, for its links are as busy, but most others idle.

    Args:
        array_bytes: the gathered array, on the one device afterwards.
        group: who takes part. The receiver is the worst placed: at a corner, if there is one.
    """
    moved = _bytes(array_bytes, group)
    sent = moved * _hops_to_all(group, from_corner=True) / group.members**2
    return _cost(group, sent=sent, link=moved * group.share / max(1, group.links))


def _cost(group: Group, *, sent: float, link: float, hops: int | None = None) -> CollectiveCost:
    if group.members == 1:
        return CollectiveCost()
    latency_s = (group.hops if hops is None else hops) * group.hop_s
    bandwidth_s = link / (group.link_bytes_per_s * group.efficiency)
    return CollectiveCost(
        sent_bytes=sent,
        link_bytes=link,
        start_s=group.start_s,
        latency_s=latency_s,
        bandwidth_s=bandwidth_s,
        seconds=group.start_s + max(latency_s, bandwidth_s),
    )


def _bytes(array_bytes: float, group: Group) -> float:
    if not isinstance(group, Group):
        raise ValueError(f"group={group!s} is not a Group; make one with over(slice, ...), across(slice) or Group(...)")
    return units.number("array_bytes", array_bytes, minimum=0)


def _hops_to_all(group: Group, *, from_corner: bool = False) -> float:
    """Hops from one member to all, summed: of the mean member, or of one at the ends of all lines."""
    if not group.wraps:
        return group.members - 1
    total = 0.0
    for n, wrap in zip(group.sizes, group.wraps, strict=True):
        along: float = n * (n - 1) / 2  # one way around, or from an end of a line
        if wrap and group.ways == 2:
            along = n * n // 4
        elif not wrap and not from_corner:
            along = (n * n - 1) / 3
        total += group.members // n * along
    return total
