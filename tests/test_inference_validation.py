"""Published results of serving: all accounted for, none faster than its bound, and predicted as well as claimed."""

import csv
import json
import re
from dataclasses import replace
from importlib import resources

import pytest

from scaling_lib import catalog, units, validation
from scaling_lib.catalog.serving import WORDS, inference_runs, read_inference_runs
from scaling_lib.inference import Speed, decode_step, serve
from scaling_lib.transformer import MODELS
from scaling_lib.validation.served import Constants, server, why_unusable
from scaling_lib.validation.serving import GRID, Accuracy, best

RUNS = {run.id: run for run in inference_runs()}


@pytest.fixture(scope="module")
def report():
    return validation.inference()


def text_rows():
    text = resources.files(catalog).joinpath("published_inference.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


# --- The claims. ---


def test_nothing_measured_is_faster_than_its_bound(report):
    assert report.violations == ()
    assert len(report.rows) == 111
    for row in report.rows:
        assert 0.02 < row.bound_s / row.measured_s < 0.7, row.id


def test_decoding_is_predicted_as_well_as_claimed(report):
    """The goal was 60 % within 25 %, and a prototype reached 20 of 27."""
    assert report.decode.rows == 24
    assert report.decode.near >= 0.8
    assert report.decode.median <= 0.20
    assert abs(report.decode.bias) <= 0.05


def test_results_without_a_batch_are_predicted_half_of_the_time_and_that_is_said(report):
    """None of them was fitted. The one-chip ones are near; where GPUs exchange much, what they exchange was not learned."""
    assert report.largest_batch.rows == 82
    assert 0.35 <= report.largest_batch.near <= 0.6
    assert report.largest_batch.median <= 0.30
    assert report.groups["largest batch: Llama-3.1 8B h200"].near == 1
    text = str(report)
    for name in report.not_predictive:
        assert report.groups[name].near < 0.5
        assert name in text
    assert "prefill: PaLM 540B v4" in report.not_predictive
    assert "largest batch: Llama-3.1 405B b200" in report.not_predictive
    assert not any(name.startswith("decode: JetStream") for name in report.not_predictive)


def test_no_result_is_predicted_with_constants_that_it_was_fitted_on(report):
    fitted = {row.id: row for row in report.priced("decode")}
    servers = {name: server(RUNS[name]) for name in fitted}
    name = "I136"  # one of four on GPUs
    others = [s for s in servers.values() if s.chip_kind == "gpu" and s.run.id != name]
    assert len(others) == 3
    constants = best([[one.seconds(c) / one.measured_s - 1 for c in GRID] for one in others])
    assert fitted[name].constants == constants
    assert fitted[name].predicted_s == servers[name].seconds(constants)
    assert {row.constants for row in report.priced("largest batch") if row.chip != "v5e"} == {report.constants["gpu"]}


# --- Every result is accounted for. ---


def test_every_result_is_a_row_or_has_its_reason(report):
    ids = [row.id for row in report.rows]
    assert len(ids) == len(set(ids))
    assert set(ids) | set(report.unusable) == set(RUNS)
    assert not set(ids) & set(report.unusable)
    assert len(RUNS) == 117
    reasons = {why: sum(each == why for each in report.unusable.values()) for why in report.unusable.values()}
    assert reasons == {"no time": 1, "no figures of the chip": 4, "the model's shape is unknown": 1}
    unpriced = {row.id: row.why for row in report.rows if row.error is None}
    assert set(unpriced) == {"I009", "I039", "I144", "I150"}
    assert (unpriced["I009"], unpriced["I144"]) == ("no batch", "no ways")
    assert "expert=72 does not divide the 256 experts" in unpriced["I150"]


def test_sources_are_told_for_each_result():
    for run in RUNS.values():
        assert run.source
        assert re.fullmatch(r"20\d\d-\d\d", run.date)
        assert not re.search(r"copy in a public|from memory|same$", run.source + run.note)
    assert {run.model for run in RUNS.values() if why_unusable(run) is None} <= set(MODELS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id": "I002"}, "id='I002' comes twice"),
        ({"value": ""}, "run 'I001': value='' is empty"),
        ({"value": "fast"}, "value='fast' is no number"),
        ({"value": "-1"}, "value='-1' must be positive"),
        ({"phase": "training"}, "phase='training' is unknown; give one of 'prefill', 'decode', 'serving'"),
        ({"source": ""}, "source='' is empty"),
        ({"batch": "1.5"}, "batch='1.5' is no number"),
        ({"chips": ""}, "chips='' is empty"),
        ({"speed": "3"}, "column 'speed' is unknown"),
    ],
)
def test_bad_rows_are_refused(changes, says):
    first, second = text_rows()[:2]
    with pytest.raises(ValueError, match=says):
        read_inference_runs([first | changes, second])


