"""The systolic array as a drawing: what every cell does in a few cycles of a simulated matmul."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scaling_lib import units
from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import FONT, WIDTH, Drawing, Label, figure
from scaling_lib.systolic import Cycle, Run

_ACROSS, _WIDEST, _PAD, _TITLE, _LEGEND = 3, 220, 10, 20, 44
_STYLES = {
    "busy": f'fill="{COLORS["mxu"]}"',
    "padding": f'fill="{COLORS["mxu"]}" fill-opacity="0.35"',
    "holding": f'fill="{COLORS["vmem"]}" fill-opacity="0.3"',
    "idle": 'fill="none"',
}
_EDGE = 'stroke="currentColor" stroke-opacity="0.4"'
_WORDS = {"busy": "multiplies", "padding": "multiplies padding", "holding": "waits with a weight", "loading": "takes a weight"}


def systolic(run: Run, cycles: Sequence[int]) -> Drawing:
    """Some cycles of a run side by side, with the activations that the cells multiply.

    Args:
        run: what `systolic.simulate` returned; up to about 8 cells a side are readable.
        cycles: which of its cycles, from zero.

    Raises:
        ValueError: for no cycles, or one that the run does not have.
    """
    if not cycles or not all(0 <= cycle < len(run.cycles) for cycle in cycles):
        raise ValueError(
            f"cycles={list(cycles)} is not among the {len(run.cycles)} cycles of this run, 0 to {len(run.cycles) - 1}"
        )
    across = min(_ACROSS, len(cycles))
    panel = min(_WIDEST, WIDTH / across)
    down = math.ceil(len(cycles) / across)
    height = down * (panel + _TITLE) + _LEGEND
    parts: list[str] = []
    for place, number in enumerate(cycles):
        left, top = place % across * panel + _PAD / 2, place // across * (panel + _TITLE)
        parts += [
            str(Label(f"cycle {number}", left, top + 15)),
            *_cells(run, run.cycles[number], left, top + _TITLE, panel - _PAD),
        ]
    parts += _legend(height - _LEGEND + 12)
    seen = "; ".join(f"cycle {number}: {_count(run.cycles[number])}" for number in cycles)
    description = f"A systolic array of {run.side} × {run.side} cells; how many do what in its {len(run.cycles)} cycles. {seen}."
    return Drawing(figure(parts, description, height), description)


def _cells(run: Run, cycle: Cycle, left: float, top: float, width: float) -> Iterator[str]:
    size = width / run.side
    for i in range(run.side):
        for j in range(run.side):
            x, y = left + j * size, top + i * size
            state = next((state for state in ("busy", "padding", "holding") if (i, j) in getattr(cycle, state)), "idle")
            box = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{size - 1:.1f}" height="{size - 1:.1f}"'
            yield f'<rect class="{state}" {box} {_STYLES[state]} {_EDGE}/>'
            if (i, j) in cycle.loading:
                yield _arrow(x + size / 2, y, size)
            if state == "busy":
                text = units.human(cycle.activations[i, j])
                if 0.6 * FONT * len(text) < size - 4:
                    label = Label(text, x + size / 2, y + size / 2 + 4.5, "middle")
                    yield f'<g fill="white">{label}</g>'


def _arrow(x: float, y: float, size: float) -> str:
    """A mark at the top edge of a cell: a weight comes in from above."""
    triangle = f"M{x - size / 6:.1f} {y + 1:.1f}h{size / 3:.1f}l{-size / 6:.1f} {size / 5:.1f}z"
    return f'<path class="loading" d="{triangle}" fill="{COLORS["vmem"]}"/>'


def _legend(top: float) -> Iterator[str]:
    for place, (state, words) in enumerate(_WORDS.items()):
        x, y = 5 + place % 2 * 190, top + place // 2 * 18
        if state == "loading":
            yield _arrow(x + 6, y - 11, 24)
        else:
            yield f'<rect x="{x}" y="{y - 11:.1f}" width="12" height="12" {_STYLES[state]} {_EDGE}/>'
        yield str(Label(words, x + 18, y))


def _count(cycle: Cycle) -> str:
    counts = {words: len(getattr(cycle, state)) for state, words in _WORDS.items()}
    return ", ".join(f"{words} {count}" for words, count in counts.items() if count) or "all idle"
