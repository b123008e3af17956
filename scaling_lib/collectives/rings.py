"""Collectives on one ring or line, simulated step by step: which piece goes over which link, and who holds what then.

The bytes over the busiest link come out as those that `all_gather` and the others price; tests hold the two together.
Derived in chapters/03-sharding.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from scaling_lib import units

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]

MOST = 32
"""Devices of the largest ring that is simulated."""


@dataclass(frozen=True)
class Piece:
    """What one device holds of one part of the array.

    Args:
        part: which of the n parts of the array, from 0.
        of: the devices whose numbers are in it: one, or those added up so far.
        half: 0 or 1 where parts travel in halves, each by another way around; None for a whole part.
    """

    part: int
    of: frozenset[int]
    half: int | None = None


Held = tuple[frozenset[Piece], ...]
"""What every device holds, in their order."""


@dataclass(frozen=True)
class Send:
    """All that one link carries one way in a step.

    Args:
        source: the device that sends.
        to: its neighbor, that receives.
        way: 1 toward the next device, -1 toward the one before; in a ring of two both lead to the other, over two links.
        pieces: what goes.
        bytes: how much that is.
    """

    source: int
    to: int
    way: int
    pieces: tuple[Piece, ...]
    bytes: float


@dataclass(frozen=True)
class Step:
    """What goes over all links at the same time, and what every device holds afterwards."""

    sends: tuple[Send, ...]
    held: Held


@dataclass(frozen=True, kw_only=True)
class Run:
    """A collective from beginning to end.

    Args:
        kind: which collective.
        n: devices.
        array_bytes: as `collectives` counts it for this kind; a part is 1/n of it.
        ways: 2 where a ring carries both ways at once.
        wraps: whether the devices are a ring; a line otherwise.
        start: what every device holds before the first step.
        steps: one after the other; a piece goes over one link in each.
    """

    kind: Kind
    n: int
    array_bytes: float
    ways: Literal[1, 2]
    wraps: bool
    start: Held
    steps: tuple[Step, ...]

    @property
    def link_bytes(self) -> Mapping[tuple[int, int], float]:
        """Bytes over each link, one way, by sender and way; links that carry nothing are left out."""
        carried: dict[tuple[int, int], float] = defaultdict(float)
        for step in self.steps:
            for send in step.sends:
                carried[send.source, send.way] += send.bytes
        return dict(carried)

    @property
    def busiest_bytes(self) -> float:
        """Bytes over the busiest link, one way."""
        return max(self.link_bytes.values(), default=0.0)

    @property
    def in_turn_bytes(self) -> float:
        """Bytes over the busiest link of each step, summed: divided by a link's bandwidth, the time of steps in turn."""
        return sum(max(send.bytes for send in step.sends) for step in self.steps)

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends, what it passes on included; the mean over devices."""
        return sum(self.link_bytes.values()) / self.n


@dataclass(frozen=True)
class _Move:
    """One piece over one link. `of` tells the messages of an all-to-all apart; elsewhere a device has each part once."""

    source: int
    way: int
    part: int
    half: int | None
    of: frozenset[int] | None = None


def run(kind: Kind, n: int, array_bytes: float, *, ways: Literal[1, 2] = 2, wraps: bool = True) -> Run:
    """Move every piece of a collective, link by link.

    Args:
        kind: "all-gather", "reduce-scatter", "all-reduce" or "all-to-all".
        n: devices on the ring or line.
        array_bytes: the larger array of one device, as in `collectives.all_gather` and the others.
        ways: 2 for both ways around at once; 1 for one way around a ring.
        wraps: True for a ring, False for a line.

    Returns:
        Every step. An all-gather passes on what arrived: n - 1 steps one way around or along a line. Both ways around it
        takes n // 2; where n is even the part from the opposite device comes in halves, one by each way, so that all links
        are equally busy. A reduce-scatter is the all-gather backward. In an all-to-all every message goes one link a
        step by the shortest way, and in halves where both ways are as short.

    Raises:
        ValueError: for an unknown kind, sizes out of range, and a line used one way.

    On rings all links are equally busy in every step: `busiest_bytes`, `in_turn_bytes` and the priced `link_bytes` are equal.

    NB: lines have two exceptions. An all-to-all loads its links as priced, but in turn: the steps take up to twice as long.
    An all-reduce takes as long as priced, a reduce-scatter and then an all-gather, but these have different busiest links:
    each carries no more than `array_bytes` in all, and a program that overlaps the two could save up to half of the time.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r} is unknown; {units.near(str(kind), get_args(Kind))}")
    n, array_bytes = units.size("n", n), units.number("array_bytes", array_bytes, minimum=0)
    if ways not in (1, 2):
        raise ValueError(f"ways={ways!r} is neither 1 nor 2")
    if not wraps and ways == 1:
        raise ValueError("ways=1 on a line: its first device would receive nothing; use ways=2, or wraps=True")
    if n > MOST:
        raise ValueError(f"n={n} is more than {MOST} devices to move every piece of; collectives.all_gather and others price it")
    wires = _Wires(n, ways, wraps)
    size = array_bytes / n / len(wires.halves)
    everyone, own = frozenset(range(n)), [frozenset({i}) for i in range(n)]
    if kind == "all-gather":
        start = tuple(wires.pieces(own[i], own[i]) for i in range(n))
        end = (frozenset[Piece]().union(*start),) * n
        steps = _walk(start, wires.gather(), size, keeps=True)
    else:
        start = tuple(wires.pieces(everyone, own[i]) for i in range(n))
        if kind == "all-to-all":
            end = tuple(frozenset(piece for piece in frozenset[Piece]().union(*start) if piece.part == i) for i in range(n))
            steps = _walk(start, wires.exchange(), size)
        else:
            end = tuple(wires.pieces(own[i], everyone) for i in range(n))
            steps = _walk(start, wires.scatter(), size)
            if kind == "all-reduce":
                steps += _walk(end, wires.gather(), size, keeps=True)
                end = (wires.pieces(everyone, everyone),) * n
    assert (steps[-1].held if steps else start) == end, f"{kind} among {n} does not end as it promises"
    return Run(kind=kind, n=n, array_bytes=array_bytes, ways=ways, wraps=wraps, start=start, steps=tuple(steps))


