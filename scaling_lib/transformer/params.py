"""Every weight of a model, and the parameter counts that follow: the one table from which all else is counted.

Derived in chapters/04-transformers.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

from scaling_lib.transformer.architecture import Transformer

Counting = Literal["all", "without_lookup", "matmul", "without_embeddings"]
COUNTINGS: tuple[Counting, ...] = ("all", "without_lookup", "matmul", "without_embeddings")
Role = Literal["matmul", "lookup", "bias", "norm"]
PARTS = ("embedding", "positions", "attention", "mlp", "experts", "shared_experts", "router", "norms", "head")


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One kind of weight array, with where it occurs.

    Args:
        name: its part and its own name, like "attention.query" or "experts.down".
        axes: a letter or word for each dimension, like ("D", "N", "H"): what a sharding rule names.
        shape: the size of each.
        role: "matmul" multiplies activations; "lookup" is indexed; "bias" is added; "norm" scales.
        inputs: how many leading dimensions a matmul contracts.
        layers: numbers of the layers that have it; None for what the whole model has once.
        copies: arrays a layer stores: E for experts, 0 for a tied head.
        used: arrays of a layer that one token goes through: `top_k` for experts.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    role: Role = "matmul"
    inputs: int = 1
    layers: tuple[int, ...] | None = None
    copies: int = 1
    used: int = 1

    @property
    def part(self) -> str:
        """The part of the model it belongs to, one of the fields of `Parameters`."""
        return self.name.partition(".")[0]

    @property
    def size(self) -> int:
        """Numbers in one array."""
        return math.prod(self.shape)

    @property
    def places(self) -> int:
        """How many layers have it; 1 for what the whole model has once."""
        return 1 if self.layers is None else len(self.layers)

    @property
    def stored(self) -> int:
        """Numbers the model stores."""
        return self.size * self.copies * self.places

    @property
    def passed(self) -> int:
        """Numbers that one token goes through; those of a tied head count, though they are stored as the embedding."""
        return self.size * self.used * self.places


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters by part. `mlp` is the dense feed-forward block; `head` is 0 where it is tied to the embedding."""

    embedding: int = 0
    positions: int = 0
    attention: int = 0
    mlp: int = 0
    experts: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """All that is stored."""
        return sum(getattr(self, part) for part in PARTS)


@lru_cache(maxsize=512)
def weights(model: Transformer) -> tuple[Weight, ...]:
    """Every kind of weight of the model, from the embedding to the head."""
    D, V = model.D, model.V
    rows = [Weight(name="embedding.table", axes=("V", "D"), shape=(V, D), role="lookup")]
    if model.learned_positions:
        rows.append(Weight(name="positions.table", axes=("position", "D"), shape=(model.learned_positions, D), role="lookup"))
    rows += _latent_attention(model) if model.latent else _attention(model)
    rows += _feed_forward(model)
    rows += _norms(model)
    rows.append(Weight(name="head.table", axes=("D", "V"), shape=(D, V), copies=int(not model.tied_embeddings)))
    if model.head_bias:
        rows.append(Weight(name="head.bias", axes=("V",), shape=(V,), role="bias"))
    return tuple(rows)


def parameters(model: Transformer) -> Parameters:
    """Parameters the model stores, by part and in total. 0 difference from what its framework counts.

    >>> parameters(model("Llama-3 8B")).total
    8030261248
    """
    counts = dict.fromkeys(PARTS, 0)
    for weight in weights(model):
        counts[weight.part] += weight.stored
    return Parameters(**counts)


def active_parameters(model: Transformer, counting: Counting) -> int:
    """Parameters that take part in one token's forward pass, under a named convention.

    Args:
        model: a dense model has no idle experts, and the conventions still differ.
        counting: what counts, as publications disagree:

            - "all": all but idle experts. A tied table counts once. `6 * tokens *` this is the rule of thumb for training.
            - "without_lookup": also without tables that are only looked up, of positions and of an untied embedding. What
              DeepSeek and gpt-oss publish. A tied table stays: it is the head's matrix.
            - "matmul": only what multiplies activations; norms, biases and lookups do not. `2 *` this is exactly the
              FLOPs of a token outside attention's scores.
            - "without_embeddings": neither embedding, nor positions, nor head: the layers and the last norm.

    Raises:
        ValueError: for another convention.
    """
    if counting not in COUNTINGS:
        raise ValueError(f"counting={counting!r} is unknown; give one of {', '.join(map(repr, COUNTINGS))}")
    rows = weights(model)
    if counting == "matmul":
        return sum(row.passed for row in rows if row.role == "matmul")
    if counting == "without_lookup":
        rows = tuple(row for row in rows if row.role != "lookup" or (row.part == "embedding" and model.tied_embeddings))
    if counting == "without_embeddings":
        rows = tuple(row for row in rows if row.part not in ("embedding", "positions", "head"))
    return sum(min(row.stored, row.passed) for row in rows)


def _attention(model: Transformer) -> list[Weight]:
    D, N, K, H = model.D, model.N, model.K, model.H
    layers = tuple(range(model.L))
    rows = [
        Weight(name="attention.query", axes=("D", "N", "H"), shape=(D, N, H), layers=layers),
        Weight(name="attention.key", axes=("D", "K", "H"), shape=(D, K, H), layers=layers),
        Weight(name="attention.value", axes=("D", "K", "H"), shape=(D, K, H), layers=layers),
        Weight(name="attention.out", axes=("N", "H", "D"), shape=(N, H, D), inputs=2, layers=layers),
    ]
    if model.qkv_bias:
        for name, heads in (("query", "N"), ("key", "K"), ("value", "K")):
            shape = (N if heads == "N" else K, H)
            rows.append(Weight(name=f"attention.{name}_bias", axes=(heads, "H"), shape=shape, role="bias", layers=layers))
    return rows + _attention_extras(model, layers)


