"""The Llama of the labs: counted against formulas, computed against NumPy, cut over meshes against one device."""

import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from scaling_lib import transformer as tf
from scaling_lib.transformer import Experts, Transformer
from scaling_lib.xla import arrays, llama, simulate

pytestmark = pytest.mark.usefixtures("compiles_quickly")
MODEL = Transformer(n_layers=3, d_model=20, n_heads=6, n_kv_heads=2, head_dim=4, d_ff=28, vocab_size=44)
TIED = MODEL.but(tied_embeddings=True, vocab_size=41, vocab_multiple=4, n_layers=1)
B, T = 3, 7


def leaves(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def batch(model=MODEL, B=B, T=T):
    tokens = np.random.default_rng(0).integers(0, model.V, (B, T + 1))
    return {"tokens": jnp.asarray(tokens[:, :-1]), "targets": jnp.asarray(tokens[:, 1:])}


@pytest.fixture(scope="module")
def params():
    return llama.init(MODEL, jax.random.key(0))


# Counts


@pytest.mark.parametrize("name", ["Llama-3 8B", "Llama-3 70B", "Llama-3.1 405B", "Llama-2 7B"])
def test_the_real_shapes_hold_as_many_numbers_as_the_formula_says(name):
    assert leaves(llama.shapes(tf.model(name))) == tf.parameters(tf.model(name)).total


@pytest.mark.parametrize("model", [MODEL, TIED, MODEL.but(n_kv_heads=6, head_dim=14), MODEL.but(n_kv_heads=1, d_ff=5)])
def test_small_and_odd_models_hold_as_many_numbers_as_the_formula_says(model):
    params = llama.init(model, jax.random.key(0))
    assert leaves(params) == tf.parameters(model).total
    assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, llama.shapes(model))


def compiled_flops(function, model, B, T):
    spec = jax.ShapeDtypeStruct((B, T), jnp.int32)
    return simulate.compile(function, llama.shapes(model), {"tokens": spec, "targets": spec}, name="llama").flops


@pytest.mark.parametrize(("model", "B", "T"), [(MODEL, 2, 7), (TIED, 3, 5), (MODEL.but(n_layers=5, n_kv_heads=3), 1, 11)])
def test_formula_and_compiled_program_agree_exactly(model, B, T):
    counted = tf.train_flops(model, T=T, B=B, causal=False)
    assert compiled_flops(llama.loss, model, B, T) == counted.forward.total
    assert compiled_flops(jax.grad(llama.loss), model, B, T) == counted.model_flops


@pytest.mark.parametrize("unroll", [1, 3])
@pytest.mark.parametrize(
    "kept", [(), ("attention.scores", "mlp.up"), ("attention.context", "attention.out"), tf.names(MODEL)], ids=len
)
def test_what_is_computed_again_is_what_the_formula_says(kept, unroll):
    counted = tf.train_flops(MODEL, T=7, B=2, causal=False, remat=kept)
    assert compiled_flops(jax.grad(partial(llama.loss, remat=kept, unroll=unroll)), MODEL, 2, 7) == counted.hardware_flops


def test_each_name_of_a_tensor_is_kept_under_that_name(params):
    """A name that the program lacks would be kept nowhere, without a word."""
    traced = str(jax.make_jaxpr(llama.loss)(params, batch()))
    assert [name for name in tf.names(MODEL) if f"name={name}]" not in traced.replace(" ", "")] == []


def test_a_policy_of_jax_does_in_place_of_names(params):
    policy = jax.checkpoint_policies.dots_saveable
    again = partial(llama.loss, remat=policy)
    assert compiled_flops(jax.grad(again), MODEL, 2, 7) == tf.train_flops(MODEL, T=7, B=2, causal=False).model_flops


@pytest.mark.parametrize(("new", "S"), [(1, 11), (5, 13)])
def test_decode_does_the_flops_of_the_formula(new, S):
    cache = jax.eval_shape(partial(llama.empty_cache, MODEL, B, S))
    tokens, positions = jax.ShapeDtypeStruct((B, new), jnp.int32), jax.ShapeDtypeStruct((B,), jnp.int32)
    program = simulate.compile(llama.decode, llama.shapes(MODEL), cache, tokens, positions)
    assert program.flops == tf.forward_flops(MODEL, T=new, S=S, B=B, causal=False).total


