"""What a search may choose from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scaling_lib import units
from scaling_lib.training import Plan
from scaling_lib.training.pipeline import SCHEDULES
from scaling_lib.training.wires import AXES

Some = Any
"""One value, or several in a tuple, or None where that is allowed; kept as a tuple or None."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Which plans a search looks at. A single value pins; None leaves all that can be, or the base plan's where it says so.

    >>> Choices(tensor=8, pipeline=(1, 2, 4)).tensor
    (8,)

    Args:
        data: degrees; None for all that multiply to the devices, as for the next five.
        fsdp: the same.
        tensor: the same.
        context: the same.
        pipeline: the same.
        expert: the same; a model without experts has 1.
        zero: ZeRO stages. Where nothing can be shared out, stages do not differ, and the lowest stands for all.
        microbatches: None for all divisors of the batch.
        schedule: of pipelines; without one it is "1f1b", whose microbatches add up gradients.
        virtual_stages: of "interleaved"; None for all that divide the layers of a stage, with uneven stages also powers of two.
        remat: policies, each a name or a tuple of tensor names, as of `Plan`. Of those that come to the same the first counts:
            attention in a flash kernel keeps no scores, so "selective" is "none".
        loss_chunks: None for the base plan's.
        offload: each a tuple of what is offloaded, `((), ("optimizer",))`; None for the base plan's.
        context_by: None for the base plan's.

    Raises:
        ValueError: for values that no plan can have.
    """

    data: Some = None
    fsdp: Some = None
    tensor: Some = None
    context: Some = None
    pipeline: Some = None
    expert: Some = None
    zero: Some = (0, 1, 2, 3)
    microbatches: Some = None
    schedule: Some = SCHEDULES
    virtual_stages: Some = None
    remat: Some = ("none", "selective", "full")
    loss_chunks: Some = None
    offload: Some = None
    context_by: Some = None

    def __post_init__(self) -> None:
        for name in (*AXES, "microbatches", "virtual_stages", "loss_chunks"):
            if (given := getattr(self, name)) is not None:
                self._keep(name, sorted({units.size(name, n) for n in self._several(name, given)}))
        for name in ("zero", "schedule", "remat", "offload", "context_by"):
            if (given := getattr(self, name)) is not None:
                self._keep(name, dict.fromkeys(self._several(name, given)))
        for name in ("zero", "schedule", "context_by", "offload"):
            for value in getattr(self, name) or ():  # a plan refuses what it does not know
                Plan(**{name: value})

        if self.zero == (0,) and self.fsdp and 1 not in self.fsdp:
            Plan(zero=0, fsdp=self.fsdp[0])

    def _keep(self, name: str, values: Any) -> None:
        if not (kept := tuple(values)):
            raise ValueError(f"{name}=() leaves nothing to choose from; give one value or more, or None for all")
        object.__setattr__(self, name, kept)

    @staticmethod
    def _several(name: str, given: Any) -> tuple[Any, ...]:
        if name == "offload" and (isinstance(given, str) or given == () or any(isinstance(one, str) for one in given)):
            raise ValueError(f"offload={given!r} must hold one tuple for each choice, like ((), ('optimizer',))")
        return tuple(given) if isinstance(given, (tuple, list, set, frozenset, range)) else (given,)

    def of(self, base: Plan) -> Choices:
        """These choices, with the base plan's values where they say so."""
        own = {name: (getattr(base, name),) for name in ("loss_chunks", "offload", "context_by") if getattr(self, name) is None}
        return replace(self, **own)
