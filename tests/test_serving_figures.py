"""Figures of the simulated server: lines through its percentiles, bars as long as what requests went through."""

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from scaling_lib.serving import (
    Continuous,
    Disaggregated,
    Geometric,
    Poisson,
    Regular,
    Server,
    Static,
    Trace,
    Workload,
    simulate_serving,
)
from scaling_lib.show import serving as figures
from scaling_lib.show.palette import COLORS
from scaling_lib.units import human
from tests.test_explorers import assert_room, labels

mpl.use("agg")

SERVER = Server(
    prefill_s=lambda tokens: 0.005 + 1e-5 * tokens,
    step_s=lambda batch, tokens: 0.008 + 2e-5 * batch + 3e-8 * tokens,
    transfer_s=lambda tokens: 0.03,
)
ENGINES = {
    "static": Static(SERVER, 8), "continuous": Continuous(SERVER, 8), "chunks": Continuous(SERVER, 8, chunk=100),
    "apart": Disaggregated(SERVER, SERVER, 8),
}  # fmt: skip
WORKLOAD = Workload(arrivals=Poisson(4), prompt=Geometric(700), output=Geometric(20), requests=400)


def runs(engine, rates=(4, 8, 500)):
    return [simulate_serving(replace(WORKLOAD, arrivals=Poisson(rate)), engine) for rate in rates]


@pytest.fixture(scope="module")
def reports():
    return {label: runs(engine) for label, engine in ENGINES.items()}


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize("what", ["ttft_s", "tpot_s", "latency_s"])
def test_lines_go_through_the_percentiles_and_end_before_overload(reports, what):
    ax = figures.percentiles(reports, what, limit_s=0.3)
    half, most = (
        [line for line in ax.lines if line.get_linestyle() == dash and len(line.get_xdata()) == 2] for dash in ("-", "--")
    )
    assert [line.get_label() for line in half] == list(ENGINES)
    for (label, (first, second, over)), p50, p99 in zip(reports.items(), half, most, strict=True):
        assert over.overloaded, label
        assert list(p50.get_xdata()) == list(p99.get_xdata()) == [4, 8]
        assert list(p50.get_ydata()) == [getattr(run, what).p50.value for run in (first, second)]
        assert list(p99.get_ydata()) == [getattr(run, what).p99.value for run in (first, second)]
        assert p50.get_color() == p99.get_color()
        assert f"{label}: at 4 a second p50 {human(getattr(first, what).p50.value, 's')}" in figures.words(reports, what)
    assert len({line.get_color() for line in half}) == len(ENGINES)
    assert "(s)" in ax.get_ylabel()
    assert ax.lines[-1].get_ydata()[0] == 0.3


def test_the_band_is_the_interval(reports):
    ax = figures.percentiles({"continuous": reports["continuous"]})
    (band,) = ax.collections
    ys = band.get_paths()[0].vertices[:, 1]
    ends = [run.ttft_s.p99.value + sign * run.ttft_s.p99.half for run in reports["continuous"][:2] for sign in (-1, 1)]
    for end in ends:
        assert min(abs(ys - end)) < 1e-12


def boxes(drawing):
    """Bars as (what, left, width), by the row they are in."""
    found = {}
    for rect in ElementTree.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}rect"):
        if what := rect.get("class"):
            found.setdefault(float(rect.get("y")), []).append((what, float(rect.get("x")), float(rect.get("width"))))
    return [found[top] for top in sorted(found)]


@pytest.mark.parametrize("label", ENGINES)
def test_bars_are_as_long_as_what_requests_went_through(reports, label):
    report = reports[label][1]
    drawing = figures.timeline(report, first=30, count=9)
    r = report.requests
    began_s = r.arrival_s[30]
    rows = boxes(drawing)
    assert len(rows) == 9
    ends = [left + width for row in rows for _, left, width in row]
    per_s = (max(ends) - figures._LEFT) / (r.finish_s[30:39].max() - began_s)
    edges = {"waits": r.arrival_s, "prefill": r.start_s, "moves": r.first_s, "decode": r.decode_s, "end": r.finish_s}
    names = list(edges)
    for request, row in enumerate(rows, 30):
        drawn = {what: (left, width) for what, left, width in row}
        for name, following in itertools.pairwise(names):
            seconds = edges[following][request] - edges[name][request]
            assert (name in drawn) == (seconds > 0)
            if seconds > 0:
                left, width = drawn[name]
                assert left == pytest.approx(figures._LEFT + (edges[name][request] - began_s) * per_s, abs=0.05)
                assert width == pytest.approx(seconds * per_s, abs=0.05)
    assert ("moves" in {what for row in rows for what, _, _ in row}) == (label == "apart")
    assert_room(drawing.svg)
    assert ElementTree.fromstring(drawing.svg).get("aria-label") == drawing.description == repr(drawing)
    waited = r.start_s[31] - r.arrival_s[31]
    assert re.search(r"; 31 (waits|prefill) ", drawing.description)
    assert waited == 0 or f"31 waits {human(waited, 's')}" in drawing.description


def test_colors_are_those_of_the_busy_resource(reports):
    fills = {
        rect.get("class"): rect.get("fill")
        for rect in ElementTree.fromstring(figures.timeline(reports["apart"][1]).svg).iter("{http://www.w3.org/2000/svg}rect")
    }
    assert {"prefill": COLORS["mxu"], "decode": COLORS["hbm"], "moves": COLORS["dcn"]}.items() <= fills.items()


def test_long_prompts_and_late_requests_have_room():
    workload = Workload(arrivals=Regular(0.5), prompt=131_072, output=3, requests=100_003)
    report = simulate_serving(workload, Continuous(SERVER, 2))
    drawing = figures.timeline(report, first=100_000, count=3)
    assert_room(drawing.svg)
    assert {"100002", "131072+3"} <= {text for _, text in labels(drawing.svg)}


def test_what_cannot_be_drawn_is_refused(reports):
    many = {str(n): reports["static"] for n in range(7)}
    at_once = simulate_serving(Workload(arrivals=Trace([0, 0]), prompt=3, output=5), ENGINES["static"])
    one_token = simulate_serving(replace(WORKLOAD, output=1), ENGINES["static"])
    for call, words in (
        (lambda: figures.percentiles({}), "give 1 to 6"),
        (lambda: figures.percentiles(many), "give 1 to 6"),
        (lambda: figures.percentiles(reports, "ttft"), "did you mean 'ttft_s'"),
        (lambda: figures.percentiles({"over": reports["static"][-1:]}), "no run with a steady state"),
        (lambda: figures.percentiles({"burst": [at_once]}), "without a rate"),
        (lambda: figures.percentiles({"one": [one_token]}, "tpot_s"), "or without tpot_s"),
        (lambda: figures.timeline(at_once, count=3), "the report has requests 0 to 1"),
        (lambda: figures.timeline(reports["static"][0], count=25), "give up to 24"),
        (lambda: figures.timeline(reports["static"][0], first=-1), "first=-1"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
