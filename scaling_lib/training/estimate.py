"""What a training step takes under a plan: time, memory, money, and what to change.

Derived in chapters/05-training.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.training.facts import Facts
from scaling_lib.training.memory import How, Memory, ways_of
from scaling_lib.training.money import Bill, bill
from scaling_lib.training.plan import Plan, located, why_not
from scaling_lib.training.step import INSIDE, OUTSIDE, Rates, Step, price
from scaling_lib.training.traffic import Traffic
from scaling_lib.training.wires import GROUPS, Placement, Wires, wires
from scaling_lib.transformer import Transformer, utilization
from scaling_lib.transformer import model as model_of

MEMORY = ("weights", "optimizer", "activations", "gradients", "working", "buffers", "logits", "head")
Overlap = Literal["full", "none"] | Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Inequality:
    """What must hold for a step to be compute-bound, or to stay so: `quantity`, now `have`, against `bound`.

    The rest of the plan stays as it is, and wires keep their price.
    """

    quantity: str
    have: float
    relation: Literal["at least", "at most"]
    bound: float

    def __str__(self) -> str:
        return f"{self.quantity} is {units.human(self.have, digits=4)}, and must be {self.relation} {units.human(self.bound)}"


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """A priced training step; times in seconds, memory per device, rates of all chips together unless the name says otherwise.

    Args:
        model: the model.
        slice: where it trains.
        plan: as given, with the placement that was used.
        batch: sequences of a step.
        T: tokens in a sequence.
        shown: for each part of `step.parts_s`, the share that nothing hides.
        facts: the numbers of the model that went in.
        step: the priced parts.
    """

    model: Transformer
    slice: Slice
    plan: Plan
    batch: int
    T: int
    shown: Mapping[str, float]
    facts: Facts
    step: Step

    @property
    def seconds(self) -> float:
        """Of one step, with the overlap that was asked for."""
        return float(self.step.seconds(self.shown))

    @property
    def lower_s(self) -> float:
        """Where everything hides behind the longest part, but bubble and optimizer."""
        return float(self.step.lower_s)

    @property
    def upper_s(self) -> float:
        """Where nothing hides."""
        return float(self.step.upper_s)

    @property
    def bubble_s(self) -> float:
        """Seconds that a stage waits for work."""
        return float(self.step.busy_s(self.shown) * self.step.bubble)

    @cached_property
    def parts_s(self) -> dict[str, float]:
        """Seconds of every part that takes any, each on its own: "math", collectives by technique, "bubble" and so on."""
        parts = {"math": self.step.math_s, **self.step.parts_s, "bubble": self.bubble_s, "optimizer": self.step.optimizer_s}
        return {name: float(seconds) for name, seconds in parts.items() if seconds}

    def exposed_s(self, overlap: Overlap | None = None) -> float:
        """Seconds of the step that are neither matmuls, nor the bubble these alone would have, nor the optimizer.

        Args:
            overlap: as of `estimate`; that of the estimate if not given.
        """
        shown = self.shown if overlap is None else shown_parts(overlap)
        rest = self.step.math_s * (1 + self.step.bubble) + self.step.optimizer_s
        return max(0.0, float(self.step.seconds(shown) - rest))

    def hidden_s(self, overlap: Overlap | None = None) -> float:
        """Seconds of collectives, memory traffic and transfers to the host that other parts hide."""
        return max(0.0, float(sum(self.step.parts_s.values())) - self.exposed_s(overlap))

    @property
    def collectives(self) -> tuple[Traffic, ...]:
        """Every collective that moves bytes."""
        return tuple(row for row in self.step.traffic if row.count and row.total_bytes)

    @property
    def memory(self) -> Memory:
        """By part, on a device of the fuller of first and last stage. A TPU7x chip has two devices."""
        return max(self.step.first, self.step.last, key=lambda memory: float(memory.total))

    @property
    def scheduled_bytes(self) -> float:
        """The peak of a device as XLA schedules the step, which uses room that there is; see `Memory.scheduled`."""
        return float(self.memory.scheduled(self.usable_bytes))

    @property
    def memory_bytes_per_chip(self) -> float:
        """All devices of a chip together."""
        return float(self.memory.total) * self.slice.devices / self.slice.chips

    @property
    def usable_bytes(self) -> float:
        """Memory of a device that a program can have."""
        return self.step.usable_bytes

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return bool(self.memory.total <= self.usable_bytes)

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all chips together train on."""
        return self.batch * self.T / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs over the peak of the plan's `math` dtype; recomputation does not count."""
        return self._utilization(float(self.facts.model_flops))

    @property
    def hfu(self) -> float:
        """FLOPs done over the same peak; recomputation counts."""
        return self._utilization(float(self.facts.matmul_flops + self.facts.attention_flops + self.facts.head_flops))

    def _utilization(self, flops: float) -> float:
        chips, chip = self.slice.chips, self.slice.chip
        return utilization(flops * self.batch, seconds=self.seconds, chips=chips, chip=chip, dtype=self.plan.math)

    def days(self, tokens: float, goodput: float = 1.0) -> float:
        """Days for a budget of tokens, where a share `goodput` of the time goes into steps that count."""
        return float(self._bill(tokens, goodput, 1.0).days)  # of any price

    def dollars(self, tokens: float, goodput: float = 1.0, usd_per_chip_hour: float | None = None) -> float:
        """Price of the chips for those days; arguments as of `money.bill`.

        Raises:
            ValueError: where no source states a price for the chip, and none is given.
        """
        return float(self._bill(tokens, goodput, usd_per_chip_hour).usd)

    def _bill(self, tokens: float, goodput: float, usd_per_chip_hour: float | None) -> Bill:
        return bill(
            self.slice.chip,
            chips=self.slice.chips,
            tokens=tokens,
            tokens_per_s=self.tokens_per_s,
            goodput=goodput,
            usd_per_chip_hour=usd_per_chip_hour,
        )

    @property
    def binds(self) -> str:
        """The part that takes longest: "math" where the step is compute-bound."""
        return max(self.parts_s, key=lambda part: self.parts_s[part])

    @property
    def inequality(self) -> Inequality:
        """What would let math bind: more of the batch, fewer ways, faster wires; where it does, how small the batch may be."""
        binds, math_s = self.binds, self.parts_s["math"]
        axis = binds.removesuffix(".dcn")
        ratio = self.parts_s[binds] / math_s
        if binds == "math":
            ratio = max((seconds / math_s for part, seconds in self.parts_s.items() if part in OUTSIDE), default=0.0)
            return Inequality(quantity="batch (sequences)", have=self.batch, relation="at least", bound=self.batch * ratio)
        if axis in ("fsdp", "data", "optimizer"):  # what they move does not grow with the batch, and math does
            return Inequality(quantity="batch (sequences)", have=self.batch, relation="at least", bound=self.batch * ratio)
        if axis in ("tensor", "context"):  # over the same links, each device moves the same, however many share the math
            ways = getattr(self.plan, axis)
            return Inequality(quantity=f"{axis} ways", have=ways, relation="at most", bound=ways / ratio)
        if binds == "bubble":
            m = self.plan.microbatches
            return Inequality(quantity="microbatches", have=m, relation="at least", bound=m * ratio)
        rate = {"elementwise": "memory bandwidth", "offload": "bandwidth to the host"}.get(binds, f"bandwidth of the {axis} ways")
        return Inequality(quantity=f"{rate} (times that of the chip)", have=1.0, relation="at least", bound=ratio)

    def explain(self) -> str:
        """The estimate in words."""
        memory, fits = self.memory, "fits" if self.fits else "does not fit"
        held, usable = (units.human(float(size), "GiB") for size in (memory.total, self.usable_bytes))
        parts = {name: float(getattr(memory, name)) for name in MEMORY}
        return "\n".join(
            [
                f"{self.model} on {self.slice}: {self.plan}",
                f"step {units.human(self.seconds, 's')} ({units.human(self.lower_s, 's')} to {units.human(self.upper_s, 's')}), "
                f"MFU {self.mfu:.1%}, {units.human(self.tokens_per_s)} tokens/s",
                "time: " + ", ".join(f"{name} {units.human(seconds, 's')}" for name, seconds in self.parts_s.items()),
                f"{self.binds} binds: {self.inequality}",
                f"memory at its peak {held} of {usable} a device, {fits}: "
                + ", ".join(f"{name} {units.human(size, 'GiB')}" for name, size in parts.items() if size),
            ]
        )

    def __str__(self) -> str:
        return self.explain()


