"""A profile: operations in time, and its tables by operation, by kind, gaps, and overlap. No JAX."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaling_lib import units
from scaling_lib.xla.profile import kinds
from scaling_lib.xla.timeline import Span

Interval = tuple[float, float]
_RESOURCES = {"collective": "ici", "copy": "hbm", "host": "host"}


class Op(NamedTuple):
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


class Share(NamedTuple):
    """A line of a table: runs and seconds of an operation or a kind over all devices, and its part of the profile's time."""

    name: str
    kind: str
    runs: int
    seconds: float
    fraction: float


class Gap(NamedTuple):
    """A time in which a device ran nothing: between which operations, and what the host was doing, where the trace tells."""

    device: int
    start_s: float
    duration_s: float
    before: str
    after: str
    host: str


@dataclass(frozen=True)
class Profile:
    """Where the time of a run went.

    Args:
        ops: operations of all devices, by start. Those inside a loop or a call are there beside it.
        in_flight: transfers with a start and an end, from one to the other: other work runs meanwhile, so they add nothing to
            the time by operation.
        host: events of the host's threads.
        total_s: seconds in which threads of devices were at work: for each, the time covered by operations, added up.
            Measured by the edges of the outermost operations; the tables add up the innermost.
        how: "measured", or where estimates come from.
    """

    ops: tuple[Op, ...]
    in_flight: tuple[Op, ...]
    host: tuple[Op, ...]
    total_s: float
    how: str

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the devices that ran anything but loops and calls."""
        return tuple(sorted({op.device for op in self.ops if op.kind != "control"}))

    def by_op(self) -> tuple[Share, ...]:
        """Time by operation, longest first. It adds up to `total_s`: a loop counts only what is not in its operations."""
        return self._table((op.name, op.kind) for op in self.ops)

    def by_kind(self) -> tuple[Share, ...]:
        """Time by kind, longest first. It adds up to `total_s`."""
        return self._table((op.kind, op.kind) for op in self.ops)

    def by_scope(self, *scopes: str) -> tuple[Share, ...]:
        """Time by `jax.named_scope`, longest first. It adds up to `total_s`.

        Args:
            scopes: names of scopes. An operation counts in the innermost of them, forward, backward, or computed once more.

        Returns:
            A line a scope, and one named "" for all that stands in none of them.

        Raises:
            ValueError: for no scope, or one in which nothing ran.

        NB: where the compiler fuses work of several scopes, all of it counts in the one that the fusion's name comes from.
        """
        if not scopes:
            raise ValueError("scopes is empty; give names that the program passes to jax.named_scope")
        found = [_innermost(op.op_name, scopes) for op in self.ops]
        if missing := next((scope for scope in scopes if scope not in found), ""):
            raise ValueError(
                f"scope {missing!r} holds no operation of this profile; read it with the program's text, and give a name that "
                "the program passes to jax.named_scope"
            )
        return self._table((scope, "scope") for scope in found)

    def window_s(self, device: int) -> float:
        """Seconds from the first operation of a device to the end of its last.

        Raises:
            ValueError: for a device that ran nothing.
        """
        busy = self._busy(device)
        return busy[-1][1] - busy[0][0]

    def idle_s(self, device: int) -> float:
        """Seconds of that window in which no operation runs: the sum of its gaps."""
        return self.window_s(device) - length(self._busy(device))

    def gaps(self, device: int, *, at_least_s: float = 0) -> tuple[Gap, ...]:
        """When a device ran nothing between its first operation and its last, longest first. A loop alone is not work.

        Args:
            device: number of the device.
            at_least_s: leave shorter ones out.

        Raises:
            ValueError: for a device that ran nothing, or a time that is negative.
        """
        units.number("at_least_s", at_least_s, minimum=0)
        busy = self._busy(device)
        work = [op for op in self.ops if op.device == device and op.kind != "control"]
        ends = sorted(work, key=lambda op: op.end_s)
        end_times, start_times = [op.end_s for op in ends], [op.start_s for op in work]
        found = []
        for (_, start), (end, _) in itertools.pairwise(busy):
            if end - start >= at_least_s:
                before = ends[bisect.bisect_right(end_times, start) - 1].name
                after = work[bisect.bisect_left(start_times, end)].name
                found.append(Gap(device, start, end - start, before, after, self._host_at((start + end) / 2)))
        return tuple(sorted(found, key=lambda gap: -gap.duration_s))

    def communication_s(self, device: int) -> float:
        """Seconds in which a device has a collective under way, however many."""
        return length(self._communication(device))

    def hidden_s(self, device: int) -> float:
        """Seconds in which a device computes while a collective is under way: the overlap."""
        return length(intersection(self._communication(device), self._computing(device)))

    def exposed_s(self, device: int) -> float:
        """Seconds in which a collective is under way and the device computes nothing."""
        return self.communication_s(device) - self.hidden_s(device)

    def spans(self, device: int) -> tuple[Span, ...]:
        """Operations of a device as `show.timelines.timeline` draws them; loops and calls left out.

        Raises:
            ValueError: for a device that ran nothing.
        """
        first, computing = self._busy(device)[0][0], self._computing(device)
        flown = {name for op in self.in_flight for name in (op.name, op.name.replace("-start", "-done"))}
        shown = [op for op in self.ops if op.device == device and op.kind != "control" and op.name not in flown]
        shown += [op for op in self.in_flight if op.device == device]
        spans = []
        for op in sorted(shown, key=lambda op: op.start_s):
            resource = _RESOURCES.get(op.kind, "compute")
            hidden = length(intersection([(op.start_s, op.end_s)], computing)) if resource != "compute" else op.duration_s
            spans.append(Span(op.name, op.start_s - first, op.duration_s, resource, op.kind, exposed_s=op.duration_s - hidden))
        return tuple(spans)

    def _table(self, keys: Iterable[tuple[str, str]]) -> tuple[Share, ...]:
        sums: dict[tuple[str, str], list[float]] = {}
        for key, op in zip(keys, self.ops, strict=True):
            line = sums.setdefault(key, [0, 0])
            line[0] += 1
            line[1] += op.self_s
        lines = [Share(*key, int(runs), seconds, seconds / self.total_s) for key, (runs, seconds) in sums.items()]
        return tuple(sorted(lines, key=lambda line: (-line.seconds, line.name)))

    def _busy(self, device: int) -> list[Interval]:
        if device not in self.devices:
            raise ValueError(f"device={device!r} ran nothing in this profile; give one of {', '.join(map(str, self.devices))}")
        return union((op.start_s, op.end_s) for op in self.ops if op.device == device and op.kind != "control")

    def _computing(self, device: int) -> list[Interval]:
        return union((op.start_s, op.end_s) for op in self.ops if op.device == device and op.kind in kinds.COMPUTE)

    def _communication(self, device: int) -> list[Interval]:
        both = (*self.ops, *self.in_flight)
        self._busy(device)  # refuses a device that ran nothing
        return union((op.start_s, op.end_s) for op in both if op.device == device and op.kind == "collective")

    def _host_at(self, at_s: float) -> str:
        around = [op for op in self.host if op.start_s <= at_s <= op.end_s]
        return min(around, key=lambda op: op.duration_s).name if around else ""

    def __str__(self) -> str:
        ran = len(self.devices)
        lines = [f"{units.human(self.total_s, 's')} of work on {ran} device{'s' * (ran != 1)}, {self.how}"]
        rows = [(line.name, line.kind, line.runs, line.seconds, line.fraction) for line in self.by_op()[:12]]
        lines += [f"{name:<28} {kind:<10} {runs:>6} × {_ms(seconds)} {part:6.1%}" for name, kind, runs, seconds, part in rows]
        lines.append("by kind: " + ", ".join(f"{line.name} {line.fraction:.1%}" for line in self.by_kind()))
        for device in self.devices:
            lines.append(
                f"device {device}: idle {_ms(self.idle_s(device))} of {_ms(self.window_s(device))}; "
                f"collectives {_ms(self.communication_s(device))}, of which exposed {_ms(self.exposed_s(device))}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def _innermost(op_name: str, scopes: Sequence[str]) -> str:
    """Of scopes, the last in a path like "jit(f)/while/body/layer/tanh" or "transpose(jvp(layer))/mul"."""
    path = op_name.rpartition("/")[0]
    ends = {scope: [found.end() for found in re.finditer(rf"(?<![^/(]){re.escape(scope)}(?![^/)])", path)] for scope in scopes}
    return max((scope for scope in scopes if ends[scope]), key=lambda scope: ends[scope][-1], default="")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


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
    timed = [op._replace(self_s=max(own_s, 0.0)) for op, own_s in zip(ordered, own, strict=True)]
    return sorted(timed, key=lambda op: op.start_s)


def _inside(op: Op, outer: Op) -> bool:
    return (op.device, op.thread) == (outer.device, outer.thread) and op.start_s < outer.end_s


def covered(ops: Iterable[Op]) -> float:
    """Seconds that operations cover on each thread of each device, added up."""
    threads: dict[tuple[int, str], list[Interval]] = {}
    for op in ops:
        threads.setdefault((op.device, op.thread), []).append((op.start_s, op.end_s))
    return sum(length(union(intervals)) for intervals in threads.values())


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals that touch, joined; in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """What two lists of joined intervals share."""
    shared, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            shared.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


def length(intervals: Iterable[Interval]) -> float:
    """Seconds of all intervals."""
    return sum(end - start for start, end in intervals)
