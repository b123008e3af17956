"""Who holds what: the devices of a mesh, each with a small picture of an array and in it the part that the device holds.

Parts of one color are copies of the same numbers. A hatched part is a term of a sum still to be done.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling_lib import units
from scaling_lib.sharding import MatmulPlan, Sharding
from scaling_lib.show.svg import WIDTH, Drawing, Label, figure, hatch

MOST_DEVICES = 16
"""Of larger meshes, only the first devices along each axis are drawn."""

Device = tuple[int, ...]
"""Coordinates on the mesh, in the order of its axes."""

_LINE, _APART, _GAP, _PITCH, _NARROW, _GROUP, _FOLD, _LEAST, _BANDS = 17, 10, 4, 44.0, 22.0, 0.2, 4, 1.5, 8
_RAMP = ((65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37))  # viridis from a fifth of its way on


class Part(NamedTuple):
    """What one device holds of an array: the number of its part along each dimension, and its place in a sum to be done."""

    at: tuple[int, ...]
    term: tuple[int, ...]


def held(array: Sharding | str, mesh: Mapping[str, int]) -> dict[Device, Part]:
    """The part of an array that each device holds. Devices with equal parts hold copies.

    Args:
        array: the notation: "A[I_XY, J]{U_Z}".
        mesh: size of each axis.

    Raises:
        ValueError: for text that is not the notation, an axis that the mesh lacks, and one whose size is none.
    """
    mesh = {axis: units.size(axis, n) for axis, n in mesh.items()}
    array = Sharding.parse(array, mesh) if isinstance(array, str) else array
    array.parts(mesh)  # every axis is one of the mesh
    devices = itertools.product(*(range(n) for n in mesh.values()))
    return {device: _part(array, dict(zip(mesh, device, strict=True)), mesh) for device in devices}


def draw(*arrays: Sharding | str, mesh: Mapping[str, int], sizes: Mapping[str, int] | None = None) -> Drawing:
    """Arrays side by side, each on all devices: `draw("A[I_X, J]", "A[I, J]", mesh={"X": 4, "Y": 2})`.

    The first of two dimensions runs down, the second to the right. Leading dimensions of more than two are bands, one for each
    part they are cut into. Of more than 16 devices, only the first along each axis are drawn; no part is too small to be seen.

    Args:
        arrays: the notation.
        mesh: size of each axis.
        sizes: of each dimension, of the whole arrays; for the proportions, and for the shape of a part below each name.

    Raises:
        ValueError: for no array, text that is not the notation, an axis that the mesh lacks, and sizes that do not divide.
    """
    if not arrays:
        raise ValueError("arrays is empty; give at least one, like 'A[I_X, J]'")
    read = [Sharding.parse(array, mesh) if isinstance(array, str) else array for array in arrays]
    return _draw([("", [*read])], mesh, sizes)


def draw_plan(plan: MatmulPlan) -> Drawing:
    """Operands and result of a plan: as they are given, in the local matmul, and as the result is wanted."""
    given = tuple(
        next((step.before[0] for step in plan.steps if step.array == name), multiplied)
        for name, multiplied in zip("ab", plan.matmul.before, strict=True)
    )
    made, wanted = plan.matmul.after, plan.steps[-1].after
    words = ["in the matmul"]
    rows: list[tuple[str, list[Sharding | None]]] = []
    if given == plan.matmul.before:
        words.insert(0, "given")
    else:
        rows.append(("Given", [*given, None]))
    if wanted == made:
        words.append("wanted")
    *first, last = words
    heading = f"{', '.join(first)} and {last}" if first else last
    rows.append((heading[0].upper() + heading[1:], [*plan.matmul.before, made]))
    if wanted != made:
        rows.append(("Wanted", [None, None, wanted]))
    return _draw(rows, plan.mesh, plan.sizes)


def _part(array: Sharding, at: Mapping[str, int], mesh: Mapping[str, int]) -> Part:
    numbers = []
    for axes in array.axes:
        number = 0
        for axis in axes:  # the outermost first
            number = number * mesh[axis] + at[axis]
        numbers.append(number)
    return Part(tuple(numbers), tuple(at[axis] for axis in array.unreduced))


@dataclass(frozen=True)
class _Grid:
    """Where the devices lie, in rows and columns from above left; fractions part groups."""

    places: Mapping[Device, tuple[float, float]]
    words: str

    @property
    def rows(self) -> float:
        return 1 + max(row for row, _ in self.places.values())

    @property
    def columns(self) -> float:
        return 1 + max(column for _, column in self.places.values())


def _grid(mesh: Mapping[str, int]) -> _Grid:
    """The first axes down, the others to the right, as square as can be; a single axis goes row by row."""
    shown = dict(mesh)
    while math.prod(shown.values()) > MOST_DEVICES:
        longest = max(shown, key=lambda axis: shown[axis])
        shown[longest] = -(-shown[longest] // 2)
    named = {axis: axis if n == mesh[axis] else f"{axis} ({n} of {mesh[axis]})" for axis, n in shown.items()}
    axes = [axis for axis, n in mesh.items() if n > 1]
    devices = [dict(zip(mesh, device, strict=True)) for device in itertools.product(*map(range, shown.values()))]
    if len(axes) < 2:
        wide = min(len(devices), _FOLD)
        places = [divmod(number, wide) for number in range(len(devices))]
        words = f"{named[axes[0]]} right" + ", row by row" * (len(devices) > wide) if axes else "one"
        return _Grid(_by_device(devices, places), words)

    def aspect(split: int) -> float:
        down, right = (math.prod(shown[axis] for axis in side) for side in (axes[:split], axes[split:]))
        return abs(math.log(down / right))

    split = min(range(1, len(axes)), key=aspect)
    sides = axes[:split], axes[split:]
    spread = [tuple(_along(side, device, shown) for side in sides) for device in devices]
    down, right = (", ".join(named[axis] for axis in side) for side in sides)
    return _Grid(_by_device(devices, spread), f"{down} down, {right} right")


def _along(axes: Sequence[str], device: Mapping[str, int], shown: Mapping[str, int]) -> float:
    number = 0
    for axis in axes:
        number = number * shown[axis] + device[axis]
    return number + _GROUP * (number // shown[axes[-1]])


def _by_device(devices: Sequence[Mapping[str, int]], places: Sequence[tuple[float, ...]]) -> dict[Device, tuple[float, float]]:
    return {tuple(device.values()): (row, column) for device, (row, column) in zip(devices, places, strict=True)}


def _draw(
    rows: Sequence[tuple[str, Sequence[Sharding | None]]], mesh: Mapping[str, int], sizes: Mapping[str, int] | None
) -> Drawing:
    """Rows of arrays below their headings; None leaves a place free, unless the row has to be broken."""
    mesh = {axis: units.size(axis, n) for axis, n in mesh.items()}
    arrays = [array for _, row in rows for array in row if array is not None]
    for each in arrays:
        each.parts(mesh)  # every axis is one of the mesh
    texts = {array: _texts(array, mesh, sizes) for array in arrays}
    lengths, grid = _lengths(arrays, sizes), _grid(mesh)
    across = _across(max(len(row) for _, row in rows), grid, [text for lines in texts.values() for text in lines])
    pitch = _pitch(across, grid)
    down = (pitch - _GAP) * max(_sides(array, lengths)[0] for array in arrays) + _GAP
    parts, top = [str(Label(_clip(f"Devices: {grid.words}"), 4, 15))], 26.0
    for heading, row in rows:
        if heading:
            parts.append(str(Label(f"{heading}:", 4, top + 14)))
            top += _LINE + 4
        places = row if len(row) <= across else [array for array in row if array is not None]
        for first in range(0, len(places), across):
            for column, array in enumerate(places[first : first + across]):
                if array is not None:
                    left = 4 + column * WIDTH / across
                    parts += [str(Label(text, left, top + 13 + _LINE * line)) for line, text in enumerate(texts[array])]
                    parts += _panel(array, mesh, grid, (pitch, down), (left, top + _LINE * len(texts[array]) + 2), lengths)
            top += _LINE * (1 + bool(sizes)) + down * grid.rows + _APART
    if foot := _legend(arrays, mesh):
        parts.append(str(Label(foot, 4, top + 8)))
        top += _LINE
    description = _describe(rows, mesh, grid)
    return Drawing(figure(parts, description, top), description)


def _across(most: int, grid: _Grid, texts: Sequence[str]) -> int:
    """As many arrays side by side as are not too small, and have room for their names."""
    widest = max(Label(text, 0, 0).width for text in texts)
    fit = [n for n in range(most, 1, -1) if widest <= WIDTH / n - _APART / 2 and _pitch(n, grid) >= _NARROW]
    return fit[0] if fit else 1


def _pitch(across: int, grid: _Grid) -> float:
    """From one device to the next."""
    return min(_PITCH, (WIDTH / across - _APART) / grid.columns)


def _texts(array: Sharding, mesh: Mapping[str, int], sizes: Mapping[str, int] | None) -> list[str]:
    """The name of an array, and the shape of a part of it."""
    if sizes is None:
        return [_clip(str(array))]
    shape = array.local_shape(sizes, mesh)
    return [_clip(str(array)), _clip(" × ".join(f"{n:,}" for n in shape) or "1")]


def _clip(text: str) -> str:
    most = int((WIDTH - 8) / Label("M", 0, 0).width)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _lengths(arrays: Sequence[Sharding], sizes: Mapping[str, int] | None) -> dict[str, float]:
    """How long each dimension is drawn, from a half to 1."""
    dims = {dim for array in arrays for dim in array.dims}
    if sizes is None:
        return dict.fromkeys(dims, 1.0)
    longest = max((sizes[dim] for dim in dims), default=1)
    return {dim: max(0.5, (sizes[dim] / longest) ** 0.5) for dim in dims}


def _panel(
    array: Sharding,
    mesh: Mapping[str, int],
    grid: _Grid,
    pitch: tuple[float, float],
    corner: tuple[float, float],
    lengths: Mapping[str, float],
) -> Iterator[str]:
    """One array on all devices: the outline of the whole on each, and in it what the device holds."""
    has = {device: _part(array, dict(zip(mesh, device, strict=True)), mesh) for device in grid.places}
    colors = _colors([*has.values()])
    cut, side = tuple(array.parts(mesh).values()), pitch[0] - _GAP
    high, wide = (side * length for length in _sides(array, lengths))
    bands = math.prod(cut[:-2])
    bands = bands if bands <= _BANDS else 1  # of more, the lines would lie on each other
    whole, between, lines, filled = "", "", "", dict.fromkeys(colors, "")
    for device, (row, column) in grid.places.items():
        x, y = corner[0] + column * pitch[0], corner[1] + row * pitch[1]
        whole += _box(x, y, wide, high)
        between += "".join(f"M{x:.1f} {y + band * high / bands:.1f}h{wide:.1f}" for band in range(1, bands))
        box = _place(has[device].at, cut, x, y, wide, high)
        filled[has[device]] += _box(*box)
        lines += hatch(*box) if array.unreduced else ""
    for part, boxes in filled.items():
        yield f'<path class="part" d="{boxes}" fill="{colors[part]}" fill-opacity="{0.6 if array.unreduced else 1}"/>'
    if lines:
        yield f'<path class="terms" d="{lines}" stroke="currentColor" stroke-width="1.2"/>'
    if between:
        yield f'<path class="bands" d="{between}" stroke="currentColor" stroke-opacity="0.3"/>'
    yield f'<path class="whole" d="{whole}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'


def _sides(array: Sharding, lengths: Mapping[str, float]) -> tuple[float, float]:
    """Height and width of an array's picture; a vector is a strip, a scalar a square."""
    if len(array.dims) < 2:
        return (0.4, lengths[array.dims[0]]) if array.dims else (0.4, 0.4)
    return lengths[array.dims[-2]], lengths[array.dims[-1]]


