"""What a program that does not fit would have needed: read off the compiler's refusal and its list of buffers.

The refusal has the totals and nothing else. The buffers come from the files that the compiler writes when told to dump.
"""

from __future__ import annotations

import re
from pathlib import Path

from scaling_lib import units
from scaling_lib.xla.program import Buffer, Memory

MOST_BUFFERS = 10
"""So many of the largest buffers are kept."""

_UNITS = {"": 1, "B": 1, "K": units.KIB, "M": units.MIB, "G": units.GIB, "T": units.KIB * units.GIB}
_AMOUNT = r"([0-9.]+)\s*([KMGT]?)i?B?"
_REFUSALS = (
    re.compile(rf"memory required .*?\({_AMOUNT}\) exceeds available HBM \({_AMOUNT}\)", re.S),
    re.compile(rf"[Uu]sed {_AMOUNT} of {_AMOUNT} hbm"),
)
_ALLOCATION = re.compile(r"allocation \d+: size (\d+)(.*):$")
_VALUE = re.compile(r"value: <\d+ (.+?)(?:\{([\d,]*)\})? @\d+> \(size=(\d+),offset=(\d+)\): (.+)$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*?metadata=\{[^}]*?op_name=\"((?:[^\"\\]|\\.)*)\"", re.M)


def refusal(message: str) -> tuple[float, float] | None:
    """Bytes of HBM needed and available, from the compiler's refusal; None for a refusal of another kind."""
    for form in _REFUSALS:
        if found := form.search(message):
            needed, needed_unit, available, available_unit = found.groups()
            return float(needed) * _UNITS[needed_unit], float(available) * _UNITS[available_unit]
    return None


def memory(refused: tuple[float, float], usable_bytes: float, dump: Path) -> Memory:
    """Memory of a program that does not fit, with its largest buffers.

    Args:
        refused: bytes needed and available, from `refusal`; the message rounds them to 10 MiB.
        usable_bytes: what the device has by the catalog, the exact figure behind the message's where the two agree.
        dump: the folder into which the compiler wrote its assignment of buffers.
    """
    needed, available = refused
    if abs(usable_bytes - available) < 0.01 * available:
        available = usable_bytes
    assignments = sorted(dump.glob("*buffer-assignment.txt"))
    modules = sorted(dump.glob("*oom_intermediate_module.txt"))
    if not assignments:
        return Memory(needed, available_bytes=available)
    names = {name: op_name for module in modules for name, op_name in _INSTRUCTION.findall(module.read_text())}
    total, buffers = _buffers(assignments[-1].read_text(), names)
    if abs(total - needed) < 0.01 * needed:
        needed = total
    return Memory(needed, available_bytes=available, largest=buffers)


def _buffers(assignment: str, names: dict[str, str]) -> tuple[float, tuple[Buffer, ...]]:
    """Bytes of all allocations in HBM, and the largest buffers that do not share space with a larger one."""
    total, kept = 0.0, []
    taken: list[tuple[int, int]] = []
    values: list[tuple[int, int, str, str]] = []

    def settle() -> None:
        for size, offset, name, shape in sorted(values, key=lambda value: (-value[0], value[1])):
            if all(offset + size <= start or offset >= end for start, end in taken):
                taken.append((offset, offset + size))
                kept.append(Buffer(size, shape, name))
        taken.clear()
        values.clear()

    in_hbm = False
    for line in assignment.splitlines():
        if found := _ALLOCATION.match(line.strip()):
            settle()
            in_hbm = not re.search(r"color [1-9]", found[2])
            total += float(found[1]) if in_hbm else 0
        elif in_hbm and (found := _VALUE.search(line)):
            instruction, _, size, offset, shape = found.groups()
            plain = re.sub(r"\{[^{}]*\}", "", shape)  # the layout says nothing to a reader
            values.append((int(size), int(offset), names.get(instruction, instruction).replace("\\'", "'"), plain))
    settle()
    return total, tuple(sorted(kept, key=lambda buffer: -buffer.bytes)[:MOST_BUFFERS])
