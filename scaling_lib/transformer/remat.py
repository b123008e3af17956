"""Training FLOPs and activation memory under a remat policy: what is kept for the backward pass, and what is computed again.

Derived in chapters/04-transformers.md. Formulas of Korthikanti et al. 2022 (arXiv 2205.05198) are special cases; tests hold that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from scaling_lib import units
from scaling_lib.transformer.architecture import Transformer
from scaling_lib.transformer.blocks import texts
from scaling_lib.transformer.flops import Flops, Matmul, add_up, matmuls

Remat = Literal["none", "selective", "full"] | Collection[str]
POLICIES = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class TrainFlops:
    """FLOPs of one training step: what the model needs, and what the hardware does for want of memory."""

    forward: Flops
    backward: Flops
    recompute: Flops

    @property
    def model_flops(self) -> int:
        """Forward and backward: the numerator of MFU."""
        return self.forward.total + self.backward.total

    @property
    def hardware_flops(self) -> int:
        """Recomputation as well: the numerator of HFU."""
        return self.model_flops + self.recompute.total


def train_flops(
    model: Transformer,
    *,
    T: int,
    causal: bool,
    B: int = 1,
    remat: Remat = "none",
    flash: bool = False,
    embedding: Literal["lookup", "matmul"] = "lookup",
) -> TrainFlops:
    """FLOPs of one training step on B sequences of T tokens.

    The backward pass has two matmuls for each of the forward pass: one for each factor's gradient.

    Args:
        model: all its weights are trained.
        T: tokens in a sequence.
        causal: as of `forward_flops`.
        B: sequences.
        remat: what is kept, as of `activation_bytes`; the rest is computed again. "full" runs each layer a second time, all of
            it, as Megatron and PyTorch do: 8 FLOPs a parameter and token. Names, or none of them `()`, run again only what
            the backward pass needs, as JAX does: a layer's last matmul, whose result nothing needs, is left out.
        flash: attention in one kernel that keeps no scores; its backward pass computes them once more, whatever is kept.
        embedding: as of `forward_flops`.
    """
    rows = matmuls(model, T=T, causal=causal, B=B, embedding=embedding)
    times = reruns(model, remat=remat, flash=flash)
    forward = add_up(rows)
    again = tuple(row for row in rows for _ in range(times.get(row.name, 0)))
    return TrainFlops(forward=forward, backward=forward * 2, recompute=add_up(again))


def reruns(model: Transformer, *, remat: Remat = "none", flash: bool = False) -> dict[str, int]:
    """How often the backward pass runs each matmul of a layer once more, by its name; arguments as of `train_flops`."""
    kept = _kept(model, remat, flash)
    return {row.name: _reruns(model, row.name, remat, kept, flash) for row in _layer_matmuls(model)}


@dataclass(frozen=True, kw_only=True)
class Activation:
    """One tensor kept for the backward pass: `bytes` of it in each of `layers` layers, on one device."""

    name: str
    bytes: float
    layers: int


@dataclass(frozen=True, kw_only=True)
class ActivationBytes:
    """What the backward pass keeps, on one device: tensors of the layers, and those of the last norm and the head."""

    kept: tuple[Activation, ...]
    head_bytes: float

    @property
    def layers_bytes(self) -> float:
        """Of all layers together."""
        return sum(tensor.bytes * tensor.layers for tensor in self.kept)

    @property
    def total_bytes(self) -> float:
        """Layers and head."""
        return self.layers_bytes + self.head_bytes


def activation_bytes(
    model: Transformer,
    *,
    T: int,
    B: int = 1,
    remat: Remat = "none",
    flash: bool = False,
    dropout: bool = False,
    dtype: str = "bf16",
    scores_dtype: str | None = None,
    logits_dtype: str = "f32",
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
) -> ActivationBytes:
    """Bytes that the backward pass keeps of a forward pass over B sequences of T tokens.

    What a program really keeps, its compiler decides; this is what the backward pass of each operation needs, with nothing
    kept twice and cheap elementwise results computed again: Korthikanti's count, for any model.

    Args:
        model: experts keep their inputs and results for each of a token's `top_k`.
        T: tokens in a sequence.
        B: sequences on the device: a micro-batch, not the global one.
        remat: "none" keeps what every operation needs; "selective" leaves out scores and probabilities; "full" keeps each
            layer's input; names keep that and those tensors (`names(model)` has them all), as JAX's
            `save_only_these_names` does.
        flash: scores are never stored; a normalizer a head and token is, in float32.
        dropout: as GPT-2 and GPT-3 have it: masks of one byte after attention, after the feed-forward block and, with
            the dropped probabilities, after the softmax.
        dtype: of activations.
        scores_dtype: of attention's probabilities; `dtype` if not given.
        logits_dtype: of the logits, kept once.
        tensor_parallel: devices that share each layer's heads and hidden widths. What is D wide stays whole on each.
        sequence_parallel: what is D wide is split over those devices too, along the tokens.

    Raises:
        ValueError: for sizes out of range, unknown names or policies, and `tensor_parallel` that does not divide the heads.
    """
    T, B, ways = units.size("T", T), units.size("B", B), units.size("tensor_parallel", tensor_parallel)
    check_tensor_parallel(model, ways)
    sizes = _Sizes(units.itemsize(dtype), units.itemsize(scores_dtype or dtype), T, ways)
    whole = ways if sequence_parallel else 1
    wanted = _kept(model, remat, flash)
    kept = [
        Activation(name=name, bytes=B * T * each / (ways if split else whole), layers=layers)
        for name, each, split, layers in _tensors(model, sizes, flash, dropout)
        if wanted is None or name in wanted
    ]
    norm_bytes = 2 * B * T * model.D * sizes.item / whole
    return ActivationBytes(kept=tuple(kept), head_bytes=norm_bytes + logits_bytes(model, T=T, B=B, dtype=logits_dtype) / ways)


def logits_bytes(model: Transformer, *, T: int, B: int = 1, dtype: str = "f32") -> float:
    """Bytes of the logits of B sequences of T tokens: with large vocabularies often the largest array of a step."""
    return units.size("B", B) * units.size("T", T) * model.V * units.itemsize(dtype)


def check_tensor_parallel(model: Transformer, ways: int) -> None:
    """Refuse a number of devices over which heads cannot be shared: each has whole heads, and key heads may be repeated.

    Raises:
        ValueError: where `ways` does not divide the query heads, or key heads come out uneven.
    """
    if model.N % ways:
        raise ValueError(f"tensor_parallel={ways} does not divide n_heads={model.N}")
    if model.K % ways and ways % model.K:
        raise ValueError(f"tensor_parallel={ways} and n_kv_heads={model.K}: one must divide the other")


def names(model: Transformer) -> tuple[str, ...]:
    """The tensors of a layer that a remat policy can name, in the order in which they are computed."""
    found = [name for name, *_ in _tensors(model, _Sizes(2, 2, 1, 1), False, False)]
    return tuple(dict.fromkeys([*found, *(row.name for row in _layer_matmuls(model))]))


@dataclass(frozen=True)
class _Sizes:
    item: float
    scores_item: float
    T: int
    ways: int


def _layer_matmuls(model: Transformer) -> tuple[Matmul, ...]:
    return tuple(row for row in matmuls(model, T=1, causal=False) if row.part not in ("head", "embedding"))


def _kept(model: Transformer, remat: Remat, flash: bool) -> frozenset[str] | None:
    """Names of the tensors that a policy keeps; None for all that the backward pass needs."""
    if isinstance(remat, str):
        if remat not in POLICIES:
            raise ValueError(f"remat={remat!r} is unknown; give {', '.join(map(repr, POLICIES))}, or a collection of names")
        if remat == "none":
            return None
        if remat == "full":
            return frozenset(["input"])
        return frozenset(names(model)) - {"attention.scores"} | {"attention.normalizer", "attention.mask", "mlp.mask"}
    strange = sorted(set(texts("remat", remat)) - {*names(model), *(["attention.normalizer"] if flash else [])})
    if strange:
        raise ValueError(f"remat holds {strange[0]!r}, which {model} has not; {units.near(strange[0], names(model))}")
    flash_result = {"attention.normalizer"} if flash and "attention.context" in remat else set()
    return frozenset({"input", *remat, *flash_result})


def _reruns(model: Transformer, name: str, remat: Remat, kept: frozenset[str] | None, flash: bool) -> int:
    """How often a matmul runs again in the backward pass."""
    inside_kernel = int(bool(flash) and name == "attention.scores")
    if kept is None or name.startswith(("head.", "embedding.")):
        return inside_kernel
    if remat == "full":
        return 1 + inside_kernel
    if remat == "selective":
        return int(name in ("attention.scores", "attention.context") and not flash) + inside_kernel
    if inside_kernel:
        return 1 + int("attention.context" not in kept)
    made_into = "attention.key" if name == "attention.rope_key" else name
    return int(_needed(model, name) and made_into not in kept)


def _needed(model: Transformer, name: str) -> bool:
    """Whether the backward pass needs the result of a matmul. A norm needs its input; a residual sum needs nothing."""
    normed_after = model.norms in ("post", "both")
    if name == "mlp.down":
        return normed_after
    if name == "shared_experts.down":
        return normed_after or bool(model.experts and model.experts.shared_gate)
    if name == "attention.out":
        return normed_after or not model.parallel
    return True  # of experts.down too: the router's weights multiply it


def _tensors(model: Transformer, sizes: _Sizes, flash: bool, dropout: bool) -> Iterator[tuple[str, float, bool, int]]:
    """Name, bytes a token, whether tensor parallelism splits it, and in how many layers, of each tensor of a layer."""
    item, L, D, N, H = sizes.item, model.L, model.D, model.N, model.H
    key_heads = max(model.K, sizes.ways)  # fewer key heads than devices: each device has one, so they are repeated
    after = model.norms in ("post", "both")
    yield "input", D * item, False, L
    if model.norms != "post":
        yield "attention.norm", D * item, False, L
    if model.latent:
        mla = model.latent
        for name, rank in (("query_down", mla.q_rank), ("latent", mla.kv_rank)):
            if rank:
                yield f"attention.{name}", rank * item, False, L
                yield f"attention.{name}_norm", rank * item, False, L
    if model.qk_norm != "none":
        yield "attention.query_raw", N * H * item, True, L
        yield "attention.key_raw", key_heads * H * item, True, L
    yield "attention.query", N * H * item, True, L
    yield "attention.key", key_heads * H * item, True, L
    yield "attention.value", key_heads * model.v_dim * item, True, L
    if flash:
        yield "attention.normalizer", N * units.itemsize("f32"), True, L
    else:
        yield "attention.scores", N * sizes.T * (2 * sizes.scores_item + 1 if dropout else sizes.scores_item), True, L
    yield "attention.context", N * model.v_dim * item, True, L
    if dropout:
        yield "attention.mask", D, False, L
    if not model.parallel or after:
        yield "attention.out", D * item, False, L
    if model.norms == "both":
        yield "middle", D * item, False, L
    yield from _feed_forward(model, item, dropout)


def _feed_forward(model: Transformer, item: float, dropout: bool) -> Iterator[tuple[str, float, bool, int]]:
    D, L, after = model.D, model.L, model.norms in ("post", "both")
    inner = ("gate", "up", "hidden") if model.gated_mlp else ("up", "hidden")
    if model.norms in ("pre", "both"):
        yield "mlp.norm", D * item, False, L
    elif model.norms == "post":
        yield "middle", D * item, False, L
    if model.dense_layers:
        for name in inner:
            yield f"mlp.{name}", model.F * item, True, len(model.dense_layers)
    if moe := model.experts:
        layers = len(model.expert_layers)
        yield "router.table", moe.n_experts * item, False, layers
        yield "experts.input", moe.top_k * D * item, False, layers
        for name in inner:
            yield f"experts.{name}", moe.top_k * moe.d_ff * item, True, layers
        yield "experts.down", moe.top_k * D * item, False, layers
        for name in inner if moe.n_shared else ():
            yield f"shared_experts.{name}", moe.shared_width * item, True, layers
        if moe.shared_gate:
            yield "shared_experts.down", D * item, False, layers
            yield "router.shared_gate", item, False, layers
    if dropout:
        yield "mlp.mask", D, False, L
    if after:
        yield "mlp.down", D * item, False, L
