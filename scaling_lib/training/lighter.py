"""Plans that take less memory than one that does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scaling_lib.training.estimate import StepEstimate, estimate
from scaling_lib.training.plan import why_not


def lighter(step: StepEstimate) -> Iterator[tuple[str, StepEstimate]]:
    """Changes of a plan that save memory, in words, and what each makes of the step, at the usual overlap and full efficiency.

    The cheapest come first: single ones, then those that help together, then half the batch. What cannot run, or changes
    nothing, is left out; whether it fits is for the caller to ask. `scaling_lib.search` looks at all plans, and at other slices.

    Args:
        step: of the plan to change.
    """
    plan, split = step.plan, step.plan.data * step.plan.fsdp
    shared = {"zero": 3, "fsdp": split, "data": 1}
    chunks, remat, more = {"loss_chunks": 8}, {"remat": "full"}, {"microbatches": 4 * plan.microbatches}
    singles: tuple[dict[str, Any], ...] = ({"microbatches": 2 * plan.microbatches}, chunks, more, shared, remat)
    joint = (remat | chunks, remat | shared, remat | chunks | shared, remat | chunks | shared | more)
    seen: set[tuple[tuple[str, ...], int]] = {((), step.batch)}
    for change, batch in [*((each, step.batch) for each in (*singles, *joint)), ({}, step.batch // 2)]:
        changed = tuple(f"{name}={value}" for name, value in change.items() if value != getattr(plan, name))
        less = plan.but(**change, placement=None if "fsdp" in change else plan.placement)
        if not batch or (changed, batch) in seen or why_not(less, step.model, step.slice, batch, step.T):
            continue
        seen.add((changed, batch))
        yield ", ".join(changed or (f"batch={batch}",)), estimate(step.model, step.slice, less, batch, T=step.T)
