"""Optimized HLO, the text in which XLA prints a compiled program: parse it, and walk what runs with the loops' trip counts.

One parser for the CPU and TPU backends. Pure text, no JAX. `program` reads collectives and matmuls off what `walk` yields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

_ARRAY = re.compile(r"\b(pred|token|opaque|[subfc]f?\d+\w*)\[([\d,<=]*)\]")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]')

_PASSED_ON = {"copy", "copy-start", "copy-done", "bitcast", "convert", "reshape", "broadcast", "optimization-barrier"}


class Array(NamedTuple):
    """One array of an instruction's type: dtype as HLO names it ("bf16", "s8", "f8e4m3fn"), and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it has; 1 for a scalar."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. Tuples in its type are flattened: `arrays` holds their leaves in order."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    inside: str  # the text between the parentheses: a constant's value, a parameter's number
    after: str = field(repr=False)  # the text behind them: attributes, metadata, backend config
    root: bool = False

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """Attributes by name, like {"calls": "%fused", "direction": "LT"}, all as text."""
        pairs = (part.strip().partition("=") for part in _split(self.after))
        return {key: value for key, _, value in pairs if value}

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that run when this instruction does, in the order of the text; reducers and comparators are none.

        The branches of a conditional are all named, the condition of a loop is not.
        """
        keys = {
            "fusion": ("calls",),
            "call": ("to_apply", "calls"),
            "call-start": ("to_apply", "calls"),
            "async-start": ("to_apply", "calls"),
            "while": ("body",),
            "conditional": ("branch_computations", "true_computation", "false_computation"),
        }.get(self.opcode, ())
        return tuple(name for key in keys for name in re.findall(r"%?([\w.\-]+)", self.attributes.get(key, "")))

    @property
    def op_name(self) -> str:
        """The operation of the source program that it comes from, or ""."""
        found = re.search(r'op_name="([^"]*)"', self.attributes.get("metadata", ""))
        return found[1] if found else ""

    @property
    def cycles(self) -> int | None:
        """The TPU compiler's estimate of the clock cycles it takes, where the text has one."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.after)
        return int(found[1]) if found and int(found[1]) < 2**63 - 1 else None

    @property
    def strategy(self) -> str:
        """The algorithm of a collective, as the TPU compiler names it, or ""."""
        found = re.search(r'"strategy":"(\w+)"', self.after)
        return found[1] if found else ""


@dataclass(frozen=True)
class Computation:
    """Instructions by name, in the order of the text: for a scheduled module, the order in which they run."""

    name: str
    instructions: Mapping[str, Instruction]

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        return next((one for one in self.instructions.values() if one.root), list(self.instructions.values())[-1])


@dataclass(frozen=True)
class Module:
    """A parsed program: computations by name, the one it starts with, and how many partitions the text is for."""

    name: str
    computations: Mapping[str, Computation]
    entry: str
    partitions: int


_AROUND = ("while", "call", "conditional")


class Visit(NamedTuple):
    """An instruction that runs: where it stands, how often it runs, and the instructions that call it, outermost first."""

    instruction: Instruction
    computation: Computation
    times: int
    callers: tuple[Instruction, ...]

    @property
    def holder(self) -> Instruction | None:
        """What runs as one: the fusion around this instruction, or itself; None for a loop or call, which holds others."""
        return next((one for one in (*self.callers, self.instruction) if one.opcode not in _AROUND), None)


def parse(text: str) -> Module:
    """The module that `compiled.as_text()` prints.

    Raises:
        ValueError: for text that is no HLO module with an entry computation.
    """
    head = re.search(r"^HloModule ([\w.\-]+)(.*)$", text, re.MULTILINE)
    computations: dict[str, Computation] = {}
    body: dict[str, Instruction] = {}
    name, entry = "", ""
    for line in re.sub(r'\n(?="|\}\})', "", text).splitlines():  # a kernel's metadata breaks lines
        if not name:
            if (found := _HEADER.match(line)) and not line.startswith(("HloModule", " ")):
                name, body = found[2], {}
                entry = name if found[1] else entry
        elif line.startswith("}"):
            computations[name] = Computation(name, body)
            name = ""
        elif found := _INSTRUCTION.match(line):
            body[found[2]] = _instruction(found[2], found[3], bool(found[1]))
    if not head or not entry or name:
        raise ValueError(f"text={text[:40]!r}… is no HLO module; give what compiled.as_text() returns")
    partitions = re.search(r"num_partitions=(\d+)", head[2])
    return Module(head[1], computations, entry, int(partitions[1]) if partitions else 1)


