"""Read a trace that JAX's profiler wrote into a `Profile`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from scaling_lib.xla.profile import kinds
from scaling_lib.xla.profile.operations import Op, covered, nested
from scaling_lib.xla.profile.recording import only_trace
from scaling_lib.xla.profile.tables import Profile
from scaling_lib.xla.program import hlo

_ACCELERATOR = re.compile(r"/device:(?:TPU|GPU):(\d+)$")
_OPS, _TRANSFERS = "XLA Ops", "Async XLA Ops"  # the lines of an accelerator that hold operations
_SYSTEM = ("tf_", "Grpc", "main/", "TensorStore")  # threads of the runtime and of the profiler itself


class _Event(NamedTuple):
    """An event of a trace: when, where, and which operation where it is one."""

    text: str
    start_s: float
    duration_s: float
    device: int
    thread: str
    op: str
    module: str


def read(folder: str | Path, *programs: str) -> Profile:
    """The profile of the trace in a folder.

    Args:
        folder: what `record` yielded, any folder with one trace in it or below, or the path of an `.xplane.pb`.
        programs: optimized HLO of the programs that ran, as `compiled.as_text()` returns it. With it, a fusion with a matmul
            counts as one, and `by_scope` knows the scopes. Without, kinds come from names.

    Raises:
        ValueError: for no trace, more than one, one that was interrupted, or one in which no device ran anything; for text
            that is no HLO.
    """
    where = only_trace(folder)
    modules = {module.name: module for module in map(hlo.parse, programs)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # JAX's iterators name no module, which Python 3.12 deplores
        try:
            events = list(_events(jax.profiler.ProfileData.from_file(str(where))))
        except RuntimeError as error:
            raise ValueError(f"the trace {where.name!r} is cut off: its recording was interrupted; record it again") from error
    if not events:
        raise ValueError(f"the trace {where.name!r} is empty: its recording was interrupted; record it again")
    first = min(event.start_s for event in events)
    known = {
        (name, one.name): (kinds.of_instruction(one, module), one.op_name)
        for name, module in modules.items()
        for one in _instructions(module)
    }
    unnamed = next(iter(modules)) if len(modules) == 1 else ""  # events of a TPU do not say of which program they are
    ops: list[Op] = []
    transfers: list[Op] = []
    host: list[Op] = []
    for event in events:
        guess = _kind(event.op, event.text) if event.op else "host"
        kind, op_name = known.get((event.module or unnamed, event.op), (guess, ""))
        one = Op(
            event.op or event.text, kind, event.start_s - first, event.duration_s, event.duration_s,
            event.device if event.op else -1, event.thread, event.module, op_name,
        )  # fmt: skip
        (transfers if event.thread == _TRANSFERS else ops if event.op else host).append(one)
    if not ops:
        raise ValueError(
            f"no device ran anything in the trace {where.name!r}; call the program inside the `with` of `record`, and block "
            "there until its result is ready"
        )
    paired = list(_paired(ops)) if not transfers else []
    return Profile(tuple(nested(ops)), tuple(transfers or paired), tuple(nested(host)), covered(ops), "measured")


def _events(data: Any) -> Iterator[_Event]:
    for plane in data.planes:
        accelerator = _ACCELERATOR.match(plane.name)
        if not accelerator and plane.name != "/host:CPU":
            continue  # cores for embeddings, counters, metadata
        lines = list(plane.lines)
        if accelerator:  # steps, modules and scopes are the same time again, as are the operations beside a GPU's streams
            streams = [line for line in lines if line.name.startswith("Stream")]
            lines = streams or [line for line in lines if line.name in (_OPS, _TRANSFERS)]
        for line in lines:
            for event in line.events:
                notes = dict(event.stats)
                op = str(notes.get("hlo_op", ""))
                if accelerator:
                    named = re.match(r"%?([\w.\-]+) = ", event.name)  # a TPU writes a line of HLO, a GPU the name of a kernel
                    op = op or (named[1] if named else event.name)
                elif not op and line.name.startswith(_SYSTEM):
                    continue
                device = int(accelerator[1]) if accelerator else int(notes.get("device_ordinal", 0))
                module = str(notes.get("hlo_module", ""))
                yield _Event(event.name, event.start_ns * 1e-9, event.duration_ns * 1e-9, device, line.name, op, module)


def _kind(op: str, text: str) -> str:
    """By the opcode, where the event holds a line of HLO; else by its kernel, where that tells more than the operation."""
    opcode = re.match(r"%?[\w.\-]+ = .*?[\s)}\]]([a-z][a-z\-]*)\(", text)
    if opcode and opcode[1] != "fusion":
        return kinds.of_name(opcode[1])
    kernel = kinds.of_name(text)
    return kernel if kernel in ("matmul", "collective") else kinds.of_name(op)


def _instructions(module: hlo.Module) -> Iterator[hlo.Instruction]:
    return (one for computation in module.computations.values() for one in computation.instructions.values())


def _paired(ops: list[Op]) -> Iterator[Op]:
    """Transfers from the start of their -start to the end of their -done, which has the same number."""
    started: dict[tuple[int, str], Op] = {}
    for op in sorted(ops, key=lambda op: op.start_s):
        if "-start" in op.name:
            started[op.device, op.name] = op
        elif "-done" in op.name and (start := started.pop((op.device, op.name.replace("-done", "-start")), None)):
            yield replace(start, duration_s=op.end_s - start.start_s, self_s=0.0)
