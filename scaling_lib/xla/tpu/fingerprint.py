"""What a program is, independent of JAX's version: its arguments, layouts and the operations that cost something.

Two JAX versions trace one function to different text, wrap it differently and name the wrappers differently. What stays are
the matmuls, reductions, collectives, loops and layout constraints with their shapes, and which elementwise operations occur.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

_WRAPPERS = frozenset({
    "jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "custom_lin", "name",
})  # fmt: skip
_PLUMBING = frozenset({
    "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p",
    "stop_gradient", "select_n", "iota", "slice", "pad", "concatenate", "rev", "split", "pvary", "pcast", "mesh_cast",
    "reshard", "optimization_barrier", "symbolic_zeros", "empty", "one_minus_square",
})  # fmt: skip
"""Moves and casts that versions insert, fold and reorder freely, and a short form that JAX 0.12 has for 1 − x²."""

_HEAVY = (
    "dot_general", "ragged_dot", "conv_general", "reduce", "cum", "arg", "sort", "top_k", "gather", "scatter", "dynamic_",
    "psum", "pmax", "pmin", "all_", "ppermute", "pallas_call", "scan", "while", "cond", "shard_map", "sharding_constraint",
    "fft", "cholesky", "triangular_solve",
)  # fmt: skip
_SAME = {"psum_invariant": "psum", "psum2": "psum", "add_any": "add", "all_gather_invariant": "all_gather"}
_TELLING = (
    "dimension_numbers", "precision", "preferred_element_type", "axes", "axis_name", "axis", "perm", "length", "reverse",
    "unroll", "sharding", "in_specs", "out_specs", "split_axis", "concat_axis", "all_gather_dimension", "scatter_dimension",
)  # fmt: skip


def signature(
    name: str,
    slice: str,
    own: AbstractMesh,
    fn: Any,
    specs: tuple[Any, ...],
    out: Any,
    donate: tuple[int, ...],
    options: Mapping[str, Any],
    schedule: bool = False,
) -> dict[str, Any]:
    """Everything that decides what the compiler will make of a program, as JSON can hold it.

    Args:
        name: of the program.
        slice: the slice, as text.
        own: the axes of its mesh.
        fn: the function; it is traced.
        specs: its arguments on that mesh.
        out: the layout of its result on that mesh.
        donate: arguments it may take over.
        options: of the compiler.
        schedule: whether the scheduler's timetable is kept.
    """
    leaves = jax.tree.leaves(specs)
    arguments = [_array(leaf) + _layout(leaf.sharding) for leaf in leaves]
    with jax.sharding.use_abstract_mesh(own):
        jaxpr = jax.make_jaxpr(fn)(*specs)
    heavy = list(_operations(jaxpr))
    light = sorted({operation for operation in heavy if " " not in operation})
    first = jaxpr.eqns[0].params if hasattr(fn, "lower") and jaxpr.eqns else {}
    told = first.get("donated_invars", ())  # none where JAX takes a function apart
    given_up = [i for i, is_donated in enumerate(told) if is_donated]
    return {
        "name": name,
        "slice": slice,
        "axes": list(own.shape.items()),
        "specs": arguments,
        "paths": [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(specs)],
        "results": [_array(aval) for aval in jaxpr.out_avals],
        "out": [_layout(leaf) for leaf in jax.tree.leaves(out)],
        "donate": sorted(donate),
        **({"donated": given_up} if given_up else {}),  # what `jax.jit` was told
        "options": {option: str(value) for option, value in options.items()},
        "schedule": schedule,
        "operations": [operation for operation in heavy if " " in operation],
        "elementwise": light,
    }


def _operations(jaxpr: Any) -> Iterator[str]:
    """Operations of a traced function in order: heavy ones as a sentence with shapes, light ones as a word."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        kind = _SAME.get(equation.primitive.name, equation.primitive.name)
        if kind.startswith(_HEAVY):
            results = equation.outvars if kind != "pallas_call" else ()  # some versions count scratch space among them
            shapes = f"{' '.join(_array(v.aval) for v in equation.invars)} -> {' '.join(_array(v.aval) for v in results)}"
            told = [f"{part}={_plain(equation.params[part])}" for part in _TELLING if part in equation.params]
            yield " ".join([kind, shapes if kind not in ("scan", "while", "cond") else "", *told])
        elif kind not in _WRAPPERS | _PLUMBING:
            yield kind
        # JAX may fold a constraint on a result or argument into the jit around it
        for part in ("in_shardings", "out_shardings"):
            named = [_plain(given) if isinstance(given, NamedSharding) else "-" for given in equation.params.get(part, ())]
            if set(named) - {"-"}:
                yield f"{part} {' '.join(named)}"
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "eqns") or hasattr(getattr(inner, "jaxpr", None), "eqns"):
                    yield from _operations(inner)


def _array(aval: Any) -> str:
    return f"{aval.dtype.name}{list(aval.shape)}" if hasattr(aval, "dtype") else type(aval).__name__


def _layout(sharding: Any) -> str:
    kind = f" in {sharding.memory_kind}" if sharding.memory_kind == "pinned_host" else ""
    return _plain(sharding.spec) + kind


def _plain(value: Any) -> str:
    """A parameter as text that no version changes."""
    if isinstance(value, NamedSharding):
        return _plain(value.spec)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple | list | PartitionSpec):
        entries = [_plain(entry) for entry in value]
        while isinstance(value, PartitionSpec) and entries and entries[-1] == "None":
            entries.pop()  # P("X") and P("X", None) are one layout
        return f"({', '.join(entries)})"
    return str(getattr(value, "name", value)) if not isinstance(value, dict) else str(sorted(value))