def _latent_attention(model: Transformer) -> list[Weight]:
    mla = model.latent
    assert mla is not None
    D, N, R, C = model.D, model.N, mla.q_rank, mla.kv_rank
    layers = tuple(range(model.L))
    rows = []
    if R:
        rows.append(Weight(name="attention.query_down", axes=("D", "q_rank"), shape=(D, R), layers=layers))
    source = ("q_rank", R) if R else ("D", D)
    rows += [
        Weight(name="attention.query", axes=(source[0], "N", "H"), shape=(source[1], N, model.H), layers=layers),
        Weight(name="attention.latent", axes=("D", "kv_rank"), shape=(D, C), layers=layers),
        Weight(name="attention.rope_key", axes=("D", "rope"), shape=(D, mla.rope_dim), layers=layers),
        Weight(name="attention.key", axes=("kv_rank", "N", "nope"), shape=(C, N, mla.nope_dim), layers=layers),
        Weight(name="attention.value", axes=("kv_rank", "N", "v"), shape=(C, N, mla.v_dim), layers=layers),
        Weight(name="attention.out", axes=("N", "v", "D"), shape=(N, mla.v_dim, D), inputs=2, layers=layers),
    ]
    return rows + _attention_extras(model, layers)


def _attention_extras(model: Transformer, layers: tuple[int, ...]) -> list[Weight]:
    D, N, H = model.D, model.N, model.H
    rows = []
    if model.output_bias:
        rows.append(Weight(name="attention.out_bias", axes=("D",), shape=(D,), role="bias", layers=layers))
    if model.relative_positions:
        rows.append(Weight(name="attention.relative", axes=("D", "N", "H"), shape=(D, N, H), layers=layers))
    if model.sinks:
        rows.append(Weight(name="attention.sinks", axes=("N",), shape=(N,), role="bias", layers=layers))
    return rows


def _feed_forward(model: Transformer) -> list[Weight]:
    rows = []
    if model.dense_layers:
        rows += _block(model, "mlp", model.F, model.dense_layers)
    moe = model.experts
    if moe is not None:
        layers, D, E = model.expert_layers, model.D, moe.n_experts
        rows.append(Weight(name="router.table", axes=("D", "E"), shape=(D, E), layers=layers))
        if moe.router_bias:
            rows.append(Weight(name="router.bias", axes=("E",), shape=(E,), role="bias", layers=layers))
        rows += _block(model, "experts", moe.d_ff, layers, E, moe.top_k)
        if moe.n_shared:
            rows += _block(model, "shared_experts", moe.shared_width, layers)
        if moe.shared_gate:
            rows.append(Weight(name="router.shared_gate", axes=("D", "1"), shape=(D, 1), layers=layers))
    return rows


def _block(model: Transformer, part: str, width: int, layers: tuple[int, ...], copies: int = 1, used: int = 1) -> list[Weight]:
    """The matrices and biases of one feed-forward block, or of a layer's experts."""
    D, row = model.D, partial(Weight, layers=layers, copies=copies, used=used)
    first = ("gate", "up") if model.gated_mlp else ("up",)
    rows = [row(name=f"{part}.{name}", axes=("D", "F"), shape=(D, width)) for name in first]
    if model.mlp_bias:
        rows += [row(name=f"{weight.name}_bias", axes=("F",), shape=(width,), role="bias") for weight in rows]
    rows.append(row(name=f"{part}.down", axes=("F", "D"), shape=(width, D)))
    if model.mlp_bias:
        rows.append(row(name=f"{part}.down_bias", axes=("D",), shape=(D,), role="bias"))
    return rows


def _norms(model: Transformer) -> list[Weight]:
    if not model.norm_weights:
        return []
    layers, D = tuple(range(model.L)), model.D
    per_layer = {"pre": 2, "post": 2, "both": 4, "shared": 1}[model.norms]
    rows = [Weight(name=f"norms.layer_{i + 1}", axes=("D",), shape=(D,), role="norm", layers=layers) for i in range(per_layer)]
    rows.append(Weight(name="norms.last", axes=("D",), shape=(D,), role="norm"))
    if model.embedding_norm:
        rows.append(Weight(name="norms.embedding", axes=("D",), shape=(D,), role="norm"))
    if model.norm_bias:
        rows += [replace(row, name=f"{row.name}_bias", role="bias") for row in rows]
    inside: list[tuple[str, str, int]] = []  # attention, where norms are RMSNorms
    if model.qk_norm == "head":
        inside = [("query", "H", model.H), ("key", "H", model.H)]
    elif model.qk_norm == "width":
        inside = [("query", "NH", model.N * model.H), ("key", "KH", model.K * model.H)]
    elif model.latent:
        inside = [("q_rank", "q_rank", model.latent.q_rank), ("kv_rank", "kv_rank", model.latent.kv_rank)]
    rows += [
        Weight(name=f"norms.{name}", axes=(axis,), shape=(width,), role="norm", layers=layers)
        for name, axis, width in inside
        if width
    ]
    return rows
