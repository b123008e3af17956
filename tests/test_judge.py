"""Estimates of training steps against the TPU compiler: from records, and live where that is cheap."""

import importlib.util
import json
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from scaling_lib import transformer as tf
from scaling_lib.training import Plan
from scaling_lib.transformer import Transformer
from scaling_lib.xla import flash, judge, judged, llama, tpu
from scaling_lib.xla.tpu import records

needs_compiler = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no TPU compiler for this platform")
SMALL = Transformer(n_layers=8, d_model=1024, n_heads=6, n_kv_heads=2, head_dim=128, d_ff=1280, vocab_size=1792)
CASES = {case.name: case for case in judged.CASES}


@pytest.fixture(scope="module")
def every():
    return dict(zip(CASES, judged.judged(), strict=True))


def test_there_are_cases_of_every_kind():
    plans = [case.plan for case in judged.CASES]
    assert {case.model for case in judged.CASES} == {"Llama-3 8B", "Llama-3 70B", "Llama-3.1 405B"}
    assert {case.slice.partition(":")[0] for case in judged.CASES} == {"v5e", "v5p", "v6e"}
    assert len({plan.remat for plan in plans}) == 3
    assert any(plan.tensor == 1 for plan in plans)
    assert any(plan.tensor > 1 == plan.data for plan in plans)
    assert any(plan.tensor > 1 < plan.data for plan in plans)
    assert {plan.loss_chunks > 1 for plan in plans} == {False, True}


def test_arguments_are_exact_but_for_padding_to_tiles(every):
    for name, found in every.items():
        arguments, _ = found.memory
        if arguments.compiled is None:
            assert not found.fits
            continue
        model, plan = found.estimate.model, found.estimate.plan
        padded = model.D // plan.fsdp % 128 or model.L % 8  # norms of all layers lie in tiles of 8 × 128
        assert arguments.compiled >= arguments.predicted, name
        assert arguments.compiled == pytest.approx(arguments.predicted, rel=2e-4 if padded else 1e-12), name
    assert sum(found.memory[0].compiled == found.memory[0].predicted for found in every.values()) >= 12


def test_the_peak_is_within_a_tenth_and_what_fits_is_judged_right(every):
    for name, found in every.items():
        assert abs(found.memory[1].error) < 0.1, name
        assert found.agree, name
    assert sum(not found.fits for found in every.values()) == 3


def test_what_is_sent_is_explained(every):
    for name, found in every.items():
        if found.fits:
            assert abs(found.collectives.error_left) < 0.02, name


def test_surprises_are_named(every):
    def named(name):
        return " ".join(every[name].differences)

    assert "all-reduce in place of reduce-scatter along fsdp: +137 GB" in named("70b-v5p")
    assert "all-reduce" not in named("8b-fsdp")
    for words in ("collective matmuls", "float32", "weights gathered once more"):
        assert words in named("8b-fsdp")
    assert "the head gathered for each part of the loss" in named("70b-v6e-chunks")
    assert "each matmul's part of a gradient reduced on its own" in named("70b-tensor")


def test_the_tables_have_a_line_for_each(every):
    lines = judged.memory_table().splitlines()
    assert len(lines) == len(CASES) + 1
    assert "70b" not in lines[1]
    assert [line.endswith("no") for line in lines[1:]] == [not found.fits for found in every.values()]


def test_a_judgement_prints_and_is_json(every):
    shown = str(every["70b-tensor"])
    assert "fits, as was predicted" in shown
    assert "with these differences, GB" in shown
    data = json.loads(json.dumps(every["70b-tensor"].to_json()))
    assert data["fits"] is data["predicted_fits"] is True
    assert data["memory_bytes"]["peak"]["compiled"] == every["70b-tensor"].program.memory.peak_bytes
    assert data["sent_bytes"]["compiled"] == pytest.approx(sum(row["compiled_bytes"] for row in data["collectives"]))
    small = every["70b-v6e-small"]
    assert "does not fit, as was predicted" in str(small)
    assert "collectives" not in small.to_json()
    with pytest.raises(ValueError, match="does not fit"):
        _ = small.collectives


@pytest.mark.parametrize("name", ["8b-fsdp-chunks", "70b-v5p-tensor-mlp", "8b-v5p-mixed"])
def test_the_records_are_of_the_step_as_it_is_now(name, monkeypatch, every):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")
    assert CASES[name].judge().program.to_json() == every[name].program.to_json()


@needs_compiler
def test_a_record_holds_against_the_compiler(every):
    live = CASES["8b-fsdp-mlp"].judge(record=None).program
    assert records.differences(every["8b-fsdp-mlp"].program, live) == []


