"""Prefill on some servers and decode on others: how many of each, and what it takes to move a cache.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference.facts import cache_bytes
from scaling_lib.training import checks
from scaling_lib.training.either import Number
from scaling_lib.transformer import Transformer


def servers(*, prefill_s: Number, step_s: Number, batch: Number, output: Number) -> Number:
    """Prefill servers that keep one decode server busy: requests it finishes in a second, times seconds of a prefill.

    Args:
        prefill_s: seconds a prefill server takes for one prompt.
        step_s: seconds of a decode step.
        batch: sequences that the decode server works on.
        output: new tokens of a request.

    Raises:
        ValueError: for figures that are not positive.
    """
    checks.positive(prefill_s=prefill_s, step_s=step_s, batch=batch, output=output)
    return prefill_s * batch / (step_s * output)


def transfer_s(
    model: Transformer, slice: Slice, *, tokens: int, kv: str = "bf16", kv_scale: str | None = None, share: float = 1.0
) -> float:
    """Seconds to send the cache of one prompt from slice to slice over the data center's network.

    Args:
        model: whose cache.
        slice: either; all its hosts send or receive a part.
        tokens: of the prompt.
        kv: dtype of the cache.
        kv_scale: of its scales, as of a `Layout`.
        share: of the network that is free for it.

    Raises:
        ValueError: for a share that is no part of 1, and a chip whose network no source states.
    """
    if not 0 < units.number("share", share) <= 1:
        raise ValueError(f"share={share!r} is a part of the network, above 0 and up to 1")
    return cache_bytes(model, tokens=tokens, kv=kv, kv_scale=kv_scale) / (slice.dcn_bytes_per_s * share)
