"""Runs of operations in time, and how much of it is each one's own. No JAX."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scaling_lib.xla.profile.intervals import Interval, length, union


@dataclass(frozen=True)
class Op:
    """One run of an operation on a device, or one event of the host.

    Args:
        name: the HLO instruction's name.
        kind: one of "matmul", "fusion", "copy", "collective", "host", "other", "control" (a loop or call around others).
        start_s: seconds from the first event of the profile.
        duration_s: seconds from its start to its end, with the operations inside it.
        self_s: seconds of it in which no operation inside it runs.
        device: number of the device; -1 for the host.
        thread: the thread or queue that ran it.
        module: the program it belongs to.
        op_name: the operation of the source program that it serves, with the scopes around it, where a program tells.
    """

    name: str
    kind: str
    start_s: float
    duration_s: float
    self_s: float
    device: int
    thread: str = ""
    module: str = ""
    op_name: str = ""

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.start_s + self.duration_s


def nested(ops: Iterable[Op]) -> list[Op]:
    """The same operations in order, with `self_s` set: on a thread, what starts inside another is part of it."""
    ordered = sorted(ops, key=lambda op: (op.device, op.thread, op.start_s, -op.duration_s))
    own = [op.duration_s for op in ordered]
    around: list[int] = []
    for i, op in enumerate(ordered):
        while around and not _inside(op, ordered[around[-1]]):
            around.pop()
        taken = op.start_s
        for j in reversed(around):  # clocks are not perfect: what outlasts the one around it takes from the next
            end = min(op.end_s, ordered[j].end_s)
            own[j] -= max(end - taken, 0.0)
            taken = max(taken, end)
        around.append(i)
    timed = [replace(op, self_s=max(own_s, 0.0)) for op, own_s in zip(ordered, own, strict=True)]
    return sorted(timed, key=lambda op: op.start_s)


def _inside(op: Op, outer: Op) -> bool:
    return (op.device, op.thread) == (outer.device, outer.thread) and op.start_s < outer.end_s


def covered(ops: Iterable[Op]) -> float:
    """Seconds that operations cover on each thread of each device, added up."""
    threads: dict[tuple[int, str], list[Interval]] = {}
    for op in ops:
        threads.setdefault((op.device, op.thread), []).append((op.start_s, op.end_s))
    return sum(length(union(intervals)) for intervals in threads.values())
