"""Weights and caches in int8: a byte a number, and a scale for those that belong together.

A scale is rounded to bfloat16 before it is used, so that storing it in two bytes costs no accuracy. Weights have one for each
output, keys and values one for each token and head. Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from scaling_lib.xla import llama

Tree = Any  # of arrays
SCALE = jnp.bfloat16
MOST = 127


def quantize(x: jax.Array, axis: int | tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Whole numbers of -127 to 127 and their scales: x ≈ numbers · scale. Scales have no `axis`, which is what shares one."""
    wide = x.astype(jnp.float32)
    scale = (jnp.max(jnp.abs(wide), axis=axis, keepdims=True) / MOST).astype(SCALE)
    steps = wide / jnp.where(scale == 0, 1, scale).astype(jnp.float32)
    return jnp.clip(jnp.round(steps), -MOST, MOST).astype(jnp.int8), jnp.squeeze(scale, axis)


def weights(params: Tree) -> Tree:
    """Weights of `llama.init` with all matrices in int8, and their scales beside them as "query_scale" and so on.

    Norms stay as they are. Every function of `llama` takes them; give it a `dtype`, or matmuls run in that of the scales.
    `jax.eval_shape(weights, llama.shapes(model))` makes shapes alone.
    """
    found: Tree = {"layers": {}}
    for name, weight in (params | params["layers"]).items():
        if name == "layers":
            continue
        into = found["layers"] if name in params["layers"] else found
        if name not in llama.OUTPUTS:
            into[name] = weight
            continue
        summed = tuple(i for i, letter in enumerate(llama.WEIGHTS[name]) if letter not in llama.OUTPUTS[name])
        into[name], into[f"{name}_scale"] = quantize(weight, summed)
    return found


def cache(held: Tree) -> Tree:
    """A cache of `llama.prefill` or `llama.empty_cache` in int8: a scale for each token and head of keys, and of values."""
    found: Tree = {}
    for name, values in held.items():
        found[name], scale = quantize(values, -1)
        found[f"{name}_scale"] = scale.swapaxes(-1, -2)
    return found


def memory(
    cache: Tree, layer: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
) -> tuple[jax.Array, Tree]:
    """The memory of `llama.decode` for a cache in int8."""
    rows = jnp.arange(query.shape[0])[:, None]
    cache = dict(cache)
    for name, new in (("keys", key), ("values", value)):
        numbers, scale = quantize(new, -1)
        cache[name] = cache[name].at[layer, rows, positions].set(numbers)
        cache[f"{name}_scale"] = cache[f"{name}_scale"].at[layer, rows, :, positions].set(scale)
    keys, values = (cache[name][layer].astype(query.dtype) for name in ("keys", "values"))
    scales = cache["keys_scale"][layer], cache["values_scale"][layer]
    return llama.dense_attention(query, keys, values, positions, scales), cache
