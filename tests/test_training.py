"""Training: plans that cannot run and why, memory and traffic of small cases by hand, time, and arrays of plans."""

import dataclasses
import math
import random

import numpy as np
import pytest

from scaling_lib import collectives, hardware
from scaling_lib import transformer as tf
from scaling_lib.hardware import slice_of
from scaling_lib.training import Plan, bounds, estimate, why_not
from scaling_lib.training.facts import Facts
from scaling_lib.training.lighter import lighter
from scaling_lib.training.memory import How, Ways, ways_of
from scaling_lib.training.step import INSIDE, OUTSIDE, Rates, price
from scaling_lib.training.wires import GROUPS, Wires, placements, wires
from scaling_lib.transformer import Experts, Transformer

LLAMA_8B, LLAMA_70B, MIXTRAL = tf.model("Llama-3 8B"), tf.model("Llama-3 70B"), tf.model("Mixtral 8x7B")
CUBE, POD = slice_of("v5p:8x8x8"), slice_of("v5e:16x16")
SMALL = Transformer(n_layers=6, d_model=60, n_heads=6, n_kv_heads=2, head_dim=14, d_ff=36, vocab_size=105, name="small")
MLP = Transformer(n_layers=30, d_model=8192, n_heads=1, head_dim=1, d_ff=32768, vocab_size=1, gated_mlp=False)  # mostly


# --- Plans that cannot run. ---


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fsdp": 64}, "fsdp=64 is 64 devices, but v5p:8x8x8 has 512; fsdp=512 would do"),
        ({"fsdp": 3, "tensor": 7}, "fsdp=3 · tensor=7|tensor=7 · fsdp=3 is 21 devices"),
        ({"tensor": 512}, "tensor=512 does not divide the 64 heads"),
        ({"tensor": 2, "expert": 256}, "expert=256, but Llama-3 70B has no experts; give expert=1"),
        ({"pipeline": 32, "fsdp": 16}, "pipeline=32 does not divide the 80 layers .* give one of 1, 2, 4, .* uneven_stages=True"),
        (
            {"fsdp": 512, "microbatches": 3},
            "batch=1024 sequences do not divide .* 512 replicas of 3 microbatches; give batch=1536",
        ),
        ({"context": 512}, "T=1000 tokens do not divide by context · tensor = 512"),
        ({"fsdp": 128, "pipeline": 4, "microbatches": 2, "schedule": "zero-bubble"}, "microbatches=2 is below stages=4"),
        ({"fsdp": 512, "placement": {"fsdp": (0, 1)}}, "placement uses 1 of axis 2, which has 8"),
        ({"fsdp": 512, "placement": {"fsdp": (0, 1), "tensor": 2}}, "placement has 8 ways for tensor, but tensor=1"),
        ({"fsdp": 512, "placement": {"fdsp": 0}}, "placement names 'fdsp'"),
        ({"fsdp": 512, "placement": {"fsdp": (0, 3)}}, "names 3; v5p:8x8x8 has 'chip', 0, 1, 2, 'dcn'"),
    ],
)
def test_a_plan_that_cannot_run_says_which_number_and_what_would_do(changes, says):
    with pytest.raises(ValueError, match=says):
        estimate(LLAMA_70B, CUBE, Plan(**changes), 1024, T=1000)
    assert why_not(Plan(**changes), LLAMA_70B, CUBE, 1024, 1000)


