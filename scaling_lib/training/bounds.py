"""From how many tokens a chip a parallelism is compute-bound: the inequalities of chapters/05-training.md.

They are for a model of plain feed-forward layers (two matrices, D by F) in bf16 on a torus, with links used both ways and
(n - 1)/n taken as 1. `estimate` counts what they leave out: gates, attention, tables, lines, remat.
"""

from __future__ import annotations

import math
from typing import Literal

from scaling_lib import units
from scaling_lib.hardware import Chip

WAYS_OF_A_RING = 2


def intensity(chip: Chip, axes: int = 1, dtype: str = "bf16") -> float:
    """FLOPs a chip does while a byte reaches it over `axes` rings of the torus, both ways; alpha where there is one.

    Args:
        chip: supplies dense peak and achievable link.
        axes: of the torus, used at once.
        dtype: of the matmuls.
    """
    return chip.flops_per_s(dtype) / (WAYS_OF_A_RING * chip.ici_link_bytes_per_s * units.size("axes", axes))


def data_tokens(chip: Chip, axes: int = 1) -> float:
    """Tokens a chip from which data parallelism, replicated or FSDP, is compute-bound: C/W.

    In the backward pass a layer has 8 BDF FLOPs and reduces 4 DF numbers' worth of bytes twice; FSDP has half of both in the
    forward pass. So the ratio is the same, though FSDP moves 12 DF bytes and data parallelism 8 DF.
    """
    return intensity(chip, axes)


def tensor_ways(chip: Chip, d_ff: int, axes: int = 1) -> float:
    """Ways up to which tensor parallelism is compute-bound, F/alpha for each axis; no batch changes it, nor the dtype."""
    return units.size("d_ff", d_ff) / intensity(chip, axes)


def mixed_tokens(chip: Chip, d_ff: int, *, fsdp_axes: int, tensor_axes: int, overlap: Literal["full", "none"]) -> float:
    """Tokens a chip from which FSDP and tensor parallelism together, split at best, are compute-bound.

    Args:
        chip: supplies dense peak and link.
        d_ff: F.
        fsdp_axes: axes of the torus for FSDP.
        tensor_axes: other axes of the torus, for tensor parallelism.
        overlap: whether the two techniques' collectives hide behind one another ("full", the longer must fit beside math) or
            add up ("none": four times as many tokens). Publications differ; there is no default.
    """
    if overlap not in ("full", "none"):
        raise ValueError(f"overlap={overlap!r} is neither 'full' nor 'none'")
    product = intensity(chip, fsdp_axes) * intensity(chip, tensor_axes) / units.size("d_ff", d_ff)
    return product if overlap == "full" else 4 * product


def best_fsdp(tokens: float, chips: int, d_ff: int, *, fsdp_axes: int, tensor_axes: int) -> float:
    """Ways for FSDP of all chips, the rest for tensor parallelism, for which their collectives take as long: no whole number."""
    ratio = units.number("tokens", tokens, minimum=1) / units.size("d_ff", d_ff) * fsdp_axes / tensor_axes
    return math.sqrt(ratio * units.size("chips", chips))


def slice_tokens(chip: Chip) -> float:
    """Tokens of each slice from which data parallelism between slices over DCN is compute-bound, however large the slices."""
    return chip.flops_per_s() / chip.dcn_bytes_per_s
