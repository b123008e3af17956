"""How a model trains on slices of all sizes: usual slices of a chip, and on each a plan of FSDP and tensor ways.

A small search of few plans, for curves over the number of chips; `scaling_lib.search` is for the best of all plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

from scaling_lib import units
from scaling_lib.hardware import Chip, Slice
from scaling_lib.training.estimate import StepEstimate, estimate
from scaling_lib.training.facts import Facts
from scaling_lib.training.memory import How, stage_memory, ways_of
from scaling_lib.training.plan import Plan, why_not
from scaling_lib.training.step import INSIDE, OUTSIDE, Rates
from scaling_lib.transformer import Transformer

_FLAT = ((4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_DEEP = ((2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16))
_MOST_CHIPS = 16_384
_EXPERT, _CHUNKS = 64, 8
_TRIED = 3  # plans of a slice that are priced


def slices(chip: Chip) -> tuple[Slice, ...]:
    """Slices of a chip, each with twice the chips of the one before: up to a pod, then pods over DCN; of GPUs, more nodes.

    Args:
        chip: a TPU, or a GPU with a fabric. Of a fabric's GPUs, the largest power of two takes part.

    NB: all sizes are powers of two, so that batches and models divide alike; pods of other sizes are left out.
    """
    if chip.kind != "tpu":
        node = 2 ** math.floor(math.log2(chip.fabric_chips))
        many = [2**power for power in range(15) if 16 <= node * 2**power <= _MOST_CHIPS]
        return tuple(Slice(chip, (node, nodes)) for nodes in many)
    shapes = [shape for shape in (_FLAT if len(chip.pod_shape) == 2 else _DEEP) if math.prod(shape) <= math.prod(chip.pod_shape)]
    counts = [2**power for power in range(1, 15) if math.prod(shapes[-1]) * 2**power <= _MOST_CHIPS]
    return (*(Slice(chip, shape) for shape in shapes), *(Slice(chip, shapes[-1], count) for count in counts))


def quick_plan(model: Transformer, slice: Slice, batch: int, T: int, efficiency: float = 1.0) -> StepEstimate | None:
    """The fastest of a few plans that fit: FSDP over as many ways as the batch has, tensor ways for the rest, or for some more.

    Everything is recomputed but layer inputs, logits are made in eight parts, slices over DCN hold copies, and gradients are
    added up over as many microbatches as memory asks for. Of plans that take as long where all hides, it is the one that takes
    least where nothing does. Experts, where there are any, are on up to 64 ways.

    Args:
        model: the model.
        slice: where it trains.
        batch: sequences of a step.
        T: tokens in a sequence.
        efficiency: as of `estimate`; the plan is the fastest at an efficiency of 1, where links count most.

    Returns:
        None where no such plan runs, or none fits.

    Raises:
        ValueError: for a batch or length that is no whole number of at least 1, and an efficiency that is no part of 1.
    """
    plan = _fastest(model, slice, units.size("batch", batch), units.size("T", T))
    return None if plan is None else estimate(model, slice, plan, batch, T=T, efficiency=efficiency)


def links_bind(steps: Sequence[StepEstimate]) -> float | None:
    """Chips from which the links take longer than math, between the slices where they do not yet and already do.

    Args:
        steps: of one model and batch on slices of growing size.

    Returns:
        The chips where the two take as long, if both follow powers of the chips from slice to slice; those of the first slice
        where links bind on it already, and None where they bind on none.
    """
    before: tuple[float, float] | None = None
    for step in steps:
        chips, ratio = step.slice.chips, _links_s(step) / step.parts_s["math"]
        if ratio >= 1:
            if before is None:
                return float(chips)
            share = math.log(1 / before[1]) / math.log(ratio / before[1])
            return float(before[0] * (chips / before[0]) ** share)
        before = chips, max(ratio, 1e-9)
    return None


def _links_s(step: StepEstimate) -> float:
    """Seconds of the slowest collectives, or of the busiest links if these take longer."""
    moving = [part for part in INSIDE + OUTSIDE if part not in ("elementwise", "offload")]
    return max(float(step.step.links_s), *(step.parts_s.get(part, 0.0) for part in moving))


@lru_cache(maxsize=512)
def _fastest(model: Transformer, slice: Slice, batch: int, T: int) -> Plan | None:
    fitting = filter(None, (_fitting(model, slice, plan, batch, T) for plan in _plans(model, slice, batch)))
    found = [estimate(model, slice, plan, batch, T=T) for plan in islice(fitting, _TRIED)]
    best = min(found, key=lambda step: (round(step.lower_s, 12), step.upper_s), default=None)
    return None if best is None else best.plan


def _plans(model: Transformer, slice: Slice, batch: int) -> Iterator[Plan]:
    """Plans from the fewest tensor ways that the batch allows to the most."""
    data = math.gcd(slice.count, batch)
    each = slice.devices // data
    tensor = each // math.gcd(each, batch // data)
    while model.N % tensor == 0 and each % tensor == 0:
        shared = each // tensor
        expert = math.gcd(model.E, shared, _EXPERT) if model.E else 1
        usual = Plan(remat="full", loss_chunks=_CHUNKS)
        yield usual.but(data=data, fsdp=shared // expert, expert=expert, tensor=tensor)
        tensor *= 2


def _fitting(model: Transformer, slice: Slice, plan: Plan, batch: int, T: int) -> Plan | None:
    """The plan with the fewest microbatches that fit, a power of two. Memory does not ask which links the ways lie on."""
    while why_not(plan, model, slice, batch, T) is None:
        facts, ways, how = Facts.of(model, plan, T=T, causal=True), ways_of(plan, model, batch), How.of(plan, model)
        if stage_memory(facts, ways, how, last=True).total <= Rates.of(slice, plan).usable_bytes:
            return plan
        plan = plan.but(microbatches=2 * plan.microbatches)
    return None