@pytest.mark.parametrize(
    ("model", "plan", "says"),
    [
        (SMALL.but(n_kv_heads=3), Plan(tensor=2, data=4), "tensor=2 and the 3 key heads of small: one must divide the other"),
        (SMALL.but(d_ff=35), Plan(tensor=2, data=4), "does not divide the hidden width 35 of small; give one of 1$"),
        (
            MIXTRAL.but(d_ff=0, n_heads=24, d_model=3072, n_kv_heads=8),
            Plan(expert=3, data=8),
            "expert=3 .* give one of 1, 2, 4, 8",
        ),
        (SMALL, Plan(pipeline=8, uneven_stages=True), "pipeline=8 chunks are more than the 6 layers of small; give at most 6"),
    ],
)
def test_models_that_a_plan_cannot_split(model, plan, says):
    with pytest.raises(ValueError, match=says):
        estimate(model, "h100:8x3" if plan.devices == 24 else "h100:8x1", plan, 24, T=24)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"zero": 4}, "zero=4"),
        ({"zero": 0, "fsdp": 8, "data": 2}, "zero=0 shares nothing out, but fsdp=8; call these ways data=16"),
        ({"schedule": "1f2b"}, "'1f2b' is unknown; did you mean '1f1b'"),
        ({"offload": "weights"}, "offload holds 'weights'"),
        ({"virtual_stages": 2}, "virtual_stages=2 with pipeline=1"),
        ({"tensor": 0}, "tensor=0 is not a size"),
        ({"context_by": "tree"}, "context_by='tree'"),
        ({"master": "f33"}, "'f33' is unknown"),
    ],
)
def test_values_that_no_plan_has(arguments, says):
    with pytest.raises(ValueError, match=says):
        Plan(**arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"batch": 0}, "batch=0"),
        ({"T": 0}, "T=0"),
        ({"efficiency": 1.2}, "efficiency=1.2"),
        ({"ici": "fast"}, "ici=.fast. is neither"),
        ({"hop_s": -1e-6}, "hop_s=-1e-06"),
        ({"start_s": -1e-6}, "start_s=-1e-06"),
        ({"overlap": "half"}, "overlap='half'"),
        ({"overlap": {"tesnor": 0.5}}, "did you mean 'tensor'"),
        ({"overlap": {"tensor": 2}}, "is a share"),
        ({"model": "Lama-3 8B"}, "did you mean"),
        ({"slice": "v5p:8x8x7"}, "nearest"),
    ],
)
def test_arguments_that_make_no_sense(arguments, says):
    given = {"model": LLAMA_8B, "slice": CUBE, "plan": Plan(fsdp=512), "batch": 512, "T": 1024} | arguments
    with pytest.raises(ValueError, match=says):
        estimate(given.pop("model"), given.pop("slice"), given.pop("plan"), given.pop("batch"), **given)


def test_a_model_that_cannot_fit_is_a_result():
    priced = estimate(LLAMA_70B, "v5e:2x2", Plan(fsdp=4, remat="full"), 4, T=8192)
    assert not priced.fits
    assert priced.memory.total > priced.usable_bytes
    assert "does not fit" in str(priced)


# --- Memory by hand. ---


def test_weights_gradients_and_optimizer_by_hand():
    """Two tensor, three fsdp ways: 6 layers of 60 x (6 + 2 + 2 + 6) x 14 attention, 3 x 60 x 36 feed-forward and two norms."""
    plan = Plan(tensor=2, fsdp=3, gradients="f32", sequence_parallel=False)
    facts = Facts.of(SMALL, plan, T=7, causal=True)
    layer = 60 * (6 + 2 + 2 + 6) * 14 / 2 + 3 * 60 * 36 / 2 + 2 * 60  # norms are whole
    assert facts.layer_weights == 6 * layer
    assert (facts.first_weights, facts.last_weights) == (60 * 105 / 2, 60 * 105 / 2 + 60)
    memory = price(facts, ways_of(plan, SMALL, 6), How.of(plan, SMALL), dict.fromkeys(GROUPS, Wires(uses=())), rates()).first
    held = (6 * layer + 60 * 105 + 60) / 3
    assert (memory.weights, memory.gradients, memory.optimizer) == pytest.approx((2 * held, 4 * held, 12 * held))


def rates():
    return Rates.of(CUBE, Plan())


def test_key_heads_are_repeated_where_tensor_ways_are_more():
    few = Facts.of(LLAMA_70B, Plan(tensor=8), T=512, causal=True)
    many = Facts.of(LLAMA_70B, Plan(tensor=32), T=512, causal=True)
    assert many.keys_bytes == few.keys_bytes == 512 * 2 * 128 * 2
    kv = 80 * 2 * 8192 * 128
    whole = 80 * 2 * 8192  # norms
    assert few.layer_weights - kv - whole == 4 * (many.layer_weights - kv - whole)


def test_what_a_plan_does_to_memory():
    def memory(**changes):
        plan = Plan(**{"fsdp": 64, "tensor": 8, "remat": "full", **changes})
        return estimate(LLAMA_70B, CUBE, plan, 512, T=8192).memory

    base = memory()
    assert memory(zero=2).weights == 64 * base.weights
    assert memory(zero=1).gradients == 64 * base.gradients
    assert memory(zero=1).optimizer == base.optimizer
    assert memory(fsdp=32, data=2).optimizer == 2 * base.optimizer
    assert memory(loss_chunks=8).logits == base.logits / 8
    assert memory(microbatches=4).logits == base.logits / 4
    assert memory(offload="optimizer").optimizer == 0
    assert memory(offload="activations").activations < base.activations < memory(remat="none").activations
    assert memory(sequence_parallel=False).activations > 7 * memory(remat="full").activations / 4
    assert memory(weights="f32", master=None).optimizer == base.optimizer * 8 / 12
    assert memory(fsdp=8, context=8).weights == base.weights  # context ways share states too


