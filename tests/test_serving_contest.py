"""The contest of servers: its best against all cheaper fleets, played one by one, and what it says of those that break a rule."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from scaling_lib.hardware import Slice, slice_of
from scaling_lib.inference import Layout, max_batch, prefill
from scaling_lib.search import serving_contest as contest
from scaling_lib.search.fleet import Fleet, engine
from scaling_lib.serving import Continuous, Poisson, Server, Trace, Uniform, Workload, simulate_serving
from scaling_lib.transformer import model

MODEL = "Llama-3 8B"
SLICES = ("v5e:2x2", "v6e:1x1", "v6e:2x2")
WORK = Workload(arrivals=Poisson(80), prompt=Uniform(500, 2500), output=Uniform(50, 300), requests=500)
TTFT_S, TPOT_S = 0.3, 0.013
ONE = Fleet(slice="v6e:1x1", layout=Layout(), batch=16, servers=12)


@pytest.fixture(scope="module")
def on():
    return contest.contest(MODEL, SLICES, WORK, ttft_s=TTFT_S, tpot_s=TPOT_S)


def usd(fleet):
    """A million tokens of the load, written out."""
    tokens_per_s = 80 * WORK.draw().output.mean()
    return fleet.place.chip.usd_per_hour / 3600 * fleet.chips / tokens_per_s * 1e6


def test_the_best_keeps_its_promises_and_no_cheaper_fleet_does(on):
    assert on.best.meets
    assert on.best.usd_per_million == pytest.approx(usd(on.best.fleet), rel=1e-9)
    cheaper = 0
    of_four = [Layout(tensor=4), Layout(tensor=2, kv_batch=2)]
    layouts = {"v5e:2x2": of_four, "v6e:1x1": [Layout()], "v6e:2x2": of_four}
    engines = [{}, {"chunk": 512}, {"engine": "static"}, *({"engine": "disaggregated", "prefill_servers": n} for n in (2, 4))]
    for slice, servers, batch, how in itertools.product(SLICES, range(1, 12), (12, 48), engines):
        for layout in layouts[slice]:
            fleet = Fleet(slice=slice, layout=layout, batch=batch, servers=servers, **how)
            if usd(fleet) < on.best.usd_per_million * (1 - 1e-9):
                cheaper += 1
                assert not on.task.play(fleet).meets, fleet
    assert cheaper > 50


LIGHT = Workload(arrivals=Poisson(40), prompt=Uniform(500, 2500), output=Uniform(50, 300), requests=300)


@pytest.mark.parametrize(
    ("slice", "ttft_s", "tpot_s"),
    [
        ("v6e:2x2", 0.5, 0.05),  # one will do
        ("v6e:1x1", 0.08, 0.02),  # the fewest, with fewer sequences
        ("v5e:2x2", 0.5, 0.012),  # the fewest, with prefill apart
        ("v6e:1x1", 0.1, 0.011),  # one more that decodes
        ("v5e:2x2", 0.1, 0.011),  # two more for prefill
    ],
)
def test_the_best_has_as_many_servers_as_it_takes(slice, ttft_s, tpot_s):
    found = contest.contest(MODEL, [slice], LIGHT, ttft_s=ttft_s, tpot_s=tpot_s)
    best = found.best.fleet
    for servers, reading in itertools.product(range(1, 12), range(5)):
        how = {"engine": "disaggregated", "prefill_servers": reading} if reading else {"engine": "continuous"}
        for batch in {16, 48, best.batch}:
            fleet = Fleet(slice=slice, layout=best.layout, batch=batch, servers=servers, **how)
            if fleet.chips < best.chips:
                assert not found.task.play(fleet).meets, fleet


def test_the_best_has_a_gold_medal(on):
    score = contest.score(on.best.fleet, on)
    assert (score.ratio, score.medal, score.meets) == (1, "gold", True)
    assert str(score).splitlines()[0].endswith("1.00 times the best, gold")


def test_an_entry_is_what_the_simulator_says(on):
    server = Server.of(MODEL, "v6e:1x1", Layout(), batch=16, context=2800)
    report = simulate_serving(WORK, Continuous(server, 16, servers=12), ttft_slo_s=TTFT_S, tpot_slo_s=TPOT_S)
    trial = on.task.play(ONE)
    assert trial.report.ttft_s.p99.value == pytest.approx(report.ttft_s.p99.value, rel=0.02)  # tables of another longest request
    assert trial.report.tpot_s.p99.value == pytest.approx(report.tpot_s.p99.value, rel=0.02)
    assert trial.worst == max(trial.report.ttft_s.p99.value / TTFT_S, trial.report.tpot_s.p99.value / TPOT_S)
    assert on.task.play(ONE).worst == trial.worst


@pytest.mark.parametrize(
    ("ratio", "medal"), [(1.0, "gold"), (1.05, "gold"), (1.051, "silver"), (6 / 5, "silver"), (1.5, "bronze"), (1.51, None)]
)
def test_medals_go_by_dollars_and_gold_is_ok(on, ratio, medal):
    score = contest.Score(trial=on.best, ratio=ratio)
    assert (score.medal, score.ok) == (medal, medal == "gold")
    missed = contest.Score(trial=replace(on.best, why=("too slow",)), ratio=ratio)
    assert (missed.medal, missed.ok) == (None, False)


def test_a_server_without_room_for_the_longest_says_what_is_lacking(on):
    place = slice_of("v6e:1x1")
    small = Slice(place.chip.but(usable_hbm_bytes=on.task.play(ONE).report.engine.server.kv_tokens), place.shape)
    task = replace(on.task, slices=(small,))
    score = contest.score(ONE.but(slice=small), replace(on, task=task))
    assert score.trial.report is None
    assert score.medal is None
    assert re.search(r"does not fit: .* lacking", str(score))


def test_a_batch_beyond_the_room_names_the_one_that_fits(on):
    score = contest.score(ONE.but(batch=5000), on)
    assert score.trial.report is None
    most = score.trial.room
    assert f"give batch={most}" in str(score)
    assert on.task.play(ONE.but(batch=most)).report is not None
    assert on.task.play(ONE.but(batch=most + 1)).report is None
    longest = (WORK.draw().prompt + WORK.draw().output).mean()
    by_hand = max_batch(MODEL, "v6e:1x1", Layout(), context=round(longest))
    assert 0.9 * by_hand < most <= by_hand  # the prefill beside it takes some


def test_prefill_takes_room_beside_the_cache_but_not_on_servers_apart():
    whole, chunked, apart = (
        engine(ONE.but(**how), model(MODEL), prompt=30_000, output=100).kv_tokens
        for how in ({}, {"chunk": 512}, {"engine": "disaggregated", "prefill_servers": 2})
    )
    assert whole < chunked <= apart


def test_an_overloaded_fleet_is_told_how_many_servers_it_takes(on):
    trial = on.task.play(ONE.but(servers=1, batch=2))
    assert trial.report.overloaded
    (why,) = trial.why
    enough = int(re.search(r"takes servers=(\d+) at least", why)[1])
    assert not on.task.play(ONE.but(servers=enough, batch=2)).report.overloaded
    assert enough - 1 <= trial.report.load < enough  # of one server
    assert on.task.play(ONE.but(servers=round(0.95 * enough), batch=2)).report.overloaded


def test_where_prompts_wait_it_is_prefill_servers_that_are_named(on):
    slow = ONE.but(engine="disaggregated", servers=12, prefill_servers=1)
    assert "it takes prefill_servers=" in on.task.play(slow).why[0]
    assert "it takes servers=" in on.task.play(slow.but(servers=1, prefill_servers=9)).why[0]


def test_a_promise_that_is_broken_says_by_how_much(on):
    for strict in ({"ttft_s": 0.01}, {"tpot_s": 0.001}):
        trial = replace(on.task, **strict).play(ONE.but(servers=20))
        (why,) = trial.why
        assert not trial.meets
        assert f"takes {trial.worst:.2f} times the" in why
        assert ("first token" in why) == ("ttft_s" in strict)


def test_the_change_that_is_named_is_one_and_helps_most(on):
    fleet = ONE.but(servers=20)
    score = contest.score(fleet, on)
    assert score.meets
    assert score.change == "servers=19"
    assert score.changed.usd_per_million == pytest.approx(19 / 20 * score.trial.usd_per_million)
    short = contest.score(ONE.but(servers=8), on)
    assert not short.meets
    assert short.change is not None
    name, value = short.change.split("=")
    assert str(getattr(short.changed.fleet, name)) == value
    assert short.changed.worst < short.trial.worst or short.changed.meets
    others = [ONE.but(servers=9), *(ONE.but(servers=8, **one) for one in ({"batch": 8}, {"batch": 32}, {"chunk": 512}))]
    assert short.changed.worst == min(on.task.play(other).worst for other in others)
    assert f"would help most: {short.change}" in str(short)


@pytest.mark.parametrize(("name", "value"), [("weights", "int8"), ("kv", "int8"), ("math", "int8")])
def test_the_dtypes_are_not_free(on, name, value):
    with pytest.raises(ValueError, match=f"{name}='{value}' is against the rules of this contest; give {name}='bf16'"):
        contest.score(ONE.but(layout=Layout(**{name: value})), on)


def test_a_fleet_that_cannot_run_says_why(on):
    with pytest.raises(ValueError, match="devices"):
        contest.score(ONE.but(layout=Layout(tensor=2)), on)
    with pytest.raises(ValueError, match=r"'v6e:2x4' is not in this contest; give one of v5e:2x2"):
        contest.score(ONE.but(slice="v6e:2x4", layout=Layout(tensor=8)), on)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "batch"),
        ({"servers": -1}, "servers"),
        ({"engine": "magic"}, "give 'continuous'"),
        ({"engine": "static", "chunk": 128}, "chunk=128 is for engine='continuous'"),
        ({"engine": "disaggregated"}, "prefill_servers"),
        ({"prefill_servers": 2}, "prefill_servers=2 are for engine='disaggregated'"),
        ({"layout": "tensor"}, "give inference.Layout"),
        ({"slice": "v5e:3x5"}, "cannot be built from v5e"),
    ],
)
def test_a_fleet_that_makes_no_sense_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        ONE.but(**change)


def test_a_contest_that_makes_no_sense_is_refused():
    limits = {"ttft_s": TTFT_S, "tpot_s": TPOT_S}
    with pytest.raises(ValueError, match="slices is empty"):
        contest.contest(MODEL, [], WORK, **limits)
    at_once = Workload(arrivals=Trace([1.0, 1.0]), prompt=5, output=3)
    with pytest.raises(ValueError, match="has no rate"):
        contest.contest(MODEL, SLICES, at_once, **limits)
    with pytest.raises(ValueError, match=r"tpot_s=0 must be positive"):
        contest.contest(MODEL, SLICES, WORK, ttft_s=1, tpot_s=0)


def test_promises_that_nobody_can_keep_say_so(monkeypatch):
    with pytest.raises(ValueError, match="even without a line of requests"):
        contest.contest(MODEL, SLICES, WORK, ttft_s=1e-4, tpot_s=1)
    monkeypatch.setattr(contest, "MOST_TRIED", 2)
    with pytest.raises(ValueError, match=r"The nearest: .*overloaded|The nearest: .*too slow"):
        contest.contest(MODEL, ["v6e:1x1"], WORK, ttft_s=TTFT_S, tpot_s=0.0105)


def test_a_batch_for_which_an_estimate_saw_room_is_cut_to_the_room_there_is():
    best = contest.contest(MODEL, ["v6e:1x1"], LIGHT, ttft_s=0.5, tpot_s=0.05).best
    assert best.fleet.batch == best.room
    assert best.report is not None


def test_a_server_that_reads_long_prompts_too_slowly_alone_is_not_played():
    """One request in a hundred may be late: prompts of the 99th percentile count, not those of the middle."""
    lengths = np.quantile(LIGHT.draw().prompt, [0.5, 0.99])
    usual, long = (prefill(MODEL, "v6e:1x1", Layout(), prompt=int(n)).seconds for n in lengths)
    with pytest.raises(ValueError, match="even without a line of requests"):
        contest.contest(MODEL, ["v6e:1x1"], LIGHT, ttft_s=(usual + long) / 2, tpot_s=1)
