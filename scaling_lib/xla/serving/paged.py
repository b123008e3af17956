"""A cache in blocks: a sequence takes blocks as it grows, wherever there are free ones, and a table says which.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scaling_lib import units
from scaling_lib.inference.paging import Room
from scaling_lib.transformer import Transformer
from scaling_lib.xla import llama

Tree = Any  # of arrays


def empty_cache(model: Transformer, blocks: int, block: int, dtype: Any = jnp.float32) -> Tree:
    """A cache of so many blocks of so many places: {"keys": [L, blocks, block, K, H], "values": the same}."""
    return llama.empty_cache(model, units.size("blocks", blocks), units.size("block", block), dtype)


def memory(
    cache: Tree, layer: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
) -> tuple[jax.Array, Tree]:
    """The memory of `llama.decode` for a cache in blocks, which has a "table" [B, M] of `Blocks.table` beside keys and values.

    A sequence sees M blocks at most. What it writes beyond its own is dropped. Prompts are read by `llama.decode` too, all of
    their tokens at once or in pieces.
    """
    table, cache = cache["table"], dict(cache)
    block = cache["keys"].shape[2]
    number = positions // block
    at = jnp.take_along_axis(table, number, axis=1, mode="fill", fill_value=cache["keys"].shape[1])
    seen = []
    for name, new in (("keys", key), ("values", value)):
        held = cache[name]
        cache[name] = held.at[layer, at, positions % block].set(new.astype(held.dtype), mode="drop")
        gathered = cache[name].at[layer, table].get(mode="clip")  # of blocks not taken, anything: it is never seen
        seen.append(gathered.reshape(table.shape[0], -1, *held.shape[3:]).astype(query.dtype))
    return llama.dense_attention(query, seen[0], seen[1], positions), cache


class Blocks:
    """Who has which block of a cache. Blocks are taken as sequences grow, and go back when they end.

    Args:
        blocks: in the cache.
        block: places in each.

    Raises:
        ValueError: for sizes that are none.
    """

    def __init__(self, blocks: int, block: int) -> None:
        self.blocks, self.block = units.size("blocks", blocks), units.size("block", block)
        self._free = list(range(self.blocks))[::-1]
        self._held: dict[Hashable, list[int]] = {}
        self._tokens: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    @property
    def room(self) -> Room:
        """Places that hold a token, and those of all blocks that are taken."""
        return Room(used=sum(self._tokens.values()), reserved=self.block * (self.blocks - self.free))

    def reserve(self, sequence: Hashable, tokens: int) -> None:
        """Gives a sequence, known or new, the blocks that so many tokens need. It keeps those it has.

        Raises:
            ValueError: where there are not enough; nothing is taken then.
        """
        held, tokens = self._held.get(sequence, []), units.size("tokens", tokens)
        more = -(-tokens // self.block) - len(held)
        if more > self.free:
            raise ValueError(
                f"sequence {sequence!r} needs {more} more blocks for tokens={tokens}, and {self.free} of {self.blocks} are free; "
                f"release a sequence, or make a cache of {self.blocks + more - self.free} blocks"
            )
        self._held[sequence] = held + [self._free.pop() for _ in range(more)]
        self._tokens[sequence] = max(tokens, self._tokens.get(sequence, 0))

    def release(self, sequence: Hashable) -> None:
        """Takes a sequence's blocks back.

        Raises:
            ValueError: for one that has none.
        """
        if sequence not in self._held:
            raise ValueError(f"sequence {sequence!r} has no blocks; those that have are {list(self._held)}")
        self._free += self._held.pop(sequence)[::-1]
        del self._tokens[sequence]

    def table(self, sequences: Sequence[Hashable], width: int) -> np.ndarray:
        """The numbers of their blocks in order, [B, width]. Beyond them stands the number of all blocks, which is none.

        Raises:
            ValueError: for a sequence that has more.
        """
        found = np.full((len(sequences), units.size("width", width)), self.blocks, np.int32)
        for row, sequence in zip(found, sequences, strict=True):
            held = self._held.get(sequence, [])
            if len(held) > width:
                raise ValueError(f"sequence {sequence!r} has {len(held)} blocks, and the table width={width}; give {len(held)}")
            row[: len(held)] = held
        return found
