"""What the TPU compiler's scheduler believed when it ordered a program: its dump, read into starts and ends. No JAX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_FIELD = re.compile(r"( *)(\w+)(?:: (.*)| \{)$")
_COMPUTATION, _INSTRUCTION, _SCHEDULE = (
    "hlo_module/computations/",
    "hlo_module/computations/instructions/",
    "computation_schedules/",
)


@dataclass
class Row:
    """One instruction as scheduled, in seconds from the start of its computation; `cycle_s` is the scheduler's clock.

    `called` has the names of computations, a loop's body first; `does` its opcode and those of what it fuses.
    """

    name: str = ""
    opcode: str = ""
    op_name: str = ""
    operands: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    does: frozenset[str] = frozenset()
    start_s: float = 0.0
    end_s: float = 0.0
    cycle_s: float = 0.0


def parse(dump: str) -> Mapping[str, list[Row]]:
    """Rows by computation, in the order of the schedule. Computations that hold nothing asynchronous are not in the dump.

    The dump is a protocol buffer as text, one field a line, indented by two spaces a level.
    """
    by_id: dict[str, Row] = {}
    names: dict[str, str] = {}  # of computations, by id
    inside: dict[str, list[Row]] = {}  # instructions of computations, by id
    rows: dict[str, list[Row]] = {}
    path = [""] * 32
    row, computation, schedule, instructions = Row(), "", [Row()], [Row()]
    for line in dump.splitlines():
        if not (found := _FIELD.match(line)):
            continue
        depth, value = len(found[1]) // 2, (found[3] or "").strip('"')
        path[depth] = found[2]
        where = "/".join(path[: depth + 1])
        if where == "hlo_module/computations":
            instructions = []
        elif where == _COMPUTATION + "name":
            computation = value
        elif where == _COMPUTATION + "id":
            names[value], inside[value] = computation, instructions
        elif where == _COMPUTATION + "instructions":
            row = Row()
            instructions.append(row)
        elif where.startswith(_INSTRUCTION):
            _note(row, where.removeprefix(_INSTRUCTION), value, by_id)
        elif where == _SCHEDULE + "computation_id":
            schedule = rows[names[value]] = []
        elif where == _SCHEDULE + "instructions/id":
            row = by_id[value]
            schedule.append(row)
        elif where == _SCHEDULE + "instructions/start_timestamp_cycles":
            row.start_s = float(value)
        elif where == _SCHEDULE + "instructions/end_timestamp_cycles":
            row.end_s = float(value)
        elif where == _SCHEDULE + "cycles_per_microsecond":
            for one in schedule:
                one.cycle_s = 1e-6 / float(value)
                one.start_s *= one.cycle_s
                one.end_s *= one.cycle_s
    for one in by_id.values():
        one.does = frozenset(_does(one, inside))
    for one in by_id.values():
        one.operands = [by_id[operand].name for operand in one.operands]
        one.called = [names[called] for called in one.called]
    return rows


def _note(row: Row, key: str, value: str, by_id: dict[str, Row]) -> None:
    if key == "id":
        by_id[value] = row
    elif key in ("name", "opcode"):
        setattr(row, key, value)
    elif key == "metadata/op_name":
        row.op_name = value
    elif key == "operand_ids":
        row.operands.append(value)
    elif key == "called_computation_ids":
        row.called.append(value)


def _does(row: Row, inside: Mapping[str, list[Row]]) -> Iterator[str]:
    yield row.opcode
    if row.opcode in ("fusion", "call", "async-start", "call-start"):
        for called in row.called:
            for one in inside[called]:
                yield from _does(one, inside)
