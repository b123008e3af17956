"""The profile of a program that never ran: the compiler's timeline, in the tables of a measured one. No JAX."""

from __future__ import annotations

from collections.abc import Iterator

from scaling_lib.xla.profile.tables import Op, Profile, nested
from scaling_lib.xla.timeline import Span, Timeline

_KINDS = {"matmul": "matmul", "vector": "fusion", "copy": "copy"}


def from_timeline(timeline: Timeline) -> Profile:
    """A timeline of `xla.timeline` as the profile of its one device, number 0.

    All passes of loops are there, each at its time. A transfer counts in the time by operation as long as the compute units
    wait for it, at its end. Estimates of a compiler, like the timeline: no measurement.
    """
    work, transfers = [], []
    for span, start_s in _runs(timeline):
        kind = "host" if span.resource == "host" else _KINDS.get(span.kind, "collective")
        wait_s = span.duration_s if span.resource == "compute" else span.exposed_s
        end_s = start_s + span.duration_s
        if wait_s:
            work.append(Op(span.name, kind, end_s - wait_s, wait_s, wait_s, 0))
        if span.resource != "compute":
            transfers.append(Op(span.name, kind, start_s, span.duration_s, 0.0, 0))
    transfers.sort(key=lambda op: op.start_s)
    return Profile(tuple(nested(work)), tuple(transfers), (), timeline.total_s, f"estimated: {timeline.how}")


def _runs(timeline: Timeline, inside: str = "", later_s: float = 0) -> Iterator[tuple[Span, float]]:
    """Every run of every span below a loop, and when it starts."""
    for span in timeline.spans:
        if span.loop == inside:
            yield span, span.start_s + later_s
    for loop in timeline.loops:
        if loop.loop == inside:
            for i in range(loop.passes):
                yield from _runs(timeline, loop.name, later_s + i * loop.pass_s)
