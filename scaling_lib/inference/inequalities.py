"""Where serving meets its limits: the inequalities of chapters/07-inference.md, for feed-forward blocks on a torus.

Links are used both ways and (n - 1)/n is taken as 1, as in `training.bounds`. `decode_step` counts what they leave out.
"""

from __future__ import annotations

import math

from scaling_lib import units
from scaling_lib.hardware import Chip
from scaling_lib.training.bounds import WAYS_OF_A_RING


def attention_intensity(T: int, S: int, G: int = 1) -> float:
    """FLOPs that attention does for a byte of queries, keys, values and results in 16 bits: TSG/(TG + S).

    With T = S, as in prefill, half of T for G = 1. With T = 1, as in decode, about G, however large batch and context are.

    Args:
        T: queries.
        S: keys, none masked.
        G: query heads for each key head.
    """
    T, S, G = units.size("T", T), units.size("S", S), units.size("G", G)
    return T * S * G / (T * G + S)


def hbm_over_ici(chip: Chip, axes: int = 1) -> float:
    """Bytes that memory gives while one comes over `axes` rings of the torus, both ways; beta."""
    return chip.hbm_bytes_per_s / (WAYS_OF_A_RING * chip.ici_link_bytes_per_s * units.size("axes", axes))


def decode_tensor_ways(chip: Chip, d_ff: int, batch: int, axes: int = 1) -> float:
    """Ways up to which reading a block's weights takes longer than its collectives, F/(B beta), in decode.

    Weights and activations of one dtype. Prefill stops at `training.bounds.tensor_ways`: many tokens make math the longer.
    """
    return units.size("d_ff", d_ff) / (units.size("batch", batch) * hbm_over_ici(chip, axes))


def width_ways(chips: int, d_model: int, d_ff: int, *, axes: int = 3) -> float:
    """Ways over D at which 2D weight-stationary blocks exchange least; no whole number. The rest splits F.

    D goes over one axis of the torus and F over the others: 2bBD/(X (a-1) W) + 2bBFX/(NW) seconds are least for this X.
    """
    return math.sqrt(units.size("chips", chips) * units.size("d_model", d_model) / ((_axes(axes) - 1) * units.size("d_ff", d_ff)))


def two_d_over_one_d(chips: int, d_model: int, d_ff: int, *, axes: int = 3) -> float:
    """Seconds of 2D weight-stationary collectives over those of 1D on all axes, 2a sqrt(F/((a-1) D N)): below 1, 2D is faster."""
    a = _axes(axes)
    return 2 * a * math.sqrt(units.size("d_ff", d_ff) / ((a - 1) * units.size("d_model", d_model) * units.size("chips", chips)))


def two_d_chips(d_model: int, d_ff: int, *, axes: int = 3) -> float:
    """Chips from which 2D is faster: 4 a^2 F/((a-1) D). It falls with the root of the chips, and 1D stays as it is."""
    a = _axes(axes)
    return 4 * a * a * units.size("d_ff", d_ff) / ((a - 1) * units.size("d_model", d_model))


def _axes(axes: int) -> int:
    if (count := units.size("axes", axes)) < 2:
        raise ValueError(f"axes={axes} leaves none for the other dimension; give 2 or 3")
    return count
