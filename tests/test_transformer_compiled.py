"""FLOPs by formula against the dot operations of compiled programs, under every remat policy: no difference is allowed."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name as named

from scaling_lib import transformer as tf
from scaling_lib.transformer import Transformer
from scaling_lib.xla import simulate

MODEL = Transformer(n_layers=3, d_model=20, n_heads=6, n_kv_heads=2, head_dim=4, d_ff=28, vocab_size=44)
POLICIES = [
    (),
    ("attention.query", "mlp.gate"),
    ("attention.context", "attention.out"),
    ("attention.query", "attention.key", "attention.value", "attention.out", "mlp.gate", "mlp.up", "mlp.down"),
]


def weights(model):
    """Shapes of all weights by the library's names: those of the layers stacked, the rest as they are."""
    shapes = {w.name: w.shape if w.layers is None else (len(w.layers), *w.shape) for w in tf.weights(model)}
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def normed(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def layer(x, w):
    """One layer of MODEL, without rotary positions, which are no matmul."""
    B, T, _ = x.shape
    h = normed(x, w["norms.layer_1"])
    q, k, v = (
        named(jnp.einsum("btd,dnh->btnh", h, w[f"attention.{name}"]), f"attention.{name}") for name in ("query", "key", "value")
    )
    scores = jnp.einsum("btkgh,bskh->bkgts", q.reshape(B, T, MODEL.K, MODEL.G, MODEL.H), k)
    scores = jnp.where(jnp.tril(jnp.ones((T, T), bool)), scores, -1e9)
    context = named(jnp.einsum("bkgts,bskh->btkgh", jax.nn.softmax(scores), v), "attention.context")
    x = x + named(jnp.einsum("btnh,nhd->btd", context.reshape(B, T, MODEL.N, MODEL.H), w["attention.out"]), "attention.out")
    h = normed(x, w["norms.layer_2"])
    gate, up = (named(h @ w[f"mlp.{name}"], f"mlp.{name}") for name in ("gate", "up"))
    return x + named((jax.nn.silu(gate) * up) @ w["mlp.down"], "mlp.down")


def loss(weights, tokens, kept=None):
    run = layer
    if kept is not None:
        run = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names(*kept))
    layers = {name: w for name, w in weights.items() if name.startswith(("attention", "mlp", "norms.layer"))}
    x, _ = jax.lax.scan(lambda x, w: (run(x, w), None), weights["embedding.table"][tokens], layers)
    logits = normed(x, weights["norms.last"]) @ weights["head.table"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1))


def compiled_flops(function, B, T):
    return simulate.compile(function, weights(MODEL), jax.ShapeDtypeStruct((B, T), jnp.int32)).flops


@pytest.mark.parametrize(("B", "T"), [(2, 7), (3, 5), (1, 11)])
def test_formula_and_compiled_program_agree_exactly(B, T):
    counted = tf.train_flops(MODEL, T=T, B=B, causal=False)
    assert compiled_flops(loss, B, T) == counted.forward.total
    assert compiled_flops(jax.grad(loss), B, T) == counted.model_flops


@pytest.mark.parametrize("kept", POLICIES, ids=lambda kept: " ".join(kept) or "nothing")
def test_recomputation_is_what_the_compiler_computes_again(kept):
    counted = tf.train_flops(MODEL, T=7, B=2, causal=False, remat=kept)
    assert compiled_flops(jax.grad(lambda w, tokens: loss(w, tokens, kept)), 2, 7) == counted.hardware_flops
