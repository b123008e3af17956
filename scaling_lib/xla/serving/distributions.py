"""Whether a sample is drawn from a distribution: the chi-square test, and the distance between the two.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

LEAST_EXPECTED = 5.0
"""Outcomes that are expected less often count together: the test is sound for larger counts alone."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A sample beside a distribution.

    Args:
        samples: how many.
        statistic: chi-square, the sum of (counted − expected)² / expected; infinite where something impossible was counted.
        freedom: outcomes that can vary, after rare ones were put together.
        p_value: probability that a sample of the distribution is as far from it. Below 0.001, it is of another.
        distance: total variation, half the sum of `|counted/samples − probability|`.
    """

    samples: int
    statistic: float
    freedom: int
    p_value: float
    distance: float


def fit(counts: Sequence[int] | np.ndarray, probabilities: Sequence[float] | np.ndarray) -> Fit:
    """Tests counts of outcomes against their probabilities; both may have any shape, the same one.

    Raises:
        ValueError: for shapes that differ, probabilities that do not sum to 1, counts that are none or too few to tell.
    """
    seen, p = np.asarray(counts, float), np.asarray(probabilities, float)
    if seen.shape != p.shape:
        raise ValueError(f"counts have the shape {seen.shape}, probabilities {p.shape}; give one count for each probability")
    if p.min() < 0 or abs(p.sum() - 1) > 1e-3:
        raise ValueError(f"probabilities sum to {p.sum():g} and the least is {p.min():g}; they must be 0 or more and sum to 1")
    if seen.min() < 0:
        raise ValueError(f"counts has {seen.min():g}; counts are 0 or more")
    samples = seen.sum()
    seen, p = seen.ravel(), p.ravel() / p.sum()
    rare = samples * p < LEAST_EXPECTED
    cells = [(a, samples * b) for a, b in zip(seen[~rare], p[~rare], strict=True)]
    together = float(seen[rare].sum()), float(samples * p[rare].sum())
    if together[1] < LEAST_EXPECTED and cells:
        least = cells.pop(min(range(len(cells)), key=lambda i: cells[i][1]))
        together = together[0] + least[0], together[1] + least[1]
    cells.append(together)
    if len(cells) < 2:
        raise ValueError(f"counts has {samples:g} samples, too few to tell; at least 2 outcomes must be expected 5 times")
    impossible = bool(seen[p == 0].any())
    statistic = float("inf") if impossible else sum((a - b) ** 2 / b for a, b in cells)
    freedom = len(cells) - 1
    return Fit(
        samples=int(samples),
        statistic=float(statistic),
        freedom=freedom,
        p_value=0.0 if impossible else float(jax.scipy.special.gammaincc(freedom / 2, statistic / 2)),
        distance=float(np.abs(seen / samples - p).sum() / 2),
    )
