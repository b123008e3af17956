"""The batch of a step, given in sequences or in tokens."""

from __future__ import annotations

import math

from scaling_lib.cli import quantities

NEAR = 0.05


def batch_of(batch: str | None, batch_tokens: str | None, T: int, devices: int) -> tuple[int, str]:
    """Sequences of a step, and a line that says how they follow from what was asked for.

    Tokens that are no whole number of sequences are rounded to one within 5 %: the one that shares the largest factor with
    the devices, for sequences that the devices cannot share out leave few plans.

    Raises:
        ValueError: unless one of the two is given, and it makes at least one sequence.
    """
    if (batch is None) == (batch_tokens is None):
        both = "both are given" if batch else "neither is given"
        raise ValueError(f"give either --batch-tokens, like 4M, or --batch, in sequences; {both}")
    if batch is not None:
        sequences = quantities.size("--batch", batch)
        return sequences, _says(sequences, T)
    assert batch_tokens is not None
    tokens = quantities.quantity("--batch-tokens", batch_tokens)
    if tokens < T:
        raise ValueError(
            f"--batch-tokens={batch_tokens} is less than one sequence of {T:,} tokens; give at least {T}, or a shorter --length"
        )
    whole, rest = divmod(tokens, T)
    if not rest:
        return whole, _says(whole, T)
    low, high = math.ceil(tokens * (1 - NEAR) / T), math.floor(tokens * (1 + NEAR) / T)
    choice = {round(tokens / T), *range(max(low, 1), min(high, low + 100_000) + 1)}
    sequences = min(choice, key=lambda n: (-math.gcd(n, devices), abs(n * T - tokens)))
    off = f"{sequences * T / tokens - 1:+.1%} against the {tokens:,} asked for ({quantities.CONVENTION})"
    return sequences, f"{_says(sequences, T)}: {off}, so that {devices} devices can share it out"


def _says(sequences: int, T: int) -> str:
    return f"batch {sequences:,} sequences of {T:,} = {sequences * T:,} tokens"
