"""How many sequences the memory of a slice holds, against the length of the context, for several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaling_lib.show.palette import MODELS
from scaling_lib.show.svg import Drawing, Label, LogAxes, decades_around, figure, shortened

LENGTHS = (1e3, 1e6)
"""Tokens at the ends of the horizontal axis."""
_DASHES = ("", "9 3", "3 3", "12 3 3 3", "6 2", "2 2")
_BOTTOM, _ROW = 260, 21


def curves(walls: Mapping[str, Sequence[tuple[int, int]]], *, where: str, context: int | None = None) -> Drawing:
    """The largest batch against tokens of context, both logarithmic: what lies above a model's line does not fit.

    Args:
        walls: for up to six models, by name: (tokens, sequences of as many that fit), from short to long. A line that ends within
            the axis ends in a cross: of longer contexts not one sequence fits, or the model has no positions for them.
        where: the slice, for the label.
        context: a length that is marked on each line.

    Raises:
        ValueError: for no models, too many, or one without points.

    Derived in chapters/07-inference.md.
    """
    if not 1 <= len(walls) <= len(MODELS) or not all(walls.values()):
        raise ValueError(f"walls has {len(walls)} models; give 1 to {len(MODELS)}, each with points")
    most = max(batch for points in walls.values() for _, batch in points)
    axes = LogAxes(LENGTHS, (1.0, max(10.0, decades_around(1, most)[1])), bottom=_BOTTOM)
    drawn = axes.draw("tokens of context", f"sequences that fit on {where}")
    if context is not None and LENGTHS[0] <= context <= LENGTHS[1]:
        x = axes.x(context)
        drawn.append(
            f'<path class="context" d="M{x:.1f} {axes.top}V{axes.bottom}" stroke="currentColor" stroke-dasharray="4 3"/>'
        )
    said = []
    for row, ((name, points), color, dash) in enumerate(zip(walls.items(), MODELS, _DASHES, strict=False)):
        look = f'fill="none" stroke="{color}" stroke-width="3"'
        path = " ".join(f"{axes.x(tokens):.1f},{axes.y(batch):.1f}" for tokens, batch in points)
        (first, many), (last, few) = points[0], points[-1]
        drawn.append(f'<polyline class="model" points="{path}" {look} stroke-dasharray="{dash}"/>')
        if last < LENGTHS[1]:
            x, y = axes.x(last), axes.y(few)
            drawn.append(f'<path class="wall" d="M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12" {look}/>')
        y = _BOTTOM + 62 + _ROW * row
        drawn += [f'<path d="M6 {y - 5}H36" {look} stroke-dasharray="{dash}"/>', str(Label(shortened(name, 21), 44, y))]
        drawn.append(str(Label(f"{few:,} of {last:,}" if last >= LENGTHS[1] else f"to {last:,} tokens", 397, y, "end")))
        said.append(f"{name}: {many:,} of {first:,} tokens to {few:,} of {last:,}")
    marked = "" if context is None else f" Marked: {context:,} tokens."
    words = f"Sequences that fit on {where} against tokens of context, both axes logarithmic. {'; '.join(said)}.{marked}"
    return Drawing(figure(drawn, words, _BOTTOM + 62 + _ROW * len(walls)), words)
