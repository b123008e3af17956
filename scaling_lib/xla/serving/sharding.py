"""A serving layout on a mesh: which mesh axes cut which dimension of weights, of activations, and of the cache.

The cache is cut over heads, then over sequences, then over the tokens of each. Derived in chapters/07-inference.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from scaling_lib.inference import Layout
from scaling_lib.transformer import Transformer
from scaling_lib.xla import arrays, llama

Tree = Any  # of arrays
COPIES = "copies"
"""The mesh axis of tensor ways beyond the key heads: they share query heads, and each has a copy of the cache."""
AXES = ("tensor", COPIES, "sequence", "kv_batch", "width", "data")
"""Mesh axes in order; a mesh has those with several ways."""


@dataclass(frozen=True)
class Cuts:
    """A layout as tables of rules.

    Args:
        axes: of the mesh.
        rules: for weights and activations.
        cache_rules: for the cache, and for all that attention works on.
    """

    axes: dict[str, int]
    rules: llama.Rules
    cache_rules: llama.Rules

    @property
    def mesh(self) -> AbstractMesh:
        """A mesh without devices, to compile for."""
        return arrays.mesh(**self.axes)

    def specs(self, mesh: Mesh | AbstractMesh, params: Tree, cache: Tree, batch: Tree) -> tuple[Tree, Tree, Tree]:
        """Shapes of weights, cache, and what a batch holds, cut over a mesh; arguments and errors as of `llama.specs`."""
        weights, given = (llama.specs(mesh, tree, self.rules) for tree in (params, batch))
        return weights, llama.specs(mesh, cache, self.cache_rules), given

    def place(self, mesh: Mesh, params: Tree, cache: Tree, batch: Tree) -> tuple[Tree, Tree, Tree]:
        """Weights, cache, and what a batch holds, put onto a mesh with devices; arguments and errors as of `specs`."""
        given = params, cache, batch
        where = jax.tree.map(lambda spec: spec.sharding, self.specs(mesh, *given))
        placed: tuple[Tree, Tree, Tree] = jax.device_put(given, where)
        return placed

    def memory(self, memory: llama.Memory = llama.static_memory) -> llama.Memory:
        """A memory of `llama.decode` whose work is cut by the cache's rules."""
        rules = self.cache_rules

        def attend(
            cache: Tree, layer: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array
        ) -> tuple[jax.Array, Tree]:
            query = llama.cut(query, "BTNH", rules)
            key, value = (llama.cut(new, "BTKH", rules) for new in (key, value))
            context, cache = memory(cache, layer, query, key, value, positions)
            cache = {name: llama.cut(held, llama.AXES[name], rules) for name, held in cache.items()}
            return llama.cut(context, "BTNH", rules), cache

        return attend


def cuts(layout: Layout, model: Transformer) -> Cuts:
    """The tables of a layout: as of `llama.RULES`, in order, and a mesh axis cuts an array once.

    Args:
        layout: as of `inference.decode_step`; on a mesh, "copies" are its tensor ways beyond the key heads.
        model: the model.

    Raises:
        ValueError: for experts, and for more ways than heads.
    """
    if layout.expert > 1:
        raise ValueError(f"expert={layout.expert} is not in xla.llama, which has no experts; give expert=1")
    if model.N % layout.split:
        raise ValueError(
            f"tensor · sequence · kv_batch = {layout.split} does not divide the {model.N} heads of {model}, "
            "and xla.llama cuts no head; give fewer ways, and the rest of the devices to data or width"
        )
    heads = math.gcd(layout.tensor, model.K)
    ways = layout.axes | {"tensor": heads, COPIES: layout.tensor // heads}
    axes = {axis: ways[axis] for axis in AXES if ways[axis] > 1} or {"tensor": 1}

    def those(*names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in axes)

    split = those("tensor", COPIES, "sequence", "kv_batch")
    of_keys = [split[:n] for n in range(len(split) + 1) if model.K % math.prod(axes[axis] for axis in split[:n]) == 0]
    shared = (*split, *those("data")) if layout.gathers else split
    rules = {"F": shared, "N": split, "K": of_keys[-1], "V": split, "B": those("data"), "D": those("width")}
    cache = {
        "K": those("tensor"), "N": those("tensor", COPIES), "B": those("data", "kv_batch", "width"), "S": those("sequence"),
    }  # fmt: skip
    return Cuts(axes, rules, cache)
