"""How long the instructions of a TPU program take: from its own cycle estimates, and from bytes over the catalog's rates."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

from scaling_lib.hardware import Chip, Slice
from scaling_lib.xla.program import hlo
from scaling_lib.xla.program.operations import KINDS, Collective, Matmul

_READS_PART = ("dynamic-slice", "slice", "gather")


def collective_s(collective: Collective, target: Slice) -> float:
    """Seconds that one run of a collective takes at the rate of its links.

    All links of the torus axes that the group spans work in both directions: sent bytes ÷ (2 · axes · link rate) on rings, twice
    that where an axis does not wrap. An all-to-all sends each byte a quarter of the way around the ring. A permute uses one
    link, one way. The part of a collective that goes between slices takes sent bytes ÷ a chip's share of the network.

    The torus axes are the fewest whose sizes multiply to the group, or to its chips where a chip is two devices; one that
    does not wrap where no choice fits.
    """
    chip = target.chip
    if collective.over == "dcn":
        return collective.sent_bytes / chip.dcn_bytes_per_s
    if collective.kind == "collective-permute":
        return collective.sent_bytes / chip.ici_link_bytes_per_s
    spanned = _spanned(collective.group, target) or _spanned(collective.group // chip.devices, target)
    rings = bool(spanned) and all(target.wraps[i] for i in spanned)
    seconds = collective.sent_bytes / ((2 if rings else 1) * max(len(spanned), 1) * chip.ici_link_bytes_per_s)
    longest = max(target.shape[i] for i in spanned) if spanned else collective.group
    return seconds * longest / 4 if "all-to-all" in collective.kind else seconds


def _spanned(chips: int, target: Slice) -> tuple[int, ...]:
    axes = range(len(target.shape))
    choices = (choice for count in range(1, len(axes) + 1) for choice in itertools.combinations(axes, count))
    return next((choice for choice in choices if math.prod(target.shape[i] for i in choice) == chips), ())


def matmul_s(matmuls: Iterable[Matmul], cycles: int | None, chip: Chip) -> float:
    """Seconds of a fusion with these matmuls: the compiler's cycles ÷ clock, or FLOPs ÷ peak where that is longer."""
    peaks = chip.peak_flops_per_s
    arithmetic = sum(one.flops * chip.devices / peaks.get(one.dtype, peaks["bf16"]) for one in matmuls)
    return max(arithmetic, (cycles or 0) / chip.clock_hz)


def copied_bytes(one: hlo.Instruction) -> float:
    """Bytes that a copy reads from HBM and writes to it; a start moves them once, to VMEM or the host, or back."""
    return 2 * _bytes(one.arrays[:1]) if one.opcode == "copy" else _bytes(one.arrays[1:2])


def moved_bytes(one: hlo.Instruction, body: hlo.Computation, module: hlo.Module) -> float:
    """Bytes that an instruction reads and writes: of an array that it only cuts from or updates in place, that part."""
    if one.opcode == "fusion":
        inner = module.computations[one.called[0]]
        made = [inner.instructions[name] for name in inner.root.operands] if inner.root.opcode == "tuple" else [inner.root]
        taken = [part for part in inner.instructions.values() if part.opcode == "parameter"]
        users = [part for part in inner.instructions.values() if part.opcode != "tuple"]
    else:
        inner, made, users = body, [one], [one]
        taken = [body.instructions[name] for name in one.operands]
    return sum(_written(part, inner) for part in made) + sum(_read(part, users) for part in taken)


def _written(one: hlo.Instruction, body: hlo.Computation) -> float:
    if one.opcode == "dynamic-update-slice":
        return _bytes(body.instructions[one.operands[1]].arrays)
    return 0.0 if one.opcode == "parameter" or one.opcode in KINDS else _bytes(one.arrays)


def _read(one: hlo.Instruction, users: Sequence[hlo.Instruction]) -> float:
    uses = [user for user in users if one.name in user.operands]
    if all(user.opcode in _READS_PART and user.operands[0] == one.name for user in uses):
        return sum(_bytes(user.arrays) for user in uses)
    in_place = all(user.opcode == "dynamic-update-slice" and user.operands[0] == one.name for user in uses)
    return 0.0 if in_place or all(user.opcode in KINDS for user in uses) else _bytes(one.arrays)


def _bytes(arrays: Iterable[hlo.Array]) -> float:
    bits = {"pred": 8, "token": 0, "opaque": 0}
    return sum(a.elements * (bits[a.dtype] if a.dtype in bits else int(re.findall(r"\d+", a.dtype)[0])) / 8 for a in arrays)
