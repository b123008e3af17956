"""What the formulas of a forward pass need to know of a model: plain numbers, from the exact counts of `scaling_lib.transformer`.

They depend on the model, on the layout and on lengths, not on the batch: one set of facts prices many batches. Derived in
chapters/07-inference.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from scaling_lib import units
from scaling_lib.inference.layout import Layout
from scaling_lib.training.facts import elementwise
from scaling_lib.transformer import Transformer, Weight, kv_cache_bytes, matmuls, parameters, weight_bytes, weights

LOGITS = "f32"  # what samplers work on
Reads = Literal["used", "all"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Numbers of one model on one device, of one of its own sequences where they grow with sequences.

    Args:
        T: new tokens of a sequence in this pass.
        layers: L.
        expert_layers: layers with experts.
        blocks: results that the tensor ways add up: those of attention and feed-forward, one where these run in parallel.
        weights_bytes: held, but experts.
        read_bytes: of these, read in each pass: all but what is only looked up.
        expert_bytes: of experts.
        routed: part of the experts that one token goes through, `top_k / E`; 0 without experts.
        math_flops: of the layers' weight matmuls.
        head_flops: of the head, for the last token.
        attention_flops: of scores and contexts.
        kv_bytes: of the cache that is reserved for a sequence.
        kv_read_bytes: of the cache that attention reads.
        elementwise_bytes: read and written by all that is no matmul. In decode that is so little that it stays on the chip.
        stream_bytes: of the residual stream.
        query_bytes: queries of one layer, all heads of all ways, and what is new of keys and values.
        context_bytes: results of attention of one layer, all heads.
        merge_bytes: the same with what is needed to merge parts: the largest score and the sum of each head.
        hidden_bytes: what goes into the second matrix of a feed-forward block, all ways.
        opened_bytes: what comes out of the first ones.
        routed_bytes: stream of a token, for each expert that it goes through.
        logits_bytes: in float32.
        working_bytes: of one layer at work.
    """

    T: int
    layers: int
    expert_layers: int
    blocks: int
    weights_bytes: float
    read_bytes: float
    expert_bytes: float
    routed: float
    math_flops: float
    head_flops: float
    attention_flops: float
    kv_bytes: float
    kv_read_bytes: float
    elementwise_bytes: float
    stream_bytes: float
    query_bytes: float
    context_bytes: float
    merge_bytes: float
    hidden_bytes: float
    opened_bytes: float
    routed_bytes: float
    logits_bytes: float
    working_bytes: float

    @staticmethod
    def of(
        model: Transformer, layout: Layout, *, T: int, S: int, cache: int, reads: Reads = "used", decode: bool = True,
        causal: bool = True,
    ) -> Facts:  # fmt: skip
        """The facts of a pass over T new tokens of sequences of S, with room for `cache` tokens each.

        Attention reads what is "used" of the cache, or "all" that is reserved. In decode, latent attention scores against the
        latents; in prefill it expands them.
        """
        return _facts(model, replace(layout, placement=None), T, S, cache, reads, decode, causal)


