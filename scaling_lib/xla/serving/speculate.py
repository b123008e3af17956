"""Speculative decoding for real: a draft guesses, the target reads all guesses at once, and no distribution changes.

Derived in chapters/07-inference.md; `scaling_lib.inference.speculate` prices it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling_lib import units
from scaling_lib.xla import llama

lax: Any = jax.lax  # JAX is typed in part

Tree = Any  # of arrays
Keep = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def exact(p: jax.Array, q: jax.Array, uniform: jax.Array) -> jax.Array:
    """Whether a guess is kept, with probability min(1, p/q).

    Args:
        p: the target's probability of the guess.
        q: the draft's, from whose distribution it was drawn.
        uniform: a random number of 0 to 1.
    """
    return uniform * q < p


def verify(
    key: jax.Array, guesses: jax.Array, draft: jax.Array, target: jax.Array, keep: Keep = exact
) -> tuple[jax.Array, jax.Array]:
    """How many of the guesses of one sequence are kept, and the token after them.

    Guesses are kept up to the first that `keep` refuses. In its place comes a token drawn from the residual, max(0, p - q) made
    to sum to 1; after k that are kept, one drawn from the target's distribution.

    Args:
        key: of `jax.random`.
        guesses: [k], each drawn from its row of `draft`.
        draft: [k, V], probabilities.
        target: [k + 1, V], of the token at each guess's place, and of one more.
        keep: the rule; another one changes the distribution.
    """
    accept, resample = jax.random.split(key)
    k = guesses.shape[0]
    at = jnp.arange(k), guesses
    kept = keep(target[at], draft[at], jax.random.uniform(accept, (k,)))
    count = jnp.sum(jnp.cumprod(kept.astype(jnp.int32)))
    q = jnp.concatenate([draft, jnp.zeros_like(draft[:1])])[count]  # after the last guess nothing is taken away
    left = jnp.maximum(target[count] - q, 0)
    token = jax.random.categorical(resample, jnp.log(jnp.where(jnp.sum(left) > 0, left, target[count])))
    return count, token


def probabilities(logits: jax.Array, temperature: float) -> jax.Array:
    """Distributions [..., V] from which tokens are drawn; at temperature 0 all is on the likeliest."""
    if temperature == 0:
        found: jax.Array = jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
        return found
    softmax: jax.Array = jax.nn.softmax(logits / temperature)
    return softmax


@dataclass(frozen=True, kw_only=True)
class Written:
    """What speculative decoding made.

    Args:
        tokens: [B, new].
        checks: passes of the target over guesses, all sequences together.
        kept: guesses that were kept, in the mean of all sequences and checks.
        guesses: of each check.
    """

    tokens: np.ndarray
    checks: int
    kept: float
    guesses: int

    @property
    def acceptance(self) -> float:
        """The probability a that a guess is kept for which (a + ... + a^k) is the mean number kept, as `inference` has it."""
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(middle**i for i in range(1, self.guesses + 1)) < self.kept else (low, middle)
        return low


def generate(
    key: jax.Array,
    target: Tree,
    draft: Tree,
    prompts: Any,
    new: int,
    *,
    guesses: int,
    temperature: float = 1.0,
    dtype: Any = None,
    keep: Keep = exact,
) -> Written:
    """So many new tokens after prompts [B, T] of one length, drawn as the target alone would draw them.

    Args:
        key: of `jax.random`.
        target: weights of the model whose tokens are wanted.
        draft: weights of a smaller one over the same tokens.
        prompts: whole numbers below V.
        new: tokens to make for each.
        guesses: k, of the draft for each check.
        temperature: by which logits are divided; 0 takes the likeliest token.
        dtype: of matmuls and activations; that of the weights if not given.
        keep: as of `verify`.

    Raises:
        ValueError: for sizes that are none, a negative temperature, and a draft that is no smaller or has other tokens.
    """
    new, guesses = units.size("new", new), units.size("guesses", guesses)
    units.number("temperature", temperature, minimum=0)
    _check(target, draft)
    prompts = jnp.asarray(prompts)
    B, T = prompts.shape
    S = T + new + guesses
    key, first = jax.random.split(key)
    logits, theirs = _prefill(target, prompts, S, dtype)
    _, ours = _prefill(draft, prompts, S, dtype)
    token = _draw(first, probabilities(logits, temperature))
    last, positions = jnp.stack([prompts[:, -1], token], axis=1), jnp.full(B, T)
    found = [[one] for one in np.asarray(token).tolist()]
    kept: list[int] = []
    checks, how = 0, {"guesses": guesses, "temperature": temperature, "dtype": dtype, "keep": keep}
    while min(map(len, found)) < new:
        key, this = jax.random.split(key)
        theirs, ours, last, positions, made, count = _step(this, target, draft, theirs, ours, last, positions, **how)
        positions = jnp.minimum(positions, T + new - 1)  # those that are done stay inside the cache
        checks += 1
        for row, tokens, n in zip(found, np.asarray(made).tolist(), np.asarray(count).tolist(), strict=True):
            if len(row) < new:
                row += tokens[: n + 1]
                kept.append(n)
    mean = sum(kept) / len(kept) if kept else 0.0
    return Written(tokens=np.array([row[:new] for row in found]), checks=checks, kept=mean, guesses=guesses)


@partial(jax.jit, static_argnums=(2, 3))
def _prefill(params: Tree, prompts: jax.Array, S: int, dtype: Any) -> tuple[jax.Array, Tree]:
    return llama.prefill(params, prompts, jnp.full(prompts.shape[0], prompts.shape[1]), S=S, dtype=dtype)


def _draw(key: jax.Array, p: jax.Array) -> jax.Array:
    drawn: jax.Array = jax.random.categorical(key, jnp.log(p))
    return drawn


@partial(jax.jit, static_argnames=("guesses", "temperature", "keep", "dtype"), donate_argnames=("theirs", "ours"))
def _step(
    key: jax.Array, target: Tree, draft: Tree, theirs: Tree, ours: Tree, last: jax.Array, positions: jax.Array,
    *, guesses: int, temperature: float, keep: Keep, dtype: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """One round: caches of both, the last two tokens [B, 2] and the place of the last [B], tokens [B, k + 1], and guesses kept.

    The draft reads the last two tokens each time, for where all guesses were kept it has not read the first of them.
    """

    def guess(carry: tuple[Any, ...], key: jax.Array) -> tuple[tuple[Any, ...], tuple[jax.Array, jax.Array]]:
        cache, two, at = carry
        logits, cache = llama.decode(draft, cache, two, at - 1, dtype=dtype)
        odds = probabilities(logits[:, -1], temperature)
        token = _draw(key, odds)
        return (cache, jnp.stack([two[:, 1], token], axis=1), at + 1), (token, odds)

    keys = jax.random.split(key, guesses + 1)
    (ours, _, _), (made, odds) = lax.scan(guess, (ours, last, positions), keys[:-1])
    guessed, odds = made.swapaxes(0, 1), odds.swapaxes(0, 1)
    read = jnp.concatenate([last[:, 1:], guessed], axis=1)
    logits, theirs = llama.decode(target, theirs, read, positions, dtype=dtype)
    each = jax.random.split(keys[-1], last.shape[0])
    check = jax.vmap(partial(verify, keep=keep))
    count, token = check(each, guessed, odds, probabilities(logits, temperature))
    rows = jnp.arange(last.shape[0])
    tokens = jnp.concatenate([guessed, token[:, None]], axis=1).at[rows, count].set(token)
    return theirs, ours, jnp.stack([read[rows, count], token], axis=1), positions + count + 1, tokens, count


def _check(target: Tree, draft: Tree) -> None:
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (target, draft)]
    if sizes[1] >= sizes[0]:
        have, larger = map(units.human, sizes)
        raise ValueError(f"draft has {larger} parameters, and its target {have}; give a smaller one")
    tokens = [tree["embedding"].shape[0] for tree in (target, draft)]
    if tokens[0] != tokens[1]:
        raise ValueError(f"draft has {tokens[1]} tokens, and its target {tokens[0]}; give one with the same vocabulary")
