"""Serving simulated: a workload played on an engine, request by request."""

from __future__ import annotations

import math

import numpy as np

from scaling_lib import units
from scaling_lib.serving.engines import Disaggregated, Engine
from scaling_lib.serving.lengths import Tokens
from scaling_lib.serving.play import Play, Pool
from scaling_lib.serving.report import Report, Requests, Use
from scaling_lib.serving.statistics import figure, spread, weighted
from scaling_lib.serving.workload import Drawn, Workload

_SATURATED = 10_000
"""Requests with which the capacity of an engine is measured, where the workload has as many."""
_FEWEST = 400


def simulate_serving(
    workload: Workload,
    engine: Engine,
    *,
    ttft_slo_s: float | None = None,
    tpot_slo_s: float | None = None,
    warm_up: float = 0.1,
) -> Report:
    """Play a workload on an engine: when every request waits, gets its first token and its last.

    The same workload and engine give the same report. Every server takes requests in the order in which they come. A second,
    shorter run with all requests at the start measures what the engine can do at most, to tell whether this load is too much.

    Args:
        workload: requests.
        engine: `Static`, `Continuous` or `Disaggregated`.
        ttft_slo_s: limit of the time to the first token, for the goodput.
        tpot_slo_s: limit of the time per output token after that, averaged over each request.
        warm_up: share of the requests, from the first, whose times do not count: they found an empty system. 0 for a whole trace.

    Raises:
        ValueError: for limits that are not positive, a `warm_up` that leaves nothing, a request that never has room in the cache,
            and step times that are negative, infinite, NaN or all 0.

    Derived in chapters/07-inference.md. Confidence intervals: Law 2015, Simulation Modeling and Analysis, section 9.5.3.
    NB: near a load of 1 a line takes very long to settle, and intervals of a short run are too narrow.
    """
    if not isinstance(workload, Workload):
        raise ValueError(f"workload={workload!r} is none; give Workload(arrivals=..., prompt=..., output=...)")
    if not isinstance(engine, Engine):
        raise ValueError(f"engine={engine!r} is none; give Static, Continuous or Disaggregated")
    for name, limit in {"ttft_slo_s": ttft_slo_s, "tpot_slo_s": tpot_slo_s}.items():
        if limit is not None and units.number(name, limit) <= 0:
            raise ValueError(f"{name}={limit!r} must be positive; leave it out for no limit")
    if not 0 <= units.number("warm_up", warm_up) < 1:
        raise ValueError(f"warm_up={warm_up!r} is no share; give at least 0 and below 1, such as 0.1")
    drawn = workload.draw()
    _has_room(engine, drawn)

    capacity = _capacity(engine, drawn)
    rate = workload.arrivals.rate_per_s
    load = None if rate is None else rate / capacity
    steady = load is None or load < 1
    play, pools = _played(engine, drawn)
    requests = _requests(play, drawn)
    began_s, ended_s = float(requests.arrival_s[0]), float(requests.finish_s.max())

    counted = slice(math.floor(warm_up * len(drawn.output)), None)
    wait_s, ttft_s, latency_s = (
        (until_s - requests.arrival_s)[counted] for until_s in (requests.start_s, requests.first_s, requests.finish_s)
    )
    others = drawn.output[counted] - 1
    tpot_s = (latency_s - ttft_s) / np.maximum(1, others)
    within = np.ones(len(others), bool)
    if ttft_slo_s is not None:
        within &= ttft_s <= ttft_slo_s
    if tpot_slo_s is not None:
        within &= tpot_s <= tpot_slo_s
    gaps = np.array(play.gaps)
    return Report(
        workload=workload,
        engine=engine,
        slo={name: limit for name, limit in {"ttft_s": ttft_slo_s, "tpot_s": tpot_slo_s}.items() if limit is not None},
        requests=requests,
        wait_s=spread(wait_s, steady=steady),
        ttft_s=spread(ttft_s, steady=steady),
        tpot_s=spread(tpot_s[others > 0], steady=steady) if others.any() else None,
        gap_s=weighted(np.array(play.gaps_s), gaps),
        latency_s=spread(latency_s, steady=steady),
        capacity_per_s=capacity,
        load=load,
        use=tuple(_use(pool, began_s, ended_s) for pool in pools),
        inside=play.inside.mean(began_s, ended_s),
        batch=float(gaps.sum()) / play.steps if play.steps else 0.0,
        span_s=ended_s - began_s,
        attained=figure(within.astype(float), np.mean, steady=steady),
    )


def _requests(play: Play, drawn: Drawn) -> Requests:
    return Requests(
        prompt=drawn.prompt,
        output=drawn.output,
        arrival_s=np.array(play.arrival_s),
        start_s=np.array(play.start_s),
        first_s=np.array(play.first_s),
        decode_s=np.array(play.decode_s),
        finish_s=np.array(play.finish_s),
    )


def _played(engine: Engine, drawn: Drawn) -> tuple[Play, tuple[Pool, ...]]:
    play = Play(drawn.prompt.tolist(), drawn.output.tolist())
    pools, submit = engine.start(play)
    play.run(drawn.arrival_s.tolist(), submit)
    return play, pools


def _capacity(engine: Engine, drawn: Drawn) -> float:
    """Requests a second while the system is full: the middle half of a run in which all requests wait from the start."""
    quarter = engine.rows * max(2, min(len(drawn.output), _SATURATED) // (4 * engine.rows), -(-_FEWEST // (4 * engine.rows)))
    again = [np.resize(tokens, 4 * quarter) for tokens in (drawn.prompt, drawn.output)]
    play, _ = _played(engine, Drawn(np.zeros(4 * quarter), *again))
    finish_s = np.sort(play.finish_s)
    took_s = float(finish_s[3 * quarter] - finish_s[quarter])
    if not took_s:
        raise ValueError("the engine's steps take no time; give it servers whose prefill_s and step_s do")
    return 2 * quarter / took_s


def _has_room(engine: Engine, drawn: Drawn) -> None:
    """Refuse requests that would wait forever."""
    if engine.kv_tokens is None:
        return
    needed: Tokens = drawn.prompt + drawn.output
    if isinstance(engine, Disaggregated):
        needed = needed * (drawn.output > 1)  # what has one token needs no cache where others decode
    if needed.max() > engine.kv_tokens:
        request = int(needed.argmax())
        raise ValueError(
            f"request {request} has {drawn.prompt[request]:,} + {drawn.output[request]:,} tokens, for which "
            f"kv_tokens={engine.kv_tokens:,} never has room; raise kv_tokens to {needed[request]:,}, or cut lengths with most="
        )


def _use(pool: Pool, began_s: float, ended_s: float) -> Use:
    return Use(
        name=pool.name,
        servers=pool.servers,
        utilization=pool.busy_s / (pool.servers * (ended_s - began_s)),
        waiting=pool.waiting.mean(began_s, ended_s),
        most_waiting=pool.waiting.most,
    )
