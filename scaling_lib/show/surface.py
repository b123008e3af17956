"""The speed-up of speculative decoding as a surface, over the acceptance of a guess and the number of guesses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from scaling_lib import units
from scaling_lib.inference.speculation import speedup
from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import WIDTH, Drawing, Label, figure

ACCEPTANCES = tuple(n / 20 for n in range(1, 20))
"""Rows of the surface, the lowest first."""
BANDS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Speed-ups at which the color changes."""

_LOOKS = tuple((resource, opacity) for resource, opacity in [
    ("hbm", 0.8), ("hbm", 0.5), ("hbm", 0.22), ("mxu", 0.15), ("mxu", 0.32), ("mxu", 0.5), ("mxu", 0.7), ("mxu", 0.95),
])  # fmt: skip
_LEFT, _RIGHT, _TOP, _ROW = 40.0, 340.0, 34.0, 14.0
_BOTTOM = _TOP + _ROW * len(ACCEPTANCES)
_LEGEND, _SEGMENT = _BOTTOM + 52, 44.0


def speedups(*, draft: float, checks: Sequence[float], acceptance: float, guesses: int) -> Drawing:
    """A row for each acceptance, a column for each number of guesses: blue is faster than plain decoding, red slower.

    A dot marks the best number of guesses of a row; there is none where guesses do not pay. The chosen row has a frame, and the
    chosen number of guesses a ring in it.

    Args:
        draft: seconds of a step of the draft, over those of a plain step of the target.
        checks: the same of the check, for 1, 2, ... guesses.
        acceptance: the chosen one, of `ACCEPTANCES`.
        guesses: the chosen number.

    Raises:
        ValueError: for an acceptance that has no row, and guesses that have no column.

    Derived in chapters/07-inference.md.
    """
    if acceptance not in ACCEPTANCES:
        raise ValueError(f"acceptance={acceptance!r} has no row; give one of {', '.join(map(str, ACCEPTANCES))}")
    if not 1 <= guesses <= len(checks):
        raise ValueError(f"guesses={guesses!r} has no column; give 1 to {len(checks)}")
    width = (_RIGHT - _LEFT) / len(checks)
    cells: dict[int, list[str]] = {}
    dots, best_labels, said = [], [], []
    for row, a in enumerate(ACCEPTANCES):
        values = [speedup(a, k, draft=draft, check=check) for k, check in enumerate(checks, start=1)]
        top = _BOTTOM - _ROW * (row + 1)
        for band, columns in groupby(range(len(values)), lambda column: _band(values[column])):  # noqa: B023  # at once
            first, *more = columns
            wide = width * (1 + len(more))
            cells.setdefault(band, []).append(f"M{_LEFT + first * width:g} {top:g}h{wide:g}v{_ROW:g}h{-wide:g}z")
        best = max(range(len(values)), key=values.__getitem__)
        pays = values[best] > 1
        if pays:
            x = _LEFT + (best + 0.5) * width
            dots.append(f'<circle class="best" cx="{x:.1f}" cy="{top + _ROW / 2:.1f}" r="3.4" fill="currentColor"/>')
        if row % 2:
            dots.append(str(Label(f"{a:g}", _LEFT - 6, top + 11.5, "end")))
            best_labels.append(str(Label(f"{values[best]:.2f}", WIDTH - 4, top + 11.5, "end")))
            said.append(f"acceptance {a:g}: {values[best]:.2f} with {best + 1}" if pays else f"acceptance {a:g}: none pays")
    chosen = _BOTTOM - _ROW * (ACCEPTANCES.index(acceptance) + 1)
    ring = _LEFT + (guesses - 0.5) * width
    drawn = [
        *(f'<path class="band" d="{"".join(paths)}" {_look(band)}/>' for band, paths in sorted(cells.items())),
        f'<rect class="chosen" x="{_LEFT}" y="{chosen:.0f}" width="{_RIGHT - _LEFT}" height="{_ROW}" fill="none" '
        'stroke="currentColor" stroke-width="2"/>',
        f'<circle class="point" cx="{ring:.1f}" cy="{chosen + _ROW / 2:.1f}" r="6" fill="none" stroke="currentColor" '
        'stroke-width="2"/>',
        *dots,
        *best_labels,
        *(str(Label(str(k), _LEFT + (k - 0.5) * width, _BOTTOM + 15, "middle")) for k in _numbered(len(checks))),
        str(Label("guesses, k", (_LEFT + _RIGHT) / 2, _BOTTOM + 32, "middle")),
        str(Label("acceptance", 4, _TOP - 12)),
        str(Label("best", WIDTH - 4, _TOP - 12, "end")),
        *_legend(),
    ]
    now = speedup(acceptance, guesses, draft=draft, check=checks[guesses - 1])
    words = (
        f"Speed-up over acceptance and guesses, 1 to {len(checks)}, for a draft whose step takes {units.human(100 * draft)} % of "
        f"the target's. Best: {'; '.join(said)}. Chosen: acceptance {acceptance:g} with {guesses}, {now:.2f}."
    )
    return Drawing(figure(drawn, words, _LEGEND + 36), words)


def _band(value: float) -> int:
    return sum(value >= edge for edge in BANDS)


def _look(band: int) -> str:
    resource, opacity = _LOOKS[band]
    return f'fill="{COLORS[resource]}" fill-opacity="{opacity}"'


def _numbered(columns: int) -> list[int]:
    """Columns that have their number below: the first, and those of even numbers."""
    return [k for k in range(1, columns + 1) if k == 1 or k % 2 == 0]


def _legend() -> list[str]:
    """A bar of all colors, with the speed-ups between them."""
    drawn = []
    for band in range(len(_LOOKS)):
        x = 24 + _SEGMENT * band
        drawn.append(f'<rect x="{x:.0f}" y="{_LEGEND}" width="{_SEGMENT:.0f}" height="12" {_look(band)}/>')
        if band < len(BANDS):
            drawn.append(str(Label(f"{BANDS[band]:g}", x + _SEGMENT, _LEGEND + 27, "middle")))
    return [*drawn, str(Label("×", 4, _LEGEND + 27))]
