"""Six faults of slow programs, each with the figure that shows it, and a check that a cure has worked.

A check takes the slow program and the reader's cure of it. Both run, and must give the same numbers; then the figure must have
halved at least, and no other cost may have taken its place. Used in labs/09-profiling.md.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from scaling_lib import units
from scaling_lib.xla import profile, simulate, timeline, tpu
from scaling_lib.xla.program import Program
from scaling_lib.xla.puzzle import NOT_YET, Attempt, first_line
from scaling_lib.xla.serving import compilations

Function = Callable[..., Any]
Loop = Callable[[int], Sequence[Any]]
"""A training loop: of a number of steps, the loss of each."""

_HALF = 0.5
_GONE = 0.01  # of the bytes that an accidental gather sends: sums of single numbers stay
_FIRST_STEPS = 2  # of a run before the one in which programs are counted
_MORE = 1.1  # of the slow program's FLOPs or memory: more is another fault
_TRIES = 3
_ROUNDED = 0.03  # of the largest number: what a few roundings to bf16 make


@dataclass(frozen=True, repr=False)
class Cure(Attempt):
    """What a check says of a cure, and the figure before and after it; NaN where it was not measured."""

    before: float = math.nan
    after: float = math.nan


@dataclass(frozen=True)
class Run:
    """A training loop that was recorded.

    Args:
        losses: of the steps.
        seconds: that the loop took.
        idle_s: seconds of them in which the device ran nothing, before its first operation too.
        started: programs that were started for a step, compiled for it or not.
        profile: where the device's time went.
    """

    losses: tuple[float, ...]
    seconds: float
    idle_s: float
    started: float
    profile: profile.Profile


def room(program: Program) -> float:
    """Bytes that a program needs beside its arguments: results that take over no argument's memory, and temporaries."""
    memory = program.memory
    return memory.outputs_bytes - memory.aliased_bytes + memory.temporaries_bytes


def run(loop: Loop, steps: int) -> Run:
    """Record a training loop that has run before: what is compiled would count as idle."""
    with profile.record() as folder:
        begun = time.perf_counter()
        losses = _losses(loop, steps)
        took = time.perf_counter() - begun
    found = profile.read(folder)
    (device,) = found.devices
    busy = found.window_s(device) - found.idle_s(device)
    calls = sum(event.name.startswith("PjitFunction") for event in found.host)
    return Run(losses, took, max(took - busy, 0.0), calls / steps, found)


def donation(cure: Any, slow: Function, begin: Callable[[], tuple[Any, Any]], batch: Any, *, steps: int = 3) -> Cure:
    """Whether a training step writes the new weights and state over the old: `room` is halved.

    Args:
        cure: the reader's step, of (weights, state, batch) to (weights, state, loss), or `...`.
        slow: the step that keeps both.
        begin: gives fresh weights and state, which a step may take over.
        batch: of each step.
        steps: how many are compared.
    """

    def trained(step: Function) -> Any:
        weights, state = begin()
        losses = []
        for _ in range(steps):
            weights, state, loss = step(weights, state, batch)
            losses.append(loss)
        return weights, state, losses

    def judged() -> Cure:
        if wrong := _other_numbers(cure(*begin(), batch), lambda: slow(*begin(), batch), 1e-4):
            return wrong
        if wrong := _other_numbers(trained(cure), lambda: trained(slow), 1e-4):
            return wrong
        old = begin()
        before, after = (simulate.compile(step, *old, batch, name="step") for step in (slow, cure))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(old))
        given = after.memory.aliased_bytes
        left = f"of {_bytes(size)} of old weights and state, {_bytes(min(given, size))} are given to the new"
        if not given:
            left += "; only the outermost jax.jit can give an argument away"
        return _judged("room beside the arguments", "B", room(before), room(after), left, _costlier(before, after))

    return _tried(cure, judged)


def gather(cure: Any, slow: Function, mesh: Mesh, *arrays: Any) -> Cure:
    """Whether a program no longer gathers what was cut: of the bytes that a device sends, at most a hundredth stays.

    Args:
        cure: the reader's function, or `...`.
        slow: the function that gathers.
        mesh: simulated devices, from `simulate.mesh`.
        arrays: arguments, placed on them.
    """

    def judged() -> Cure:
        if wrong := _other_numbers(_on(mesh, cure, arrays), lambda: _on(mesh, slow, arrays), 1e-4):
            return wrong
        before, after = (simulate.compile(fn, *arrays, name="program") for fn in (slow, cure))
        other = _costlier(before, after)
        left = f"{_largest(after)}, and {other}" if other else _largest(after)
        return _judged("bytes sent", "B", before.sent_bytes(), after.sent_bytes(), left, other, _GONE)

    return _tried(cure, judged)