@needs_compiler
@pytest.mark.slow
def test_a_small_step_is_judged_live():
    plan = judge.in_jax(Plan(fsdp=2, tensor=2, data=2, remat="full"))
    found = judge.judge(SMALL, "v5e:2x4", plan, 16, T=512)
    arguments, _ = found.memory
    assert arguments.predicted == arguments.compiled
    assert found.fits
    assert found.agree
    assert abs(found.collectives.error_left) < 0.1
    kernels = found.program.code.kernels
    assert set(kernels.values()) == {8}
    assert len(kernels) == 4  # forward, again, and two backward


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pipeline": 2, "microbatches": 2}, "pipeline=2 is not in xla.llama"),
        ({"context": 2}, "context=2"),
        ({"microbatches": 2, "fsdp": 8}, "microbatches=2"),
        ({"zero": 1}, "zero=1 .*call these ways data"),
        ({"offload": "optimizer"}, "offload="),
        ({"dropout": True}, "dropout=True"),
        ({"master": "f32"}, "master='f32'"),
        ({"gradients": "bf16"}, "gradients='bf16' .*give 'f32' as weights has"),
        ({"math": "int8"}, "math='int8'"),
        ({"activations": "int8"}, "activations='int8'"),
        ({"remat": "full"}, "remat='full'"),
    ],
)
def test_what_the_llama_cannot_express_is_refused(changes, words):
    ways = 8 // (changes.get("pipeline", 1) * changes.get("context", 1))
    plan = judge.in_jax(Plan(fsdp=ways)).but(**changes)
    with pytest.raises(ValueError, match=words):
        judge.step(SMALL, plan, 16, T=640)


def test_more_tensor_ways_than_key_heads_are_refused():
    with pytest.raises(ValueError, match=r"tensor=6 .*at most 2, the key heads"):
        judge.step(SMALL, judge.in_jax(Plan(tensor=6)), 16, T=640)


def test_flash_attention_refuses_what_its_kernel_cannot_take():
    with pytest.raises(ValueError, match="block=100 is no multiple of 128"):
        flash.attention(block=100)
    query, key = (jax.ShapeDtypeStruct((1, 640, heads, 128), jnp.bfloat16) for heads in (6, 2))
    with pytest.raises(ValueError, match="T=640 is no multiple of block=512"):
        jax.eval_shape(flash.attention(), query, key, key, None)
    with pytest.raises(ValueError, match="keys of 640 tokens, queries of 128"):
        jax.eval_shape(flash.attention(), jax.ShapeDtypeStruct((1, 128, 6, 128), jnp.bfloat16), key, key, None)


@needs_compiler
def test_the_compiler_takes_the_kernel_on_one_device():
    query, key = (jax.ShapeDtypeStruct((1, 384, heads, 128), jnp.bfloat16) for heads in (6, 2))
    program = tpu.compile(lambda q, k, v: flash.attention()(q, k, v, None), query, key, key, slice="v5e:1x1", name="flash")
    assert len(program.code.kernels) == 1


@needs_compiler
def test_a_step_of_the_llama_does_the_flops_of_the_formula_on_a_slice():
    model = Transformer(n_layers=3, d_model=512, n_heads=8, n_kv_heads=4, head_dim=128, d_ff=1536, vocab_size=2048)
    mesh, optimizer = tpu.mesh("v5e:2x4", X=4, Y=2), llama.optimizer(10)
    params, tokens = llama.shapes(model), jax.ShapeDtypeStruct((8, 256), jnp.int32)
    tree = (params, jax.eval_shape(optimizer.init, params), {"tokens": tokens, "targets": tokens})
    step = partial(llama.train_step, optimizer=optimizer, dtype=jnp.bfloat16, remat=())
    program = tpu.compile(step, *llama.specs(mesh, tree), slice="v5e:2x4", donate=(0, 1))
    counted = tf.train_flops(model, T=256, B=8, causal=False, remat=())
    assert program.flops == pytest.approx(counted.hardware_flops / 8, rel=0.01)
    held = tf.parameters(model)
    arguments = 3 * 4 * ((held.total - held.norms) / 8 + held.norms / 4) + 2 * 4 * 8 * 256 / 4
    assert program.memory.arguments_bytes == pytest.approx(arguments, rel=0.01)
    assert program.memory.aliased_bytes > 0.99 * (arguments - 2 * 4 * 8 * 256 / 4)
    assert program.cycles > 0
    assert {one.axes for one in program.collectives} >= {("X",), ("Y",)}
