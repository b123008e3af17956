"""The simulated server: held to queueing theory, to traces worked by hand, and to what every request owes its clock."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_lib.inference import Layout, decode_step, disaggregation, max_batch, prefill
from scaling_lib.serving import (
    Continuous,
    Disaggregated,
    Empirical,
    Geometric,
    Lognormal,
    Poisson,
    Regular,
    Server,
    Static,
    Trace,
    Uniform,
    Workload,
    simulate_serving,
)
from scaling_lib.serving.statistics import BATCHES, figure

ROOT = Path(__file__).parents[1]
# Sixteenths, so that every sum is exact: a prompt of n tokens 1 + n/16 s, a step 1/4 s + 1/16 a sequence + 1/64 a token held.
EXACT = Server(prefill_s=lambda tokens: 1 + tokens / 16, step_s=lambda batch, tokens: 1 / 4 + batch / 16 + tokens / 64)
MOVES = replace(EXACT, transfer_s=lambda tokens: tokens / 4)
USUAL = Server(prefill_s=lambda tokens: 0.005 + 1e-5 * tokens, step_s=lambda batch, tokens: 0.008 + 2e-5 * batch + 3e-8 * tokens)
ENGINES = [
    Static(USUAL, batch=8),
    Static(USUAL, batch=8, servers=3),
    Continuous(USUAL, batch=8),
    Continuous(USUAL, batch=8, servers=3),
    Continuous(USUAL, batch=8, chunk=100),
    Disaggregated(USUAL, USUAL, batch=8),
    Disaggregated(replace(USUAL, transfer_s=lambda tokens: 1e-4 * tokens), USUAL, batch=5, prefill_servers=2, decode_servers=3),
]


def words(engine):
    return " on ".join(part.split(",")[0] for part in str(engine).split(" on ")[::2])


def trace(engine, times_s, prompt, output, **options):
    workload = Workload(arrivals=Trace(times_s), prompt=prompt, output=output)
    return simulate_serving(workload, engine, warm_up=0, **options)


def times(report):
    """Start, first token, joining a decoding batch, last token: of each request."""
    r = report.requests
    return list(zip(*(column.tolist() for column in (r.start_s, r.first_s, r.decode_s, r.finish_s)), strict=True))


# Worked by hand.


def one(prompt, output, begun_s=0.0):
    """Seconds of a request alone."""
    return begun_s + 1 + prompt / 16 + sum(1 / 4 + 1 / 16 + (prompt + done) / 64 for done in range(1, output))


@pytest.mark.parametrize("output", [1, 2, 37])
@pytest.mark.parametrize(
    "engine",
    [
        Static(EXACT, 3),
        Continuous(EXACT, 3),
        Continuous(EXACT, 3, chunk=2),
        Continuous(EXACT, 3, servers=2),
        Disaggregated(MOVES, EXACT, 3),
    ],
    ids=words,
)
def test_a_request_alone_takes_what_the_formula_says(engine, output):
    report = trace(engine, [3.5], [5], [output])
    moved = 5 / 4 if isinstance(engine, Disaggregated) and output > 1 else 0
    assert report.latency_s.mean.value == one(5, output) + moved
    assert report.ttft_s.mean.value == 1 + 5 / 16
    assert report.wait_s.mean.value == 0
    if output > 1:
        assert report.tpot_s.mean.value == (one(5, output) + moved - 1 - 5 / 16) / (output - 1)
    else:
        assert report.tpot_s is None


def test_static_batches_by_hand():
    report = trace(Static(EXACT, batch=2), [0, 0, 1], prompt=[16, 32, 8], output=[3, 2, 1])
    # Two rows of 32: prefill 2 · 3 s. Steps of 2 rows with 2 · 33 and 2 · 34 tokens. The third comes at 1 and waits for both.
    step_1, step_2 = 1 / 4 + 2 / 16 + 66 / 64, 1 / 4 + 2 / 16 + 68 / 64
    end = 6 + step_1 + step_2
    assert times(report) == [(0, 6, 6, end), (0, 6, 6, 6 + step_1), (end, end + 1.5, end + 1.5, end + 1.5)]
    assert report.gap_s.mean.value == (2 * step_1 + step_2) / 3
    assert report.batch == 3 / 2
    (use,) = report.use
    assert use.utilization == 1
    assert use.waiting == pytest.approx((end - 1) / (end + 1.5))
    assert report.span_s == end + 1.5


def test_continuous_batches_by_hand():
    report = trace(Continuous(EXACT, batch=2), [0, 2.25, 2.5], prompt=[16, 32, 16], output=[5, 2, 2])
    # Alone from 2 on, with 17 tokens. The second comes in this step: its prefill stands in the way of the first.
    step_1 = 1 / 4 + 1 / 16 + 17 / 64
    joined = 2 + step_1 + 3
    step_2 = 1 / 4 + 2 / 16 + (18 + 33) / 64  # both; then the second is done, and the third has its place
    third = joined + step_2 + 2
    step_3 = 1 / 4 + 2 / 16 + (19 + 17) / 64
    step_4 = 1 / 4 + 1 / 16 + 20 / 64
    assert times(report) == [
        (0, 2, 2, third + step_3 + step_4),
        (2 + step_1, joined, joined, joined + step_2),
        (joined + step_2, third, third, third + step_3),
    ]
    assert report.gap_s.p99.value == 3 + step_2  # of the first, over the prefill of the second


def test_chunks_by_hand():
    report = trace(Continuous(EXACT, batch=2, chunk=16), [0, 1.25], prompt=[16, 24], output=[4, 2])
    # The first is read in one chunk of 2 s. Then chunks of 16 and 8 tokens of the second go along with its steps.
    step_1 = 1 / 4 + 1 / 16 + 17 / 64 + 2
    step_2 = 1 / 4 + 1 / 16 + 18 / 64 + 8 / 16
    step_3 = 1 / 4 + 2 / 16 + (19 + 25) / 64
    joined = 2 + step_1 + step_2
    assert times(report) == [(0, 2, 2, joined + step_3), (2, joined, joined, joined + step_3)]


def test_servers_apart_by_hand():
    report = trace(Disaggregated(MOVES, EXACT, batch=1), [0, 0.5, 0.5], prompt=[16, 8, 8], output=[4, 3, 1])
    # Prefill: 2, 1.5 and 1.5 s in turn. Caches move for 4 and 2 s, so that the second overtakes; the third has its one token.
    second = 5.5 + sum(1 / 4 + 1 / 16 + held / 64 for held in (9, 10))
    first = second + sum(1 / 4 + 1 / 16 + held / 64 for held in (17, 18, 19))
    assert times(report) == [(0, 2, second, first), (2, 3.5, 5.5, second), (3.5, 5, 5, 5)]
    prefilling, decoding = report.use
    assert prefilling.utilization == 5 / report.span_s
    assert prefilling.waiting == (1.5 + 3) / report.span_s
    assert decoding.utilization == (first - 5.5) / report.span_s
    assert decoding.waiting == (second - 6) / report.span_s


def test_the_cache_bounds_the_batch():
    short = replace(EXACT, kv_tokens=40)
    full = trace(Continuous(short, batch=9), [0, 0, 0], prompt=16, output=4)  # 20 tokens each: two have room
    assert full.requests.start_s[2] == full.requests.finish_s[:2].min()
    assert trace(Continuous(EXACT, batch=9), [0, 0, 0], prompt=16, output=4).requests.start_s[2] == 4
    padded = trace(Static(replace(EXACT, kv_tokens=63), batch=9), [0, 0, 0], prompt=[16, 28, 2], output=[4, 2, 2])
    assert padded.requests.start_s[0] < padded.requests.start_s[1] == padded.requests.start_s[2]  # 2 · (28 + 4) is more than 63


# Queueing theory.


def queue(load, prompt, *, requests=60_000, seed=0, servers=1):
    """A line before servers that take a second a request on average: one token a request, so that all is prefill."""
    server = Server(prefill_s=lambda tokens: tokens / 1000, step_s=lambda batch, tokens: math.inf)
    engine = Continuous(server, batch=1) if servers == 1 else Disaggregated(server, server, 1, prefill_servers=servers)
    workload = Workload(arrivals=Poisson(load * servers), prompt=prompt, output=1, requests=requests, seed=seed)
    return simulate_serving(workload, engine)


def off(figure, expected):
    """Distance from what is expected, in standard errors."""
    return abs(figure.value - expected) / figure.standard_error


MEMORYLESS = Geometric(1000)  # exponential but for steps of a thousandth


@pytest.mark.parametrize("load", [0.5, 0.7])
@pytest.mark.parametrize(
    ("prompt", "square"),
    [(MEMORYLESS, 2 - 1 / 1000), (1000, 1), (Uniform(1, 1999), 1 + 1 / 3), (Empirical([500, 500, 500, 2500]), 1.75)],
    ids=["M/M/1", "M/D/1", "uniform", "two lengths"],
)
def test_waiting_is_that_of_pollaczek_and_khinchine(load, prompt, square):
    report = queue(load, prompt)
    waits = load * square / (2 * (1 - load))
    assert off(report.wait_s.mean, waits) < 3
    assert off(report.latency_s.mean, waits + 1) < 3
    assert report.load == pytest.approx(load, rel=0.03)
    assert report.use[0].utilization == pytest.approx(load, rel=0.02)
    assert report.use[0].waiting == pytest.approx(load * waits, rel=0.1)


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_percentiles_of_the_time_inside_are_exponential(load):
    latency = queue(load, MEMORYLESS).latency_s
    for share, found in ((0.5, latency.p50), (0.9, latency.p90), (0.99, latency.p99)):
        assert off(found, -math.log(1 - share) / (1 - load)) < 3


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_several_servers_wait_as_erlang_says(load):
    servers, offered = 5, 5 * load
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    waits = last / (sum(terms) + last) / (servers * (1 - load))
    assert off(queue(load, MEMORYLESS, servers=servers).wait_s.mean, waits) < 3


def test_a_batch_that_slows_down_as_it_grows_shares_the_processor():
    server = Server(prefill_s=lambda tokens: 0.0, step_s=lambda batch, tokens: batch / 64)
    workload = Workload(arrivals=Poisson(0.5), prompt=1, output=Geometric(65), requests=20_000)  # 64 steps, 1 s alone
    report = simulate_serving(workload, Continuous(server, batch=1000))
    assert off(report.latency_s.mean, 1 / (1 - 0.5)) < 3


def test_intervals_hold_what_they_should():
    inside = [off(queue(0.6, MEMORYLESS, requests=10_000, seed=seed).wait_s.mean, 0.6 / 0.4) for seed in range(20)]
    assert sum(errors < 2.093 for errors in inside) >= 17
    assert max(inside) > 1


def test_intervals_are_those_of_batch_means():
    values = np.arange(40 * BATCHES) % 7 * 1.0
    means = values.reshape(BATCHES, 40).mean(axis=1)
    found = figure(values, np.mean, steady=True)
    assert found.standard_error == pytest.approx(means.std(ddof=1) / BATCHES**0.5)
    assert figure(values[:199], np.mean, steady=True).half is None
    assert figure(values, np.mean, steady=False).half is None


# What holds whatever happens.

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=25)


@st.composite
def cases(draw):
    prompt = draw(LENGTHS)
    output = draw(st.lists(st.integers(1, 40), min_size=len(prompt), max_size=len(prompt)))
    gaps_s = draw(st.lists(st.sampled_from([0.0, 0.003, 0.05, 0.4]), min_size=len(prompt), max_size=len(prompt)))
    engine = draw(st.sampled_from(ENGINES))
    if draw(st.booleans()):
        server = replace(USUAL, kv_tokens=max(map(sum, zip(prompt, output, strict=True))) + draw(st.integers(0, 60)))
        engine = replace(engine, **{"decode" if isinstance(engine, Disaggregated) else "server": server})
    return engine, list(itertools.accumulate(gaps_s)), prompt, output


@given(cases())
@settings(deadline=None, max_examples=50)
def test_every_request_is_served_once_and_clocks_agree(case):
    engine, times_s, prompt, output = case
    report = trace(engine, times_s, prompt, output)
    r = report.requests
    columns = np.array([r.arrival_s, r.start_s, r.first_s, r.decode_s, r.finish_s])
    assert np.isfinite(columns).all()
    assert (np.diff(columns, axis=0) >= 0).all()
    np.testing.assert_allclose(r.arrival_s, times_s, atol=1e-12)
    if isinstance(engine, Static | Disaggregated) or engine.servers == 1:
        assert (np.diff(r.start_s) >= 0).all()  # first come, first served

    assert report.inside * report.span_s == pytest.approx((r.finish_s - r.arrival_s).sum())  # Little's law
    waits = (r.start_s - r.arrival_s).sum()
    assert report.use[0].waiting * report.span_s == pytest.approx(waits, abs=1e-9)
    others = sum(output) - len(output)
    assert bool(report.gap_s) == bool(others)
    if others:
        assert report.gap_s.mean.value * others == pytest.approx((r.finish_s - r.first_s).sum())
    assert all(0 <= use.utilization <= 1 + 1e-9 for use in report.use)
    assert report.requests_per_s * report.span_s == pytest.approx(len(output))
    assert report.tokens_per_s * report.span_s == pytest.approx(sum(output))


@given(cases())
@settings(deadline=None, max_examples=50)
def test_rows_and_cache_are_never_exceeded(case):
    engine, times_s, prompt, output = case
    r = trace(engine, times_s, prompt, output).requests
    if isinstance(engine, Disaggregated):
        servers, began_s, counts = engine.decode_servers, r.decode_s, r.output > 1
    else:
        servers, began_s, counts = engine.servers, r.start_s, r.output > 0
    for now_s in began_s[counts]:
        here = counts & (began_s <= now_s) & (r.finish_s > now_s)
        assert here.sum() <= servers * engine.batch
        if engine.kv_tokens:
            assert (r.prompt + r.output)[here].sum() <= servers * engine.kv_tokens


@pytest.mark.parametrize("engine", ENGINES, ids=words)
def test_the_same_seed_gives_the_same_report(engine):
    workload = Workload(arrivals=Poisson(15), prompt=Lognormal(200, 1), output=Geometric(30), requests=500, seed=7)
    first, again, other = (simulate_serving(w, engine) for w in (workload, workload, replace(workload, seed=8)))
    assert first.to_json() == again.to_json() != other.to_json()
    for column, same in zip(vars(first.requests).values(), vars(again.requests).values(), strict=True):
        assert (column == same).all()


def test_engines_that_do_the_same_agree():
    workload = Workload(arrivals=Poisson(2), prompt=Geometric(300), output=Uniform(1, 60), requests=400)
    alone = simulate_serving(workload, Continuous(USUAL, batch=1)).requests
    for engine in (Static(USUAL, batch=1), Continuous(USUAL, batch=1, chunk=77), Continuous(USUAL, batch=1, chunk=10**6)):
        np.testing.assert_allclose(simulate_serving(workload, engine).requests.finish_s, alone.finish_s)
    free = Server(prefill_s=lambda tokens: 0.0, step_s=USUAL.step_s)  # then nothing is gained by servers of its own
    np.testing.assert_allclose(
        simulate_serving(workload, Disaggregated(free, free, batch=4, decode_servers=3)).requests.finish_s,
        simulate_serving(workload, Continuous(free, batch=4, servers=3)).requests.finish_s,
    )


def step_by_step(engine, times_s, prompt, output):
    """Continuous batching on one server, the slow way: one step at a time, looking at every request after each."""
    server, room = engine.server, engine.server.kv_tokens or math.inf
    first_s, finish_s, held, now_s, begun = {}, {}, {}, 0.0, 0  # held: the tokens of each in the batch; begun: of a prompt
    waits = list(range(len(prompt)))
    while len(finish_s) < len(prompt):
        reading, read, left, seconds = [waits[0]] if begun else [], [], engine.chunk or 0, 0.0
        while True:
            if not reading and waits and times_s[waits[0]] <= now_s:
                together = [*held, *read, waits[0]]
                if len(together) <= engine.batch and sum(prompt[one] + output[one] for one in together) <= room:
                    reading = [waits[0]]
            if not reading or (engine.chunk and not left):
                break
            (one,) = reading
            tokens = min(left, prompt[one] - begun) if engine.chunk else prompt[one]
            seconds += server.prefill_s(begun + tokens) - (server.prefill_s(begun) if begun else 0)
            begun, left = begun + tokens, left - tokens
            if begun == prompt[one]:
                read.append(waits.pop(0))
                reading, begun = [], 0
                if not engine.chunk:
                    break
        steps = bool(held) and (bool(engine.chunk) or not read)
        if steps:
            seconds += server.step_s(len(held), sum(held.values()))
        if not seconds:
            now_s = times_s[waits[0]]
        now_s += seconds
        if steps:
            held = {one: tokens + 1 for one, tokens in held.items()}
        for one in read:
            first_s[one] = now_s
            held[one] = prompt[one] + 1
        for one in [one for one, tokens in held.items() if tokens == prompt[one] + output[one]]:
            finish_s[one] = now_s
            del held[one]
    return [[of[one] for one in range(len(prompt))] for of in (first_s, finish_s)]


@given(cases(), st.sampled_from([None, 1, 7, 64]), st.integers(1, 6))
@settings(deadline=None, max_examples=100)
def test_runs_of_steps_are_those_of_single_ones(case, chunk, batch):
    engine, times_s, prompt, output = case
    exact = replace(EXACT, kv_tokens=engine.kv_tokens)
    times_s = [round(16 * time_s) / 4 for time_s in times_s]
    engine = Continuous(exact, batch=batch, chunk=chunk)
    found = trace(engine, times_s, prompt, output).requests
    assert step_by_step(engine, times_s, prompt, output) == [found.first_s.tolist(), found.finish_s.tolist()]


def test_runs_of_steps_do_not_skip_over_arrivals():
    """A slow stream of requests that change nothing but where runs of steps are cut: to a second server of three."""
    many = Workload(arrivals=Regular(50), prompt=10, output=40, requests=300)
    cut = simulate_serving(many, Continuous(USUAL, batch=30, servers=3)).requests
    for server in range(3):
        mine = slice(server, None, 3)  # with fixed distances and lengths, requests go round
        alone = trace(Continuous(USUAL, batch=30), cut.arrival_s[mine].tolist(), 10, 40).requests
        np.testing.assert_allclose(cut.finish_s[mine], alone.finish_s)


def test_each_design_does_what_it_is_for():
    workload = Workload(arrivals=Poisson(8), prompt=Geometric(1500), output=Geometric(100), requests=4000)
    static, continuous, chunked = (
        simulate_serving(workload, engine)
        for engine in (Static(USUAL, 64), Continuous(USUAL, 64), Continuous(USUAL, 64, chunk=256))
    )
    apart = simulate_serving(workload, Disaggregated(USUAL, USUAL, 64))
    assert continuous.latency_s.mean.value < static.latency_s.mean.value / 2
    assert continuous.capacity_per_s > 2 * static.capacity_per_s
    assert chunked.gap_s.p99.value < continuous.gap_s.p99.value / 2
    assert chunked.ttft_s.mean.value > continuous.ttft_s.mean.value
    assert apart.gap_s.p99.value < chunked.gap_s.p99.value
    assert apart.tpot_s.mean.value < continuous.tpot_s.mean.value


# Load, goodput, words.


def test_capacity_is_that_of_a_full_batch():
    server = Server(prefill_s=lambda tokens: 0.01, step_s=lambda batch, tokens: 0.02)
    workload = Workload(arrivals=Poisson(1), prompt=9, output=31, requests=2000)
    assert simulate_serving(workload, Continuous(server, 7)).capacity_per_s == pytest.approx(7 / (7 * 0.01 + 30 * 0.02))
    assert simulate_serving(workload, Static(server, 7)).capacity_per_s == pytest.approx(7 / (7 * 0.01 + 30 * 0.02))
    apart = Disaggregated(server, server, 7, prefill_servers=2, decode_servers=3)
    assert simulate_serving(workload, apart).capacity_per_s == pytest.approx(3 * 7 / (30 * 0.02), rel=0.03)
    assert simulate_serving(workload, replace(apart, decode_servers=99)).capacity_per_s == pytest.approx(2 / 0.01, rel=0.03)


@pytest.mark.parametrize("engine", ENGINES, ids=words)
def test_overload_is_told(engine):
    workload = Workload(arrivals=Regular(1), prompt=200, output=30, requests=800)
    capacity = simulate_serving(workload, engine).capacity_per_s
    under = simulate_serving(replace(workload, arrivals=Poisson(0.8 * capacity)), engine)
    assert not under.overloaded
    assert under.load == pytest.approx(0.8)
    assert under.wait_s.mean.half is not None
    assert "OVERLOADED" not in under.explain()
    over = simulate_serving(replace(workload, arrivals=Poisson(1.25 * capacity)), engine)
    assert over.overloaded
    assert over.load == pytest.approx(1.25)
    assert over.wait_s.mean.half is None
    assert "OVERLOADED: load 1.25" in over.explain()
    assert "no steady state" in over.explain()
    assert over.inside > 1.5 * under.inside


def test_goodput_counts_requests_within_every_limit():
    engine = Continuous(EXACT, batch=1)
    requests = ([0, 0, 100, 200], [16, 16, 16, 160], [1, 3, 3, 3])
    report = trace(engine, *requests, ttft_slo_s=2, tpot_slo_s=0.6)
    assert report.attained.value == 2 / 4  # the second waits; the last is slow to read, and then each step is long
    assert report.goodput_per_s == report.requests_per_s / 2
    assert trace(engine, *requests, ttft_slo_s=4).attained.value == 3 / 4
    assert trace(engine, *requests, tpot_slo_s=0.6).attained.value == 3 / 4
    assert trace(engine, *requests).attained.value == 1
    assert "TTFT ≤ 2 s and TPOT ≤ 600 ms: 50.0% of requests" in report.explain()


def test_the_warm_up_is_left_out_of_times_but_not_of_rates():
    workload = Workload(arrivals=Trace([0, 50, 100]), prompt=[160, 16, 16], output=2)
    whole, counted = (simulate_serving(workload, Continuous(EXACT, 1), warm_up=share) for share in (0, 0.34))
    assert whole.ttft_s.mean.value == (11 + 2 + 2) / 3
    assert counted.ttft_s.mean.value == 2
    assert whole.requests_per_s == counted.requests_per_s
    assert len(counted.requests.output) == 3


def test_a_report_is_words_and_json():
    workload = Workload(arrivals=Poisson(20), prompt=Geometric(300), output=Geometric(40), requests=3000)
    report = simulate_serving(workload, Continuous(USUAL, 32), ttft_slo_s=0.1)
    data = json.loads(json.dumps(report.to_json()))
    assert data["ttft_s"]["p99"] == {"value": report.ttft_s.p99.value, "half": report.ttft_s.p99.half}
    assert data["use"][0]["utilization"] == report.use[0].utilization
    assert data["slo"] == {"ttft_s": 0.1}
    assert str(report) == report.explain()
    for part in ("20 requests/s at random", "geometric, mean 40 tokens", "up to 32", f"load {report.load:.2f}", "whole answer"):
        assert part in report.explain()
    at_once = trace(Continuous(USUAL, 32), [0, 0], 5, 5)
    assert at_once.load is None
    assert not at_once.overloaded
    assert "all come at once" in at_once.explain()


# Workloads.


@pytest.mark.parametrize(
    ("lengths", "mean", "low", "high"),
    [
        (Uniform(3, 7), 5, 3, 7),
        (Geometric(70), 70, 1, None),
        (Geometric(1), 1, 1, 1),
        (Geometric(70, most=100), 70 * (1 - (1 - 1 / 70) ** 100), 1, 100),
        (Lognormal(500, 0.5), 500 * math.exp(0.125), 1, None),
        (Lognormal(5, 0), 5, 5, 5),
        (Empirical([3, 5, 5, 7]), 5, 3, 7),
    ],
    ids=str,
)
def test_lengths_have_their_mean_and_ends(lengths, mean, low, high):
    drawn = Workload(arrivals=Poisson(1), prompt=lengths, output=1, requests=100_000).draw().prompt
    assert drawn.mean() == pytest.approx(mean, abs=4 * drawn.std() / 100_000**0.5 + 1e-9)
    assert drawn.min() >= low
    assert high is None or drawn.max() == high


def test_times_between_arrivals_are_exponential():
    gaps_s = np.diff(Workload(arrivals=Poisson(4), prompt=1, output=1, requests=100_000).draw().arrival_s)
    assert gaps_s.mean() == pytest.approx(1 / 4, rel=0.01)
    assert (gaps_s > 0.5).mean() == pytest.approx(math.exp(-2), abs=0.003)


def test_workloads_that_differ_in_one_thing_share_the_rest():
    base = Workload(arrivals=Poisson(2), prompt=Geometric(50), output=Geometric(20), requests=100)
    faster = replace(base, arrivals=Poisson(4)).draw()
    other = replace(base, prompt=7).draw()
    np.testing.assert_allclose(faster.arrival_s, base.draw().arrival_s / 2)
    assert (faster.prompt == base.draw().prompt).all()
    assert (other.output == base.draw().output).all()
    assert (base.draw().prompt[:50] != base.draw().output[:50]).any()


def test_draws_do_not_change_between_releases():
    drawn = Workload(arrivals=Poisson(2), prompt=Geometric(50), output=Lognormal(90, 1), requests=3, seed=5).draw()
    assert drawn.arrival_s.round(3).tolist() == [0.817, 1.642, 2.005]
    assert drawn.prompt.tolist() == [74, 32, 59]
    assert drawn.output.tolist() == [72, 244, 24]


def test_traces_and_sequences_keep_their_order():
    drawn = Workload(arrivals=Trace([0, 0.5, 0.5]), prompt=(3, 5, 7), output=[11, 13, 17]).draw()
    assert drawn.arrival_s.tolist() == [0, 0.5, 0.5]
    assert drawn.prompt.tolist() == [3, 5, 7]
    assert drawn.output.tolist() == [11, 13, 17]
    assert Workload(arrivals=Poisson(1), prompt=np.array([3, 5]), output=1).requests == 2
    assert Workload(arrivals=Poisson(1), prompt=3, output=1).requests == 10_000


# Bad input.

FINE = Workload(arrivals=Poisson(1), prompt=3, output=5, requests=7)
BAD = [
    (lambda: Poisson(0), "rate_per_s=0 must be positive; give the requests of a second"),
    (lambda: Poisson(-2), "rate_per_s=-2 must be positive"),
    (lambda: Regular(0.0), "rate_per_s=0.0 must be positive"),
    (lambda: Poisson(math.nan), "rate_per_s=nan is not finite"),
    (lambda: Trace([]), "times_s is empty"),
    (lambda: Trace([0, 2, 1]), r"times_s\[2\]=1.0 comes after 2.0; sort"),
    (lambda: Trace([-1]), r"times_s\[0\]=-1 is too small"),
    (lambda: Uniform(9, 7), "low=9 is above high=7; swap"),
    (lambda: Geometric(0.5), "mean=0.5 is too small"),
    (lambda: Geometric(5, most=0), "most=0 is not a size"),
    (lambda: Lognormal(0, 1), "median=0 is too small"),
    (lambda: Lognormal(100, 200), "sigma=200 is of the logarithm"),
    (lambda: Empirical([]), "values is empty"),
    (lambda: Empirical([3, 0]), r"values\[1\]=0 is not a size"),
    (lambda: replace(FINE, arrivals=3.0), r"arrivals=3.0 are none; give Poisson\(rate_per_s\)"),
    (lambda: replace(FINE, prompt=0), "prompt=0 is not a size"),
    (lambda: replace(FINE, prompt="long"), "prompt='long' is not a number"),
    (lambda: replace(FINE, output=[1, 2]), "output has 2 entries for 7 requests"),
    (lambda: replace(FINE, arrivals=Trace([1, 2])), "arrivals has 2 entries for 7 requests"),
    (lambda: replace(FINE, requests=0), "requests=0 is not a size"),
    (lambda: replace(FINE, requests=10**7), "requests=10,000,000 are too many"),
    (lambda: replace(FINE, seed=-1), "seed=-1 is none"),
    (lambda: replace(FINE, seed=0.5), "seed=0.5 is none"),
    (lambda: Static(USUAL, 0), "batch=0 is not a size"),
    (lambda: Continuous(USUAL, 8, chunk=0), "chunk=0 is not a size"),
    (lambda: Continuous(USUAL, 8, servers=-1), "servers=-1 is not a size"),
    (lambda: Disaggregated(USUAL, USUAL, 8, prefill_servers=0), "prefill_servers=0 is not a size"),
    (lambda: Server(prefill_s=0.5, step_s=max), "prefill_s=0.5 is no function"),
    (lambda: Server(prefill_s=max, step_s=0.5), "step_s=0.5 is no function"),
    (lambda: replace(USUAL, transfer_s=0.5), "transfer_s=0.5 is no function of tokens; give one, or None"),
    (lambda: replace(USUAL, kv_tokens=0), "kv_tokens=0 is not a size"),
    (lambda: simulate_serving(FINE, "static"), "engine='static' is none; give Static"),
    (lambda: simulate_serving(5.0, ENGINES[0]), "workload=5.0 is none; give Workload"),
    (lambda: simulate_serving(FINE, ENGINES[0], ttft_slo_s=0), "ttft_slo_s=0 must be positive; leave it out"),
    (lambda: simulate_serving(FINE, ENGINES[0], tpot_slo_s=-1), "tpot_slo_s=-1 must be positive"),
    (lambda: simulate_serving(FINE, ENGINES[0], warm_up=1), "warm_up=1 is no share"),
    (lambda: simulate_serving(FINE, Static(replace(USUAL, kv_tokens=7), 2)),
     "3 . 5 tokens, for which kv_tokens=7 never has room; raise"),
    (lambda: simulate_serving(FINE, Static(replace(USUAL, prefill_s=lambda tokens: -1.0), 2)),
     "prefill_s or step_s makes -2.0 s"),
    (lambda: simulate_serving(FINE, Continuous(replace(USUAL, step_s=lambda batch, tokens: math.nan), 2)), "step_s makes nan s"),
    (lambda: simulate_serving(FINE, Disaggregated(replace(USUAL, transfer_s=lambda tokens: -1), USUAL, 2)),
     "transfer_s makes -1 s"),
    (lambda: simulate_serving(FINE, Continuous(Server(prefill_s=lambda t: 0, step_s=lambda b, t: 0), 2)), "steps take no time"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_input_is_refused_with_a_remedy(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_request_of_one_token_needs_no_cache_where_others_decode():
    apart = Disaggregated(USUAL, replace(USUAL, kv_tokens=10), batch=2)
    report = trace(apart, [0, 0], [100, 5], [1, 5])
    assert np.isfinite(report.requests.finish_s).all()
    with pytest.raises(ValueError, match=r"request 0 has 100 . 2 tokens"):
        trace(apart, [0, 0], [100, 5], [2, 5])


def test_what_is_missing_is_said_in_one_line():
    script = "import sys; sys.modules['simpy'] = None; import scaling_lib.inference, scaling_lib.search, scaling_lib.cli.app, {}"
    rest = [sys.executable, "-c", script.format("scaling_lib.show")]
    assert subprocess.run(rest, cwd=ROOT, check=False).returncode == 0
    asked = [sys.executable, "-c", script.format("scaling_lib.serving")]
    error = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True).stderr
    assert error.splitlines()[-1].endswith("the serving simulator needs simpy: pip install 'scaling-lib[serving]'")


# Servers as `inference` prices them.

LLAMA = ("Llama-3 70B", "v5e:2x4", Layout(tensor=8, weights="int8", kv="int8"))


def test_tables_of_steps_are_those_of_inference():
    server = Server.of(*LLAMA, batch=100, context=5000)
    for batch, context in itertools.product((1, 3, 7, 33, 100), (1, 77, 1000, 2500, 5000)):
        expected = decode_step(*LLAMA, batch, context=context).seconds
        assert server.step_s(batch, batch * context) == pytest.approx(expected, rel=0.01)
    for prompt in (1, 3, 77, 500, 1001, 3333, 5000):
        assert server.prefill_s(prompt) == pytest.approx(prefill(*LLAMA, prompt=prompt).seconds, rel=0.01)
    model, slice, layout = LLAMA
    at = decode_step(*LLAMA, 1, context=77)
    assert server.transfer_s(77) == disaggregation.transfer_s(at.model, at.slice, tokens=77, kv=layout.kv)
    assert server.kv_tokens == 5000 * max_batch(*LLAMA, context=5000)
    assert str(server) == f"{model} on {slice}, {layout}"


def test_a_server_of_inference_serves():
    server = Server.of(*LLAMA, batch=20, context=1200)
    workload = Workload(arrivals=Poisson(2), prompt=Geometric(400, most=1000), output=Geometric(60, most=200), requests=500)
    for engine in (
        Static(server, 20),
        Continuous(server, 20),
        Continuous(server, 20, chunk=200),
        Disaggregated(server, server, 20),
    ):
        report = simulate_serving(workload, engine)
        assert report.ttft_s.p50.value > server.prefill_s(200)
        assert report.tpot_s.p50.value >= server.step_s(1, 1)
        assert "Llama-3 70B on v5e:2x4" in report.explain()


def test_beyond_the_tables_is_refused():
    server = Server.of(*LLAMA, batch=20, context=1200)
    for call, words in (
        (lambda: server.prefill_s(1201), "a prompt of 1,201 tokens is beyond context=1,200"),
        (lambda: server.step_s(21, 21), "a batch of 21 is beyond batch=20"),
        (lambda: server.step_s(2, 2 * 1201), "sequences of 1,201 tokens are beyond context=1,200"),
        (lambda: Server.of("Llama-3 70B", "v5e:2x4", Layout(tensor=8), batch=2, context=100), "weights alone take"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
