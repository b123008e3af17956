"""Serving: layouts that cannot run and why, memory, traffic and time of small cases by hand, limits, and arrays of batches."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_lib import collectives, units
from scaling_lib import transformer as tf
from scaling_lib.hardware import Slice, chip, slice_of
from scaling_lib.inference import (
    Layout,
    Speed,
    bound,
    critical_batch,
    decode_step,
    inequalities,
    max_batch,
    max_context,
    prefill,
    why_not,
)
from scaling_lib.inference.estimate import placed
from scaling_lib.inference.facts import Facts
from scaling_lib.inference.forward import OPS, price, rates
from scaling_lib.inference.limits import LONGEST
from scaling_lib.roofline import critical_batch as matmul_critical_batch
from scaling_lib.transformer import Experts, Latent, Quantization, Transformer

V5E8, V5E16 = slice_of("v5e:2x4"), slice_of("v5e:4x4")
LLAMA_8B, LLAMA_70B, MIXTRAL = (tf.model(name) for name in ("Llama-3 8B", "Llama-3 70B", "Mixtral 8x7B"))
SMALL = Transformer(n_layers=3, d_model=40, n_heads=8, n_kv_heads=2, head_dim=6, d_ff=56, vocab_size=160, name="small")
SPARSE = SMALL.but(d_ff=0, experts=Experts(n_experts=8, top_k=2, d_ff=24), name="sparse")
SHORT = SMALL.but(latent=Latent(kv_rank=10, nope_dim=4, rope_dim=2, v_dim=4), n_kv_heads=8, head_dim=None, name="short")
FREE = Speed(overlap={})  # nothing shows of the collectives


# --- Layouts that cannot run, and other bad input. ---


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensor": 4}, "tensor=4 is 4 devices, but v5e:2x4 has 8; tensor=8 would do"),
        ({"tensor": 2, "data": 2}, "tensor=2 · data=2 is 4 devices, but v5e:2x4 has 8; tensor=4 would do"),
        ({"tensor": 1, "data": 3}, "data=3 is 3 devices, but v5e:2x4 has 8; take ways that multiply to 8"),
        ({"tensor": 4, "expert": 2, "data": 2}, "expert=2, but Llama-3 70B has no experts"),
        ({"tensor": 8, "placement": {"tensor": (0,)}}, "placement uses 1 of axis 1, which has 4"),
        ({"tensor": 4, "data": 2, "placement": {"tensor": (0, 1)}}, "placement has 8 ways for tensor, but tensor=4"),
        ({"tensor": 8, "placement": {"fsdp": (0, 1)}}, "placement names 'fsdp'; mesh axes are 'tensor', 'sequence'"),
    ],
)
def test_a_layout_that_cannot_run_says_which_number_and_what_would_do(changes, says):
    with pytest.raises(ValueError, match=says):
        decode_step(LLAMA_70B, V5E8, Layout(**changes), 8, context=100)
    assert why_not(Layout(**changes), LLAMA_70B, V5E8)


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        (SMALL.but(n_heads=6), {"tensor": 8}, "tensor=8 does not divide the 6 heads of small; give one of 1, 2, 3, 6"),
        (
            SMALL.but(n_heads=24, n_kv_heads=6),
            {"tensor": 8},
            "tensor=8 and the 6 key heads of small: one must divide the other; give tensor=1, 2, and the rest .* to kv_batch",
        ),
        (SMALL.but(d_ff=36), {"tensor": 8}, "tensor · sequence · kv_batch = 8 ways do not divide the hidden width 36 of small"),
        (SMALL.but(d_ff=36), {"tensor": 4, "data": 2}, "sequence · kv_batch · data = 8 ways do not divide the hidden width 36"),
        (SMALL.but(d_model=42), {"tensor": 2, "width": 4}, "width=4 does not divide the width 42 of small; give one of 1, 2, 3"),
        (SMALL, {"tensor": 2, "sequence": 2, "kv_batch": 2}, None),
        (SMALL.but(head_dim=5), {"kv_batch": 8}, None),
        (SMALL.but(n_heads=2, head_dim=5), {"kv_batch": 8}, "sequence · kv_batch = 8 does not divide the 2 heads of small"),
        (SPARSE, {"tensor": 8, "expert": 3}, "expert=3 does not divide the 8 experts of sparse; give one of 1, 2, 4, 8"),
        (SPARSE.but(experts=Experts(n_experts=5, top_k=2, d_ff=24)), {"tensor": 8, "expert": 5}, "does not divide the 8 devices"),
        (
            SPARSE.but(experts=Experts(n_experts=8, top_k=2, d_ff=9)),
            {"tensor": 8, "expert": 4},
            "2 devices share an expert of sparse, whose width 9 they do not divide; raise expert=4",
        ),
        (SPARSE, {"tensor": 2, "width": 4}, "width=4 is for dense models without data ways; give width=1"),
        (SMALL, {"width": 4, "data": 2}, "width=4 is for dense models without data ways"),
    ],
)
def test_what_a_model_asks_of_a_layout(model, changes, says):
    found = why_not(Layout(**changes), model, V5E8)
    if says is None:
        assert found is None
    else:
        with pytest.raises(ValueError, match=says):
            decode_step(model, V5E8, Layout(**changes), 8, context=100)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: decode_step(SMALL, V5E8, Layout(tensor=8), 4, context=100, cache=99), "context=100 tokens are beyond the cache"),
        (lambda: decode_step(SMALL, V5E8, Layout(tensor=8), 0, context=100), "batch=0 is not a size"),
        (lambda: decode_step(SMALL, V5E8, Layout(tensor=8), -3, context=100), "batch=-3 is not a size"),
        (lambda: decode_step(SMALL, V5E8, Layout(tensor=8), 4, context=3, new=5), "new=5 tokens are more than context=3"),
        (lambda: decode_step(SMALL, V5E8, Layout(tensor=8), 4, context=3, reads="some"), "reads='some' is neither"),
        (
            lambda: decode_step("GPT-2 small", "v5e:1x1", Layout(), 4, context=1025),
            "which has 1024 rows; give at most 1024",
        ),
        (lambda: decode_step("LLama-3 80B", V5E8, Layout(), 4, context=5), "did you mean"),
        (lambda: decode_step(SMALL, V5E8, {"tensor": 8}, 4, context=5), r"give inference.Layout\(...\)"),
        (lambda: prefill(SMALL, V5E8, Layout(tensor=8), prompt=7, cached=7), "cached=7 of prompt=7 tokens leaves none"),
        (lambda: prefill(SMALL, V5E8, Layout(tensor=8), prompt=7, chunk=0), "chunk=0 is not a size"),
        (lambda: prefill(SMALL, V5E8, Layout(tensor=8), prompt=7, cached=-1), "cached=-1"),
        (lambda: Layout(tensor=0), "tensor=0 is not a size"),
        (lambda: Layout(kv="int9"), "dtype='int9' is unknown"),
        (lambda: Layout(quantization="int4"), r"give transformer.Quantization\(...\)"),
        (lambda: Speed(efficiency=0), "efficiency=0 is a part of the peak"),
        (lambda: Speed(hbm_efficiency=1.1), "hbm_efficiency=1.1 is a part"),
        (lambda: Speed(hop_s=-1e-6), "hop_s=-1e-06 is too small"),
        (lambda: Speed(ici="best"), "ici='best' is neither"),
        (lambda: Speed(overlap="some"), "overlap='some' is unknown"),
        (lambda: Speed(overlap={"tenser": 1}), "overlap names 'tenser'; did you mean 'tensor'"),
        (lambda: Speed(overlap={"tensor": 2}), "is a share, 0 to 1"),
        (lambda: decode_step(SMALL, V5E8, Layout(tensor=8, math="fp8"), 4, context=5), "dtype='fp8' has no sourced peak on v5e"),
        (lambda: bound(LLAMA_70B, "v5e:2x2", input=100), "v5e:2x2 has 64 GiB, and the weights of Llama-3 70B with one sequence"),
        (lambda: bound(LLAMA_8B, "v5e:2x2", input=0), "input=0 is not a size"),
    ],
)
def test_bad_input_says_what_would_do(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- Weights and cache on a device. ---


def cache_share(model, layout, batch=16, S=100):
    """Part of the whole cache of a batch that one device holds."""
    slice = Slice(chip("v5e"), {8: (2, 4), 16: (4, 4)}[layout.devices])
    memory = decode_step(model, slice, layout, batch, context=S).memory
    return memory.cache / tf.kv_cache_bytes(model, S=S, B=batch)


@pytest.mark.parametrize(
    ("layout", "share"),
    [
        (Layout(tensor=8), 1 / 2),  # two key heads: each is there four times
        (Layout(tensor=2, kv_batch=4), 1 / 8),
        (Layout(tensor=2, sequence=4), 1 / 8),
        (Layout(tensor=2, kv_batch=2, sequence=2), 1 / 8),
        (Layout(tensor=4, kv_batch=2), 1 / 4),
        (Layout(tensor=2, data=4), 1 / 8),
        (Layout(tensor=2, width=4), 1 / 8),
        (Layout(kv_batch=8), 1 / 8),
    ],
)
def test_the_cache_is_split_over_heads_then_sequences_then_tokens(layout, share):
    assert cache_share(SMALL, layout) == pytest.approx(share, rel=1e-12)


def test_latents_have_no_heads_to_split():
    assert cache_share(SHORT, Layout(tensor=8)) == 1
    assert cache_share(SHORT, Layout(tensor=2, data=4)) == 1 / 4
    assert cache_share(SHORT, Layout(tensor=2, sequence=4)) == 1 / 4


def test_sequences_that_do_not_divide_are_rounded_up():
    cache = [decode_step(SMALL, V5E8, Layout(tensor=2, data=4), b, context=7).memory.cache for b in (1, 4, 5, 8)]
    assert cache[0] == cache[1]
    assert cache[2] == cache[3] == 2 * cache[0]


def test_windows_stop_growing():
    local = SMALL.but(layer_pattern=("local", "local", "global"), window=50)
    step = decode_step(local, V5E8, Layout(tensor=2, kv_batch=4), 4, context=1000)
    one_token = 2 * 1 * 6 * 2  # key and value of one head, bf16
    assert step.memory.cache == (1000 + 2 * 50) * one_token
    assert step.facts[0].kv_read_bytes == step.memory.cache
    everywhere = decode_step(SMALL, V5E8, Layout(tensor=2, kv_batch=4), 4, context=1000)
    assert step.facts[0].attention_flops == everywhere.facts[0].attention_flops * (1000 + 2 * 50) / 3000


def test_a_static_cache_is_held_and_read_whole():
    ask = {"context": 10, "cache": 70}
    used, all_of_it = (decode_step(SMALL, V5E8, Layout(tensor=8), 4, **ask, reads=reads) for reads in ("used", "all"))
    assert used.memory == all_of_it.memory
    assert all_of_it.parts_s["cache"] == pytest.approx(7 * used.parts_s["cache"], rel=1e-12)


def test_scales_of_a_quantized_cache():
    plain, scaled = (Layout(tensor=8, kv="int8", kv_scale=scale) for scale in (None, "f32"))
    ratio = cache_share(SMALL, scaled) / cache_share(SMALL, plain)
    assert ratio == pytest.approx((6 + 4) / 6, rel=1e-12)  # a scale of four bytes beside the six numbers of a key
    latent = cache_share(SHORT, scaled) / cache_share(SHORT, plain)
    assert latent == pytest.approx((12 + 4) / 12, rel=1e-12)


WAYS = [{"tensor": 8}, {"tensor": 4, "data": 2}, {"tensor": 2, "width": 4}, {"tensor": 2, "sequence": 2, "kv_batch": 2}]


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_weights_on_a_device(ways):
    layout = Layout(**ways, weights="int8")
    memory = decode_step(SMALL, V5E8, layout, 8, context=10).memory
    split, w, D = layout.split, layout.width, 40
    queries, keys, mlp, table = 2 * D * 8 * 6, 2 * D * 2 * 6, 3 * D * 56, 160 * D
    feed_forward_ways = 8 if layout.data > 1 else split * w
    layer = queries / (split * w) + keys / (min(split, 2) * w) + mlp / feed_forward_ways + 2 * D / w
    assert memory.weights == pytest.approx(3 * layer + D / w + 2 * table / (split * w), rel=1e-12)


def test_what_is_read_leaves_the_lookup_out_but_a_tied_head_in():
    for tied in (False, True):
        facts = decode_step(SMALL.but(tied_embeddings=tied), "v5e:1x1", Layout(), 1, context=5).facts[0]
        assert facts.weights_bytes - facts.read_bytes == (0 if tied else 160 * 40 * 2)


def test_quantized_weights_have_scales():
    int4 = Quantization(bits=4, group=8)
    plain, groups = (
        decode_step(SMALL, V5E8, Layout(tensor=8, weights=dtype, quantization=q), 1, context=5).memory.weights
        for dtype, q in (("bf16", None), ("bf16", int4))
    )
    assert groups < plain
    whole = decode_step(SMALL, "v5e:1x1", Layout(quantization=int4), 1, context=5).memory.weights
    assert whole == tf.weight_bytes(SMALL, "bf16", int4).total


def test_experts_are_read_as_far_as_tokens_go_through_them():
    one = decode_step(SPARSE, V5E8, Layout(tensor=8, expert=4), 1, context=5)
    many = decode_step(SPARSE, V5E8, Layout(tensor=8, expert=4), 10_000, context=5)
    assert one.memory.weights == many.memory.weights
    hbm = chip("v5e").hbm_bytes_per_s
    read = [step.parts_s["weights"] * hbm - step.facts[0].read_bytes for step in (one, many)]
    experts = 3 * 8 * 3 * 40 * 24 * 2 / 8  # layers, experts, matrices, sizes, bf16; over 8 devices
    assert read[0] == pytest.approx(experts * 2 / 8, rel=1e-9)
    assert read[1] == pytest.approx(experts, rel=1e-9)
    three = decode_step(SPARSE, V5E8, Layout(tensor=8, expert=4), 3, context=5)
    assert three.parts_s["weights"] * hbm - three.facts[0].read_bytes == pytest.approx(experts * (1 - 0.75**3), rel=1e-9)


# --- Math. ---


SPLIT = [
    (model, Layout(**ways))
    for model in (SMALL, SPARSE, SHORT)
    for ways in [*WAYS, {"tensor": 8, "expert": 4}, {"tensor": 2, "data": 4, "expert": 8}]
    if not why_not(Layout(**ways), model, V5E8)
]


@pytest.mark.parametrize(("model", "layout"), SPLIT, ids=str)
def test_math_of_all_devices_is_that_of_the_model_and_what_they_repeat(model, layout):
    step = decode_step(model, V5E8, layout, 16, context=33)
    flops = tf.forward_flops(model, T=1, S=33, B=16, causal=True, absorbed=model.latent is not None)
    peak = chip("v5e").flops_per_s()
    math_flops, attention = (step.parts_s[part] * peak * 8 for part in ("math", "attention"))
    whole = flops.total - flops.scores - flops.context
    repeated = {"attention.key", "attention.value", "router.table", "attention.latent", "attention.rope_key"}
    extra = sum(row.flops for row in tf.matmuls(model, T=1, S=33, B=16, causal=True) if row.name in repeated)
    assert whole * (1 - 1e-12) <= math_flops <= whole + extra * 8
    assert attention == pytest.approx(flops.scores + flops.context, rel=1e-12)


def test_prefill_does_the_math_of_the_prompt_and_one_head():
    step = prefill(SMALL, "v5e:1x1", Layout(), prompt=70, batch=3)
    flops = tf.forward_flops(SMALL, T=70, B=3, causal=True, head="last")
    done = (step.parts_s["math"] + step.parts_s["attention"]) * chip("v5e").flops_per_s()
    assert done == pytest.approx(flops.total, rel=1e-12)
    full = prefill(SMALL, "v5e:1x1", Layout(), prompt=70, batch=3, speed=Speed(causal=False))
    assert full.parts_s["attention"] == pytest.approx(step.parts_s["attention"] * 70 * 2 / 71, rel=1e-12)


def test_chunks_do_the_same_math_and_read_weights_and_cache_again():
    whole = prefill(SMALL, V5E8, Layout(tensor=8), prompt=70)
    chunks = prefill(SMALL, V5E8, Layout(tensor=8), prompt=70, chunk=30)
    assert [each.T for each in chunks.facts] == [30, 30, 10]
    assert len(chunks.passes) == 3
    assert chunks.parts_s["attention"] == pytest.approx(whole.parts_s["attention"], rel=1e-12)
    assert chunks.parts_s["weights"] == pytest.approx(3 * whole.parts_s["weights"], rel=1e-12)
    assert chunks.parts_s["cache"] == pytest.approx(whole.parts_s["cache"] * (30 + 60 + 70) / 70, rel=1e-12)
    assert chunks.memory.working < whole.memory.working
    assert whole.new == chunks.new == 70


def test_a_cached_prefix_leaves_the_rest():
    rest = prefill(SMALL, V5E8, Layout(tensor=8), prompt=70, cached=50)
    assert (rest.new, rest.context, rest.facts[0].T) == (20, 70, 20)
    whole, first = (prefill(SMALL, V5E8, Layout(tensor=8), prompt=n) for n in (70, 50))
    assert rest.parts_s["attention"] == pytest.approx(whole.parts_s["attention"] - first.parts_s["attention"], rel=1e-12)
    assert rest.memory.cache == whole.memory.cache


# --- Collectives. ---


def found(step):
    return {(row.part, row.what): (row.kind, float(row.array_bytes), row.count) for row in step.collectives}


STREAM, HEADS, NEW = 40 * 2, 8 * 6 * 2, 2 * 12 * 2  # bytes of a token: the stream, all queries, new keys and values


def test_tensor_ways_add_up_two_blocks_a_layer_and_the_embedding():
    step = decode_step(SMALL, V5E8, Layout(tensor=8), 4, context=10)
    assert found(step) == {
        ("tensor", "embedding"): ("all-reduce", 4 * STREAM, 1),
        ("tensor", "results"): ("all-reduce", 4 * STREAM, 6),
    }
    once = decode_step(SMALL.but(parallel=True, norms="shared"), V5E8, Layout(tensor=8), 4, context=10)
    assert found(once)["tensor", "results"] == ("all-reduce", 4 * STREAM, 3)


def test_caches_split_by_sequence_bring_queries_and_results_by_all_to_all():
    step = decode_step(SMALL, V5E8, Layout(tensor=2, kv_batch=4), 8, context=10)
    assert found(step)["kv_batch", "queries and new keys"] == ("all-to-all", 8 * (HEADS + NEW) / 8, 3)
    assert found(step)["kv_batch", "results"] == ("all-to-all", 8 * HEADS / 8, 3)


def test_caches_split_by_token_gather_queries_and_merge_parts():
    step = decode_step(SMALL, V5E8, Layout(tensor=2, sequence=4), 8, context=10)
    assert found(step)["sequence", "queries"] == ("all-gather", 8 * (HEADS + NEW) / 2, 3)
    assert found(step)["sequence", "parts of results"] == ("reduce-scatter", 8 * (HEADS + 8 * 8) / 2, 3)


def test_data_ways_gather_before_the_feed_forward_blocks_and_scatter_after():
    step = decode_step(SMALL, V5E8, Layout(tensor=2, data=4), 8, context=10)
    assert found(step) == {
        ("tensor", "embedding"): ("all-reduce", 2 * STREAM, 1),
        ("tensor", "attention: results"): ("reduce-scatter", 2 * STREAM, 3),
        ("data", "feed-forward: inputs"): ("all-gather", 8 * STREAM, 3),
        ("data", "feed-forward: results"): ("reduce-scatter", 8 * STREAM, 3),
        ("tensor", "attention: inputs"): ("all-gather", 2 * STREAM, 3),
    }


def test_experts_of_all_devices_get_tokens_by_all_to_all():
    step = decode_step(SPARSE, V5E8, Layout(tensor=2, data=4, expert=8), 8, context=10)
    assert found(step)["expert", "tokens"] == ("all-to-all", 2 * 2 * STREAM / 2, 6)  # two of a device's sequences, top 2
    shared = decode_step(SPARSE, V5E8, Layout(tensor=2, data=4, expert=4), 8, context=10)
    assert found(shared)["expert", "tokens"] == ("all-to-all", 2 * 2 * 2 * STREAM / 2, 6)  # two devices an expert
    there = decode_step(SPARSE, V5E8, Layout(tensor=8, expert=8), 8, context=10)
    assert set(found(there)) == {("tensor", "embedding"), ("tensor", "results")}


def test_two_dimensions_move_parts_of_the_width_and_of_the_hidden_units():
    step = decode_step(SMALL, V5E8, Layout(tensor=2, width=4), 8, context=10)
    assert found(step)["tensor", "results"] == ("all-reduce", 8 * STREAM / 4, 6)
    assert found(step)["width", "hidden: sums"] == ("reduce-scatter", 8 * 2 * 56 * 2 / 2, 3)
    assert found(step)["width", "hidden: gathered"] == ("all-gather", 8 * 56 * 2 / 2, 3)
    assert found(step)["width", "queries, keys and values"] == ("reduce-scatter", 8 * (HEADS + NEW) / 2, 3)


def test_collectives_cost_what_the_chapter_on_sharding_says():
    group = collectives.over(V5E16, 0, 1, hop_s=1e-6, start_s=3e-6)
    for batch in (1, 5000):  # latency binds, then bandwidth
        step = decode_step(SMALL.but(n_heads=16, n_kv_heads=2, d_ff=64), V5E16, Layout(tensor=16), batch, context=10,
                           speed=Speed(start_s=3e-6))  # fmt: skip
        assert step.parts_s["tensor"] == pytest.approx(7 * collectives.all_reduce(batch * STREAM, group).seconds, rel=1e-9)
    assert decode_step(SMALL, "v5e:1x1", Layout(), 1, context=10).collectives == ()


def test_slices_talk_over_dcn():
    two = slice_of("v5e:2x4", count=2)
    step = decode_step(LLAMA_8B, two, Layout(tensor=8, data=2), 512, context=10)
    assert step.parts_s["data.dcn"] > step.parts_s["data"]
    assert step.layout.placement["data"] == {"dcn": 2}


# --- Time, limits, bounds. ---


def layouts_of(devices):
    ways = [1, 2, 4, 8]
    every = [
        Layout(tensor=t, sequence=s, kv_batch=k, width=w, data=d, expert=e)
        for t in ways for s in ways for k in ways for w in ways for d in ways for e in ways
        if t * s * k * w * d == devices and e in (1, devices)
    ]  # fmt: skip
    return every


EVERY = layouts_of(8)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(EVERY), st.sampled_from([SMALL, SPARSE, SHORT]), st.integers(1, 3000), st.integers(1, 5000),
    st.sampled_from(["bf16", "int8"]),
)  # fmt: skip
def test_bounds_enclose_every_step(layout, model, batch, context, weights):
    layout = layout.but(weights=weights, kv=weights)
    if why_not(layout, model, V5E8):
        return
    step = decode_step(model, V5E8, layout, batch, context=context)
    assert step.lower_s <= step.seconds <= step.upper_s * (1 + 1e-12)
    assert step.upper_s == pytest.approx(sum(step.parts_s.values()), rel=1e-12)
    assert step.seconds == pytest.approx(decode_step(model, V5E8, step.layout, batch, context=context).seconds, rel=1e-12)
    least = bound(model, V5E8, input=context, batch=batch, weights=weights, kv=weights)
    assert least.decode_s <= step.lower_s * (1 + 1e-9)
    read = prefill(model, V5E8, layout, prompt=context)
    assert bound(model, V5E8, input=context, weights=weights, kv=weights, batch=1).prefill_s <= read.lower_s * (1 + 1e-9)


def test_overlaps():
    ask = {"batch": 32, "context": 2048}
    step = decode_step(LLAMA_70B, V5E8, Layout(tensor=8, weights="int8", kv="int8"), **ask)
    parts = step.parts_s
    ops = max(parts["weights"], parts["math"]) + max(parts["cache"], parts["attention"])
    assert step.seconds == pytest.approx(ops + parts["tensor"], rel=1e-12)
    speeds = {"full": step.lower_s, "none": step.upper_s, "half": ops + parts["tensor"] / 2, "hidden": ops}
    given = {"full": "full", "none": "none", "half": {"tensor": 0.5}, "hidden": {}}
    for name, expected in speeds.items():
        one = decode_step(LLAMA_70B, V5E8, Layout(tensor=8, weights="int8", kv="int8"), **ask, speed=Speed(overlap=given[name]))
        assert one.seconds == pytest.approx(expected, rel=1e-12)
    assert step.lower_s == parts["weights"] + parts["cache"]
    assert step.binds == "weights"


def test_efficiencies_slow_what_they_name():
    fast, slow = (decode_step(SMALL, V5E8, Layout(tensor=8), 64, context=500, speed=s).parts_s
                  for s in (Speed(), Speed(efficiency=0.5, hbm_efficiency=0.25)))  # fmt: skip
    times = {name: slow[name] / fast[name] for name in fast}
    assert times == pytest.approx({"weights": 4, "math": 2, "cache": 4, "attention": 2, "tensor": 1})


def test_the_fastest_placement_is_found():
    step = decode_step(LLAMA_70B, V5E16, Layout(tensor=8, data=2), 64, context=4096)
    assert step.seconds == min(
        decode_step(LLAMA_70B, V5E16, Layout(tensor=8, data=2, placement=where), 64, context=4096).seconds
        for where in ({"tensor": {0: 4, 1: 2}, "data": {1: 2}}, {"tensor": {0: 2, 1: 4}, "data": {0: 2}})
    )


@pytest.mark.parametrize("layout", [Layout(tensor=8), Layout(tensor=4, data=2, kv="int8"), Layout(tensor=2, kv_batch=4)], ids=str)
def test_the_largest_batch_and_context_fit_and_one_more_does_not(layout):
    most = max_batch(LLAMA_8B, V5E8, layout, context=4096)
    assert decode_step(LLAMA_8B, V5E8, layout, most, context=4096).fits
    assert not decode_step(LLAMA_8B, V5E8, layout, most + 1, context=4096).fits
    longest = max_context(LLAMA_8B, V5E8, layout, batch=13)
    assert decode_step(LLAMA_8B, V5E8, layout, 13, context=longest).fits
    assert not decode_step(LLAMA_8B, V5E8, layout, 13, context=longest + 1).fits


def test_where_nothing_or_everything_fits():
    assert max_batch(LLAMA_70B, V5E8, Layout(tensor=8), context=1) == 0
    assert max_context(LLAMA_70B, V5E8, Layout(tensor=8), batch=1) == 0
    windows = SMALL.but(layer_pattern=("local",), window=9)
    assert max_context(windows, V5E8, Layout(tensor=8), batch=3) == LONGEST
    assert max_context("GPT-2 small", "v5e:1x1", Layout(), batch=3) == 1024


def test_a_step_that_does_not_fit_says_why_and_what_would_do():
    batch = decode_step(LLAMA_8B, V5E8, Layout(tensor=8), 5000, context=4096)
    assert not batch.fits
    most = max_batch(LLAMA_8B, V5E8, Layout(tensor=8), context=4096)
    assert f"a batch of {most} fits" in batch.explain()
    weights = decode_step(LLAMA_70B, V5E8, Layout(tensor=8), 1, context=100)
    assert "the weights alone take 16.4 GiB" in weights.explain()
    one = decode_step(LLAMA_8B, "v5e:1x1", Layout(), 1, context=100_000)
    assert "not one sequence of 100000 tokens fits" in one.lacking


def test_from_the_critical_batch_on_math_binds():
    v5e = chip("v5e")
    assert critical_batch(v5e, Layout()) == v5e.flops_per_s() / v5e.hbm_bytes_per_s
    assert critical_batch(v5e, Layout(weights="int8")) == critical_batch(v5e, Layout()) / 2
    assert critical_batch(v5e, Layout(quantization=Quantization(bits=4, group=128))) == critical_batch(v5e, Layout()) * 4.125 / 16
    assert critical_batch(v5e, Layout(), MIXTRAL) == 4 * critical_batch(v5e, Layout())
    assert critical_batch(v5e, Layout()) == matmul_critical_batch(v5e, k=8192, n=8192).asymptotic
    step = decode_step(LLAMA_70B, V5E16, Layout(tensor=16), 10, context=2048)
    same = decode_step(LLAMA_70B, V5E16, Layout(tensor=16), round(step.critical_batch), context=2048).parts_s
    assert same["math"] == pytest.approx(same["weights"], rel=0.01)
    assert step.critical_batch == pytest.approx(critical_batch(v5e, Layout()), rel=0.04)


def test_a_chip_of_two_devices_shares_its_memory_and_peak():
    one = decode_step(LLAMA_8B, "tpu7x:1x1x1", Layout(tensor=2), 8, context=1000)
    tpu7x = chip("tpu7x")
    assert one.usable_bytes == tpu7x.usable_hbm_bytes / 2
    whole = tf.kv_cache_bytes(LLAMA_8B, S=1000, B=8)
    assert one.parts_s["cache"] == pytest.approx(whole / tpu7x.hbm_bytes_per_s, rel=1e-12)
    assert "tensor" not in one.parts_s or one.parts_s["tensor"] == 0


# --- Many batches at once. ---


@pytest.mark.parametrize("layout", [one for one in EVERY if not why_not(one, SPARSE, V5E8)][::3], ids=str)
def test_arrays_of_batches_are_priced_as_one_by_one(layout):
    batches = np.array([1, 2, 3, 7, 64, 1000])
    facts = Facts.of(SPARSE, layout, T=1, S=77, cache=77)
    speed = Speed()
    (wires, _), *_ = placed(layout, V5E8, speed)
    rate = rates(V5E8, layout, speed)
    many = price(facts, layout, wires, rate, speed, batches)
    for i, batch in enumerate(batches.tolist()):
        one = price(facts, layout, wires, rate, speed, batch)
        for name in (*(f"{op}_s" for op in OPS), "links_s", "lower_s", "upper_s"):
            assert np.broadcast_to(getattr(many, name), batches.shape)[i] == pytest.approx(getattr(one, name), rel=1e-12)
        assert np.broadcast_to(many.seconds(speed), batches.shape)[i] == pytest.approx(one.seconds(speed), rel=1e-12)
        assert np.broadcast_to(many.memory.total, batches.shape)[i] == pytest.approx(one.memory.total, rel=1e-12)


# --- Words and data. ---


def test_text_and_json_say_the_same():
    step = decode_step(LLAMA_70B, V5E16, Layout(tensor=8, kv_batch=2, quantization=Quantization(bits=8)), 32, context=8192)
    facts = json.loads(json.dumps(step.to_json()))
    assert facts["seconds"] == step.seconds
    assert sum(facts["parts_s"].values()) == pytest.approx(facts["upper_s"])
    assert facts["memory_bytes"]["total"] == sum(step.memory.parts.values())
    assert facts["layout"]["placement"] == {k: {str(p): n for p, n in v.items()} for k, v in step.layout.placement.items()}
    assert facts["layout"]["quantization"]["bits"] == 8
    text = str(step)
    for word in ("tensor 8 · kv_batch 2", units.human(step.seconds, "s"), f"{step.binds} binds", "fits"):
        assert word in text
    short = decode_step(LLAMA_70B, V5E16, Layout(tensor=16), 3, context=100)
    assert f"weights binds; math would take as long from a batch of {units.human(short.critical_batch)} on" in str(short)
    assert str(Layout()) == "one device, weights bf16, cache bf16"


# --- The chapter's inequalities. ---


def test_inequalities():
    v5e = chip("v5e")
    assert inequalities.attention_intensity(5, 7, 3) == 5 * 7 * 3 / (5 * 3 + 7)
    assert inequalities.hbm_over_ici(v5e, 2) == v5e.hbm_bytes_per_s / (4 * v5e.ici_link_bytes_per_s)
    least = inequalities.width_ways(256, 8192, 28672)

    def two_d(ways):
        return 8192 / ways / 2 + 28672 * ways / 256

    assert two_d(least) < min(two_d(least * 1.01), two_d(least / 1.01))
    assert inequalities.two_d_over_one_d(256, 8192, 28672) == pytest.approx(two_d(least) / (8192 / 3), rel=1e-12)
    even = inequalities.two_d_chips(8192, 32768)
    assert even == 72
    assert inequalities.two_d_over_one_d(72, 8192, 32768) == pytest.approx(1, rel=1e-12)
    with pytest.raises(ValueError, match="axes=1 leaves none"):
        inequalities.two_d_chips(8192, 32768, axes=1)


def test_tensor_ways_of_decode_are_where_reading_a_block_takes_as_long_as_its_collectives():
    v5e, F, D, batch = chip("v5e"), 28672, 8192, 64
    ways = inequalities.decode_tensor_ways(v5e, F, batch)
    read_s = 2 * D * F * 2 / ways / v5e.hbm_bytes_per_s  # two matrices, bf16
    moved_s = 2 * batch * D * 2 / (2 * v5e.ici_link_bytes_per_s)  # gathered and scattered
    assert read_s == pytest.approx(moved_s, rel=1e-12)
    assert math.isclose(ways, F / (batch * inequalities.hbm_over_ici(v5e)))


def test_a_bound_counts_a_mixture_as_far_as_it_is_read():
    few, many = (bound(MIXTRAL, "h100:8x1", input=100, batch=b) for b in (1, 100_000))
    counts = tf.parameters(MIXTRAL)
    bandwidth = 8 * chip("h100").hbm_bytes_per_s
    dense = counts.total - counts.experts - counts.embedding
    cache = tf.kv_cache_bytes(MIXTRAL, S=100)
    assert few.decode_s * bandwidth == pytest.approx(2 * (dense + counts.experts / 4) + cache, rel=1e-9)
    assert many.decode_s >= 2 * (dense + counts.experts) / bandwidth
    assert replace(few, chips=1).tokens_per_s_per_chip == few.tokens_per_s
    held = bound(LLAMA_8B, V5E8, input=100, output=56)
    each, weights = tf.kv_cache_bytes(LLAMA_8B, S=128), tf.weight_bytes(LLAMA_8B).total
    assert held.batch == int((8 * 2**34 - weights) // each)
