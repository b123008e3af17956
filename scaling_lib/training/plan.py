"""How a training step is split over the devices of a slice, checked against the model, the slice and the batch.

Derived in chapters/05-training.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.training import pipeline as pipelines
from scaling_lib.training.wires import AXES, Placement, placements, whole
from scaling_lib.transformer import Transformer

OFFLOADS = ("optimizer", "activations")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A parallelism plan. The six mesh axes multiply to the devices of the slice (TPU7x: two a chip; elsewhere one).

    Args:
        data: copies of everything, each with its share of the sequences (replicated data parallelism).
        fsdp: ways to share sequences and, as `zero` says, what belongs to the weights. Context and expert ways join in.
        zero: what is shared out over fsdp · context · expert: 0 nothing, 1 the optimizer's state, 2 gradients as well, 3 weights
            as well (FSDP), which are then gathered before use.
        tensor: ways to share heads and hidden widths of each layer (Megatron).
        sequence_parallel: whether what is D wide is split over the tensor ways too, along the tokens: then all-gathers and
            reduce-scatters take the place of all-reduces.
        context: ways to share the tokens of a sequence.
        context_by: how attention sees all keys: "ring" passes them on, "gather" gathers those of a layer.
        pipeline: stages, each with its share of the layers.
        schedule: one of `pipeline.SCHEDULES`.
        virtual_stages: chunks of layers a stage has, for "interleaved".
        uneven_stages: allows layers that do not divide: the last stages have fewer, and the largest sets the time.
        expert: ways to share the experts; they share sequences as well, and tokens travel to experts by all-to-all.
        microbatches: a replica's sequences are worked off in so many parts, one after the other: through the pipeline, or,
            without one, to add up gradients.
        remat: what is kept for the backward pass, as of `transformer.activation_bytes`.
        flash: attention in one kernel that stores no scores.
        dropout: as of `transformer.activation_bytes`.
        loss_chunks: the logits are made and used in so many parts.
        offload: what lives in the host's memory: "optimizer", "activations", or both.
        weights: dtype of the weights that are kept.
        gradients: dtype of the gradients as they are kept and added up.
        reduced: dtype of the gradients as they travel; that of `gradients` if not given.
        master: dtype of the optimizer's own copy of the weights; None where it updates the weights themselves.
        moments: dtype of Adam's two moments.
        activations: dtype of activations, of attention's and the head's matmuls, and of weights as they are gathered.
        math: dtype of all other matmuls.
        placement: where the mesh axes lie: `{"fsdp": (0, 1), "tensor": {2: 8}, "data": {2: 2}}` has fsdp on torus axes 0 and 1,
            whole, and 8 parts of axis 2 for tensor, 2 for data; "node" is a GPU node's fabric, "dcn" the network between slices
            or nodes, "chip" the two devices of a TPU7x chip. None for the fastest there is.

    Raises:
        ValueError: for values out of range; what needs the model and the slice, `why_not` finds.
    """

    data: int = 1
    fsdp: int = 1
    zero: Literal[0, 1, 2, 3] = 3
    tensor: int = 1
    sequence_parallel: bool = True
    context: int = 1
    context_by: Literal["ring", "gather"] = "ring"
    pipeline: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    uneven_stages: bool = False
    expert: int = 1
    microbatches: int = 1
    remat: str | tuple[str, ...] = "none"
    flash: bool = True
    dropout: bool = False
    loss_chunks: int = 1
    offload: tuple[str, ...] = ()
    weights: str = "bf16"
    gradients: str = "bf16"
    reduced: str | None = None
    master: str | None = "f32"
    moments: str = "f32"
    activations: str = "bf16"
    math: str = "bf16"
    placement: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name in (*AXES, "virtual_stages", "microbatches", "loss_chunks"):
            object.__setattr__(self, name, units.size(name, getattr(self, name)))
        if self.zero not in (0, 1, 2, 3) or isinstance(self.zero, bool):
            raise ValueError(f"zero={self.zero!r} is no stage; give 0, 1, 2 or 3")
        if self.zero == 0 and self.fsdp > 1:
            raise ValueError(f"zero=0 shares nothing out, but fsdp={self.fsdp}; call these ways data={self.data * self.fsdp}")
        if self.context_by not in ("ring", "gather"):
            raise ValueError(f"context_by={self.context_by!r} is unknown; give 'ring' or 'gather'")
        if self.schedule not in pipelines.SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r} is unknown; {units.near(str(self.schedule), pipelines.SCHEDULES)}")
        if self.pipeline == 1 and self.virtual_stages > 1:
            raise ValueError(f"virtual_stages={self.virtual_stages} with pipeline=1; only the stages of a pipeline have chunks")
        object.__setattr__(self, "offload", (self.offload,) if isinstance(self.offload, str) else tuple(self.offload))
        if strange := sorted(set(self.offload) - set(OFFLOADS)):
            raise ValueError(f"offload holds {strange[0]!r}; give some of {', '.join(map(repr, OFFLOADS))}")
        if not isinstance(self.remat, str):
            object.__setattr__(self, "remat", tuple(self.remat))
        for name in ("weights", "gradients", "moments", "activations", "math"):
            object.__setattr__(self, name, units.dtype_name(getattr(self, name)))
        for name in ("master", "reduced"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, units.dtype_name(getattr(self, name)))

    @property
    def axes(self) -> dict[str, int]:
        """Ways of each mesh axis, the innermost first."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def devices(self) -> int:
        """Devices the plan is for."""
        return math.prod(self.axes.values())

    @property
    def replicas(self) -> int:
        """Parts that the sequences of a batch are split into before micro-batches, data · fsdp · expert."""
        return self.data * self.fsdp * self.expert

    @property
    def chunks(self) -> int:
        """Chunks of layers in the whole pipeline."""
        return self.pipeline * self.virtual_stages

    def but(self, **changes: Any) -> Plan:
        """This plan with some arguments changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        ways = " · ".join(f"{axis} {ways}" for axis, ways in self.axes.items() if ways > 1)
        extras = [f"{self.microbatches} microbatches"] * (self.microbatches > 1)
        extras += [f"remat {self.remat}"] * (self.remat != "none")
        return ", ".join([ways or "one device", *extras])


