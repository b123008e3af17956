"""What one device holds during a training step, part by part.

The formulas take numbers or arrays; see docs/adr/0012. Derived in chapters/05-training.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from scaling_lib import units
from scaling_lib.training import pipeline as pipelines
from scaling_lib.training.either import Number, ceil_div, maximum
from scaling_lib.training.facts import Facts
from scaling_lib.training.plan import Plan
from scaling_lib.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Ways:
    """The numbers of a plan, each a number or an array: what `Plan` has under the same names, and what follows from them.

    `sequences` are those of one micro-batch on one replica; `stage_layers` those of the largest stage. What a plan says in words
    is in `How`.
    """

    data: Number
    fsdp: Number
    zero: Number
    tensor: Number
    sequence_parallel: Number
    context: Number
    pipeline: Number
    virtual_stages: Number
    expert: Number
    microbatches: Number
    loss_chunks: Number
    sequences: Number
    stage_layers: Number

    @cached_property
    def shard(self) -> Number:
        """Devices over which dense weights are shared out."""
        return self.fsdp * self.context * self.expert

    @cached_property
    def expert_shard(self) -> Number:
        """Devices over which the weights of an expert are shared out."""
        return self.fsdp * self.context


@dataclass(frozen=True, kw_only=True)
class How:
    """What a plan says in words, and its dtypes as bytes a number: the same for all plans that are priced together.

    `experts` says whether the model has any.
    """

    experts: bool
    schedule: str
    context_by: str
    offload: tuple[str, ...]
    weights: float
    gradients: float
    master: float
    moments: float
    activations: float

    @staticmethod
    def of(plan: Plan, model: Transformer) -> How:
        """Those of a plan. Without a pipeline any schedule is 1F1B, which keeps one micro-batch at a time."""
        return How(
            experts=model.experts is not None,
            schedule=plan.schedule if plan.pipeline > 1 else "1f1b",
            context_by=plan.context_by,
            offload=plan.offload,
            weights=units.itemsize(plan.weights),
            gradients=units.itemsize(plan.gradients),
            master=0.0 if plan.master is None else units.itemsize(plan.master),
            moments=2 * units.itemsize(plan.moments),
            activations=units.itemsize(plan.activations),
        )

    @property
    def optimizer(self) -> float:
        """Bytes a weight of the optimizer's state."""
        return self.master + self.moments


def ways_of(plan: Plan, model: Transformer, batch: int) -> Ways:
    """The numbers of one plan with a batch that it divides."""
    return Ways(
        **{f.name: getattr(plan, f.name) for f in fields(Ways) if hasattr(plan, f.name)},
        sequences=batch // (plan.replicas * plan.microbatches),
        stage_layers=largest_stage(model.L, plan.pipeline, plan.virtual_stages),
    )


def largest_stage(layers: Number, pipeline: Number, virtual_stages: Number) -> Number:
    """Layers of the stage that has most, all its chunks together."""
    return ceil_div(layers, pipeline * virtual_stages) * virtual_stages


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device at the peak of a step, by part; numbers or arrays.

    Args:
        weights: kept between steps.
        gradients: of all layers of the stage.
        optimizer: master copy and moments.
        activations: kept for the backward pass, of all microbatches in flight, and of the layer that runs again.
        logits: and their gradient.
        buffers: what collectives work on: gathered weights of two layers (one in use, the next on its way) or of the largest
            table, gradients of a layer before they are scattered, gathered activations and keys.
    """

    weights: Number
    gradients: Number
    optimizer: Number
    activations: Number
    logits: Number
    buffers: Number

    @property
    def total(self) -> Number:
        """All parts together."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.buffers


def stage_memory(facts: Facts, ways: Ways, how: How, *, last: bool) -> Memory:
    """What a device of the first or the last stage holds. Without a pipeline the two are one, and hold the same."""
    w, alone = ways, ways.pipeline == 1
    share = w.stage_layers / facts.layers
    first_table = facts.first_weights * (alone if last else 1)
    last_table = facts.last_weights + facts.tied_weights * (1 - alone) if last else facts.last_weights * alone
    table = first_table + last_table
    dense, experts = facts.layer_weights * share + table, facts.expert_weights * share

    def kept(stage: int) -> Number:
        shared = w.zero >= stage
        of_experts = experts / _split(w.expert_shard, shared) if how.experts else 0.0
        return dense / _split(w.shard, shared) + of_experts

    # A micro-batch on this device
    part = w.sequences / w.context
    stage = w.pipeline - 1 if last else 0 * w.pipeline
    in_flight = pipelines.in_flight(how.schedule, stage, w.pipeline, w.microbatches, w.virtual_stages)
    layers_kept = 2.0 / facts.layers if "activations" in how.offload else share * in_flight
    has_head = 1 if last else alone
    activations = (facts.kept_bytes * layers_kept + facts.working_bytes + facts.head_bytes * has_head) * part
    return Memory(
        weights=kept(3) * how.weights,
        gradients=kept(2) * how.gradients,
        optimizer=0.0 * w.fsdp if "optimizer" in how.offload else kept(1) * how.optimizer,
        activations=activations,
        logits=facts.logits_bytes * part / w.loss_chunks * has_head,
        buffers=_buffers(facts, ways, how, maximum(first_table, last_table)),
    )


def _buffers(facts: Facts, ways: Ways, how: How, table: Number) -> Number:
    w = ways
    layer = facts.layer_weights / facts.layers * (w.shard > 1)
    if how.experts:
        layer = layer + facts.expert_weights / facts.expert_layers * (w.expert_shard > 1)
    gathered = maximum(2 * layer, table * (w.shard > 1)) * how.activations * (w.zero >= 3)
    scattered = layer * how.gradients * (w.zero >= 2)
    blocks = w.context if how.context_by == "gather" else 2  # a ring has one block in use and one on its way
    keys = facts.keys_bytes * w.sequences / w.context * blocks * (w.context > 1)
    stream = facts.stream_bytes * w.sequences / w.context * (w.tensor > 1) * w.sequence_parallel
    return gathered + scattered + keys + stream


def _split(ways: Number, whether: Number) -> Number:
    return 1 + whether * (ways - 1)
