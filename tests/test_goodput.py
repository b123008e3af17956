"""Failures and money: checkpoint formulas held to a run with failures played out, days and dollars to published ones."""

import csv
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib.hardware import CHIPS, chip
from scaling_lib.training.goodput import LLAMA_3_CHIP_MTBF_S, checkpoint_interval_s, goodput
from scaling_lib.training.money import bill

DATA = Path(__file__).parent / "data"
HOUR = 3600.0
SHARES = ("useful", "checkpoints", "lost", "restarts")


def rows(file, first):
    found = csv.DictReader((DATA / file).read_text(encoding="utf-8").splitlines())
    return {row["id"]: row for row in found if row["id"].startswith(first)}


# Goodput.


def played(mtbf_s, checkpoint_s, restart_s, interval_s, segments, seed):
    """Shares of the time of a run that trains, saves, fails at random moments, and starts again from the last checkpoint."""
    failures = random.Random(seed)
    spent = dict.fromkeys(SHARES, 0.0)
    next_failure = failures.expovariate(1 / mtbf_s)
    for _ in range(segments):
        while next_failure < interval_s + checkpoint_s:
            spent["lost"] += next_failure
            while (next_failure := failures.expovariate(1 / mtbf_s)) < restart_s:
                spent["restarts"] += next_failure
            spent["restarts"] += restart_s
            next_failure -= restart_s
        next_failure -= interval_s + checkpoint_s
        spent["useful"] += interval_s
        spent["checkpoints"] += checkpoint_s
    total = sum(spent.values())
    return {name: part / total for name, part in spent.items()}


@pytest.mark.parametrize(
    ("mtbf_s", "checkpoint_s", "restart_s", "interval_s"),
    [(3 * HOUR, 60, 600, 1200), (2 * HOUR, 300, 1800, 3600), (HOUR, 900, 1200, 700), (50 * HOUR, 120, 900, 10 * HOUR)],
)
def test_shares_are_those_of_a_run_played_out(mtbf_s, checkpoint_s, restart_s, interval_s):
    seen = played(mtbf_s, checkpoint_s, restart_s, interval_s, segments=100_000, seed=7)
    found = goodput(chips=7, chip_mtbf_s=7 * mtbf_s, checkpoint_s=checkpoint_s, restart_s=restart_s, interval_s=interval_s)
    for name in SHARES:
        assert getattr(found, name) == pytest.approx(seen[name], abs=0.004), name


@given(st.floats(1e-9, 0.5), st.floats(0, 0.5))
def test_shares_add_up_to_one(part, restart):
    found = goodput(chips=1, chip_mtbf_s=1e4, checkpoint_s=part * 1e4, restart_s=restart * 1e4)
    assert sum(getattr(found, name) for name in SHARES) == pytest.approx(1, abs=1e-12)
    assert all(getattr(found, name) >= 0 for name in SHARES)


def test_the_loss_to_first_order_is_saving_redoing_and_restarting():
    # c/τ + τ/(2M) + R/M, from Young 1974; here all three are small
    mtbf_s, checkpoint_s, restart_s, interval_s = 1e6, 2.0, 30.0, 3000.0
    found = goodput(chips=1, chip_mtbf_s=mtbf_s, checkpoint_s=checkpoint_s, restart_s=restart_s, interval_s=interval_s)
    assert found.checkpoints == pytest.approx(checkpoint_s / interval_s, rel=0.01)
    assert found.lost == pytest.approx(interval_s / (2 * mtbf_s), rel=0.01)
    assert found.restarts == pytest.approx(restart_s / mtbf_s, rel=0.01)


def test_twice_the_chips_fail_twice_as_often():
    few, many = (goodput(chips=n, chip_mtbf_s=1e9, checkpoint_s=30, restart_s=300) for n in (1000, 2000))
    assert few.mtbf_s == 2 * many.mtbf_s == 1e6
    assert 1 - many.useful > 1.4 * (1 - few.useful)


@pytest.mark.parametrize("mtbf_s", [1e5, 1e7, 1e12, 1e25])
def test_rare_failures_do_not_cost_digits(mtbf_s):
    found = goodput(chips=1, chip_mtbf_s=mtbf_s, checkpoint_s=10, restart_s=0, interval_s=990)
    assert found.useful == pytest.approx(0.99 * 1000 / mtbf_s / math.expm1(1000 / mtbf_s), rel=1e-12)


def test_a_job_that_fails_all_the_time_does_nothing():
    assert goodput(chips=10**6, chip_mtbf_s=1e6, checkpoint_s=60, restart_s=3600).useful == 0


# The interval.


