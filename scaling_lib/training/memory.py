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
    reduced: float
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
            reduced=units.itemsize(plan.reduced or plan.gradients),
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
    """Bytes on one device, by part; numbers or arrays. Not all are there at once: `total` is the peak.

    Args:
        weights: kept between steps.
        optimizer: master copy and moments.
        activations: kept for the backward pass, of all microbatches in flight.
        gradients: of all layers of the stage.
        working: of the layer whose backward pass runs: what runs again, and results on their way.
        buffers: what collectives work on then: a layer's gathered weights and its widest gradient before it is scattered,
            gathered activations, keys on their way; and a copy of all layers' weights in the dtype of activations, where that
            is a narrower one.
        logits: in float32, and their gradient.
        head: the head's gathered matrix, in use at the same time.
        waiting: logits in float32 that a compiler with memory to spare keeps, for the head's gradient, till the layers are done.
        accumulates: 1 where gradients of earlier microbatches are there while logits are made, else 0.
    """

    weights: Number
    optimizer: Number
    activations: Number
    gradients: Number
    working: Number
    buffers: Number
    logits: Number
    head: Number
    waiting: Number
    accumulates: Number

    @property
    def total(self) -> Number:
        """The peak that must be: what stays, and the larger of two moments.

        As the backward pass begins there are logits, and gradients only of earlier microbatches. As it ends there are all
        gradients, and what one layer needs.
        """
        return self._peak(0)

    def scheduled(self, usable_bytes: Number) -> Number:
        """The peak as XLA schedules a step: where there is room, the head's gradient comes after the layers', and logits wait.

        On a device that has the memory for `total` and not for that, all of it.
        """
        total, roomy = self.total, self._peak(self.waiting)
        return maximum(total, -maximum(-roomy, -usable_bytes))

    def _peak(self, waiting: Number) -> Number:
        begins = self.accumulates * self.gradients + self.logits + self.head
        ends = self.gradients + self.working + self.buffers + waiting
        return self.weights + self.optimizer + self.activations + maximum(begins, ends)


def stage_memory(facts: Facts, ways: Ways, how: How, *, last: bool) -> Memory:
    """What a device of the first or the last stage holds. Without a pipeline the two are one, and hold the same."""
    w, alone = ways, ways.pipeline == 1
    share = w.stage_layers / facts.layers
    head = facts.last_weights + facts.tied_weights * (1 - alone)
    table = facts.first_weights + facts.last_weights * alone if not last else head + facts.first_weights * alone
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
    kept_bytes = facts.kept_bytes * layers_kept + facts.head_bytes * has_head
    gathers_head = (w.zero >= 3) * (w.shard > 1) * has_head
    return Memory(
        weights=kept(3) * how.weights,
        optimizer=0.0 * w.fsdp if "optimizer" in how.offload else kept(1) * how.optimizer,
        activations=kept_bytes * part,
        gradients=kept(2) * how.gradients,
        working=facts.working_bytes * part,
        buffers=_buffers(facts, ways, how),
        logits=facts.logits_bytes * part / w.loss_chunks * has_head,
        waiting=facts.logits_bytes * 4 / (4 + how.activations) * part * (w.loss_chunks == 1) * has_head,
        head=(facts.last_weights + facts.tied_weights) * how.activations * gathers_head,
        accumulates=w.microbatches > 1,
    )


def _buffers(facts: Facts, ways: Ways, how: How) -> Number:
    w = ways
    layer = facts.layer_weights / facts.layers * (w.shard > 1)
    if how.experts:
        layer = layer + facts.expert_weights / facts.expert_layers * (w.expert_shard > 1)
    gathered, scattered = layer * how.activations * (w.zero >= 3), facts.widest_weights * how.reduced * (w.zero >= 2)
    blocks = w.context if how.context_by == "gather" else 2  # a ring has one block in use and one on its way
    keys = facts.keys_bytes * w.sequences / w.context * blocks * (w.context > 1)
    # A block's gathered input, its gathered gradient, and a result before it is scattered
    streams = 3 * facts.stream_bytes * w.sequences / w.context * (w.tensor > 1) * w.sequence_parallel
    return gathered + scattered * (w.shard > 1) + keys + streams + _cast(facts, ways, how)


def _cast(facts: Facts, ways: Ways, how: How) -> Number:
    """All layers' weights in the dtype of matmuls: XLA casts them once, before the loop over layers."""
    if how.weights <= how.activations:
        return 0.0
    held = facts.layer_weights / _split(ways.shard, ways.zero >= 3)
    if how.experts:
        held = held + facts.expert_weights / _split(ways.expert_shard, ways.zero >= 3)
    return held * ways.stage_layers / facts.layers * how.activations


def _split(ways: Number, whether: Number) -> Number:
    return 1 + whether * (ways - 1)
