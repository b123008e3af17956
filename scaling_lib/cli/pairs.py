"""Options of the form name=size."""

from __future__ import annotations

from collections.abc import Sequence


def pairs(option: str, given: Sequence[str]) -> dict[str, int]:
    """`["X=4,Y=2"]` or `["X=4", "Y=2"]` as a dictionary."""
    pairs: dict[str, int] = {}
    for part in " ".join(given).replace(",", " ").split():
        name, _, value = part.partition("=")
        if not name.isidentifier() or not value.isdecimal():
            raise ValueError(f"{option} {part} does not read as name=size; write it like X=4")
        if name in pairs:
            raise ValueError(f"{option} gives {name} twice")
        pairs[name] = int(value)
    return pairs
