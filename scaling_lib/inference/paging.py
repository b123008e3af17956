"""How much of a cache is used, where each sequence reserves its longest length, or blocks as it grows.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scaling_lib import units


@dataclass(frozen=True, kw_only=True)
class Room:
    """Tokens of a cache: those that are there, and those that are reserved."""

    used: int
    reserved: int

    @property
    def waste(self) -> float:
        """Part of the reserved room that is empty."""
        return 1 - self.used / self.reserved


def padded(lengths: Iterable[int], *, longest: int) -> Room:
    """Each sequence reserves the longest length that there can be.

    Raises:
        ValueError: for a sequence that is longer, and for none at all.
    """
    counts, longest = _counts(lengths), units.size("longest", longest)
    if max(counts) > longest:
        raise ValueError(f"a sequence of {max(counts)} tokens is beyond longest={longest}; give longest={max(counts)}")
    return Room(used=sum(counts), reserved=len(counts) * longest)


def paged(lengths: Iterable[int], *, block: int) -> Room:
    """Each sequence has as many blocks as it fills, the last one in part: (block - 1)/2 tokens are empty in the mean."""
    counts, block = _counts(lengths), units.size("block", block)
    return Room(used=sum(counts), reserved=sum(-(-n // block) * block for n in counts))


def mean_room(input: int, output: int, block: int) -> int:
    """Tokens that a sequence reserves in the mean of its life from `input` to `input + output` tokens, in blocks; rounded up."""
    lengths = range(input + 1, input + output + 1)
    first, last = lengths[0], lengths[-1]
    whole = block * (_blocks_up_to(last, block) - _blocks_up_to(first - 1, block))
    return -(-whole // len(lengths))


def _blocks_up_to(tokens: int, block: int) -> int:
    """Blocks of sequences of 1, 2, ... tokens, all added up."""
    full, rest = divmod(tokens, block)
    return block * full * (full + 1) // 2 + rest * (full + 1)


def _counts(lengths: Iterable[int]) -> list[int]:
    counts = [units.size("lengths", n) for n in lengths]
    if not counts:
        raise ValueError("lengths is empty; give the tokens of one sequence or more")
    return counts