def _place(
    at: Sequence[int], cut: Sequence[int], x: float, y: float, wide: float, high: float
) -> tuple[float, float, float, float]:
    """Left, top, width and height of a part within the picture of the whole."""
    band, bands = 0, math.prod(cut[:-2])
    for number, n in zip(at[:-2], cut[:-2], strict=True):
        band = band * n + number
    (row, rows), (column, columns) = ((0, 1), (0, 1), *zip(at, cut, strict=True))[-2:]
    tall = high / bands
    across, down = max(_LEAST, wide / columns), max(_LEAST, tall / rows)
    right, under = min(column * wide / columns, wide - across), min((band + row / rows) * tall, high - down)
    return x + right, y + under, across, down


def _box(x: float, y: float, wide: float, high: float) -> str:
    return f"M{x:.1f} {y:.1f}h{wide:.1f}v{high:.1f}h{-wide:.1f}z"


def _colors(parts: Sequence[Part]) -> dict[Part, str]:
    """A color for each different part, in their order along the ramp."""
    different = sorted(set(parts))
    return {part: _ramp((number + 0.5) / len(different)) for number, part in enumerate(different)}


def _ramp(share: float) -> str:
    step, rest = divmod(share * (len(_RAMP) - 1), 1)
    low, high = _RAMP[int(step)], _RAMP[int(step) + 1]
    return "#" + "".join(f"{round(a + (b - a) * rest):02x}" for a, b in zip(low, high, strict=True))


