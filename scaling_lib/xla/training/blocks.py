"""The blocks of `llama`, for those who cut them over devices by hand: inside `jax.shard_map`, with collectives in between.

They take the weights of `llama.init`, or a device's part of them, and put together they compute what `llama.loss` does. Nothing
in them knows of a mesh. Used in labs/05a to 05e.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scaling_lib.xla import llama

Tree = Any  # of arrays
Hook = Callable[[jax.Array], jax.Array]
lax: Any = jax.lax  # JAX is typed in part


def _same(x: Any) -> Any:
    return x


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    """RMSNorm of x[..., D]."""
    scaled: jax.Array = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + llama.NORM_EPSILON) * weight
    return scaled


def attention(weights: Tree, normed: jax.Array, *, out: Any = None) -> jax.Array:
    """What the heads in `weights` add to the stream: normed[B, T, D] -> [B, T, D].

    Of some of the heads, with their keys, it is their summand. `out` is the result's sharding, where shardings are in types.
    """
    positions = jnp.arange(normed.shape[1])[None]
    query = llama.rope(jnp.einsum("BTD,DNH->BTNH", normed, weights["query"]), positions)
    key = llama.rope(jnp.einsum("BTD,DKH->BTKH", normed, weights["key"]), positions)
    value = jnp.einsum("BTD,DKH->BTKH", normed, weights["value"])
    return jnp.einsum("BTNH,NHD->BTD", llama.dense_attention(query, key, value, positions), weights["out"], out_sharding=out)


def mlp(weights: Tree, normed: jax.Array, *, out: Any = None) -> jax.Array:
    """What the hidden columns in `weights` add to the stream: normed[B, T, D] -> [B, T, D]; `out` as in `attention`."""
    gate, up = (jnp.einsum("BTD,DF->BTF", normed, weights[name]) for name in ("gate", "up"))
    return jnp.einsum("BTF,FD->BTD", jax.nn.silu(gate) * up, weights["down"], out_sharding=out)


def layer(
    weights: Tree,
    x: jax.Array,
    *,
    enter: Hook = _same,
    leave: Hook = _same,
    attention: Callable[[Tree, jax.Array], jax.Array] = attention,
    mlp: Callable[[Tree, jax.Array], jax.Array] = mlp,
) -> jax.Array:
    """The stream x[B, T, D] after one layer.

    Args:
        weights: of this layer, {"query": [D, N, H], ...}.
        x: the stream.
        enter: what happens to the normed stream before each of the two blocks.
        leave: what happens to each block's result before it is added.
        attention: what takes the place of the first block.
        mlp: what takes the place of the second block.
    """
    x = x + leave(attention(weights, enter(norm(x, weights["attention_norm"]))))
    return x + leave(mlp(weights, enter(norm(x, weights["mlp_norm"]))))


def layers(stacked: Tree, x: jax.Array, *, fetch: Callable[[Tree], Tree] = _same, remat: bool = False, **hooks: Any) -> jax.Array:
    """The stream x[B, T, D] after all layers in `stacked`, one after the other in a loop.

    Args:
        stacked: their weights, {"query": [L, D, N, H], ...}.
        x: the stream.
        fetch: makes of what a device has of one layer what it computes with.
        remat: keeps a layer's input alone for the backward pass, which then fetches and computes the rest again.
        hooks: as of `layer`.
    """

    def turn(x: jax.Array, weights: Tree) -> tuple[jax.Array, None]:
        return layer(fetch(weights), x, **hooks), None

    body: Any = jax.checkpoint(turn, prevent_cse=False) if remat else turn
    out: jax.Array = lax.scan(body, x, stacked)[0]
    return out


def logits(params: Tree, x: jax.Array) -> jax.Array:
    """x[B, T, D] -> [B, T, V], of the columns that the head in `params` has."""
    return jnp.einsum("BTD,DV->BTV", norm(x, params["norm"]), params["head"])


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean over all targets [B, T], in nats."""
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)