def best(checkpoint_s, mtbf_s):
    """The least loss over intervals, by halving a bracket of the goodput's slope."""

    def useful(interval_s):
        return interval_s / mtbf_s / math.expm1((interval_s + checkpoint_s) / mtbf_s)

    low, high = 1e-9 * mtbf_s, 2 * mtbf_s
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if useful(a) < useful(b) else (low, b)
    return low, useful(low), useful


@pytest.mark.parametrize("part", [1e-6, 1e-4, 0.01, 0.1, 0.5, 1, 1.99, 2, 3, 10])
def test_dalys_interval_is_as_good_as_the_best(part):
    _, most, useful = best(part * HOUR, HOUR)
    assert useful(checkpoint_interval_s(part * HOUR, HOUR)) > 0.998 * most


@pytest.mark.parametrize("part", [1e-4, 0.01, 0.1])
def test_dalys_orders_bring_the_interval_itself_closer_than_youngs(part):
    interval_s, _, _ = best(part * HOUR, HOUR)
    young, daly = (checkpoint_interval_s(part * HOUR, HOUR, formula=formula) for formula in ("young", "daly"))
    assert abs(daly / interval_s - 1) < 0.05 * part**1.5 + 1e-6  # the next order
    assert abs(daly - interval_s) < 0.01 * abs(young - interval_s)
    assert young == pytest.approx(math.sqrt(2 * part) * HOUR)


def test_the_interval_of_goodput_is_that_of_the_formula():
    for formula in ("young", "daly"):
        found = goodput(chips=4, chip_mtbf_s=4e5, checkpoint_s=50, restart_s=9, formula=formula)
        assert found.interval_s == checkpoint_interval_s(50, 1e5, formula=formula)
        assert found.interval_s / (found.interval_s + 50) == pytest.approx(found.useful / (found.useful + found.checkpoints))


# Llama 3 405B, table 5 of Grattafiori et al. 2024: 419 unexpected interruptions in 54 days on 16,384 H100, more than 90 % useful.


def test_llama_3_failed_every_three_hours():
    found = goodput(chips=16_384, chip_mtbf_s=LLAMA_3_CHIP_MTBF_S, checkpoint_s=10, restart_s=300)
    assert found.mtbf_s == pytest.approx(54 * 24 * HOUR / 419)
    assert found.mtbf_s / HOUR == pytest.approx(3.1, rel=0.01)
    years = LLAMA_3_CHIP_MTBF_S / (365.25 * 24 * HOUR)
    assert 5.7 < years < 5.9  # of one chip between interruptions


def test_llama_3s_ninety_percent_take_quick_restarts_and_quick_checkpoints():
    def useful(checkpoint_s, restart_s):
        return goodput(chips=16_384, chip_mtbf_s=LLAMA_3_CHIP_MTBF_S, checkpoint_s=checkpoint_s, restart_s=restart_s).useful

    assert useful(10, 300) > 0.9
    assert useful(10, 1200) < 0.9
    assert useful(60, 300) < 0.9


def test_formulas_give_of_arrays_what_they_give_of_numbers():
    chips, checkpoint_s = np.array([8, 256, 16_384, 10**6]), np.array([1.0, 30.0, 300.0, 900.0])
    restart_s, tokens_per_s = np.array([0.0, 60.0, 600.0, 6000.0]), np.array([1e3, 1e5, 1e6, 1e7])
    found = goodput(chips=chips, chip_mtbf_s=LLAMA_3_CHIP_MTBF_S, checkpoint_s=checkpoint_s, restart_s=restart_s)
    bills = bill(chip("v5p"), chips=chips, tokens=1e12, tokens_per_s=tokens_per_s, goodput=found.useful)
    for i in range(4):
        one = goodput(
            chips=int(chips[i]),
            chip_mtbf_s=LLAMA_3_CHIP_MTBF_S,
            checkpoint_s=float(checkpoint_s[i]),
            restart_s=float(restart_s[i]),
        )
        for name in (*SHARES, "interval_s", "mtbf_s"):
            assert getattr(found, name)[i] == pytest.approx(getattr(one, name), rel=1e-14), name
        alone = bill(chip("v5p"), chips=int(chips[i]), tokens=1e12, tokens_per_s=float(tokens_per_s[i]), goodput=one.useful)
        for name in ("days", "chip_hours", "usd", "usd_per_million_tokens"):
            assert getattr(bills, name)[i] == pytest.approx(getattr(alone, name), rel=1e-14), name


# Days and dollars.


def test_a_bill_in_full():
    found = bill(chip("v5p"), chips=100, tokens=9e9, tokens_per_s=1e5, goodput=0.9)
    assert (found.seconds, found.days, found.chip_hours) == pytest.approx((1e5, 1e5 / 86_400, 100 * 1e5 / 3600))
    assert found.usd == pytest.approx(found.chip_hours * chip("v5p").usd_per_hour)
    assert found.usd_per_million_tokens == pytest.approx(found.usd / 9000)


