"""Layouts and servers as text, and as rows of a table."""

from __future__ import annotations

from typing import Any

from scaling_lib import units
from scaling_lib.inference import ServingEstimate
from scaling_lib.inference.layout import AXES

WAYS = (*AXES, "expert")
NUMBERS = ("chips", "batch", "first token", "a token", "tokens/s a chip", "USD/M tokens")


def ways(option: str, given: str) -> dict[str, int]:
    """`tensor=8,kv_batch=2` as arguments of `inference.Layout`.

    Raises:
        ValueError: for what is no number of ways of a layout.
    """
    found: dict[str, int] = {}
    for part in given.replace(",", " ").split():
        name, _, value = part.partition("=")
        name = name.replace("-", "_")
        if not value:
            raise ValueError(f"{option} {part} does not read as name=value; write it like tensor=8,kv_batch=2")
        if name not in WAYS:
            raise ValueError(f"{option} names {name!r}, which no layout has; {units.near(name, WAYS)}")
        if name in found:
            raise ValueError(f"{option} gives {name} twice")
        if not value.isdecimal() or len(value) > 15:
            raise ValueError(f"{option} {name}={value} is no whole number; write it like {name}=4")
        found[name] = int(value)
    if not found:
        raise ValueError(f"{option} is empty; write it like tensor=8,kv_batch=2")
    return found


def row(one: ServingEstimate) -> dict[str, str]:
    """One server of a table."""
    layout: Any = one.decode.layout
    split = " · ".join(f"{name} {getattr(layout, name)}" for name in WAYS if getattr(layout, name) > 1)
    dollars = one.usd_per_million
    return {
        "slice": str(one.decode.slice),
        "chips": f"{one.decode.slice.chips:,}",
        "splits": split or "one device",
        "batch": f"{one.batch:,}",
        "first token": units.human(one.ttft_s, "s"),
        "a token": units.human(one.tpot_s, "s"),
        "tokens/s a chip": units.human(one.tokens_per_s_per_chip),
        "USD/M tokens": "-" if dollars is None else f"{dollars:,.2f}",
    }
