"""The time of a step from its parts: what the chip computes, what the networks move, what waits.

The formulas take numbers or arrays; see docs/adr/0012. Derived in chapters/05-training.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.training import pipeline as pipelines
from scaling_lib.training.either import Number, maximum
from scaling_lib.training.facts import Facts
from scaling_lib.training.memory import How, Memory, Ways, stage_memory
from scaling_lib.training.plan import Plan
from scaling_lib.training.traffic import Traffic, seconds, step_traffic
from scaling_lib.training.wires import Wires

INSIDE = ("elementwise", "tensor", "context", "expert", "pipeline", "tensor.dcn", "context.dcn", "expert.dcn", "pipeline.dcn")
"""Parts of each micro-batch's way through a stage: while a stage waits for its first one, these wait as well."""

OUTSIDE = ("fsdp", "data", "fsdp.dcn", "data.dcn", "offload")
"""Parts that run beside the microbatches, or after them."""

ADAM_READS = 2  # the optimizer reads its state and writes it


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What one device does in a second.

    Args:
        math_flops_per_s: of the layers' weight matmuls.
        attention_flops_per_s: of attention and head.
        hbm_bytes_per_s: of its memory.
        host_bytes_per_s: to the host, one way.
        usable_bytes: of its memory that a program can have.
    """

    math_flops_per_s: float
    attention_flops_per_s: float
    hbm_bytes_per_s: float
    host_bytes_per_s: float
    usable_bytes: float

    @staticmethod
    def of(slice: Slice, plan: Plan, efficiency: float = 1.0) -> Rates:
        """Those of a device of the slice: of a TPU7x chip, half. Matmuls reach `efficiency` of their dense peak.

        Raises:
            ValueError: for an efficiency that is no part of 1, and a figure that no source states for this chip.
        """
        if not 0 < units.number("efficiency", efficiency) <= 1:
            raise ValueError(f"efficiency={efficiency!r} is a part of the peak, above 0 and up to 1")
        chip = slice.chip
        devices = chip.devices if chip.kind == "tpu" else 1
        usable = chip.usable_hbm_bytes if "usable_hbm_bytes" in chip.figures else chip.hbm_bytes
        return Rates(
            math_flops_per_s=chip.flops_per_s(plan.math) * efficiency / devices,
            attention_flops_per_s=chip.flops_per_s(plan.activations) * efficiency / devices,
            hbm_bytes_per_s=chip.hbm_bytes_per_s / devices,
            host_bytes_per_s=chip.pcie_bytes_per_s / devices if plan.offload else 1.0,
            usable_bytes=usable / devices,
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A priced step; numbers or arrays.

    Args:
        math_s: matmuls of the largest stage, at the longer of FLOPs and weights read from memory.
        parts_s: seconds of every other part on its own, by name: `INSIDE` and `OUTSIDE`. "elementwise" is memory traffic of
            norms, residuals and activation functions; a ".dcn" is what the part moves over DCN.
        optimizer_s: memory traffic of the update. Nothing hides it: it needs the norm of all gradients.
        bubble: time that a stage waits in a pipeline, over the time it works.
        first: memory of a device of the first stage.
        last: memory of a device of the last stage.
        traffic: every collective.
        links_s: seconds that the busiest wires carry something: collectives on one physical axis share its links, whatever
            hides behind what.
        usable_bytes: memory of a device.
    """

    math_s: Number
    parts_s: Mapping[str, Number]
    optimizer_s: Number
    bubble: Number
    first: Memory
    last: Memory
    traffic: tuple[Traffic, ...]
    links_s: Number
    usable_bytes: float

    @property
    def memory_bytes(self) -> Number:
        """What the fuller of the two devices holds."""
        return maximum(self.first.total, self.last.total)

    @property
    def fits(self) -> Number:
        """Whether that is no more than a device has."""
        return self.memory_bytes <= self.usable_bytes

    def busy_s(self, shown: Mapping[str, float]) -> Number:
        """Seconds that a stage works, for the parts of each that show; see `seconds`."""
        exposed = self.math_s + sum(shown.get(name, 0.0) * self.parts_s[name] for name in INSIDE)
        return maximum(exposed, *(self.parts_s[name] for name in INSIDE))

    def seconds(self, shown: Mapping[str, float]) -> Number:
        """Seconds of the step.

        Args:
            shown: for each part by name, which share of it nothing hides; 0 where not named. `{}` hides all behind each other,
                so that the longest sets the time: a lower bound. 1 for all is the upper bound, one part after the other.
        """
        exposed = self.busy_s(shown) * (1 + self.bubble) + sum(shown.get(name, 0.0) * self.parts_s[name] for name in OUTSIDE)
        return maximum(exposed, self.links_s, *(self.parts_s[name] for name in OUTSIDE)) + self.optimizer_s

    @property
    def lower_s(self) -> Number:
        """Seconds where all hide behind each other, but bubble and optimizer."""
        return self.seconds({})

    @property
    def upper_s(self) -> Number:
        """Seconds where nothing hides."""
        return self.seconds(dict.fromkeys(INSIDE + OUTSIDE, 1.0))


