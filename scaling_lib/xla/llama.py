"""A compact Llama in plain JAX: the one model that every lab trains, serves, cuts over a mesh and compiles.

Its sizes come from a `Transformer`, so that formulas and the program speak of the same model. Weights are a dictionary; those
of the layers are stacked, and a loop goes over them. Every dimension has a letter of the course's notation, and one table of
rules says which mesh axes cut which letter: the same code runs on one device and on any mesh.
Derived in chapters/04-transformers.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, Literal

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from scaling_lib import transformer as tf
from scaling_lib.transformer import Transformer

Tree = Any  # of arrays
Rules = Mapping[str, str | tuple[str, ...]]
Remat = Literal["none"] | Collection[str] | Callable[..., Any]
Attention = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]

WEIGHTS = {
    "embedding": "VD",
    "attention_norm": "LD", "query": "LDNH", "key": "LDKH", "value": "LDKH", "out": "LNHD",
    "mlp_norm": "LD", "gate": "LDF", "up": "LDF", "down": "LFD",
    "norm": "D", "head": "DV",
}  # fmt: skip
"""The dimensions of every weight. Those with an L belong to the layers."""

AXES = WEIGHTS | {"keys": "LBSKH", "values": "LBSKH", "tokens": "BT", "targets": "BT", "lengths": "B", "positions": "B"}
"""The dimensions of every array by name: weights, the cache, and what a batch holds."""

RULES: Rules = {"B": "X", "N": "Y", "K": "Y", "F": "Y", "V": "Y", "D": "X"}
"""Which mesh axes cut which dimension: sequences and D over X (fully sharded data parallel), the rest over Y (tensor parallel).

