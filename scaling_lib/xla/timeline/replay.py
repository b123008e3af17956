"""Runs a compiled TPU program on paper: its instructions in order, what runs beside what, and who waits for whom. No JAX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scaling_lib import hardware
from scaling_lib.xla.program import Program, groups, hlo
from scaling_lib.xla.program.operations import KINDS, Collective, Matmul
from scaling_lib.xla.timeline import durations
from scaling_lib.xla.timeline.schedule import Row
from scaling_lib.xla.timeline.spans import Loop, Span, Timeline

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "iota",
    "optimization-barrier", "add-dependency", "conditional",
}  # fmt: skip
_MOVES_NOTHING = ("AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "cross_program_prefetch_index")


def replay(program: Program, how: str, scheduled: Mapping[str, Sequence[Row]] | None = None) -> Timeline:
    """The timeline of a program for a TPU; `scheduled` computations take the scheduler's times, the others those of `of`."""
    run = _Replay(program, scheduled or {})
    end = run.run(run.module.entry, 0.0, 1, "")
    spans = sorted(run.spans, key=lambda span: (span.start_s, span.resource == "compute"))
    return Timeline(tuple(spans), tuple(run.loops), end, how, program.target)


@dataclass
class _Transfer:
    """A transfer in flight: its span so far, and the transfer for whose links it had to wait."""

    span: Span
    before: _Transfer | None

    @property
    def end_s(self) -> float:
        return self.span.start_s + self.span.duration_s


@dataclass
class _Lanes:
    """Where the program stands in one pass of one computation: the clock, and the last transfer on every lane."""

    now: float
    busy: dict[str, _Transfer] = field(default_factory=dict)
    flying: dict[str, _Transfer] = field(default_factory=dict)

    def start(self, span: Span, lanes: list[str]) -> _Transfer:
        before = max((self.busy[lane] for lane in lanes if lane in self.busy), key=lambda t: t.end_s, default=None)
        begins = max(self.now, before.end_s) if before else self.now
        transfer = _Transfer(replace(span, start_s=begins), before if before and before.end_s > self.now else None)
        self.busy |= dict.fromkeys(lanes, transfer)
        return transfer

    def wait(self, transfer: _Transfer) -> None:
        """Stand idle until it has ended; each transfer on the way is exposed for its own part of the wait."""
        if transfer.before and transfer.span.start_s > self.now:
            self.wait(transfer.before)
        if (idle := transfer.end_s - self.now) > 0:
            transfer.span = replace(transfer.span, exposed_s=transfer.span.exposed_s + idle)
            self.now = transfer.end_s


