"""Serving: what prefill and decode take, how many sequences fit, and what a token costs.

A `Layout` says how a model is split, `decode_step` and `prefill` price a step, `serve` a whole request; nothing beats `bound`.
Derived in chapters/07-inference.md.
"""

from scaling_lib.inference.bounds import Bound, bound
from scaling_lib.inference.estimate import decode_step, prefill
from scaling_lib.inference.forward import Memory
from scaling_lib.inference.layout import Layout, why_not
from scaling_lib.inference.limits import critical_batch, max_batch, max_context
from scaling_lib.inference.prefix import Prefix, prefix
from scaling_lib.inference.serve import serve
from scaling_lib.inference.server import ServingEstimate
from scaling_lib.inference.speculation import Speculation, speculate
from scaling_lib.inference.speed import Speed
from scaling_lib.inference.step import Step

__all__ = [
    "Bound",
    "Layout",
    "Memory",
    "Prefix",
    "ServingEstimate",
    "Speculation",
    "Speed",
    "Step",
    "bound",
    "critical_batch",
    "decode_step",
    "max_batch",
    "max_context",
    "prefill",
    "prefix",
    "serve",
    "speculate",
    "why_not",
]
