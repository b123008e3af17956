"""Compiles a JAX function for a TPU slice, with no TPU in the house.

The compiler is libtpu, the one that real TPUs use: memory, collectives and schedule are those of the real program. Times are
its estimates, and nothing runs. Derived in chapters/02-tpus.md; docs/adr/0009 says how programs are recorded.
"""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from scaling_lib import hardware, units
from scaling_lib.xla import layouts, libtpu, timeline, tracing
from scaling_lib.xla.program import Memory, Program, memory
from scaling_lib.xla.tpu import fingerprint, oom, records, topology
from scaling_lib.xla.tpu.records import Record, record
from scaling_lib.xla.tpu.topology import TPUCompilerUnavailable, mesh

__all__ = ["Record", "TPUCompilerUnavailable", "compile", "compiler", "mesh", "record"]

Options = Mapping[str, Any]
_MEMORY_LIMIT = "xla_tpu_max_hbm_size_mib"  # the compiler takes 0 and less for no limit


def compile(
    fn: Callable[..., Any],
    *specs: Any,
    slice: str | hardware.Slice = "v5e:16x16",
    out: Any = None,
    donate: int | tuple[int, ...] = (),
    options: Options | None = None,
    name: str | None = None,
    record: str | None = None,
    schedule: bool = False,
) -> Program:
    """What the TPU compiler makes of `fn` on a slice.

    A program that does not fit is a result too: `Program.code` is None, and `memory` has what it needs, what there is and
    the largest buffers.

    Args:
        fn: a function of JAX arrays, or one that `jax.jit` has already taken.
        specs: its arguments: pytrees of `jax.ShapeDtypeStruct`, or of arrays, of which only shape, dtype and sharding count.
            Their shardings may be over any mesh whose axes multiply to the slice's devices, a simulated one too: axes move
            to the slice. Without a sharding an argument is replicated.
        slice: a slice's name or a `hardware.Slice`.
        out: how the result is laid out: `PartitionSpec` or `NamedSharding`, one for all or a tree of them. Left out, the
            compiler chooses.
        donate: positions of arguments whose memory the result may take over.
        options: compiler options, such as `{"xla_tpu_enable_async_collective_fusion": False}`. Their names are the
            compiler's and change between its versions.
        name: what the program is called; the function's name where it is left out.
        record: go by way of this record: compile where libtpu can be had, else show what was recorded, with a warning that
            says when. The variable SCALING_LIB_RECORDS can ask for records "only", or to "write" or "check" them.
        schedule: keep the scheduler's timetable in `code.schedule`, where there is something to schedule; a record keeps the
            timelines made of it.

    Raises:
        ValueError: for an argument that does not do, with the reason in one line.
        TPUCompilerUnavailable: where libtpu is missing, broken or held by another process, and no record stands in.
        RuntimeError: in a process forked after libtpu was loaded.
    """
    called = tracing.name_of(fn) if name is None else name
    donate = tracing.positions(donate, len(specs))
    target = topology.resolve(slice)
    own = topology.own_mesh(target, layouts.mesh_of(specs, out))
    abstract = layouts.without_devices(own)
    options = _checked(options or {})

    def live() -> Program:
        on = topology.on_slice(target, own)
        with layouts.in_context(own, on):
            program = _live(fn, specs, out, donate, options, called, target, on, schedule)
        return program if record is None or not schedule else _with_timelines(program)

    def key() -> str:
        moved = layouts.move_specs(specs, abstract), layouts.move_out(out, abstract)
        with tracing.one_line(called):
            return records.key(fingerprint.signature(called, str(target), abstract, fn, *moved, donate, options, schedule))

    return live() if record is None else records.through(record, key, live)


def _live(
    fn: Any,
    specs: tuple[Any, ...],
    out: Any,
    donate: tuple[int, ...],
    options: dict[str, Any],
    called: str,
    target: hardware.Slice,
    on: jax.sharding.Mesh,
    schedule: bool,
) -> Program:
    specs, out = layouts.move_specs(specs, on), layouts.move_out(out, on)
    lowered = tracing.lower(fn, specs, out=out, donate=donate, called=called)
    found, text, timetable = _compiled(lowered, called, target, on, options, schedule)
    about: dict[str, Any] = {
        "name": called,
        "target": str(target),
        "axes": dict(on.shape),
        "memory": found,
        "versions": {"jax": jax.__version__, "libtpu": libtpu.version()},
        "date": datetime.date.today().isoformat(),
    }
    if text is None:
        return Program(**about, devices=target.devices, code=None)
    program = Program.read(text, **about)
    return replace(program, code=program.code and replace(program.code, schedule=timetable))


