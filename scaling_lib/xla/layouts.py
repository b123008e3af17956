"""How the arrays of a program are laid out: moved from the mesh they were written for to another of the same axes."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec


def mesh_of(specs: Any, out: Any) -> Mesh | AbstractMesh | None:
    """The mesh that arguments and result name; None where they name none.

    Raises:
        ValueError: where they name meshes of different axes.
    """
    found = [sharding_of(leaf) for leaf in jax.tree.leaves((specs, out), is_leaf=_is_layout)]
    meshes = [sharding.mesh for sharding in found if sharding is not None]
    for other in meshes:
        if list(other.shape.items()) != list(meshes[0].shape.items()):
            raise ValueError(f"specs and out are over two meshes, {dict(meshes[0].shape)} and {dict(other.shape)}; use one")
    return meshes[0] if meshes else None


def without_devices(own: Mesh | AbstractMesh) -> AbstractMesh:
    """The axes of a mesh alone: enough to trace a program."""
    return own.abstract_mesh if isinstance(own, Mesh) else own


def in_context(own: Mesh | AbstractMesh, on: Mesh) -> AbstractContextManager[Any]:
    """Where a function may name mesh axes without a mesh: inside the mesh it was written for, which it may hold.

    Axes of kind `Explicit` are part of every array's type and must be those of the slice.
    """
    if jax.sharding.AxisType.Explicit in own.axis_types:
        return jax.set_mesh(on)
    return jax.sharding.use_abstract_mesh(without_devices(own))


def move_specs(specs: tuple[Any, ...], to: Mesh | AbstractMesh) -> tuple[Any, ...]:
    """Arguments on another mesh of the same axes, as trees of `jax.ShapeDtypeStruct`; unsharded ones are replicated.

    Raises:
        ValueError: for a leaf that is no array, or a dimension that its mesh axes do not divide.
    """
    return tuple(_move_spec(f"specs[{i}]", spec, to) for i, spec in enumerate(specs))


def _move_spec(name: str, tree: Any, to: Mesh | AbstractMesh) -> Any:
    def move(path: Any, leaf: Any) -> Any:
        called = name + jax.tree_util.keystr(path)
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ValueError(
                f"{called}={leaf!r} is no array and no jax.ShapeDtypeStruct; bind constants with functools.partial instead"
            )
        given = sharding_of(leaf)
        sharding = NamedSharding(to, PartitionSpec()) if given is None else _moved(given, to)  # type: ignore[no-untyped-call]
        _check_divides(called, leaf.shape, sharding)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]

    return jax.tree_util.tree_map_with_path(move, tree)


def move_out(tree: Any, to: Mesh | AbstractMesh) -> Any:
    """The layout of a result on another mesh of the same axes.

    Raises:
        ValueError: for an entry that is no `PartitionSpec`, `NamedSharding` or None, or an axis that the mesh lacks.
    """

    def move(layout: Any) -> NamedSharding:
        if isinstance(layout, NamedSharding):
            return _moved(layout, to)
        if not isinstance(layout, PartitionSpec):
            raise ValueError(f"out={layout!r} is no PartitionSpec and no NamedSharding")
        if lacking := {axis for entry in layout for axis in _axes(entry)} - set(to.shape):
            have = ", ".join(to.shape) or "none"
            raise ValueError(f"out={layout} has the axis {min(lacking)!r}; the mesh of the specs has: {have}")
        return NamedSharding(to, layout)

    return jax.tree.map(move, tree, is_leaf=_is_layout)


def sharding_of(leaf: Any) -> NamedSharding | None:
    """The named sharding that a leaf is or has."""
    found = leaf if isinstance(leaf, NamedSharding) else getattr(leaf, "sharding", None)
    return found if isinstance(found, NamedSharding) else None


def _is_layout(leaf: Any) -> bool:
    return isinstance(leaf, PartitionSpec | NamedSharding)


def _moved(sharding: NamedSharding, to: Mesh | AbstractMesh) -> NamedSharding:
    # The ordinary memory of a simulated device has another name than a TPU's: only host memory is asked for by name.
    kind = "pinned_host" if sharding.memory_kind == "pinned_host" else None
    return NamedSharding(to, sharding.spec, memory_kind=kind)


def _check_divides(name: str, shape: tuple[int, ...], sharding: NamedSharding) -> None:
    for i, (size, entry) in enumerate(zip(shape, sharding.spec, strict=False)):
        axes = _axes(entry)
        parts = math.prod(sharding.mesh.shape[axis] for axis in axes)
        if size % parts:
            over = " × ".join(f"{axis}={sharding.mesh.shape[axis]}" for axis in axes)
            would_do = sorted({max(1, size // parts) * parts, -(-size // parts) * parts})
            raise ValueError(
                f"{name} has the shape {tuple(shape)}: its dimension {i}, of size {size}, does not divide over {over}; "
                f"{' or '.join(map(str, would_do))} would do"
            )


def _axes(entry: Any) -> tuple[str, ...]:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)
