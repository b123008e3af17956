"""Exercises on simulated devices: a function to write, tried at several sizes, whose compiled program must do as it should.

A check runs the answer and compares with NumPy, names a typical slip that has the same numbers, and then holds the program
against rules: which collectives, how many, how many one after the other. Used in labs/10a-jax.md; `puzzle` scores by bytes.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from scaling_lib import units
from scaling_lib.sharding import Sharding
from scaling_lib.xla import arrays, simulate
from scaling_lib.xla.program import Program, groups, hlo
from scaling_lib.xla.puzzle import NOT_YET, PERMUTES, Attempt, first_line, unhidden

Function = Callable[..., Any]
Rule = Callable[[Program], str | None]
"""What is wrong with a program, in words that end a sentence; None for nothing."""

_DOES_NOTHING = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}


@dataclass(frozen=True)
class Case:
    """A size at which an answer is tried: a mesh from `simulate.mesh`, and the whole arrays' dimensions."""

    mesh: Mesh
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Exercise:
    """A function that a reader writes, and what its check knows.

    Args:
        cases: the sizes to try; the program is compiled for the first.
        operands: each array as the devices hold it, like "A[I_X, J]".
        result: how they are to hold the result.
        reference: what NumPy makes of the mesh and the whole arrays.
        slips: hint -> what NumPy makes of them after a typical slip.
        undefined: hint where a result has infinite or undefined numbers.
        rules: that the compiled program must follow, the most telling first; without any, nothing is compiled for them.
        around: the function to run, made of the answer and the mesh; where it is left out the answer itself.
        parts: whether that function works on a device's parts, in `jax.shard_map`; else on whole arrays, and the compiler is
            told how the result is to be held, but for one that `jax.jit` has taken and on a mesh of explicit axes.
        check_vma: JAX's own check of what is equal on all devices, and its sums in gradients.
        draw: values for a case, from a random generator; where it is left out small whole numbers, whose float32 sums are
            exact in any order.
        tolerance: relative to the largest number of the result.
    """

    cases: Sequence[Case]
    operands: Sequence[str]
    result: str
    reference: Function
    slips: Mapping[str, Function] = field(default_factory=dict)
    undefined: str = ""
    rules: Sequence[Rule] = ()
    around: Callable[[Any, Mesh], Function] = lambda answer, mesh: answer
    parts: bool = True
    check_vma: bool = False
    draw: Callable[[np.random.Generator, Case], Sequence[Any]] | None = None
    tolerance: float = 0.0

    def whole(self, answer: Any, mesh: Mesh) -> Function:
        """The answer as a function of whole arrays on a mesh."""
        function = self.around(answer, mesh)
        wanted = arrays.sharding(mesh, self.result)
        if self.parts:
            held = tuple(arrays.sharding(mesh, text).spec for text in self.operands)
            return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=held, out_specs=wanted.spec, check_vma=self.check_vma))
        if hasattr(function, "lower"):
            return function
        explicit = AxisType.Explicit in mesh.axis_types
        return jax.jit(function, out_shardings=None if explicit else wanted)

    def check(self, answer: Any) -> Attempt:
        """Run, compare, compile and read an answer; `...` or a function that does nothing is not answered yet."""
        if answer is ... or _does_nothing(answer):
            return NOT_YET
        try:
            wrong = next(filter(None, (self._wrong(answer, case) for case in self.cases)), None)
        except Exception as error:  # the reader's code: whatever it raises is the answer's fault
            return Attempt(False, f"Not yet, it does not run: {first_line(error)}")
        if wrong:
            return Attempt(False, f"Not yet: {wrong}")
        if not self.rules:
            return Attempt(True, "Right: as NumPy has it.")
        program = self.compile(answer)
        for rule in self.rules:
            if fault := rule(program):
                return Attempt(False, f"Right numbers, but {fault}", program)
        return Attempt(True, f"Right: {_does(program)}.", program)

    def compile(self, answer: Any) -> Program:
        """The program of an answer on the first case's mesh."""
        case = self.cases[0]
        return simulate.compile(self.whole(answer, case.mesh), *self._placed(case)[1], name="answer")

    def _placed(self, case: Case) -> tuple[list[np.ndarray[Any, Any]], list[jax.Array]]:
        """The values of a case, whole and on the devices."""
        random = np.random.default_rng(0)
        if self.draw is None:
            shapes = [[case.sizes[dim] for dim in Sharding.parse(text, case.mesh.shape).dims] for text in self.operands]
            values = [random.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
        else:
            values = [np.asarray(value) for value in self.draw(random, case)]
        return values, [arrays.place(case.mesh, text, value) for text, value in zip(self.operands, values, strict=True)]

    def _wrong(self, answer: Any, case: Case) -> str | None:
        """What is wrong with the result of a case."""
        values, placed = self._placed(case)
        right = np.asarray(self.reference(case.mesh, *values))
        with jax.set_mesh(case.mesh):
            function = self.whole(answer, case.mesh)
            # before a result of another shape meets the sharding that it is to have
            made = jax.eval_shape(function if self.parts else self.around(answer, case.mesh), *placed)
            if (shape := getattr(made, "shape", None)) != right.shape:
                got = "nothing" if made is None else f"a {type(made).__name__}" if shape is None else f"an array of shape {shape}"
                return f"the whole result is to have shape {right.shape}, and this is {got}."
            made = function(*placed)
        held = arrays.sharding(case.mesh, self.result)
        wrong = [part for part in made.addressable_shards if not self._equal(part.data, right[part.index], right)]
        if wrong:
            return self._named(np.asarray(made), right, values, case) or self._where(wrong, right, case)
        if not isinstance(made.sharding, NamedSharding) or made.sharding.is_equivalent_to(held, right.ndim):
            return None
        return f"the numbers are right, but devices hold {made.sharding.spec}, and not {held.spec}."

    def _close(self, have: Any, want: Any, right: Any) -> np.ndarray[Any, Any]:
        return np.asarray(np.isclose(have, want, rtol=0, atol=self.tolerance * np.abs(right).max(initial=0)))

    def _equal(self, have: Any, want: Any, right: Any) -> bool:
        return bool(self._close(have, want, right).all())

    def _named(self, made: Any, right: Any, values: Any, case: Case) -> str | None:
        """Wrong numbers, by the slip that they look like."""
        if not np.isfinite(made).all():
            return f"infinite or undefined numbers{f': {self.undefined}' if self.undefined else '.'}"
        for hint, slip in self.slips.items():
            if self._equal(made, np.asarray(slip(case.mesh, *values)), right):
                return f"{hint[0].lower()}{hint[1:]}"
        if times := _times_too_large(made, right):
            return f"all numbers are {times} times too large."
        if times := _times_too_large(right, made):
            return f"all numbers are {times} times too small."
        return None

    def _where(self, wrong: Sequence[Any], right: Any, case: Case) -> str:
        """Wrong numbers, by the rows that have them on the first device with any."""
        part = min(wrong, key=lambda part: part.device.id)
        have = np.asarray(part.data).reshape(len(part.data), -1)
        rows = np.flatnonzero(~self._close(have, right[part.index].reshape(have.shape), right).all(1))
        what = "wrong numbers" if have[rows].any() else "zeros"
        sizes = ", ".join(f"{name} {size}" for name, size in case.sizes.items())
        n = case.mesh.size
        runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
        which = ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
        which = "all rows" if len(rows) == len(have) else f"row{'s' * (len(rows) > 1)} {which} of {len(have)}"
        return f"device {part.device.id} of {n} has {what} in {which}, where sizes are {sizes}."


def _times_too_large(made: Any, right: Any) -> int:
    """The whole number above 1 that all numbers are too large by; 0 for none."""
    square = float((right * right).sum())
    times = round(float((made * right).sum()) / square) if square else 0
    return times if times > 1 and np.allclose(made, times * right, rtol=1e-4, atol=1e-4 * np.abs(right).max()) else 0


def uses(most: Mapping[str, int], hints: Mapping[str, str] | None = None) -> Rule:
    """No other collectives than these, and each no more often.

    Args:
        most: kind -> how often at most, loops multiplied.
        hints: kind -> what to say of it where it is too much.
    """

    def rule(program: Program) -> str | None:
        for kind, times in sorted(_times(program).items(), key=lambda one: -one[1]):
            if times > most.get(kind, 0):
                told = (hints or {}).get(kind)
                allowed = f"{most[kind]} will do" if kind in most else "none is needed"
                return f"{times} {kind}{'s' * (times > 1)}: {told or f'{allowed}.'}"
        return None

    return rule


def sends(most_bytes: float) -> Rule:
    """No more bytes sent by a device."""

    def rule(program: Program) -> str | None:
        sent = program.sent_bytes()
        if sent <= most_bytes * (1 + 1e-9):
            return None
        return f"a device sends {units.human(sent, 'B')}, {sent / most_bytes:.3g} times what is needed."

    return rule


def turns(most: int) -> Rule:
    """No longer row of permutes of which each waits for the one before."""

    def rule(program: Program) -> str | None:
        row = _row(program)
        return f"{row} permutes run one after the other; {most} turns will do." if row > most else None

    return rule


def hidden(program: Program) -> str | None:
    """The rule that a matmul may run beside every permute: one part in as many as there are devices may stand alone."""
    part = unhidden(program)
    if part * program.devices <= 1 + 1e-9:
        return None
    return f"{part:.0%} of the matmul stands before all permutes or after them; multiply a part in every turn."


def near(program: Program) -> str | None:
    """The rule that permutes go to a neighbor, the devices being a ring."""
    n = program.devices
    nodes = [node for one in hlo.parse(program.text).computations.values() for node in one.instructions.values()]
    sent = [pair for node in nodes if node.opcode in PERMUTES for pair in groups.pairs(node)]
    links = max((min((a - b) % n, (b - a) % n) for a, b in sent), default=1)
    return f"a permute goes over {links} links, and loads each; hand on to a neighbor what has come." if links > 1 else None


def _times(program: Program) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in program.collectives:
        found[one.kind] = found.get(one.kind, 0) + one.times
    return dict(sorted(found.items()))


def _does(program: Program) -> str:
    """What a program does, in words."""
    kinds = " and ".join(f"{times} {kind}{'s' * (times > 1)}" for kind, times in _times(program).items())
    words = [f"{units.human(program.sent_bytes(), 'B')} sent a device by {kinds}" if kinds else "nothing is sent"]
    words += [f"1 matmul that runs {one.times} times" for one in program.matmuls if one.times > 1 and len(program.matmuls) == 1]
    if taken := program.memory.aliased_bytes:
        words.append(f"the result takes {units.human(taken, 'B')} over from an argument")
    return ", ".join(words)


def _row(program: Program) -> int:
    """The longest row of permutes of which each needs the one before; those in loops count as often as they run."""
    module = hlo.parse(program.text)
    times = {one.name: one.times for one in program.collectives}

    def longest(computation: str) -> int:
        nodes = module.computations[computation].instructions
        row: dict[str, int] = {}  # operands stand before their users
        for name, one in nodes.items():
            inside = max((longest(called) for called in one.called), default=0)
            own = times.get(name, 1) if one.opcode in PERMUTES else 0
            row[name] = max((row[operand] for operand in one.operands), default=0) + inside + own
        return max(row.values(), default=0)

    return longest(module.entry)


def _does_nothing(answer: Any) -> bool:
    """Whether a function's body is `...`, or has only a docstring."""
    code = getattr(answer, "__code__", None)
    return code is not None and {one.opname for one in dis.get_instructions(code)} <= _DOES_NOTHING
