"""Collectives and matmuls of a compiled program, read off its optimized HLO. Everything is per JAX device."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scaling_lib import units
from scaling_lib.xla.program import flops, groups, hlo

KINDS = (
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", "ragged-all-to-all", "collective-broadcast",
)  # fmt: skip


@dataclass(frozen=True)
class Collective:
    """One collective operation of a program, and how often it runs.

    Args:
        kind: "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", "ragged-all-to-all",
            "collective-broadcast". An all-reduce of which a device keeps a slice is a reduce-scatter only where the compiler
            makes it one.
        axes: mesh axes along which its groups run, in mesh order; empty where the groups are not those of whole axes.
            For a permute, the axes along which anything moves.
        group: devices in one group. For a permute, how many devices send to another.
        dtype: of the elements, by the library's names where it has one ("f32", "int8"), else by HLO's ("pred", "u32").
        elements: of the larger of the array that goes in and the one that comes out of a device: the gathered array of an
            all-gather, the unreduced one of a reduce-scatter; tuples summed. Of a ragged all-to-all the smaller, since the
            larger is room for what may come.
        array_bytes: bytes of those elements.
        times: how often it runs, the trip counts of the loops around it multiplied.
        over: "ici", or "dcn" for the part of a collective between slices.
        asynchronous: whether it has a start and an end that other work can stand between.
        form: "plain"; "fused" where a fusion holds it; "collective matmul" where it belongs to a loop that multiplies
            pieces while it permutes others.
        strategy: the algorithm that the TPU compiler chose, in its own words ("StrategyRing"), where it says.
        name: the instruction's name.
        op_name: the operation of the source program that it serves, where the compiler says.
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    dtype: str
    elements: int
    array_bytes: float
    times: int = 1
    over: str = "ici"
    asynchronous: bool = False
    form: str = "plain"
    strategy: str = ""
    name: str = ""
    op_name: str = ""

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends in one run, at the least any algorithm can.

        With V = `array_bytes` and n = `group`: V(n − 1)/n for an all-gather, reduce-scatter or all-to-all, twice that for
        an all-reduce, V for a permute or broadcast. What a ragged all-to-all sends is decided as it runs: this is for V full
        of rows that go to all devices alike.
        """
        if self.kind in ("collective-permute", "collective-broadcast"):
            return self.array_bytes
        once = self.array_bytes * (self.group - 1) / self.group
        return 2 * once if self.kind == "all-reduce" else once


@dataclass(frozen=True)
class Matmul:
    """One dot operation of a program (on TPUs the compiler writes it as a convolution), and how often it runs.

    Where there is nothing to reuse, as in a product with a single vector or an outer product, the compiler multiplies and sums
    without the matrix unit: that is no matmul. Neither are the products inside Pallas kernels, which the text does not show.

    Args:
        flops: of one run, 2 × the product of all distinct dimensions. Multiplications with padding do not count, and a
            float32 product counts once, in however many passes of bf16 it is done.
        times: how often it runs.
        cycles: the TPU compiler's estimate for the fusion that holds it; None where it gives none, or gave it to another
            matmul of the same fusion.
        dtype: of the first operand.
        precision: "default", "high" or "highest", as the program asks for it. On a TPU a float32 product is done in 1, 3 or 6
            passes of bf16.
        name: the instruction's name.
        op_name: the operation of the source program.
        elements: of both operands and the result; 0 in a record older than this field.
    """

    flops: int
    times: int = 1
    cycles: int | None = None
    dtype: str = "bf16"
    precision: str = "default"
    name: str = ""
    op_name: str = ""
    elements: int = 0


@dataclass(frozen=True)
class Code:
    """What the compiler made of a program that fits.

    Args:
        collectives: in program order.
        matmuls: in program order.
        kernels: how often each Pallas kernel runs, by the operation of the source program. No matmul shows what they multiply.
        endless: loops whose trip count is decided as they run; what they hold is counted once.
        text: the optimized HLO; empty where it was read from a record.
        schedule: the scheduler's timetable, where the program was compiled with one; see `timeline.scheduled`.
        timelines: made of text and timetable, by the names of the functions of `timeline`, as JSON holds them: a record's.
    """

    collectives: tuple[Collective, ...] = ()
    matmuls: tuple[Matmul, ...] = ()
    kernels: Mapping[str, int] = field(default_factory=dict)
    endless: tuple[str, ...] = ()
    text: str = field(default="", repr=False)
    schedule: str = field(default="", repr=False)
    timelines: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read(module: hlo.Module, axes: Mapping[str, int], text: str = "") -> Code:
    """Collectives and matmuls of a parsed program.

    Args:
        module: the program.
        axes: sizes of the mesh axes by name; partition ids count row by row. Where they multiply to more than the module's
            partitions, the text is for one of several slices, and the first axes count slices.
        text: what the module was parsed from, to keep.
    """
    between, within = _slices(axes, module.partitions)
    collectives: list[Collective] = []
    matmuls: list[Matmul] = []
    kernels: dict[str, int] = {}
    endless: list[str] = []
    timed: set[tuple[str, ...]] = set()
    for visit in hlo.walk(module):
        one = visit.instruction
        if one.opcode.removesuffix("-start") in KINDS:
            if not _repeats(visit):
                collectives.append(_collective(visit, module.partitions, within))
        elif one.opcode == "send" and (transfer := re.search(r'_xla_megascale_transfer_type="(\w+)"', one.after)):
            collectives.append(_between_slices(visit, transfer[1], between))
        elif one.opcode in ("dot", "convolution"):
            matmul, timed_at = _matmul(visit)
            matmuls.append(replace(matmul, cycles=None) if timed_at in timed else matmul)
            timed.add(timed_at)
        elif one.opcode == "custom-call" and one.attributes["custom_call_target"] == '"tpu_custom_call"':
            kernel = one.op_name or one.name
            kernels[kernel] = kernels.get(kernel, 0) + visit.times
        elif one.opcode == "while" and hlo.trip_count(visit, module) is None:
            endless.append(one.name)
    return Code(tuple(collectives), tuple(matmuls), kernels, tuple(endless), text)


def _collective(visit: hlo.Visit, partitions: int, mesh: Mapping[str, int]) -> Collective:
    one = visit.instruction
    kind = one.opcode.removesuffix("-start")
    given = [visit.computation.instructions[name] for name in one.operands]
    into = tuple(array for source in given for array in source.arrays)
    if kind == "ragged-all-to-all":  # its other operands are the buffer that it fills, offsets and sizes
        into = into[:1]
    # a start returns (what went in, what comes out, flags); that of an all-reduce only what comes out, which is as large
    out = one.arrays[len(into) : 2 * len(into)] if one.opcode.endswith("-start") else one.arrays
    arrays = (min if kind == "ragged-all-to-all" else max)(into, out, key=_bytes)
    if kind == "collective-permute":
        joined = groups.pairs(one)
        axes, size = groups.moving(joined, mesh), len({source for source, _ in joined})
    else:
        joined = groups.replica_groups(one, partitions)
        axes, size = groups.axes_of(joined, mesh), len(joined[0])
    holder = visit.callers[-1] if visit.callers else one
    form = "fused" if holder.opcode == "fusion" else "plain"
    if kind == "all-reduce" and form == "fused" and any(user.opcode == "dynamic-slice" for user in _users(visit)):
        kind = "reduce-scatter"  # each device keeps its slice: the compiler's way to write one
    if _in_collective_matmul(visit, size == partitions):
        form = "collective matmul"
    return Collective(
        kind=kind,
        axes=axes,
        group=size,
        dtype=_dtype(max(arrays, key=lambda array: array.elements)),
        elements=sum(array.elements for array in arrays),
        array_bytes=_bytes(arrays),
        times=visit.times,
        asynchronous=any(caller.opcode.endswith("-start") for caller in (one, *visit.callers)) or _starts(visit),
        form=form,
        strategy=one.strategy,
        name=one.name,
        op_name=one.op_name or holder.op_name,
    )


def _between_slices(visit: hlo.Visit, transfer: str, slices: Mapping[str, int]) -> Collective:
    """The part of a collective that leaves the slice: a pair of send and recv to the host, which does the rest."""
    one = visit.instruction
    meeting = re.search(r'_xla_host_transfer_rendezvous="([^"]*)"', one.after)
    back = [
        other
        for other in visit.computation.instructions.values()
        if other.opcode == "recv" and meeting and f'rendezvous="{meeting[1]}"' in other.after
    ]
    array = max((other.arrays[0] for other in (one, *back)), key=lambda array: array.elements)
    # targets are {1,2}x{0:15}, or ids of slices times 100000 plus a device of each
    target = one.after.partition("_xla_megascale_target=")[2]
    if crossed := re.match(r'"\{([\d,]+)\}x', target):
        joined = [tuple(int(n) - 1 for n in crossed[1].split(","))]
    else:
        joined = [
            tuple(int(n) // 100000 - 1 for n in re.findall(r"\d{6,}", group)) for group in re.findall(r"\{([\d,>\-]+)\}", target)
        ]
    kind = {"ONE_TO_ONE": "collective-permute", "PERMUTE": "collective-permute"}.get(transfer, transfer.lower().replace("_", "-"))
    permute = kind == "collective-permute"
    return Collective(
        kind=kind,
        axes=groups.moving(tuple(joined), slices) if permute else groups.axes_of(tuple(joined), slices),
        group=len({group[0] for group in joined}) if permute else len(joined[0]),
        dtype=_dtype(array),
        elements=array.elements,
        array_bytes=_bytes([array]),
        times=visit.times,
        over="dcn",
        asynchronous=True,
        name=one.name,
        op_name=one.op_name or (meeting[1] if meeting else ""),
    )


def _slices(axes: Mapping[str, int], partitions: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The mesh axes that count slices, and those inside one. No axis where slices cut through one."""
    between = dict(axes)
    within: dict[str, int] = {}
    for name in reversed(tuple(axes)):
        if math.prod(within.values()) == partitions:
            break
        within = {name: between.pop(name), **within}
    return (between, within) if math.prod(within.values()) == partitions else ({}, {})


