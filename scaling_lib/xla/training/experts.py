"""A layer of experts with capacity, for the devices of one mesh axis: tokens travel to their experts and back by all-to-all.

Each group of tokens, those of one device, has `capacity` places at every expert; what finds none is dropped, and passes the
layer by its residual. Without a mesh the same groups are worked off side by side. Used in labs/05d-experts.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from scaling_lib import units

Tree = Any  # of arrays


class Routed(NamedTuple):
    """Where the tokens of one group go.

    Args:
        take: [tokens, E, C], 1 where a token has place C of expert E.
        give: the same, with the weight of the expert's result.
        chosen: [E], share of tokens whose first choice it is.
        likely: [E], mean probability of the router.
        dropped: how many of tokens · top_k choices found no place.
    """

    take: jax.Array
    give: jax.Array
    chosen: jax.Array
    likely: jax.Array
    dropped: jax.Array


def capacity(tokens: int, n_experts: int, top_k: int, factor: float) -> int:
    """Places that a group of tokens has at one expert: `factor` times an even share, rounded up, and no more than its tokens.

    Raises:
        ValueError: for a factor that is not positive.
    """
    if units.number("factor", factor) <= 0:
        raise ValueError(f"factor={factor!r} leaves no place; give 1 for an even share, or more")
    return min(tokens, math.ceil(factor * tokens * top_k / n_experts))


def route(logits: jax.Array, top_k: int, places: int) -> Routed:
    """Each token's experts: the `top_k` most likely, weighted by their probabilities, which are made to sum to 1.

    First choices find places before second ones, and earlier tokens before later ones.

    Args:
        logits: [tokens, E], of the router.
        top_k: experts a token goes to.
        places: at each expert.
    """
    odds = jax.nn.softmax(logits)
    best, at = jax.lax.top_k(odds, top_k)
    best = best / best.sum(-1, keepdims=True)
    picks = jax.nn.one_hot(at.T, logits.shape[-1])  # [top_k, tokens, E]
    place = jnp.cumsum(picks.reshape(-1, logits.shape[-1]), axis=0).reshape(picks.shape) - 1
    found = jax.nn.one_hot(
        jnp.where(picks > 0, place, -1).astype(jnp.int32), places
    )  # [top_k, tokens, E, C]; beyond the last: zeros
    return Routed(
        take=found.sum(0),
        give=jnp.einsum("KNEC,NK->NEC", found, best),
        chosen=picks[0].mean(0),
        likely=odds.mean(0),
        dropped=picks.sum() - found.sum(),
    )


def apply(
    weights: Tree,
    normed: jax.Array,
    routed: Routed,
    *,
    there: Callable[[jax.Array], jax.Array],
    back: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """What the experts add to a group's stream: normed[tokens, D] -> [tokens, D].

    Args:
        weights: "expert_gate" and "expert_up" [experts here, D, F], "expert_down" [experts here, F, D].
        normed: stream of this group.
        routed: from `route`.
        there: what this group has for all experts [E, C, D] -> what all groups have for the experts here.
        back: the same way home.
    """
    inputs = there(jnp.einsum("NEC,ND->ECD", routed.take, normed))
    gate, up = (jnp.einsum("ECD,EDF->ECF", inputs, weights[name]) for name in ("expert_gate", "expert_up"))
    outputs = back(jnp.einsum("ECF,EFD->ECD", jax.nn.silu(gate) * up, weights["expert_down"]))
    return jnp.einsum("NEC,ECD->ND", routed.give, outputs)


def balance(chosen: jax.Array, likely: jax.Array) -> jax.Array:
    """The loss that keeps experts evenly busy: E · Σ chosen · likely, 1 where they are.

    Args:
        chosen: [E], share of *all* tokens whose first choice it is.
        likely: [E], mean probability over *all* tokens.

    Source: Fedus et al. 2021, Switch Transformers, equation 4.
    """
    return len(chosen) * jnp.sum(chosen * likely)
