"""The worked problems of the field on sharding, and public reports of wrong numbers, recomputed through the library."""

import csv
import math
from pathlib import Path

import pytest

from scaling_lib import roofline, units
from scaling_lib.collectives import Group, all_gather, all_reduce, all_to_all, over, permute, reduce_scatter
from scaling_lib.hardware import chip, slice_of
from scaling_lib.sharding import Sharding

LINK = 3e10


def ring(n, **rest):
    return Group(sizes=(n,), wraps=(True,), link_bytes_per_s=LINK, **rest)


def switch(n):
    return Group(sizes=(n,), link_bytes_per_s=LINK)


# Textbooks leave out the (n - 1)/n, which `share` puts back.


def by_the_book(cost, group):
    return 1e6 * cost.bandwidth_s / group.share


V4, RING16 = slice_of("v4:4x4x4"), Group(sizes=(16,), wraps=(True,), link_bytes_per_s=4.5e10)
B, D = 1024, 4096
WHOLE = B * D * units.itemsize("bf16")

PROBLEMS = {
    "SH-04": lambda: Sharding.parse("A[E, F]").local_bytes({"E": 2048, "F": 8192}, {}),
    "SH-06": lambda: by_the_book(all_gather(2048 * 8192 * 2, RING16), RING16),
    "SH-10": lambda: 1e6 * all_gather(256, over(slice_of("v5e:4x4"), 0, hop_s=1e-6)).latency_s,
    "SH-12": lambda: _latency_bound_below(),
    "SH-14": lambda: by_the_book(all_gather(WHOLE / 4, over(V4, 0)), over(V4, 0)),
    "SH-15": lambda: by_the_book(all_gather(WHOLE, over(V4, 0, 1)), over(V4, 0, 1)),
    "SH-16": lambda: 1e6 * all_gather(1, over(V4, 0, 1, hop_s=1e-6)).latency_s,
    "SH-17": lambda: by_the_book(all_reduce(WHOLE / 16, over(V4, 2)), over(V4, 2)),
    "SH-19": lambda: by_the_book(all_gather(WHOLE / 4, over(V4, 0, 2)), over(V4, 0, 2)),  # idle links carry as much
    "SH-20": lambda: by_the_book(all_gather(WHOLE, over(V4)), over(V4)),
    "SH-21": lambda: 1e6 * all_gather(256, over(V4, 0, hop_s=1e-6)).seconds,
    "SH-13": lambda: _copies("A[I_X, J, K]", {"X": 4, "Y": 8, "Z": 2}),
    "SH-22": lambda: chip("v5p").flops_per_s() / (2 * chip("v5p").ici_link_bytes_per_s),
    "SH-24": lambda: _tokens_from_which_a_gathered_weight_hides(),
    "SH-26": lambda: all_to_all(WHOLE / 8, ring(8, ways=1)).seconds / all_gather(WHOLE, ring(8, ways=1)).seconds,
    "SH-28": lambda: all_to_all(1024**2 / 8, ring(8, ways=1)).link_bytes,
    "SH-30": lambda: all_gather(128 * 8192, ring(8)).seconds / reduce_scatter(128 * 2048, ring(8)).seconds,
    "SH-31": lambda: Sharding.parse("W[D, F]").local_bytes(BLOCK, {}),
    "SH-32": lambda: sum(Sharding.parse(w).local_bytes(BLOCK, FOUR) for w in ("V[D, F_XY]", "W[F_XY, D]")),
    "SH-33": lambda: 1e6 * 2 * roofline.bound(UP, chip("v5e")).math_s,
    "SH-34": lambda: 1e6 * PROBLEMS["SH-32"]() / 8.1e11,  # the bandwidth that the problem was stated with
}
BLOCK, FOUR = {"B": 128, "D": 8192, "F": 32768}, {"X": 2, "Y": 2}
UP = roofline.matmul(128, 8192, 32768) * 0.25
EXEMPT = {
    "SH-08": "a measurement without its program: 82 % of the bound, shown in the chapter",
    "SH-11": "a measurement without its program: 2.7 times the hops, shown in the chapter",
}


