"""Figures as SVG text, from the standard library alone: the same string shows in a notebook, in Colab and on the page.

Text and axes take the color of the text around them, so that a figure suits light and dark pages. Why not a library:
docs/adr/0007.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from scaling_lib import roofline as rl
from scaling_lib import units
from scaling_lib.hardware import Chip
from scaling_lib.show.palette import COLORS

WIDTH, HEIGHT = 400, 290
FONT = 13
"""Size of all text, in units of the view box: 11 CSS pixels where the figure is 350 wide."""
MAX_WIDTH_PX = 540

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 380, 30, 240
_TICKS = 7
_HATCH = 5.0

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Label:
    """A line of text: where its baseline starts, is centered or ends."""

    text: str
    x: float
    y: float
    anchor: Anchor = "start"

    @property
    def width(self) -> float:
        """About how wide the text is, from above: 0.6 of the font's size a character."""
        return 0.6 * FONT * len(self.text)

    def __str__(self) -> str:
        return f'<text x="{self.x:.1f}" y="{self.y:.1f}" text-anchor="{self.anchor}">{escape(self.text)}</text>'


@dataclass(frozen=True)
class LogAxes:
    """Two logarithmic axes over ranges of positive numbers, x to the right and y upward, between `top` and `bottom`."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    top: float = _TOP
    bottom: float = _BOTTOM

    def x(self, value: float) -> float:
        """Where `value` lies on the horizontal axis, in units of the view box."""
        return _LEFT + share(value, self.xs) * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        """Where `value` lies on the vertical axis, in units of the view box."""
        return self.bottom - share(value, self.ys) * (self.bottom - self.top)

    def draw(self, xlabel: str, ylabel: str) -> list[str]:
        """Grid, ticks with SI prefixes, and the two axis labels: that of y stands above its axis, where it reads best."""
        parts = []
        for value in decades(*self.xs):
            parts += [
                _line(self.x(value), self.top, self.x(value), self.bottom),
                Label(tick(value), self.x(value), self.bottom + 17, "middle"),
            ]
        for value in decades(*self.ys):
            parts += [_line(_LEFT, self.y(value), _RIGHT, self.y(value)), Label(tick(value), _LEFT - 6, self.y(value) + 4, "end")]
        frame = f'<path d="M{_LEFT} {self.top}V{self.bottom}H{_RIGHT}" fill="none" stroke="currentColor"/>'
        names = [Label(xlabel, (_LEFT + _RIGHT) / 2, self.bottom + 38, "middle"), Label(ylabel, 4, self.top - 15)]
        return [*map(str, parts), frame, *map(str, names)]

    def line(self, points: Sequence[tuple[float, float]], resource: str) -> str:
        """A line through `points`, in the color of a resource."""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f'<polyline class="{resource}" points="{path}" fill="none" stroke="{COLORS[resource]}" stroke-width="3"/>'

    def point(self, at: tuple[float, float], text: str) -> str:
        """A dot with its label below it: to its right, or to its left where the right has no room."""
        right, down = self.x(at[0]), self.y(at[1])
        dot = f'<circle class="point" cx="{right:.1f}" cy="{down:.1f}" r="5.5" fill="currentColor"/>'
        label = Label(text, right + 9, min(down + 18, self.bottom - 5))
        if label.x + label.width > _RIGHT:
            label = Label(text, right - 9, label.y, "end")
        return dot + str(label)


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, at most seven: every second or third where there are more."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = -(-(last - first + 1) // _TICKS)
    return [10.0**power for power in range(first, last + 1, step)]


def decades_around(low: float, high: float) -> tuple[float, float]:
    """The powers of ten at or below `low`, and at or above `high`."""
    return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))


def share(value: float, ends: tuple[float, float]) -> float:
    """How far `value` lies between two ends of a logarithmic axis, from 0 to 1."""
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def tick(value: float) -> str:
    """A tick's number with its SI prefix, without a unit: "1 T"."""
    return units.human(value, "B").removesuffix("B").rstrip()


