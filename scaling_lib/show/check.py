"""Answer checks for exercises: is the reader's number right, and if not, which classic slip does it look like?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaling_lib import units

SLIPS: Mapping[float, str] = {
    2: "a factor of 2 too large. Was a multiply-add counted as 4 FLOPs, or a link counted both ways where one way is asked?",
    1 / 2: "half of it. A multiply-add is 2 FLOPs; bf16 takes 2 bytes; a link's one-way rate is half of its two-way rate.",
    4: "a factor of 4 too large. Was float32 assumed where the array is int8, or 2 taken twice?",
    1 / 4: "a quarter of it. Were FLOPs counted once and bytes twice?",
    8: "a factor of 8 too large. Were bytes turned into bits?",
    1 / 8: "an eighth of it. Were bits taken for bytes?",
    units.GIB / 1e9: "7 % too large, the ratio of GiB to GB.",
    1e9 / units.GIB: "7 % too small, the ratio of GB to GiB.",
    1e3: "a factor of 1,000 too large: a prefix (ms for s, MB for GB)?",
    1e-3: "a factor of 1,000 too small: a prefix (s for ms, GB for MB)?",
    1e6: "a factor of a million too large: a prefix (µs for s)?",
    1e-6: "a factor of a million too small: a prefix (s for µs)?",
    -1: "right but for its sign.",
}
"""Ratio of a wrong answer to the right one -> what probably happened. These are tried for every exercise."""


@dataclass(frozen=True)
class Verdict:
    """What the check says of an answer: `ok`, and `words` for the reader."""

    ok: bool
    words: str

    def __repr__(self) -> str:
        return self.words


def answer(
    given: object,
    expected: float,
    *,
    unit: str = "",
    tolerance: float = 0.02,
    slips: Mapping[float, str] | None = None,
    general: bool = True,
) -> Verdict:
    """Compare a reader's answer with the library's own.

    Args:
        given: the reader's number; `...` while there is none yet.
        expected: the right value in base units, computed by the library in the exercise's own cell.
        unit: for the message, as `units.human` takes it.
        tolerance: relative difference that still counts as right.
        slips: wrong values typical of this exercise -> hint, tried before the general ones.
        general: whether `SLIPS` are tried. Not for counts and choices, where half or twice the number says nothing.

    Returns:
        A verdict that shows as one sentence; it never gives away the value before the answer is right.
    """
    expected = units.number("expected", expected)
    units.number("tolerance", tolerance, minimum=0)
    if given is ...:
        return Verdict(False, "Not answered yet: replace the ... with your number.")
    try:
        value = units.number("answer", given)
    except ValueError as error:
        return Verdict(False, f"Not a number to check: {error}.")
    if _close(value, expected, tolerance):
        return Verdict(True, f"Right: {units.human(expected, unit)}.")
    for wrong, hint in (slips or {}).items():
        if _close(value, wrong, tolerance):
            return Verdict(False, f"Not yet. {hint}")
    for ratio, hint in SLIPS.items() if general else ():
        if _close(value, ratio * expected, min(tolerance, 0.02)):
            return Verdict(False, f"Not yet: this is {hint}")
    return Verdict(False, f"Not yet: {units.human(value, unit)} is too {'large' if value > expected else 'small'}.")


def _close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * abs(b)
