"""FLOPs, remat and activations: against matmuls listed one by one, and against published formulas and figures."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import transformer as tf
from scaling_lib import units
from scaling_lib.hardware import chip
from scaling_lib.transformer import Experts, Latent, Transformer

DENSE = Transformer(n_layers=3, d_model=21, n_heads=6, n_kv_heads=2, head_dim=5, d_ff=35, vocab_size=77)
PLAIN = Transformer(n_layers=2, d_model=30, n_heads=5, d_ff=44, vocab_size=13, gated_mlp=False, tied_embeddings=True)
LOCAL = DENSE.but(n_layers=5, layer_pattern=("local", "chunked", "global"), window=4)
MOE = DENSE.but(experts=Experts(n_experts=7, top_k=3, d_ff=11, n_shared=2, first_dense=1, shared_gate=True))
MLA = DENSE.but(latent=Latent(kv_rank=9, nope_dim=4, rope_dim=2, v_dim=5, q_rank=8), n_kv_heads=6, head_dim=None)
MLA_SHORT = MLA.but(latent=replace(MLA.latent, q_rank=0))
MODELS = {"dense": DENSE, "plain": PLAIN, "local": LOCAL, "experts": MOE, "latent": MLA, "latent without q_rank": MLA_SHORT}


def sees(kind, query, key, window):
    """Whether the mask lets a query look at a key; positions from 0."""
    if key > query:
        return False
    if kind == "local":
        return query - key < window
    return kind == "global" or query // window == key // window


def listed(model, T, B, S, causal):
    """Every matmul of a forward pass as (rows, contracted, columns), written out layer by layer and head by head."""
    D, tokens = model.d_model, B * T
    for layer in range(model.n_layers):
        if model.latent:
            mla = model.latent
            into = mla.q_rank or D
            if mla.q_rank:
                yield tokens, D, mla.q_rank
            yield tokens, into, model.n_heads * (mla.nope_dim + mla.rope_dim)
            yield tokens, D, mla.kv_rank + mla.rope_dim
            yield tokens, mla.kv_rank, model.n_heads * (mla.nope_dim + mla.v_dim)
            wide, deep = mla.nope_dim + mla.rope_dim, mla.v_dim
        else:
            yield tokens, D, model.n_heads * model.head_dim
            yield tokens, D, model.n_kv_heads * model.head_dim
            yield tokens, D, model.n_kv_heads * model.head_dim
            wide = deep = model.head_dim
        kind = model.layer_kinds[layer]
        for query, _ in itertools.product(range(S - T, S), range(B * model.n_heads)):
            keys = sum(sees(kind, query, key, model.window) for key in range(S)) if causal else S
            yield 1, wide, keys
            yield 1, keys, deep
        yield tokens, model.n_heads * deep, D
        moe = model.experts
        if moe and layer >= moe.first_dense:
            yield tokens, D, moe.n_experts
            yield tokens, D, 1
            for _, _ in itertools.product(range(moe.top_k), range(2)):
                yield tokens, D, moe.d_ff
            for _ in range(moe.top_k):
                yield tokens, moe.d_ff, D
            yield from ((tokens, D, moe.n_shared * moe.d_ff),) * 2
            yield tokens, moe.n_shared * moe.d_ff, D
        else:
            yield from ((tokens, D, model.d_ff),) * (2 if model.gated_mlp else 1)
            yield tokens, model.d_ff, D
    yield tokens, D, model.vocab_size


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("T", "B", "S"), [(7, 3, 7), (11, 2, 11), (3, 2, 13), (1, 5, 9)])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_forward_flops_are_those_of_every_matmul_listed_one_by_one(model, T, B, S, causal):
    by_hand = sum(2 * m * k * n for m, k, n in listed(model, T, B, S, causal))
    assert tf.forward_flops(model, T=T, B=B, S=S, causal=causal).total == by_hand


@given(
    kind=st.sampled_from(["global", "local", "chunked"]),
    T=st.integers(1, 30),
    before=st.integers(0, 30),
    window=st.integers(1, 20),
)
def test_pairs_are_those_that_the_mask_lets_through(kind, T, before, window):
    S = T + before
    by_hand = sum(sees(kind, query, key, window) for query in range(before, S) for key in range(S))
    assert tf.attention_pairs(kind, T=T, S=S, causal=True, window=window) == by_hand


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_chunked_prefill_adds_up_to_a_whole_one(first, second, B):
    whole = tf.forward_flops(LOCAL, T=first + second, B=B, causal=True)
    parts = tf.forward_flops(LOCAL, T=first, B=B, causal=True)
    parts += tf.forward_flops(LOCAL, T=second, S=first + second, B=B, causal=True)
    assert parts == whole


def test_the_published_side_by_side_figures():
    """Llama-2, 4096 tokens, all pairs, and half of them; the triangle is T(T + 1)/2 pairs, 0.02 % of attention above half."""
    small, large = tf.model("Llama-2 7B"), tf.model("Llama-2 70B")
    assert tf.forward_flops(small, T=4096, causal=False).total == pytest.approx(6.2921e13, rel=1e-5)
    assert tf.forward_flops(large, T=4096, causal=False).total == pytest.approx(6.0688e14, rel=1e-5)
    assert tf.forward_flops(small, T=4096, causal=True).total == pytest.approx(5.852e13, rel=1e-4)


def test_megatrons_formula_for_gpt():
    """72 B s L h^2 (1 + s/6h + V/12hL) of Narayanan et al. 2021 without recomputation, 96 and V/16hL with it."""
    gpt, B, s = tf.model("Megatron 22B"), 3, 2048
    L, h, V = gpt.L, gpt.D, gpt.V
    step = tf.train_flops(gpt, T=s, B=B, causal=False, remat="full")
    assert step.model_flops == pytest.approx(72 * B * s * L * h**2 * (1 + s / (6 * h) + V / (12 * h * L)), rel=1e-12)
    assert step.hardware_flops == pytest.approx(96 * B * s * L * h**2 * (1 + s / (6 * h) + V / (16 * h * L)), rel=1e-12)


def test_heads_of_every_kind():
    counted = {head: tf.forward_flops(DENSE, T=7, B=3, causal=True, head=head) for head in ("all", "last", "none")}
    assert [flops.head for flops in counted.values()] == [2 * 21 * 77 * 21, 2 * 3 * 77 * 21, 0]
    assert len({replace(flops, head=0) for flops in counted.values()}) == 1


def test_a_lookup_costs_nothing_and_a_one_hot_matmul_what_six_n_counts():
    assert tf.forward_flops(DENSE, T=7, causal=True).embedding == 0
    assert tf.forward_flops(DENSE, T=7, causal=True, embedding="matmul").embedding == 2 * 7 * 77 * 21
    positions = DENSE.but(learned_positions=99)
    assert tf.forward_flops(positions, T=7, causal=True, embedding="matmul").embedding == 2 * 7 * 77 * 21


def test_absorbed_latents_score_against_the_cached_vector():
    plain = tf.forward_flops(MLA, T=1, S=100, causal=True)
    absorbed = tf.forward_flops(MLA, T=1, S=100, causal=True, absorbed=True)
    assert absorbed.projections == plain.projections
    assert absorbed.scores * (4 + 2) == plain.scores * (9 + 2)
    assert absorbed.context * 5 == plain.context * 9


def test_relative_positions_are_projected_once_a_distance_and_met_by_every_query():
    relative = PLAIN.but(relative_positions=True)
    more, base = (tf.forward_flops(model, T=7, B=3, causal=False) for model in (relative, PLAIN))
    assert more.projections - base.projections == 2 * 2 * 7 * 30 * 30
    assert more.scores == 2 * base.scores


def test_matmuls_carry_the_names_of_the_weights():
    names = [row.name for row in tf.matmuls(DENSE, T=3, causal=True)]
    assert names == [
        "attention.query", "attention.key", "attention.value", "attention.scores", "attention.context", "attention.out",
        "mlp.gate", "mlp.up", "mlp.down", "head.table",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"T": 0}, "T=0"),
        ({"T": -7}, "T=-7"),
        ({"T": 7, "B": 0}, "B=0"),
        ({"T": 7, "S": 6}, "S=6 is below T=7"),
        ({"T": 7, "causal": "no"}, "causal='no' is neither True nor False"),
        ({"T": 7, "head": "first"}, "head='first'"),
        ({"T": 7, "embedding": "one-hot"}, "embedding='one-hot'"),
        ({"T": 7, "absorbed": True}, "absorbed=True, but .* has no latent attention"),
    ],
)
def test_a_pass_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        tf.forward_flops(DENSE, **({"causal": True} | arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "sliding"}, "kind='sliding' is unknown; give 'global'"),
        ({"T": -1}, "T=-1"),
        ({"T": 6}, "S=5 is below T=6"),
        ({"window": None}, "window=None is not a number"),
        ({"kind": "chunked", "window": 0}, "window=0"),
        ({"causal": None}, "causal=None"),
    ],
)
def test_pairs_that_cannot_be_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        tf.attention_pairs(**({"kind": "local", "T": 3, "S": 5, "window": 2, "causal": True} | arguments))


def test_causal_has_no_default():
    with pytest.raises(TypeError, match="causal"):
        tf.forward_flops(DENSE, T=7)


# --- Training and remat. ---


def step(model=DENSE, **arguments):
    return tf.train_flops(model, **({"T": 7, "B": 3, "causal": False} | arguments))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_backward_pass_is_twice_the_forward_pass(model):
    counted = step(model)
    assert counted.backward == 2 * counted.forward
    assert counted.model_flops == counted.hardware_flops == 3 * counted.forward.total


def test_what_each_policy_computes_again():
    forward = step().forward
    layers = replace(forward, head=0)
    assert step(remat="full").recompute == layers
    assert step(remat="selective").recompute == tf.Flops(scores=forward.scores, context=forward.context)
    assert step(flash=True).recompute == step(flash=True, remat="selective").recompute == tf.Flops(scores=forward.scores)
    assert step(flash=True, remat="full").recompute == layers + tf.Flops(scores=forward.scores)
    down = forward.mlp // 3
    assert step(remat=()).recompute == replace(layers, mlp=2 * down)  # nothing needs the last matmul's result
    assert step(remat=("attention.query", "mlp.gate")).recompute == replace(
        layers, mlp=down, projections=layers.projections - 2 * 21 * 21 * 30 * 3
    )


def test_a_norm_after_the_block_needs_its_last_matmul():
    assert step(DENSE.but(norms="both"), remat=()).recompute.mlp == step().forward.mlp


def test_a_block_in_parallel_with_attention_needs_no_output_projection():
    forward, again = step().forward, step(DENSE.but(parallel=True, norms="shared"), remat=()).recompute
    assert forward.projections - again.projections == 2 * 21 * 30 * 21 * 3


def test_the_gate_of_shared_experts_needs_their_result():
    ungated = MOE.but(experts=replace(MOE.experts, shared_gate=False))
    assert step(MOE, remat=()).recompute.shared_experts == step(MOE).forward.shared_experts
    assert step(ungated, remat=()).recompute.shared_experts == step(MOE).forward.shared_experts * 2 // 3


def test_kept_keys_of_latent_attention_hold_the_rotary_key_too():
    again = step(MLA, remat=()).recompute.projections - step(MLA, remat=("attention.key",)).recompute.projections
    assert again == 2 * 21 * 3 * (21 * 2 + 9 * 6 * 4)


def test_keeping_flash_attentions_result_spares_its_forward_kernel():
    forward = step().forward
    assert step(flash=True, remat=("attention.context",)).recompute.context == 0
    assert step(flash=True, remat=("attention.context",)).recompute.scores == forward.scores
    assert step(flash=True, remat=()).recompute.scores == 2 * forward.scores
    assert step(flash=True, remat=()).recompute.context == forward.context


def test_experts_results_are_needed_by_the_router():
    assert step(MOE, remat=()).recompute.experts == step(MOE).forward.experts


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_keeping_every_name_computes_nothing_again(model):
    assert step(model, remat=tf.names(model)).recompute.total == 0


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_more_kept_is_never_more_computed(model):
    names = tf.names(model)
    for i in range(len(names)):
        less, more = (
            (step(model, remat=names[:j]).recompute.total, tf.activation_bytes(model, T=7, B=3, remat=names[:j]).layers_bytes)
            for j in (i, i + 1)
        )
        assert more[0] <= less[0]
        assert more[1] >= less[1]


@pytest.mark.parametrize(
    ("remat", "words"),
    [
        ("all", "remat='all' is unknown"),
        (("attention.q",), "'attention.q'.*did you mean"),
        (("mlp.mask",), "mlp.mask"),
        (None, "remat=None"),
    ],
)
def test_unknown_policies_are_refused(remat, words):
    with pytest.raises(ValueError, match=words):
        step(remat=remat)
    with pytest.raises(ValueError, match=words):
        tf.activation_bytes(DENSE, T=7, remat=remat)


def test_utilization_counts_all_chips_and_the_peak_of_the_dtype():
    h100 = chip("h100")
    flops = 8 * h100.flops_per_s("bf16")
    assert tf.utilization(flops, seconds=2, chips=8, chip=h100) == 0.5
    assert tf.utilization(flops, seconds=2, chips=8, chip=h100, dtype="fp8") == pytest.approx(0.25, rel=1e-2)
    with pytest.raises(ValueError, match="seconds=0"):
        tf.utilization(flops, seconds=0, chips=8, chip=h100)
    with pytest.raises(ValueError, match="chips=0"):
        tf.utilization(flops, seconds=1, chips=0, chip=h100)


def test_hardware_utilization_is_four_thirds_of_models_under_full_remat():
    counted = step(PLAIN, causal=True, remat="full")
    without_head = counted.model_flops - 3 * counted.forward.head
    assert (counted.hardware_flops - 3 * counted.forward.head) * 3 == without_head * 4


# --- Activations: Korthikanti et al. 2022, of a GPT with dropout in 16 bits. ---

GPT = Transformer(n_layers=5, d_model=96, n_heads=6, d_ff=4 * 96, vocab_size=77, gated_mlp=False)


def a_layer(**arguments):
    return tf.activation_bytes(GPT, T=40, B=3, dropout=True, **arguments).layers_bytes / 5


def test_korthikantis_formulas():
    s, b, h, a, t = 40, 3, 96, 6, 2
    sbh = s * b * h
    assert a_layer() == sbh * (34 + 5 * a * s / h)
    assert a_layer(tensor_parallel=t) == sbh * (10 + 24 / t + 5 * a * s / (h * t))
    assert a_layer(tensor_parallel=t, sequence_parallel=True) == sbh * (34 / t + 5 * a * s / (h * t))
    assert a_layer(tensor_parallel=t, remat="selective") == sbh * (10 + 24 / t)
    assert a_layer(tensor_parallel=t, remat="selective", sequence_parallel=True) == sbh * 34 / t
    assert a_layer(remat="full") == 2 * sbh


@pytest.mark.parametrize(
    ("name", "stages", "virtual", "whole_gib", "selective_gib"),
    [
        ("Megatron 22B", 1, 1, 59.25, 9.5625),
        ("GPT-3 175B", 8, 3, 66.84375, 12.3515625),
        ("MT-NLG 530B", 35, 3, 114.0234375, 23.076171875),
        ("Megatron 1T", 64, 1, 131.25, 26.5625),
    ],
)
def test_korthikantis_figures(name, stages, virtual, whole_gib, selective_gib):
    """Of the first pipeline stage under tensor parallelism 8, from calculon's digitized copy.

    A stage holds L/p layers of p micro-batches, L in all; interleaved schedules hold 1 + (p - 1)/pv times as much.
    """
    model = tf.model(name)
    batch = {"Megatron 22B": 4}.get(name, 1)
    in_flight = 1 if virtual == 1 else 1 + (stages - 1) / (stages * virtual)
    whole = tf.activation_bytes(model, T=2048, B=batch, dropout=True, tensor_parallel=8).layers_bytes
    selective = tf.activation_bytes(
        model, T=2048, B=batch, dropout=True, tensor_parallel=8, sequence_parallel=True, remat="selective"
    ).layers_bytes
    assert whole * in_flight / units.GIB == pytest.approx(whole_gib, rel=1e-5)
    assert selective * in_flight / units.GIB == pytest.approx(selective_gib, rel=1e-5)


def test_the_published_activations_of_seven_billion_parameters():
    gpt = Transformer(n_layers=32, d_model=4096, n_heads=32, d_ff=16384, vocab_size=32000, gated_mlp=False)
    assert tf.activation_bytes(gpt, T=4096, dropout=True).layers_bytes == 104_152_956_928
    assert tf.activation_bytes(gpt, T=4096, dropout=True, remat="selective").layers_bytes == 18_253_611_008


def test_flash_attention_keeps_a_float32_a_head_and_token_for_all_the_scores():
    kept = {t.name: t.bytes for t in tf.activation_bytes(DENSE, T=40, B=3, flash=True).kept}
    assert kept["attention.normalizer"] == 3 * 40 * 6 * 4
    assert "attention.scores" not in kept
    plain = {t.name: t.bytes for t in tf.activation_bytes(DENSE, T=40, B=3, scores_dtype="f32").kept}
    assert plain["attention.scores"] == 3 * 6 * 40 * 40 * 4


def test_activations_of_a_llama_layer_by_hand():
    """Per token: input, two norms, residual: 4 D; queries, context: 2 N H; keys, values: 2 K H; gate, up, product: 3 F."""
    counted = tf.activation_bytes(DENSE, T=40, B=3, remat="selective")
    assert counted.layers_bytes == 3 * 2 * 3 * 40 * (4 * 21 + 2 * 30 + 2 * 10 + 3 * 35)
    assert counted.head_bytes == 3 * 40 * (2 * 21 * 2 + 77 * 4)
    assert counted.total_bytes == counted.layers_bytes + counted.head_bytes


def test_activations_of_other_layers_by_hand():
    def widths(model):
        return sum(t.bytes * t.layers for t in tf.activation_bytes(model, T=1, remat="selective").kept) / 2

    base = widths(DENSE)
    assert widths(DENSE.but(norms="both")) - base == 3 * 2 * 21
    assert widths(DENSE.but(qk_norm="head")) - base == 3 * (30 + 10)
    assert widths(DENSE.but(parallel=True, norms="shared")) - base == -3 * 2 * 21
    assert widths(MLA) == 3 * (4 * 21 + 2 * (8 + 9) + 6 * (6 + 6 + 5 + 5) + 3 * 35)
    dense_part, expert_part = 3 * 35, 7 + 2 * 3 * 21 + 3 * 3 * 11 + 3 * 22 + 21 + 1
    assert widths(MOE) - base == 2 * (expert_part - dense_part)


def test_tensor_parallelism_splits_heads_and_widths_and_repeats_key_heads():
    model = DENSE.but(n_heads=12, n_kv_heads=2)
    one, many = ({t.name: t.bytes for t in tf.activation_bytes(model, T=5, tensor_parallel=ways).kept} for ways in (1, 4))
    assert one["attention.query"] == 4 * many["attention.query"]
    assert one["attention.key"] == 2 * many["attention.key"]
    assert one["mlp.norm"] == many["mlp.norm"]
    whole, split = (tf.activation_bytes(model, T=5, tensor_parallel=4, sequence_parallel=on) for on in (False, True))
    assert whole.head_bytes == 5 * (2 * 21 * 2 + 77 * 4 / 4)  # each device has the logits of its part of the vocabulary
    assert split.head_bytes == 5 * (2 * 21 * 2 / 4 + 77 * 4 / 4)
    latent = {t.name: t.bytes for t in tf.activation_bytes(MLA, T=5, tensor_parallel=3).kept}
    assert latent["attention.latent"] == latent["attention.latent_norm"] == 5 * 9 * 2
    assert latent["attention.query_down"] == latent["attention.query_down_norm"] == 5 * 8 * 2
    with pytest.raises(ValueError, match="tensor_parallel=5 does not divide n_heads=12"):
        tf.activation_bytes(model, T=5, tensor_parallel=5)
    with pytest.raises(ValueError, match="n_kv_heads=3"):
        tf.activation_bytes(DENSE.but(n_heads=12, n_kv_heads=3), T=5, tensor_parallel=2)