class _Replay:
    def __init__(self, program: Program, scheduled: Mapping[str, Sequence[Row]]) -> None:
        self.scheduled = scheduled
        self.module = hlo.parse(program.text)
        self.target = hardware.slice_of(program.target.split(" × ")[-1])
        moves = re.finditer(r"%([\w.\-]+) = \(.*S\(5\).* (?:copy|async|slice)-start\(", program.text)
        self.to_host = {found[1] for found in moves}  # memory space 5 is the host's
        self.collectives: Mapping[str, Collective] = {one.name: one for one in program.collectives}
        self.matmuls: Mapping[str, Matmul] = {one.name: one for one in program.matmuls}
        visits = (visit for visit in hlo.walk(self.module) if visit.instruction.opcode == "while")
        self.loops_by_body = {
            visit.instruction.called[0]: (visit.instruction, hlo.trip_count(visit, self.module)) for visit in visits
        }
        self.spans: list[Span] = []
        self.loops: list[Loop] = []

    def run(self, computation: str, start: float, times: int, loop: str) -> float:
        """Append the spans of one pass of a computation from `start`; returns when it ends."""
        if rows := self.scheduled.get(computation):
            return self.follow(rows, start, times, loop)
        lanes, body = _Lanes(start), self.module.computations[computation]
        transfers: list[_Transfer] = []
        for one in body.instructions.values():
            if one.opcode == "while":
                lanes.now = self.loop(one.called[0], lanes.now, times, loop)
            elif one.opcode == "call":
                lanes.now = self.run(one.called[0], lanes.now, times, loop)
            elif self.ends(one):
                if started := self.started(one, body, lanes.flying):
                    lanes.wait(lanes.flying.pop(started))
            elif span := self.span(one, body, lanes.now, times, loop):
                if span.resource == "compute":
                    self.spans.append(span)
                    lanes.now += span.duration_s
                else:
                    transfers.append(lanes.start(span, self.lanes(one, span)))
                    if span.asynchronous:
                        lanes.flying[self.awaited(one, body)] = transfers[-1]
                    else:
                        lanes.wait(transfers[-1])
        self.spans += [transfer.span for transfer in transfers]
        return lanes.now

    def loop(self, body: str, start: float, times: int, loop: str) -> float:
        one, known = self.loops_by_body[body]
        passes = 1 if known is None else known
        place = len(self.loops)
        pass_s = self.run(body, start, times * passes, one.name) - start
        self.loops.insert(place, Loop(one.name, start, pass_s, passes, one.op_name, loop))
        return start + passes * pass_s

    def follow(self, rows: Sequence[Row], start: float, times: int, loop: str) -> float:
        """One pass of a computation as the scheduler saw it."""
        later, now, idle = start, start, 0.0  # a loop takes longer than the scheduler booked for it: what follows moves
        least = 1.5 * rows[0].cycle_s  # it books one cycle for what takes no time
        flying: dict[str, tuple[float, Row]] = {}
        for row in rows:
            begins, ends = later + row.start_s, later + row.end_s
            if begins - now > least / 3:  # scheduled backwards: the wait can stand before small work ahead of its end
                idle += begins - now
            if row.opcode == "while" and row.called[0] in self.loops_by_body:
                ends = self.loop(row.called[0], begins, times, loop)
                later = ends - row.end_s
            elif row.opcode.endswith("-start") or row.opcode in ("send", "recv"):
                flying[row.name] = (begins, row)
            elif row.opcode.endswith("-done"):
                began, start_of = next((flying.pop(name) for name in row.operands if name in flying), (begins, row))
                resource, kind = _where(start_of, "hbm", "copy")
                self.spans.append(Span(row.name, began, begins - began, resource, kind, row.op_name, times, loop, True, idle))
                idle = 0.0
            elif ends - begins > least:
                resource, kind = _where(row, "compute", "matmul" if row.does & {"convolution", "dot"} else "vector")
                waits = 0.0 if resource == "compute" else ends - begins
                self.spans.append(Span(row.name, begins, ends - begins, resource, kind, row.op_name, times, loop, False, waits))
            now = ends
        return now

    def inside(self, one: hlo.Instruction) -> Iterator[hlo.Instruction]:
        """The instruction itself, and all those in the computations it calls."""
        yield one
        for name in one.called:
            for inner in self.module.computations[name].instructions.values():
                yield from self.inside(inner)

    def calls(self, one: hlo.Instruction, target: str) -> bool:
        return any(f'custom_call_target="{target}"' in inner.after for inner in self.inside(one))

    def starts(self, one: hlo.Instruction) -> bool:
        return one.opcode.endswith("-start") or (one.opcode == "fusion" and self.calls(one, "AsyncCollectiveStart"))

    def ends(self, one: hlo.Instruction) -> bool:
        return one.opcode.endswith("-done") or (one.opcode == "fusion" and self.calls(one, "AsyncCollectiveDone"))

    def awaited(self, one: hlo.Instruction, body: hlo.Computation) -> str:
        """The instruction whose end waits for a transfer: its start, but between slices what receives the result."""
        meeting = re.search(r'_xla_host_transfer_rendezvous="[^"]*"', one.after) if one.opcode == "send" else None
        receives = (
            other.name for other in body.instructions.values() if other.opcode == "recv" and meeting and meeting[0] in other.after
        )
        return next(receives, one.name)

    def started(self, one: hlo.Instruction, body: hlo.Computation, flying: Mapping[str, _Transfer]) -> str | None:
        """The start that an end belongs to, found back through the tuples and fusions that pass its state on."""
        for operand in one.operands:
            name: str | None = operand
            leaf: int | None = None
            while name and name not in flying:
                name, leaf = self.origin(body.instructions[name], leaf)
            if name:
                return name
        return None

    def origin(self, one: hlo.Instruction, leaf: int | None) -> tuple[str | None, int | None]:
        if one.opcode == "get-tuple-element":
            return one.operands[0], int(one.attributes["index"])
        if one.opcode == "tuple" and leaf is not None:
            return one.operands[leaf], None
        if one.opcode == "bitcast" or one.opcode.endswith("-update"):
            return one.operands[0], leaf
        if one.opcode == "fusion":
            inner = self.module.computations[one.called[0]]
            root = inner.root
            if root.opcode == "tuple" and leaf is not None:
                root = inner.instructions[root.operands[leaf]]
            if root.opcode == "parameter":
                return one.operands[int(root.inside)], None
        return None, None

    def lanes(self, one: hlo.Instruction, span: Span) -> list[str]:
        """What a transfer needs to itself: both directions of its mesh axes, one of them for a permute, or the copy engine."""
        collective = self.collective(one)
        if collective is None or span.resource != "ici":
            return [span.resource]
        ways = ["up", "down"]
        if collective.kind == "collective-permute":
            pairs = next((found for inner in self.inside(one) if (found := groups.pairs(inner))), ())
            ways = ways[:1] if 2 * sum(to > sender for sender, to in pairs) > len(pairs) else ways[1:]
        return [f"{axis} {way}" for axis in collective.axes or ("?",) for way in ways]

    def collective(self, one: hlo.Instruction) -> Collective | None:
        return next((self.collectives[inner.name] for inner in self.inside(one) if inner.name in self.collectives), None)

    def span(self, one: hlo.Instruction, body: hlo.Computation, now: float, times: int, loop: str) -> Span | None:
        """The work of one instruction, started now; None for one that takes no time."""
        if one.opcode in _FREE or one.opcode.endswith("-update") or any(target in one.after for target in _MOVES_NOTHING):
            return None
        chip = self.target.chip
        matmuls = [self.matmuls[inner.name] for inner in self.inside(one) if inner.name in self.matmuls]
        collective = None if matmuls and not self.starts(one) else self.collective(one)
        if collective:
            seconds, resource, kind = durations.collective_s(collective, self.target), collective.over, collective.kind
        elif matmuls:
            seconds, resource, kind = durations.matmul_s(matmuls, one.cycles, chip), "compute", "matmul"
        elif one.opcode == "copy" or one.opcode.endswith("-start"):
            resource, kind = "host" if one.name in self.to_host else "hbm", "copy"
            rate = chip.pcie_bytes_per_s if resource == "host" else chip.hbm_bytes_per_s
            seconds = durations.copied_bytes(one) * chip.devices / rate
        elif one.opcode in ("send", "recv"):
            return None  # it belongs to a collective that is already there
        else:
            resource, kind = "compute", "kernel" if '"tpu_custom_call"' in one.after else "vector"
            seconds = durations.moved_bytes(one, body, self.module) * chip.devices / chip.hbm_bytes_per_s
        if one.opcode != "fusion" and not collective and all(array.elements <= 1 for array in one.arrays):
            return None  # the scalar unit does it on the side
        flies = self.starts(one) or one.opcode in ("send", "recv")
        op_name = one.op_name or (collective.op_name if collective else "")
        return Span(one.name, now, seconds, resource, kind, op_name, times, loop, flies) if seconds else None


def _where(row: Row, resource: str, kind: str) -> tuple[str, str]:
    """Resource and kind of a scheduled instruction: of the collective that it is or holds, else those given."""
    if row.opcode in ("send", "recv"):
        return "dcn", row.opcode
    if any(name.startswith("all-reduce-scatter") for name in row.called):
        return "ici", "reduce-scatter"
    return next((("ici", found) for found in KINDS if any(opcode.startswith(found) for opcode in row.does)), (resource, kind))
