"""Every way to hold one array on a mesh, every step from one way to another, and the cheapest sequences of steps.

A step takes whole mesh axes. The vocabulary: all-gather, all-to-all, reduce-scatter, all-reduce, permute, and slice, by which a
device keeps a part of what it has and moves no bytes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

Axes = tuple[str, ...]
Price = Callable[[str, Axes, float], float]
"""Seconds of a collective: its kind, its mesh axes, and the bytes of the larger array that a device holds before or after."""


Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute", "slice"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Layout(NamedTuple):
    """How an array is held: for each dimension the axes that cut it, outermost first, and those it is unreduced along."""

    cuts: tuple[Axes, ...]
    unreduced: frozenset[str]


class Move(NamedTuple):
    """One step between two layouts. The order of `axes` is that of the devices in the group, outermost first."""

    kind: Kind
    axes: Axes
    before: Layout
    after: Layout


class Distance(NamedTuple):
    """Seconds from or to a layout, with the number of steps to settle ties."""

    seconds: float
    steps: int


def orders(axes: Collection[str]) -> Iterator[Axes]:
    """Every selection of `axes` in every order."""
    return itertools.chain.from_iterable(itertools.permutations(axes, n) for n in range(len(axes) + 1))


def subsets(axes: Collection[str]) -> Iterator[Axes]:
    """Every selection of `axes`."""
    return itertools.chain.from_iterable(itertools.combinations(axes, n) for n in range(len(axes) + 1))


def cuts_of(shape: Sequence[int], axes: Axes, mesh: Mapping[str, int]) -> Iterator[tuple[Axes, ...]]:
    """Every way to cut `shape` by some of `axes`, each used once at most, into equal parts."""
    if not shape:
        yield ()
        return
    for first in orders(axes):
        if shape[0] % parts(first, mesh) == 0:
            for rest in cuts_of(shape[1:], tuple(axis for axis in axes if axis not in first), mesh):
                yield (first, *rest)


def parts(axes: Collection[str], mesh: Mapping[str, int]) -> int:
    """Devices along `axes` together."""
    return math.prod([mesh[axis] for axis in axes])


class Moves:
    """All layouts of one array, and the cheapest steps between them.

    Args:
        shape: of the whole array.
        mesh: size of each axis, all above 1.
        summable: axes along which the array can be a sum still to be done.
        itemsize: bytes of an element.
        price: of a collective.
        kinds: the steps to use.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        mesh: Mapping[str, int],
        summable: Collection[str],
        itemsize: float,
        price: Price,
        kinds: Collection[Kind] = KINDS,
    ) -> None:
        sums = tuple(axis for axis in mesh if axis in summable)
        self._graph = _graph(len(shape), tuple(mesh.items()), sums, frozenset(kinds))
        whole = itemsize * math.prod(shape)
        self._local_bytes = [
            whole / math.prod(cut) if not any(size % n for size, n in zip(shape, cut, strict=True)) else 0.0
            for cut in self._graph.parts
        ]
        self._price, self._prices = price, dict[tuple[str, Axes, float], float]()

    def local_bytes(self, layout: Layout) -> float:
        """What a device holds; 0 for a layout that does not divide."""
        return self._local_bytes[self._graph.number[layout]]

    def seconds(self, move: Move) -> float:
        """What a step takes; 0 for a slice."""
        return self._seconds(move, self.local_bytes(move.before), self.local_bytes(move.after))

    def _seconds(self, move: Move, before_bytes: float, after_bytes: float) -> float:
        if move.kind == "slice":
            return 0.0
        key = move.kind, move.axes, max(before_bytes, after_bytes)
        if key not in self._prices:
            self._prices[key] = self._price(*key)
        return self._prices[key]

    def distances(self, start: Layout, *, backwards: bool = False) -> dict[Layout, tuple[Distance, Move | None]]:
        """Cheapest way from `start` to every layout it can reach, or, backwards, from every such layout to `start`.

        Returns:
            For each layout its distance and the step that leads to it, or away from it backwards.
        """
        graph, held = self._graph, self._local_bytes
        edges = graph.inward if backwards else graph.onward
        best: dict[int, tuple[Distance, Move | None]] = {graph.number[start]: (Distance(0.0, 0), None)}
        heap = [(Distance(0.0, 0), graph.number[start])]
        done = set()
        while heap:
            so_far, here = heapq.heappop(heap)
            if here in done:
                continue
            done.add(here)
            for to, move in edges[here]:
                if not held[to] or to in done:
                    continue
                distance = Distance(so_far.seconds + self._seconds(move, held[here], held[to]), so_far.steps + 1)
                if to not in best or distance < best[to][0]:
                    best[to] = distance, move
                    heapq.heappush(heap, (distance, to))
        return {graph.layouts[number]: found for number, found in best.items()}


