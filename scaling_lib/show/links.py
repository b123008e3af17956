"""The links of 2D slices, colored by how many bytes an all-to-all sends over each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize

from scaling_lib import units
from scaling_lib.show.palette import COLORS, NEUTRAL
from scaling_lib.torus import Coordinates, Torus

_SHADES = LinearSegmentedColormap.from_list("load", ["#CFECE2", COLORS["ici"], "#00261C"])
_WIDTH = 7.0  # of the figure, in inches
_STUB = 0.5  # of the way to where the next chip would be
_PREFIXES = ("", "k", "M", "G", "T", "P")

_Loads = Mapping[tuple[Coordinates, Coordinates], float]


def all_to_all(tori: Sequence[Torus], array_bytes: float) -> list[Axes]:
    """Bytes over each link, one way, when every chip sends an equal part of its array to every chip of its slice.

    Slices side by side, in one scale of colors. Axis 0 goes down and axis 1 to the right; a link is drawn once, for both of
    its ways carry the same. Stubs at both ends of a row or column are its wraparound link. The numbers above a slice are for
    the links along axis 1 at that place, in all rows; those beside it for the links along axis 0. A ring has one number, for
    its links are alike; where there is no room for all, that of the middle stands, the largest.

    Args:
        tori: of slices with two axes.
        array_bytes: the array of one chip.

    Returns:
        The axes of a new figure, one for each slice.

    Raises:
        ValueError: for no slices, one of three axes or of a single chip, and bytes that are not positive.

    Derived in chapters/03-sharding.md.
    """
    if units.number("array_bytes", array_bytes) <= 0:
        raise ValueError(f"array_bytes={array_bytes!r} must be positive")
    if not tori:
        raise ValueError("tori is empty; give at least one, like [Torus(slice_of('v5e:4x4'))]")
    for torus in tori:
        if len(torus.shape) != 2 or not torus.links:
            raise ValueError(f"{torus} cannot be drawn; give slices of two axes and several chips, like 'v5e:4x4'")
    maps = [
        {link: load * array_bytes / math.prod(torus.shape) for link, load in torus.all_to_all_loads().items()} for torus in tori
    ]
    most = max(max(loads.values()) for loads in maps)
    power = min(len(_PREFIXES) - 1, max(0, int(math.log10(most) // 3)))
    top = most / 1000**power
    shares = [(torus.shape[1] + 1) / (torus.shape[0] + 1) for torus in tori]  # of the width, so that all are equally high
    inch = (_WIDTH - 0.7 * len(tori)) / sum(shares)
    size = (_WIDTH, min(inch, _WIDTH) + 1.9)
    fig, row = plt.subplots(1, len(tori), layout="constrained", figsize=size, squeeze=False, width_ratios=shares)
    fig.set_layout_engine("constrained", wspace=0.14)
    axes = list(row[0])
    for ax, torus, loads, share in zip(axes, tori, maps, shares, strict=True):
        _draw(ax, torus, {link: load / 1000**power for link, load in loads.items()}, top, share * inch)
    bar = fig.colorbar(ScalarMappable(Normalize(0, top), _SHADES), ax=axes, location="bottom", aspect=40, shrink=0.9)
    bar.set_label(f"{_PREFIXES[power]}B over a link, one way")
    return axes


def _draw(ax: Axes, torus: Torus, loads: _Loads, top: float, wide: float) -> None:
    lines: list[list[tuple[float, float]]] = []
    values: list[float] = []
    for (here, there), load in loads.items():
        axis, on = next((axis, b - a) for axis, (a, b) in enumerate(zip(here, there, strict=True)) if a != b)
        (y0, x0), (y1, x1) = (map(float, here), map(float, there))
        if on == 1:
            drawn = [[(x0, y0), (x1, y1)]]
        elif on < -1:
            down, right = (_STUB, 0.0) if axis == 0 else (0.0, _STUB)  # from the last chip of a ring around to its first
            drawn = [[(x0, y0), (x0 + right, y0 + down)], [(x1 - right, y1 - down), (x1, y1)]]
        else:
            continue  # a link that is drawn from its other end
        lines += drawn
        values += [load] * len(drawn)
    rows, columns = torus.shape
    thick = min(5.0, max(1.8, 8 * wide / (columns + 1)))
    widths = [thick * (0.3 + 0.7 * value / top) for value in values]
    ax.add_collection(LineCollection(lines, array=values, cmap=_SHADES, norm=Normalize(0, top), linewidths=widths))
    xs, ys = zip(*((x, y) for y in range(rows) for x in range(columns)), strict=True)
    ax.plot(xs, ys, "o", color="white", markeredgecolor=NEUTRAL, markersize=2 + 1.2 * thick, markeredgewidth=0.8, zorder=3)
    down, right = (0.6 if wrap else 0.3 for wrap in torus.slice.wraps)
    ax.set(aspect="equal", xlim=(-right, columns - 1 + right), ylim=(rows - 1 + down, -down))
    for axis in (0, 1):
        _number(ax, torus, loads, axis, room=axis == 0 or wide / (columns + 1) > 0.4)
    ax.set_title(torus.name, fontsize=14, pad=22)
    ax.axis("off")


def _number(ax: Axes, torus: Torus, loads: _Loads, axis: int, room: bool) -> None:
    """Loads along an axis as numbers beside the slice: one is enough for a ring, or where there is no room for more."""
    n = torus.shape[axis]
    for place in range(n - 1) if room and not torus.slice.wraps[axis] else [(n - 1) // 2]:
        ends = [(place, 0), (place + 1, 0)] if axis == 0 else [(0, place), (0, place + 1)]
        text = units.human(loads[ends[0], ends[1]])
        if axis == 0:
            ax.annotate(text, (ax.get_xlim()[1], place + 0.5), (4, 0), textcoords="offset points", va="center", fontsize=12)
        else:
            ax.annotate(text, (place + 0.5, ax.get_ylim()[1]), (0, 3), textcoords="offset points", ha="center", fontsize=12)
