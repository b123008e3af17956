"""Serving: what prefill and decode take, how many sequences fit, and what a token costs.

A `Layout` says how a model is split, `decode_step` and `prefill` price a step, `serve` a whole request. Derived in
chapters/07-inference.md.
"""

from scaling_lib.inference.estimate import Step, decode_step, prefill
from scaling_lib.inference.forward import Memory
from scaling_lib.inference.layout import Layout, why_not
from scaling_lib.inference.limits import critical_batch, max_batch, max_context
from scaling_lib.inference.speed import Speed

__all__ = [
    "Layout",
    "Memory",
    "Speed",
    "Step",
    "critical_batch",
    "decode_step",
    "max_batch",
    "max_context",
    "prefill",
    "why_not",
]