def why_not(plan: Plan, model: Transformer, slice: Slice, batch: int, T: int) -> str | None:
    """Why a plan cannot run, with the number at fault and what would do; None where it can, which memory may still forbid.

    Args:
        plan: the plan.
        model: whose heads, layers and experts are split.
        slice: whose devices are used.
        batch: sequences of a step, all devices together.
        T: tokens in a sequence.

    Raises:
        ValueError: for a batch or length that is no whole number of at least 1.
    """
    batch, T = units.size("batch", batch), units.size("T", T)
    checks = (_devices(plan, slice), *(rule.why(plan, model, batch, T) for rule in RULES), _place(plan, slice))
    return next(filter(None, checks), None)


def _devices(plan: Plan, slice: Slice) -> str | None:
    if plan.devices == slice.devices:
        return None
    product = " · ".join(f"{axis}={ways}" for axis, ways in plan.axes.items() if ways > 1) or "data=1"
    wrong = f"{product} is {plan.devices} devices, but {slice} has {slice.devices}"
    for axis in ("fsdp", "data"):
        others = plan.devices // getattr(plan, axis)
        if slice.devices % others == 0 and not (axis == "fsdp" and plan.zero == 0):
            return f"{wrong}; {axis}={slice.devices // others} would do"
    return f"{wrong}; take ways that multiply to {slice.devices}"


def _heads(plan: Plan, model: Transformer, batch: int, T: int) -> str | None:
    t = plan.tensor
    if model.N % t:
        return f"tensor={t} does not divide the {model.N} heads of {model}; give one of {_divisors(model.N)}"
    if model.K % t and t % model.K:
        return f"tensor={t} and the {model.K} key heads of {model}: one must divide the other"
    return None


def _widths(plan: Plan, model: Transformer, batch: int, T: int) -> str | None:
    for width in [model.F] * bool(model.dense_layers) + ([model.experts.d_ff] if model.experts else []):
        if width % plan.tensor:
            near = _divisors(math.gcd(width, model.N))
            return f"tensor={plan.tensor} does not divide the hidden width {width} of {model}; give one of {near}"
    return None


