"""Times to move one array along each path of a chip, as bars on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import WIDTH, Drawing, Label, decades, decades_around, figure, share

_LEFT, _RIGHT, _TOP, _ROW, _FOOT = 28, 372, 8, 38, 44


@dataclass(frozen=True)
class Path:
    """A way that data take.

    Args:
        name: in words.
        resource: that the way uses, by its name in the palette.
        seconds: the array takes; None where no source states a bandwidth.
    """

    name: str
    resource: str
    seconds: float | None

    @property
    def said(self) -> str:
        """The time as people write it."""
        return "no sourced figure" if self.seconds is None else units.human(self.seconds, "s")


def capacity(size_bytes: float) -> str:
    """The size of a memory, as vendors write it: "64 MiB", "15.8 GiB"."""
    return units.human(size_bytes, "GiB") if size_bytes >= units.GIB else f"{units.human(size_bytes / units.MIB)} MiB"


def bars(paths: Sequence[Path], description: str) -> Drawing:
    """A bar for each path, in the color of its resource; one without a sourced figure says so in place of its bar."""
    known = [path.seconds for path in paths if path.seconds is not None]
    low, high = decades_around(min(known) / 2, max(known))
    bottom = _TOP + _ROW * len(paths)
    parts = []
    for value in decades(low, high):
        x = _LEFT + share(value, (low, high)) * (_RIGHT - _LEFT)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="currentColor" opacity="0.2"/>')
        parts.append(str(Label(units.human(value, "s"), x, bottom + 16, "middle")))
    for row, path in enumerate(paths):
        y = _TOP + row * _ROW + 14
        parts.append(str(Label(path.name, _LEFT + 2, y)))
        parts.append(str(Label(path.said, _RIGHT, y, "end")))
        if path.seconds is not None:
            wide = share(path.seconds, (low, high)) * (_RIGHT - _LEFT)
            box = f'x="{_LEFT}" y="{y + 5}" width="{wide:.1f}" height="13"'
            parts.append(f'<rect class="{path.resource}" {box} fill="{COLORS[path.resource]}"/>')
    parts.append(str(Label("time to move the array, logarithmic", WIDTH / 2, bottom + 36, "middle")))
    return Drawing(figure(parts, description, bottom + _FOOT), description)
