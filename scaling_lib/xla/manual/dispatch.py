"""Tokens go to the devices of their experts and back, and none is dropped: by ragged all-to-all, or by a padded dense one.

Used inside `jax.shard_map`: arrays are a device's own parts. Each of n devices holds E / n experts, in order.
A ragged all-to-all sends the tokens there are. XLA has one for TPUs and none for CPUs; there the dense way stands in, which
sends n times the tokens of a device, whatever the routing, nearly all of them padding. Experts with capacity, which sends less
and drops tokens: `scaling_lib.xla.training.experts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

lax: Any = jax.lax  # JAX is typed in part

Experts = Callable[[jax.Array, jax.Array], jax.Array]
"""(tokens [M, D] sorted by expert, tokens of each expert here [E / n]) -> [M, D]; what lies beyond their sum is padding."""


def dispatched(experts: Experts, tokens: jax.Array, chosen: jax.Array, n_experts: int, axis: str, *, ragged: bool) -> jax.Array:
    """What each token's expert makes of it, on the device where the token began.

    Args:
        experts: those of this device, for example by `jax.lax.ragged_dot`.
        tokens: [N, D], this device's; a token with several experts stands there as often.
        chosen: [N], whole numbers from 0 to `n_experts` - 1.
        n_experts: E, on all devices.
        axis: the mesh axis of n devices that the experts are cut over.
        ragged: by ragged all-to-all, for TPUs; else by the dense way, for any device.

    Returns:
        [N, D], in the order of `tokens`.

    Raises:
        ValueError: for a number of experts that the devices do not divide.

    NB: a device has room for the tokens of all, n · N: every one of them may want an expert here.
    """
    n, here = lax.axis_size(axis), lax.axis_index(axis)
    if n_experts % n:
        raise ValueError(f"n_experts={n_experts} cannot be cut over the {n} devices of {axis!r}; take a multiple of {n}")
    exchange = _ragged if ragged else _dense
    own = n_experts // n
    room = n * tokens.shape[0]
    by_expert = jnp.argsort(chosen, stable=True)
    wanted = jnp.zeros((n_experts,), jnp.int32).at[chosen].add(1)
    table = lax.all_gather(wanted, axis).reshape(n, n, own)  # [from, to, expert there]
    counts = table.sum(-1)

    arrived = exchange(tokens[by_expert], counts, room, axis)
    sent_here = table[:, here]  # [from, expert here]: in this order they have arrived
    kinds = jnp.repeat(jnp.tile(jnp.arange(own), n), sent_here.reshape(-1), total_repeat_length=room)
    kinds = jnp.where(jnp.arange(room) < sent_here.sum(), kinds, own)  # padding last
    order = jnp.argsort(kinds, stable=True)
    made = experts(arrived[order], sent_here.sum(0))
    as_arrived = jnp.zeros_like(made).at[order].set(made)
    home = exchange(as_arrived, counts.T, tokens.shape[0], axis)
    return jnp.zeros_like(home).at[by_expert].set(home)


def _starts(counts: jax.Array) -> jax.Array:
    return jnp.cumsum(counts, axis=-1) - counts


def _ragged(rows: jax.Array, counts: jax.Array, room: int, axis: str) -> jax.Array:
    """Rows in order of the device they go to -> [room, D], in order of the device they came from.

    Args:
        rows: [M, D].
        counts: [from, to], how many rows go between two devices.
        room: of the result; beyond the last row are zeros.
        axis: the mesh axis.
    """
    here = lax.axis_index(axis)
    out = jnp.zeros((room, rows.shape[1]), rows.dtype)
    places = _starts(counts.T).T[here]  # where each device is to put these rows
    found: jax.Array = lax.ragged_all_to_all(
        rows, out, _starts(counts[here]), counts[here], places, counts[:, here], axis_name=axis
    )
    return found


def _dense(rows: jax.Array, counts: jax.Array, room: int, axis: str) -> jax.Array:
    """As `_ragged`, by an all-to-all of as many rows for every device as one may get from another."""
    here = lax.axis_index(axis)
    most = min(rows.shape[0], room)
    slots = jnp.arange(most)
    out = jnp.take(rows, _starts(counts[here])[:, None] + slots, axis=0, mode="fill", fill_value=0)  # [to, most, D]
    came = lax.all_to_all(out, axis, split_axis=0, concat_axis=0)  # [from, most, D]
    got = counts[:, here]
    places = jnp.where(slots < got[:, None], _starts(got)[:, None] + slots, room)  # beyond the room: left out
    return jnp.zeros((room, rows.shape[1]), rows.dtype).at[places].set(came, mode="drop")
