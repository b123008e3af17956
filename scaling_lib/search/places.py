"""All placements of many sets of degrees, as arrays: what `training.wires` says of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling_lib.hardware import Slice
from scaling_lib.search.space import Ints, divisors
from scaling_lib.training.wires import AXES, GROUPS, Place, Placement, Wires, physical, twins, wires_over


class Places:
    """Placements of sets of degrees, and what a byte costs over each.

    Args:
        slice: where.
        degrees: one set a row, columns as in `AXES`.
        groups: those of `GROUPS` that are needed.
        ici, hop_s, start_s: as of `training.wires.wires`.
    """

    def __init__(self, slice: Slice, degrees: Ints, groups: tuple[str, ...], *, ici: str, hop_s: float, start_s: float) -> None:
        self.places = physical(slice)
        laid = _Laid(slice, self.places)
        every = [laid.of(row) for row in degrees]
        self.starts = np.cumsum([0, *map(len, every)])
        self.parts = np.concatenate(every) if every else np.ones((0, len(self.places), len(AXES)), dtype=np.int64)
        self._tables = {group: self._table(slice, group, ici, hop_s, start_s) for group in groups}

    def count(self, row: int) -> int:
        """Placements of a set of degrees."""
        return int(self.starts[row + 1] - self.starts[row])

    def wires(self, batch: list[int]) -> dict[str, Wires]:
        """What a byte costs over each placement of some sets of degrees: arrays of five axes, sets first, placements last.

        Where a set has fewer than another, its last one is repeated. What is the same everywhere is a plain number.
        """
        first, last = self.starts[batch], self.starts[[i + 1 for i in batch]] - 1
        at = np.minimum(first[:, None] + np.arange(int((last - first).max()) + 1), last[:, None])[:, None, None, None, :]
        return {group: _taken(table, index[at]) for group, (table, index) in self._tables.items()}

    def placement(self, row: int, number: int) -> Placement:
        """One of the placements of a set of degrees, as a plan has it."""
        part = self.parts[self.starts[row] + number]
        of: dict[str, Mapping[Place, int]] = {}
        for a, axis in enumerate(AXES):
            if found := {place: int(part[p, a]) for p, place in enumerate(self.places) if part[p, a] > 1}:
                of[axis] = found
        return of

    def _table(self, slice: Slice, group: str, ici: str, hop_s: float, start_s: float) -> tuple[dict[str, Any], Ints]:
        members = [AXES.index(axis) for axis in GROUPS[group]]
        extent = self.parts[:, :, members].prod(axis=2)
        stride = np.where(extent > 1, self.parts[:, :, : members[0]].prod(axis=2), 1)
        code = np.zeros(len(self.parts), dtype=np.int64)
        for p, size in enumerate(self.places.values()):
            code = (code * (size + 1) + extent[:, p]) * (size + 1) + stride[:, p]
        _, first, index = np.unique(code, return_index=True, return_inverse=True)
        found = []
        for k in first:
            key = tuple((place, int(extent[k, p]), int(stride[k, p])) for p, place in enumerate(self.places))
            found.append(wires_over(slice, key, ici, hop_s, start_s))
        return {f.name: _column([getattr(one, f.name) for one in found]) for f in fields(Wires)}, index


class _Laid:
    """Placements of one set of degrees at a time, as an array of parts: placement, physical axis, mesh axis."""

    def __init__(self, slice: Slice, places: Mapping[Place, int]) -> None:
        self.sizes = list(places.values())
        self.rows = [_factorings(size) for size in self.sizes]
        names = list(places)
        self.twins = [(names.index(a), names.index(b)) for a, b in twins(slice)]

    def of(self, degrees: Ints) -> Ints:
        parts, left = np.ones((1, 0, len(AXES)), dtype=np.int64), degrees[None, :]
        for rows in self.rows[:-1]:
            rows = rows[(degrees % rows == 0).all(axis=1)]
            i, j = np.nonzero((left[:, None, :] % rows[None, :, :] == 0).all(axis=2))
            parts = np.concatenate([parts[i], rows[j][:, None, :]], axis=1)
            left = left[i] // rows[j]
        parts = np.concatenate([parts, left[:, None, :]], axis=1)
        for a, b in self.twins:
            parts = parts[self._code(parts[:, a], self.sizes[a]) >= self._code(parts[:, b], self.sizes[b])]
        return parts

    @staticmethod
    def _code(rows: Ints, size: int) -> Ints:
        code = np.zeros(len(rows), dtype=np.int64)
        for column in rows.T:
            code = code * (size + 1) + column
        return code


def _factorings(size: int) -> Ints:
    """Every way to cut a physical axis into a part for each mesh axis, one a row."""
    rows: list[tuple[int, ...]] = [()]
    for _ in AXES[:-1]:
        rows = [(*row, d) for row in rows for d in divisors(size // int(np.prod(row, dtype=np.int64)))]
    return np.array([(*row, size // int(np.prod(row, dtype=np.int64))) for row in rows], dtype=np.int64)


def _column(values: list[Any]) -> Any:
    """An array of the values; one value where they are all the same; tuples become a tuple of columns."""
    if values and isinstance(values[0], tuple):
        return tuple(_column(list(column)) for column in zip(*values, strict=True))
    return values[0] if values and all(value == values[0] for value in values) else np.array(values)


def _taken(table: Mapping[str, Any], index: npt.NDArray[Any]) -> Wires:
    def take(column: Any) -> Any:
        if isinstance(column, tuple):
            return tuple(map(take, column))
        return column[index] if isinstance(column, np.ndarray) else column

    return Wires(**{name: take(column) for name, column in table.items()})
