"""Options of the form name=size, of which several may follow one another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand


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


class WithPairs(TyperCommand):
    """A command that takes `--size I=8192 J=4096` as `--size I=8192 --size J=4096`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, with the option repeated before each pair."""
        return super().parse_args(ctx, _spread(args))


def _spread(args: Sequence[str]) -> list[str]:
    spread: list[str] = []
    option = ""
    for at, argument in enumerate(args):
        if argument in ("--size", "--sizes", "--mesh"):
            option = argument
        elif at and option and args[at - 1] != option:
            if re.match(r"\s*\w+=", argument):
                spread.append(option)
            else:
                option = ""
        spread.append(argument)
    return spread
