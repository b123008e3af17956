"""How long prompts and outputs are: distributions of numbers of tokens.

A whole number stands for "all the same", a sequence of them for "these, in this order". Every draw is made of uniform random
numbers, so that it depends on the seed alone and not on how a release of NumPy makes other distributions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from scaling_lib import units

Tokens: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Uniform:
    """Every number of tokens from `low` to `high`, both included, equally often.

    Raises:
        ValueError: for ends that are no sizes or out of order.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if units.size("low", self.low) > units.size("high", self.high):
            raise ValueError(f"low={self.low} is above high={self.high}; swap them")

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:
        """So many numbers of tokens."""
        return self.low + (rng.random(count) * (self.high - self.low + 1)).astype(np.int64)

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class Geometric:
    """1, 2, 3 … tokens, each with the same chance of being the last: the memoryless length, with a spread as large as its mean.

    Args:
        mean: tokens, at least 1, before `most` cuts any.
        most: longer ones are cut to this, as a server cuts them.

    Raises:
        ValueError: for a mean below 1, or a `most` that is no size.
    """

    mean: float
    most: int | None = None

    def __post_init__(self) -> None:
        units.number("mean", self.mean, minimum=1)
        _most(self.most)

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:
        """So many numbers of tokens."""
        uniform = rng.random(count)
        if self.mean == 1:
            return np.ones(count, np.int64)
        return _whole(1 + np.floor(np.log1p(-uniform) / math.log1p(-1 / self.mean)), self.most)

    def __str__(self) -> str:
        return f"geometric, mean {self.mean:,g}" + _cut(self.most)


@dataclass(frozen=True)
class Lognormal:
    """Lengths whose logarithm is normal, rounded to 1 or more: many short ones and a few that are very long.

    Args:
        median: tokens; the mean is larger, median · exp(sigma²/2).
        sigma: standard deviation of the natural logarithm; 0 makes all the same.
        most: longer ones are cut to this, as a server cuts them.

    Raises:
        ValueError: for a median below 1, a negative sigma, or a `most` that is no size.
    """

    median: float
    sigma: float
    most: int | None = None

    def __post_init__(self) -> None:
        units.number("median", self.median, minimum=1)
        units.number("sigma", self.sigma, minimum=0)
        if self.sigma > 5:  # one length in six is then beyond 150 medians, one in 40 beyond 22,000
            raise ValueError(f"sigma={self.sigma} is of the logarithm; lengths of texts have 0.5 to 2, give at most 5")
        _most(self.most)

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:
        """So many numbers of tokens."""
        radius, angle = rng.random(count), rng.random(count)
        normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * math.pi * angle)  # Box and Muller 1958
        return _whole(np.maximum(1, np.rint(self.median * np.exp(self.sigma * normal))), self.most)

    def __str__(self) -> str:
        return f"lognormal, median {self.median:,g}, sigma {self.sigma:g}" + _cut(self.most)


@dataclass(frozen=True)
class Empirical:
    """Lengths seen elsewhere, each as likely as it is frequent among `values`.

    Raises:
        ValueError: for no values, or values that are no sizes.
    """

    values: Sequence[int] = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", in_order("values", self.values))
        if not self.values:
            raise ValueError("values is empty; give at least one length")

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:
        """So many numbers of tokens."""
        return np.asarray(self.values, np.int64)[(rng.random(count) * len(self.values)).astype(np.int64)]

    def __str__(self) -> str:
        return f"as {len(self.values):,} lengths of mean {units.human(sum(self.values) / len(self.values))}"


Lengths: TypeAlias = int | Sequence[int] | Uniform | Geometric | Lognormal | Empirical


def in_order(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """A sequence of lengths, each checked."""
    return tuple(units.size(f"{name}[{at}]", value) for at, value in enumerate(values))


def _most(most: int | None) -> None:
    if most is not None:
        units.size("most", most)


def _whole(lengths: Floats, most: int | None) -> Tokens:
    return np.minimum(lengths, units.MAX_SIZE if most is None else most).astype(np.int64)


def _cut(most: int | None) -> str:
    return "" if most is None else f", at most {most:,}"
