"""What a compiler chose against the best plan: both priced alike, and the reason why they differ, in words.

`matmul.automatic` gives the compiler nothing but shardings, so its collectives are its own choice. Derived in
chapters/03-sharding.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scaling_lib import collectives, roofline, units
from scaling_lib.collectives import Group
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.sharding import MatmulPlan, prices
from scaling_lib.xla.program import Collective, Program

Verdict = Literal["same", "tie", "cheaper", "dearer"]

TIE = 1e-3
"""Two times are a tie within this part of the longer one,"""
TIE_S = 1e-6
"""or within these seconds."""
MOST_PADDING = 0.05
"""The TPU compiler pads some reduce-scatters, by this part at most."""

_SHORT = {"all-gather": "AG", "reduce-scatter": "RS", "all-reduce": "AR", "all-to-all": "A2A", "permute": "CP"}
_SUMS = ("all-reduce", "reduce-scatter")


@dataclass(frozen=True)
class Choice:
    """How a compiled program compares with a plan for the same product.

    Args:
        verdict: of the program: "same" collectives and FLOPs as the plan; a "tie" in time with others; "cheaper"; "dearer".
        reason: what the program does otherwise, a plain sentence without its subject; where none fits, "takes other steps".
        plan_s: seconds of the plan, as its objective counts them.
        program_s: seconds of the program at the same prices.
        planned: collectives of the plan, in short: AG, RS, AR, A2A, and CP for a permute, with axes and bytes.
        chosen: those of the program, largest first, in bytes of the plan's dtype; "?" stands for groups that are no whole axes.
        flops_ratio: FLOPs of a device in the program over those in the plan.
    """

    verdict: Verdict
    reason: str
    plan_s: float
    program_s: float
    planned: str
    chosen: str
    flops_ratio: float

    def __str__(self) -> str:
        times = f"{units.human(self.program_s, 's')} against {units.human(self.plan_s, 's')}"
        return f"{self.verdict}, {times}: {self.reason}\n  plan: {self.planned}\n  program: {self.chosen}"


def compare(
    plan: MatmulPlan,
    program: Program,
    slice: Slice | str,
    *,
    dtype: object = "bf16",
    hop_s: float = 0.0,
    start_s: float = 0.0,
    efficiency: float = 1.0,
) -> Choice:
    """A compiled program against the plan, collectives and local matmuls of both at the prices that the plan was made with.

    Args:
        plan: from `sharding.matmul_plan`.
        program: what a compiler made of the same product, of the same sizes, on the same mesh. Elements are compared, not
            bytes, and priced in the plan's dtype: simulated devices widen bf16 to float32.
        slice: as the plan was given it, and so are the others.
        dtype: of all arrays, and of the arithmetic.
        hop_s: latency of a hop.
        start_s: start-up of a collective.
        efficiency: fraction of the links' bandwidth that is reached.

    Raises:
        ValueError: for a program on another mesh, one that does not fit, prices other than the plan's, and a product that
            sums over nothing, for which compilers write no matmul.

    NB: groups that are no whole mesh axes are priced along a torus axis of their size, or else a line. Every permute costs
    what a plan pays for one, so let the compiler write no collective matmul, whose permutes go to the neighbor alone. An
    all-reduce that the TPU compiler fuses with a slice counts as a reduce-scatter; any other is an all-reduce.
    """
    if dict(program.axes) != dict(plan.mesh):
        raise ValueError(f"program {program.name!r} is for the axes {dict(program.axes)}, the plan for {dict(plan.mesh)}")
    if not plan.product.contracted:
        raise ValueError(f"{plan.product} sums over nothing: a compiler writes no matmul for it, so there is none to compare")
    slice = slice if isinstance(slice, Slice) else slice_of(slice)
    wires = {"hop_s": hop_s, "start_s": start_s, "efficiency": efficiency}
    price, itemsize = prices(plan.mesh, slice, **wires), units.itemsize(dtype)

    def collective_s(done: _Done) -> float:
        if done.part:
            return _part_s(done, done.elements * itemsize, _part(done.part, slice, wires))
        return price(done.kind, done.axes, done.elements * itemsize)

    def matmul_s(flops: float, elements: float) -> float:
        cost = roofline.Cost(flops={units.dtype_name(dtype): flops}, hbm_bytes=elements * itemsize)
        return roofline.bound(cost, slice.chip).lower_s

    planned = [_Done(step.kind, step.axes, round(step.bytes / itemsize)) for step in plan.collectives]
    chosen = sorted((done for one in program.collectives for done in _done(one)), key=lambda done: (-done.elements, done))
    plan_flops, plan_elements = _matmul(plan)
    _check(plan, sum(map(collective_s, planned)), matmul_s(plan_flops, plan_elements))
    communication_s = sum(map(collective_s, chosen))
    compute_s = sum(one.times * matmul_s(one.flops, one.elements) for one in program.matmuls)
    program_s = communication_s + compute_s if plan.objective == "sum" else max(communication_s, compute_s)
    missing, extra = _differing(planned, chosen)
    flops_ratio = program.flops / plan_flops
    same = not missing and not extra and math.isclose(compute_s, plan.compute_s, rel_tol=TIE)
    return Choice(
        "same" if same else _verdict(plan.seconds, program_s),
        _SAME if same else _reason(missing, extra, flops_ratio, compute_s / plan.compute_s),
        plan.seconds,
        program_s,
        _short(planned, itemsize),
        _short(chosen, itemsize),
        flops_ratio,
    )


class _Done(NamedTuple):
    """A collective of a plan or a program. `part` is the size of a group that is no whole mesh axes, else 0."""

    kind: str
    axes: tuple[str, ...]
    elements: int
    part: int = 0


def _done(one: Collective) -> list[_Done]:
    kind = "permute" if one.kind == "collective-permute" else one.kind
    part = 0 if one.axes or kind == "permute" or one.group == 1 else one.group
    return [_Done(kind, one.axes, one.elements, part)] * one.times


def _matmul(plan: MatmulPlan) -> tuple[int, int]:
    """FLOPs of the plan's local matmul, and the elements of its three arrays."""
    arrays = [(array.dims, array.local_shape(plan.sizes, plan.mesh)) for array in (*plan.matmul.before, plan.matmul.after)]
    local = {dim: n for dims, shape in arrays for dim, n in zip(dims, shape, strict=True)}
    return 2 * math.prod(local.values()), sum(math.prod(shape) for _, shape in arrays)


