"""Matmuls that send one block while they multiply another: an all-gather before one, and a reduce-scatter after one.

Used inside `jax.shard_map`: arrays are a device's own parts, X is the axis that is named. Blocks go round a ring of n devices,
from neighbor to neighbor. One way takes n - 1 turns; both ways at once send the same blocks in half as many, rounded up.
The turns are written out in the program, not looped over, so that the compiler may overlap them. A send hides where a block
takes longer to multiply: with bf16, from peak ÷ link rate columns on in a device's part of B (of `matmul_scatter`: rows).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

lax: Any = jax.lax  # JAX is typed in part


def gather_matmul(a: jax.Array, b: jax.Array, axis: str, *, ways: int = 1) -> jax.Array:
    """A[I_X, J] · B[J, K] -> C[I, K], where A is gathered on the way; B and C may be cut along K by the same axis.

    Args:
        a: [I / n, J], this device's rows.
        b: [J, K], or this device's columns of it.
        axis: the mesh axis X, of n devices.
        ways: 1, blocks come from the next device, or 2, from both neighbors.

    Returns:
        [I, K], all rows.

    Raises:
        ValueError: for other ways.
    """
    n, here = lax.axis_size(axis), lax.axis_index(axis)
    after, before = _turns(n, ways)
    rows = a.shape[0]
    out = jnp.zeros((n * rows, b.shape[1]), jnp.result_type(a, b))

    def put(out: jax.Array, block: jax.Array, of: Any) -> jax.Array:
        found: jax.Array = lax.dynamic_update_slice_in_dim(out, block @ b, of % n * rows, axis=0)
        return found

    out = put(out, a, here)
    from_after = from_before = a
    for turn in range(1, max(after, before) + 1):
        if turn <= after:
            from_after = lax.ppermute(from_after, axis, _ring(n, -1))
            out = put(out, from_after, here + turn)
        if turn <= before:
            from_before = lax.ppermute(from_before, axis, _ring(n, 1))
            out = put(out, from_before, here - turn)
    return out


def matmul_scatter(a: jax.Array, b: jax.Array, axis: str, *, ways: int = 1) -> jax.Array:
    """A[I, J_X] · B[J_X, K] -> C[I_X, K], where sums travel to the device that keeps them.

    Args:
        a: [I, J / n], this device's columns.
        b: [J / n, K], this device's rows.
        axis: the mesh axis X, of n devices.
        ways: 1, sums go to the previous device, or 2, to both neighbors.

    Returns:
        [I / n, K], this device's rows, summed.

    Raises:
        ValueError: for other ways, or I that is no multiple of n.
    """
    n, here = lax.axis_size(axis), lax.axis_index(axis)
    after, before = _turns(n, ways)
    if a.shape[0] % n:
        raise ValueError(f"a has {a.shape[0]} rows, which {n} devices cannot share; pad them to a multiple of {n}")
    rows = a.shape[0] // n

    def product(of: Any) -> jax.Array:
        # Without the barrier the compiler adds a sum inside the matmul after it, which then waits for the sum to arrive.
        found: jax.Array = lax.optimization_barrier(lax.dynamic_slice_in_dim(a, of % n * rows, rows, axis=0) @ b)
        return found

    def collected(turns: int, step: int) -> jax.Array | float:
        """What so many neighbors on one side have for this device: each sum begins with the farthest of them."""
        total: jax.Array | float = 0.0
        for turn in range(turns):
            total = lax.ppermute(total + product(here + step * (turns - turn)), axis, _ring(n, step))
        return total

    out: jax.Array = product(here) + collected(after, -1) + collected(before, 1)
    return out


def _turns(n: int, ways: int) -> tuple[int, int]:
    """How many blocks come from the devices after this one, and from those before it."""
    if ways not in (1, 2):
        raise ValueError(f"ways={ways!r} is no way round a ring; give 1 or 2")
    return (n - 1, 0) if ways == 1 else (n // 2, (n - 1) // 2)


def _ring(n: int, step: int) -> list[tuple[int, int]]:
    """Every device sends to the one `step` places on."""
    return [(i, (i + step) % n) for i in range(n)]