def test_a_pipeline_keeps_as_many_microbatches_as_its_schedule_says():
    plan = Plan(fsdp=8, tensor=8, pipeline=8, microbatches=16, remat="full")
    by = {s: estimate(LLAMA_70B, CUBE, plan.but(schedule=s), 128, T=8192).step.first for s in ("1f1b", "gpipe")}
    one = Facts.of(LLAMA_70B, plan, T=8192, causal=True)
    assert by["gpipe"].activations - by["1f1b"].activations == pytest.approx((16 - 8) * one.kept_bytes / 8)


def test_the_last_stage_has_head_and_logits_and_a_copy_of_a_tied_table():
    model = tf.model("Qwen3 4B")
    plan = Plan(pipeline=4, zero=0, data=2, microbatches=4)
    step = estimate(model, "h100:8x1", plan, 8, T=512).step
    assert step.last.logits > 0 == step.first.logits
    assert step.last.weights - step.first.weights == 2 * model.D  # tables alike; the last norm besides
    alone = estimate(model, "h100:8x1", Plan(data=8, zero=0), 8, T=512).step
    assert alone.first == alone.last
    assert alone.last.weights == 2 * tf.parameters(model).total


def test_a_chip_of_two_devices():
    plan = Plan(fsdp=128, remat="full")
    priced = estimate(LLAMA_8B, "tpu7x:4x4x4", plan, 128, T=8192)
    assert priced.memory_bytes_per_chip == 2 * priced.memory.total
    assert priced.usable_bytes == hardware.chip("tpu7x").usable_hbm_bytes / 2
    assert priced.plan.placement["fsdp"] == {"chip": 2, 0: 4, 1: 4, 2: 4}


# --- Traffic. ---


def test_one_chip_has_no_traffic_and_no_bubble():
    priced = estimate(LLAMA_8B, "v5p:1x1x1", Plan(microbatches=2), 4, T=512)
    assert priced.collectives == ()
    assert set(priced.parts_s) == {"math", "elementwise", "optimizer"}


def moved(plan, model=LLAMA_8B, slice=CUBE, batch=512, T=1024):
    """Bytes by part; an all-reduce counts twice."""
    totals = dict.fromkeys(("fsdp", "data", "tensor", "context", "expert", "pipeline"), 0.0)
    for row in estimate(model, slice, plan, batch, T=T).collectives:
        totals[row.part] += row.total_bytes * (2 if row.kind == "all-reduce" else 1)
    return totals


def test_bytes_of_data_parallelism_by_stage():
    """bf16, of N weights: an all-reduce is 4 N; ZeRO-1 and 2 scatter and gather as much, ZeRO-3 gathers once more."""
    N = tf.parameters(LLAMA_8B).total
    assert moved(Plan(data=512, zero=0)) == {**dict.fromkeys(moved(Plan(fsdp=512)), 0), "data": 4 * N}
    for zero in (1, 2):
        assert moved(Plan(fsdp=512, zero=zero))["fsdp"] == 4 * N
    table, tokens = LLAMA_8B.V * LLAMA_8B.D, 1024 * LLAMA_8B.D
    head = table + LLAMA_8B.D  # gathered once for both passes; of the embedding tokens travel instead of the table, and back
    assert moved(Plan(fsdp=512))["fsdp"] == 6 * (N - table - head) + 4 * head + 2 * 2 * tokens
    both = moved(Plan(fsdp=64, data=8))
    assert both["data"] == 4 * N / 64  # each device reduces its share


def test_bytes_of_gradient_accumulation():
    N = tf.parameters(LLAMA_8B).total
    assert moved(Plan(fsdp=128, data=4, microbatches=4), batch=2048)["fsdp"] == pytest.approx(
        4 * moved(Plan(fsdp=128, data=4), batch=512)["fsdp"]
    )
    assert moved(Plan(fsdp=512, zero=2, microbatches=4), batch=2048)["fsdp"] == (4 + 1) * 2 * N
    assert moved(Plan(fsdp=512, zero=1, microbatches=4), batch=2048)["fsdp"] == 2 * 2 * N


