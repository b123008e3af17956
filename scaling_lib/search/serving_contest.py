"""A contest of servers: who meets limits of latency at a given load for the least dollars a million tokens.

Every entry is played by the simulator. So is what it is held against: fleets from `serving_pareto`, the cheapest first, up to the
first that meets the limits. Needs simpy and NumPy. Played in labs/08-serving-llama.md.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.inference import Layout, ServingEstimate, prefill
from scaling_lib.search.contest import MEDALS
from scaling_lib.search.fleet import Fleet
from scaling_lib.search.pareto import serving_pareto
from scaling_lib.search.trial import Task, Trial, usd
from scaling_lib.serving import Workload
from scaling_lib.transformer import Transformer
from scaling_lib.transformer import model as model_of

CHUNKS = (None, 512)
"""How the search reads prompts beside decoding: at once, and in chunks of so many tokens."""
MOST_TRIED = 400
"""Fleets after which the search gives up: a minute or two."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A task, and the cheapest fleet that the search knows for it; see `contest`.

    Args:
        task: what is asked.
        best: the cheapest of all that were tried that does it.
        tried: fleets that were simulated.
    """

    task: Task
    best: Trial
    tried: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Score:
    """How a fleet does in a contest; prints in words.

    Args:
        trial: what the simulation found.
        ratio: times the dollars of the best.
        change: the one change that helps most: that makes it cheaper, or, where limits are missed, that meets them, or comes
            nearest. None where none helps.
        changed: the trial after that change.
    """

    trial: Trial
    ratio: float
    change: str | None = None
    changed: Trial | None = None

    @property
    def meets(self) -> bool:
        """Whether the fleet does what was asked."""
        return self.trial.meets

    @property
    def medal(self) -> str | None:
        """A name in `contest.MEDALS`; None for dearer fleets, and for those that miss a limit."""
        return next((medal for medal, most in MEDALS.items() if self.meets and self.ratio <= most * (1 + 1e-9)), None)

    @property
    def ok(self) -> bool:
        """Whether it wins gold, which labs ask for."""
        return self.medal == "gold"

    def __str__(self) -> str:
        first, *others = str(self.trial).splitlines()
        lines = [f"{first}, {self.ratio:.2f} times the best, {self.medal or 'no medal'}", *others]
        if self.changed is not None:
            misses = "" if self.changed.meets else ", and still misses a limit"
            lines.append(f"would help most: {self.change}, for {usd(self.changed)}{misses}")
        return "\n".join(lines)

    __repr__ = __str__


def contest(
    model: Transformer | str,
    slices: Iterable[Slice | str],
    workload: Workload,
    *,
    ttft_s: float,
    tpot_s: float,
    base: Layout = Layout(),  # noqa: B008  # frozen
) -> Contest:
    """Searches for the cheapest fleet that serves a load within limits of latency.

    Args:
        model: or its name in the catalog.
        slices: that a server may be.
        workload: requests, with a rate.
        ttft_s: seconds to the first token, waiting included, that 99 % of requests may take at most.
        tpot_s: seconds for each token after it, averaged over a request, likewise.
        base: dtypes of weights, cache and math, which all entries share. Its ways do not matter.

    Raises:
        ValueError: as `serving_pareto`; for a workload whose requests all come at once; and where nothing that was tried does
            it: says what comes nearest.

    NB: the search has layouts of the fronts of `serving_pareto` and batches a factor of two apart. A better fleet may exist:
    its ratio is then below 1.
    """
    model = model_of(model) if isinstance(model, str) else model
    places = tuple(slice_of(each) if isinstance(each, str) else each for each in slices)
    if not places:
        raise ValueError("slices is empty; give at least one")
    if workload.arrivals.rate_per_s is None:
        raise ValueError(f"workload={workload.arrivals} has no rate; give arrivals that are spread over time")
    for name, limit in {"ttft_s": ttft_s, "tpot_s": tpot_s}.items():
        if units.number(name, limit) <= 0:
            raise ValueError(f"{name}={limit!r} must be positive")
    task = Task(model=model, slices=places, workload=workload, ttft_s=ttft_s, tpot_s=tpot_s, base=base)
    nearest: Trial | None = None
    trials = itertools.islice(_cheapest_first(task), MOST_TRIED)
    for tried, trial in enumerate(trials, start=1):
        if trial.meets:
            return Contest(task=task, best=trial, tried=tried)
        nearest = min(nearest or trial, trial, key=lambda each: each.worst)
    none = f"ttft_s={ttft_s:g} and tpot_s={tpot_s:g} are more than {', '.join(map(str, places))} can do"
    if nearest is None:
        raise ValueError(f"{none}, even without a line of requests; allow more time, or larger slices")
    words = "; ".join((str(nearest.fleet), *nearest.why))
    raise ValueError(f"{none} for little money; allow more time, or larger slices. The nearest: {words}")


def score(fleet: Fleet, on: Contest) -> Score:
    """How a fleet does in a contest.

    Args:
        fleet: one that does not fit or misses a limit is scored too, and gets no medal.
        on: the contest.

    Raises:
        ValueError: as `Task.play`.
    """
    trial = on.task.play(fleet)
    ratio = trial.usd_per_million / on.best.usd_per_million
    others = [(words, on.task.play(other)) for words, other in _changes(trial)]
    better = [(words, after) for words, after in others if _rank(after) < _rank(trial)]
    if not better:
        return Score(trial=trial, ratio=ratio)
    words, after = min(better, key=lambda one: _rank(one[1]))
    return Score(trial=trial, ratio=ratio, change=words, changed=after)


def _rank(trial: Trial) -> tuple[bool, float]:
    return not trial.meets, trial.usd_per_million if trial.meets else trial.worst


def _changes(trial: Trial) -> Iterator[tuple[str, Fleet]]:
    """Fleets that differ in one thing; of one that does what was asked, only cheaper ones."""
    fleet = trial.fleet
    more = -1 if trial.meets else 1
    several: dict[str, list[Any]] = {}
    if trial.report is None:
        several["batch"] = [trial.room or fleet.batch]
    else:
        several["servers"] = [fleet.servers + more]
        if fleet.prefill_servers:
            several["prefill_servers"] = [fleet.prefill_servers + more]
        if not trial.meets:
            several["batch"] = [fleet.batch // 2, min(2 * fleet.batch, trial.room or fleet.batch)]
            several["chunk"] = list(CHUNKS) if fleet.engine == "continuous" else []
    for name, values in several.items():
        yield from ((f"{name}={value}", fleet.but(**{name: value})) for value in values if value not in (0, getattr(fleet, name)))


def _cheapest_first(task: Task) -> Iterator[Trial]:
    """Fleets played in order of their dollars, from the fewest servers that could do on; those that do not fit are not there."""
    queue: list[tuple[float, int, Fleet]] = []
    seen: set[Fleet] = set()

    def put(fleet: Fleet) -> None:
        if fleet not in seen:
            seen.add(fleet)
            heapq.heappush(queue, (task.usd_per_million(fleet), len(seen), fleet))

    for fleet in _fewest(task):
        put(fleet)
    while queue:
        _, _, fleet = heapq.heappop(queue)
        trial = task.play(fleet)
        if trial.report is not None:
            yield trial
            put(fleet.but(servers=fleet.servers + 1))
            if fleet.prefill_servers:
                put(fleet.but(prefill_servers=fleet.prefill_servers + 1))
        elif trial.room:
            put(fleet.but(batch=trial.room))


def _fewest(task: Task) -> Iterator[Fleet]:
    """Each slice, layout, batch and engine, with as many servers as an estimate says that the load takes at least."""
    drawn = task.drawn
    tail = int(np.quantile(drawn.prompt, 0.99))
    asked: dict[str, Any] = {
        "input": round(float(drawn.prompt.mean())),
        "output": round(float(drawn.output.mean())),
        "ttft_s": task.ttft_s,
        "base": task.base,
    }
    for place in task.slices:
        seen: set[tuple[Layout, int]] = set()
        for one in serving_pareto(task.model, place, **asked).front[::-1]:
            layout, octave = one.decode.layout, int(math.log2(one.batch))
            ways = layout.but(placement=None)
            if (ways, octave) in seen or one.decode.seconds > task.tpot_s:
                continue
            seen.add((ways, octave))
            if prefill(task.model, place, layout, prompt=tail).seconds > task.ttft_s:
                continue
            yield from _engines(task, one, place, ways)


def _engines(task: Task, one: ServingEstimate, place: Slice, layout: Layout) -> Iterator[Fleet]:
    least = math.ceil(task.rate_per_s / one.requests_per_s)
    for chunk in CHUNKS:
        yield Fleet(slice=place, layout=layout, batch=one.batch, servers=least, chunk=chunk)
    reading = math.ceil(task.rate_per_s * one.prefill.seconds)
    decoding = math.ceil(task.rate_per_s * one.output * one.decode.seconds / one.batch)
    yield Fleet(slice=place, layout=layout, batch=one.batch, servers=decoding, engine="disaggregated", prefill_servers=reading)
