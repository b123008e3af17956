"""Speculative decoding: a small model guesses, the large one checks all guesses in one step, and no token changes.

A guess x that the draft made with probability q(x) is kept with probability min(1, p(x)/q(x)), where p is the target's. The first
that is refused is drawn anew from what is left, max(0, p - q) made to sum to 1. What comes out then has exactly the target's
distribution. Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference.estimate import USUAL, decode_step
from scaling_lib.inference.layout import Layout
from scaling_lib.inference.speed import Speed
from scaling_lib.inference.step import Step
from scaling_lib.training.either import Number
from scaling_lib.transformer import Transformer, parameters

MOST_GUESSES = 32


def acceptance(target: Sequence[float], draft: Sequence[float]) -> float:
    """The probability that a guess is kept, sum of min(p, q): 1 where the two agree, 0 where they share no token.

    Args:
        target: probability of each token, p.
        draft: the same of the draft, q.

    Raises:
        ValueError: for lists that are no distributions over the same tokens.
    """
    p, q = _distributions(target, draft)
    return sum(map(min, p, q))


def residual(target: Sequence[float], draft: Sequence[float]) -> list[float]:
    """Probabilities from which a token is drawn where a guess was refused: max(0, p - q), made to sum to 1.

    Arguments as of `acceptance`. Where the two agree no guess is refused, and the target's own are returned.
    """
    p, q = _distributions(target, draft)
    left = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    total = sum(left)
    return [each / total for each in left] if total else p


def expected_tokens(acceptance: Number, guesses: Number) -> Number:
    """Tokens that a step of the target gives in the mean, its own included: 1 + a + ... + a^k = (1 - a^(k+1))/(1 - a).

    Args:
        acceptance: probability a that a guess is kept, each as likely and independent of the others; below 1 for arrays.
        guesses: k of the draft for each step.

    Raises:
        ValueError: for a number that is no probability, and guesses below 0.
    """
    if not getattr(acceptance, "shape", ()):
        if not 0 <= units.number("acceptance", acceptance) <= 1:
            raise ValueError(f"acceptance={acceptance!r} is a probability, 0 to 1")
        if acceptance == 1:
            return guesses + 1.0
    if not getattr(guesses, "shape", ()):
        units.number("guesses", guesses, minimum=0)
    return (1 - acceptance ** (guesses + 1)) / (1 - acceptance)


def speedup(acceptance: Number, guesses: Number, *, draft: Number, check: Number = 1.0) -> Number:
    """Tokens in the time of a plain one, expected tokens over what they cost; below 1 speculation is slower.

    Args:
        acceptance: as of `expected_tokens`.
        guesses: k.
        draft: seconds of a step of the draft, over those of a plain step of the target.
        check: the same of a step of the target over the guesses and one more: 1 while reading weights and cache binds.
    """
    return expected_tokens(acceptance, guesses) / (guesses * draft + check)


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Speculative decoding against plain decoding.

    Args:
        plain: a step of the target that makes one token.
        check: a step of the target over the guesses and one more.
        draft: a step of the draft, of which `guesses` come before.
        guesses: k.
        acceptance: a.
    """

    plain: Step
    check: Step
    draft: Step
    guesses: int
    acceptance: float

    @property
    def tokens(self) -> float:
        """Expected tokens of each sequence for each check."""
        return float(expected_tokens(self.acceptance, self.guesses))

    @property
    def seconds(self) -> float:
        """Of the guesses and their check."""
        return self.guesses * self.draft.seconds + self.check.seconds

    @property
    def tpot_s(self) -> float:
        """Mean seconds for a token."""
        return self.seconds / self.tokens

    @property
    def speedup(self) -> float:
        """Tokens in the time of a plain one; below 1 it is slower."""
        plain_s = self.plain.seconds
        draft, check = self.draft.seconds / plain_s, self.check.seconds / plain_s
        return float(speedup(self.acceptance, self.guesses, draft=draft, check=check))

    @property
    def fits(self) -> bool:
        """Whether the weights and caches of both fit."""
        return float(self.check.memory.total + self.draft.memory.total) <= self.check.usable_bytes


def speculate(
    model: Transformer | str,
    draft: Transformer | str,
    slice: Slice | str,
    layout: Layout,
    batch: int,
    *,
    context: int,
    acceptance: float,
    guesses: int | None = None,
    draft_layout: Layout | None = None,
    speed: Speed = USUAL,
) -> Speculation:
    """Decode steps with guesses of a draft that runs on the same devices.

    Args:
        model: the target, or its name in the catalog.
        draft: the smaller model, or its name.
        slice: or its name.
        layout: of the target.
        batch: sequences.
        context: tokens of each.
        acceptance: probability that a guess is kept.
        guesses: for each check; the number that is fastest if not given.
        draft_layout: of the draft; that of the target if not given.
        speed: what chips and wires reach, and what hides.

    Raises:
        ValueError: as of `decode_step` for both; for a draft that is no smaller than its target, or has another vocabulary.
    """
    of_draft = layout if draft_layout is None else draft_layout
    plain = decode_step(model, slice, layout, batch, context=context, speed=speed)
    small = decode_step(draft, plain.slice, of_draft, batch, context=context, speed=speed)
    sizes = parameters(plain.model).total, parameters(small.model).total
    if sizes[1] >= sizes[0]:
        have, larger = (units.human(size) for size in sizes)
        raise ValueError(f"draft={small.model} has {larger} parameters, and its target {plain.model} {have}; give a smaller one")
    if plain.model.vocab_size != small.model.vocab_size:
        theirs, ours = small.model.vocab_size, plain.model.vocab_size
        raise ValueError(f"draft={small.model} has {theirs} tokens, and {plain.model} {ours}; give one with the same vocabulary")
    tokens = [units.size("guesses", guesses)] if guesses is not None else range(1, min(MOST_GUESSES, context - 1) + 1)

    def tried(k: int) -> Speculation:
        check = decode_step(plain.model, plain.slice, layout, batch, context=context, new=k + 1, speed=speed)
        return Speculation(plain=plain, check=check, draft=small, guesses=k, acceptance=acceptance)

    return min(map(tried, tokens), key=lambda one: one.tpot_s)


def _distributions(target: Sequence[float], draft: Sequence[float]) -> tuple[list[float], list[float]]:
    found = []
    for name, given in (("target", target), ("draft", draft)):
        values = [units.number(name, value, minimum=0) for value in given]
        if abs(sum(values) - 1) > 1e-6:
            raise ValueError(f"{name} sums to {sum(values):g}; probabilities sum to 1")
        found.append(values)
    if len(found[0]) != len(found[1]):
        raise ValueError(f"target has {len(found[0])} tokens and draft {len(found[1])}; both are over the same vocabulary")
    return found[0], found[1]
