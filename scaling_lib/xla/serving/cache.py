"""Decoding with a cache of fixed size, compiled once, and decoding that reads everything again.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from scaling_lib import units
from scaling_lib.xla import llama
from scaling_lib.xla.serving import int8

Tree = Any  # of arrays
Pick = Callable[[jax.Array], Any]


@dataclass(frozen=True)
class Steps:
    """Prefill and decode step, each compiled at its first use, and again for other shapes alone.

    Args:
        S: places in the cache.
        prefill: of weights, tokens [B, T] and lengths [B], as of `llama.prefill`: logits [B, V] and a cache.
        decode: of weights, cache, tokens [B] and their positions [B]: logits [B, V] and the cache. It takes over the memory of
            the cache it is given, which is lost.
    """

    S: int
    prefill: Callable[[Tree, Any, Any], tuple[jax.Array, Tree]]
    decode: Callable[[Tree, Tree, Any, Any], tuple[jax.Array, Tree]]


def steps(S: int, *, kv: Literal["int8"] | None = None, rules: llama.Rules = llama.RULES, dtype: Any = None) -> Steps:
    """Prefill and decode of `xla.llama` with a cache of S places for each sequence.

    Args:
        S: places: tokens of the longest prompt, and of all that follows it.
        kv: "int8" for a cache in int8; None for one in the dtype of activations.
        rules: as of `llama.forward`.
        dtype: of matmuls and activations; that of the weights if not given.

    Raises:
        ValueError: for a size or a dtype of the cache that is none.
    """
    S = units.size("S", S)
    if kv not in (None, "int8"):
        raise ValueError(f"kv={kv!r} is neither 'int8' nor None")
    memory, keep = (llama.static_memory, dict) if kv is None else (int8.memory, int8.cache)

    def prefill(params: Tree, tokens: jax.Array, lengths: jax.Array) -> tuple[jax.Array, Tree]:
        return llama.prefill(params, tokens, lengths, S=S, rules=rules, dtype=dtype, keep=keep)

    def decode(params: Tree, cache: Tree, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, Tree]:
        logits, cache = llama.decode(params, cache, tokens[:, None], positions, rules=rules, dtype=dtype, memory=memory)
        return logits[:, 0], cache

    return Steps(S, jax.jit(prefill), jax.jit(decode, donate_argnums=1))


@partial(jax.jit, static_argnames=("rules", "dtype"))
def _reread(params: Tree, tokens: jax.Array, lengths: jax.Array, rules: Any, dtype: Any) -> jax.Array:
    return llama.prefill(params, tokens, lengths, S=tokens.shape[1], rules=dict(rules), dtype=dtype)[0]


def reread(params: Tree, tokens: Any, lengths: Any, *, rules: llama.Rules = llama.RULES, dtype: Any = None) -> jax.Array:
    """Naive decoding: logits [B, V] of the next token, from all tokens [B, T] once more. Compiles for each T.

    Args:
        params: the weights.
        tokens: everything so far; what stands behind a length changes nothing.
        lengths: [B], tokens so far of each sequence.
        rules: as of `llama.forward`.
        dtype: as of `steps`.
    """
    logits: jax.Array = _reread(params, tokens, lengths, tuple(rules.items()), dtype)
    return logits


def greedy(logits: jax.Array) -> jax.Array:
    """The likeliest token of each sequence, [B, V] -> [B]."""
    return jnp.argmax(logits, axis=-1)


def generate(steps: Steps, params: Tree, prompts: Any, new: int, *, pick: Pick = greedy) -> np.ndarray:
    """So many new tokens after prompts [B, T] of one length, as an array [B, new].

    Args:
        steps: from `steps`.
        params: the weights.
        prompts: whole numbers below V.
        new: tokens to make for each.
        pick: what makes tokens [B] of logits [B, V].

    Raises:
        ValueError: for more tokens than the cache has places.
    """
    tokens = np.asarray(prompts)
    B, T = tokens.shape
    room(T, units.size("new", new), steps.S)
    logits, cache = steps.prefill(params, tokens, np.full(B, T, np.int32))
    found = [pick(logits)]
    for position in range(T, T + new - 1):
        logits, cache = steps.decode(params, cache, found[-1], np.full(B, position, np.int32))
        found.append(pick(logits))
    return np.stack([np.asarray(token) for token in found], axis=1)


def room(prompt: int, new: int, S: int) -> None:
    """Raises ValueError where a prompt of so many tokens and the new ones are beyond a cache of S places.

    The last new token is never read, and needs no place.
    """
    if prompt + new - 1 > S:
        longest = f", or new={S - prompt + 1}" if prompt <= S else ""
        raise ValueError(
            f"a prompt of {prompt} tokens and new={new} need {prompt + new - 1} places, and the cache has S={S}; "
            f"give S={prompt + new - 1}{longest}"
        )
