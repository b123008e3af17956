"""How many sequences, and how long, the memory holds; and from how many on matmuls are compute-bound.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from scaling_lib import units
from scaling_lib.hardware import Chip, Slice
from scaling_lib.inference import forward
from scaling_lib.inference.estimate import decode_step
from scaling_lib.inference.facts import Facts
from scaling_lib.inference.layout import Layout
from scaling_lib.inference.step import largest, largest_batch
from scaling_lib.transformer import Transformer

LONGEST = 2**30
"""Tokens beyond which no context is looked for: a cache of windows alone never fills."""


def max_batch(model: Transformer | str, slice: Slice | str, layout: Layout, *, context: int) -> int:
    """The most sequences of `context` tokens each that the memory holds, beside the weights; 0 where not one fits."""
    return largest_batch(decode_step(model, slice, layout, 1, context=context))


def max_context(model: Transformer | str, slice: Slice | str, layout: Layout, *, batch: int) -> int:
    """The longest context for which so many sequences fit; 0 where none does, and `LONGEST` where no length is too much."""
    step = decode_step(model, slice, layout, batch, context=1)

    def fits(context: int) -> bool:
        facts = Facts.of(step.model, step.layout, T=1, S=context, cache=context)
        return bool(forward.memory(facts, step.layout, batch).total <= step.usable_bytes)

    return largest(fits, step.model.learned_positions or LONGEST)


def critical_batch(chip: Chip, layout: Layout, model: Transformer | None = None) -> float:
    """Tokens of a pass from which the matmuls' math takes longer than reading the weights, b/2 · C/W.

    Args:
        chip: supplies dense peak and bandwidth of memory.
        layout: its `weights` and `math`, or the bits of its quantization.
        model: with experts, E / top_k times as many tokens are needed for all experts to be as busy; not given, none.

    NB: activations are left out, as for matrices much larger than the batch; `roofline.critical_batch` counts them.
    """
    each = units.itemsize(layout.weights)
    if layout.quantization is not None:
        each = layout.quantization.bits_per_weight / 8
    dense = each / 2 * chip.flops_per_s(layout.math) / chip.hbm_bytes_per_s
    return dense * model.experts.n_experts / model.experts.top_k if model and model.experts else dense