def test_prefill_does_the_flops_of_the_formula_and_the_cache_has_its_bytes():
    tokens, lengths = jax.ShapeDtypeStruct((B, T), jnp.int32), jax.ShapeDtypeStruct((B,), jnp.int32)
    program = simulate.compile(partial(llama.prefill, S=11), llama.shapes(MODEL), tokens, lengths)
    assert program.flops == tf.forward_flops(MODEL, T=T, B=B, causal=False, head="last").total
    cache = llama.empty_cache(MODEL, B, 11, jnp.bfloat16)
    assert sum(x.nbytes for x in jax.tree.leaves(cache)) == tf.kv_cache_bytes(MODEL, S=11, B=B, dtype="bf16")


# What it computes


def reference(params, tokens):
    """One sequence through the model in NumPy and float64, one query and one head at a time."""
    w = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight

    def rope(x, place):
        turned = (x[: len(x) // 2] + 1j * x[len(x) // 2 :]) * np.exp(
            1j * place * np.array([500000 ** (-2 * i / len(x)) for i in range(len(x) // 2)])
        )
        return np.concatenate([turned.real, turned.imag])

    x = w["embedding"][tokens]
    for i in range(len(w["layers"]["query"])):
        layer = {name: value[i] for name, value in w["layers"].items()}
        h, mixed = norm(x, layer["attention_norm"]), np.zeros_like(x)
        group = layer["query"].shape[1] // layer["key"].shape[1]
        for t in range(len(tokens)):
            for n in range(layer["query"].shape[1]):
                query = rope(h[t] @ layer["query"][:, n], t)
                keys = [rope(h[s] @ layer["key"][:, n // group], s) for s in range(t + 1)]
                values = [h[s] @ layer["value"][:, n // group] for s in range(t + 1)]
                raw = np.exp([query @ key / np.sqrt(len(query)) for key in keys])
                mixed[t] += sum(r * v for r, v in zip(raw / raw.sum(), values, strict=True)) @ layer["out"][n]
        x = x + mixed
        h = norm(x, layer["mlp_norm"])
        gate = h @ layer["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["up"])) @ layer["down"]
    return norm(x, w["norm"]) @ w.get("head", w["embedding"].T)


@pytest.mark.parametrize("model", [MODEL, TIED])
def test_it_computes_what_a_plain_reference_does(model):
    params = llama.init(model, jax.random.key(1))
    draw = iter(jax.random.split(jax.random.key(2), 3))
    for place, name in ((params, "norm"), (params["layers"], "attention_norm"), (params["layers"], "mlp_norm")):
        place[name] += jax.random.normal(next(draw), place[name].shape) / 3  # ones would hide a norm left out
    tokens, targets = (np.asarray(x) for x in batch(model).values())
    logits = np.stack([reference(params, row) for row in tokens])
    np.testing.assert_allclose(llama.forward(params, tokens), logits, atol=2e-5)
    entropy = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    assert float(llama.loss(params, batch(model))) == pytest.approx(entropy.mean(), abs=1e-5)


def test_gradients_are_those_of_small_differences(params):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(jnp.float64), params)
        check_grads(lambda w: llama.loss(w, batch(T=3)), (wide,), order=1, modes=["rev"], atol=2e-3, rtol=2e-3, eps=1e-3)


@pytest.mark.parametrize("how", [{"remat": ("mlp.up",)}, {"remat": (), "unroll": 3}, {"loss_chunks": 7}], ids=str)
def test_how_it_runs_changes_no_gradient(params, how):
    plain, other = (jax.jit(jax.grad(f))(params, batch()) for f in (llama.loss, partial(llama.loss, **how)))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), plain, other)


def test_in_bf16_norms_softmax_rotation_and_loss_stay_in_float32(params):
    text = str(jax.make_jaxpr(partial(llama.loss, dtype=jnp.bfloat16))(params, batch()))
    found = re.findall(r":(\w+)\[[^\]]*\] = (exp|rsqrt|log|reduce_max|cos)\b", text)
    assert {name for _, name in found} == {"exp", "rsqrt", "log", "reduce_max", "cos"}
    assert {dtype for dtype, _ in found} == {"f32"}
    assert re.search(r":bf16\[[^\]]*\] = dot_general", text)  # and matmuls do not


def test_serving_in_bf16_is_near_float32_and_keeps_the_cache_in_bf16(params):
    tokens = batch()["tokens"]
    whole = llama.forward(params, tokens)
    logits, cache = llama.prefill(params, tokens[:, :5], jnp.full(B, 5), S=T, dtype=jnp.bfloat16)
    np.testing.assert_allclose(logits, whole[:, 4], atol=0.1)
    logits, cache = llama.decode(params, cache, tokens[:, 5:], jnp.full(B, 5), dtype=jnp.bfloat16)
    np.testing.assert_allclose(logits, whole[:, 5:], atol=0.1)
    assert logits.dtype == jnp.float32
    assert {x.dtype for x in jax.tree.leaves(cache)} == {jnp.dtype(jnp.bfloat16)}


def test_another_attention_takes_the_place_of_the_dense_one(params):
    def by_jax(query, key, value, positions):
        return jax.nn.dot_product_attention(query, key, value, is_causal=True)

    logits = llama.forward(params, batch()["tokens"], attention=by_jax)
    np.testing.assert_allclose(logits, llama.forward(params, batch()["tokens"]), atol=1e-5)


def test_a_later_token_changes_nothing_before_it(params):
    tokens = batch()["tokens"]
    changed = tokens.at[:, 4].set((tokens[:, 4] + 1) % MODEL.V)
    one, two = llama.forward(params, tokens), llama.forward(params, changed)
    np.testing.assert_array_equal(one[:, :4], two[:, :4])
    assert np.all(np.abs(one[:, 4:] - two[:, 4:]).max(-1) > 1e-3)


def test_scores_depend_on_distance_alone():
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 5, 14))

    def score(at, behind):
        turned = (llama.rope(x, jnp.array([[place]])) for x, place in ((query, at), (key, at - behind)))
        return jnp.einsum("BTNH,BTNH->N", *turned)

    np.testing.assert_allclose(score(3, 2), score(60, 2), atol=1e-4)
    assert np.abs(score(3, 2) - score(3, 1)).max() > 0.1
    np.testing.assert_allclose(score(5, 0), jnp.einsum("BTNH,BTNH->N", query, key), atol=1e-5)


# Serving


def test_prefill_and_decode_token_by_token_give_the_logits_of_the_whole(params):
    tokens, lengths, S = batch()["tokens"], jnp.array([1, 4, 3]), 9
    whole = llama.forward(params, tokens)
    garbage = jnp.where(jnp.arange(5) < lengths[:, None], tokens[:, :5], 43)
    logits, cache = llama.prefill(params, garbage, lengths, S=S)
    np.testing.assert_allclose(logits, whole[jnp.arange(B), lengths - 1], atol=1e-5)
    step = jax.jit(llama.decode, donate_argnums=1)
    positions = lengths  # each sequence is at a place of its own
    while positions.max() < T:
        logits, cache = step(params, cache, tokens[jnp.arange(B), positions][:, None], positions)
        np.testing.assert_allclose(logits[:, 0], whole[jnp.arange(B), positions], atol=1e-5)
        positions = positions + 1


def test_a_prompt_read_in_pieces_gives_the_logits_of_the_whole(params):
    tokens, cache = batch()["tokens"], llama.empty_cache(MODEL, B, T)
    pieces = []
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        logits, cache = llama.decode(params, cache, tokens[:, start:stop], jnp.full(B, start))
        pieces.append(logits)
    np.testing.assert_allclose(jnp.concatenate(pieces, 1), llama.forward(params, tokens), atol=1e-5)
    filled = llama.prefill(params, tokens, jnp.full(B, T), S=T)[1]
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), cache, filled)


# Training


def test_the_loss_begins_at_a_guess_and_falls_to_what_can_be_known(params):
    """The next token is one of two, at equal odds: no model can do better than log 2."""
    optimizer = llama.optimizer(60, peak=1e-2)
    step = jax.jit(partial(llama.train_step, optimizer=optimizer))
    state, draw, losses = optimizer.init(params), np.random.default_rng(0), []
    for _ in range(60):
        tokens = np.cumsum(draw.integers(1, 3, (32, T + 1)), axis=1) % MODEL.V
        params, state, loss = step(params, state, {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]})
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(MODEL.V), rel=0.3)
    assert np.log(2) - 0.05 < np.mean(losses[-5:]) < np.log(2) + 0.15


def test_the_optimizer_has_the_numbers_of_llama_2():
    """Gradients are clipped to length 1; betas 0.9 and 0.95; decay 0.1; the rate rises over a tenth, and falls to a tenth."""
    optimizer, weight = llama.optimizer(20, peak=0.5), {"query": jnp.array([3.0, -4.0])}
    adam = optimizer.update({"query": jnp.array([6.0, 8.0])}, optimizer.init(weight), weight)[1][1][0]
    np.testing.assert_allclose(adam.mu["query"], [0.06, 0.08], rtol=1e-5)
    np.testing.assert_allclose(adam.nu["query"], [0.05 * 0.36, 0.05 * 0.64], rtol=1e-5)
    state, update, rates = optimizer.init(weight), jax.jit(optimizer.update), []
    for _ in range(21):  # without a gradient, decay alone moves a weight
        moved, state = update({"query": jnp.zeros(2)}, state, weight)
        rates.append(float(-moved["query"][0] / (0.1 * 3)))
    assert rates[:3] == pytest.approx([0, 0.25, 0.5], rel=1e-5)
    assert rates[20] == pytest.approx(0.05, rel=1e-5)


def test_the_optimizer_state_has_the_bytes_of_the_formula(params):
    state = llama.optimizer(10).init(params)
    moments = sum(x.nbytes for x in jax.tree.leaves(state) if x.ndim)
    assert moments == 2 * 4 * tf.parameters(MODEL).total


@pytest.mark.parametrize("remat", ["full", ("mlp.gate", "mlp.gat")])
def test_an_unknown_remat_is_refused(params, remat):
    with pytest.raises(ValueError, match="names of input, "):
        llama.loss(params, batch(), remat=remat)


def test_parts_that_do_not_divide_the_tokens_are_refused(params):
    with pytest.raises(ValueError, match="loss_chunks=3 does not divide T=7"):
        llama.loss(params, batch(), loss_chunks=3)


def test_a_cache_too_short_for_the_prompts_is_refused(params):
    with pytest.raises(ValueError, match="S=6 is below T=7"):
        llama.prefill(params, batch()["tokens"], jnp.full(B, T), S=6)


# On a mesh

RULES = [
    ({"X": 3}, llama.RULES),
    ({"Y": 2}, llama.RULES),
    ({"X": 3, "Y": 2}, llama.RULES),
    ({"X": 3}, {"B": "X"}),
    ({"X": 3, "Y": 2}, {"B": ("X", "Y"), "V": "Y"}),
    ({"X": 3, "Y": 2}, {"B": "X", "N": "Y", "K": "Y", "F": "Y", "V": "Y", "T": "Y", "D": "X"}),
]
WIDE = MODEL.but(d_model=24, d_ff=30, vocab_size=42)  # divides over 2 and over 3


@pytest.fixture(scope="module")
def devices():
    """Runs a function of this file in a process that has six devices."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start) as process:
        yield lambda function, *given: process.submit(function, *given).result(timeout=300)


def _start():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    jax.config.update("jax_disable_most_optimizations", True)
    simulate.mesh(X=6)


@pytest.mark.parametrize(("axes", "rules"), RULES, ids=str)
def test_a_training_step_on_a_mesh_is_that_of_one_device(axes, rules, devices):
    assert devices(train_on_a_mesh, axes, rules) > 0


def train_on_a_mesh(axes, rules):
    """A step down the whole gradient, from weights made in place; how many arrays were cut."""
    mesh, step = simulate.mesh(**axes), partial(llama.train_step, optimizer=SLOPE)
    params, state, given = start()
    made = jax.jit(partial(llama.init, WIDE), out_shardings=llama.shardings(mesh, params, rules))(jax.random.key(0))
    close(made, params)
    placed = made, *(jax.device_put(tree, llama.shardings(mesh, tree, rules)) for tree in (state, given))
    with jax.set_mesh(mesh):
        close(jax.jit(partial(step, rules=rules))(*placed), after_a_step())
    return sum(not leaf.is_fully_replicated for leaf in jax.tree.leaves(placed))


@pytest.mark.parametrize("axes", [{"Y": 2}, {"X": 3, "Y": 2}], ids=str)
def test_serving_on_a_mesh_is_that_of_one_device(axes, devices):
    devices(serve_on_a_mesh, axes)


def serve_on_a_mesh(axes):
    mesh, (params, _, given) = simulate.mesh(**axes), start()
    prompts = {"tokens": given["tokens"], "lengths": jnp.array([8, 3, 5, 1, 2, 7])}
    new = {"tokens": given["targets"][:, :1], "positions": prompts["lengths"]}
    prefill, decode = (lambda p, b: llama.prefill(p, **b, S=9)), (lambda p, c, b: llama.decode(p, c, **b))
    logits, cache = jax.jit(prefill)(params, prompts)
    expected = jax.jit(decode)(params, cache, new)
    put = [jax.device_put(tree, llama.shardings(mesh, tree)) for tree in (params, prompts, cache, new)]
    with jax.set_mesh(mesh):
        close(jax.jit(prefill)(*put[:2]), (logits, cache))
        close(jax.jit(decode)(put[0], *put[2:]), expected)


SLOPE = optax.sgd(1.0, momentum=0.9)
close = partial(jax.tree.map, partial(np.testing.assert_allclose, atol=2e-5))


@cache
def start():
    params = llama.init(WIDE, jax.random.key(0))
    return params, SLOPE.init(params), batch(WIDE, B=6, T=8)


@cache
def after_a_step():
    return jax.jit(partial(llama.train_step, optimizer=SLOPE))(*start())


def test_rules_apply_in_order_and_an_axis_cuts_once():
    mesh = arrays.mesh(X=3, Y=2)
    tree = {"layers": {"query": jnp.ones((3, 24, 6, 4))}, "tokens": jnp.ones((6, 12)), "count": jnp.ones(())}
    layouts = jax.tree.map(lambda sharding: sharding.spec, llama.shardings(mesh, tree))
    assert layouts == {"layers": {"query": P(None, ("X",), ("Y",), None)}, "tokens": P(("X",), None), "count": P()}
    other = {"N": "X", "T": ("X", "Y"), "D": ("Y", "X"), "B": "Y"}
    layouts = jax.tree.map(lambda sharding: sharding.spec, llama.shardings(mesh, tree, other))
    assert layouts["layers"]["query"] == P(None, ("Y",), ("X",), None)
    assert layouts["tokens"] == P(None, ("X", "Y"))


def test_optimizer_state_is_cut_like_the_weights():
    params = llama.shapes(WIDE)
    state = jax.eval_shape(llama.optimizer(10).init, params)
    mesh = arrays.mesh(X=3, Y=2)
    placed = llama.specs(mesh, {"params": params, "state": state})
    whole = sum(leaf.size for leaf in jax.tree.leaves(placed))
    part = sum(np.prod(leaf.sharding.shard_shape(leaf.shape), dtype=int) for leaf in jax.tree.leaves(placed))
    norms = 3 * tf.parameters(WIDE).norms  # cut over X alone
    assert part == (whole - norms - 2) // 6 + norms // 3 + 2  # and two step counts, everywhere


@pytest.mark.parametrize(
    ("axes", "rules", "message"),
    [
        ({"X": 7}, llama.RULES, "embedding: D=24 is no multiple of X=7"),
        ({"Y": 5}, llama.RULES, "embedding: V=42 is no multiple of Y=5"),
        ({"data": 2}, llama.RULES, "'data', which no rule names"),
        ({"data": 7}, {"D": "data"}, "embedding: D=24 is no multiple of data=7"),
        ({"X": 2}, {"B": "X", "Q": "X"}, "rules cut 'Q'"),
    ],
)
def test_rules_that_do_not_fit_are_refused(axes, rules, message):
    with pytest.raises(ValueError, match=message):
        llama.shardings(arrays.mesh(**axes), llama.shapes(WIDE), rules)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": Experts(n_experts=4, top_k=2, d_ff=7)}, "experts=Experts"),
        ({"qkv_bias": True}, "qkv_bias=True"),
        ({"gated_mlp": False, "norms": "both"}, "gated_mlp=False, norms='both'"),
        ({"layer_pattern": ("local", "global"), "window": 3}, "layer_pattern=.*window=3"),
        ({"head_dim": 5}, "head_dim=5, which is odd"),
    ],
)
def test_what_this_llama_lacks_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        llama.init(MODEL.but(**changes), jax.random.key(0))
    with pytest.raises(ValueError, match=message):
        llama.shapes(MODEL.but(**changes))


def test_latent_attention_is_refused():
    with pytest.raises(ValueError, match="latent=Latent"):
        llama.shapes(tf.model("DeepSeek-V3"))