def float32(
    cure: Any, slow: Function, mesh: Mesh, arrays: Sequence[Any], specs: Sequence[Any], *, slice: str, record: str
) -> Cure:
    """Whether a program of bf16 arrays no longer sends float32: the bytes that a device of a TPU slice sends are halved.

    Args:
        cure: the reader's function, or `...`.
        slow: the function that makes float32 of bf16.
        mesh: simulated devices.
        arrays: small arguments, placed on them, to compare numbers.
        specs: arguments to compile for.
        slice: the TPU slice.
        record: where the TPU compiler cannot be had, the programs of this record stand in.
    """

    def judged() -> Cure:
        found = _on(mesh, cure, arrays)
        if wrong := _other_numbers(found, lambda: _on(mesh, slow, arrays), _ROUNDED):
            return wrong
        results: list[Any] = jax.tree.leaves(found)
        if others := {str(one.dtype) for one in results} - {"bfloat16"}:
            return Cure(False, f"Not yet: the result is in {min(others)}, and the next layer goes on with it.")
        before, after = (tpu.compile(fn, *specs, slice=slice, record=record, name="layer") for fn in (slow, cure))
        kinds = ({one.dtype for one in after.collectives} | {one.dtype for one in after.matmuls}) - {"f32", "bf16"}
        other = f"something is in {min(kinds)} now, and bf16 was meant" if kinds else _costlier(before, after)
        if not other and any(one.dtype == "f32" for one in after.matmuls):
            other = "a matmul still has a float32 operand"
        return _judged("bytes sent", "B", before.sent_bytes(), after.sent_bytes(), _largest(after), other)

    return _tried(cure, judged)


def exposed(
    cure: Any, slow: Function, mesh: Mesh, arrays: Sequence[Any], specs: Sequence[Any], *, slice: str, record: str
) -> Cure:
    """Whether collectives hide behind compute: the time for which a TPU's compute units wait for them is halved.

    Times are those of `timeline.of`. Arguments are as in `float32`.
    """

    def judged() -> Cure:
        if wrong := _other_numbers(_on(mesh, cure, arrays), lambda: _on(mesh, slow, arrays), 1e-4):
            return wrong
        before, after = (
            tpu.compile(fn, *specs, slice=slice, record=record, name="product", schedule=True) for fn in (slow, cure)
        )
        was, now = timeline.of(before), timeline.of(after)
        left = f"{len(after.collectives)} collectives take {_time(now.communication_s)}, and too little runs meanwhile"
        other = _costlier(before, after, memory=2)  # pieces on their way need room
        if not other and now.total_s > was.total_s:
            other = f"the whole takes {_time(now.total_s)} now, and took {_time(was.total_s)}"
        return _judged("exposed time", "s", was.exposed_s, now.exposed_s, left, other)

    return _tried(cure, judged)


def recompiling(cure: Any, slow: Loop, *, steps: int = 8) -> Cure:
    """Whether a training loop compiles its step once: programs compiled in a run are halved at least.

    Args:
        cure: the reader's loop, or `...`.
        slow: the loop that compiles again.
        steps: how many are counted, after a first run of two. JAX forgets what it has compiled before.
    """

    def counted(loop: Loop) -> tuple[tuple[float, ...], int]:
        loop(_FIRST_STEPS)
        with compilations.counted() as found:
            losses = _losses(loop, steps)
        return losses, found.programs

    def judged() -> Cure:
        forget: Any = jax.clear_caches
        forget()  # else what is kept for each rate would be there when the check is run again
        losses, after = counted(cure)
        wanted, before = counted(slow)
        if wrong := _other_numbers(losses, lambda: wanted, 1e-4):
            return wrong
        left = f"{after} programs are compiled in {steps} steps; some value is fixed in each of them"
        other = ""
        if after <= _HALF * before:
            was, now = run(slow, _FIRST_STEPS), run(cure, _FIRST_STEPS)
            if now.started > was.started + 3:
                other = f"{now.started:.0f} programs are started a step, and it was {was.started:.0f}, as if it were not jitted"
        return _judged("programs compiled", "", before, after, left, other)

    return _tried(cure, judged)


def waiting(cure: Any, slow: Loop, *, steps: int = 10) -> Cure:
    """Whether the device works while the host prepares the next step: its idle time in a run is halved.

    Args:
        cure: the reader's loop, or `...`.
        slow: the loop in which they take turns.
        steps: how many are recorded. A machine has other work too: of up to three runs of the cure the best counts.
    """

    def judged() -> Cure:
        if wrong := _other_numbers(_losses(cure, steps), lambda: _losses(slow, steps), 1e-4):
            return wrong
        before = run(slow, steps)
        after = run(cure, steps)
        for _ in range(_TRIES - 1):
            if after.idle_s <= _HALF * before.idle_s:
                break
            after = min(after, run(cure, steps), key=lambda one: one.idle_s)
        return _judged("idle time", "s", before.idle_s, after.idle_s, _when_idle(after), "")

    return _tried(cure, judged)


