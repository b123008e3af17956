"""Tiles of an array in a TPU's memory, drawn: one plane of them, and the last tile with its padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import Drawing, Label, figure, hatch, tick
from scaling_lib.tiling import Layout

_LEFT, _WIDE, _HIGH, _LINE, _LEAST = 6.0, 388.0, 150.0, 17, 3.0
_APART = 5.0  # lines between tiles closer than this are left out
_LONG = 10**6


def draw(layout: Layout) -> Drawing:
    """An array as it lies in memory: the plane of its last two dimensions there, in tiles, and the last of these tiles.

    Numbers are in color, padding is hatched; both are seen however small they are. The sides of the plane are to scale, as far
    as that leaves either visible.

    Args:
        layout: from `tiling.layout`.
    """
    rows_at, lanes_at = (layout.order[-2] if len(layout.order) > 1 else None), layout.order[-1]
    rows, high = (1, 1) if rows_at is None else (layout.shape[rows_at], layout.padded[rows_at])
    lanes, wide = layout.shape[lanes_at], layout.padded[lanes_at]
    tile_rows, tile_lanes = (1, *layout.tile)[-2:]
    planes = math.prod(layout.padded) // (high * wide)

    along = f"dimension {lanes_at} to the right: {number(lanes)} of {number(wide)}"
    down = "" if rows_at is None else f"dimension {rows_at} down: {number(rows)} of {number(high)}"
    count = high // tile_rows, wide // tile_lanes
    tiled = f"{number(count[0])} × {number(count[1])} tiles" + (f", {number(planes)} planes" if planes > 1 else "")
    y = 14.0
    parts = []
    for words in filter(None, (along, down, tiled)):
        parts.append(str(Label(words, _LEFT, y)))
        y += _LINE
    box = min(_HIGH, max(_HIGH / 6, _WIDE * high / wide))
    parts += _plane((_LEFT, y - 8, _WIDE, box), (rows, high), (lanes, wide))
    parts += _grid((_LEFT, y - 8, _WIDE, box), count)
    y += box + 14

    last_rows, last_lanes = tile_rows - (high - rows), tile_lanes - (wide - lanes)
    last = f"the last tile: {last_lanes} of {tile_lanes} lanes" if rows_at is not None else f"the last tile: {last_lanes}"
    last += f", {last_rows} of {tile_rows} rows" if rows_at is not None else f" of {tile_lanes} places"
    parts.append(str(Label(last, _LEFT, y)))
    tall = 12.0 * min(tile_rows, 8)
    parts += _plane((_LEFT, y + 9, _WIDE, tall), (last_rows, tile_rows), (last_lanes, tile_lanes))
    if layout.packing > 1 and rows_at is not None:
        parts += _words((_LEFT, y + 9, _WIDE, tall), tile_rows // layout.packing)
        y += _LINE
        parts.append(str(Label(f"between lines: {layout.packing} rows that share words of 32 bits", _LEFT, y + tall + 8)))
    y += tall + 14
    described = f"{layout}. {along}. {down + '. ' if down else ''}{tiled}. {last}. {layout.wasted:.1%} is padding."
    return Drawing(figure(parts, described, y), described)


def draw_plain(shape: Sequence[int], words: str) -> Drawing:
    """An array without tiles, as a GPU keeps it: all numbers, in one piece."""
    size = f"{math.prod(shape[:-1]):,} × {shape[-1]:,}" if math.prod(shape) < _LONG else f"{tick(math.prod(shape))} numbers"
    box = (_LEFT, 22.0, _WIDE, _HIGH / 3)
    described = f"{list(shape)} in {words}, row after row, none of it padding."
    parts = [str(Label(f"row after row: {size}, no padding", _LEFT, 14)), *_plane(box, (1, 1), (1, 1))]
    return Drawing(figure(parts, described, 22 + _HIGH / 3 + 6), described)


def number(value: int) -> str:
    """A size in full, or with a prefix where it is long."""
    return f"{value:,}" if value < _LONG else tick(value)


def _plane(box: tuple[float, float, float, float], rows: tuple[int, int], lanes: tuple[int, int]) -> list[str]:
    """Numbers in the corner above left, padding to the right and below."""
    left, top, wide, high = box
    right, low = _part(wide, *lanes), _part(high, *rows)
    full = f'x="{left}" y="{top:.1f}" width="{right:.1f}" height="{low:.1f}"'
    parts = [f'<rect class="numbers" {full} fill="{COLORS["vpu"]}"/>']
    for x, y, w, h in ((left + right, top, wide - right, high), (left, top + low, right, high - low)):
        if w > 0.01 and h > 0.01:
            lines = hatch(x, y, w, h)
            parts.append(f'<path class="padding" d="{lines}" fill="none" stroke="currentColor" stroke-width="1.2"/>')
    parts.append(
        f'<rect x="{left}" y="{top:.1f}" width="{wide}" height="{high:.1f}" fill="none" stroke="currentColor" opacity="0.7"/>'
    )
    return parts


def _part(length: float, size: int, padded: int) -> float:
    """How much of a side numbers take; neither they nor padding vanish."""
    return length if size == padded else min(max(length * size / padded, _LEAST), length - _LEAST)


def _grid(box: tuple[float, float, float, float], count: tuple[int, int]) -> list[str]:
    left, top, wide, high = box
    lines = []
    if high / count[0] >= _APART:
        lines += [f"M{left} {top + i * high / count[0]:.1f}h{wide}" for i in range(1, count[0])]
    if wide / count[1] >= _APART:
        lines += [f"M{left + i * wide / count[1]:.1f} {top:.1f}v{high:.1f}" for i in range(1, count[1])]
    return [f'<path class="tiles" d="{"".join(lines)}" stroke="currentColor" opacity="0.7"/>'] if lines else []


def _words(box: tuple[float, float, float, float], groups: int) -> list[str]:
    left, top, wide, high = box
    lines = "".join(f"M{left} {top + i * high / groups:.1f}h{wide}" for i in range(1, groups))
    return [f'<path class="words" d="{lines}" stroke="currentColor" opacity="0.7"/>'] if lines else []
