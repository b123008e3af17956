"""A load to serve within limits of latency, and fleets played under it by the simulator. Needs simpy and NumPy.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference import Layout
from scaling_lib.search import fleet as fleets
from scaling_lib.search.fleet import Fleet
from scaling_lib.serving import Figure, Report, Workload, simulate_serving
from scaling_lib.serving.workload import Drawn
from scaling_lib.training.money import bill
from scaling_lib.transformer import Transformer

RULES = ("weights", "quantization", "kv", "kv_scale", "activations", "math")
"""What all entries of a contest share: the dtypes. How the model is split is free."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked of all entries; arguments as of `serving_contest.contest`."""

    model: Transformer
    slices: tuple[Slice, ...]
    workload: Workload = field(repr=False)
    ttft_s: float
    tpot_s: float
    base: Layout

    @cached_property
    def drawn(self) -> Drawn:
        """The requests."""
        return self.workload.draw()

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all requests that come in a second."""
        return self.rate_per_s * float(self.drawn.output.mean())

    @property
    def rate_per_s(self) -> float:
        """Requests that come in a second."""
        rate = self.workload.arrivals.rate_per_s
        assert rate is not None  # as the contest has checked
        return rate

    def usd_per_million(self, fleet: Fleet) -> float:
        """Dollars of a fleet's chips for a million new tokens of this load, whether they work or wait."""
        return float(bill(fleet.place.chip, chips=fleet.chips, tokens=1e6, tokens_per_s=self.tokens_per_s).usd)

    def play(self, fleet: Fleet) -> Trial:
        """A fleet under this load.

        Raises:
            ValueError: for a layout that cannot run, dtypes against the rules, and a slice that is not in the contest.
        """
        for name in RULES:
            if (given := getattr(fleet.layout, name)) != (rule := getattr(self.base, name)):
                raise ValueError(f"{name}={given!r} is against the rules of this contest; give {name}={rule!r}")
        if fleet.place not in self.slices:
            raise ValueError(f"slice='{fleet.place}' is not in this contest; give one of {', '.join(map(str, self.slices))}")
        prompt, output = self.drawn.prompt, self.drawn.output
        how: dict[str, Any] = {"fleet": fleet, "usd_per_million": self.usd_per_million(fleet)}
        found = fleets.engine(fleet, self.model, prompt=int(prompt.max()), output=int(output.max()))
        if isinstance(found, str):
            return Trial(**how, report=None, why=(f"does not fit: {found}",))
        each, tokens = float((prompt + output).mean()), found.kv_tokens or 0
        room = int(tokens / each)
        if fleet.batch > room:
            why = (
                f"does not fit: batch={fleet.batch} conversations of {each:,.0f} tokens, their mean, and a cache with room for "
                f"{tokens:,} tokens; give batch={room}"
            )
            return Trial(**how, report=None, why=(why,), room=room)
        report = simulate_serving(self.workload, found, ttft_slo_s=self.ttft_s, tpot_slo_s=self.tpot_s)
        return Trial(**how, report=report, why=tuple(_misses(report, fleet)), room=room)


@dataclass(frozen=True, kw_only=True, repr=False)
class Trial:
    """A fleet that was played.

    Args:
        fleet: the servers.
        usd_per_million: dollars of its chips for a million new tokens of the load.
        report: of the simulation; None for a fleet that does not fit.
        why: why it does not do what was asked, and by how much; empty where it does.
        room: conversations of the mean length for which one server's cache has room; None where the longest one has none.
    """

    fleet: Fleet
    usd_per_million: float
    report: Report | None
    why: tuple[str, ...]
    room: int | None = None

    @property
    def meets(self) -> bool:
        """Whether it does what was asked."""
        return not self.why

    @property
    def worst(self) -> float:
        """The larger of both p99 over its limit; infinite where there is no steady state."""
        if self.report is None or self.report.overloaded:
            return math.inf
        return max(p99.value / limit for _, p99, limit in limits(self.report))

    def __str__(self) -> str:
        lines = [f"{self.fleet}: {usd(self)} a million tokens"]
        if self.report is not None and not self.report.overloaded:
            times = [f"{name} p99 {p99.shown('s')} of {units.human(limit, 's')}" for name, p99, limit in limits(self.report)]
            lines.append("; ".join([*times, f"load {self.report.load:.2f}"]))
        return "\n".join([*lines, *self.why])

    __repr__ = __str__


def usd(trial: Trial) -> str:
    """Dollars a million tokens, as text."""
    return f"{trial.usd_per_million:.3g} USD"


def limits(report: Report) -> Iterator[tuple[str, Figure, float]]:
    """What is limited: in words, its 99th percentile, and the limit in seconds."""
    yield "first token", report.ttft_s.p99, report.slo["ttft_s"]
    if report.tpot_s is not None:
        yield "each token after it", report.tpot_s.p99, report.slo["tpot_s"]


def _misses(report: Report, fleet: Fleet) -> Iterator[str]:
    if report.overloaded and report.load is not None:
        longest = max(report.use, key=lambda use: use.waiting)
        name = "prefill_servers" if longest.name == "prefill" else "servers"
        enough = int(report.load * getattr(fleet, name)) + 1
        yield f"overloaded: {report.load:.2f} times as many requests come as it can serve; it takes {name}={enough} at least"
        return
    for name, p99, limit in limits(report):
        if p99.value > limit:
            yield f"too slow: {name} takes {p99.value / limit:.2f} times the {units.human(limit, 's')} that was asked"
