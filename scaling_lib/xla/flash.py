"""Attention that stores no scores: JAX's Splash kernel for TPUs, cut over the mesh as the course's Llama is.

It compiles for TPUs and runs on them alone. Derived in chapters/04-transformers.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from scaling_lib.xla import llama

LANES = 128
"""Tokens are worked off in multiples of so many."""


def attention(rules: llama.Rules = llama.RULES, *, block: int = 512) -> llama.Attention:
    """What takes the place of `llama.dense_attention` on TPUs: `llama.train_step(..., attention=flash.attention())`.

    Args:
        rules: as of `llama.forward`: sequences and heads may be cut, tokens are not.
        block: tokens that the kernel works on at a time, of queries and of keys; a multiple of 128.

    Returns:
        A function of query [B, T, N, H], and key and value [B, T, K, H], causal. Its result is named "attention.context", and
        with it a float32 number a token and head.

    Raises:
        ValueError: for a block that is no multiple of 128, and once called for T that is none of the block; for keys that are not
            the new ones, as in decoding.
    """
    if block % LANES:
        raise ValueError(f"block={block} is no multiple of {LANES}")

    def attend(query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array) -> jax.Array:
        _, T, _, H = query.shape
        if key.shape[1] != T:
            raise ValueError(f"keys of {key.shape[1]} tokens, queries of {T}: this attention is for training and whole prompts")
        size = min(block, T)
        if T % size or T % LANES:
            raise ValueError(f"T={T} is no multiple of block={size} and {LANES}")
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty:
            return _local(query * H**-0.5, key, value, block=size)
        by_heads = llama.layout("BTNH", mesh, rules)
        by_key_heads = llama.layout("BTKH", mesh, rules)
        shard_map: Any = jax.shard_map
        run: Callable[..., jax.Array] = shard_map(
            partial(_local, block=size),
            in_specs=(by_heads, by_key_heads, by_key_heads),
            out_specs=by_heads,
            check_vma=False,  # the kernel does not say how its result varies
        )
        return run(query * H**-0.5, key, value)

    return attend


def _local(query: jax.Array, key: jax.Array, value: jax.Array, *, block: int) -> jax.Array:
    _, T, heads, _ = query.shape
    kernel: Any = splash.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((T, T))] * heads),
        block_sizes=splash.BlockSizes(
            block_q=block, block_kv=block, block_kv_compute=block,
            block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block,
        ),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name="attention.context",
    )  # fmt: skip
    by_head = (x.swapaxes(1, 2) for x in (query, key, value))
    found: jax.Array = jax.vmap(kernel)(*by_head).swapaxes(1, 2)
    return found
