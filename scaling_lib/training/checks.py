"""Checks of what a caller gives, at the public face: numbers are refused where they make no sense, arrays pass as they are."""

from __future__ import annotations

from scaling_lib import units
from scaling_lib.training.either import Number


def has_array(*values: Number) -> bool:
    """Whether any of the values is an array with axes, whose entries are the caller's to check."""
    return any(getattr(value, "shape", ()) for value in values)


def positive(**values: Number) -> None:
    """Refuse a number that is not above zero.

    Raises:
        ValueError: names it.
    """
    for name, value in values.items():
        if not has_array(value) and units.number(name, value) <= 0:
            raise ValueError(f"{name}={value!r} must be positive")
