"""What a serving system is asked to do: when requests arrive, and how long their prompts and outputs are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from scaling_lib import units
from scaling_lib.serving.lengths import Empirical, Floats, Geometric, Lengths, Lognormal, Tokens, Uniform, in_order

MOST_REQUESTS = 1_000_000
"""Requests of the largest workload; a million take some hundred megabytes."""


@dataclass(frozen=True)
class Poisson:
    """Requests of many independent users: the time from one to the next is exponential.

    Raises:
        ValueError: for a rate that is not positive.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        _rate(self.rate_per_s)

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """When so many requests arrive, in seconds from the start."""
        return np.cumsum(-np.log1p(-rng.random(count))) / self.rate_per_s

    def __str__(self) -> str:
        return f"{units.human(self.rate_per_s)} requests/s at random (Poisson)"


@dataclass(frozen=True)
class Regular:
    """Requests at fixed distances, the first at 0.

    Raises:
        ValueError: for a rate that is not positive.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        _rate(self.rate_per_s)

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """When so many requests arrive, in seconds from the start."""
        return np.arange(count) / self.rate_per_s

    def __str__(self) -> str:
        return f"{units.human(self.rate_per_s)} requests/s at fixed distances"


@dataclass(frozen=True)
class Trace:
    """Requests at given times, in order; several may come at once.

    Raises:
        ValueError: for no times, a negative one, or times out of order.
    """

    times_s: Sequence[float] = field(repr=False)

    def __post_init__(self) -> None:
        times_s = tuple(units.number(f"times_s[{at}]", time_s, minimum=0) for at, time_s in enumerate(self.times_s))
        if not times_s:
            raise ValueError("times_s is empty; give at least one arrival")
        for at, (before, after) in enumerate(itertools.pairwise(times_s)):
            if after < before:
                raise ValueError(f"times_s[{at + 1}]={after} comes after {before}; sort the arrivals, and lengths with them")
        object.__setattr__(self, "times_s", times_s)

    @property
    def rate_per_s(self) -> float | None:
        """Arrivals a second from the first to the last; None if they all come at once."""
        span_s = self.times_s[-1] - self.times_s[0]
        return (len(self.times_s) - 1) / span_s if span_s else None

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """The times."""
        return np.asarray(self.times_s, np.float64)

    def __str__(self) -> str:
        return "a trace of arrivals"


Arrivals: TypeAlias = Poisson | Regular | Trace


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests for a model: arrivals, prompts and outputs, each drawn from its own stream of random numbers.

    So that two workloads that differ in one of the three, such as the rate, share the draws of the others.

    Args:
        arrivals: `Poisson(rate_per_s)`, `Regular(rate_per_s)` or `Trace(times_s)`.
        prompt: tokens of a prompt: a number for all, a sequence with one a request, or a distribution.
        output: tokens of an answer, likewise. The first comes from the prefill, so 1 needs no decode step.
        requests: how many; those of the trace, of a sequence, or else 10,000 if not given.
        seed: of the random numbers; the same seed makes the same requests.

    Raises:
        ValueError: for other arrivals, lengths that are none, a sequence without one length a request, and too many requests.
    """

    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    requests: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.arrivals, Arrivals):
            raise ValueError(
                f"arrivals={self.arrivals!r} are none; give Poisson(rate_per_s), Regular(rate_per_s) or Trace(times_s)"
            )
        counts = {"arrivals": len(self.arrivals.times_s)} if isinstance(self.arrivals, Trace) else {}
        for name in ("prompt", "output"):
            object.__setattr__(self, name, lengths := _lengths(name, getattr(self, name)))
            if isinstance(lengths, tuple):
                counts[name] = len(lengths)
        if self.requests is None:
            object.__setattr__(self, "requests", next(iter(counts.values()), 10_000))
        requests = units.size("requests", self.requests)
        if requests > MOST_REQUESTS:
            raise ValueError(f"requests={requests:,} are too many to play; give at most {MOST_REQUESTS:,}")
        for name, count in counts.items():
            if count != requests:
                raise ValueError(f"{name} has {count:,} entries for {requests:,} requests; give one a request")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed={self.seed!r} is none; give a whole number of at least 0")

    def draw(self) -> Drawn:
        """The requests themselves."""
        count = units.size("requests", self.requests)
        streams = [np.random.default_rng([self.seed, stream]) for stream in range(3)]
        return Drawn(
            arrival_s=self.arrivals.draw(streams[0], count),
            prompt=_tokens(self.prompt, streams[1], count),
            output=_tokens(self.output, streams[2], count),
        )

    def __str__(self) -> str:
        prompt, output = (_words(lengths) for lengths in (self.prompt, self.output))
        return (
            f"{self.requests:,} requests, {self.arrivals}; prompts: {prompt} tokens; outputs: {output} tokens; seed {self.seed}"
        )


@dataclass(frozen=True)
class Drawn:
    """Requests in order of arrival: when each comes, and its tokens; all arrays are [requests]."""

    arrival_s: Floats
    prompt: Tokens
    output: Tokens


def _rate(rate_per_s: float) -> None:
    if units.number("rate_per_s", rate_per_s) <= 0:
        raise ValueError(f"rate_per_s={rate_per_s!r} must be positive; give the requests of a second, such as 0.5 for one in two")


def _lengths(name: str, lengths: Lengths) -> Lengths:
    if isinstance(lengths, Uniform | Geometric | Lognormal | Empirical):
        return lengths
    if isinstance(lengths, Sequence | np.ndarray) and not isinstance(lengths, str | bytes):
        return in_order(name, lengths)
    return units.size(name, lengths)


def _tokens(lengths: Lengths, rng: np.random.Generator, count: int) -> Tokens:
    if isinstance(lengths, int):
        return np.full(count, lengths, np.int64)
    if isinstance(lengths, Sequence):
        return np.asarray(lengths, np.int64)
    return lengths.draw(rng, count)


def _words(lengths: Lengths) -> str:
    if isinstance(lengths, int):
        return f"{lengths:,}"
    return f"given, {sum(lengths) / len(lengths):,.0f} on average" if isinstance(lengths, Sequence) else str(lengths)
