"""Whole numbers as people write them: 8192, 8Ki, 4M, 4e6, 1_000."""

from __future__ import annotations

import re
from fractions import Fraction

from scaling_lib import units

PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGT", start=1)
}
CONVENTION = "M is 10^6, Mi 2^20"


def quantity(option: str, given: str) -> int:
    """The number that was written; k, M, B, T count in thousands and Ki, Mi, Gi, Ti in 1024s.

    Raises:
        ValueError: for what is no whole number of at least 1; names the option.
    """
    text = given.strip().replace("_", "").replace(",", "")
    match = re.fullmatch(r"(-?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,2})?) ?(|[kKMGBT]|[kKMGT]i)", text, flags=re.ASCII)
    if not match:
        raise ValueError(f"{option}={given!r} does not read as a number; write it like 8192, 8Ki, 4M or 4e6 ({CONVENTION})")
    value = Fraction(match[1]) * PREFIXES[match[2].replace("ki", "Ki")]
    if value.denominator != 1:
        raise ValueError(f"{option}={text} is {float(value):g}, which is no whole number")
    if not 1 <= value <= 10**18:
        raise ValueError(f"{option}={text} is out of range; give a whole number of at least 1 and at most 1e18")
    return int(value)


def number(option: str, given: str) -> float:
    """A number that need not be whole; the library says what it may be.

    Raises:
        ValueError: for what is no number; names the option.
    """
    try:
        return units.number(option, float(given))
    except ValueError:
        raise ValueError(f"{option}={given!r} is not a number; write it like 0.6") from None


def size(option: str, given: str) -> int:
    """The same for the size of an array's dimension."""
    return units.size(option, quantity(option, given))