def _instruction(name: str, text: str, root: bool) -> Instruction:
    end = _closing(text) if text.startswith("(") else len(text.partition(" ")[0])
    kind, rest = text[:end], text[end:].lstrip()
    opcode, bracket, _ = rest.partition("(")
    if not bracket:
        raise ValueError(f"instruction {name!r} has no operands in parentheses: {text[:80]!r}")
    close = _closing(rest, len(opcode))
    inside = rest[len(opcode) + 1 : close - 1]
    operands = () if opcode in ("constant", "parameter") else tuple(re.findall(r"%([\w.\-]+)", inside))
    arrays = tuple(Array(d, tuple(int(n.lstrip("<=")) for n in shape.split(",") if n)) for d, shape in _ARRAY.findall(kind))
    return Instruction(name, opcode, arrays, operands, inside, rest[close:], root)


def _closing(text: str, start: int = 0) -> int:
    """Position behind the bracket that closes the one at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth == 0:
            return token.end()
    raise ValueError(f"a bracket stays open in {text[:80]!r}")


def _split(text: str) -> list[str]:
    """`text` cut at the commas that stand in no bracket or string."""
    parts, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] == "," and depth == 0:
            parts.append(text[start : token.start()])
            start = token.end()
        depth += (token[0] in "([{") - (token[0] in ")]}")
    return [*parts, text[start:]]


def walk(module: Module) -> Iterator[Visit]:
    """Every instruction that runs, in program order, those inside fusions, calls, loops and async computations included.

    `times` multiplies the trip counts of the loops around it. A loop whose trip count the text does not settle
    (`trip_count` gives None) counts once, and so does every branch of a conditional. The condition of a loop is left out.
    """
    yield from _walk(_Scope(module, module.computations[module.entry]), 1)


def trip_count(visit: Visit, module: Module) -> int | None:
    """How often the loop at `visit` runs its body, or None where that is decided as it runs.

    Taken from the compiler where it says (CPU). Otherwise from the text: the counter's first value, what the body adds to
    it, and the limit that the condition holds against it. A loop that the compiler unrolled adds more than 1.
    """
    scope = _Scope(module, module.computations[module.entry])
    for caller, inner in zip(visit.callers, (*visit.callers, visit.instruction)[1:], strict=True):
        names = (name for name in caller.called if module.computations[name].instructions.get(inner.name) == inner)
        scope = scope.enter(caller, next(names))
    return _trips(scope, visit.instruction)


# An integer as an element that a loop carries, plus an offset. The element is (depth of the loop, position); None for a constant.
_Linear = tuple[tuple[int, int] | None, int]


@dataclass(frozen=True)
class _Scope:
    """A computation as called from an instruction of the scope around it.

    In a loop's body or condition, what the body hands on unchanged has the value that it came in with, and the rest are
    symbols; with `symbolic`, all are.
    """

    module: Module
    computation: Computation
    caller: Instruction | None = None
    outer: _Scope | None = None
    symbolic: bool = False

    def enter(self, caller: Instruction, name: str, symbolic: bool = False) -> _Scope:
        return _Scope(self.module, self.module.computations[name], caller, self, symbolic)

    @property
    def callers(self) -> tuple[Instruction, ...]:
        return (*self.outer.callers, self.caller) if self.outer and self.caller else ()

    def result(self, leaf: int | None = None) -> _Linear | None:
        return self.value(self.computation.root.name, leaf)

    def value(self, name: str, leaf: int | None = None) -> _Linear | None:
        """The integer that an instruction yields, or a part of the tuple that it does; None where the text does not settle it."""
        one = self.computation.instructions.get(name)
        if one is None:
            return None
        if one.opcode == "parameter":
            return self._parameter(one, leaf)
        if one.opcode == "get-tuple-element":
            return self.value(one.operands[0], int(one.attributes["index"]))
        if one.opcode == "tuple" and leaf is not None:
            return self.value(one.operands[leaf])
        if one.opcode == "while" and leaf is not None:
            return self.value(one.operands[0], leaf) if self.enter(one, one.called[0]).hands_on(leaf) else None
        if one.opcode in _PASSED_ON:
            return self.value(one.operands[0], leaf)
        if one.opcode in ("fusion", "call"):
            return self.enter(one, one.called[0]).result(leaf)
        if one.opcode == "constant":
            return (None, int(one.inside)) if re.fullmatch(r"-?\d+", one.inside) else None
        return self._arithmetic(one)

    def hands_on(self, leaf: int) -> bool:
        """Whether one pass of this loop leaves the element as it was."""
        if self.outer is None or self.caller is None:
            return False
        body = self.outer.enter(self.caller, self.caller.called[0], symbolic=True)
        return body.result(leaf) == ((len(self.callers), leaf), 0)

    def _parameter(self, one: Instruction, leaf: int | None) -> _Linear | None:
        if self.outer is None or self.caller is None:
            return None
        if self.caller.opcode != "while":
            position = int(one.inside)
            return self.outer.value(self.caller.operands[position], leaf) if position < len(self.caller.operands) else None
        if leaf is None:
            return None
        if not self.symbolic and self.hands_on(leaf):
            return self.outer.value(self.caller.operands[0], leaf)
        return (len(self.callers), leaf), 0

    def _arithmetic(self, one: Instruction) -> _Linear | None:
        sides = [self.value(operand) for operand in one.operands]
        if one.opcode not in ("add", "subtract", "multiply") or len(sides) != 2 or sides[0] is None or sides[1] is None:
            return None
        (left, a), (right, b) = sides[0], sides[1]
        if one.opcode == "add" and None in (left, right):
            return (right if left is None else left, a + b)
        if one.opcode == "subtract" and right is None:
            return (left, a - b)
        return (None, a * b) if one.opcode == "multiply" and left is right is None else None


def _walk(scope: _Scope, times: int) -> Iterator[Visit]:
    for one in scope.computation.instructions.values():
        yield Visit(one, scope.computation, times, scope.callers)
        trips = _trips(scope, one) if one.opcode == "while" else 1
        for name in one.called:
            yield from _walk(scope.enter(one, name), times * (1 if trips is None else trips))


_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


def _trips(scope: _Scope, loop: Instruction) -> int | None:
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.after):
        return int(known[1])
    body = scope.enter(loop, loop.called[0])
    test = scope.enter(loop, loop.attributes["condition"].lstrip("%"))
    compare = test.computation.root
    while compare.opcode in ("fusion", "call"):
        test = test.enter(compare, compare.called[0])
        compare = test.computation.root
    if compare.opcode != "compare":
        return None
    (counter, limit), direction = map(test.value, compare.operands), compare.attributes["direction"]
    if counter and counter[0] is None:
        counter, limit, direction = limit, counter, _FLIPPED.get(direction, "")
    if counter is None or limit is None or counter[0] is None or limit[0] is not None:
        return None
    leaf = counter[0][1]
    start, after = scope.value(loop.operands[0], leaf), body.result(leaf)
    if start is None or start[0] is not None or after is None or after[0] != counter[0]:
        return None
    return _count(start[1] + counter[1], after[1], limit[1], direction)


def _count(start: int, step: int, limit: int, direction: str) -> int | None:
    """How many of start, start + step, … pass the comparison with `limit` before the first that fails."""
    if direction in ("GT", "GE"):
        start, step, limit, direction = -start, -step, -limit, _FLIPPED[direction]
    if direction == "LE":
        limit, direction = limit + 1, "LT"
    if direction == "LT" and (step > 0 or start >= limit):
        return max(0, -(-(limit - start) // step)) if step > 0 else 0
    if direction == "NE" and step and (limit - start) % step == 0 and (limit - start) // step >= 0:
        return (limit - start) // step
    return None
