"""Answer checks for exercises: is the reader's number right, and if not, which classic slip does it look like?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

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
class Question:
    """What an unanswered check asks, for a page that judges without Python, and for a grader.

    `unit` is the answer's own, with no prefix. `verdicts` are tried in order: an answer within the relative `tolerance` of
    `value` gets `words`; the first is right. `options` are the choices, where the answer is one of them and no number.
    """

    unit: str
    verdicts: tuple[tuple[float | str, float, str], ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What the check says of an answer: `ok`, `words` for the reader, and the `question`, while there is no answer."""

    ok: bool
    words: str
    question: Question | None = None

    def __repr__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, object]]:
        """The words; in the metadata of the output the question, from which the book's page makes a form."""
        return {"text/plain": self.words}, {"question": asdict(self.question)} if self.question else {}


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
    verdicts = [(expected, tolerance, f"Right: {units.human(expected, unit)}.")]
    verdicts += [(wrong, tolerance, f"Not yet. {hint}") for wrong, hint in (slips or {}).items()]
    if general:
        verdicts += [(ratio * expected, min(tolerance, 0.02), f"Not yet: this is {hint}") for ratio, hint in SLIPS.items()]
    question = Question(unit, tuple((float(value), within, words) for value, within, words in verdicts))
    return judge(question, given)


def said(words: str) -> Verdict:
    """The verdict that a lab's own check gives in words: right where they begin with "Right"."""
    return Verdict(words.startswith("Right"), words)


def choice(given: object, right: str, wrong: Mapping[str, str]) -> Verdict:
    """Compare a reader's choice with the right one.

    Args:
        given: the reader's choice, a word; `...` while there is none yet.
        right: the right choice, computed by the library in the exercise's own cell.
        wrong: each other choice -> hint for who takes it.

    Returns:
        A verdict that shows as one sentence.

    Raises:
        ValueError: `wrong` is empty or has the right choice, too.
    """
    if not wrong or right in wrong:
        raise ValueError(f"wrong={list(wrong)} must be the other choices beside {right!r}")
    verdicts = [(right, 0.0, f"Right: {right}."), *((other, 0.0, f"Not yet. {hint}") for other, hint in wrong.items())]
    question = Question("", tuple(verdicts), tuple(sorted([right, *wrong])))
    return judge(question, given)


def judge(question: Question, given: object) -> Verdict:
    """What a check says of an answer, `...` while there is none, from its question alone."""
    options = ", ".join(map(repr, question.options))
    if given is ...:
        what = f"one of {options}" if options else "your number"
        return Verdict(False, f"Not answered yet: replace the ... with {what}.", question)
    if question.options:
        for number, (option, _, words) in enumerate(question.verdicts):
            if isinstance(given, str) and given == option:
                return Verdict(number == 0, words)
        return Verdict(False, f"{given!r} is none of the choices: {options}.")
    try:
        value = units.number("answer", given)
    except ValueError as error:
        return Verdict(False, f"Not a number to check: {error}.")
    for number, (near, within, words) in enumerate(question.verdicts):
        if abs(value - float(near)) <= within * abs(float(near)):
            return Verdict(number == 0, words)
    size = "large" if value > float(question.verdicts[0][0]) else "small"
    return Verdict(False, f"Not yet: {units.human(value, question.unit)} is too {size}.")
