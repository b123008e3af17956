"""What one server can do: how long its steps take and what its cache holds, as given, or as `inference` predicts it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference import Layout, Speed, decode_step, disaggregation, max_batch, prefill
from scaling_lib.transformer import Transformer

_FINER = 2**0.25
"""Each entry of a table of prompts or batches is at most so many times the one before."""
_CONTEXTS = 32
"""Steps of a table of contexts, all of the same length."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server, on one slice.

    Args:
        prefill_s: seconds of the prefill of one prompt, by its tokens. Chunk by chunk, a chunk takes the difference between the
            prompt up to its end and up to its start.
        step_s: seconds of a decode step, by the sequences in the batch and by the tokens that all of them hold, the ones that
            this step adds to the cache included.
        kv_tokens: tokens for which its cache has room; None has no end.
        transfer_s: seconds in which the cache of a prompt moves to another server, by its tokens; None takes none.
        words: what it is.

    Raises:
        ValueError: for times that are no functions, and a `kv_tokens` below 1.
    """

    prefill_s: Callable[[int], float] = field(repr=False)
    step_s: Callable[[int, int], float] = field(repr=False)
    kv_tokens: int | None = None
    transfer_s: Callable[[int], float] | None = field(default=None, repr=False)
    words: str = ""

    def __post_init__(self) -> None:
        for name, seconds in (("prefill_s", self.prefill_s), ("step_s", self.step_s)):
            if not callable(seconds):
                raise ValueError(f"{name}={seconds!r} is no function of tokens; give one, even if it always gives the same")
        if self.transfer_s is not None and not callable(self.transfer_s):
            raise ValueError(f"transfer_s={self.transfer_s!r} is no function of tokens; give one, or None for no time")
        if self.kv_tokens is not None:
            units.size("kv_tokens", self.kv_tokens)

    @classmethod
    def of(
        cls,
        model: Transformer | str,
        slice: Slice | str,
        layout: Layout,
        *,
        batch: int,
        context: int,
        speed: Speed | None = None,
    ) -> Server:
        """A slice that serves a model, as `inference` prices it, from tables of steps between which it interpolates.

        Args:
            model: or its name in the catalog.
            slice: or its name.
            layout: how the slice serves it.
            batch: sequences of a decode step at most.
            context: tokens of prompt and answer at most. The cache holds the tokens of as many sequences this long as fit.
            speed: what chips and wires reach; that of `inference` if not given.

        Raises:
            ValueError: as `inference.decode_step`, and where not one sequence fits.

        NB: a cache moves over the data center's network, all of which is its own.
        """
        speed = Speed() if speed is None else speed
        context = units.size("context", context)
        longest = decode_step(model, slice, layout, 1, context=context, speed=speed)
        most = max_batch(model, slice, layout, context=context)
        if not most:
            raise ValueError(f"context={context}: {longest.lacking}")

        @cache
        def transfer_s(tokens: int) -> float:
            return disaggregation.transfer_s(longest.model, longest.slice, tokens=tokens, kv=layout.kv, kv_scale=layout.kv_scale)

        return cls(
            prefill_s=_of_one(_finer(context), lambda prompt: prefill(model, slice, layout, prompt=prompt, speed=speed).seconds),
            step_s=_of_two(
                units.size("batch", batch),
                context,
                lambda batch, context: decode_step(model, slice, layout, batch, context=context, speed=speed).seconds,
            ),
            kv_tokens=most * context,
            transfer_s=transfer_s,
            words=f"{longest.model} on {longest.slice}, {layout}",
        )

    def __str__(self) -> str:
        return self.words or "a server with given times"


def _finer(most: int) -> list[int]:
    """Whole numbers from 1 to `most`, each a little larger than the one before."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, int(found[-1] * _FINER))))
    return found


def _of_one(sizes: list[int], seconds_of: Callable[[int], float]) -> Callable[[int], float]:
    """Seconds by tokens, straight between those of `sizes`."""
    seconds = [seconds_of(size) for size in sizes]

    def at(tokens: int) -> float:
        if tokens > sizes[-1]:
            raise ValueError(
                f"a prompt of {tokens:,} tokens is beyond context={sizes[-1]:,} of the server; give Server.of a larger"
            )
        high = bisect_right(sizes, tokens)
        if high == len(sizes):
            return seconds[-1]
        low = high - 1
        return seconds[low] + (tokens - sizes[low]) / (sizes[high] - sizes[low]) * (seconds[high] - seconds[low])

    return at


def _of_two(most: int, context: int, seconds_of: Callable[[int, int], float]) -> Callable[[int, int], float]:
    """Seconds by sequences and all their tokens, straight between entries of a table in both directions."""
    batches = _finer(most)
    contexts = sorted({1 + round((context - 1) * step / _CONTEXTS) for step in range(_CONTEXTS + 1)})
    table = np.array([[seconds_of(batch, each) for each in contexts] for batch in batches])
    every = np.arange(1, most + 1)
    evenly = np.linspace(1, context, _CONTEXTS + 1)
    at_batches = np.array([np.interp(evenly, contexts, row) for row in table])
    rows = np.array([np.interp(every, batches, column) for column in at_batches.T]).T.tolist()
    per_token = _CONTEXTS / max(1, context - 1)

    def at(batch: int, tokens: int) -> float:
        if batch > most:
            raise ValueError(f"a batch of {batch:,} is beyond batch={most:,} of the server; give Server.of a larger")
        place = (tokens / batch - 1) * per_token
        low = int(place)
        if low >= _CONTEXTS:
            if tokens > batch * context:
                raise ValueError(
                    f"sequences of {tokens / batch:,.0f} tokens are beyond context={context:,} of the server; "
                    "give Server.of a larger"
                )
            low = _CONTEXTS - 1
        row = rows[batch - 1]
        return float(row[low] + (place - low) * (row[low + 1] - row[low]))

    return at
