"""The search for the best training plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.search.choices import Choices
from scaling_lib.search.nearest import nearest
from scaling_lib.search.pricing import Pricing, Ranking
from scaling_lib.search.result import Reason, Search, lacking
from scaling_lib.search.space import Question, Space
from scaling_lib.training import Plan, why_not
from scaling_lib.training.estimate import Overlap, shown_parts
from scaling_lib.transformer import Transformer
from scaling_lib.transformer import model as model_of


def best_training_plans(
    model: Transformer | str,
    slice: Slice | str,
    batch: int,
    *,
    T: int,
    keep: int = 10,
    base: Plan = Plan(),  # noqa: B008  # frozen
    choices: Choices | None = None,
    progress: Callable[[int, int], None] | None = None,
    causal: bool = True,
    overlap: Overlap = "full",
    efficiency: float = 1.0,
    ici: Literal["achievable", "peak"] = "achievable",
    hop_s: float = 0.0,
    start_s: float = 0.0,
) -> Search:
    """The fastest plans for a training step, out of all that can run.

    Every split of the devices, every placement on the torus (of those that differ by exchanging equal torus axes, one), all
    microbatches, schedules, remat policies and ZeRO stages are priced, by the formulas of `training.estimate`.

    >>> best_training_plans("Llama-3 8B", "v5e:4x4", 16, T=4096, choices=Choices(remat="full")).best[0].plan.fsdp
    16

    Args:
        model: or its name in the catalog.
        slice: or its name.
        batch: sequences of a step, all devices together.
        T: tokens in a sequence.
        keep: how many of the best to keep.
        base: all that the choices leave open: dtypes, flash, uneven stages and so on. Its degrees do not matter.
        choices: which degrees, schedules and so on to look at; `Choices()` if not given.
        progress: is called now and then with the plans priced and those there are.
        causal: as of `training.estimate`, like all that follow.
        overlap: the same.
        efficiency: the same.
        ici: the same.
        hop_s: the same.
        start_s: the same.

    Raises:
        ValueError: for arguments that make no sense, and choices that no devices can have. Where nothing can run, the result
            says why, and what would.
    """
    began = time.perf_counter()
    model = model_of(model) if isinstance(model, str) else model
    slice = slice_of(slice) if isinstance(slice, str) else slice
    batch, T, keep = units.size("batch", batch), units.size("T", T), units.size("keep", keep)
    rates: dict[str, Any] = {"causal": causal, "efficiency": efficiency, "ici": ici, "hop_s": hop_s, "start_s": start_s}
    how = {**rates, "overlap": overlap}
    space = Space(Question(model, slice, batch, T, base, (choices or Choices()).of(base)))
    pricing, ranking = Pricing(space, shown=shown_parts(overlap), **rates), Ranking(keep)
    pricing.run(ranking, progress)

    reasons = {kind: Reason(of.count, str(why_not(of.example, model, slice, batch, T))) for kind, of in space.refused.items()}
    if ranking.least:
        reasons["memory"] = Reason(ranking.splits_too_large, lacking(pricing.estimate(ranking.least, how)))
    others = [one for kind, one in ranking.kinds.items() if kind != pricing.kind(ranking.best[0])]
    reasons = dict(sorted(reasons.items(), key=lambda item: -item[1].count))
    return Search(
        model=model,
        slice=slice,
        batch=batch,
        T=T,
        best=tuple(pricing.estimate(one, how) for one in ranking.best),
        runner_up=pricing.estimate(min(others), how) if others else None,
        plans=ranking.plans,
        splits=space.splits,
        reasons=reasons,
        why_none=None if ranking.best else reasons["memory"].example if ranking.least else space.short_of(),
        nearest=() if ranking.best else nearest(space, how),
        seconds=time.perf_counter() - began,
    )