def test_what_a_device_sends():
    """An all-reduce sends its array nearly twice, a permute all of it."""
    rows = {r.part: r for r in estimate(LLAMA_8B, CUBE, Plan(data=64, pipeline=8, microbatches=8, zero=0), 512, T=64).collectives}
    assert rows["data"].sent_bytes == rows["data"].total_bytes * 2 * 63 / 64
    assert rows["pipeline"].sent_bytes == rows["pipeline"].total_bytes


def test_tensor_parallelism_by_hand():
    """Two blocks a layer, and embedding and head: an all-reduce each way for each, or its two halves."""
    stream = 512 // 64 * 1024 * LLAMA_8B.D * 2
    pairs = 2 * (2 * LLAMA_8B.L + 1)
    plain = Plan(fsdp=64, tensor=8, sequence_parallel=False)
    assert moved(plain)["tensor"] == 2 * pairs * stream
    assert moved(plain.but(sequence_parallel=True))["tensor"] == (2 * pairs + 2 * LLAMA_8B.L + 1) * stream  # inputs once more
    assert moved(plain.but(remat="full"))["tensor"] == 2 * (pairs + 2 * LLAMA_8B.L) * stream  # Megatron runs all again
    assert moved(plain.but(remat=()))["tensor"] == 2 * (pairs + LLAMA_8B.L) * stream  # JAX not the last result of a layer


def test_ring_attention_moves_what_a_gather_would():
    ring, gather = (moved(Plan(fsdp=64, context=8, context_by=by))["context"] for by in ("ring", "gather"))
    keys = 512 // 64 * 1024 * 2 * LLAMA_8B.K * LLAMA_8B.H * 2
    assert gather == 3 * LLAMA_8B.L * keys
    assert ring == gather * 7 / 8


def test_pipelines_pass_a_microbatch_on_for_each_chunk_both_ways():
    plan = Plan(fsdp=64, pipeline=8, microbatches=8, schedule="interleaved", virtual_stages=4)
    stream = 1 * 1024 * LLAMA_8B.D * 2
    assert moved(plan)["pipeline"] == 2 * 8 * 4 * stream


def test_experts_reduce_over_fewer_ways_than_dense_weights():
    plan = Plan(fsdp=64, expert=8)
    rows = {r.what: r for r in estimate(MIXTRAL, CUBE, plan, 512, T=1024).collectives}
    assert rows["layers: gradients"].wires.ways == 512
    assert rows["experts: gradients"].wires.ways == 64
    assert rows["experts: gradients"].array_bytes * 32 == pytest.approx(2 * tf.parameters(MIXTRAL).experts / 8)


# --- Wires. ---