def price(facts: Facts, ways: Ways, how: How, wires: Mapping[str, Wires], rates: Rates) -> Step:
    """The step of one plan, or of many at once: the fields of `facts`, `ways` and `wires` are numbers, or arrays of one shape.

    Nothing is checked; `plan.why_not` says what must hold.
    """
    w = ways
    layers, sequences = w.stage_layers, w.sequences * w.microbatches
    share = layers / facts.layers
    first, last = (stage_memory(facts, ways, how, last=is_last) for is_last in (False, True))
    traffic = step_traffic(facts, ways, how, wires)
    parts = {name: 0.0 * w.fsdp for name in INSIDE + OUTSIDE}
    near, far = dict.fromkeys(wires, 0.0), 0.0 * w.fsdp
    for (part, group), (near_s, far_s) in seconds(traffic).items():
        parts[part], near[group] = parts[part] + near_s, near[group] + near_s
        parts[f"{part}.dcn"], far = parts[f"{part}.dcn"] + far_s, far + far_s
    links = (sum(near[group] * used for group, used in zip(wires, axis, strict=True)) for axis in _axes(wires))
    parts["elementwise"] = facts.elementwise_bytes * share * sequences / w.context / rates.hbm_bytes_per_s
    parts["offload"] = _offload_bytes(facts, ways, how, share, sequences) / rates.host_bytes_per_s + 0.0 * w.fsdp
    return Step(
        math_s=_math_s(facts, ways, how, rates, layers, sequences),
        parts_s=parts,
        optimizer_s=_update_bytes(facts, ways, how, share) / rates.hbm_bytes_per_s,
        bubble=pipelines.bubble(
            how.schedule, w.pipeline, w.microbatches, w.virtual_stages, backward_s=facts.backward_ratio, weight_s=1.0
        ),
        first=first,
        last=last,
        traffic=traffic,
        links_s=maximum(far, *links),
        usable_bytes=rates.usable_bytes,
    )


def _axes(wires: Mapping[str, Wires]) -> Iterator[tuple[Number, ...]]:
    """For each physical axis, whether each group uses it; over DCN nothing near travels, which changes no sum."""
    return zip(*(of.uses for of in wires.values()), strict=True)


def _math_s(facts: Facts, ways: Ways, how: How, rates: Rates, layers: Number, sequences: Number) -> Number:
    """Matmuls of the slowest stage: one of the largest, or the last, which has the head and, of uneven ones, a layer fewer."""
    w = ways
    one_layer = facts.matmul_flops / rates.math_flops_per_s + facts.attention_flops / rates.attention_flops_per_s
    one_layer = one_layer / facts.layers
    uneven = layers * w.pipeline > facts.layers
    last = (layers - uneven) * one_layer + facts.head_flops / rates.attention_flops_per_s
    flops_s = maximum(layers * one_layer, last) * sequences / (w.tensor * w.context)
    stage_weights = (facts.layer_weights + facts.expert_weights) * (layers / facts.layers)
    stage_weights = stage_weights + facts.last_weights + facts.tied_weights
    streamed = 3 * w.microbatches * stage_weights * how.activations  # forward, backward, and the gradients written
    return maximum(flops_s, streamed / rates.hbm_bytes_per_s)


def _update_bytes(facts: Facts, ways: Ways, how: How, share: Number) -> Number:
    """Gradients read, the optimizer's state read and written, weights written."""
    updated = _updated(facts, ways, how, share)
    return updated * (how.gradients + ADAM_READS * how.optimizer + how.weights)


def _offload_bytes(facts: Facts, ways: Ways, how: How, share: Number, sequences: Number) -> Number:
    """What a device sends to its host and gets back, both ways added."""
    moved = 0.0
    if "optimizer" in how.offload:
        moved = moved + 2 * _updated(facts, ways, how, share) * how.optimizer
    if "activations" in how.offload:
        moved = moved + 2 * facts.kept_bytes * share * sequences / ways.context
    return moved


def _updated(facts: Facts, ways: Ways, how: How, share: Number) -> Number:
    """Weights that one device updates."""
    sharded = ways.zero >= 1
    tables = facts.last_weights + facts.first_weights * (ways.pipeline == 1) + facts.tied_weights * (ways.pipeline > 1)
    dense = facts.layer_weights * share + tables
    of_experts = facts.expert_weights * share / (1 + sharded * (ways.expert_shard - 1)) if how.experts else 0.0
    return dense / (1 + sharded * (ways.shard - 1)) + of_experts
