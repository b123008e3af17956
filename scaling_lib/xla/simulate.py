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

from scaling_lib import units
from scaling_lib.xla import tracing
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


def mesh(**axes: int) -> jax.sharding.Mesh:
    """A mesh of pretend CPU devices with named axes: `mesh(X=4, Y=2)` has eight.

    The first call fixes how many pretend devices this process has, so call it before anything else uses JAX, with the
    largest mesh first. An accelerator that the machine has stays visible. Axes are of JAX's `Auto` kind.

    Raises:
        ValueError: for no axes, or an axis size that is no whole number of at least 1.
        RuntimeError: where JAX has already started with fewer devices, with the remedy.

    NB: the CPU backend widens bf16 to float32; use float32 or int8 on simulated meshes.
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
        specs: its arguments: pytrees of arrays or `jax.ShapeDtypeStruct` with shardings over a mesh from `mesh`, as
            `arrays.spec` makes them. Without any sharding, the program is for one device.
        out: how the result is laid out, a sharding or a tree of them. Left out, the compiler chooses.
        donate: positions of arguments whose memory the result may take over.
        name: what the program is called; the function's name where it is left out.

    Raises:
        ValueError: for something that is no function, or shardings without devices or over two meshes.

    NB: the CPU compiler writes other collectives than the TPU's, widens bf16 to float32, and has no peak of its own.
    """
    called = tracing.name_of(fn) if name is None else name
    donate = tracing.positions(donate, len(specs))
    found = [leaf.sharding for leaf in jax.tree.leaves(specs) if isinstance(getattr(leaf, "sharding", None), jax.NamedSharding)]
    meshes = {sharding.mesh for sharding in found}
    if len(meshes) > 1 or any(isinstance(one, jax.sharding.AbstractMesh) for one in meshes):
        raise ValueError("specs must all be on one mesh of pretend devices; make it with simulate.mesh(X=4, Y=2)")
    axes = dict(meshes.pop().shape) if meshes else {}
    compiled = tracing.lower(fn, specs, out=out, donate=donate, called=called).compile()
    return Program.read(
        compiled.as_text(),
        name=called,
        target=f"cpu:{math.prod(axes.values())}",
        axes=axes,
        memory=memory(compiled.memory_analysis()),
        versions={"jax": jax.__version__},
        date=datetime.date.today().isoformat(),
    )


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
