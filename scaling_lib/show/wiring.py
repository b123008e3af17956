"""The torus of a slice as a drawing: its chips layer by layer, the wraparound links, and a shortest route between two chips."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import WIDTH, Drawing, Label, figure
from scaling_lib.torus import Coordinates, Torus

MOST_CHIPS = 1024
"""Of larger slices, only the two layers with the ends of the route are drawn."""

_TOP, _TITLE, _APART, _FOOT, _TALLEST, _WIDEST_GAP = 24, 17, 14, 26, 430, 44


@dataclass(frozen=True)
class _Layout:
    """Where the chips of each layer lie; a layer is a grid of `rows` × `columns`, and its place has room for stubs around it."""

    layers: Sequence[int]
    rows: int
    columns: int
    across: int
    gap: float

    @property
    def height(self) -> float:
        return _TOP + math.ceil(len(self.layers) / self.across) * (self.rows * self.gap + _TITLE) + _FOOT

    def corner(self, layer: int) -> tuple[float, float]:
        down, right = divmod(self.layers.index(layer), self.across)
        wide = self.columns * self.gap + _APART
        return right * wide + (WIDTH - self.across * wide) / 2, _TOP + down * (self.rows * self.gap + _TITLE) + _TITLE

    def at(self, layer: int, row: float, column: float) -> tuple[float, float]:
        left, top = self.corner(layer)
        return left + _APART / 2 + (column + 0.5) * self.gap, top + (row + 0.5) * self.gap


def draw(torus: Torus, a: Sequence[int], b: Sequence[int]) -> Drawing:
    """The slice with one shortest route from chip `a` to chip `b`.

    A short stub at both ends of a line is its wraparound link. Three axes are drawn as one layer for each step along the
    first; a route that changes layers is dashed there. Of more than 1,024 chips, only the layers of `a` and `b` are drawn.

    Raises:
        ValueError: for coordinates outside the slice.
    """
    way = torus.route(a, b)
    flat = len(torus.shape) == 2
    deep, rows, columns = (1, *torus.shape) if flat else torus.shape
    wraps = torus.slice.wraps if not flat else (False, *torus.slice.wraps)
    path = [(0, *chip) if flat else chip for chip in way]
    layers = list(range(deep))
    if deep * rows * columns > MOST_CHIPS:
        layers = sorted({path[0][0], path[-1][0]})
    layout = _fit(layers, rows, columns)
    some = "" if len(layers) == deep else f" ({len(layers)} of {deep})"
    parts = [str(Label("axis 0: down, 1: right" if flat else f"axis 0: layers{some}, 1: down, 2: right", 4, 15))]
    for layer in layers:
        left, top = layout.corner(layer)
        parts += [] if flat else [str(Label(str(layer), left, top - 3))]
        parts.append(_links(layout, layer, wraps))
    parts += _route(layout, [chip for chip in path if chip[0] in layers], (deep, rows, columns), wraps)
    parts += [_chips(layout, layer) for layer in layers]  # over the route, which passes behind the chips between two layers
    size = max(3.5, min(7.0, layout.gap / 4))
    parts += [_end(*layout.at(*path[0]), size, "white"), _end(*layout.at(*path[-1]), size, COLORS["ici"])]
    foot = layout.height - 8
    parts += [_end(10, foot - 5, 5, "white"), str(Label(f"from {_spell(way[0])}", 22, foot))]
    parts += [_end(WIDTH / 2 + 10, foot - 5, 5, COLORS["ici"]), str(Label(f"to {_spell(way[-1])}", WIDTH / 2 + 22, foot))]
    description = _describe(torus, way, layers, deep)
    return Drawing(figure(parts, description, layout.height), description)


def _fit(layers: Sequence[int], rows: int, columns: int) -> _Layout:
    """As many layers side by side as lets chips lie farthest apart within the figure's width and height."""

    def gap(across: int) -> float:
        down = math.ceil(len(layers) / across)
        return min(_WIDEST_GAP, (WIDTH / across - _APART) / columns, (_TALLEST - down * _TITLE) / (down * rows))

    best = max(range(1, len(layers) + 1), key=gap)
    return _Layout(layers, rows, columns, best, gap(best))


