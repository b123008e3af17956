"""Schedules of small TPU programs, compiled once and written down, so that a page without JAX can show them.

Files: `schedules.csv` has a row a program, `schedule_operations.csv` a row an operation. `scaling_lib.xla.schedules` writes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from scaling_lib import units
from scaling_lib.catalog.rows import in_file

PROGRAMS, OPERATIONS = "schedules.csv", "schedule_operations.csv"
NS = 1e-9
"""Times are whole nanoseconds in the files."""
LANES = ("compute", "ici", "hbm")
"""Resources, as of `xla.timeline.Span`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One instruction of a device's program. Seconds are the compiler's and the catalog's estimates, never measured.

    Args:
        name: of the instruction.
        kind: "matmul", "vector", "copy", or that of a collective.
        resource: one of `LANES`: the compute units, the links between chips, or copies in memory.
        start_s: from the start of the program.
        duration_s: how long it takes.
        exposed_s: how long the compute units wait for it, at its end; the rest is hidden behind their work.
        flops: of its matmuls.
        bytes: that it sends, copies, or reads and writes.
        op_name: the operation of the source program, where the compiler says.
    """

    name: str
    kind: str
    resource: str
    start_s: float
    duration_s: float
    exposed_s: float
    flops: int
    bytes: int
    op_name: str

    @property
    def end_s(self) -> float:
        """When it is done."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """What one device of a program does when.

    Args:
        name: unique.
        title: what people call it.
        words: what it computes.
        slice: what it was compiled for.
        total_s: length of the program.
        source: the compiler and its version.
        date: when it was compiled.
        operations: in the order of their starts.
    """

    name: str
    title: str
    words: str
    slice: str
    total_s: float
    source: str
    date: str
    operations: tuple[Operation, ...]

    def within(self, from_s: float, to_s: float) -> dict[str, float]:
        """Seconds of a window by what they go to: the first four, which share it among them, and what is hidden.

        "matmul" and "vector" is work, "ici" and "hbm" is waiting for transfers; "hidden ici" and "hidden hbm" are transfers
        behind work, which count twice where two go on at a time. The window ends where the program does.

        Raises:
            ValueError: for a window that has no length, or begins after the program.
        """
        from_s, to_s = units.number("from_s", from_s, minimum=0), min(units.number("to_s", to_s), self.total_s)
        if from_s >= to_s:
            raise ValueError(f"from_s={from_s!r} is no start of a window: it ends, as the program does, at {to_s!r} s at most")
        found = dict.fromkeys(("matmul", "vector", "ici", "hbm", "hidden ici", "hidden hbm"), 0.0)
        for one in self.operations:
            waits_s = one.end_s - one.exposed_s
            if one.resource == "compute":
                found["matmul" if one.kind == "matmul" else "vector"] += _shared(one.start_s, one.end_s, from_s, to_s)
            else:
                found[one.resource] += _shared(waits_s, one.end_s, from_s, to_s)
                found[f"hidden {one.resource}"] += _shared(one.start_s, waits_s, from_s, to_s)
        return found


@cache
def schedules() -> Mapping[str, Schedule]:
    """All recorded schedules by name."""
    found: dict[str, list[Operation]] = {}
    for row in in_file(OPERATIONS):
        start_s, duration_s, exposed_s = (int(row[f"{name}_ns"]) * NS for name in ("start", "duration", "exposed"))
        one = Operation(
            name=row["name"],
            kind=row["kind"],
            resource=row["resource"],
            start_s=start_s,
            duration_s=duration_s,
            exposed_s=exposed_s,
            flops=int(row["flops"]),
            bytes=int(row["bytes"]),
            op_name=row["op_name"],
        )
        found.setdefault(row["program"], []).append(one)
    programs = {}
    for row in in_file(PROGRAMS):
        total_s = int(row.pop("total_ns")) * NS
        programs[row["name"]] = Schedule(**row, total_s=total_s, operations=tuple(found[row["name"]]))
    return MappingProxyType(programs)


def _shared(start: float, end: float, from_s: float, to_s: float) -> float:
    return max(0.0, min(end, to_s) - max(start, from_s))