def compiler() -> str:
    """What `compile(..., record=...)` will show here, in one line: live programs, with the compiler's version, or records.

    After this line, records stand in without a warning.
    """
    records.told = True
    if records.mode() == "only":
        return "records of the TPU compiler, as asked for"
    try:
        topology.check_library()
    except (TPUCompilerUnavailable, RuntimeError) as missing:
        return f"records of the TPU compiler, since {missing}"
    return f"the TPU compiler, libtpu {libtpu.version()}"


def _with_timelines(program: Program) -> Program:
    """With its timelines, which a record keeps in place of text and timetable."""
    if program.code is None:
        return program
    ways = (timeline.of, timeline.scheduled) if program.code.schedule else (timeline.of,)
    kept = {way.__name__: way(program).to_json() for way in ways}
    return replace(program, code=replace(program.code, timelines=kept))


def _compiled(
    lowered: Any, called: str, target: hardware.Slice, on: jax.sharding.Mesh, options: dict[str, Any], schedule: bool
) -> tuple[Memory, str | None, str]:
    """Memory, text and timetable of a program; no text where it does not fit."""
    available = _available_bytes(target, options)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        dumped = {"xla_dump_to": folder, "xla_dump_latency_hiding_schedule": True} if schedule else {}
        try:
            compiled = lowered.compile(compiler_options={**options, **dumped})
        except (jax.errors.JaxRuntimeError, TypeError, ValueError) as error:
            needed = oom.refusal(str(error))
            if needed is None:
                raise ValueError(_refused(str(error), called, options)) from None
            return _not_fitting(lowered, options, needed, available), None, ""
        _check_devices(compiled, called, target, on)
        timetable = "".join(path.read_text() for path in sorted(Path(folder).glob("*.schedule.txt")))
    return memory(compiled.memory_analysis(), available_bytes=available), compiled.as_text(), timetable


def _check_devices(compiled: Any, called: str, target: hardware.Slice, on: jax.sharding.Mesh) -> None:
    """Refuses a program for other devices: shardings that `jax.jit` was told outrank those of the arguments."""
    layouts_used = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    if other := {device for layout in layouts_used for device in layout.device_set}.difference(on.devices.flat):
        raise ValueError(
            f"fn={called} is for devices of its own, like {min(map(str, other))}, and not for {target}: leave in_shardings and "
            "out_shardings out of its jax.jit, or give them over arrays.mesh; a function without arguments needs `out`"
        )


def _not_fitting(lowered: Any, options: dict[str, Any], refusal: tuple[float, float], available: float) -> Memory:
    """Compiles once more, to have the compiler write down its buffers."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            lowered.compile(compiler_options={**options, "xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        except jax.errors.JaxRuntimeError:
            return oom.memory(refusal, available, Path(folder))
    raise AssertionError("the compiler refused a program and then took it")


def _checked(options: Options) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise ValueError(f"options={options!r} is no mapping; give one like {{'xla_tpu_enable_async_collective_fusion': False}}")
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise ValueError(f"options[{name!r}]={value!r}: an option has a name, and as value a bool, a number or text")
    if _MEMORY_LIMIT in options:
        return {**options, _MEMORY_LIMIT: units.size(f"options[{_MEMORY_LIMIT!r}]", options[_MEMORY_LIMIT])}
    return dict(options)


def _available_bytes(target: hardware.Slice, options: Options) -> float:
    """HBM of one device that a program may have; an option can lower it."""
    usable = target.chip.usable_hbm_bytes / target.chip.devices
    limit = options.get(_MEMORY_LIMIT)
    return usable if limit is None else min(usable, float(limit) * units.MIB)


def _refused(message: str, called: str, options: Options) -> str:
    """The compiler's refusal in one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = re.sub(r"^[A-Z_]+: ", "", lines[0])
    if found := re.search(r"No such compile option: '(.+?)'|into flag (\w+)", first):
        option = found[1] or found[2]
        return f"options[{option!r}]={options.get(option)!r} is refused by the TPU compiler: {first}"
    if found := re.search(r"Scoped allocation with size (\d\S*) and limit (\d\S*) exceeded scoped vmem", message):
        return (
            f"the TPU compiler refuses {called}: a kernel takes {found[1]}iB of VMEM and has {found[2]}iB; give it smaller blocks"
        )
    return f"the TPU compiler refuses {called}: {first}"