class _Graph:
    """All layouts of arrays with `rank` dimensions and all steps between them, whatever the sizes; layouts are numbered."""

    def __init__(self, rank: int, mesh: Mapping[str, int], summable: Axes, kinds: Collection[Kind]) -> None:
        self.mesh, self.kinds = mesh, kinds
        self.layouts = [
            Layout(cuts, frozenset(sums))
            for sums in subsets(summable)
            for cuts in cuts_of((0,) * rank, tuple(axis for axis in mesh if axis not in sums), mesh)  # 0 divides by everything
        ]
        self.number = {layout: number for number, layout in enumerate(self.layouts)}
        self.parts = [tuple([parts(cut, mesh) for cut in layout.cuts]) for layout in self.layouts]
        self._alike: dict[object, list[Layout]] = {}
        for layout, cut in zip(self.layouts, self.parts, strict=True):
            self._alike.setdefault((cut, layout.unreduced), []).append(layout)
        self.onward: list[list[tuple[int, Move]]] = []
        self.inward: list[list[tuple[int, Move]]] = [[] for _ in self.layouts]
        for number, layout in enumerate(self.layouts):
            moves = [move for move in self._moves(layout, self.parts[number]) if move.kind in kinds]
            self.onward.append([(self.number[move.after], move) for move in moves])
            for to, move in self.onward[-1]:
                self.inward[to].append((number, move))

    def _moves(self, here: Layout, cut: tuple[int, ...]) -> Iterator[Move]:
        cuts, sums = here
        free = [axis for axis in self.mesh if axis not in sums and not any(axis in axes for axes in cuts)]
        for kind, axes, to in itertools.chain(_gathered(cuts), _sliced(cuts, free)):
            yield Move(kind, axes, here, Layout(to, sums))
        for done in itertools.islice(subsets([axis for axis in self.mesh if axis in sums]), 1, None):
            rest = sums.difference(done)
            yield Move("all-reduce", done, here, Layout(cuts, rest))
            for order in itertools.permutations(done):
                for dim in range(len(cuts)):
                    yield Move("reduce-scatter", order, here, Layout(_with(cuts, dim, cuts[dim] + order), rest))
        for other in self._alike[cut, sums]:
            if other != here:
                differ = {axis for old, new in zip(cuts, other.cuts, strict=True) if old != new for axis in old + new}
                yield Move("permute", tuple([axis for axis in self.mesh if axis in differ]), here, other)


@lru_cache(maxsize=16)
def _graph(rank: int, mesh: tuple[tuple[str, int], ...], summable: Axes, kinds: frozenset[Kind]) -> _Graph:
    return _Graph(rank, dict(mesh), summable, kinds)


def _gathered(cuts: tuple[Axes, ...]) -> Iterator[tuple[Kind, Axes, tuple[Axes, ...]]]:
    for dim, cut in enumerate(cuts):
        for keep in range(len(cut)):
            axes, gathered = cut[keep:], _with(cuts, dim, cut[:keep])
            yield "all-gather", axes, gathered
            for other in range(len(cuts)):
                if other != dim:
                    yield "all-to-all", axes, _with(gathered, other, cuts[other] + axes)


def _sliced(cuts: tuple[Axes, ...], free: list[str]) -> Iterator[tuple[Kind, Axes, tuple[Axes, ...]]]:
    for dim, cut in enumerate(cuts):
        for axis in free:
            yield "slice", (axis,), _with(cuts, dim, (*cut, axis))


def _with(cuts: tuple[Axes, ...], dim: int, cut: Axes) -> tuple[Axes, ...]:
    return (*cuts[:dim], cut, *cuts[dim + 1 :])
