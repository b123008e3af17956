"""How long requests took, with what chance leaves open: percentiles and means with confidence intervals by batch means.

Requests that follow each other wait for the same reasons, so their spread says too little about the error of their mean. Batch
means cut the run into a few long batches, whose means hardly depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling_lib import units
from scaling_lib.serving.lengths import Floats, Tokens

BATCHES = 20
STUDENT_T = 2.093
"""97.5 % quantile of Student's t with 19 degrees of freedom. Source: NIST e-Handbook of Statistical Methods, 1.3.6.7.2."""
FEWEST = 10 * BATCHES
"""Requests of the shortest run that gets intervals."""


@dataclass(frozen=True)
class Figure:
    """A figure of a run, and half the width of its 95 % confidence interval; None where the run is too short or has no end."""

    value: float
    half: float | None = None

    @property
    def standard_error(self) -> float | None:
        """Of the value."""
        return None if self.half is None else self.half / STUDENT_T

    def shown(self, unit: str) -> str:
        """The figure as people write it: "31.2 ms ± 0.4 ms"."""
        return units.human(self.value, unit) + ("" if self.half is None else f" ± {units.human(self.half, unit, digits=2)}")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a time varies over requests: its mean, and what 50, 90 and 99 % of them do not exceed.

    NB: real services quote a p99 of a minute or a day; this one is of the whole run.
    """

    mean: Figure
    p50: Figure
    p90: Figure
    p99: Figure

    def shown(self) -> str:
        """All four, as times."""
        return ", ".join(f"{name} {figure.shown('s')}" for name, figure in vars(self).items())

    def to_json(self) -> dict[str, Any]:
        """Each as value and half, in seconds."""
        return {name: vars(figure) for name, figure in vars(self).items()}


def spread(seconds: Floats, *, steady: bool) -> Spread:
    """The spread of one time a request, in order of arrival, of at least one.

    Args:
        seconds: [requests].
        steady: whether the run has a steady state, of which there can be an interval.
    """
    return Spread(
        mean=figure(seconds, np.mean, steady=steady),
        p50=figure(seconds, lambda some: np.quantile(some, 0.5), steady=steady),
        p90=figure(seconds, lambda some: np.quantile(some, 0.9), steady=steady),
        p99=figure(seconds, lambda some: np.quantile(some, 0.99), steady=steady),
    )


def figure(values: Floats, of: Callable[[Floats], Any], *, steady: bool) -> Figure:
    """A figure `of` all values, with an interval from that of 20 batches of them."""
    whole = float(of(values))
    if not steady or len(values) < FEWEST:
        return Figure(whole)
    each = np.array([of(some) for some in np.array_split(values, BATCHES)])
    return Figure(whole, STUDENT_T * float(each.std(ddof=1)) / math.sqrt(BATCHES))


def weighted(values: Floats, weights: Tokens) -> Spread | None:
    """The spread of values that stand for several each, without intervals; None for no values."""
    total = weights.sum()
    if not total:
        return None
    order = np.argsort(values)
    upto = np.cumsum(weights[order])
    p50, p90, p99 = values[order][np.searchsorted(upto, np.array([0.5, 0.9, 0.99]) * total)]
    mean = float(values @ weights) / float(total)
    return Spread(mean=Figure(mean), p50=Figure(float(p50)), p90=Figure(float(p90)), p99=Figure(float(p99)))
