"""Arithmetic that takes a number or an array of numbers, without importing an array library.

Operators work on both as they are. What needs a function takes it from the array's own namespace, as the array API standard
names it; a comparison is 0 or 1 on both. Why: docs/adr/0012.
"""

from __future__ import annotations

from typing import Any

Number = Any
"""A float, or an array of floats, one for each of many plans."""


def maximum(first: Number, *others: Number) -> Number:
    """The largest, element by element."""
    for other in others:
        space = _namespace(first, other)
        first = max(first, other) if space is None else space.maximum(first, other)
    return first


def ceil_div(a: Number, b: Number) -> Number:
    """The quotient, rounded up."""
    return -(-a // b)


def _namespace(*values: Number) -> Any:
    return next((value.__array_namespace__() for value in values if hasattr(value, "__array_namespace__")), None)
