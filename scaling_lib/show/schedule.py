"""The schedule of a program as SVG: a lane for each resource, a window in time, and what is hidden told from what is waited for.

`show.timelines` draws the same with matplotlib, for pages that need no browser to redraw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from scaling_lib import units
from scaling_lib.catalog.schedules import Operation, Schedule
from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import Drawing, Label, figure, hatch

LANES = {"compute": "compute", "ici": "links to other chips (ICI)", "hbm": "copies in memory (HBM)"}
SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

_LEFT, _RIGHT, _LANE, _APART, _LEAST, _BETWEEN, _TICKS = 8.0, 392.0, 30.0, 24.0, 0.7, 0.6, 5


def draw(schedule: Schedule, from_s: float, to_s: float, chosen: str = "") -> Drawing:
    """The operations of a window. Those of one lane at the same time share it; each tells about itself under the pointer.

    A transfer is full where the compute units wait for it and pale and hatched where it is hidden behind their work.

    Args:
        schedule: of the catalog.
        from_s: where the window begins.
        to_s: where it ends.
        chosen: name of an operation to mark.

    Raises:
        ValueError: for a window that has no length, or begins after the program.
    """
    shares = schedule.within(from_s, to_s)
    to_s = min(to_s, schedule.total_s)
    axis = _Axis(from_s, to_s)
    parts, marks = [], []
    y = 0.0
    for resource, name in LANES.items():
        seen = [one for one in schedule.operations if one.resource == resource and axis.shows(one)]
        parts.append(str(Label(name, _LEFT, y + 15)))
        y += _APART - 4
        frame = f'x="{_LEFT}" y="{y:.1f}" width="{_RIGHT - _LEFT}" height="{_LANE}"'
        parts.append(f'<rect {frame} fill="none" stroke="currentColor" opacity="0.25"/>')
        rows = _rows(seen)
        high = _LANE / (1 + max(rows, default=0))
        for one, row in zip(seen, rows, strict=True):
            parts.append(_bar(one, axis, y + row * high, high))
            if one.name == chosen:
                left, right = axis.ends(one.start_s, one.end_s)
                marks.append(f"M{left:.1f} {y + row * high - 3:.1f}h{right - left:.1f}v{high + 6:.1f}h{left - right:.1f}z")
        y += _LANE + 4
    if marks:
        parts.append(f'<path class="chosen" d="{marks[0]}" fill="none" stroke="currentColor" stroke-width="2.5"/>')
    parts += axis.draw(y)
    parts += _legend(y + 48)
    said = ", ".join(f"{name} {units.human(seconds, 's')}" for name, seconds in shares.items())
    described = (
        f"Schedule of {schedule.title} on {schedule.slice}, from {units.human(from_s, 's')} to {units.human(to_s, 's')}: {said}."
    )
    return Drawing(figure(parts, described, y + 88), described)


def about(one: Operation) -> str:
    """An operation in a line."""
    said = [f"{one.name}: {one.kind}", f"{units.human(one.duration_s, 's')} from {units.human(one.start_s, 's', digits=4)}"]
    if one.exposed_s:
        said.append(f"{units.human(one.exposed_s, 's')} of it waited for")
    if one.flops:
        said.append(units.human(one.flops, "FLOPs"))
    return ", ".join([*said, units.human(one.bytes, "B")])


class _Axis:
    """Time in the window, from left to right."""

    def __init__(self, from_s: float, to_s: float) -> None:
        self.from_s, self.to_s = from_s, to_s
        self.scale, self.unit = next((scale for scale in SCALES if to_s - from_s >= scale[0]), SCALES[-1])

    def x(self, at_s: float) -> float:
        share = (min(max(at_s, self.from_s), self.to_s) - self.from_s) / (self.to_s - self.from_s)
        return _LEFT + share * (_RIGHT - _LEFT)

    def shows(self, one: Operation) -> bool:
        return one.start_s < self.to_s and one.end_s > self.from_s

    def ends(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Left and right of a bar; none is too narrow to be seen."""
        left, right = self.x(start_s), self.x(end_s)
        return (left, right) if right - left >= _LEAST else (min(left, _RIGHT - _LEAST), min(left, _RIGHT - _LEAST) + _LEAST)

    def draw(self, top: float) -> Iterator[str]:
        long = (self.to_s - self.from_s) / self.scale
        power = 10.0 ** math.floor(math.log10(long / _TICKS))
        step = next(power * nice for nice in (1, 2, 5, 10) if long / (power * nice) <= _TICKS)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        for i in range(math.ceil(self.from_s / self.scale / step - 1e-9), math.floor(self.to_s / self.scale / step + 1e-9) + 1):
            label = Label(f"{i * step:,.{digits}f}", self.x(i * step * self.scale), top + 16, "middle")
            yield f'<path d="M{label.x:.1f} {top:.1f}v5" stroke="currentColor"/>'
            if label.x - label.width / 2 - 4 >= _LEFT and label.x + label.width / 2 + 4 <= _RIGHT:
                yield str(label)
        yield f'<path d="M{_LEFT} {top:.1f}H{_RIGHT}" stroke="currentColor"/>'
        yield str(Label(f"time ({self.unit})", (_LEFT + _RIGHT) / 2, top + 34, "middle"))


def _rows(operations: Sequence[Operation]) -> list[int]:
    """In which row of its lane each operation stands, so that none covers another."""
    free: list[float] = []
    rows = []
    for one in operations:
        row = next((i for i, until in enumerate(free) if until <= one.start_s + 2e-9), len(free))  # whole nanoseconds, rounded
        free[row : row + 1] = [one.end_s]
        rows.append(row)
    return rows


def _bar(one: Operation, axis: _Axis, top: float, high: float) -> str:
    waits_s = one.start_s if one.resource == "compute" else one.end_s - one.exposed_s
    color, parts = _color(one), f"<title>{escape(about(one))}</title>"
    for start_s, end_s, hidden in ((one.start_s, waits_s, True), (waits_s, one.end_s, False)):
        if end_s > start_s and end_s > axis.from_s and start_s < axis.to_s:
            left, right = axis.ends(start_s, end_s)
            wide = right - left - (_BETWEEN if right - left > 3 else 0)
            box = f'x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{color}"'
            pale = ' fill-opacity="0.3"' if hidden else ""
            parts += f'<rect class="{"hidden" if hidden else "shown"}" {box}{pale}/>'
            if hidden and wide > 3:
                parts += f'<path d="{hatch(left, top, wide, high)}" stroke="{color}"/>'
    return f'<g class="operation {one.resource}">{parts}</g>'


def _color(one: Operation) -> str:
    return COLORS["mxu" if one.kind == "matmul" else "vpu" if one.resource == "compute" else one.resource]


def _legend(y: float) -> Iterator[str]:
    for column, names in ((_LEFT, ("mxu", "vpu")), (110, ("ici", "ici")), (253, ("hbm", "hbm"))):
        for row, part in enumerate(names):
            top, hidden = y + 18 * row, row == 1 and part != "vpu"
            opacity = ' fill-opacity="0.3"' if hidden else ""
            yield f'<rect x="{column}" y="{top}" width="16" height="11" fill="{COLORS[part]}"{opacity}/>'
            if hidden:
                yield f'<path d="{hatch(column, top, 16, 11)}" stroke="{COLORS[part]}"/>'
            words = {"mxu": "matmul", "vpu": "other work"}.get(part, f"{part.upper()}, {'hidden' if hidden else 'waited for'}")
            yield str(Label(words, column + 20, top + 10))
