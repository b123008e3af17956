"""Answers to the exercises of lab 7b, tried: reading a paged cache, continuous batching, merging parts of attention.

Used in labs/07b.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from scaling_lib.xla.puzzle import Attempt
from scaling_lib.xla.serving.engine import Engine, Request

Array = np.ndarray[Any, Any]
_NOT_YET = Attempt(False, "Not answered yet: replace the ... with your code.")
_ENDLESS = 5_000
"""Looks at an engine after which a loop counts as one without end."""


def reading(answer: Any) -> Attempt:
    """Whether a function finds a sequence's keys in a cache of blocks.

    Args:
        answer: of the pool [blocks, places, K, H], the numbers of a sequence's blocks in order, and its length: keys
            [length, K, H]; `...` or a function that returns nothing is not answered yet.
    """
    pool = np.arange(5 * 4 * 2 * 3, dtype=np.float32).reshape(5, 4, 2, 3)
    places = pool.reshape(-1, 2, 3)
    for table, length in ((np.array([3, 1]), 7), (np.array([4, 0, 2]), 9), (np.array([2]), 4)):
        whole = pool[table].reshape(-1, 2, 3)
        slips = {
            "these are the first places of the pool. The table says which blocks come, and in which order": places[:length],
            "the blocks are in the pool's order, not in the table's": pool[np.sort(table)].reshape(-1, 2, 3)[:length],
            f"the last block is full in part: the sequence has {length} tokens": whole,
            "a number in the table is that of a block, not of a place": places[table],
        }
        found = _given(answer, pool, table, length)
        if isinstance(found, Attempt):
            return found
        if wrong := _compared(np.asarray(found), whole[:length], slips):
            return wrong
    return Attempt(True, "Right: every key in its turn, and none of another sequence.")


def batching(answer: Any, engine: Engine) -> Attempt:
    """Whether a loop batches continuously: all requests served, in no more decode steps than need be.

    Args:
        answer: of an engine and requests, serves them all and returns what `engine.finish` gave for each, in any order; it uses
            `engine.free`, `insert`, `step` and `finish`. `...` or a function that returns nothing is not answered yet.
        engine: with at least two slots, of which none is taken, and 32 places or more. What an answer leaves in it is ended.
    """
    slots = engine.slots
    wanted = [25, 1] + [(3, 7, 4)[i % 3] for i in range(7 * (slots - 1))]  # slots with short ones work as long as the long one
    asked = [Request([1, 2, 3], new) for new in wanted]
    counted = _Counted(engine)
    found = _given(answer, counted, list(asked))
    while engine.free < slots:
        engine.finish(counted.taken.pop())
    if isinstance(found, Attempt):
        return found
    served = {id(one.request): len(one.tokens) for one in found}
    if missing := sum(id(request) not in served for request in asked):
        return Attempt(False, f"Not yet: {missing} of {len(asked)} requests do not come back.")
    if short := [(served[id(one)], one.new) for one in asked if served[id(one)] < one.new]:
        return Attempt(False, "Not yet: a request comes back with {} of {} tokens.".format(*short[0]))
    if counted.steps > (fewest := _fewest(wanted, slots)) + 1:  # one where a request of a single token keeps its slot
        together = sum(max(wanted[first : first + slots]) - 1 for first in range(0, len(wanted), slots))
        why = "nobody joins before all have left" if counted.steps == together else "slots stand free while requests wait"
        return Attempt(False, f"Not yet: {why}. It takes {counted.steps} steps, and {fewest} would do.")
    return Attempt(True, f"Right: {len(asked)} requests in {counted.steps} steps.")


def merging(answer: Any, mesh: Mesh) -> Attempt:
    """Whether parts of attention, each over a device's own tokens, are merged into the whole.

    Args:
        answer: of a device's result [B, N, H], its highest scores [B, N] and its sums of powers [B, N], with collectives over
            the mesh axis: the whole result [B, N, H], on every device. `...` or one that returns nothing is not answered yet.
        mesh: of one axis.
    """
    (axis,) = mesh.axis_names
    result, top, total = _parts(mesh.size)
    powers = total * np.exp(top - top.max(0))
    right = _mean(result, powers)
    slips = {
        "all devices count the same here. One with higher scores counts more": _mean(result, np.ones_like(total)),
        "each sum of powers is relative to its device's own highest score": _mean(result, total),
        "a device counts by its sum of powers too, not by its highest score alone": _mean(result, np.exp(top - top.max(0))),
        "the sign of the difference is reversed: a sum relative to a lower score is too large": _mean(
            result, total * np.exp(top.max(0) - top)
        ),
        "the shares of all devices must sum to 1": (result * powers[..., None]).sum(0),
        "the shares must sum to 1, and be relative to one score for all": (result * total[..., None]).sum(0),
    }
    over = PartitionSpec(axis)  # type: ignore[no-untyped-call]

    def local(*parts: jax.Array) -> Any:
        found = answer(*(part[0] for part in parts))
        return None if found is None else found[None]

    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(over,) * 3, out_specs=over, check_vma=False))
    found = _given(answer if answer is ... else run, *(part.astype(np.float32) for part in (result, top, total)))
    if isinstance(found, Attempt):
        return found
    everywhere = np.asarray(found)
    if not np.isfinite(everywhere).all():
        return Attempt(
            False, "Not yet: scores of this check are about 100, and e to that power is beyond float32. Subtract the highest."
        )
    if everywhere.shape == result.shape and not np.allclose(everywhere, everywhere[:1], atol=1e-4):
        own = np.allclose(everywhere, result, atol=1e-4)
        what = "this is what a device has of its own tokens" if own else "devices end with different results"
        return Attempt(False, f"Not yet: {what}.")
    return _compared(everywhere[0], right, slips) or Attempt(True, f"Right: {mesh.size} parts, merged into the whole.")


def _parts(devices: int) -> tuple[Array, Array, Array]:
    """Results [devices, B, N, H], highest scores and sums of powers [devices, B, N] of attention over cut tokens."""
    draw = np.random.default_rng(0)
    scores, values = draw.normal(size=(devices, 3, 5, 4)), draw.normal(size=(devices, 3, 5, 4, 7))
    scores += 100 + np.linspace(-1, 1, devices)[:, None, None, None]  # unlike highest scores, and powers beyond float32
    top = scores.max(-1)
    powers = np.exp(scores - top[..., None])
    total = powers.sum(-1)
    return np.einsum("dbns,dbnsh->dbnh", powers, values) / total[..., None], top, total


def _mean(result: Array, weights: Array) -> Array:
    found: Array = (result * weights[..., None]).sum(0) / weights.sum(0)[..., None]
    return found


class _Counted:
    """An engine whose steps are counted, and which ends a loop that has no end."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._looks = engine, 0
        self.steps, self.taken = 0, set[int]()

    def insert(self, request: Request) -> int:
        slot = self._engine.insert(request)
        self.taken.add(slot)
        return slot

    def step(self) -> dict[int, int]:
        made = self._engine.step()
        self.steps += 1
        return made

    def finish(self, slot: int) -> Any:
        served = self._engine.finish(slot)
        self.taken.remove(slot)
        return served

    def __getattr__(self, name: str) -> Any:
        self._looks += 1
        if self._looks > _ENDLESS:
            raise RuntimeError("the loop has no end")
        return getattr(self._engine, name)