def _copied(array: Sharding, mesh: Mapping[str, int]) -> list[str]:
    """Axes along which devices hold copies."""
    return [axis for axis, n in mesh.items() if n > 1 and axis not in array.used_axes]


def _legend(arrays: Sequence[Sharding], mesh: Mapping[str, int]) -> str:
    copies = "Same color: copies." if any(_copied(array, mesh) for array in arrays) else ""
    terms = "Hatched: terms of a sum." if any(array.unreduced for array in arrays) else ""
    return f"{copies} {terms}".strip()


def _describe(rows: Sequence[tuple[str, Sequence[Sharding | None]]], mesh: Mapping[str, int], grid: _Grid) -> str:
    devices = math.prod(mesh.values())
    words = [f"Who holds what on {devices:,} device{'s' * (devices > 1)}; drawn: {grid.words}."]
    for heading, row in rows:
        said = "; ".join(_said(array, mesh) for array in row if array is not None)
        words.append(f"{heading}: {said}." if heading else f"{said}.")
    return " ".join(words)


def _said(array: Sharding, mesh: Mapping[str, int]) -> str:
    count = math.prod(array.parts(mesh).values())
    text = f"{array} in {count:,} parts" if count > 1 else f"{array} whole"
    text += f", terms of a sum along {', '.join(array.unreduced)}" if array.unreduced else ""
    copied = _copied(array, mesh)
    return text + (f", copies along {', '.join(copied)}" if copied else "")