def _copies(array, mesh):
    sizes = {"I": 12, "J": 3, "K": 5}
    held = Sharding.parse(array).local_bytes(sizes, mesh) * math.prod(mesh.values())
    return held / Sharding.parse(array).local_bytes(sizes, {axis: 1 for axis in mesh})


def _tokens_from_which_a_gathered_weight_hides():
    """Tokens for which gathering W[D_X, F] over a ring takes as long as X[B, D] · W[D, F] does on each chip, by bisection."""
    group, low, high = over(slice_of("v5p:4x4x4"), 0), 1, 100_000
    gathered = all_gather(8192 * 28672 * 2, group).seconds / group.share
    while high - low > 1:
        tokens = (low + high) // 2
        hides = roofline.bound(roofline.matmul(tokens, 8192, 28672), chip("v5p")).math_s >= gathered
        low, high = (low, tokens) if hides else (tokens, high)
    return high


def _latency_bound_below():
    """Bytes that a hop of 1 µs must carry to be worth its latency, over one v5e link."""
    pair = over(slice_of("v5e:2x2"), 0, hop_s=1e-6)
    at_45_kb = permute(45_000, pair)
    assert (at_45_kb.binds, permute(44_999, pair).binds) == ("bandwidth", "latency")
    return at_45_kb.link_bytes


def rows(name):
    text = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8")
    return {row["id"]: row for row in csv.DictReader(text.splitlines())}


WORKED, CASES = rows("worked_problems.csv"), rows("cases_numeric.csv")


@pytest.mark.parametrize("id", PROBLEMS)
def test_worked_problems_of_the_field(id):
    row = WORKED[id]
    expected = float(row["computed_value"] if row["checked"] == "disagrees" else row["expected_value"])
    assert PROBLEMS[id]() == pytest.approx(expected, rel=max(float(row["tolerance"]), 1e-9))
    assert PROBLEMS[id]() == pytest.approx(float(row["computed_value"]), rel=1e-3)


def test_what_is_exempt_is_a_measurement():
    assert {id for id in EXEMPT if WORKED[id]["checked"] == "no" and not WORKED[id]["computed_value"]} == set(EXEMPT)


def test_the_book_forgot_that_the_array_is_sharded():
    row = WORKED["SH-17"]
    assert row["checked"] == "disagrees"
    assert PROBLEMS["SH-17"]() != pytest.approx(float(row["expected_value"]), rel=float(row["tolerance"]))


def _reduced_in_the_network():
    """GB/s of a port, from the published bus bandwidth of 480 GB/s, which counts 2(n - 1)/n of the array for any algorithm."""
    seconds = 2 * 7 / 8 / 480  # of an array of 1 GB
    return all_reduce(1.0, switch(8), in_network=True).link_bytes / seconds


def _expert_tokens_gb():
    """Tokens to their experts and back, forward and backward: every token is sent to k of them, 1/n of them on the device."""
    array = 8192 * 2 * 8192 * units.itemsize("bf16")
    return 4 * all_to_all(array, switch(8)).sent_bytes / 1e9


REPORTS = {
    "C03": lambda: 1e3 * all_gather(1e9, over(slice_of("h100:8x1"))).seconds,
    "C05": lambda: _reduced_in_the_network(),
    "C07": lambda: all_reduce(1.0, switch(8)).link_bytes,
    "C08": lambda: 1e3 * all_gather(1e9, over(slice_of("a100-80gb:8x1"))).seconds,
    "C12": lambda: _expert_tokens_gb(),
}
NO_COMPUTATION = {
    "C09": "a typing error of a unit in a page, without a number to compute",
    "C13": "a count of layers, doubled; the chapter on training prices expert parallelism",
}


@pytest.mark.parametrize("id", REPORTS)
def test_numbers_that_others_got_wrong(id):
    assert REPORTS[id]() == pytest.approx(float(CASES[id]["right_value"]), rel=1e-5)


def test_every_row_is_a_test_or_exempt():
    assert {id for id in CASES if id.startswith("C")} == {*REPORTS, *NO_COMPUTATION}
    assert {id for id in WORKED if id.startswith("SH")} == {*PROBLEMS, *EXEMPT}
