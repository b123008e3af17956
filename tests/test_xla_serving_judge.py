"""Estimates of decode steps and prefills against the TPU compiler: from records, and live where that is cheap."""

import importlib.util
import json

import pytest

from scaling_lib import inference
from scaling_lib.inference import Layout
from scaling_lib.transformer import Transformer
from scaling_lib.xla import tpu
from scaling_lib.xla.serving import judge, judged
from scaling_lib.xla.tpu import records

needs_compiler = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no TPU compiler for this platform")
SMALL = Transformer(n_layers=5, d_model=1024, n_heads=6, n_kv_heads=2, head_dim=128, d_ff=1280, vocab_size=1792)
CASES = {case.name: case for case in judged.CASES}


@pytest.fixture(scope="module")
def every():
    return dict(zip(CASES, judged.judged(), strict=True))


def test_the_record_holds_the_cases_and_nothing_else():
    assert sorted(program.name for program in tpu.record(judged.RECORD).programs) == sorted(CASES)


def test_there_are_cases_of_every_kind():
    layouts = [case.layout for case in judged.CASES]
    assert {case.model for case in judged.CASES} == {"Llama-3 8B", "Llama-3 70B"}
    assert {case.slice.partition(":")[0] for case in judged.CASES} == {"v5e", "v6e"}
    assert {case.phase for case in judged.CASES} == {"decode", "prefill"}
    for name in ("tensor", "sequence", "kv_batch", "width", "data"):
        assert any(getattr(layout, name) > 1 for layout in layouts)
    assert any(layout.tensor > 8 for layout in layouts)  # more than the key heads
    assert {(layout.weights, layout.kv) for layout in layouts} == {("bf16", "bf16"), ("int8", "bf16"), ("int8", "int8")}


def test_arguments_are_exact_but_for_scales_and_tokens(every):
    for name, found in every.items():
        arguments, _ = found.memory
        if arguments.compiled is None:
            assert not found.fits
            continue
        assert arguments.compiled >= arguments.predicted, name
        scales = CASES[name].layout.weights == "int8"
        assert arguments.compiled == pytest.approx(arguments.predicted, rel=2e-3 if scales else 2e-4), name


def test_the_peak_is_within_a_tenth_and_what_fits_is_judged_right(every):
    for name, found in every.items():
        assert abs(found.memory[1].error) < 0.1, name
        assert found.agree, name
    assert {name for name, found in every.items() if not found.fits} == {
        "8b-one-large", "8b-tensor-large", "8b-tensor-111", "70b-copies-24", "70b-tensor", "70b-prefill-large",
    }  # fmt: skip


def test_a_decode_step_holds_one_cache_and_copies_none(every):
    for name, found in every.items():
        if found.fits and CASES[name].phase == "decode":
            held, cache = found.program.memory, float(found.estimate.memory.cache)
            assert held.aliased_bytes == pytest.approx(cache, rel=1e-6), name
            assert held.peak_bytes - held.arguments_bytes < 0.1 * cache, name


def test_what_is_sent_is_what_was_predicted(every):
    """Blocks' results exactly; all of it within a hundredth, but where the compiler goes another way."""
    for name, found in every.items():
        if not found.fits or CASES[name].layout.devices == 1:
            continue
        rows = found.collectives
        predicted, compiled = (sum(getattr(row, part) for row in rows) for part in ("predicted_bytes", "compiled_bytes"))
        if name == "8b-width":  # all-reduces in place of reduce-scatters
            assert 1.1 * predicted < compiled < 1.3 * predicted
            continue
        assert predicted == pytest.approx(compiled, rel=0.01), name
        results = max(rows, key=lambda row: row.predicted_bytes)
        if CASES[name].layout.data == 1:
            assert results.kind == "all-reduce"
            assert results.predicted_bytes == pytest.approx(results.compiled_bytes, rel=0.01), name


def test_the_table_has_a_line_for_each(every):
    lines = judged.memory_table().splitlines()
    assert len(lines) == len(CASES) + 1
    assert [line.endswith("no") for line in lines[1:]] == [not found.fits for found in every.values()]


def test_a_judgement_prints_and_is_json(every):
    shown = str(every["8b-batch"])
    assert "fits, as was predicted" in shown
    assert "all-to-all kv_batch, MB" in shown
    data = json.loads(json.dumps(every["8b-batch"].to_json()))
    assert data["fits"] is data["predicted_fits"] is True
    assert data["memory_bytes"]["peak"]["compiled"] == every["8b-batch"].program.memory.peak_bytes
    assert {"axes", "kind", "predicted_bytes", "compiled_bytes"} == set(data["collectives"][0])
    small = every["70b-tensor"]
    assert "does not fit, as was predicted" in str(small)
    assert "collectives" not in small.to_json()
    with pytest.raises(ValueError, match="does not fit"):
        _ = small.collectives


@pytest.mark.parametrize("name", ["8b-one-int8-cache", "70b-copies", "8b-prefill-data", "8b-sequence"])
def test_the_records_are_of_the_step_as_it_is_now(name, monkeypatch, every):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")
    assert CASES[name].judge().program.to_json() == every[name].program.to_json()


@needs_compiler
@pytest.mark.parametrize("name", ["8b-tensor", "8b-tensor-large", pytest.param("8b-prefill-int8-cache", marks=pytest.mark.slow)])
def test_a_record_holds_against_the_compiler(name, every):
    live = CASES[name].judge(record=None).program
    assert records.differences(every[name].program, live) == []


@needs_compiler
@pytest.mark.slow
def test_the_largest_batch_that_fits_is_off_by_one_where_weights_and_cache_fill_a_device():
    layout, how = Layout(weights="int8"), {"context": 2048}
    most = inference.max_batch("Llama-3 8B", "v5e:1x1", layout, **how)
    found = [judge.judge("decode", "Llama-3 8B", "v5e:1x1", layout, most + more, **how).fits for more in (-1, 0)]
    assert found == [True, False]


@needs_compiler
def test_a_small_step_is_judged_live():
    found = judge.judge("decode", SMALL, "v5e:2x2", Layout(tensor=2, kv_batch=1, sequence=1, data=2), 24, context=2560)
    arguments, peak = found.memory
    assert arguments.compiled == pytest.approx(arguments.predicted, rel=1e-3)
    assert found.fits
    assert found.agree
    assert peak.error is not None
    reading = judge.judge("prefill", SMALL, "v5e:2x2", Layout(tensor=2, data=2), 6, context=512)
    assert set(reading.program.code.kernels.values()) == {5}