def _links(layout: _Layout, layer: int, wraps: Sequence[bool]) -> str:
    stub_down, stub_right = (0.5 * wrap for wrap in wraps[1:])
    lines = [
        (layout.at(layer, row, -stub_right), layout.at(layer, row, layout.columns - 1 + stub_right)) for row in range(layout.rows)
    ]
    lines += [
        (layout.at(layer, -stub_down, column), layout.at(layer, layout.rows - 1 + stub_down, column))
        for column in range(layout.columns)
    ]
    links = "".join(f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" for (x0, y0), (x1, y1) in lines)
    return f'<path d="{links}" fill="none" stroke="currentColor" stroke-width="{min(1.0, layout.gap / 16):.2f}" opacity="0.45"/>'


def _chips(layout: _Layout, layer: int) -> str:
    places = (layout.at(layer, row, column) for row, column in itertools.product(range(layout.rows), range(layout.columns)))
    chips = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)  # a line of no length with round ends is a dot
    size = max(1.6, min(9.0, layout.gap / 3))
    return f'<path class="chips" d="{chips}" stroke="currentColor" stroke-width="{size:.1f}" stroke-linecap="round"/>'


def _route(layout: _Layout, path: Sequence[Coordinates], shape: Coordinates, wraps: Sequence[bool]) -> Iterator[str]:
    solid, dashed = "", ""
    for here, there in itertools.pairwise(path):
        start, end = layout.at(*here), layout.at(*there)
        if here[0] != there[0]:
            dashed += _bow(start, end, layout.gap)
            continue
        around = [axis for axis in (1, 2) if wraps[axis] and abs(there[axis] - here[axis]) == shape[axis] - 1]
        if not around:
            solid += _line(start, end)
            continue
        (axis,) = around  # out at one end of the line, and in at the other
        for chip in (here, there):
            beyond = list(chip)
            beyond[axis] += 0.5 if chip[axis] else -0.5  # type: ignore[call-overload]  # a place between chips
            solid += _line(layout.at(*chip), layout.at(*beyond))
    wide = f'fill="none" stroke="{COLORS["ici"]}" stroke-width="{max(2.0, min(4.0, layout.gap / 6)):.1f}"'
    yield f'<path class="ici" d="{solid}" {wide}/>' if solid else ""
    yield f'<path class="ici" d="{dashed}" {wide} stroke-dasharray="5 4"/>' if dashed else ""


def _end(x: float, y: float, size: float, fill: str) -> str:
    """The mark of a chip at an end of the route."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" fill="{fill}" stroke="{COLORS["ici"]}" stroke-width="2.5"/>'


def _bow(start: tuple[float, float], end: tuple[float, float], gap: float) -> str:
    """A line that bends to the right of its way, so that it does not lie on the links of a layer."""
    (x0, y0), (x1, y1) = start, end
    share = gap / math.dist(start, end)
    x, y = (x0 + x1) / 2 - (y1 - y0) * share, (y0 + y1) / 2 + (x1 - x0) * share
    return f"M{x0:.1f} {y0:.1f}Q{x:.1f} {y:.1f} {x1:.1f} {y1:.1f}"


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    return f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"


def _spell(chip: Coordinates) -> str:
    return f"({', '.join(map(str, chip))})"


def _describe(torus: Torus, way: Sequence[Coordinates], layers: Sequence[int], deep: int) -> str:
    rings = [str(axis) for axis, wrap in enumerate(torus.slice.wraps) if wrap]
    words = f"axes that wrap: {', '.join(rings)}" if rings else "no axis wraps"
    drawn = "" if len(layers) == deep else f" Of its {deep} layers, {' and '.join(map(str, layers))} are drawn."
    hops = len(way) - 1
    return (
        f"The chips of {torus} and their links; {words}.{drawn} "
        f"A shortest route from {_spell(way[0])} to {_spell(way[-1])} takes {hops} hop{'s' * (hops != 1)}."
    )
