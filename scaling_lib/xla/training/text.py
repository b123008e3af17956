"""A text to train on: bytes are tokens, and the batch of a step depends on its number alone.

The text is "Alice's Adventures in Wonderland" by Lewis Carroll (1865), in the public domain; the file is the Millennium Fulcrum
Edition 2.9 (1991) of the Canterbury corpus, as it comes with Brotli's tests, with other line ends. Used in labs/05a to 05e.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np

from scaling_lib import units

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Batch = dict[str, np.ndarray[Any, np.dtype[np.int32]]]


def alice() -> Bytes:
    """The book, 148 kB, one number a byte."""
    return np.frombuffer(resources.files(__package__).joinpath("alice.txt").read_bytes(), np.uint8)


def batches(text: Bytes, B: int, T: int, seed: int = 0) -> Callable[[int], Batch]:
    """The batch of a step: {"tokens": [B, T], "targets": [B, T]} in int32, from B random places of the text.

    `batches(text, B, T)(7)` is the same batch in every run and on every mesh, whatever was drawn before.

    Args:
        text: the tokens.
        B: sequences of a batch, all devices together.
        T: tokens of a sequence.
        seed: another one gives other places.

    Raises:
        ValueError: for a text that is no longer than a sequence.
    """
    B, T = units.size("B", B), units.size("T", T)
    if len(text) <= T:
        raise ValueError(f"T={T} tokens and a target behind them do not fit a text of {len(text)}; give T below {len(text)}")

    def batch(step: int) -> Batch:
        starts = np.random.default_rng((seed, step)).integers(0, len(text) - T, B)
        rows = text[starts[:, None] + np.arange(T + 1)].astype(np.int32)
        return {"tokens": rows[:, :-1], "targets": rows[:, 1:]}

    return batch
