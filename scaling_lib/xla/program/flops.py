"""How many FLOPs a dot operation of optimized HLO does. On TPUs it is written as a convolution, batch dimensions as windows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from scaling_lib.xla.program import hlo


def of(visit: hlo.Visit) -> int:
    """FLOPs of one run of a dot or convolution: 2 × its multiplications, those with padding left out."""
    one = visit.instruction
    left, right = (visit.computation.instructions[name].arrays[0].shape for name in one.operands[:2])
    out = one.arrays[0].shape
    if one.opcode == "dot":
        summed = re.findall(r"\d+", one.attributes.get("lhs_contracting_dims", ""))
        return 2 * math.prod(out) * math.prod(left[int(axis)] for axis in summed)
    return 2 * _products(one, left, right, out)


def _products(one: hlo.Instruction, left: Sequence[int], right: Sequence[int], out: Sequence[int]) -> int:
    """Multiplications of a convolution, those with padding and the holes of a dilation left out.

    TPU programs write every dot so: batch dimensions become windows that meet one place each.
    """
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", one.attributes["dim_labels"])
    if labels is None:
        raise ValueError(f"dim_labels={one.attributes['dim_labels']!r} of {one.name!r} is a form that this parser does not know")
    lhs, rhs, result = labels.groups()
    window = dict(re.findall(r"(\w+)=(\S+)", one.attributes.get("window", "{}").strip("{}")))
    total = out[result.index("b")] * out[result.index("f")] * right[rhs.index("i")]
    for axis in range(len(lhs) - 2):

        def part(key: str, default: int, axis: int = axis) -> int:
            return int(window[key].split("x")[axis]) if key in window else default

        label = str(axis)
        low = int(window["pad"].split("x")[axis].split("_")[0]) if "pad" in window else 0
        total *= _meetings(
            out[result.index(label)], right[rhs.index(label)], left[lhs.index(label)],
            stride=part("stride", 1), low=low, spread=part("lhs_dilate", 1), step=part("rhs_dilate", 1),
        )  # fmt: skip
    return total


def _meetings(out: int, window: int, size: int, *, stride: int, low: int, spread: int, step: int) -> int:
    """Pairs of an output and a window position that meet an element: out · stride + window · step = low + element · spread."""
    met = 0
    for offset in range(low, low - window * step, -step):  # out · stride = offset + element · spread
        common = math.gcd(stride, spread)
        if offset % common:
            continue
        period = spread // common
        first = offset // common * pow(stride // common, -1, period) % period
        lowest = max(0, -(-offset // stride))
        highest = min(out - 1, (offset + (size - 1) * spread) // stride)
        met += max(0, (highest - first) // period - (lowest - first - 1) // period)
    return met
