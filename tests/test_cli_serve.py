"""`scaling-lib serve` held to the library, and bad input: one line with the number at fault and what would do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import validation
from scaling_lib.cli.quantities import duration
from scaling_lib.inference import Layout, Speed, serve
from scaling_lib.search import serving_pareto
from tests.test_cli_plan import facts, run

SEARCH = ["serve", "llama-3-8b", "v5e:2x2", "--weights", "int8", "--kv", "int8"]
ONE = ["serve", "llama-3-70b", "v5e:4x4", "--weights", "int8", "--kv", "int8", "--layout", "tensor=8,kv_batch=2"]
INT8 = Layout(weights="int8", kv="int8")


def same(shown, library):
    """As JSON, without the seconds that a search took."""
    right = json.loads(json.dumps(library))
    assert {**shown, "seconds": 0} == {**right, "seconds": 0}


def test_the_front_is_that_of_the_search():
    shown = facts(*SEARCH, "--input", "2048", "--output", "256", "--slo-tpot", "25ms")
    same(shown, serving_pareto("Llama-3 8B", "v5e:2x2", input=2048, output=256, tpot_s=0.025, base=INT8).to_json())
    assert shown["best"]["tpot_s"] <= 0.025


def test_every_option_reaches_the_search():
    shown = facts(
        *SEARCH[:2], "v6e", "--input", "1Ki", "--output", "100", "--slo-ttft", "0.5s", "--engine", "disaggregated",
        "--weights", "fp8", "--kv", "fp8", "--math", "fp8", "--most-chips", "4", "--overlap", "none",
        "--efficiency", "0.5", "--hbm-efficiency", "0.8", "--price", "2.5",
    )  # fmt: skip
    library = serving_pareto(
        "Llama-3 8B", "v6e", input=1024, output=100, ttft_s=0.5, engine="disaggregated",
        base=Layout(weights="fp8", kv="fp8", math="fp8"), most_chips=4, usd_per_chip_hour=2.5,
        speed=Speed(overlap="none", efficiency=0.5, hbm_efficiency=0.8),
    )  # fmt: skip
    same(shown, library.to_json())


def test_one_layout_is_priced_as_serve_prices_it():
    shown = facts(*ONE, "--batch", "32", "--chunk", "512", "--cached", "1000", "--block", "16")
    layout = INT8.but(tensor=8, kv_batch=2)
    library = serve("Llama-3 70B", "v5e:4x4", layout, input=2048, output=256, batch=32, chunk=512, cached=1000, block=16)
    same(shown, library.to_json() | {"meets": True})
    static = facts(*ONE, "--engine", "static", "--batch", "4")
    assert static["engine"] == "static"


def test_a_table_and_words():
    status, out, err = run(*SEARCH, "--slo-tpot", "25ms", "--keep", "4")
    assert (status, err) == (0, "")
    table, words = out.split("\n\n", 1)
    assert len(table.splitlines()) == 2 + 4
    assert table.splitlines()[0].split()[:3] == ["slice", "chips", "splits"]
    assert "best: Llama-3 8B on v5e:2x2" in words
    found = serving_pareto("Llama-3 8B", "v5e:2x2", input=2048, output=256, tpot_s=0.025, base=INT8)
    assert f"{found.front[-1].usd_per_million:.2f}" in table.splitlines()[-1]
    assert f"{found.front[0].usd_per_million:.2f}" in table.splitlines()[2]
    status, out, _ = run(*ONE, "--batch", "32")
    assert status == 0
    assert "tensor 8 · kv_batch 2" in out


def test_a_narrow_terminal_shows_a_list(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = run(*SEARCH, "--keep", "2")
    assert max(map(len, out.splitlines())) <= 60
    assert "USD/M tokens" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*SEARCH, "--slo-ttft", "1ms"], "None will do: the first token takes at least"),
        (["serve", "llama-3-70b", "v5e:2x2"], "None will do: one sequence does not fit"),
        ([*ONE, "--batch", "32", "--slo-tpot", "10ms"], "too slow: a token may take 10 ms and takes"),
        ([*ONE, "--batch", "32", "--slo-ttft", "10ms"], "too slow: a first token may take 10 ms and takes"),
        ([*ONE, "--batch", "1000"], "does not fit: 1000 sequences are more than"),
    ],
)
def test_where_none_will_do_the_status_is_three(arguments, says):
    status, out, err = run(*arguments)
    assert (status, err) == (3, "")
    assert says in out
    assert facts(*arguments, status=3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "llama-9", "v5e:2x2"], "did you mean"),
        (["serve", "llama-3-8b", "v5e:3x3"], "cannot be built from v5e"),
        ([*SEARCH, "--slo-tpot", "25"], "--slo-tpot='25' does not read as a time; write it like 25ms"),
        ([*SEARCH, "--slo-tpot", "0ms"], "--slo-tpot=0ms must be above zero"),
        ([*SEARCH, "--slo-ttft", "-1s"], "--slo-ttft='-1s' does not read as a time"),
        ([*SEARCH, "--input", "0"], "--input=0 is out of range"),
        ([*SEARCH, "--output", "some"], "--output='some' does not read as a number"),
        ([*SEARCH, "--batch", "8"], "--batch is for one layout; give --layout tensor=8 as well"),
        ([*SEARCH, "--engine", "static"], "engine='static' is no engine to search for"),
        ([*SEARCH, "--overlap", "some"], "overlap='some' is unknown"),
        ([*SEARCH, "--efficiency", "2"], "efficiency=2.0 is a part of the peak"),
        ([*SEARCH, "--price", "0"], "usd_per_chip_hour=0.0 must be positive"),
        ([*SEARCH, "--weights", "int9"], "dtype='int9' is unknown"),
        ([*SEARCH, "--math", "fp8"], "dtype='fp8' has no sourced peak on v5e"),
        ([*ONE[:-1], "tensor=16,tensor=2"], "--layout gives tensor twice"),
        ([*ONE[:-1], "tenser=16"], "--layout names 'tenser', which no layout has; did you mean 'tensor'"),
        ([*ONE[:-1], "tensor"], "--layout tensor does not read as name=value"),
        ([*ONE[:-1], "tensor=two"], "--layout tensor=two is no whole number"),
        ([*ONE[:-1], " "], "--layout is empty"),
        ([*ONE[:-1], "tensor=4"], "tensor=4 is 4 devices, but v5e:4x4 has 16; tensor=16 would do"),
        ([*ONE, "--batch", "64", "--chunk", "1"], "chunk=1 tokens a step cannot bring in"),
        ([*ONE, "--cached", "2048"], "leaves none to compute"),
    ],
)
def test_bad_input_is_one_line(arguments, says):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_help_has_examples_that_run():
    status, out, _ = run("serve", "--help")
    assert status == 0
    lines = [line.strip() for line in out.splitlines() if line.strip().startswith("scaling-lib serve ")]
    assert len(lines) == 4
    for line in lines:
        assert run(*line.split()[1:])[0] == 0, line


def test_published_results_are_validated():
    report = validation.inference()
    assert facts("validate", "serving") == json.loads(json.dumps(report.to_json()))
    status, out, _ = run("validate", "serving", "--rows")
    assert status == 0
    assert "faster than their bound: none" in out
    assert len(out.split("\n\n")[-1].splitlines()) == 2 + len(report.rows)


@given(st.integers(1, 10**6), st.sampled_from([("s", 1), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9)]))
def test_times(count, unit):
    name, seconds = unit
    assert duration("--slo", f"{count}{name}") == pytest.approx(count * seconds)
    assert duration("--slo", f" {count}.50 {name} ") == pytest.approx((count + 0.5) * seconds)
