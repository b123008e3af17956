"""Times from a start to an end, in seconds: joined, shared, added up. No JAX."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


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


def within(intervals: Sequence[Interval], start: float, end: float) -> float:
    """Seconds between a start and an end that joined intervals cover."""
    first, last = bisect.bisect_right(intervals, (start, math.inf)) - 1, bisect.bisect_left(intervals, (end,))
    return length(intersection(intervals[max(first, 0) : last], [(start, end)]))


def length(intervals: Iterable[Interval]) -> float:
    """Seconds of all intervals."""
    return sum(end - start for start, end in intervals)