def _starts(visit: hlo.Visit) -> bool:
    return any('custom_call_target="AsyncCollectiveStart"' in other.after for other in _users(visit))


def _repeats(visit: hlo.Visit) -> bool:
    """Whether this is a second mention: a fused asynchronous collective stands in its start, the work beside it and its end."""
    mentioned = 'custom_call_target="AsyncCollective'
    return not _starts(visit) and (
        visit.computation.name.startswith("async_collective_fusion")
        or "chain_id=" in visit.instruction.attributes.get("frontend_attributes", "")
        or any(mentioned in other.after for other in _users(visit))
    )


def _users(visit: hlo.Visit) -> Iterator[hlo.Instruction]:
    return (other for other in visit.computation.instructions.values() if visit.instruction.name in other.operands)


def _in_collective_matmul(visit: hlo.Visit, all_send: bool) -> bool:
    """In its loop, or in what the compiler unrolled of it: a permute for a dot in which every device sends."""
    looped = any(caller.opcode == "while" and "windowed_dot_general" in caller.called[0] for caller in visit.callers)
    permute = visit.instruction.opcode.startswith("collective-permute")
    return looped or (permute and all_send and visit.instruction.op_name.endswith("dot_general"))


def _matmul(visit: hlo.Visit) -> tuple[Matmul, tuple[str, ...]]:
    """The matmul, with the cycles of the innermost instruction around it that has an estimate, and the path to that one."""
    one = visit.instruction
    path = (*visit.callers, one)
    while len(path) > 1 and path[-1].cycles is None and path[-1].opcode != "while":
        path = path[:-1]
    operand, other = (visit.computation.instructions[name].arrays[0] for name in one.operands[:2])
    elements = operand.elements + other.elements + one.arrays[0].elements
    precision = re.findall(r"\w+", one.attributes.get("operand_precision", "default"))[0]
    matmul = Matmul(flops.of(visit), visit.times, path[-1].cycles, _dtype(operand), precision, one.name, one.op_name, elements)
    return matmul, tuple(step.name for step in path)


def _dtype(array: hlo.Array) -> str:
    if array.dtype.startswith(("f8", "f4")):
        return "fp" + array.dtype[1]
    try:
        return units.dtype_name(array.dtype)
    except ValueError:
        return array.dtype


def _bytes(arrays: Sequence[hlo.Array]) -> float:
    bits = sum(array.elements * (8 if array.dtype == "pred" else int(re.findall(r"\d+", array.dtype)[0])) for array in arrays)
    return bits / 8