def _fewest(wanted: Sequence[int], slots: int) -> int:
    """Steps where a slot that is free goes to the next request at once."""
    ends = [0] * slots
    for new in wanted:
        heapq.heapreplace(ends, ends[0] + new - 1)
    return max(ends)


def _given(answer: Any, *parts: Any) -> Any:
    """What the reader's function returns, or the attempt that says why there is nothing."""
    if answer is ...:
        return _NOT_YET
    try:
        found = answer(*parts)
    except Exception as error:  # the reader's code: whatever it raises is the answer's fault
        return Attempt(False, f"Not yet, it does not run: {(str(error).strip() or type(error).__name__).splitlines()[0]}")
    return _NOT_YET if found is None else found


def _compared(found: Array, right: Array, slips: Mapping[str, Array]) -> Attempt | None:
    """What is said of an array that is not the right one."""
    if found.shape == right.shape and np.allclose(found, right, atol=1e-4):
        return None
    for hint, wrong in slips.items():
        if found.shape == wrong.shape and np.allclose(found, wrong, atol=1e-4):
            return Attempt(False, f"Not yet: {hint}.")
    if found.shape != right.shape:
        return Attempt(False, f"Not yet: an array of shape {right.shape} is wanted, not {found.shape}.")
    return Attempt(False, f"Not yet: numbers are up to {np.abs(found - right).max():.2g} off.")
