"""What the instructions of a TPU program do: FLOPs and bytes by name. No JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scaling_lib.xla.program import Program, flops, hlo
from scaling_lib.xla.timeline.durations import copied_bytes, moved_bytes


class Work(NamedTuple):
    """FLOPs of an instruction's matmuls; bytes that a collective sends, a copy moves, or other work reads and writes."""

    flops: int
    bytes: float


def work(program: Program) -> Mapping[str, Work]:
    """What one run of every instruction outside of fusions does, by its name; of those that a timeline shows, and of others.

    Raises:
        ValueError: for a program without its text.
    """
    module = hlo.parse(program.text)
    sent = {one.name: one.sent_bytes for one in program.collectives}
    found: dict[str, Work] = {}
    for visit in hlo.walk(module):
        one = visit.instruction
        if not (holder := visit.holder):
            continue
        if holder is one:
            copies = one.opcode.startswith("copy") or one.opcode.endswith("-start")
            moved = copied_bytes(one) if copies else moved_bytes(one, visit.computation, module)
            found[one.name] = Work(0, moved)
        if one.opcode in ("dot", "convolution"):
            found[holder.name] = Work(found[holder.name].flops + flops.of(visit), found[holder.name].bytes)
        if one.name in sent and not found[holder.name].flops:
            found[holder.name] = Work(0, sent[one.name])
    return found
