"""The devices of a TPU slice that is not there: enough for the compiler, nothing runs on them.

libtpu, the TPU compiler, has sharp edges: it ends the process at a topology it does not know, waits forever in a forked
child, and may be missing, broken or in use. Here each becomes an exception before libtpu can act.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import AbstractMesh, AxisType, Mesh

from scaling_lib import hardware, units
from scaling_lib.xla import libtpu

HOW_TO_GET = (
    f'pip install "jax[tpu]=={jax.__version__}" (Linux on x86-64; JAX stays as it is), then restart; '
    "elsewhere use a recorded program"
)

_MOST_AXES_TO_SUGGEST = 4  # ways to factor grow fast with their number

MOST_CHIPS_AN_AXIS = 256
"""Longest torus axis that libtpu is known to take. With 512 it ends the process; no pod that is sold comes near."""


class TPUCompilerUnavailable(RuntimeError):  # noqa: N818  # what it says is the name
    """The TPU compiler cannot be had here, or a program that was asked for is not among the recorded ones."""


def resolve(slice: str | hardware.Slice) -> hardware.Slice:
    """The slice as a `hardware.Slice` that libtpu can take.

    Raises:
        ValueError: for an unknown slice, one that is not of TPUs, or an axis of more than `MOST_CHIPS_AN_AXIS` chips.
    """
    found = slice if isinstance(slice, hardware.Slice) else hardware.slice_of(slice)
    if found.chip.kind != "tpu" or found.chip.name not in hardware.CHIPS:
        raise ValueError(f"slice={str(found)!r} is not of TPUs; give one like 'v5e:16x16' or 'v5p:4x4x4'")
    if (longest := max(found.shape)) > MOST_CHIPS_AN_AXIS:
        raise ValueError(
            f"slice={str(found)!r} has an axis of {longest} chips; the TPU compiler takes at most {MOST_CHIPS_AN_AXIS} an axis"
        )
    return found


def mesh(slice: str | hardware.Slice, /, **axes: int) -> Mesh:
    """A mesh over all devices of a TPU slice, to compile for: `mesh("v5e:16x16", X=16, Y=16)`.

    Nothing can run on it. Axes are of JAX's `Auto` kind and are laid along the torus as JAX does it on the real slice.
    With several slices (`hardware.Slice(..., count=2)`) the first axes go over DCN: in
    `mesh(Slice(chip, (16, 16), 2), data=2, X=16, Y=16)` the two slices are `data`; an axis that is a multiple of the
    number of slices goes over DCN in its outer part.

    Args:
        slice: the slice's name or a `hardware.Slice`.
        axes: name and size of each axis; their product is the slice's number of JAX devices. None at all for one device.

    Raises:
        ValueError: for axes that do not multiply to the slice's devices, or a slice that the compiler cannot take.
        TPUCompilerUnavailable: where libtpu is missing, broken or held by another process.
        RuntimeError: in a process forked after libtpu was loaded.
    """
    target = resolve(slice)
    over_dcn = check_axes(target, axes)
    sizes = tuple(axes.values())
    grid = _grid(sizes, over_dcn, devices(target)) if sizes else np.array(devices(target)[0])
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(sizes))


def own_mesh(target: hardware.Slice, named: Mesh | AbstractMesh | None) -> Mesh | AbstractMesh:
    """The mesh that a program names, checked against the slice; where it names none, one over all its devices.

    Raises:
        ValueError: for axes that do not match the slice.
    """
    if named is None:
        axes = {} if target.devices == 1 else {"devices": target.devices}
        return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    check_axes(target, named.shape)
    return named


def on_slice(target: hardware.Slice, own: Mesh | AbstractMesh) -> Mesh:
    """A mesh with the axes of `own` over the devices of the slice; `own` itself where it is that already."""
    if isinstance(own, Mesh) and set(own.devices.flat) == set(devices(target)):
        return own  # in an order that its maker chose
    ours = mesh(target, **own.shape)
    return Mesh(ours.devices, ours.axis_names, axis_types=own.axis_types)


def _grid(sizes: tuple[int, ...], over_dcn: tuple[int, ...], devices: list[jax.Device]) -> Any:
    inside = tuple(n // d for n, d in zip(sizes, over_dcn, strict=True))
    try:
        if math.prod(over_dcn) == 1:
            return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
        return mesh_utils.create_hybrid_device_mesh(inside, over_dcn, devices, allow_split_physical_axes=True)
    except (TypeError, ValueError):  # JAX 0.10 finds no way for some axes that take parts of several torus axes
        given = " × ".join(map(str, sizes))
        raise ValueError(
            f"JAX {jax.__version__} cannot lay axes of {given} along the torus; take other sizes, or a newer JAX"
        ) from None


def check_axes(target: hardware.Slice, axes: Mapping[str, int]) -> tuple[int, ...]:
    """How many slices each axis of a mesh spans, the first axes taking as many as they can.

    Raises:
        ValueError: for axes that do not multiply to the slice's devices, or do not split over its slices.
    """
    sizes = tuple(units.size(name, n) for name, n in axes.items())
    if math.prod(sizes) != target.devices:
        given = " × ".join(f"{name}={n}" for name, n in axes.items())
        makes = f"{given} is {math.prod(sizes)} devices" if axes else "a mesh without axes is one device"
        few = len(sizes) <= _MOST_AXES_TO_SUGGEST
        would_do = f"; give axes of, for example, {_factorings(target.devices, sizes)}" if few else ""
        raise ValueError(f"{makes}, but {target} has {target.devices}{would_do}")
    left, spans = target.count, []
    for n in sizes:
        spans.append(math.gcd(n, left))
        left //= spans[-1]
    if left > 1:
        raise ValueError(
            f"axes of {' × '.join(map(str, sizes))} do not split over {target}; "
            f"make the first axis a multiple of {target.count}, the number of slices"
        )
    return tuple(spans)


def _factorings(devices: int, near: tuple[int, ...]) -> str:
    """The two ways to factor `devices` into as many sizes that are nearest to those given."""

    def ways(n: int, parts: int) -> list[tuple[int, ...]]:
        if parts <= 1:
            return [(n,)]
        return [(d, *rest) for d in range(1, n + 1) if n % d == 0 for rest in ways(n // d, parts - 1)]

    def distance(way: tuple[int, ...]) -> float:
        return sum(abs(math.log(a / b)) for a, b in zip(way, near, strict=True))

    near = near or (devices,)
    found = sorted(ways(devices, len(near)), key=lambda way: (distance(way), way))[:2]
    return " or ".join(" × ".join(map(str, way)) for way in found)


@cache
def _topology(name: str, options: tuple[tuple[str, Any], ...]) -> list[jax.Device]:
    return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **dict(options)).devices)


def devices(target: hardware.Slice) -> list[jax.Device]:
    """All JAX devices of a slice, to compile for.

    Raises:
        TPUCompilerUnavailable: where libtpu is missing, broken or held by another process.
        RuntimeError: in a process forked after libtpu was loaded.
    """
    options: dict[str, Any] = {}
    if target.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # the two cores of a chip are one device, as on Cloud
    if len(target.shape) == 3 and all(target.wraps):
        options["wrap"] = target.wraps  # 2D slices get theirs by themselves
    if math.prod(target.shape) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if target.count > 1:
        options["num_slices"] = target.count
    with _LOCK:
        check_library()
        try:
            return _topology(target.name, tuple(options.items()))
        except jax.errors.JaxRuntimeError as error:
            raise TPUCompilerUnavailable(_why(str(error))) from error


_LOCK = threading.Lock()  # libtpu must not be loaded by two threads at once
_forked_after_load = False


def _notice_fork() -> None:
    global _LOCK, _forked_after_load
    _LOCK = threading.Lock()
    _forked_after_load = _topology.cache_info().currsize > 0 or _is_mapped()


def _is_mapped() -> bool:
    maps = Path("/proc/self/maps")
    return maps.exists() and "libtpu.so" in maps.read_text()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notice_fork)


def check_library() -> None:
    """Refuses where libtpu would hang, or end the process.

    Raises:
        TPUCompilerUnavailable: where libtpu is missing or damaged.
        RuntimeError: in a process forked after libtpu was loaded.
    """
    if _forked_after_load:
        raise RuntimeError(
            "this process was forked after the TPU compiler was loaded, where it would wait forever; "
            'start processes with multiprocessing.get_context("spawn")'
        )
    found = libtpu.damaged or libtpu.library()
    if found is None:
        raise TPUCompilerUnavailable(f"the TPU compiler (libtpu) is not installed: {HOW_TO_GET}")
    if not libtpu.is_whole(found):
        again = f"pip install --force-reinstall --no-deps libtpu=={libtpu.version()}"
        raise TPUCompilerUnavailable(f"{found} is missing or damaged: {again}, then restart")


def _why(message: str) -> str:
    if "lockfile" in message:
        return (
            "another process on this machine holds the TPU compiler: set ALLOW_MULTIPLE_LIBTPU_LOAD=1 before Python starts, "
            "or end that process"
        )
    return f"the TPU compiler could not start: {message.strip().splitlines()[0]}; {HOW_TO_GET}"