def test_a_missing_column_is_named():
    row = text_rows()[0]
    del row["kv"]
    with pytest.raises(ValueError, match="column 'kv' is missing"):
        read_inference_runs([row])
    assert {row[name] for row in text_rows() for name in ["metric"]} <= set(WORDS["metric"])


def test_results_that_cannot_be_used():
    run = RUNS["I014"]
    assert why_unusable(run) is None
    assert why_unusable(replace(run, model="Nameless")) == "the model's shape is unknown"
    with pytest.raises(ValueError, match="'I012' cannot be priced: no time"):
        server(RUNS["I012"])
    assert server(replace(RUNS["I041"], output=None)).why == "no lengths"


# --- What each result is taken to be. ---


def test_measured_seconds():
    assert server(RUNS["I002"]).measured_s == pytest.approx(1.82 / 64, rel=1e-5)
    assert server(RUNS["I014"]).measured_s == 128 / 8249
    assert server(RUNS["I041"]).measured_s == 1 / 6651
    assert server(RUNS["I039"]).measured_s == pytest.approx(16384 / 84038.3)
    eight = server(RUNS["I135"])  # eight replicas of one GPU
    assert eight.measured_s == pytest.approx(6448 / 31302.7)
    assert (eight.priced.batch, eight.priced.decode.slice.chips) == (806, 1)


def test_static_caches_are_read_whole_and_chunks_ride_along():
    static = server(RUNS["I014"]).priced
    assert (static.input, static.output, static.decode.cache) == (219, 292, 2048)
    assert static.decode.facts[0].kv_read_bytes == static.decode.facts[0].kv_bytes
    assert server(RUNS["I030"]).priced.chunk == 512
    assert server(RUNS["I035"]).priced.chunk is None
    palm = server(RUNS["I002"]).priced
    assert (palm.model.N, palm.layout.width, palm.context) == (64, 8, 2048 + 32)


@pytest.mark.parametrize("id", ["I002", "I014", "I030", "I041"])
def test_constants_do_what_speed_does(id):
    """Seconds at constants are those of the library at such efficiencies; collectives that do not hide start later."""
    one = server(RUNS[id])
    constants = Constants(efficiency=0.5, hbm_efficiency=0.8, start_s=7e-6)
    speed = Speed(efficiency=0.5, hbm_efficiency=0.8, start_s=7e-6)
    p = one.priced
    if id == "I002":
        again = decode_step(p.model, p.slice, p.layout, p.batch, context=p.context, speed=speed).seconds
    else:
        d = p.decode
        how = {"cache": 2048, "reads": "all"} if id == "I014" else {"block": 64} if id == "I041" else {}
        served = serve(
            d.model, d.slice, d.layout, input=p.input, output=p.output, batch=p.batch, chunk=p.chunk, speed=speed, **how
        )
        again = served.tpot_s if one.kind == "decode" else 1 / served.tokens_per_s
    assert one.seconds(constants) == pytest.approx(again, rel=1e-9)


# --- Counting, text and data. ---


def test_accuracy(report):
    row = report.priced("decode")[0]
    rows = [replace(row, predicted_s=row.measured_s * factor) for factor in (1.25, 0.5, 1.1, 1.4)]
    found = Accuracy.of(rows)
    assert (found.rows, found.near) == (4, 0.5)
    assert found.median == pytest.approx((0.25 + 0.4) / 2)
    assert found.bias == pytest.approx((0.25 - 0.5 + 0.1 + 0.4) / 4)
    assert found.predictive
    with pytest.raises(ValueError, match="none of these results is priced"):
        Accuracy.of([replace(row, predicted_s=None)])


def test_the_best_constants_have_most_errors_near_then_the_least():
    far = [[1.0] * len(GRID)]
    near = [row.copy() for row in far * 2]
    near[0][5], near[1][5] = 0.2, 0.9
    near[0][9], near[1][9] = 0.2, 0.8
    assert best(near) == GRID[9]
    near[1][3], near[0][3] = 0.24, 0.25
    assert best(near) == GRID[3]


def test_text_and_json_say_the_same(report):
    text, facts = str(report), json.loads(json.dumps(report.to_json()))
    assert f"{report.decode.near:5.0%} of  24" in text
    assert "faster than their bound: none" in text
    assert facts["violations"] == []
    assert facts["decode"]["near"] == report.decode.near
    assert len(facts["rows"]) == len(report.rows)
    for kind, constants in report.constants.items():
        assert f"{kind}: {constants.efficiency:g} of the peak" in text
        assert units.human(constants.start_s, "s") in text
    for row in facts["rows"]:
        if row["error"] is not None:
            assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
    for row in report.priced("decode"):
        assert (abs(row.error) > 0.25) == (f"{row.id} {row.model} {row.chip}" in text)
