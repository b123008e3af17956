"""The profile of a program that never ran: the compiler's timeline, in the tables of a measured one. No JAX."""

from __future__ import annotations

from collections.abc import Iterator

from scaling_lib.xla.profile.intervals import union, within
from scaling_lib.xla.profile.operations import Op
from scaling_lib.xla.profile.tables import Profile
from scaling_lib.xla.timeline import Span, Timeline

_KINDS = {"hbm": "copy", "host": "host", "ici": "collective", "dcn": "collective"}


def from_timeline(timeline: Timeline) -> Profile:
    """A timeline of `xla.timeline` as the profile of its one device, number 0.

    All passes of loops are there, each at its time. A transfer counts in the time by operation as long as the compute units
    wait for it: at its end, or at its start where they work at its end, as with one that a loop hands to its next pass.
    Estimates of a compiler, like the timeline: no measurement.
    """
    runs = list(_runs(timeline))
    computing = union((at_s, at_s + span.duration_s) for span, at_s in runs if span.resource == "compute")
    work, transfers = [], []
    for span, start_s in runs:
        if span.resource == "compute":
            kind = "matmul" if span.kind == "matmul" else "fusion"
            work.append(Op(span.name, kind, start_s, span.duration_s, span.duration_s, 0, op_name=span.op_name))
            continue
        kind, wait_s = _KINDS[span.resource], span.exposed_s
        transfers.append(Op(span.name, kind, start_s, span.duration_s, 0.0, 0, op_name=span.op_name))
        if wait_s:
            at_s = start_s + span.duration_s - wait_s
            if within(computing, at_s, at_s + wait_s) > within(computing, start_s, start_s + wait_s):
                at_s = start_s
            work.append(Op(span.name, kind, at_s, wait_s, wait_s, 0, op_name=span.op_name))
    ops, in_flight = (tuple(sorted(some, key=lambda op: op.start_s)) for some in (work, transfers))
    return Profile(ops, in_flight, (), timeline.total_s, f"estimated: {timeline.how}")


def _runs(timeline: Timeline, inside: str = "", later_s: float = 0) -> Iterator[tuple[Span, float]]:
    """Every run of every span below a loop, and when it starts."""
    for span in timeline.spans:
        if span.loop == inside:
            yield span, span.start_s + later_s
    for loop in timeline.loops:
        if loop.loop == inside:
            for i in range(loop.passes):
                yield from _runs(timeline, loop.name, later_s + i * loop.pass_s)
