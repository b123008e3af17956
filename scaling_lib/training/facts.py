"""What the formulas of a step need to know of a model: plain numbers, from the exact counts of `scaling_lib.transformer`.

They depend on the model, the length of a sequence, and on few values of a plan (`Facts.of` names them). So a search makes them
once for each of those values, and prices many plans with them. Derived in chapters/05-training.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scaling_lib import units
from scaling_lib.training.either import Number
from scaling_lib.training.plan import Plan
from scaling_lib.transformer import (
    Matmul,
    Transformer,
    Weight,
    activation_bytes,
    logits_bytes,
    matmuls,
    reruns,
    train_flops,
    weights,
)

FORWARD_AND_BACKWARD = 3  # matmuls: one forward, two backward
KEEPS_LAYERS = ("none", "selective")  # policies under which nothing but attention's scores is made again
SPLIT_AXES = {"N", "F", "V"}  # dimensions that tensor parallelism cuts; key heads it cuts, or repeats where there are too few


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Numbers of one model; of one sequence where they grow with tokens, of one device where tensor or expert ways split them.

    Args:
        layers: L.
        expert_layers: layers with experts.
        matmul_flops: of the layers' weight matmuls, forward, backward and what runs again; not split.
        attention_flops: of scores and contexts, the same way.
        head_flops: of the head, forward and backward.
        model_flops: what MFU counts, forward and backward of all.
        backward_ratio: backward pass and what runs again, over the forward pass.
        layer_weights: numbers of all layers but experts that a device holds under `tensor`.
        expert_weights: numbers of experts that a device holds under `tensor` and `expert`.
        widest_weights: numbers of the largest matrix of a layer that a device holds; one of experts counts for all it has.
        first_weights: embedding, on the first stage.
        last_weights: last norm and head, on the last stage; without the matrix of a tied head.
        tied_weights: the matrix of a tied head, of which the last stage of a pipeline has a copy.
        kept_bytes: activations of all layers kept for the backward pass.
        working_bytes: what the backward pass of one layer has beside them for having run it again.
        head_bytes: inputs of last norm and head.
        logits_bytes: the logits in float32, and their gradient in the dtype of activations.
        elementwise_bytes: read and written by all that is no matmul, in all layers, forward, backward and again.
        stream_bytes: a token's width in the dtype of activations, times T: what tensor parallelism gathers.
        keys_bytes: keys and values of one layer.
        routed_bytes: what travels to the experts of all layers: D wide, `top_k` times for each token.
        gathers: all-gathers of `stream_bytes` over the tensor ways in all layers, forward and backward, each with its
            reduce-scatter. Without sequence parallelism such a pair is one all-reduce.
        again_gathers: all-gathers of inputs that are kept split and gathered once more in the backward pass.
        again_reduces: reduce-scatters, or all-reduces, that run again for remat.
        context_passes: times that keys and values, or their gradients, travel over the context ways.
        expert_passes: all-to-alls of a layer: to the experts and back, forward and backward, and again for remat.
    """

    layers: Number
    expert_layers: Number
    matmul_flops: Number
    attention_flops: Number
    head_flops: Number
    model_flops: Number
    backward_ratio: Number
    layer_weights: Number
    expert_weights: Number
    widest_weights: Number
    first_weights: Number
    last_weights: Number
    tied_weights: Number
    kept_bytes: Number
    working_bytes: Number
    head_bytes: Number
    logits_bytes: Number
    elementwise_bytes: Number
    stream_bytes: Number
    keys_bytes: Number
    routed_bytes: Number
    gathers: Number
    again_gathers: Number
    again_reduces: Number
    context_passes: Number
    expert_passes: Number

    @staticmethod
    def of(model: Transformer, plan: Plan, *, T: int, causal: bool) -> Facts:
        """The facts of a model under a plan, of which the arguments of `_facts` alone matter."""
        how = (plan.tensor, plan.expert, plan.sequence_parallel, plan.remat, plan.flash, plan.dropout, plan.activations)
        return _facts(model, T, causal, *how)


