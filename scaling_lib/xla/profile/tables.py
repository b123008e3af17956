"""A profile: its tables by operation, by kind, gaps, and overlap. No JAX."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.xla.profile import kinds
from scaling_lib.xla.profile.intervals import Interval, intersection, length, union, within
from scaling_lib.xla.profile.operations import Op
from scaling_lib.xla.timeline import Span

_RESOURCES = {"collective": "ici", "copy": "hbm", "host": "host"}


@dataclass(frozen=True)
class Share:
    """A line of a table, over all devices.

    Args:
        name: of the operation, kind or scope.
        kind: what kind of operation, as in `Op`; the name again in a table by kind, "scope" in one by scope.
        runs: how often it ran, on all devices together.
        seconds: its own time on all devices, what runs inside it left out.
        fraction: that time ÷ `total_s` of the profile.
    """

    name: str
    kind: str
    runs: int
    seconds: float
    fraction: float


@dataclass(frozen=True)
class Gap:
    """A time in which a device ran nothing.

    Args:
        device: number of the device.
        start_s: seconds from the first event of the profile.
        duration_s: how long it lasts, in seconds.
        before: the operation that ended last before it.
        after: the operation that ends it.
        host: what the host did in its middle, where the trace tells, else "".
    """

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
        """Seconds of that window in which no operation runs: the sum of its gaps.

        Raises:
            ValueError: for a device that ran nothing.
        """
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
        between = [(start, end) for (_, start), (end, _) in itertools.pairwise(busy) if end - start >= at_least_s]
        found = []
        for (start, end), doing in zip(between, self._doing([(start + end) / 2 for start, end in between]), strict=True):
            before = ends[bisect.bisect_right(end_times, start) - 1].name
            found.append(Gap(device, start, end - start, before, work[bisect.bisect_left(start_times, end)].name, doing))
        return tuple(sorted(found, key=lambda gap: -gap.duration_s))

    def communication_s(self, device: int) -> float:
        """Seconds in which a device has a collective under way, however many.

        Raises:
            ValueError: for a device that ran nothing.
        """
        return length(self._communication(device))

    def hidden_s(self, device: int) -> float:
        """Seconds in which a device computes while a collective is under way: the overlap.

        Raises:
            ValueError: for a device that ran nothing.
        """
        return length(intersection(self._communication(device), self._computing(device)))

    def exposed_s(self, device: int) -> float:
        """Seconds in which a collective is under way and the device computes nothing.

        Raises:
            ValueError: for a device that ran nothing.
        """
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
            hidden = within(computing, op.start_s, op.end_s) if resource != "compute" else op.duration_s
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

    def _doing(self, times: Iterable[float]) -> Iterator[str]:
        """The innermost event of the host at each of some times, which rise."""
        coming, open_ = sorted(self.host, key=lambda op: op.start_s, reverse=True), list[Op]()
        for at_s in times:
            while coming and coming[-1].start_s <= at_s:
                open_.append(coming.pop())
            open_ = [op for op in open_ if op.end_s >= at_s]
            yield min(open_, key=lambda op: op.duration_s).name if open_ else ""

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
