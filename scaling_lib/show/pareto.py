"""What a token costs against how fast it comes, a line of batches for each server, which ends where its memory is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.show.palette import COLORS, MODELS
from scaling_lib.show.svg import FONT, Drawing, Label, LogAxes, figure, shortened

Point = tuple[float, float]
MOST = len(MODELS)
"""Lines of one figure."""

_DASHES = ("", "9 3", "3 3", "12 3 3 3", "6 2", "2 2")
_BOTTOM, _ROW = 280, 21


@dataclass(frozen=True)
class Line:
    """One server at growing batches.

    Args:
        name: what stands in the legend.
        note: what stands at its right.
        points: (seconds from token to token, cost or rate), of batches that fit; the last is the largest.
        beyond: the same of larger batches, for which there is no memory.
        late: whether its first token comes too late, so that none of it will do.
    """

    name: str
    note: str
    points: Sequence[Point]
    beyond: Sequence[Point] = ()
    late: bool = False


def curves(
    lines: Sequence[Line], what: str, *, more_is_better: bool = False, limit_s: float | None = None, best: Point | None = None
) -> Drawing:
    """Cost or rate against seconds a token, both logarithmic: to the lower left is better, or to the upper left.

    A cross is the wall: the memory is full, and the dotted line beyond it cannot be had. The broad band is the front: no server
    drawn here beats it in both. A pale line is of a server whose first token comes too late.

    Args:
        lines: up to six.
        what: the vertical axis.
        more_is_better: whether it is a rate, of which more is better.
        limit_s: seconds that a token may take; what is slower is shaded.
        best: a point that is marked.

    Raises:
        ValueError: for no lines, too many, or one without points.

    Derived in chapters/07-inference.md.
    """
    if not 1 <= len(lines) <= MOST or not all(line.points for line in lines):
        raise ValueError(f"lines has {len(lines)} of them; give 1 to {MOST}, each with points")
    every = [point for line in lines for point in (*line.points, *line.beyond)]
    xs = _around([*(1e3 * x for x, _ in every), *([1e3 * limit_s] if limit_s else [])])
    axes = LogAxes(xs, _around([y for _, y in every]), bottom=_BOTTOM)
    drawn = [*_too_slow(axes, limit_s), *axes.draw("milliseconds from token to token", what)]
    front = front_of([line.points for line in lines if not line.late], more_is_better)
    if front:
        drawn.append(f'<polyline class="front" points="{_path(axes, front)}" {_FRONT}/>')
    for row, (line, color, dash) in enumerate(zip(lines, MODELS, _DASHES, strict=False)):
        look = f'fill="none" stroke="{color}"'
        pale = ' opacity="0.35"' if line.late else ""
        beyond = f'<polyline class="beyond" points="{_path(axes, [line.points[-1], *line.beyond])}" {look} {_THIN}/>'
        solid = (
            f'<polyline class="server" points="{_path(axes, line.points)}" {look} stroke-width="3" stroke-dasharray="{dash}"/>'
        )
        drawn.append(f"<g{pale}>{beyond}{solid}{_cross(axes, line.points[-1], color)}</g>")
        base = _BOTTOM + 62 + _ROW * row
        drawn += [f'<path d="M6 {base - 5}H36" stroke-width="3" stroke-dasharray="{dash}" {look}{pale}/>']
        note = Label(line.note, 397, base, "end")
        name = shortened(line.name, int((note.x - note.width - 8 - 44) / (0.6 * FONT)))
        drawn += [str(Label(name, 44, base)), str(note)]
    if best is not None:
        x, y = axes.x(1e3 * best[0]), axes.y(best[1])
        drawn.append(
            f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="none" stroke="currentColor" stroke-width="2.5"/>'
        )
    last = _BOTTOM + 62 + _ROW * len(lines)
    words = _words(lines, what, limit_s, best)
    return Drawing(figure([*drawn, *_legend(last, limit_s, best)], words, last + _ROW + 10), words)


_FRONT = (
    'fill="none" stroke="currentColor" stroke-opacity="0.22" stroke-width="11" stroke-linejoin="round" stroke-linecap="round"'
)
_THIN = 'stroke-width="1.5" stroke-dasharray="1 4"'


def front_of(lines: Sequence[Sequence[Point]], more_is_better: bool) -> list[Point]:
    """Of all points those that none beats in both, from the fastest on."""
    front: list[Point] = []
    for point in sorted((x, -y if more_is_better else y) for line in lines for x, y in line):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return [(x, -y if more_is_better else y) for x, y in front]


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis with room at both, and with a power of ten in between or at one of them."""
    low, high = min(values) / 1.25, max(values) * 1.25
    ticks = [10.0**power for power in range(-9, 12) if low <= 10.0**power <= high]
    if not ticks:  # the nearer of the two beside it
        below = max(10.0**power for power in range(-9, 12) if 10.0**power < low)
        low, high = (below, high) if low / below < 10 * below / high else (low, 10 * below)
    return low, high