@lru_cache(maxsize=4096)
def _facts(
    model: Transformer, T: int, causal: bool,
    tensor: int, expert: int, sequence_parallel: bool, remat: str | tuple[str, ...], flash: bool, dropout: bool, dtype: str,
) -> Facts:  # fmt: skip
    item, split = units.itemsize(dtype), tensor if sequence_parallel else 1
    rows, times = matmuls(model, T=T, causal=causal), reruns(model, remat=remat, flash=flash)
    flops = train_flops(model, T=T, causal=causal, remat=remat, flash=flash)
    held = {w.name: _held(w, tensor, expert) for w in weights(model)}
    experts = sum(held[w.name] for w in weights(model) if w.part == "experts")
    first = sum(held[w.name] for w in weights(model) if w.part in ("embedding", "positions") or w.name.startswith("norms.emb"))
    last = sum(held[w.name] for w in weights(model) if w.part == "head" or w.name.startswith("norms.last"))

    def activations(policy: str | tuple[str, ...]) -> float:
        return activation_bytes(
            model, T=T, remat=policy, flash=flash, dropout=dropout, dtype=dtype,
            tensor_parallel=tensor, sequence_parallel=sequence_parallel,
        ).layers_bytes  # fmt: skip

    kept = activations(remat)
    routed = (model.experts.top_k if model.experts else 0) * len(model.expert_layers)
    shared = len(model.expert_layers) if model.experts and model.experts.n_shared else 0
    blocks = {"mlp.down": len(model.dense_layers), "experts.down": routed, "shared_experts.down": shared}
    if not model.parallel:  # else attention's share travels with that of the feed-forward block
        blocks["attention.out"] = model.L
    return Facts(
        layers=model.L,
        expert_layers=len(model.expert_layers),
        matmul_flops=_flops([row for row in rows if row.part not in ("scores", "context", "head")], times),
        attention_flops=_flops([row for row in rows if row.part in ("scores", "context")], times),
        head_flops=_flops([row for row in rows if row.part == "head"], times),
        model_flops=flops.model_flops,
        backward_ratio=(flops.hardware_flops - flops.forward.total) / flops.forward.total,
        layer_weights=sum(held.values()) - experts - first - last,
        expert_weights=experts,
        widest_weights=max(held[w.name] / len(w.layers) for w in weights(model) if w.layers),
        first_weights=first,
        last_weights=last,
        tied_weights=model.V * model.D / tensor if model.tied_embeddings else 0,
        kept_bytes=kept,
        working_bytes=max(0.0, activations("none") - kept) / model.L,
        head_bytes=2 * T * model.D * item / split,
        logits_bytes=logits_bytes(model, T=T) * (1 + item / units.itemsize("f32")) / tensor,
        elementwise_bytes=_elementwise(model, tensor, split) * T * item * (FORWARD_AND_BACKWARD + (remat not in KEEPS_LAYERS))
        + _softmax(model, T, flash, dropout) / tensor * T * item * (FORWARD_AND_BACKWARD + (remat != "none")),
        stream_bytes=T * model.D * item,
        keys_bytes=T * max(model.K / tensor, 1) * (model.H + model.v_dim) * item,
        routed_bytes=T * routed * model.D * item,
        gathers=2 * sum(blocks.values()),
        again_gathers=sum(blocks.values()),
        again_reduces=sum(count for name, count in blocks.items() if times.get(name)),
        context_passes=3 + (times.get("attention.context", 0) > 0),
        expert_passes=4 + 2 * (times.get("experts.up", 0) > 0),
    )


def _flops(rows: list[Matmul], times: dict[str, int]) -> int:
    return sum(row.flops * (FORWARD_AND_BACKWARD + times.get(row.name, 0)) for row in rows)


def _held(weight: Weight, tensor: int, expert: int) -> float:
    """Numbers of a weight, in all layers, that one device holds under tensor and expert parallelism."""
    numbers = weight.stored / (expert if weight.part == "experts" else 1)
    if SPLIT_AXES & set(weight.axes):
        return numbers / tensor
    if "K" in weight.axes:
        return numbers / min(tensor, weight.shape[weight.axes.index("K")])
    return numbers


def _elementwise(model: Transformer, tensor: int, split: int) -> float:
    """Numbers a token that the forward pass of all layers reads and writes outside of matmuls.

    Each of two blocks reads its result and the residual, and writes the sum and its norm: 4 D. The activation function reads
    what it works on and writes its result. Rotary positions read and write queries and keys.
    """
    inner, D, L = (3 if model.gated_mlp else 2), model.D, model.L
    moe = model.experts
    wide = model.F * len(model.dense_layers)
    if moe:
        wide += (moe.top_k * moe.d_ff + moe.shared_width) * len(model.expert_layers)
    return 8 * D * L / split + (inner * wide + 2 * (model.N + model.K) * model.H * L) / tensor


def _softmax(model: Transformer, T: int, flash: bool, dropout: bool) -> int:
    """Numbers a token that softmax, and dropout after it, read and write in all layers, of all pairs; none in a flash kernel."""
    return 0 if flash else (2 + 2 * dropout) * model.N * T * model.L
