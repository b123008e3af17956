"""One Transformer layer, cut in JAX's three ways: by the compiler alone, in the types of arrays, and by hand.

Mesh axis X cuts the sequences of a batch, Y the heads and the hidden columns. In each way the layer is `blocks.layer`, and all
three give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from scaling_lib.transformer import Transformer
from scaling_lib.xla import llama
from scaling_lib.xla.training import blocks

Tree = Any  # of arrays
Function = Callable[[Tree, jax.Array], jax.Array]
lax: Any = jax.lax  # JAX is typed in part
typeof: Any = jax.typeof

RULES: llama.Rules = {"B": "X", "N": "Y", "K": "Y", "F": "Y"}
"""Which mesh axis cuts which dimension."""


def automatic(mesh: Mesh | AbstractMesh) -> Function:
    """(weights, x) -> x, of which the compiler learns the arguments' shardings and the result's, and finds the rest.

    Args:
        mesh: axes X and Y of kind `Auto`.
    """
    where = NamedSharding(mesh, llama.layout("BTD", mesh, RULES))

    def automatic(weights: Tree, x: jax.Array) -> jax.Array:
        found: jax.Array = lax.with_sharding_constraint(blocks.layer(weights, x), where)
        return found

    return jax.jit(automatic)


def explicit(mesh: Mesh | AbstractMesh) -> Function:
    """(weights, x) -> x, where every array's type has its sharding, and sums over a cut dimension say where they go.

    Args:
        mesh: axes X and Y of kind `Explicit`, from `in_types`.
    """
    spec = llama.layout("BTD", mesh, RULES)

    def explicit(weights: Tree, x: jax.Array) -> jax.Array:
        where = NamedSharding(typeof(x).sharding.mesh, spec)  # the mesh it runs on, or is compiled for
        attention, mlp = (partial(block, out=where) for block in (blocks.attention, blocks.mlp))
        return blocks.layer(weights, x, attention=attention, mlp=mlp)

    return jax.jit(explicit)


def manual(mesh: Mesh | AbstractMesh) -> Function:
    """(weights, x) -> x, on each device's own part, with two all-reduces that are written down.

    Args:
        mesh: axes X and Y of kind `Auto`.
    """
    stream = llama.layout("BTD", mesh, RULES)
    cuts = {name: llama.layout(axes, mesh, RULES) for name, axes in _weights().items()}

    def manual(weights: Tree, x: jax.Array) -> jax.Array:
        return blocks.layer(weights, x, leave=partial(lax.psum, axis_name="Y"))

    return jax.jit(jax.shard_map(manual, mesh=mesh, in_specs=(cuts, stream), out_specs=stream))


def in_types(mesh: Mesh | AbstractMesh) -> Any:
    """The same mesh with axes of kind `Explicit`."""
    kinds = (AxisType.Explicit,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)


def specs(mesh: Mesh | AbstractMesh, model: Transformer, *, B: int, T: int, dtype: Any = jnp.float32) -> tuple[Tree, Any]:
    """Weights of one layer and its input x[B, T, D], without values, to compile for.

    Args:
        mesh: axes X and Y of any kind; the shardings are over it.
        model: its layers' sizes. Y divides N, K and F.
        B: sequences, which X divides.
        T: tokens of each.
        dtype: of all.
    """

    def spec(axes: str) -> Any:
        shape = tuple({"B": B, "T": T}.get(axis) or getattr(model, axis) for axis in axes)
        make: Any = jax.ShapeDtypeStruct
        return make(shape, dtype, sharding=NamedSharding(mesh, llama.layout(axes, mesh, RULES)))

    return {name: spec(axes) for name, axes in _weights().items()}, spec("BTD")


def _weights() -> dict[str, str]:
    """The weights of a layer, and their dimensions."""
    return {name: "".join(axes).replace("L", "") for name, axes in llama.WEIGHTS.items() if "L" in axes}