def shortened(text: str, most: int = 24) -> str:
    """Text of at most so many characters: the rest of a longer one is dots."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def hatch(left: float, top: float, wide: float, high: float) -> str:
    """The path of lines from above right to below left, within a box; a pattern would vanish with the figure that has it."""
    lines = ""
    for step in range(math.ceil((wide + high) / _HATCH - 0.5)):
        along = (step + 0.5) * _HATCH
        right, down = min(along, wide), min(along, high)
        lines += f"M{left + right:.1f} {top + along - right:.1f}L{left + along - down:.1f} {top + down:.1f}"
    return lines


@dataclass(frozen=True)
class Drawing:
    """A finished figure; shows itself in a notebook and on the page, and prints as its description.

    Args:
        svg: the SVG element.
        description: the figure in words.
    """

    svg: str
    description: str

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return self.description


def figure(parts: Sequence[str], description: str, height: float = HEIGHT) -> str:
    """The SVG element around `parts`: as wide as its place, up to a limit, and described in words to who cannot see it."""
    style = f"width:100%;max-width:{MAX_WIDTH_PX}px;height:auto;color:inherit;font:{FONT}px system-ui,sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(description)}" style="{style}" fill="currentColor">{"".join(parts)}</svg>'
    )


def roofline(chip: Chip, cost: rl.Cost, label: str) -> str:
    """The roofline of a chip for the one dtype of a cost, and the cost as a point on it.

    Args:
        chip: supplies ceiling and slope.
        cost: FLOPs of one dtype, and bytes of HBM.
        label: what the point is called.

    Derived in chapters/01-roofline.md.
    """
    (dtype,) = cost.flops
    intensity, limits = cost.intensity(), rl.bound(cost, chip)
    ridge, peak = rl.ridge(chip, dtype), chip.flops_per_s(dtype)
    low, high = decades_around(min(0.1, intensity / 2), max(1e5, intensity))
    start = rl.attainable_flops_per_s(low, chip, dtype)
    axes = LogAxes((low, high), (start / 2, peak * 3))

    slope = f"HBM, {units.human(chip.hbm_bytes_per_s, 'B/s')}"
    ceiling = f"{dtype}, {units.human(peak, units.rate_unit(dtype))}"
    parts = [
        *axes.draw("FLOPs per byte moved", f"attainable {units.rate_unit(dtype)} on {chip}"),
        axes.line([(low, start), (ridge, peak)], "hbm"),
        axes.line([(ridge, peak), (high, peak)], "mxu"),
        str(_above_slope(axes, slope, [(low, start), (ridge, peak)])),
        str(Label(ceiling, _RIGHT, axes.y(peak) - 8, "end")),
        axes.point((intensity, limits.flops_per_s), label),
    ]
    where = "ceiling" if limits.binds == "mxu" else "slope"
    return figure(
        parts,
        f"Roofline of {chip} for {dtype}: attainable {units.rate_unit(dtype)} against FLOPs per byte, both axes logarithmic. "
        f"A slope for {slope}, meets a ceiling for {ceiling}, at {units.human(ridge)} FLOPs per byte. "
        f"The point {label} lies on the {where}: {units.human(intensity)} FLOPs per byte, "
        f"at most {units.human(limits.flops_per_s, units.rate_unit(dtype))}.",
    )


def _above_slope(axes: LogAxes, text: str, ends: Sequence[tuple[float, float]]) -> Label:
    """A label at the left edge, just high enough to clear the rising line over its whole width: nothing else is drawn there."""
    (x0, y0), (x1, y1) = ((axes.x(x), axes.y(y)) for x, y in ends)
    label = Label(text, _LEFT + 6, 0)
    covered = min(1, (label.x + label.width - x0) / (x1 - x0))
    return Label(text, label.x, y0 + covered * (y1 - y0) - 8)


def _line(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="currentColor" opacity="0.2"/>'