def _losses(loop: Loop, steps: int) -> tuple[float, ...]:
    """The losses of a loop as numbers, from a list or an array of them; waits for the last."""
    return tuple(float(loss) for loss in np.ravel(jax.device_get(loop(steps))))


def _when_idle(found: Run) -> str:
    (device,) = found.profile.devices
    between = found.profile.idle_s(device)
    if between < found.idle_s / 2:
        when = "most of it before its first operation: what is read before the loop is read while nothing runs"
    else:
        when = "most of it between operations: something in the loop waits for a result before the next batch is read"
    return f"the device runs nothing for {found.idle_s / found.seconds:.0%} of the time, {when}"


def _tried(cure: Any, judge: Callable[[], Cure]) -> Cure:
    """What a judge says; what the reader's code raises is the answer's fault."""
    if cure is ...:
        return Cure(False, NOT_YET.words)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
            return judge()
    except tpu.TPUCompilerUnavailable:
        return Cure(
            False,
            "Not judged: the numbers are right, but this program is none of those on record, and here is no TPU compiler to "
            "ask. Linux has it: pip install 'jax[tpu]'.",
        )
    except Exception as error:
        if "NoneType" in str(error):
            return Cure(False, NOT_YET.words)
        return Cure(False, f"Not yet, it does not run: {first_line(error)}")


def _judged(figure: str, unit: str, before: float, after: float, left: str, other: str, part: float = _HALF) -> Cure:
    """The verdict on a cure that has the right numbers: at most this part of the figure may stay.

    `left` says what is still wrong, `other` what has become so.
    """
    was, now = (units.human(value, unit) for value in (before, after))
    if after > part * before * (1 + 1e-9):
        words = f"Not yet: the fault is still there. {left[0].upper()}{left[1:]}. {figure.capitalize()}: {now}; before: {was}."
    elif other:
        words = f"Not yet: another fault in its place. {other[0].upper()}{other[1:]}."
    else:
        return Cure(True, f"Right: {figure} {now}, and it was {was}.", before=before, after=after)
    return Cure(False, words, before=before, after=after)


def _other_numbers(found: Any, right: Callable[[], Any], tolerance: float) -> Cure | None:
    """What is said where results differ by more than a part of the largest number."""
    if found is None:
        return Cure(False, NOT_YET.words)
    wanted = right()
    forms: list[Any] = [jax.tree.structure(tree) for tree in (found, wanted)]
    if forms[0] != forms[1]:
        have, want = (len(jax.tree.leaves(tree)) for tree in (found, wanted))
        other = (
            f"{have} arrays in place of {want}" if have != want else "the right number of arrays, but in another order or form"
        )
        return Cure(False, f"Not yet: it returns {other}.")
    for (path, want), one in zip(jax.tree.leaves_with_path(wanted), jax.tree.leaves(found), strict=True):
        a, b = np.asarray(one, np.float64), np.asarray(want, np.float64)
        name = jax.tree_util.keystr(path) or "result"
        if a.shape != b.shape:
            return Cure(False, f"Not yet: other numbers. {name} has the shape {a.shape} in place of {b.shape}.")
        off = np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30)
        if not off <= tolerance:
            return Cure(False, f"Not yet: other numbers. {name} is off by {100 * off:.3g}% of its largest.")
    return None


def _costlier(before: Program, after: Program, memory: float = _MORE) -> str:
    """Which cost has taken the place of another."""
    if after.flops > _MORE * before.flops:
        return f"each device multiplies {after.flops / before.flops:.1f} times as much"
    if after.memory.peak_bytes > memory * before.memory.peak_bytes:
        return f"it takes {_bytes(after.memory.peak_bytes)} of memory, and took {_bytes(before.memory.peak_bytes)}"
    return ""


def _largest(program: Program) -> str:
    if not program.collectives:
        return "nothing is sent"
    one = max(program.collectives, key=lambda one: one.sent_bytes * one.times)
    what = f"{one.kind} of {one.elements:,} {one.dtype}"
    return f"the largest collective is an {what}" if what[0] in "aeiou" else f"the largest collective is a {what}"


def _on(mesh: Mesh, fn: Function, arrays: Sequence[Any]) -> Any:
    with jax.set_mesh(mesh):
        return jax.jit(fn)(*arrays)


def _bytes(size: float) -> str:
    return units.human(size, "B")


def _time(seconds: float) -> str:
    return units.human(seconds, "s")