@lru_cache(maxsize=8192)
def _facts(model: Transformer, layout: Layout, T: int, S: int, cache: int, reads: Reads, decode: bool, causal: bool) -> Facts:
    a = units.itemsize(layout.activations)
    absorbed = model.latent is not None and decode
    held, read, experts = _held(model, layout)
    flops = {"math": 0.0, "head": 0.0, "attention": 0.0}
    ways = {w.name: _ways(w, model, layout) / _sharers(w, layout) for w in weights(model)}
    for row in matmuls(model, T=T, S=S, causal=causal, head="last", absorbed=absorbed):
        if row.part in ("scores", "context"):
            flops["attention"] += row.flops / (layout.tensor * layout.sequence)
        else:
            flops["head" if row.part == "head" else "math"] += row.flops / ways[row.name]
    query, value = model.H, model.v_dim
    if absorbed and model.latent:
        query, value = model.latent.kv_rank + model.latent.rope_dim, model.latent.kv_rank
    new = (model.latent.kv_rank + model.latent.rope_dim) if model.latent else model.K * (model.H + model.v_dim)
    moe, wide = model.experts, max(model.F * bool(model.dense_layers), _expert_width(model))
    inner = 2 if model.gated_mlp else 1
    split = layout.split
    qkv, hidden = (model.N * query + new) / split, inner * wide / split
    return Facts(
        T=T,
        layers=model.L,
        expert_layers=len(model.expert_layers),
        blocks=model.L if model.parallel else 2 * model.L,
        weights_bytes=held,
        read_bytes=read,
        expert_bytes=experts,
        routed=moe.top_k / moe.n_experts if moe else 0.0,
        math_flops=flops["math"],
        head_flops=flops["head"],
        attention_flops=flops["attention"],
        kv_bytes=_cached(model, layout, cache),
        kv_read_bytes=_cached(model, layout, S if reads == "used" else cache),
        elementwise_bytes=0.0 if decode else elementwise(model, split, layout.width) * T * a,
        stream_bytes=T * model.D * a,
        query_bytes=T * (model.N * query + new) * a,
        context_bytes=T * model.N * value * a,
        merge_bytes=T * model.N * (value * a + 2 * units.itemsize("f32")),
        hidden_bytes=T * wide * a,
        opened_bytes=T * inner * wide * a,
        routed_bytes=T * model.D * a * (moe.top_k if moe else 0),
        logits_bytes=model.V * units.itemsize(LOGITS) / (split * layout.width),
        working_bytes=T * a * (2 * model.D / layout.width + max(qkv, hidden)),
    )


def cache_bytes(model: Transformer, *, tokens: int, kv: str, kv_scale: str | None, tensor: int = 1) -> float:
    """Bytes of the cache of one sequence with its scales, on each of `tensor` devices that share its heads."""
    whole = kv_cache_bytes(model, S=tokens, dtype=kv, tensor_parallel=1 if model.latent else tensor)
    if kv_scale is None:
        return whole
    scales, numbers = 2, model.H + model.v_dim
    if model.latent:
        scales, numbers = 1, model.latent.kv_rank + model.latent.rope_dim
    return whole * (1 + scales * units.itemsize(kv_scale) / (numbers * units.itemsize(kv)))


def _cached(model: Transformer, layout: Layout, tokens: int) -> float:
    """Bytes of the cache of one sequence on one device, which keeps its part of the tokens."""
    whole = cache_bytes(model, tokens=tokens, kv=layout.kv, kv_scale=layout.kv_scale, tensor=layout.tensor)
    return whole / layout.sequence


def _held(model: Transformer, layout: Layout) -> tuple[float, float, float]:
    """Bytes of weights on one device: all but experts, those of them that each pass reads, and experts."""
    stored, counts = weight_bytes(model, layout.weights, layout.quantization), parameters(model)
    held = read = experts = 0.0
    for weight in weights(model):
        part = "embedding" if weight.part == "head" and model.tied_embeddings else weight.part
        each = float(getattr(stored, part)) / getattr(counts, part) / _ways(weight, model, layout)
        if weight.part == "experts":
            experts += weight.stored * each
            continue
        held += weight.stored * each
        if weight.role != "lookup":
            read += weight.size * weight.places * each
    return held, read, experts


def _ways(weight: Weight, model: Transformer, layout: Layout) -> float:
    """Devices that share one copy of a weight; data ways have a copy each, but of what they share."""
    if weight.part == "experts":
        return layout.devices
    ways = layout.width if "D" in weight.axes else 1
    if "F" in weight.axes:
        return ways * layout.split * _sharers(weight, layout)
    if "K" in weight.axes and "N" not in weight.axes:
        return ways * min(layout.split, model.K)
    return ways * (layout.split if {"N", "V"} & set(weight.axes) else 1)


def _sharers(weight: Weight, layout: Layout) -> int:
    """Data ways that share a weight, and work on all sequences; the others have it each, for their own."""
    return layout.data if weight.part == "experts" or ("F" in weight.axes and layout.gathers) else 1


def _expert_width(model: Transformer) -> int:
    moe = model.experts
    return moe.top_k * moe.d_ff + moe.shared_width if moe else 0
