"""What a simulation of a serving system found, in words and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scaling_lib import units
from scaling_lib.serving.engines import Engine
from scaling_lib.serving.lengths import Floats, Tokens
from scaling_lib.serving.statistics import Figure, Spread
from scaling_lib.serving.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What happened to each request, in order of arrival; times in seconds from the start, all arrays [requests].

    Args:
        prompt: tokens.
        output: tokens.
        arrival_s: when it came.
        start_s: when its prefill began.
        first_s: when its first token was there.
        decode_s: when it joined a batch that decodes.
        finish_s: when its last token was there.
    """

    prompt: Tokens
    output: Tokens
    arrival_s: Floats
    start_s: Floats
    first_s: Floats
    decode_s: Floats
    finish_s: Floats


@dataclass(frozen=True)
class Use:
    """How busy the servers of one kind were, over the whole run.

    Args:
        name: "server", "prefill" or "decode".
        servers: how many.
        utilization: the share of their time in which they worked, full batch or not.
        waiting: requests that waited for them, averaged over time.
        most_waiting: the longest that this line got.
    """

    name: str
    servers: int
    utilization: float
    waiting: float
    most_waiting: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """A simulated run. Times are of the requests after the warm-up; rates and use are of the whole run, to the last token.

    Args:
        workload: what was asked.
        engine: what served it.
        slo: limits by what they limit: "ttft_s", "tpot_s".
        requests: what happened to each of them.
        wait_s: from arrival to the start of its prefill.
        ttft_s: from arrival to its first token.
        tpot_s: from its first token to its last, over the others: its average; None if all have one token.
        gap_s: from each token to the next, over all tokens of the run: what a reader sees stall. Steps of a batch that does not
            change count with their average.
        latency_s: from arrival to its last token.
        capacity_per_s: requests a second that the engine finishes while more of the same wait than it can take.
        load: arrivals a second over that; None where all requests come at once.
        use: of every kind of server.
        inside: requests in the system, averaged over time.
        batch: sequences that a decode step serves, on average over steps; 0 without any.
        span_s: from the first arrival to the last token.
        attained: share of requests within every limit of `slo`.
    """

    workload: Workload
    engine: Engine
    slo: Mapping[str, float]
    requests: Requests = field(repr=False)
    wait_s: Spread
    ttft_s: Spread
    tpot_s: Spread | None
    gap_s: Spread | None
    latency_s: Spread
    capacity_per_s: float
    load: float | None
    use: tuple[Use, ...]
    inside: float
    batch: float
    span_s: float
    attained: Figure

    @property
    def overloaded(self) -> bool:
        """Whether requests come faster than they are served: then there is no steady state, and times grow with the run."""
        return self.load is not None and self.load >= 1

    @property
    def requests_per_s(self) -> float:
        """Requests finished a second."""
        return len(self.requests.output) / self.span_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers a second."""
        return float(self.requests.output.sum()) / self.span_s

    @property
    def goodput_per_s(self) -> float:
        """Requests finished a second within every limit."""
        return self.attained.value * self.requests_per_s

    def explain(self) -> str:
        """The run in words: whether it is steady, how long requests take, what they meet, and who is busy."""
        lines = [f"{self.workload}", f"{self.engine}", self._load()]
        lines += [
            f"{name}: {spread.shown()}"
            for name, spread in {
                "first token": self.ttft_s,
                "of it waiting": self.wait_s,
                "a token after that": self.tpot_s,
                "between two tokens": self.gap_s,
                "whole answer": self.latency_s,
            }.items()
            if spread is not None
        ]
        lines.append(
            f"{units.human(self.requests_per_s)} requests/s and {units.human(self.tokens_per_s)} tokens/s over "
            f"{units.human(self.span_s, 's')}; {units.human(self.inside)} requests inside, {units.human(self.batch)} a step"
        )
        if self.slo:
            limits = " and ".join(f"{name.removesuffix('_s').upper()} ≤ {units.human(at, 's')}" for name, at in self.slo.items())
            share = f"{self.attained.value:.1%}" + ("" if self.attained.half is None else f" ± {self.attained.half:.1%}")
            lines.append(f"{limits}: {share} of requests, a goodput of {units.human(self.goodput_per_s)} requests/s")
        lines += [
            f"{use.name} ({use.servers:,}): busy {use.utilization:.1%} of the time; {units.human(use.waiting)} requests wait, "
            f"{use.most_waiting:,} at most"
            for use in self.use
        ]
        return "\n".join(lines)

    def _load(self) -> str:
        capacity = f"{units.human(self.capacity_per_s)} requests/s"
        if self.load is None:
            return f"all come at once; the engine can finish {capacity}"
        if self.overloaded:
            return (
                f"OVERLOADED: load {self.load:.2f} of {capacity}. There is no steady state: the line grows as long as requests "
                f"come, and times below are of this run's length. Send fewer than {capacity}, add servers, or raise the batch"
            )
        return f"load {self.load:.2f} of {capacity}"

    def to_json(self) -> dict[str, Any]:
        """Everything but single requests as JSON can hold it; times in seconds."""
        spreads = ("wait_s", "ttft_s", "tpot_s", "gap_s", "latency_s")
        rates = ("requests_per_s", "tokens_per_s", "goodput_per_s", "capacity_per_s")
        plain = ("overloaded", "load", *rates, "inside", "batch", "span_s")
        return {
            "workload": str(self.workload),
            "engine": str(self.engine),
            **{name: getattr(self, name) for name in plain},
            "slo": dict(self.slo),
            "attained": vars(self.attained),
            **{name: spread and spread.to_json() for name in spreads for spread in [getattr(self, name)]},
            "use": [vars(use) for use in self.use],
        }

    def __str__(self) -> str:
        return self.explain()