@pytest.mark.parametrize("axes", [(0,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("name", ["v5p:4x8x16", "v5p:2x2x4", "tpu7x:4x4x8"])
def test_whole_axes_cost_what_collectives_say(name, axes):
    slice = slice_of(name)
    rest = [axis for axis in range(3) if axis not in axes]
    placed = {"fsdp": {a: slice.shape[a] for a in axes}, "data": {"chip": slice.chip.devices} | {a: slice.shape[a] for a in rest}}
    group, found = collectives.over(slice, *axes), wires(slice, placed, "shard")
    assert found.gather_s == pytest.approx(collectives.all_gather(1.0, group).seconds)
    assert found.all_to_all_s == pytest.approx(collectives.all_to_all(1.0, group).seconds)
    if len(axes) == 1:
        assert found.permute_s == pytest.approx(collectives.permute(1.0, group).seconds)


def test_parts_of_an_axis():
    """Next to the chip a part is a line; the part outside leaps over it, as slowly as it is far, and closes a ring."""
    slice = slice_of("v5p:4x4x16")
    placed = {"tensor": {2: 4}, "fsdp": {0: 4, 1: 4}, "data": {2: 4}}
    link = slice.chip.ici_link_bytes_per_s
    assert wires(slice, placed, "tensor").gather_s == pytest.approx(3 / 4 / link)
    assert wires(slice, placed, "data").gather_s == pytest.approx(3 / 4 / (2 * link / 4))
    neighbors = {"expert": {2: 4}, "fsdp": {0: 4, 1: 4, 2: 4}}  # both share dense weights: one ring again
    assert wires(slice, neighbors, "shard").gather_s == pytest.approx(
        collectives.all_gather(1.0, collectives.over(slice)).seconds
    )


def test_dcn_carries_what_a_device_has_left():
    slice = slice_of("v5p:8x8x8", count=4)
    placed = {"fsdp": {0: 8, 1: 8, 2: 8}, "data": {"dcn": 4}}
    alone = wires(slice, placed, "data")
    assert alone.far_gather_s == pytest.approx(collectives.all_gather(1.0, collectives.across(slice)).seconds)
    together = wires(slice, {"fsdp": {0: 8, 1: 8, 2: 8, "dcn": 4}}, "shard")
    assert together.far_gather_s == pytest.approx(alone.far_gather_s / 512)


def test_gpus_gather_in_the_node_and_between_nodes():
    slice = slice_of("h100:8x16")
    placed = {"tensor": {"node": 4}, "fsdp": {"node": 2, "dcn": 16}}
    found = wires(slice, placed, "shard")
    assert found.gather_s == pytest.approx(1 / 2 / slice.chip.fabric_bytes_per_s)
    assert found.far_gather_s == pytest.approx(15 / 16 / 2 / slice.chip.dcn_bytes_per_s)


def test_placements_are_all_and_each_once():
    sizes = {"tensor": 8, "fsdp": 64}
    found = [{axis: dict(parts) for axis, parts in one.items()} for one in placements(sizes, CUBE)]
    assert len(found) == 3  # 8; 4 · 2; 2 · 2 · 2, of three equal axes
    flat = slice_of("v5p:4x8x16")
    every = [[math.prod(one[axis].values()) for axis in sizes] for one in placements(sizes, flat)]
    assert len(every) == sum(a * b * c == 8 for a in (1, 2, 4) for b in (1, 2, 4, 8) for c in (1, 2, 4, 8, 16))
    assert set(map(tuple, every)) == {(8, 64)}


# --- Time. ---


def test_math_of_one_chip_is_its_flops_over_its_peak():
    priced = estimate(LLAMA_8B, "v5p:4x4x4", Plan(fsdp=64, remat="full"), 64, T=8192)
    flops = tf.train_flops(LLAMA_8B, T=8192, causal=True, remat="full", flash=True)
    peak = 64 * hardware.chip("v5p").flops_per_s()
    assert priced.parts_s["math"] == pytest.approx(64 * flops.hardware_flops / peak)
    assert priced.hfu / priced.mfu == pytest.approx(flops.hardware_flops / flops.model_flops)
    assert priced.mfu == pytest.approx(64 * flops.model_flops / peak / priced.seconds)
    assert priced.tokens_per_s == 64 * 8192 / priced.seconds
    assert priced.lower_s <= priced.seconds <= priced.upper_s


def test_memory_traffic_by_hand():
    """Bytes a token of one layer: each of two blocks 4 widths of D, the activation 3 of F, positions twice queries and keys."""
    plan = Plan(fsdp=64, tensor=8, gradients="f32")
    step = estimate(LLAMA_70B, CUBE, plan, 64, T=1024).step
    rate = hardware.chip("v5p").hbm_bytes_per_s
    wide = 8 * 8192 + 3 * 28672 + 2 * (64 + 8) * 128
    assert step.parts_s["elementwise"] == pytest.approx(3 * 80 * wide / 8 * 2 * 1024 / rate)
    held = step.last.weights / 2
    assert step.optimizer_s == pytest.approx(held * (4 + 2 * 12 + 2) / rate)


def test_few_tokens_wait_for_weights_from_memory():
    """One sequence of 8 tokens a device: each matrix is read twice and its gradient written, in bf16."""
    step = estimate(LLAMA_8B, "v5p:2x2x1", Plan(data=4, zero=0), 4, T=8).step
    held = tf.parameters(LLAMA_8B).total - tf.parameters(LLAMA_8B).embedding
    assert step.math_s == pytest.approx(3 * held * 2 / hardware.chip("v5p").hbm_bytes_per_s)


def test_fsdp_binds_below_the_tokens_of_the_inequality():
    """The field's model of plain matrices: 850 tokens a chip on v5p, here with (n - 1)/n and tables."""
    tokens = bounds.data_tokens(hardware.chip("v5p"), axes=3)

    def ratio(plan, T):
        parts = estimate(MLP, CUBE, plan, 512, T=T, causal=True).parts_s
        return parts["data"] / (parts["math"] * 2 / 3)  # the backward pass

    assert ratio(Plan(data=512, zero=0), round(tokens)) == pytest.approx(511 / 512, rel=2e-3)
    both = {T: estimate(MLP, CUBE, Plan(fsdp=512), 512, T=T) for T in (830, 870)}
    assert (both[830].binds, both[870].binds) == ("fsdp", "math")
    needs = both[830].inequality
    assert needs.relation == "at least"
    assert 830 * needs.bound / needs.have == pytest.approx(850, rel=1e-2)


def test_tensor_ways_bind_above_those_of_the_inequality():
    """One axis, two matrices, no sequence kept in parts: 4 BD against 4 BDF/Y in the forward pass."""
    slice = slice_of("v5p:4x4x16")
    plan = Plan(tensor=16, fsdp=16, sequence_parallel=False, placement={"tensor": 2, "fsdp": (0, 1)})
    model = MLP.but(n_heads=16, n_layers=100, parallel=True)
    parts = estimate(model, slice, plan, 64, T=4096).parts_s
    most = bounds.tensor_ways(slice.chip, model.F)
    # The backward pass has twice the math for as many bytes.
    assert parts["tensor"] / parts["math"] == pytest.approx(16 / most * 15 / 16 * 2 / 3, rel=0.03)
    thin = estimate(model.but(d_ff=1024), slice, plan, 64, T=4096)
    assert thin.binds == "tensor"
    assert (thin.inequality.relation, thin.inequality.quantity) == ("at most", "tensor ways")


def test_overlap():
    plan = Plan(fsdp=64, tensor=8, remat="full")
    full, none, half = (
        estimate(LLAMA_70B, CUBE, plan, 512, T=4096, overlap=overlap) for overlap in ("full", "none", {"tensor": 0.5})
    )
    assert full.seconds == full.lower_s < half.seconds < none.seconds
    parts = none.parts_s
    assert none.seconds == pytest.approx(sum(parts.values()))
    assert (full.exposed_s(), none.hidden_s()) == (0, pytest.approx(0, abs=1e-9))
    assert half.exposed_s() == pytest.approx(half.parts_s["tensor"] / 2)
    assert full.hidden_s() + full.exposed_s() == pytest.approx(sum(full.step.parts_s.values()))


def test_collectives_on_one_axis_share_its_links():
    slice = slice_of("v5p:4x4x16")
    apart = {"tensor": {2: 16}, "fsdp": {0: 4, 1: 4}}
    shared = {"tensor": {2: 8, 0: 2}, "fsdp": {0: 2, 1: 4, 2: 2}}
    thin = LLAMA_8B.but(d_ff=512, n_heads=16, n_kv_heads=16)

    def step(placement):
        return estimate(thin, slice, Plan(tensor=16, fsdp=16, placement=placement), 16, T=512).step

    assert step(apart).links_s == max(step(apart).parts_s["tensor"], step(apart).parts_s["fsdp"])
    assert step(shared).links_s == pytest.approx(step(shared).parts_s["tensor"] + step(shared).parts_s["fsdp"])


def test_bubble_and_its_inequality():
    plan = Plan(fsdp=64, pipeline=8, microbatches=4, schedule="1f1b")
    priced = estimate(LLAMA_70B.but(n_layers=8), CUBE, plan, 256, T=4096)
    assert priced.bubble_s == pytest.approx(7 / 4 * priced.step.busy_s({}))
    assert priced.binds == "bubble"
    assert priced.inequality.bound == pytest.approx(7)


def test_uneven_stages_wait_for_the_largest():
    plan = Plan(fsdp=8, tensor=8, pipeline=8, microbatches=8, uneven_stages=True)
    with pytest.raises(ValueError, match="uneven_stages=True"):
        estimate("Llama-3.1 405B", CUBE, plan.but(uneven_stages=False), 64, T=8192)
    uneven = estimate("Llama-3.1 405B", CUBE, plan, 64, T=8192)
    facts = uneven.facts
    layers = (facts.matmul_flops + facts.attention_flops) / 126 * 16 * 64 / (8 * 8) / hardware.chip("v5p").flops_per_s()
    assert uneven.step.math_s == pytest.approx(layers)


def test_low_precision_speeds_weight_matmuls_alone():
    plan = Plan(fsdp=64)
    slow, fast = (estimate(LLAMA_8B, "h100:8x8", plan.but(math=math), 64, T=8192) for math in ("bf16", "fp8"))
    peak = hardware.chip("h100")
    saved = slow.facts.matmul_flops * (1 / peak.flops_per_s("bf16") - 1 / peak.flops_per_s("fp8"))
    assert slow.step.math_s - fast.step.math_s == pytest.approx(saved)
    assert fast.mfu < slow.mfu  # of twice the peak


def test_days_and_dollars():
    priced = estimate(LLAMA_8B, "v5p:4x4x4", Plan(fsdp=64, remat="full"), 64, T=8192)
    days = priced.days(15e12)
    assert days == pytest.approx(15e12 / priced.tokens_per_s / 86_400)
    assert priced.days(15e12, goodput=0.5) == pytest.approx(2 * days)
    assert priced.dollars(15e12) == pytest.approx(days * 24 * 64 * hardware.chip("v5p").usd_per_hour)
    assert estimate(LLAMA_8B, "b200:8x1", Plan(fsdp=8), 8, T=8192).days(1e9) > 0  # though it has no price


def test_offload_costs_time_and_names_its_inequality():
    plan = Plan(fsdp=8, remat="full", offload="optimizer")
    priced = estimate(LLAMA_8B, "v5e:2x4", plan, 8, T=512)
    held = tf.parameters(LLAMA_8B).total * 12 / 8
    assert priced.parts_s["offload"] == pytest.approx(2 * held / hardware.chip("v5e").pcie_bytes_per_s)
    assert priced.binds == "offload"
    assert "bandwidth to the host" in str(priced.inequality)


def test_a_compute_bound_step_says_how_small_the_batch_may_be():
    priced = estimate(MLP, CUBE, Plan(fsdp=512), 1024, T=1000)
    assert priced.binds == "math"
    assert priced.inequality.bound * 1000 / 512 == pytest.approx(850, rel=1e-2)
    assert str(priced.inequality).startswith("batch (sequences) is 1,024, and must be at least 43")


def test_experts_that_talk_too_much_want_faster_wires():
    model = MIXTRAL.but(experts=Experts(n_experts=8, top_k=8, d_ff=128), n_heads=32, d_ff=0)
    priced = estimate(model, "h100:1x8", Plan(expert=8, zero=0), 8, T=4096)
    assert priced.binds == "expert.dcn"
    assert priced.inequality.bound == pytest.approx(priced.parts_s["expert.dcn"] / priced.parts_s["math"])
    assert "bandwidth of the expert ways (times that of the chip) is 1, and must be at least" in str(priced)


def test_overlap_of_the_mixed_bound_has_no_default():
    with pytest.raises(ValueError, match="neither 'full' nor 'none'"):
        bounds.mixed_tokens(hardware.chip("v5p"), 1000, fsdp_axes=2, tensor_axes=1, overlap="max")


def test_latency_and_start_are_floors():
    plan = Plan(fsdp=512)
    fast = estimate(SMALL.but(n_layers=4), CUBE, plan, 512, T=8)
    slow = estimate(SMALL.but(n_layers=4), CUBE, plan, 512, T=8, hop_s=1e-6, start_s=1e-5)
    count = sum(row.count for row in fast.collectives)
    assert slow.parts_s["fsdp"] == pytest.approx(count * (1e-5 + 12e-6))


# --- The fastest placement. ---


def test_the_fastest_placement_is_no_slower_than_any():
    slice = slice_of("v5p:4x4x16")
    plan = Plan(tensor=16, fsdp=16, remat="full")
    best = estimate(LLAMA_70B, slice, plan, 16, T=512, overlap="none")
    every = [
        estimate(LLAMA_70B, slice, plan.but(placement=one), 16, T=512, overlap="none").seconds
        for one in placements(plan.axes, slice)
    ]
    assert best.seconds == min(every) < max(every)
    assert estimate(LLAMA_70B, slice, best.plan, 16, T=512, overlap="none").seconds == best.seconds


# --- Arrays of plans. ---


def stacked(kind, ones):
    """One object of a dataclass of numbers, its fields arrays, of many."""
    found = {}
    for f in dataclasses.fields(kind):
        values = [getattr(one, f.name) for one in ones]
        tuples = isinstance(values[0], tuple)
        found[f.name] = (
            tuple(map(np.array, zip(*values, strict=True))) if tuples else None if values[0] is None else np.array(values)
        )
    return kind(**found)


def random_plans(model, slice, count, **how):
    """Plans of one schedule and dtype that can run with a batch of 256 sequences of 512 tokens; all else at random."""
    rng = random.Random(7)
    while count:
        sizes, left = {}, slice.devices
        for axis in ("tensor", "context", "expert", "pipeline", "data"):
            sizes[axis] = rng.choice([d for d in (1, 1, 2, 4) if left % d == 0])
            left //= sizes[axis]
        plan = Plan(
            **sizes, fsdp=left, zero=rng.choice([1, 2, 3]), microbatches=rng.choice([1, 2, 4]),
            sequence_parallel=rng.random() < 0.5, remat=rng.choice(["none", "selective", "full"]),
            loss_chunks=rng.choice([1, 4]), **how,
        )  # fmt: skip
        if not why_not(plan, model, slice, 256, 512):
            count -= 1
            yield plan


MOE = Transformer(
    n_layers=8, d_model=512, n_heads=8, n_kv_heads=4, d_ff=1024, vocab_size=1024,
    experts=Experts(n_experts=8, top_k=2, d_ff=256, every=2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "hop_s", "how"),
    [
        ("v5p:4x4x4", 0, {}),
        ("v5p:4x4x4", 1e-6, {"schedule": "gpipe", "context_by": "gather", "offload": "activations"}),
        ("h100:8x8", 1e-6, {"schedule": "zero-bubble", "offload": "optimizer"}),
    ],
)
def test_a_thousand_plans_at_once_are_a_thousand_estimates(name, hop_s, how):
    slice, rng = slice_of(name), random.Random(5)
    plans = list(random_plans(MOE, slice, 1000, **how))
    placed = [rng.choice(list(placements(plan.axes, slice))) for plan in plans]
    facts = stacked(Facts, [Facts.of(MOE, plan, T=512, causal=True) for plan in plans])
    ways = stacked(Ways, [ways_of(plan, MOE, 256) for plan in plans])
    every = {group: stacked(Wires, [wires(slice, one, group, hop_s=hop_s) for one in placed]) for group in GROUPS}
    usual = Plan(**how)
    words = dataclasses.replace(How.of(usual, MOE), schedule=usual.schedule)
    if usual.schedule != "1f1b":  # without a pipeline there is no schedule, so those are priced apart
        keep = np.array([plan.pipeline > 1 for plan in plans])
        plans, placed = ([x for x, k in zip(xs, keep, strict=True) if k] for xs in (plans, placed))
        facts, ways, every = taken(facts, keep), taken(ways, keep), {group: taken(of, keep) for group, of in every.items()}
    step = price(facts, ways, words, every, Rates.of(slice, usual))
    none = dict.fromkeys(INSIDE + OUTSIDE, 1.0)
    for i, (plan, placement) in enumerate(zip(plans, placed, strict=True)):
        one = estimate(MOE, slice, plan.but(placement=placement), 256, T=512, hop_s=hop_s)
        assert (one.lower_s, one.upper_s) == pytest.approx((step.lower_s[i], step.seconds(none)[i]), rel=1e-12)
        assert one.memory.total == pytest.approx(step.memory_bytes[i], rel=1e-12)
        assert one.fits == step.fits[i]
        for part, seconds in one.step.parts_s.items():
            assert seconds == pytest.approx(step.parts_s[part][i], rel=1e-12, abs=1e-30)


def taken(of, keep):
    cut = {f.name: getattr(of, f.name) for f in dataclasses.fields(of)}
    return type(of)(**{n: tuple(x[keep] for x in v) if isinstance(v, tuple) else v[keep] for n, v in cut.items()})


def test_lighter_plans_take_less_memory_and_say_what_they_change():
    plan = Plan(data=2, fsdp=8, remat="selective")
    heavy = estimate("Llama-3 8B", "v5e:4x4", plan, 64, T=4096)
    found = dict(lighter(heavy))
    assert all(step.memory.total < heavy.memory.total for step in found.values())
    assert list(found)[:5] == ["microbatches=2", "loss_chunks=8", "microbatches=4", "fsdp=16, data=1", "remat=full"]
    assert found["remat=full, loss_chunks=8"].plan.but(placement=None) == plan.but(remat="full", loss_chunks=8)
    assert (list(found)[-1], found["batch=32"].batch) == ("batch=32", 32)
    assert [words for words, step in found.items() if step.fits] == [
        "remat=full, loss_chunks=8, fsdp=16, data=1",
        "remat=full, loss_chunks=8, fsdp=16, data=1, microbatches=4",
    ]


def test_what_cannot_run_is_not_a_lighter_plan():
    single = estimate("Llama-3 8B", "v5e:4x4", Plan(fsdp=16), 16, T=4096)
    assert [words for words, _ in lighter(single)] == ["loss_chunks=8", "remat=full", "remat=full, loss_chunks=8"]
