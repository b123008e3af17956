"""Pretend devices on this machine, set up once and early, and the version guard that every lab prints first."""

from __future__ import annotations

import contextlib
import datetime
import math
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from scaling_lib import units
from scaling_lib.xla import layouts, tracing
from scaling_lib.xla.program import Program, memory

MOST_DEVICES = 1024
"""Largest simulated mesh: 2,048 devices take a second to make, 8,192 half a minute, 100,000 never return."""

OLDEST_JAX = (0, 10)
NEWEST_JAX = (0, 12)
"""The course is tested on both ends of this range."""


@dataclass(frozen=True)
class Versions:
    """What a notebook runs on; prints as one line."""

    python: str
    jax: str
    backend: str
    device: str

    def __str__(self) -> str:
        return f"Python {self.python}, JAX {self.jax}, {self.backend}: {self.device}"

    __repr__ = __str__


def versions() -> Versions:
    """Python, JAX and device of this process, after checking JAX against the tested range.

    Raises:
        RuntimeError: for a JAX older than the course supports, with the remedy.

    Warns:
        UserWarning: for a JAX newer than the course was tested with.
    """
    have = tuple(map(int, jax.__version__.split(".")[:2]))
    supported = f"{_dotted(OLDEST_JAX)} to {_dotted(NEWEST_JAX)}"
    if have < OLDEST_JAX:
        raise RuntimeError(f"JAX {jax.__version__} is too old; this course runs on {supported}: pip install -U jax, then restart")
    if have > NEWEST_JAX:
        warnings.warn(
            f"JAX {jax.__version__} is newer than the tested range {supported}; printed values may differ", stacklevel=2
        )
    return Versions(platform.python_version(), jax.__version__, jax.default_backend(), jax.devices()[0].device_kind)


def mesh(**axes: int) -> Mesh:
    """A mesh of pretend CPU devices with named axes: `mesh(X=4, Y=2)` has eight.

    The first call fixes how many pretend devices this process has, so call it before anything else uses JAX, with the
    largest mesh first. An accelerator that the machine has stays visible. Axes are of JAX's `Auto` kind.

    Raises:
        ValueError: for no axes, or an axis size that is no whole number of at least 1.
        RuntimeError: where JAX has already started with fewer devices, with the remedy.

    NB: the CPU backend widens bf16 to float32; use float32 or int8 on simulated meshes. Give the devices equal, short work: one
    that the others wait for in a collective for about a minute ends the process, with no exception to catch.
    """
    if not axes:
        raise ValueError("axes is empty; name at least one, like mesh(X=8)")
    shape = tuple(units.size(name, n) for name, n in axes.items())
    if math.prod(shape) > MOST_DEVICES:
        raise ValueError(f"mesh of {math.prod(shape)} pretend devices is too large; one machine can pretend {MOST_DEVICES}")
    devices = _cpu_devices(math.prod(shape))
    kinds = (jax.sharding.AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, tuple(axes), axis_types=kinds, devices=devices)


def compile(
    fn: Callable[..., Any],
    *specs: Any,
    out: Any = None,
    donate: int | tuple[int, ...] = (),
    name: str | None = None,
) -> Program:
    """What XLA makes of `fn` on the pretend devices of a mesh; `tpu.compile` does the same for real TPUs.

    Args:
        fn: a function of JAX arrays, or one that `jax.jit` has already taken.
        specs: its arguments: pytrees of `jax.ShapeDtypeStruct`, or of arrays, of which only shape, dtype and sharding count.
            Shardings over anything but pretend devices move to as many of those. Without any, the program is for one.
        out: how the result is laid out: `PartitionSpec` or `NamedSharding`, one for all or a tree of them. Left out, the
            compiler chooses.
        donate: positions of arguments whose memory the result may take over.
        name: what the program is called; the function's name where it is left out.

    Raises:
        ValueError: for an argument that does not do, with the reason in one line.
        RuntimeError: where JAX has already started with fewer devices, with the remedy.

    NB: the CPU compiler writes other collectives than the TPU's, widens bf16 to float32, and has no peak of its own.
    """
    called = tracing.name_of(fn) if name is None else name
    donate = tracing.positions(donate, len(specs))
    on = _pretended(layouts.mesh_of(specs, out))
    specs, out = layouts.move_specs(specs, on), layouts.move_out(out, on)
    with layouts.in_context(on, on):
        lowered = tracing.lower(fn, specs, out=out, donate=donate, called=called)
        compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": 0})  # machine code that nobody runs
    return Program.read(
        compiled.as_text(),
        name=called,
        target=f"cpu:{on.size}",
        axes=dict(on.shape),
        memory=memory(compiled.memory_analysis()),
        versions={"jax": jax.__version__},
        date=datetime.date.today().isoformat(),
    )


def _pretended(named: Mesh | AbstractMesh | None) -> Mesh:
    """The mesh that a program names, over pretend devices."""
    if named is None:
        return Mesh(np.array(_cpu_devices(1)[0]), ())
    if isinstance(named, Mesh) and all(device.platform == "cpu" for device in named.devices.flat):
        return named
    ours = mesh(**named.shape)
    return Mesh(ours.devices, ours.axis_names, axis_types=named.axis_types)


def _cpu_devices(count: int) -> list[jax.Device]:
    with contextlib.suppress(RuntimeError):  # JAX has started; what it has may still be enough
        wanted = max(count, getattr(jax.config, "jax_num_cpu_devices", 0))
        jax.config.update("jax_num_cpu_devices", wanted)  # type: ignore[no-untyped-call]
    try:
        have = jax.devices("cpu")
    except (AssertionError, RuntimeError) as error:
        remedy = "unset JAX_PLATFORMS, or add cpu to it: JAX_PLATFORMS=tpu,cpu"
        raise RuntimeError(f"JAX was told to leave the CPU out, and pretend devices are CPU devices: {remedy}") from error
    if len(have) < count:
        raise RuntimeError(
            f"{count} pretend devices are needed, but JAX has already started with {len(have)}: "
            "restart the kernel and make the largest mesh before any other use of JAX"
        )
    return have[:count]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