Rules apply in order, and a mesh axis cuts an array once: in activations "BTD", B has taken X, and D stays whole. On a mesh
without X or without Y that half of the table does nothing. Another table is another dictionary: `{"B": "X"}` is data parallel.
"""

named: Any = jax.ad_checkpoint.checkpoint_name  # JAX is typed in part
lax: Any = jax.lax

NAMES = tf.names(Transformer(n_layers=1, d_model=2, n_heads=1, d_ff=1, vocab_size=1))
ROPE_BASE = 500_000.0  # of Llama 3: Grattafiori et al. 2024, table 3
NORM_EPSILON = 1e-5  # of Llama 3: its config.json


def init(model: Transformer, key: jax.Array, dtype: Any = jnp.float32) -> Tree:
    """Random weights: {"embedding": [V, D], "layers": {"query": [L, D, N, H], ...}, "norm": [D], "head": [D, V]}; see `WEIGHTS`.

    Matrices are normal with a variance of 1 / (numbers summed over), norms are 1. A model with tied embeddings has no "head".

    Raises:
        ValueError: for a model that has what this Llama lacks, such as experts; names it.
    """
    _check(model)
    weights: Tree = {"layers": {}}
    for (name, axes), one in zip(WEIGHTS.items(), jax.random.split(key, len(WEIGHTS)), strict=True):
        shape = tuple(getattr(model, axis) for axis in axes)
        summed = {"out": model.N * model.H, "down": model.F}.get(name, model.D)
        values = jnp.ones(shape, dtype) if "norm" in name else jax.random.normal(one, shape, dtype) * summed**-0.5
        (weights["layers"] if "L" in axes else weights)[name] = values
    if model.tied_embeddings:
        del weights["head"]
    return weights


def shapes(model: Transformer, dtype: Any = jnp.float32) -> Tree:
    """What `init` would make, as a tree of `jax.ShapeDtypeStruct`. Nothing is computed or stored, however large the model."""
    return jax.eval_shape(lambda key: init(model, key, dtype), jax.random.key(0))


def _check(model: Transformer) -> None:
    plain = Transformer(
        n_layers=model.L, d_model=model.D, n_heads=model.N, n_kv_heads=model.K, head_dim=model.H, d_ff=model.F or 1,
        vocab_size=model.vocab_size, vocab_multiple=model.vocab_multiple, tied_embeddings=model.tied_embeddings, name=model.name,
    )  # fmt: skip
    strange = [f"{f.name}={value!r}" for f in fields(model) if (value := getattr(model, f.name)) != getattr(plain, f.name)]
    if strange:
        raise ValueError(f"model={model} has {', '.join(strange)}; give one that has only what Llama 2 and 3 have")
    if model.H % 2:
        raise ValueError(f"model={model} has head_dim={model.H}, which is odd; rotary positions turn pairs of numbers")


def shardings(mesh: Mesh | AbstractMesh, tree: Tree, rules: Rules = RULES) -> Tree:
    """How the rules cut every array of a tree: of weights, gradients, an optimizer's state, a cache, or a batch.

    An array is known by the name under which it stands in a dictionary, see `AXES`; others, such as step counts, are replicated.
    `jax.device_put(tree, shardings(mesh, tree))` places values, and `out_shardings` of `jax.jit` makes them in place.

    Raises:
        ValueError: for a letter that is no dimension, a mesh axis that no rule names, and a size that does not divide.
    """
    if strange := set(rules) - set("".join(AXES.values())):
        raise ValueError(f"rules cut {min(strange)!r}, which is no dimension; see llama.AXES")
    if idle := [axis for axis in mesh.axis_names if not any(axis in _over(names) for names in rules.values())]:
        raise ValueError(f"mesh has the axis {idle[0]!r}, which no rule names; rules have {dict(rules)}")

    def cut(path: Any, leaf: Any) -> NamedSharding:
        name = next((str(key.key) for key in reversed(path) if isinstance(key, jax.tree_util.DictKey)), "")
        spec = layout(AXES.get(name, ""), mesh, rules)
        for letter, size, over in zip(AXES.get(name, ""), leaf.shape, spec, strict=True):
            axes = _over(over or ())  # JAX has one name in place of a tuple of one
            if size % (parts := math.prod(mesh.shape[axis] for axis in axes)):
                raise ValueError(f"{name}: {letter}={size} is no multiple of {'·'.join(axes)}={parts}; leave it out of the rules")
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(cut, tree)


def specs(mesh: Mesh | AbstractMesh, tree: Tree, rules: Rules = RULES) -> Tree:
    """A tree without values, cut by the rules: arguments for `simulate.compile` and `tpu.compile`. Raises as `shardings` does."""
    spec: Any = jax.ShapeDtypeStruct
    return jax.tree.map(lambda x, where: spec(x.shape, x.dtype, sharding=where), tree, shardings(mesh, tree, rules))


def _over(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def layout(axes: str, mesh: Mesh | AbstractMesh, rules: Rules) -> Any:
    """The `PartitionSpec` of an array whose dimensions have these letters."""
    free, found = list(mesh.axis_names), {}
    for letter, names in rules.items():
        if letter in axes:
            found[letter] = tuple(name for name in _over(names) if name in free)
            free = [name for name in free if name not in found[letter]]
    return PartitionSpec(*(found.get(letter) or None for letter in axes))  # type: ignore[no-untyped-call]


def _cut(x: jax.Array, axes: str, rules: Rules) -> jax.Array:
    """An activation, cut over the mesh in whose context the program runs or is compiled."""
    mesh = jax.sharding.get_abstract_mesh()
    return x if mesh.empty else lax.with_sharding_constraint(x, layout(axes, mesh, rules))


def _norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    """RMSNorm, in float32."""
    wide = x.astype(jnp.float32)
    scaled: jax.Array = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + NORM_EPSILON)
    return scaled.astype(x.dtype) * weight.astype(x.dtype)


def rope(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary positions: x[B, T, N, H] with each pair (i, i + H/2) turned by an angle that grows with positions[B, T]."""
    half = x.shape[-1] // 2
    angles = positions[..., None, None] * ROPE_BASE ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def dense_attention(query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array) -> jax.Array:
    """Causal attention that computes every score, masked ones too: query[B, T, N, H], key and value[B, S, K, H] -> [B, T, N, H].

    A query at `positions` [B, T], or [1, T] for all sequences, sees the keys at places up to its own.
    """
    (B, T, N, H), (_, S, K, _) = query.shape, key.shape
    grouped = query.reshape(B, T, K, N // K, H)
    scores = jnp.einsum("BTKGH,BSKH->BKGTS", grouped, key, preferred_element_type=jnp.float32) * H**-0.5
    seen = jnp.arange(S) <= positions[..., None]
    scores = named(jnp.where(seen[:, None, None], scores, -jnp.inf), "attention.scores")
    weights = jax.nn.softmax(scores).astype(value.dtype)
    context = jnp.einsum("BKGTS,BSKH->BTKGH", weights, value).reshape(B, T, N, H)
    found: jax.Array = named(context, "attention.context")
    return found


def _layer(
    x: jax.Array, weights: Tree, positions: jax.Array, cache: Tree, rules: Rules, attention: Attention
) -> tuple[jax.Array, Tree]:
    """x[B, T, D] after one layer, and the layer's keys and values: with a cache, all that it holds; without, the new ones."""
    w = {name: weight.astype(x.dtype) for name, weight in weights.items()}

    x = named(x, "input")
    h = named(_norm(x, w["attention_norm"]), "attention.norm")
    query = rope(_cut(jnp.einsum("BTD,DNH->BTNH", h, w["query"]), "BTNH", rules), positions)
    key = rope(_cut(jnp.einsum("BTD,DKH->BTKH", h, w["key"]), "BTKH", rules), positions)
    value = _cut(jnp.einsum("BTD,DKH->BTKH", h, w["value"]), "BTKH", rules)
    query, key, value = named(query, "attention.query"), named(key, "attention.key"), named(value, "attention.value")
    held = {"keys": key, "values": value}
    if cache is not None:
        at = jnp.arange(x.shape[0])[:, None], positions
        held = {name: cache[name].at[at].set(new.astype(cache[name].dtype)) for name, new in held.items()}
    context = attention(query, held["keys"].astype(x.dtype), held["values"].astype(x.dtype), positions)
    context = _cut(context, "BTNH", rules)
    x = _cut(x + named(jnp.einsum("BTNH,NHD->BTD", context, w["out"]), "attention.out"), "BTD", rules)

    h = named(_norm(x, w["mlp_norm"]), "mlp.norm")
    gate = named(_cut(jnp.einsum("BTD,DF->BTF", h, w["gate"]), "BTF", rules), "mlp.gate")
    up = named(_cut(jnp.einsum("BTD,DF->BTF", h, w["up"]), "BTF", rules), "mlp.up")
    hidden = named(jax.nn.silu(gate) * up, "mlp.hidden")
    x = _cut(x + named(jnp.einsum("BTF,FD->BTD", hidden, w["down"]), "mlp.down"), "BTD", rules)
    return x, held


def _embed(params: Tree, tokens: jax.Array, rules: Rules, dtype: Any) -> jax.Array:
    x = params["embedding"][tokens]
    return _cut(x.astype(dtype or x.dtype), "BTD", rules)


def _logits(params: Tree, x: jax.Array, rules: Rules) -> jax.Array:
    h = _norm(x, params["norm"])
    head = params["head"] if "head" in params else params["embedding"].T
    return _cut(jnp.einsum("BTD,DV->BTV", h, head.astype(h.dtype), preferred_element_type=jnp.float32), "BTV", rules)


def forward(
    params: Tree,
    tokens: jax.Array,
    *,
    rules: Rules = RULES,
    dtype: Any = None,
    remat: Remat = "none",
    unroll: int = 1,
    attention: Attention = dense_attention,
) -> jax.Array:
    """Logits [B, T, V], in float32, of tokens [B, T].

    Args:
        params: the weights, from `init`.
        tokens: whole numbers below V. JAX does not check them.
        rules: as in `RULES`, for activations. They apply inside `jax.set_mesh(mesh)`, and where a program is compiled for a
            mesh; elsewhere the compiler decides how activations are cut.
        dtype: of matmuls and activations, such as `jnp.bfloat16` on a TPU; that of the weights if not given.
        remat: what a layer keeps for the backward pass. "none" of it is computed again; some of `NAMES` keep those and the
            layer's input, so that `()` keeps least, and FLOPs are those of `transformer.train_flops` with the same names. Or
            a policy of `jax.checkpoint_policies`.
        unroll: layers in one turn of the loop.
        attention: what takes the place of `dense_attention`, such as `flash.attention()`. Remat policies know its result where
            it names it "attention.context".

    Raises:
        ValueError: for another `remat`.
    """
    how = {"dtype": dtype, "remat": remat, "unroll": unroll, "attention": attention}
    return _logits(params, _hidden(params, tokens, rules, **how), rules)


def _hidden(
    params: Tree, tokens: jax.Array, rules: Rules,
    dtype: Any = None, remat: Remat = "none", unroll: int = 1, attention: Attention = dense_attention,
) -> jax.Array:  # fmt: skip
    """What tokens come to after the last layer, [B, T, D]; arguments as of `forward`."""
    positions = jnp.arange(tokens.shape[1])[None]

    def layer(x: jax.Array, weights: Tree) -> tuple[jax.Array, None]:
        return _layer(x, weights, positions, None, rules, attention)[0], None

    if remat != "none":
        # A loop of its own keeps the second computation from being merged with the first.
        layer = jax.checkpoint(layer, policy=_policy(remat), prevent_cse=unroll > 1)
    x, _ = lax.scan(layer, _embed(params, tokens, rules, dtype), params["layers"], unroll=unroll)
    hidden: jax.Array = x
    return hidden


def _policy(remat: Remat) -> Any:
    if callable(remat):
        return remat
    if isinstance(remat, str) or not set(remat) <= set(NAMES):
        raise ValueError(f"remat={remat!r}: give 'none', a policy of jax.checkpoint_policies, or names of {', '.join(NAMES)}")
    return jax.checkpoint_policies.save_only_these_names(*remat)


def loss(params: Tree, batch: Tree, *, rules: Rules = RULES, loss_chunks: int = 1, **how: Any) -> jax.Array:
    """Mean cross-entropy, in nats a token, of a batch {"tokens": [B, T], "targets": [B, T]}.

    Args:
        params: the weights.
        batch: tokens, and for each the one that follows.
        rules: as of `forward`.
        loss_chunks: logits are made for so many parts of T, one after the other, and again in the backward pass.
        how: other arguments of `forward`.

    Raises:
        ValueError: for chunks that T does not divide into.
    """
    x, targets = _hidden(params, batch["tokens"], rules, **how), batch["targets"]
    if targets.shape[1] % loss_chunks:
        raise ValueError(f"loss_chunks={loss_chunks} does not divide T={targets.shape[1]}")

    @jax.checkpoint
    def chunk(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + _entropy(params, *part, rules), None

    def cut(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(x.shape[0], loss_chunks, -1, *x.shape[2:]), 1, 0)

    once = loss_chunks == 1
    total = _entropy(params, x, targets, rules) if once else lax.scan(chunk, jnp.zeros(()), (cut(x), cut(targets)))[0]
    mean: jax.Array = total / targets.size
    return mean


def _entropy(params: Tree, x: jax.Array, targets: jax.Array, rules: Rules) -> jax.Array:
    """Cross-entropy of all tokens together."""
    logits = _logits(params, x, rules)
    picked = jnp.arange(logits.shape[-1]) == targets[..., None]  # no lookup: V may be cut
    return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(logits, axis=-1, where=picked))


def optimizer(steps: int, peak: float = 3e-4) -> optax.GradientTransformation:
    """AdamW as Llama 2 was trained, with a learning rate that rises over a tenth of the steps and falls to a tenth of its peak.

    Source: Touvron et al. 2023 (arXiv 2307.09288), section 2.2. Its state has two numbers a parameter: see `state_bytes`.
    """
    rate = optax.warmup_cosine_decay_schedule(0, peak, warmup_steps=max(1, steps // 10), decay_steps=steps, end_value=peak / 10)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b1=0.9, b2=0.95, eps=1e-5, weight_decay=0.1))


def train_step(
    params: Tree, state: Tree, batch: Tree, *, optimizer: optax.GradientTransformation, **how: Any
) -> tuple[Tree, Tree, jax.Array]:
    """Weights and optimizer state after one step, and the loss before it; `how` as of `loss`.

    Bind the optimizer, and let the results take the place of the arguments:
    `jax.jit(partial(train_step, optimizer=optimizer), donate_argnums=(0, 1))`. State begins as `optimizer.init(params)`.
    """
    before, gradients = jax.value_and_grad(loss)(params, batch, **how)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, before


def empty_cache(model: Transformer, B: int, S: int, dtype: Any = jnp.float32) -> Tree:
    """A cache of S places for each of B sequences: {"keys": [L, B, S, K, H], "values": the same}."""
    shape = (model.L, B, S, model.K, model.H)
    return {"keys": jnp.zeros(shape, dtype), "values": jnp.zeros(shape, dtype)}


def prefill(
    params: Tree, tokens: jax.Array, lengths: jax.Array, *, S: int, rules: Rules = RULES, **how: Any
) -> tuple[jax.Array, Tree]:
    """Reads prompts: logits [B, V] after the last token of each, and a cache of S places.

    Args:
        params: the weights.
        tokens: [B, T], each prompt from place 0 on; what stands behind its end changes nothing.
        lengths: [B], of the prompts, at least 1.
        S: places in the cache.
        rules: as of `forward`.
        how: `dtype`, that of the cache too, and `attention`, as of `forward`.

    Raises:
        ValueError: for S below T.
    """
    T = tokens.shape[1]
    if T > S:
        raise ValueError(f"S={S} is below T={T}; the cache must hold the prompts")
    positions = jnp.arange(T)[None]
    x, held = _read(params, tokens, positions, None, rules, **how)
    last = jnp.take_along_axis(x, lengths[:, None, None] - 1, axis=1)
    places = [(0, 0), (0, 0), (0, S - T), (0, 0), (0, 0)]
    return _logits(params, last, rules)[:, 0], jax.tree.map(lambda new: jnp.pad(new, places), held)


def decode(
    params: Tree, cache: Tree, tokens: jax.Array, positions: jax.Array, *, rules: Rules = RULES, **how: Any
) -> tuple[jax.Array, Tree]:
    """Logits [B, T, V] of new tokens [B, T], and the cache with their keys and values in it.

    Args:
        params: the weights.
        cache: from `prefill` or `empty_cache`. Donate it, or there are two.
        tokens: what comes next in each sequence. T is 1 in plain decoding, and more where a long prompt is read in pieces.
        positions: [B], the place of the first of them. JAX drops what is written beyond the cache's end.
        rules: as of `forward`.
        how: `dtype` and `attention`, as of `forward`.

    NB: each layer's part of the cache is copied out of the whole and back. Real engines write the new places alone.
    """
    at = positions[:, None] + jnp.arange(tokens.shape[1])
    x, held = _read(params, tokens, at, cache, rules, **how)
    return _logits(params, x, rules), held


def _read(
    params: Tree, tokens: jax.Array, positions: jax.Array, cache: Tree, rules: Rules,
    dtype: Any = None, attention: Attention = dense_attention,
) -> tuple[jax.Array, Tree]:  # fmt: skip
    """What tokens come to after the last layer, and the keys and values of all layers."""

    def layer(x: jax.Array, both: tuple[Tree, Tree]) -> tuple[jax.Array, Tree]:
        return _layer(x, both[0], positions, both[1], rules, attention)

    read: tuple[jax.Array, Tree] = lax.scan(layer, _embed(params, tokens, rules, dtype), (params["layers"], cache))
    return read
