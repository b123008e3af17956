"""Attention over a sequence that is cut over devices: keys and values go round the ring, queries stay.

Used inside `jax.shard_map`: arrays are a device's own parts. No device ever holds the whole sequence, nor its scores.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

lax: Any = jax.lax  # JAX is typed in part


def ring_attention(query: jax.Array, key: jax.Array, value: jax.Array, axis: str, *, causal: bool = True) -> jax.Array:
    """Attention of this device's queries to all keys; sums are in float32.

    Args:
        query: [B, T / n, N, H], this device's tokens.
        key: [B, T / n, K, H], of the same tokens; K divides N.
        value: as `key`.
        axis: the mesh axis that cuts T, into n parts in order.
        causal: tokens see themselves and earlier ones.

    Returns:
        [B, T / n, N, H], in the queries' dtype.

    NB: causal attention computes the blocks that it masks too, nearly half of all. Real programs give each device an early and
    a late part of the sequence, so that all have as much to do.

    Source: Liu et al. 2023, Ring Attention with Blockwise Transformers.
    """
    n, here = lax.axis_size(axis), lax.axis_index(axis)
    (B, T, N, H), K = query.shape, key.shape[2]
    grouped = query.reshape(B, T, K, N // K, H)
    places = jnp.arange(T)
    most = jnp.full((B, K, N // K, T), -jnp.inf)
    total = jnp.zeros((B, K, N // K, T))
    context = jnp.zeros((B, K, N // K, T, H))
    for turn in range(n):  # own keys first: a row of them is never masked as a whole
        scores = jnp.einsum("BTKGH,BSKH->BKGTS", grouped, key, preferred_element_type=jnp.float32) * H**-0.5
        if causal:
            of = (here + turn) % n
            seen = of * T + places[None, :] <= here * T + places[:, None]
            scores = jnp.where(seen, scores, -jnp.inf)
        higher = jnp.maximum(most, scores.max(-1))
        shrink, weights = jnp.exp(most - higher), jnp.exp(scores - higher[..., None])
        total = total * shrink + weights.sum(-1)
        part = jnp.einsum("BKGTS,BSKH->BKGTH", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
        context = context * shrink[..., None] + part
        most = higher
        if turn < n - 1:
            key, value = lax.ppermute((key, value), axis, [(i, (i - 1) % n) for i in range(n)])
    out = (context / total[..., None]).transpose(0, 3, 1, 2, 4).reshape(B, T, N, H)
    return out.astype(query.dtype)
