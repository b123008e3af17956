"""Days and dollars of a training run against the number of chips, with the region where links bind shaded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import WIDTH, Drawing, Label, LogAxes, decades_around, figure
from scaling_lib.training.money import Bill

_HEIGHT, _PANEL, _GAP = 510, 170, 240


def curves(
    slices: Sequence[Slice], least: Sequence[Bill], most: Sequence[Bill], *, links_bind: float | None, chosen: Slice | None = None
) -> Drawing:
    """Days, and dollars below, against chips: bands between a run where all hides and one where nothing does.

    Args:
        slices: of growing size; a dot each.
        least: what the run takes on each of them where everything hides behind the longest part.
        most: the same where nothing hides.
        links_bind: chips from which collectives take longer than math even so; shaded. None for none of these slices.
        chosen: one of the slices, which is marked.

    Raises:
        ValueError: for no slices.

    Derived in chapters/05-training.md.
    """
    if not slices:
        raise ValueError("slices is empty; give at least one with its bills")
    chips = [each.chips for each in slices]
    xs = (min(chips) / 1.3, max(chips) * 1.3)
    drawn: list[str] = []
    for top, what, low, high in (
        (30.0, "days", [float(each.days) for each in least], [float(each.days) for each in most]),
        (30.0 + _GAP, "million dollars", [float(each.usd) / 1e6 for each in least], [float(each.usd) / 1e6 for each in most]),
    ):
        axes = LogAxes(xs, _around(min(low), max(high)), top, top + _PANEL)
        if links_bind is not None:
            left = axes.x(max(links_bind, xs[0]))
            drawn.append(
                f'<rect class="links-bind" x="{left:.1f}" y="{top:.1f}" width="{axes.x(xs[1]) - left:.1f}" height="{_PANEL}" '
                f'fill="{COLORS["ici"]}" fill-opacity="0.25"/>'
            )
        drawn += axes.draw("chips", what)
        outline = [*zip(chips, low, strict=True), *reversed([*zip(chips, high, strict=True)])]
        path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in outline)
        drawn.append(f'<polygon class="band" points="{path}" fill="{COLORS["mxu"]}" fill-opacity="0.25"/>')
        drawn += [axes.line([*zip(chips, each, strict=True)], "mxu") for each in (low, high)]
        drawn += [
            f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3" fill="{COLORS["mxu"]}"/>'
            for x, y in zip(chips, low, strict=True)
        ]
        if chosen is not None and chosen in slices:
            drawn.append(_marker(axes, chosen.chips, low[slices.index(chosen)], high[slices.index(chosen)], str(chosen), top))
    drawn.append(_legend(links_bind is not None))
    return Drawing(figure(drawn, words := _words(slices, least, most, links_bind), _HEIGHT), words)


def _around(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis that has two powers of ten at least."""
    ends = decades_around(low, high)
    return ends if ends[1] > ends[0] else (ends[0], 10 * ends[1])


def _marker(axes: LogAxes, x: float, low: float, high: float, text: str, top: float) -> str:
    """A line across the band at the chosen slice, named above it."""
    at = axes.x(x)
    half = Label(text, 0, 0).width / 2
    label = Label(text, min(max(at, 130 + half), WIDTH - 2 - half), top - 5, "middle")  # right of what the axis is called
    line = f'<path d="M{at:.1f} {top:.1f}V{axes.bottom:.1f}" stroke="currentColor" stroke-width="1.5" stroke-dasharray="4 3"/>'
    dots = "".join(f'<circle class="point" cx="{at:.1f}" cy="{axes.y(y):.1f}" r="5" fill="currentColor"/>' for y in (low, high))
    return line + dots + str(label)


def _legend(links_bind: bool) -> str:
    y = _HEIGHT - 12
    entries = [("all hides to nothing hides", COLORS["mxu"], 2.0)]
    entries += [("links bind", COLORS["ici"], 250.0)] if links_bind else []
    return "".join(
        f'<rect x="{x}" y="{y - 11}" width="13" height="13" fill="{color}" fill-opacity="0.4"/>{Label(text, x + 18, y)}'
        for text, color, x in entries
    )


def _words(slices: Sequence[Slice], least: Sequence[Bill], most: Sequence[Bill], links_bind: float | None) -> str:
    rows = "; ".join(
        f"{each}: {units.human(float(low.days))} to {units.human(float(high.days))} days, "
        f"{units.human(float(low.usd))} to {units.human(float(high.usd))} dollars"
        for each, low, high in zip(slices, least, most, strict=True)
    )
    binds = "Links bind on none of them." if links_bind is None else f"Links bind from {math.ceil(links_bind):,} chips."
    return f"Days and dollars of a training run against chips, all axes logarithmic. {rows}. {binds}"
