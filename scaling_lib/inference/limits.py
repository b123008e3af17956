"""How many sequences, and how long, the memory holds; and from how many on matmuls are compute-bound.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from scaling_lib import units
from scaling_lib.hardware import Chip, Slice
from scaling_lib.inference import forward
from scaling_lib.inference.estimate import USUAL, checked, resolved
from scaling_lib.inference.facts import Facts
from scaling_lib.inference.layout import Layout
from scaling_lib.inference.step import largest
from scaling_lib.transformer import Transformer

LONGEST = 2**30
"""Tokens beyond which no context is looked for: a cache of windows alone never fills."""


def max_batch(model: Transformer | str, slice: Slice | str, layout: Layout, *, context: int) -> int:
    """The most sequences of `context` tokens each that the memory holds, beside the weights; 0 where not one fits."""
    model, slice = resolved(model, slice, layout)
    context = units.size("context", context)
    cache = checked(model, context, None)
    facts, usable = Facts.of(model, layout, T=1, S=context, cache=cache), forward.rates(slice, layout, USUAL).usable_bytes
    return largest(lambda batch: bool(forward.memory(facts, layout, batch).total <= usable), units.MAX_SIZE)


def max_context(model: Transformer | str, slice: Slice | str, layout: Layout, *, batch: int) -> int:
    """The longest context for which so many sequences fit; 0 where none does, and `LONGEST` where no length is too much."""
    model, slice = resolved(model, slice, layout)
    batch, usable = units.size("batch", batch), forward.rates(slice, layout, USUAL).usable_bytes

    def fits(context: int) -> bool:
        facts = Facts.of(model, layout, T=1, S=context, cache=context)
        return bool(forward.memory(facts, layout, batch).total <= usable)

    return largest(fits, model.learned_positions or LONGEST)


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