def _check(plan: MatmulPlan, communication_s: float, compute_s: float) -> None:
    """Refuses prices other than those that the plan was made with."""
    for what, here_s, there_s in (
        ("collectives", communication_s, plan.communication_s),
        ("matmul", compute_s, plan.compute_s),
    ):
        if not math.isclose(here_s, there_s, rel_tol=1e-6):
            raise ValueError(
                f"the plan's {what} take {units.human(here_s, 's')} at these prices and {units.human(there_s, 's')} at the "
                "plan's own; give the slice, dtype and latencies that the plan was made with"
            )


def _part(members: int, slice: Slice, wires: Mapping[str, float]) -> Group:
    whole = collectives.over(slice, 0, per="chip", **wires)  # type: ignore[arg-type]
    ring = any(wrap for size, wrap in zip(slice.shape, slice.wraps, strict=True) if size == members)
    return whole.but(sizes=(members,), wraps=(ring,) if whole.wraps else ())


def _part_s(done: _Done, array_bytes: float, group: Group) -> float:
    if done.kind == "all-reduce":
        return collectives.all_reduce(array_bytes, group).seconds
    if done.kind == "all-to-all":
        return collectives.all_to_all(array_bytes, group).seconds
    return collectives.all_gather(array_bytes, group).seconds


def _verdict(plan_s: float, program_s: float) -> Verdict:
    if abs(plan_s - program_s) <= max(TIE_S, TIE * max(plan_s, program_s)):
        return "tie"
    return "cheaper" if program_s < plan_s else "dearer"


