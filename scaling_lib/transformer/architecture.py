"""What a decoder-only Transformer looks like: every size that its counts depend on, checked.

Sizes have the names that configuration files use, and the course's letters beside them: `model.d_model` is `model.D`.
Derived in chapters/04-transformers.md; letters in chapters/appendix-notation.md.
"""

# ruff: noqa: N802 (the letters of the notation are properties)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from scaling_lib.transformer.blocks import Experts, Latent, check_counts, check_flags, check_sizes, texts

LayerKind = Literal["global", "local", "chunked"]
MAX_LAYERS = 10_000
"""No model has as many; counts go through the layers one by one."""
LAYER_KINDS = ("global", "local", "chunked")
Norms = Literal["pre", "post", "both", "shared"]


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A decoder-only Transformer; counts of it are functions, like `parameters(model)`.

    Args:
        n_layers: L.
        d_model: D, width of the residual stream.
        n_heads: N, query heads.
        vocab_size: entries of the vocabulary; see `vocab_multiple`.
        d_ff: F, hidden width of the dense feed-forward block; may be 0 where every layer has experts.
        n_kv_heads: K, key and value heads; N if not given (multi-head). 1 is multi-query, between is grouped-query.
        head_dim: H, width of a head; D / N if not given. Real models set it freely, so N * H need not be D.
        name: how tables call it.
        vocab_multiple: the tables are padded to a multiple of this many rows.
        tied_embeddings: whether the head uses the input table; it is then stored once, and is still a matmul.
        gated_mlp: three matrices (SwiGLU, GeGLU), or two.
        experts: for mixtures of experts; None where every layer is dense.
        latent: for MLA; `n_kv_heads` and `head_dim` are then not used.
        layer_pattern: kinds of attention, repeated over the layers: "global" sees all earlier tokens, "local" the last
            `window`, "chunked" those of its own block of `window` tokens.
        window: tokens that a local layer sees, itself included, or the length of a chunk.
        learned_positions: rows of a learned table of positions; 0 for rotary and other positions without weights.
        relative_positions: whether each layer has the D to N * H matrix of Transformer-XL's relative positions.
        qkv_bias: biases of the query, key and value projections.
        output_bias: bias of the attention's output projection.
        mlp_bias: biases of the feed-forward matrices, of experts too.
        head_bias: bias of the head.
        sinks: one learned logit a head in each layer (gpt-oss).
        embedding_norm: a norm after the embedding (BLOOM).
        norms: "pre" and "post" have two norms a layer, before or after the blocks; "both" has four (Gemma 2, 3);
            "shared" has one, for attention and feed-forward in parallel.
        parallel: attention and feed-forward both read the layer's input, instead of one after the other.
        norm_bias: LayerNorm with a bias; RMSNorm and bare LayerNorm have none.
        norm_weights: False for norms without weights (OLMo 1).
        qk_norm: norms of queries and keys: "head" has one weight vector of width H, "width" one of all heads' width.

    Raises:
        ValueError: for sizes out of range or that contradict each other; names the argument.

    Source of the catalog's models: `catalog/models.csv`, one a row.
    """

    n_layers: int
    d_model: int
    n_heads: int
    vocab_size: int
    d_ff: int = 0
    n_kv_heads: int | None = None
    head_dim: int | None = None
    name: str = ""
    vocab_multiple: int = 1
    tied_embeddings: bool = False
    gated_mlp: bool = True
    experts: Experts | None = None
    latent: Latent | None = None
    layer_pattern: tuple[LayerKind, ...] = ("global",)
    window: int | None = None
    learned_positions: int = 0
    relative_positions: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    sinks: bool = False
    embedding_norm: bool = False
    norms: Norms = "pre"
    parallel: bool = False
    norm_bias: bool = False
    norm_weights: bool = True
    qk_norm: Literal["none", "head", "width"] = "none"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name={self.name!r} is not text")
        check_flags(self)
        for part, kind in (("experts", Experts), ("latent", Latent)):
            if not isinstance(value := getattr(self, part), kind | None):
                raise ValueError(f"{part}={value!r}: give transformer.{kind.__name__}(...), or None")
        check_sizes(self, "n_layers", "d_model", "n_heads", "vocab_size", "vocab_multiple")
        check_counts(self, "d_ff", "learned_positions")
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        check_sizes(self, "n_kv_heads")
        if self.N % self.K:
            raise ValueError(f"n_kv_heads={self.K} does not divide n_heads={self.N}; a key head serves whole query heads")
        self._check_heads()
        self._check_layers()
        if self.norms not in ("pre", "post", "both", "shared"):
            raise ValueError(f"norms={self.norms!r} is unknown; give 'pre', 'post', 'both' or 'shared'")
        if self.norms == "shared" and not self.parallel:
            raise ValueError("norms='shared' needs parallel=True: two blocks in a row cannot share a norm")
        if self.qk_norm not in ("none", "head", "width"):
            raise ValueError(f"qk_norm={self.qk_norm!r} is unknown; give 'none', 'head' or 'width'")

    def _check_heads(self) -> None:
        if self.latent is not None:
            object.__setattr__(self, "head_dim", self.latent.nope_dim + self.latent.rope_dim)
            if self.n_kv_heads != self.n_heads:
                raise ValueError(f"n_kv_heads={self.K} with latent attention, which has a key for every one of n_heads={self.N}")
            if self.qkv_bias or self.relative_positions or self.qk_norm != "none":
                raise ValueError("latent attention has no qkv_bias, relative_positions or qk_norm here; leave them out")
        elif self.head_dim is None:
            if self.D % self.N:
                raise ValueError(f"n_heads={self.N} does not divide d_model={self.D}; give head_dim")
            object.__setattr__(self, "head_dim", self.D // self.N)
        check_sizes(self, "head_dim")

    def _check_layers(self) -> None:
        if self.L > MAX_LAYERS:
            raise ValueError(f"n_layers={self.L} is more than {MAX_LAYERS:,}; was a width meant?")
        object.__setattr__(self, "layer_pattern", texts("layer_pattern", self.layer_pattern))
        if not self.layer_pattern or not set(self.layer_pattern) <= set(LAYER_KINDS):
            raise ValueError(f"layer_pattern={self.layer_pattern!r}: give one or more of {', '.join(map(repr, LAYER_KINDS))}")
        if len(self.layer_pattern) > self.L:
            raise ValueError(f"layer_pattern names {len(self.layer_pattern)} layers, but n_layers={self.L}")
        if (self.window is None) != (set(self.layer_pattern) == {"global"}):
            raise ValueError(
                f"window={self.window} contradicts layer_pattern={self.layer_pattern!r}; only local and chunked have one"
            )
        if self.window is not None:
            check_sizes(self, "window")
        if self.experts is not None and self.experts.first_dense >= self.L:
            raise ValueError(f"experts.first_dense={self.experts.first_dense} leaves no layer of n_layers={self.L} with experts")
        if self.experts is not None and not self.expert_layers:
            raise ValueError(f"experts.every={self.experts.every} leaves no layer of n_layers={self.L} with experts")
        if self.dense_layers and not self.d_ff:
            raise ValueError(
                f"d_ff={self.d_ff}, but {len(self.dense_layers)} layers have a dense feed-forward block of that width"
            )

    @property
    def L(self) -> int:
        """Layers."""
        return self.n_layers

    @property
    def D(self) -> int:
        """Width of the residual stream."""
        return self.d_model

    @property
    def F(self) -> int:
        """Hidden width of the dense feed-forward block."""
        return self.d_ff

    @property
    def N(self) -> int:
        """Query heads."""
        return self.n_heads

    @property
    def K(self) -> int:
        """Key and value heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def G(self) -> int:
        """Query heads for each key head."""
        return self.N // self.K

    @property
    def H(self) -> int:
        """Width of a head's query and key."""
        return self.head_dim or self.d_model // self.n_heads

    @property
    def V(self) -> int:
        """Rows of the embedding table: the vocabulary, padded to `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def E(self) -> int:
        """Experts that a router chooses among; 0 for a dense model."""
        return self.experts.n_experts if self.experts else 0

    @property
    def v_dim(self) -> int:
        """Width of a head's value: H, but for latent attention."""
        return self.latent.v_dim if self.latent else self.H

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of attention of each layer, first to last."""
        repeats = -(-self.n_layers // len(self.layer_pattern))
        return (self.layer_pattern * repeats)[: self.n_layers]

    @cached_property
    def expert_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have experts, from 0."""
        moe = self.experts
        return tuple(i for i in range(self.n_layers) if moe and i >= moe.first_dense and (i + 1) % moe.every == 0)

    @cached_property
    def dense_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have a dense feed-forward block, from 0."""
        with_experts = set(self.expert_layers)
        return tuple(i for i in range(self.n_layers) if i not in with_experts)

    def but(self, **changes: Any) -> Transformer:
        """This model with some arguments changed, like `model.but(n_layers=2)`; a width derived from them stays as it was."""
        return replace(self, **changes)

    @staticmethod
    def from_hf_config(config: Mapping[str, Any]) -> Transformer:
        """The model that a Hugging Face `config.json`, read into a dictionary, describes.

        Raises:
            ValueError: for an architecture that the library does not know, and for a missing or contradictory key; names it.
        """
        from scaling_lib.transformer import configs  # builds this class

        return configs.read(config)

    def __str__(self) -> str:
        return self.name or f"Transformer of {self.L} layers, D = {self.D}"