def test_your_own_price_stands_for_the_catalogs():
    assert bill(chip("b200"), chips=10, tokens=3.6e9, tokens_per_s=1e6, usd_per_chip_hour=4.5).usd == pytest.approx(45)


def days(flops_per_token, tokens, *, chips, flops_per_s, utilization):
    rate = chips * flops_per_s * utilization / flops_per_token
    return bill(chip("v5p"), chips=chips, tokens=tokens, tokens_per_s=rate).days


def years(days_):
    return bill(chip("v5p"), chips=1, tokens=days_ * 86_400, tokens_per_s=1).days / 365.25


def flops_per_usd(name):
    return chip(name).flops_per_s() * 3600 / chip(name).usd_per_hour


V5P = chip("v5p").flops_per_s()
LLAMA_70B, LLAMA_405B = 6 * 70e9, 6 * 405e9  # FLOPs a token as the problems count them
PROBLEMS = {
    "TR-09": lambda: days(LLAMA_70B, 15e12, chips=18_823.5, flops_per_s=V5P, utilization=0.5),
    "TR-35": lambda: days(LLAMA_70B, 15e12, chips=89_600, flops_per_s=V5P, utilization=1),
    "AT-16": lambda: bill(chip("v5p"), chips=171, tokens=44 * 8960 * 86_400, tokens_per_s=171).days,
    "AT-18": lambda: years(1752),
    "AT-31": lambda: years(3369),
    "AT-37": lambda: days(LLAMA_405B, 15e12, chips=8 * 8960, flops_per_s=V5P, utilization=0.4),
    "AI-05": lambda: flops_per_usd("v5p"),
    "AI-06": lambda: flops_per_usd("v5e"),
    "GPU-54": lambda: days(1, 6.3e24, chips=4096, flops_per_s=990e12, utilization=0.45),
}


def test_every_problem_about_days_and_dollars_is_here():
    assert set(PROBLEMS) == set(rows("cost_problems.csv", ""))


@pytest.mark.parametrize("id", PROBLEMS)
def test_worked_problems_about_days_and_dollars(id):
    row, found = rows("cost_problems.csv", "")[id], PROBLEMS[id]()
    assert found == pytest.approx(float(row["computed_value"]), rel=1e-4)
    off = abs(found / float(row["expected_value"]) - 1)
    assert off <= float(row["tolerance"]) if row["checked"] == "yes" else off > 0.01


def test_a_bug_report_about_training_time():
    (report,) = rows("pipeline_cases.csv", "T").values()
    found = bill(chip("h100"), chips=1, tokens=8e9, tokens_per_s=409_600 / 37.8)
    assert found.chip_hours == pytest.approx(float(report["right_value"]), rel=1e-5)


# Bad input.

GOOD = {"chips": 8, "chip_mtbf_s": 1e8, "checkpoint_s": 30, "restart_s": 300}
RUN = {"chips": 8, "tokens": 1e9, "tokens_per_s": 1e5}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: checkpoint_interval_s(0, 1e4), "checkpoint_s=0 must be positive"),
        (lambda: checkpoint_interval_s(30, -1), "mtbf_s=-1 must be positive"),
        (lambda: checkpoint_interval_s(30, 1e4, formula="dally"), "formula='dally' is unknown; give 'young' or 'daly'"),
        (lambda: goodput(**GOOD | {"chips": 0}), "chips=0"),
        (lambda: goodput(**GOOD | {"chips": 2.5}), "chips=2.5 is not a size"),
        (lambda: goodput(**GOOD | {"chip_mtbf_s": float("inf")}), "chip_mtbf_s=inf is not finite"),
        (lambda: goodput(**GOOD | {"restart_s": -1}), "restart_s=-1 is too small"),
        (lambda: goodput(**GOOD, interval_s=0), "interval_s=0 must be positive"),
        (lambda: bill(chip("v5p"), **RUN | {"tokens": 0}), "tokens=0 must be positive"),
        (lambda: bill(chip("v5p"), **RUN | {"chips": "many"}), "chips='many' is not a number"),
        (lambda: bill(chip("v5p"), **RUN, goodput=1.2), "goodput=1.2 is a share of the time; give at most 1"),
        (lambda: bill(chip("v5p"), **RUN, goodput=0), "goodput=0 must be positive"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_a_chip_without_a_price_is_no_bill():
    unpriced = next(known for known in CHIPS.values() if "usd_per_hour" not in known.figures)
    with pytest.raises(ValueError, match=f"no sourced figure for usd_per_hour of {re.escape(unpriced.name)}"):
        bill(unpriced, **RUN)
