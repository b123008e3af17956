"""A collective on a ring or line, step by step: how much goes over which link, and who holds what then."""

from __future__ import annotations

import textwrap

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from scaling_lib import units
from scaling_lib.collectives.rings import Piece, Run, Send
from scaling_lib.show.palette import COLORS, NEUTRAL

MOST = 8
"""Devices of the largest run that is drawn."""

_WIDTH, _LEFT = 7.0, 0.25  # all lengths are in inches
_CAPTION, _LANE, _CELL, _GAP, _LINE = 0.46, 0.74, 0.25, 0.26, 0.27
_CIRCLE, _LABELED = 0.15, 4  # of more devices than this, arrows have no room for a label
_KEPT, _EDGE = "#BDBDBD", "#8A8A8A"
_MEANS = {
    "all-gather": "A box has a row for each part of the array.",
    "reduce-scatter": "A box has a row for each part of the array and a column for each device whose numbers are added in it.",
    "all-to-all": "A box has a row for each device that a message goes to and a column for each that it comes from.",
}
_MEANS["all-reduce"] = _MEANS["reduce-scatter"]

_Cell = tuple[int, int, int | None]  # a part, one of the devices whose numbers are in it, and the half


def draw(run: Run) -> Axes:
    """Every step of a run, one below the other, after what the devices hold at the start.

    Numbered circles are the devices, arrows between them what their links carry in the step; arrows at the left and right edge
    are the link that closes a ring. Below each circle is what the device then holds: green if it arrived in this step, gray
    if it was there before, half of a cell for half of a part. A bar says how much the busiest link has carried so far.

    Args:
        run: what `rings.run` returned, of at most 8 devices.

    Returns:
        The axes of a new figure, which are in inches.

    Raises:
        ValueError: for more devices.

    Derived in chapters/03-sharding.md.
    """
    if run.n > MOST:
        raise ValueError(f"run has {run.n} devices; up to {MOST} can be drawn")
    down = _CAPTION + _LANE + run.n * _CELL + _GAP
    notes = _notes(run)
    height = (len(run.steps) + 1) * down + _LINE * (len(notes) + 1)
    fig = plt.figure(figsize=(_WIDTH, height))
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(-height, 0))
    ax.axis("off")
    states = [((), run.start), *((step.sends, step.held) for step in run.steps)]
    so_far: dict[tuple[int, int], float] = {}
    for number, (sends, held) in enumerate(states):
        for send in sends:
            so_far[send.source, send.way] = so_far.get((send.source, send.way), 0) + send.bytes
        top = -number * down
        _caption(ax, run, number, max(so_far.values(), default=0), top)
        _links(ax, run, sends, top - _CAPTION - _LANE / 2)
        for device in range(run.n):
            now, before = _cells(held[device]), _cells(states[max(0, number - 1)][1][device])
            _box(ax, run, device, now, now - before, top - _CAPTION - _LANE)
    _key(ax, -height + _LINE * (len(notes) + 0.5))
    for line, text in enumerate(notes):
        ax.text(_LEFT, -height + _LINE * (len(notes) - line - 0.5), text, va="center", fontsize=13)
    return ax


def _caption(ax: Axes, run: Run, number: int, so_far: float, top: float) -> None:
    """The step's number and bytes; at the right the bytes of the busiest link so far, over a bar."""
    text = "start"
    if number:
        sends = run.steps[number - 1].sends
        most = max(send.bytes for send in sends)
        where = "per link" + ", each way" * (run.ways == 2)
        if len(sends) < (run.n if run.wraps else run.n - 1) * run.ways or any(send.bytes != most for send in sends):
            where = "over the busiest links"
        text = f"step {number}: {_human(most)} {where}"
    total = run.busiest_bytes
    ax.text(_LEFT, top - 0.13, text, va="center", fontsize=13.5, fontweight="bold")
    ax.text(_WIDTH - _LEFT, top - 0.13, f"so far {_human(so_far)} of {_human(total)}", va="center", ha="right", fontsize=13)
    wide = _WIDTH - 2 * _LEFT
    ax.add_artist(Rectangle((_LEFT, top - 0.36), wide, 0.09, facecolor="#E6E6E6", linewidth=0))
    part = so_far / total if total else 1.0
    ax.add_artist(Rectangle((_LEFT, top - 0.36), wide * part, 0.09, facecolor=COLORS["ici"], linewidth=0, gid="so far"))


