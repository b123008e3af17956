"""A small engine with continuous batching: a request gets a slot as soon as one is free, and all slots decode together.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from scaling_lib import units
from scaling_lib.xla.serving import cache as caches

Tree = Any  # of arrays
SHORTEST = 16
"""Prompts are read in programs for 16, 32, 64, ... tokens, so that few are compiled."""


@dataclass(frozen=True)
class Request:
    """A prompt, tokens that are wanted after it, and the second at which it comes.

    Raises:
        ValueError: for a prompt without tokens, no new tokens, and a time before 0.
    """

    prompt: Sequence[int]
    new: int
    arrival_s: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise ValueError("prompt is empty; give at least one token")
        units.size("new", self.new)
        units.number("arrival_s", self.arrival_s, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A request, its tokens, and when they came, in seconds on the engine's clock."""

    request: Request
    tokens: tuple[int, ...]
    first_s: float
    last_s: float

    @property
    def ttft_s(self) -> float:
        """Time to first token, waiting included."""
        return self.first_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None where there is no other."""
        others = len(self.tokens) - 1
        return (self.last_s - self.first_s) / others if others else None


@dataclass
class _Slot:
    request: Request
    first_s: float
    tokens: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.tokens) == self.request.new

    @property
    def position(self) -> int:
        """Of its last token, which no step has read yet."""
        return len(self.request.prompt) + len(self.tokens) - 1


class Engine:
    """Slots of one cache. `insert` reads a prompt into a free one, `step` makes a token in each that is taken, `finish` frees it.

    Args:
        params: weights of `xla.llama`; in int8 with a `dtype`.
        slots: sequences that are decoded together.
        S: places in the cache of each.
        kv: as of `cache.steps`.
        dtype: as of `cache.steps`.
        clock: seconds, as of `time.perf_counter`.

    Raises:
        ValueError: as `cache.steps` does, and for no slots.
    """

    def __init__(
        self,
        params: Tree,
        slots: int,
        S: int,
        *,
        kv: Literal["int8"] | None = None,
        dtype: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.params, self.slots, self.clock = params, units.size("slots", slots), clock
        self._steps, self.S = caches.steps(S, kv=kv, dtype=dtype), S
        self._taken: dict[int, _Slot] = {}
        self._start_s = clock()
        one = np.ones(self.slots, np.int32)
        _, shapes = jax.eval_shape(self._steps.prefill, params, one[:, None], one)
        self._cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        self._prefill = jax.jit(self._read, donate_argnums=1)
        self._decode = jax.jit(self._next, donate_argnums=1)

    def _read(self, params: Tree, cache: Tree, tokens: jax.Array, length: jax.Array, slot: jax.Array) -> tuple[jax.Array, Tree]:
        """The first token of one prompt [1, T], and the cache with its keys and values in a slot."""
        logits, one = self._steps.prefill(params, tokens, length)
        put: Any = jax.lax.dynamic_update_slice_in_dim
        return caches.greedy(logits)[0], jax.tree.map(lambda whole, new: put(whole, new, slot, axis=1), cache, one)

    def _next(self, params: Tree, cache: Tree, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, Tree]:
        logits, cache = self._steps.decode(params, cache, tokens, positions)
        return caches.greedy(logits), cache

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return self.slots - len(self._taken)

    @property
    def now_s(self) -> float:
        """Seconds since the engine was made, or since `run` began."""
        return self.clock() - self._start_s

    def insert(self, request: Request) -> int:
        """Reads a prompt into a free slot, which makes its first token; returns the slot.

        Raises:
            ValueError: where no slot is free, and for a request that the cache has no room for.
        """
        caches.room(len(request.prompt), request.new, self.S)
        slot = next((slot for slot in range(self.slots) if slot not in self._taken), None)
        if slot is None:
            raise ValueError(f"no slot is free: all {self.slots} are taken; finish one, or make the engine with more slots")
        length = len(request.prompt)
        tokens = np.zeros((1, _padded(length, self.S)), np.int32)
        tokens[0, :length] = request.prompt
        token, self._cache = self._prefill(self.params, self._cache, tokens, np.array([length], np.int32), np.int32(slot))
        first = int(token)  # waits for it
        self._taken[slot] = _Slot(request, self.now_s, [first])
        return slot

    def step(self) -> dict[int, int]:
        """Makes the next token of every slot that is taken and not done; returns them by slot.

        Raises:
            ValueError: where there is none.
        """
        at_work = {slot: held for slot, held in self._taken.items() if not held.done}
        if not at_work:
            raise ValueError("no slot has a token to make; insert a request first")
        tokens, positions = np.zeros(self.slots, np.int32), np.full(self.slots, self.S, np.int32)  # beyond the end: not written
        for slot, held in at_work.items():
            tokens[slot], positions[slot] = held.tokens[-1], held.position
        made, self._cache = self._decode(self.params, self._cache, tokens, positions)
        found = np.asarray(made)
        for slot, held in at_work.items():
            held.tokens.append(int(found[slot]))
        return {slot: int(found[slot]) for slot in at_work}

    def finish(self, slot: int) -> Served:
        """Frees a slot, and returns what was made in it, done or not.

        Raises:
            ValueError: for a slot that nobody has.
        """
        if slot not in self._taken:
            raise ValueError(f"slot={slot!r} is not taken; those that are: {sorted(self._taken)}")
        held = self._taken.pop(slot)
        return Served(request=held.request, tokens=tuple(held.tokens), first_s=held.first_s, last_s=self.now_s)

    def run(self, requests: Iterable[Request], *, batching: Literal["continuous", "static"] = "continuous") -> tuple[Served, ...]:
        """Serves requests as they arrive, and returns them in the order given, each with its times.

        All programs are compiled before the clock starts.

        Args:
            requests: any number.
            batching: "continuous" gives each free slot to the next request; "static" waits until all slots are free.

        Raises:
            ValueError: for a request that the cache has no room for, another batching, and an engine that is at work.
        """
        requests = tuple(requests)
        if batching not in ("continuous", "static"):
            raise ValueError(f"batching={batching!r} is neither 'continuous' nor 'static'")
        if self._taken:
            raise ValueError(f"slots {sorted(self._taken)} are taken; finish them first")
        for request in requests:
            caches.room(len(request.prompt), request.new, self.S)
        self._compile({_padded(len(request.prompt), self.S) for request in requests})
        waiting = deque(sorted(range(len(requests)), key=lambda i: requests[i].arrival_s))
        numbers: dict[int, int] = {}
        served: dict[int, Served] = {}
        self._start_s = self.clock()
        while waiting or self._taken:
            opens = bool(self.free) if batching == "continuous" else not self._taken
            while opens and waiting and self.free and requests[waiting[0]].arrival_s <= self.now_s:
                number = waiting.popleft()
                numbers[self.insert(requests[number])] = number
            for slot in [slot for slot, held in self._taken.items() if held.done]:
                served[numbers.pop(slot)] = self.finish(slot)
            if self._taken:
                self.step()
                for slot in [slot for slot, held in self._taken.items() if held.done]:
                    served[numbers.pop(slot)] = self.finish(slot)
        return tuple(served[number] for number in range(len(requests)))

    def _compile(self, lengths: set[int]) -> None:
        """Runs each program once, in the first slot, which is free."""
        for length in sorted(lengths):
            self.insert(Request([0] * length, 1))
            self.finish(0)
        self.insert(Request([0], 2))
        self.step()
        self.finish(0)


def _padded(length: int, S: int) -> int:
    size = SHORTEST
    while size < length:
        size *= 2
    return min(size, S)
