"""From a planned product to JAX and back: the plan as a program, the compiler's own program, and what sets two apart.

`planned` does each step of a plan by hand, inside `jax.shard_map`; `automatic` gives the compiler nothing but the shardings.
Compile either with `simulate.compile` or `tpu.compile`. Derived in chapters/03-sharding.md.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh

from scaling_lib import units
from scaling_lib.sharding import MatmulPlan, Product, Sharding, Step, parse_product
from scaling_lib.xla import arrays, layouts
from scaling_lib.xla.program import Collective, Program, groups, hlo

Function = Callable[[jax.Array, jax.Array], jax.Array]


def planned(plan: MatmulPlan, mesh: Mesh | AbstractMesh) -> Function:
    """A function `(a, b) -> c` that does the steps of `plan`, each on the device's own part.

    Args:
        plan: from `sharding.matmul_plan` or `sharding.cheapest`.
        mesh: with the axes of the plan. From `simulate.mesh` to run the function, from `arrays.mesh` to compile it for whatever
            devices its arguments are specified on.

    Returns:
        A function of whole arrays, of the shapes that the plan's sizes give its product, under `jax.jit`. Arguments may be
        cut in any way: those that are not cut as the product says are moved first.

    Raises:
        ValueError: for a mesh with other axes, or an operand or result with partial sums, which no JAX array can be given as.

    NB: `shard_map` runs without its check for copies that differ (`check_vma=False`), which refuses many right plans.
    """
    axes = dict(mesh.shape)
    if axes != dict(plan.mesh):
        raise ValueError(f"mesh has the axes {axes}, the plan {dict(plan.mesh)}; make a mesh of the plan's axes")
    a, b, c = (arrays.sharding(mesh, str(array)).spec for array in plan.product.arrays)
    multiply = _multiply(plan.product)

    def local(a: jax.Array, b: jax.Array) -> jax.Array:
        held = {"a": a, "b": b}
        for step in plan.steps:
            if step.kind == "matmul":
                held["c"] = multiply(held["a"], held["b"])
            else:
                held[step.array] = _run(step, held[step.array], axes)
        return held["c"]

    local.__name__ = "planned"
    on = mesh if isinstance(mesh, Mesh) else None  # the mesh that the compiler brings
    return jax.jit(jax.shard_map(local, mesh=on, in_specs=(a, b), out_specs=c, check_vma=False))


def automatic(product: str | Product, mesh: Mesh | AbstractMesh) -> Function:
    """A function `(a, b) -> c` that names shardings alone; the compiler decides which collectives there are.

    Args:
        product: the notation, or what `parse_product` made of it.
        mesh: with the axes that the product names. To run the function, place its arguments with `arrays.place`.

    Returns:
        A function of whole arrays under `jax.jit`. The shardings of the operands are those of its arguments, or of `specs`.

    Raises:
        ValueError: as `parse_product` does, and for a result with partial sums, which no JAX array can be given as.
    """
    product = _product(product, mesh)
    multiply = _multiply(product)

    def automatic(a: jax.Array, b: jax.Array) -> jax.Array:
        return multiply(a, b)

    # Asked for at the exit: a constraint on the matmul itself would keep the compiler from cutting its result in another way.
    return jax.jit(automatic, out_shardings=arrays.sharding(layouts.without_devices(mesh), str(product.c)))


def specs(
    product: str | Product, mesh: Mesh | AbstractMesh, dtype: object = "f32", **sizes: int
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Both operands without values, to compile for: `specs(product, mesh, "f32", I=12, J=15, K=14)`.

    Args:
        product: the notation, or what `parse_product` made of it.
        mesh: as in `planned`.
        dtype: of the elements. The CPU backend widens bf16, so that its bytes are right for float32 alone.
        sizes: of every dimension, of the whole arrays.

    Raises:
        ValueError: for a size that is missing, left over, or no multiple of the devices that cut it.
    """
    product = _product(product, mesh)
    if extra := [dim for dim in sizes if dim not in product.dims]:
        raise ValueError(f"sizes has {extra[0]!r}, which is no dimension of {product}")
    a, b = (
        arrays.spec(mesh, str(array), dtype, **{dim: sizes[dim] for dim in array.dims if dim in sizes})
        for array in (product.a, product.b)
    )
    return a, b


def differences(plan: MatmulPlan, program: Program, *, dtype: object = None) -> tuple[str, ...]:
    """How the collectives of a compiled program differ from the plan's; empty where they are exactly the same.

    Compared are kinds, mesh axes and bytes: of the larger array that a device holds before or after, in any order of time.
    The order of the axes counts too, but for an all-reduce, where it changes nothing. A permute has those axes along which
    something moves. All-reduces that the compiler has combined count one by one. A recorded program does not tell the order
    of axes, nor what is combined.

    Args:
        plan: of the same product.
        program: for a mesh with the plan's axes.
        dtype: of the program, where the plan is for another: its bytes are then those of this one. A plan for a TPU is in
            bf16, a program for simulated devices in float32.

    Raises:
        ValueError: for a program that does not fit, or one for other axes.
    """
    if dict(program.axes) != dict(plan.mesh):
        raise ValueError(f"program {program.name!r} is for the axes {dict(program.axes)}, the plan for {dict(plan.mesh)}")
    held = plan.matmul.out_bytes / math.prod(plan.matmul.after.local_shape(plan.sizes, plan.mesh))  # of an element
    scale = 1.0 if dtype is None else units.itemsize(dtype) / held
    wanted = Counter(_canonical(step.kind, _moved(step, plan.mesh), step.bytes * scale, program) for step in plan.collectives)
    found = Counter(one for collective in program.collectives for one in _found(collective, program))
    missing, extra = wanted - found, found - wanted
    return (
        *(f"only the plan has {one}" for one in sorted(missing.elements())),
        *(f"only the program has {one}" for one in sorted(extra.elements())),
    )