def _links(ax: Axes, run: Run, sends: tuple[Send, ...], y: float) -> None:
    """The devices as circles on their wires, and an arrow for what each wire carries."""
    pitch = _pitch(run)
    ends = (0.0, _WIDTH) if run.wraps and run.n > 1 else (_x(run, 0), _x(run, run.n - 1))
    ax.plot(ends, (y, y), color="#D0D0D0", linewidth=1, zorder=1)
    for device in range(run.n):
        ax.add_artist(Circle((_x(run, device), y), _CIRCLE, facecolor="white", edgecolor=NEUTRAL, linewidth=1.2, zorder=3))
        ax.text(_x(run, device), y - 0.005, str(device), ha="center", va="center", fontsize=12.5, zorder=4)
    for send in sends:
        lane, start = y + 0.07 * send.way, _x(run, send.source) + send.way * _CIRCLE
        around = not 0 <= send.source + send.way < run.n
        if not around:
            _arrow(ax, start, _x(run, send.to) - send.way * _CIRCLE, lane)
        else:  # out at one edge of the figure, and in at the other
            out, back = (_WIDTH - 0.02, 0.02) if send.way == 1 else (0.02, _WIDTH - 0.02)
            _arrow(ax, start, out, lane)
            _arrow(ax, back, _x(run, send.to) - send.way * _CIRCLE, lane)
        if run.n <= _LABELED:
            middle = start + send.way * (pitch / 2 - _CIRCLE) * (0.55 if around else 1)
            va = "bottom" if send.way == 1 else "top"
            ax.text(middle, lane + 0.03 * send.way, _human(send.bytes), ha="center", va=va, fontsize=12, color=NEUTRAL)


def _arrow(ax: Axes, start: float, end: float, y: float) -> None:
    style = {"arrowstyle": "-|>", "color": COLORS["ici"], "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 11}
    ax.annotate("", (end, y), (start, y), arrowprops=style, zorder=2)


def _box(ax: Axes, run: Run, device: int, now: set[_Cell], new: set[_Cell], top: float) -> None:
    """What a device holds: rows for parts, columns for whose numbers; an all-gather adds nothing and has one column."""
    columns = 1 if run.kind == "all-gather" else run.n
    wide = min(1.2, _pitch(run) - (0.34 if run.n <= _LABELED else 0.14))
    left, cell = _x(run, device) - wide / 2, wide / columns
    for part, of, half in sorted(now, key=str):
        x, y, tall = left + (of * cell if columns > 1 else 0), top - (part + 1) * _CELL, _CELL
        if half is not None:
            tall = _CELL / 2
            y += tall * (1 - half)
        arrived = (part, of, half) in new
        color = COLORS["ici"] if arrived else _KEPT
        # `add_patch` would measure each for the limits, which are fixed.
        ax.add_artist(Rectangle((x, y), cell, tall, facecolor=color, linewidth=0, gid="arrived" if arrived else "kept"))
    bottom = top - run.n * _CELL
    ax.hlines([top - line * _CELL for line in range(run.n + 1)], left, left + wide, color=_EDGE, linewidth=0.8)
    ax.vlines(
        [left + line * cell for line in range(columns + 1)], bottom, top, color=_EDGE, linewidth=0.8 if columns == 1 else 0.4
    )
    for part in range(run.n):
        middle = top - (part + 0.5) * _CELL - 0.005
        if columns == 1 and any(held == part for held, _, _ in now):
            ax.text(_x(run, device), middle, str(part), ha="center", va="center", fontsize=12)
        elif columns > 1 and device == 0:
            ax.text(left - 0.06, middle, str(part), ha="right", va="center", fontsize=12)


def _key(ax: Axes, y: float) -> None:
    for x, color, text in ((_LEFT, _KEPT, "held before"), (2.0, COLORS["ici"], "arrived in this step")):
        ax.add_artist(Rectangle((x, y - 0.08), 0.22, 0.16, facecolor=color, edgecolor=_EDGE, linewidth=0.8))
        ax.text(x + 0.3, y - 0.005, text, va="center", fontsize=13)


def _notes(run: Run) -> list[str]:
    sizes = f"n = {run.n}, V = {_human(run.array_bytes)}".replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    total = f"The busiest link carries {_formula(run)} = {_human(run.busiest_bytes)}; {sizes}."
    return [line for text in (_MEANS[run.kind], total) for line in textwrap.wrap(text, 70)]


def _formula(run: Run) -> str:
    """Bytes over the busiest link, one way: V is the run's `array_bytes`."""
    both = run.wraps and run.ways == 2
    if run.kind == "all-to-all":
        if run.wraps and not both:
            return "(n − 1)/2 · V"
        share = 8 if both else 4
        return f"(n² − 1)/(n · {share}) · V" if run.n % 2 else f"n/{share} · V"
    if run.kind == "all-reduce":
        return "V" if not run.wraps else "(n − 1)/n · V" if both else "2 · (n − 1)/n · V"
    return "(n − 1)/n · V/2" if both else "(n − 1)/n · V"


def _cells(pieces: frozenset[Piece]) -> set[_Cell]:
    return {(piece.part, of, piece.half) for piece in pieces for of in piece.of}


def _pitch(run: Run) -> float:
    return (_WIDTH - 2 * _LEFT) / run.n


def _x(run: Run, device: int) -> float:
    return _LEFT + (device + 0.5) * _pitch(run)


def _human(bytes: float) -> str:
    return units.human(bytes, "B")
