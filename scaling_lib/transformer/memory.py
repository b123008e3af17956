"""Bytes of a model at rest: weights, plain and quantized, the states of training, and the KV cache.

Derived in chapters/04-transformers.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.transformer.architecture import LayerKind, Transformer
from scaling_lib.transformer.blocks import texts
from scaling_lib.transformer.params import PARTS, Weight, weights

MATRICES = ("attention", "mlp", "experts", "shared_experts")


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Weights in few bits, with a scale for each group of them, as files and engines store them.

    Args:
        bits: of one weight.
        group: weights along the contracted dimension that share a scale; None for all of them, one scale an output.
        columns: outputs that share a scale as well: 128 with `group=128` for DeepSeek's blocks.
        scale_dtype: of the scales.
        zero_dtype: of the zero points, one beside each scale; None for symmetric quantization.
        scale_group: scales that share a float32 scale of their own (double quantization); None for none.
        parts: parts of the model that are quantized. Embedding and head rarely are; norms, biases and the router never.

    Raises:
        ValueError: for figures out of range and unknown parts.
    """

    bits: int
    group: int | None = 128
    columns: int = 1
    scale_dtype: str = "f16"
    zero_dtype: str | None = None
    scale_group: int | None = None
    parts: Collection[str] = MATRICES

    def __post_init__(self) -> None:
        for name in ("bits", "group", "columns", "scale_group"):
            if getattr(self, name) is not None:
                units.size(name, getattr(self, name))
        units.itemsize(self.scale_dtype)
        if self.zero_dtype is not None:
            units.itemsize(self.zero_dtype)
        parts = (self.parts,) if isinstance(self.parts, str) else texts("parts", self.parts)
        object.__setattr__(self, "parts", frozenset(parts))
        strange = sorted(set(self.parts) - {*MATRICES, "embedding", "head"})
        if strange:
            raise ValueError(f"parts holds {strange[0]!r}; {units.near(strange[0], [*MATRICES, 'embedding', 'head'])}")

    @property
    def bits_per_weight(self) -> float:
        """Of whole groups, scales and zero points included: 4.25 for 4 bits in groups of 128 with 16-bit scale and zero."""
        if self.group is None:
            raise ValueError("group=None: bits a weight depend on the matrix; use weight_bytes")
        return self.bits + 8 * self._group_bytes() / (self.group * self.columns)

    def bytes_of(self, rows: int, columns: int) -> float:
        """Bytes of a matrix with this many contracted rows; groups that the sizes do not fill have a scale all the same."""
        groups = -(-rows // (self.group or rows)) * -(-columns // self.columns)
        return rows * columns * self.bits / 8 + groups * self._group_bytes()

    def _group_bytes(self) -> float:
        zero = 0 if self.zero_dtype is None else units.itemsize(self.zero_dtype)
        again = 0 if self.scale_group is None else units.itemsize("f32") / self.scale_group
        return units.itemsize(self.scale_dtype) + zero + again


@dataclass(frozen=True, kw_only=True)
class WeightBytes:
    """Bytes of the weights by part, as of `Parameters`."""

    embedding: float = 0
    positions: float = 0
    attention: float = 0
    mlp: float = 0
    experts: float = 0
    shared_experts: float = 0
    router: float = 0
    norms: float = 0
    head: float = 0

    @property
    def total(self) -> float:
        """All parts together."""
        return sum(float(getattr(self, part)) for part in PARTS)


def weight_bytes(model: Transformer, dtype: str = "bf16", quantization: Quantization | None = None) -> WeightBytes:
    """Bytes of all weights at rest, by part.

    Args:
        model: every expert is stored, used or not.
        dtype: of what is not quantized.
        quantization: of the rest; None for nothing. A tied table that either part names is quantized once.

    Raises:
        ValueError: for a dtype without a size, and a quantization that is none.
    """
    item = units.itemsize(dtype)
    if not isinstance(quantization, Quantization | None):
        raise ValueError(f"quantization={quantization!r}: give transformer.Quantization(...), or None")
    quantized = set() if quantization is None else set(quantization.parts)
    if model.tied_embeddings and "head" in quantized:
        quantized.add("embedding")
    counts: dict[str, float] = dict.fromkeys(PARTS, 0)
    for weight in weights(model):
        if quantization and weight.part in quantized and weight.role in ("matmul", "lookup"):
            counts[weight.part] += weight.copies * weight.places * _quantized(weight, quantization)
        else:
            counts[weight.part] += weight.stored * item
    return WeightBytes(**counts)


def _quantized(weight: Weight, quantization: Quantization) -> float:
    rows = 1
    for size in weight.shape[: weight.inputs]:
        rows *= size
    if weight.role == "lookup":  # of a table, the vector of a token is a row of groups
        return quantization.bytes_of(weight.shape[1], weight.shape[0])
    return quantization.bytes_of(rows, weight.size // rows)


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes of what a training run keeps of its parameters between steps, and of their gradients."""

    weights: float
    gradients: float
    master: float
    moments: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.master + self.moments

    @property
    def optimizer(self) -> float:
        """What sharded optimizers (ZeRO-1) split: the master copy and the moments."""
        return self.master + self.moments


def state_bytes(
    parameters: float,
    *,
    weights: str = "bf16",
    gradients: str = "bf16",
    master: str | None = "f32",
    moments: str = "f32",
) -> StateBytes:
    """Bytes of model states under Adam: 16 a parameter in mixed precision, of all devices together.

    Args:
        parameters: trained ones, `parameters(model).total`; for a share of a device, that share.
        weights: what the forward pass reads.
        gradients: "f32" where micro-batches are added up.
        master: the copy that the optimizer updates; None where it updates the weights themselves.
        moments: both of Adam's.
    """
    count = units.number("parameters", parameters, minimum=0)
    return StateBytes(
        weights=count * units.itemsize(weights),
        gradients=count * units.itemsize(gradients),
        master=0 if master is None else count * units.itemsize(master),
        moments=2 * count * units.itemsize(moments),
    )


def kv_cache_bytes(
    model: Transformer,
    *,
    S: int,
    B: int = 1,
    dtype: str = "bf16",
    tensor_parallel: int = 1,
    expanded: bool = False,
    layers: Collection[int] | None = None,
) -> float:
    """Bytes of the KV cache of B sequences of S tokens each, on one device. With S = 1, bytes per token while no window is full.

    Args:
        model: local and chunked layers keep their window's tokens at most.
        S: tokens of a sequence so far.
        B: sequences.
        dtype: of keys and values; scales of a quantized cache are left out.
        tensor_parallel: devices that share the key heads; with more devices than heads, each keeps one. Latents of MLA have no
            heads, and every device keeps all of them.
        expanded: for MLA only: the cache of an engine that keeps every head's keys and values instead of the latent.
        layers: numbers of the layers that count, from 0, as of a pipeline stage; all if not given.

    Raises:
        ValueError: for sizes out of range, layers that the model has not, and devices that do not divide the key heads.
    """
    S, B, ways = units.size("S", S), units.size("B", B), units.size("tensor_parallel", tensor_parallel)
    if expanded and not model.latent:
        raise ValueError(f"expanded=True, but {model} has no latent attention")
    chosen = range(model.L) if layers is None else layers
    if not isinstance(chosen, Collection) or any(type(i) is not int or not 0 <= i < model.L for i in chosen):
        raise ValueError(f"layers={layers!r}: {model} has layers 0 to {model.L - 1}")
    tokens = sum(_cached_tokens(model.layer_kinds[i], S, model.window) for i in set(chosen))
    return B * tokens * _cached_width(model, ways, expanded) * units.itemsize(dtype)


def _cached_tokens(kind: LayerKind, S: int, window: int | None) -> int:
    return S if kind == "global" or window is None else min(S, window)


def _cached_width(model: Transformer, ways: int, expanded: bool) -> int:
    """Numbers that one layer keeps of a token on one device."""
    if model.latent and not expanded:
        return model.latent.kv_rank + model.latent.rope_dim
    if model.K % ways and ways % model.K:
        raise ValueError(f"tensor_parallel={ways} and n_kv_heads={model.K}: one must divide the other")
    return max(model.K // ways, 1) * (model.H + model.v_dim)
