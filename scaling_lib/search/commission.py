"""What is asked of a design, a model of one's own for a budget, and what is said of each of its parts. Needs NumPy.

Played in labs/11-capstone.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scaling_lib.hardware import Slice, slice_of
from scaling_lib.inference import Layout
from scaling_lib.search.trial import Trial
from scaling_lib.serving import Workload
from scaling_lib.training import Plan, StepEstimate
from scaling_lib.training.goodput import LLAMA_3_CHIP_MTBF_S, goodput
from scaling_lib.transformer import Transformer

UNANSWERED = "Not answered yet: replace the ... with your own."


@dataclass(frozen=True, kw_only=True)
class Commission:
    """What is asked of a design.

    Args:
        usd: for training, at the catalog's prices.
        days: that training may take, failures included.
        data_tokens: there are to train on; none is repeated.
        loss: that the model is to reach, by `loss`.
        tokens_per_parameter: of training, at least.
        vocabulary: entries that the tokenizer has.
        T: tokens of a training sequence.
        batch_tokens: of a step at most: the critical batch.
        slices: that can be rented for training.
        base: plan with what all plans share, `contest.RULES`, and what a plan does not say.
        efficiency: part of the dense peak that matmuls reach.
        checkpoint_s: that training stands still for a checkpoint.
        restart_s: from a failure to the first new step.
        servers: slices that can be rented for serving.
        workload: requests, with a rate.
        ttft_s: seconds to the first token that 99 % of requests may take.
        tpot_s: seconds for each token after it, likewise.
        usd_per_million: dollars for a million new tokens.
        layout: dtypes of serving.
    """

    usd: float
    days: float
    data_tokens: float
    loss: float
    tokens_per_parameter: float
    vocabulary: int
    T: int
    batch_tokens: int
    slices: tuple[str, ...]
    base: Plan
    efficiency: float
    checkpoint_s: float
    restart_s: float
    servers: tuple[str, ...]
    workload: Workload = field(repr=False)
    ttft_s: float
    tpot_s: float
    usd_per_million: float
    layout: Layout

    def useful(self, slice: Slice) -> float:
        """Share of the time that failures leave for training, with those of Llama 3."""
        found = goodput(
            chips=slice.chips,
            chip_mtbf_s=LLAMA_3_CHIP_MTBF_S,
            checkpoint_s=self.checkpoint_s,
            restart_s=self.restart_s,
        )
        return float(found.useful)

    @property
    def flops(self) -> float:
        """Most FLOPs that the budget can pay for: at full peak, on the chip that has most of them for a dollar."""
        chips = [slice_of(name).chip for name in self.slices]
        return max(chip.flops_per_s() * 3600 / chip.usd_per_hour for chip in chips) * self.usd


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """What is said of a part of a design; prints in words.

    Args:
        part: "model", "training" or "serving".
        why: reasons for which it is refused; empty where it is taken.
        found: its numbers, by name.
        of: the model, the estimate of its step, or the trial of its fleet; None where there is none.
    """

    part: str
    why: tuple[str, ...]
    found: Mapping[str, float] = field(default_factory=dict)
    of: Transformer | StepEstimate | Trial | None = None

    @property
    def ok(self) -> bool:
        """Whether it does all that was asked."""
        return not self.why

    def __str__(self) -> str:
        if self.why == (UNANSWERED,):
            return UNANSWERED
        lines = [f"{name}: {_shown(value)}" for name, value in self.found.items()]
        return "\n".join([f"{'Right' if self.ok else 'Refused'}: the {self.part}", *(f"- {why}" for why in self.why), *lines])

    __repr__ = __str__


def _shown(value: float) -> str:
    return f"{value:.3g}" if value >= 1e7 else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def unanswered(part: str) -> Verdict:
    """The verdict where there is no answer yet."""
    return Verdict(part=part, why=(UNANSWERED,))