def _experts(plan: Plan, model: Transformer, batch: int, T: int) -> str | None:
    if plan.expert > 1 and not model.E:
        return f"expert={plan.expert}, but {model} has no experts; give expert=1"
    if plan.expert > 1 and model.E % plan.expert:
        return f"expert={plan.expert} does not divide the {model.E} experts of {model}; give one of {_divisors(model.E)}"
    return None


def _layers(plan: Plan, model: Transformer, batch: int, T: int) -> str | None:
    if model.L % plan.chunks and not plan.uneven_stages:
        kind = "pipeline · virtual_stages" if plan.virtual_stages > 1 else "pipeline"
        near = f"give one of {_divisors(model.L)}, or uneven_stages=True"
        return f"{kind}={plan.chunks} does not divide the {model.L} layers of {model}; {near}"
    if plan.chunks > model.L:
        return f"pipeline={plan.chunks} chunks are more than the {model.L} layers of {model}; give at most {model.L}"
    return None


def _sequences(plan: Plan, model: Transformer, batch: int, T: int) -> str | None:
    parts = plan.replicas * plan.microbatches
    if batch % parts:
        near = " or ".join(str(n * parts) for n in sorted({max(1, batch // parts), batch // parts + 1}))
        return (
            f"batch={batch} sequences do not divide into data · fsdp · expert = {plan.replicas} replicas "
            f"of {plan.microbatches} microbatches; give batch={near}"
        )
    return None


def _tokens(plan: Plan, model: Transformer, batch: int, T: int) -> str | None:
    split = plan.context * (plan.tensor if plan.sequence_parallel else 1)
    if T % split:
        return f"T={T} tokens do not divide by context · tensor = {split}, over which they are shared; give a multiple of {split}"
    return None


def _stages(plan: Plan, model: Transformer, batch: int, T: int) -> str | None:
    if plan.pipeline == 1:
        return None
    try:
        pipelines.check(plan.schedule, plan.pipeline, plan.microbatches, plan.virtual_stages)
    except ValueError as wrong:
        return str(wrong)
    return None


@dataclass(frozen=True)
class Rule:
    """A rule that a plan must keep: `why` says why it does not, or None. Of the plan it reads the fields in `of` alone.

    `replicas` stands for data, fsdp and expert, of which the product counts.
    """

    kind: str
    of: tuple[str, ...]
    why: Callable[[Plan, Transformer, int, int], str | None]


RULES = (
    Rule("heads", ("tensor",), _heads),
    Rule("hidden width", ("tensor",), _widths),
    Rule("experts", ("expert",), _experts),
    Rule("layers", ("pipeline", "virtual_stages"), _layers),
    Rule("batch", ("replicas", "microbatches"), _sequences),
    Rule("tokens", ("context", "tensor"), _tokens),
    Rule("schedule", ("schedule", "pipeline", "microbatches", "virtual_stages"), _stages),
)
"""What the model and the batch ask of a plan, in the order in which `why_not` looks. A search asks each rule only once for all
plans that look the same to it. Beside its fields a rule may read `sequence_parallel` and `uneven_stages`."""


def _place(plan: Plan, slice: Slice) -> str | None:
    if plan.placement is None:
        return None  # there always is one
    try:
        found = whole(plan.placement, slice)
    except ValueError as wrong:
        return str(wrong)
    for axis, ways in plan.axes.items():
        if (placed := math.prod(found.get(axis, {}).values())) != ways:
            return f"placement has {placed} ways for {axis}, but {axis}={ways}"
    return None


def located(plan: Plan, slice: Slice) -> list[Placement]:
    """The placements a plan can have: its own, or all."""
    return list(placements(plan.axes, slice)) if plan.placement is None else [whole(plan.placement, slice)]


def _divisors(n: int) -> str:
    found = [d for d in range(1, n + 1) if n % d == 0]
    return ", ".join(map(str, found if len(found) <= 12 else [*found[:11], "..."]))