class _Seen(NamedTuple):
    """A collective as plan and program can both write it."""

    kind: str
    axes: tuple[str, ...]
    bytes: float

    def __str__(self) -> str:
        over = f" over {', '.join(self.axes)}" if self.axes else " over groups that are no whole axes"
        return f"{self.kind}{over}, {units.human(self.bytes, 'B')} ({self.bytes:,.0f} bytes)"


def _canonical(kind: str, axes: tuple[str, ...], array_bytes: float, program: Program) -> _Seen:
    unordered = program.recorded or kind in ("all-reduce", "permute")
    return _Seen(kind, tuple(sorted(axes)) if unordered else axes, array_bytes)


def _found(one: Collective, program: Program) -> list[_Seen]:
    """A collective of a program, as often as it runs; each part of a combined all-reduce by itself."""
    kind = "permute" if one.kind == "collective-permute" else one.kind
    axes, sizes = one.axes, [one.array_bytes]
    if not program.recorded and one.over == "ici":
        instruction = _instructions(program.text)[one.name]
        if one.kind == "all-reduce":
            sizes = [array.elements * one.array_bytes / one.elements for array in instruction.arrays]
        elif kind != "permute":
            axes = _ordered(groups.replica_groups(instruction, program.devices), axes, program.axes)
    return [_canonical(kind, axes, size, program) for size in sizes] * one.times


@lru_cache(maxsize=1)
def _instructions(text: str) -> dict[str, hlo.Instruction]:
    return {name: one for computation in hlo.parse(text).computations.values() for name, one in computation.instructions.items()}


def _ordered(joined: groups.Groups, axes: tuple[str, ...], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """`axes` in that order in which the members of each group count, the last one fastest; () where there is none."""
    names = list(mesh)
    stride = {axis: math.prod(mesh[name] for name in names[i + 1 :]) for i, axis in enumerate(names)}
    steps = {tuple(member - group[0] for member in group) for group in joined}
    for order in itertools.permutations(axes):
        places = itertools.product(*(range(mesh[axis]) for axis in order))
        if steps == {tuple(sum(i * stride[axis] for i, axis in zip(at, order, strict=True)) for at in places)}:
            return order
    return ()


def _product(product: str | Product, mesh: Mesh | AbstractMesh) -> Product:
    return parse_product(product, mesh.shape) if isinstance(product, str) else product


def _multiply(product: Product) -> Callable[..., jax.Array]:
    return arrays.product([product.a.dims, product.b.dims], product.c.dims)


def _run(step: Step, x: jax.Array, mesh: Mapping[str, int]) -> Any:
    """One step on the part of an array that a device holds."""
    (before,), after = step.before, step.after
    changed = list(enumerate(zip(before.axes, after.axes, strict=True)))
    lost = next((dim for dim, (old, new) in changed if len(new) < len(old)), 0)
    gained = next((dim for dim, (old, new) in changed if len(new) > len(old)), 0)
    lax: Any = jax.lax  # typed in part
    if step.kind == "all-gather":
        return lax.all_gather(x, step.axes, axis=lost, tiled=True)
    if step.kind == "reduce-scatter":
        return lax.psum_scatter(x, step.axes, scatter_dimension=gained, tiled=True)
    if step.kind == "all-reduce":
        return lax.psum(x, step.axes)
    if step.kind == "all-to-all":
        return lax.all_to_all(x, step.axes, split_axis=gained, concat_axis=lost, tiled=True)
    if step.kind == "permute":
        return lax.ppermute(x, step.axes, _pairs(before, after, step.axes, mesh))
    part = x.shape[gained] // math.prod(mesh[axis] for axis in step.axes)  # a slice
    return lax.dynamic_slice_in_dim(x, lax.axis_index(step.axes) * part, part, gained)


def _pairs(before: Sharding, after: Sharding, axes: tuple[str, ...], mesh: Mapping[str, int]) -> list[tuple[int, int]]:
    """Who sends its part to whom, devices counted along `axes`. Whoever already holds what it is to hold keeps it."""
    devices = [dict(zip(axes, at, strict=True)) for at in itertools.product(*(range(mesh[axis]) for axis in axes))]
    held, wanted = ([_part(array, at, mesh) for at in devices] for array in (before, after))
    pairs = [(i, i) for i in range(len(devices)) if held[i] == wanted[i]]
    moving = [i for i in range(len(devices)) if held[i] != wanted[i]]
    senders, takers = sorted(moving, key=held.__getitem__), sorted(moving, key=wanted.__getitem__)
    return pairs + list(zip(senders, takers, strict=True))


def _part(array: Sharding, at: Mapping[str, int], mesh: Mapping[str, int]) -> tuple[int, ...]:
    """Which part of each dimension the device at a place holds, as far as the axes of `at` tell."""
    part = []
    for axes in array.axes:
        number = 0
        for axis in axes:
            number = number * mesh[axis] + at.get(axis, 0)
        part.append(number)
    return tuple(part)


def _moved(step: Step, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of a step; of a permute those along which anything moves."""
    if step.kind != "permute":
        return step.axes
    pairs = _pairs(step.before[0], step.after, step.axes, mesh)
    return groups.moving(tuple(pairs), {axis: mesh[axis] for axis in step.axes})