def _path(axes: LogAxes, points: Sequence[Point]) -> str:
    return " ".join(f"{axes.x(1e3 * x):.1f},{axes.y(y):.1f}" for x, y in points)


def _cross(axes: LogAxes, at: Point, color: str) -> str:
    x, y = axes.x(1e3 * at[0]), axes.y(at[1])
    return f'<path class="wall" d="M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12" stroke="{color}" stroke-width="3" fill="none"/>'


def _too_slow(axes: LogAxes, limit_s: float | None) -> list[str]:
    """A shade over what is slower than asked."""
    if limit_s is None:
        return []
    left, right = axes.x(1e3 * limit_s), axes.x(axes.xs[1])
    return [
        f'<rect class="too-slow" x="{left:.1f}" y="{axes.top}" width="{right - left:.1f}" height="{axes.bottom - axes.top}" '
        f'fill="{COLORS["hbm"]}" fill-opacity="0.15"/>'
    ]


def _legend(y: float, limit_s: float | None, best: Point | None) -> list[str]:
    entries = [('<path d="M{x} {y}l10 10m0 -10l-10 10" stroke="currentColor" stroke-width="2.5"/>', "memory is full")]
    entries += [('<rect x="{x}" y="{y}" width="13" height="11" fill="currentColor" fill-opacity="0.22"/>', "front")]
    if limit_s is not None:
        entries += [(f'<rect x="{{x}}" y="{{y}}" width="13" height="11" fill="{COLORS["hbm"]}" fill-opacity="0.3"/>', "too slow")]
    if best is not None:
        ring = '<circle cx="{cx}" cy="{cy}" r="5" fill="none" stroke="currentColor" stroke-width="2.5"/>'
        entries += [(ring, "best")]
    drawn, x = [], 6.0
    for mark, name in entries:
        label = Label(name, x + 18, y)
        drawn += [mark.format(x=f"{x:.1f}", y=f"{y - 10:.1f}", cx=f"{x + 6:.1f}", cy=f"{y - 4.5:.1f}"), str(label)]
        x = label.x + label.width + 12
    return drawn


def _words(lines: Sequence[Line], what: str, limit_s: float | None, best: Point | None) -> str:
    said = []
    for line in lines:
        (fast, dear), (slow, cheap) = line.points[0], line.points[-1]
        ends = f"from {units.human(fast, 's')} and {units.human(dear)} to {units.human(slow, 's')} and {units.human(cheap)}"
        said.append(f"{line.name}, {line.note}: {ends}{', first token too late' * line.late}")
    limit = "" if limit_s is None else f" A token may take {units.human(limit_s, 's')}."
    marked = "" if best is None else f" Best: {units.human(best[0], 's')} and {units.human(best[1])}."
    axes = f"{what} against seconds a token, both logarithmic, to where memory is full"
    return f"{axes[0].upper()}{axes[1:]}. {'; '.join(said)}.{limit}{marked}"
