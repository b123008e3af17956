"""Arrays written in the course's notation, `A[I_X, J]`: their shardings, their shapes, and the placing of real values.

A capital or word names a dimension, the letters below it the mesh axes that cut it: `I_XY` is cut along X and, inside each
part, along Y. A mesh axis that is named nowhere holds copies. Notation: chapters/appendix-notation.md.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from scaling_lib import units
from scaling_lib.sharding import Sharding, dimensions

__all__ = ["dimensions", "mesh", "place", "product", "sharding", "spec"]

_JAX_NAMES = {"fp8": "float8_e4m3fn", "fp4": "float4_e2m1fn", "f64": "float64", "f32": "float32", "bf16": "bfloat16",
              "f16": "float16"}  # fmt: skip


def mesh(**axes: int) -> AbstractMesh:
    """Named axes without devices, `mesh(X=4, Y=2)`: enough to say how arrays are cut, before there is anything to cut them on.

    Axes are of JAX's `Auto` kind. What is specified on it compiles for any slice with as many devices: see `tpu.compile`.

    Raises:
        ValueError: for an axis size that is no whole number of at least 1.
    """
    sizes = tuple(units.size(name, n) for name, n in axes.items())
    return AbstractMesh(sizes, tuple(axes), axis_types=(AxisType.Auto,) * len(sizes))


def sharding(mesh: Mesh | AbstractMesh, array: str) -> NamedSharding:
    """The sharding that `array` names on `mesh`: `sharding(mesh, "A[I_X, J]")`.

    Args:
        mesh: from `mesh`, `simulate.mesh` or `tpu.mesh`.
        array: the notation. The array's own name may be left out, and so may all dimensions: "[]" is a scalar.

    Raises:
        ValueError: for text that is not the notation, an axis that the mesh lacks, or one that is used twice.
    """
    return _cut(mesh, _read(mesh, array))


def spec(mesh: Mesh | AbstractMesh | None, array: str, dtype: object = "bf16", **sizes: int) -> jax.ShapeDtypeStruct:
    """An array without values, to compile for: `spec(mesh, "A[I_X, J]", "bf16", I=512, J=384)`.

    Args:
        mesh: from `mesh`, `simulate.mesh` or `tpu.mesh`; None for one device.
        array: the notation.
        dtype: of the elements, by the library's name or JAX's.
        sizes: of each dimension, of the whole array.

    Raises:
        ValueError: for a size that is missing, left over, or no multiple of the devices that cut it.
    """
    dims = _read(mesh, array).dims
    if missing := [name for name in dims if name not in sizes]:
        raise ValueError(f"{array!r}: give a size for {', '.join(missing)}")
    if extra := [name for name in sizes if name not in dims]:
        raise ValueError(f"{array!r} has no dimension {', '.join(extra)}")
    shape = tuple(units.size(name, sizes[name]) for name in dims)
    where = None if mesh is None else _checked(mesh, array, shape)
    return jax.ShapeDtypeStruct(shape, _jax_dtype(dtype), sharding=where)  # type: ignore[no-untyped-call]


def product(arrays: Sequence[Sequence[str]], result: Sequence[str]) -> Callable[..., jax.Array]:
    """A function that multiplies arrays of named dimensions, and sums over those that the result lacks.

    Args:
        arrays: the dimensions of each, as `dimensions` gives them.
        result: the dimensions of the result, in order.
    """
    letters: dict[str, str] = {}
    for names in (*arrays, result):
        for name in names:
            letters.setdefault(name, string.ascii_letters[len(letters)])
    inside = ",".join("".join(letters[name] for name in names) for names in arrays)
    formula = f"{inside}->{''.join(letters[name] for name in result)}"
    return lambda *values: jnp.einsum(formula, *values)


def place(mesh: Mesh, array: str, value: Any) -> jax.Array:
    """`value` (a NumPy or JAX array) put onto the mesh as `array` says: `place(mesh, "A[I_X, J]", x)`.

    Raises:
        ValueError: for another number of dimensions than the notation's, a size that is no multiple of the devices that
            cut it, or a mesh without devices that can hold anything.
    """
    where = _checked(mesh, array, jnp.shape(value))
    refused = f"mesh={dict(mesh.shape)} has no devices that hold values; make one with simulate.mesh"
    if not isinstance(mesh, Mesh):
        raise ValueError(refused)
    try:
        placed: jax.Array = jax.device_put(value, where)
    except jax.errors.JaxRuntimeError as error:
        if "compile-only" in str(error):
            raise ValueError(refused) from None
        raise
    return placed


def _checked(mesh: Mesh | AbstractMesh, array: str, shape: tuple[int, ...]) -> NamedSharding:
    read = _read(mesh, array)
    if len(read.dims) != len(shape):
        raise ValueError(f"{array!r} has {len(read.dims)} dimensions, the array {len(shape)}: {shape}")
    read.local_shape(dict(zip(read.dims, shape, strict=True)), mesh.shape)  # divides, or says what padding costs
    return _cut(mesh, read)


def _cut(mesh: Mesh | AbstractMesh, array: Sharding) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in array.axes)))  # type: ignore[no-untyped-call]


def _read(mesh: Mesh | AbstractMesh | None, array: str) -> Sharding:
    read = Sharding.parse(array, {} if mesh is None else mesh.shape)
    if read.unreduced:
        raise ValueError(f"{array!r} holds partial sums, which no array can be given as; leave {{U_...}} out")
    return read


def _jax_dtype(dtype: object) -> Any:
    known: Any = dtype
    if isinstance(dtype, str):
        known = _JAX_NAMES.get(units.dtype_name(dtype), units.dtype_name(dtype))
    return jnp.dtype(known)