@dataclass(frozen=True)
class _Wires:
    """The ring or line, and the moves that each collective makes on it, step by step."""

    n: int
    ways: int
    wraps: bool

    @property
    def halves(self) -> tuple[int | None, ...]:
        """The halves of a part where two ways around are equally long; otherwise a part stays whole."""
        return (0, 1) if self.wraps and self.ways == 2 and self.n % 2 == 0 else (None,)

    def pieces(self, parts: frozenset[int], of: frozenset[int]) -> frozenset[Piece]:
        return frozenset(Piece(part, of, half) for part in parts for half in self.halves)

    def gather(self, around: int = 1) -> list[list[_Move]]:
        """Every part goes from its device to all; `around` is the way where there is only one."""
        moves: dict[int, list[_Move]] = defaultdict(list)
        for part in range(self.n):
            for half in self.halves:
                for way, hops in self._reach(part, half, around):
                    for step in range(hops):
                        moves[step].append(_Move((part + way * step) % self.n, way, part, half))
        return [moves[step] for step in sorted(moves)]

    def scatter(self) -> list[list[_Move]]:
        """Every part goes from all to its device: a gather backward, and there the other way around."""
        return [
            [_Move((move.source + move.way) % self.n, -move.way, move.part, move.half) for move in moves]
            for moves in reversed(self.gather(around=-1))
        ]

    def exchange(self) -> list[list[_Move]]:
        """Part j of every device goes to device j."""
        moves: dict[int, list[_Move]] = defaultdict(list)
        for source in range(self.n):
            for half in self.halves:
                for way, hops in self._reach(source, half):
                    for far in range(1, hops + 1):
                        part = (source + way * far) % self.n
                        for step in range(far):
                            moves[step].append(_Move((source + way * step) % self.n, way, part, half, frozenset({source})))
        return [moves[step] for step in sorted(moves)]

    def _reach(self, at: int, half: int | None, around: int = 1) -> tuple[tuple[int, int], ...]:
        """The ways from device `at` and the hops along each, so that all others are met once."""
        if not self.wraps:
            return ((1, self.n - 1 - at), (-1, at))
        if self.ways == 1:
            return ((around, self.n - 1),)
        longer = -1 if half == 1 else 1  # for the part from the opposite device; where n is odd there is none
        return ((longer, self.n // 2), (-longer, (self.n - 1) // 2))


def _walk(start: Held, plan: list[list[_Move]], size: float, *, keeps: bool = False) -> list[Step]:
    """Make the moves. Who sends either keeps a copy, or gives the piece away, to be added to the receiver's.

    Messages of an all-to-all have different devices in `of`, and are kept apart.
    """
    held = [set(pieces) for pieces in start]
    steps = []
    for moves in plan:
        links: dict[tuple[int, int], list[Piece]] = defaultdict(list)
        for move in moves:
            links[move.source, move.way].append(_find(held[move.source], move.part, move.half, move.of))
        if not keeps:
            for (source, _), pieces in links.items():
                held[source].difference_update(pieces)
        for (source, way), pieces in links.items():
            receiver = held[(source + way) % len(held)]
            for piece in pieces:
                if keeps or moves[0].of:
                    receiver.add(piece)
                else:
                    mine = _find(receiver, piece.part, piece.half)
                    receiver.remove(mine)
                    receiver.add(Piece(piece.part, mine.of | piece.of, piece.half))
        sends = (Send(at, (at + way) % len(held), way, tuple(pieces), len(pieces) * size) for (at, way), pieces in links.items())
        steps.append(Step(tuple(sends), tuple(map(frozenset, held))))
    return steps


def _find(held: set[Piece], part: int, half: int | None, of: frozenset[int] | None = None) -> Piece:
    return next(piece for piece in held if piece.part == part and piece.half == half and of in (None, piece.of))