def _differing(planned: Iterable[_Done], chosen: Iterable[_Done]) -> tuple[list[_Done], list[_Done]]:
    """Collectives of the plan alone, and of the program alone. The order of axes, and the axes of permutes, do not count."""

    def alike(done: _Done) -> object:
        return done.kind, () if done.kind == "permute" else tuple(sorted(done.axes)), done.elements, done.part

    def beyond(some: Iterable[_Done], others: Iterable[_Done]) -> list[_Done]:
        left = Counter(map(alike, others))
        found = []
        for done in some:
            if left[alike(done)]:
                left[alike(done)] -= 1
            else:
                found.append(done)
        return found

    return beyond(planned, chosen), beyond(chosen, planned)


_SAME = "does what the plan does"
_OTHER = "takes other steps"


def _reason(missing: Sequence[_Done], extra: Sequence[_Done], flops_ratio: float, compute_ratio: float) -> str:
    """What the program does otherwise: the first of these that holds.

    Args:
        missing: collectives that the plan alone has.
        extra: collectives that the program alone has.
        flops_ratio: FLOPs of the program over those of the plan.
        compute_ratio: seconds of local matmuls, likewise.
    """
    lost, gained = Counter(done.kind for done in missing), Counter(done.kind for done in extra)
    gathers = "all-gather"
    if flops_ratio > 1 + TIE:
        return "leaves an axis idle in the matmul, where the plan cuts by it"
    if flops_ratio < 1 - TIE:
        return "cuts the matmul by an axis that the plan leaves idle"
    if not extra and compute_ratio > 1 + TIE:
        return "reads larger arrays from HBM, where the plan moves parts of them first"
    if any(done.part for done in extra):
        return "splits an axis, which no plan does"
    if _padded(missing, extra):
        return "pads a reduce-scatter"
    if _sums(gained) and not _sums(lost) and (lost[gathers] or lost["all-to-all"]):
        return f"reduces partial sums where the plan {'gathers' if lost[gathers] else 'moves'} operands"
    if _sums(lost) and not _sums(gained) and (gained[gathers] or gained["all-to-all"]):
        return f"{'gathers' if gained[gathers] else 'moves'} operands where the plan reduces partial sums"
    if gained[gathers] and lost[gathers] and _largest(extra, gathers) > _largest(missing, gathers):
        return "gathers a larger array than the plan does"
    if gained["all-reduce"] > lost["all-reduce"] and lost["reduce-scatter"]:
        return "all-reduces where the plan reduce-scatters"
    if gained[gathers] and lost["all-to-all"] > gained["all-to-all"]:
        return "gathers where the plan moves an axis by all-to-all"
    if gained == lost:
        return "does the steps of the plan on other arrays or axes"
    if gained["permute"] > lost["permute"]:
        return "permutes more than the plan"
    return _OTHER


def _sums(kinds: Counter[str]) -> int:
    return sum(kinds[kind] for kind in _SUMS)


def _largest(steps: Sequence[_Done], kind: str) -> int:
    return max(done.elements for done in steps if done.kind == kind)


def _padded(missing: Sequence[_Done], extra: Sequence[_Done]) -> bool:
    """Whether all that differs is padding: a reduce-scatter a little larger, and permutes of no more than it adds."""
    sums = [done for done in extra if done.kind == "reduce-scatter"]
    if len(missing) != 1 or len(sums) != 1 or missing[0][:2] != sums[0][:2]:
        return False
    added = sums[0].elements - missing[0].elements
    rest = [done for done in extra if done is not sums[0]]
    few = all(done.kind == "permute" and done.elements <= MOST_PADDING * sums[0].elements for done in rest)
    return few and 0 < added <= MOST_PADDING * missing[0].elements


def _short(steps: Sequence[_Done], itemsize: float) -> str:
    def one(done: _Done) -> str:
        axes = "".join(done.axes) if not done.part else f"?{done.part}"
        return f"{_SHORT.get(done.kind, done.kind)} {axes} {units.human(done.elements * itemsize, 'B')}"

    return " + ".join(map(one, steps)) or "none"