def estimate(
    model: Transformer | str,
    slice: Slice | str,
    plan: Plan,
    batch: int,
    *,
    T: int,
    causal: bool = True,
    overlap: Overlap = "full",
    efficiency: float = 1.0,
    ici: Literal["achievable", "peak"] = "achievable",
    hop_s: float = 0.0,
    start_s: float = 0.0,
) -> StepEstimate:
    """What one training step takes.

    >>> estimate("Llama-3 8B", "v5p:4x4x4", Plan(fsdp=64, remat="full"), 64, T=8192).fits
    True

    Args:
        model: or its name in the catalog.
        slice: or its name. Chips are bought, mesh axes are of devices: `slice.devices`.
        plan: which is checked against the three others.
        batch: sequences of a step, all devices together.
        T: tokens in a sequence.
        causal: True takes attention to skip the scores that its mask hides, as flash kernels do, and MFU to count them out;
            False counts and computes all pairs.
        overlap: "full" hides every collective behind the longest part, "none" puts all one after the other; or for each part
            the share that shows, like `{"tensor": 0.5}`, where the others hide. Both bounds are there in any case.
        efficiency: part of the dense peak that matmuls reach.
        ici: which figure of a TPU link: what large transfers achieve, or what the vendor states.
        hop_s: seconds a hop takes at least.
        start_s: seconds before the first byte of a collective moves.

    Raises:
        ValueError: for a plan that cannot run, with the number at fault and what would do. One whose memory does not suffice is a
            result: `fits` is False.

    NB: keys of local layers travel over context ways as those of global ones, and what tensor parallelism repeats (routers,
    latents) is priced as if split.
    """
    model = model_of(model) if isinstance(model, str) else model
    slice = slice_of(slice) if isinstance(slice, str) else slice
    if why := why_not(plan, model, slice, batch, T):
        raise ValueError(why)
    shown, facts = shown_parts(overlap), Facts.of(model, plan, T=T, causal=causal)
    ways, how, rates = ways_of(plan, model, batch), How.of(plan, model), Rates.of(slice, plan, efficiency)
    priced: dict[tuple[Wires, ...], tuple[Step, Placement]] = {}
    for placement in located(plan, slice):
        of = {group: wires(slice, placement, group, ici=ici, hop_s=hop_s, start_s=start_s) for group in GROUPS}
        if (key := tuple(of.values())) not in priced:
            priced[key] = price(facts, ways, how, of, rates), placement
    step, placement = min(priced.values(), key=lambda one: (one[0].seconds(shown), one[0].upper_s))
    used = plan.but(placement=placement)
    return StepEstimate(model=model, slice=slice, plan=used, batch=batch, T=T, shown=shown, facts=facts, step=step)


def shown_parts(overlap: Overlap) -> dict[str, float]:
    """For each part, the share that nothing hides, as `Step.seconds` takes it.

    Raises:
        ValueError: for what is no overlap.
    """
    if overlap == "full":
        return {}
    if overlap == "none":
        return dict.fromkeys(INSIDE + OUTSIDE, 1.0)
    if not isinstance(overlap, Mapping):
        raise ValueError(f"overlap={overlap!r} is unknown; give 'full', 'none', or shares by part like {{'tensor': 0.5}}")
    for part, share in overlap.items():
        if part not in INSIDE + OUTSIDE:
            raise ValueError(f"overlap names {part!r}; {units.near(str(part), INSIDE + OUTSIDE)}")
        if units.number(f"overlap[{part!r}]", share, minimum=0) > 1:
            raise ValueError(f"overlap[{part!r}]={share!r} is a share, 0 to 1")
    return dict(overlap)
