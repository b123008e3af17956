"""Measured against predicted, operation by operation: a profile beside the roofline of the machine that ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaling_lib import roofline, units
from scaling_lib.xla.measure import Machine
from scaling_lib.xla.profile.tables import Profile
from scaling_lib.xla.program import flops, hlo
from scaling_lib.xla.timeline.durations import moved_bytes


@dataclass(frozen=True)
class Row:
    """One operation of a program, measured and predicted.

    Args:
        name: the HLO instruction's name.
        kind: as in `Op`.
        runs: how often it ran, on all devices together.
        measured_s: seconds of its own that a run took on average.
        predicted_s: seconds of the roofline's lower bound; None for a collective or work of the host, of which the roofline of
            one machine says nothing.
        cost: FLOPs by dtype and bytes of one run.
    """

    name: str
    kind: str
    runs: int
    measured_s: float
    predicted_s: float | None
    cost: roofline.Cost

    @property
    def ratio(self) -> float | None:
        """Measured ÷ predicted; None without a prediction, or where it is 0."""
        return self.measured_s / self.predicted_s if self.predicted_s else None


def compare(profile: Profile, program: str, machine: Machine) -> tuple[Row, ...]:
    """The operations of a program, measured and predicted, those that took longest in all first.

    An operation is predicted by its FLOPs and by the bytes that it reads and writes, as `roofline.bound` has it; the start-up
    time of the machine is that of a call, not of an operation, and left out.

    Args:
        profile: a measured profile, with one program or several.
        program: optimized HLO of one, as `compiled.as_text()` returns it.
        machine: what `measure.fit` found for the machine that ran it, in the dtype of the program's matmuls.

    Returns:
        A row an operation of the program that ran; loops and calls left out.

    Raises:
        ValueError: for a profile in which nothing of the program ran, or a matmul in a dtype of which the machine has no peak.

    NB: simulated devices share one machine, so that several at work at once are each slower than predicted.
    """
    module = hlo.parse(program)
    costs = _costs(module)
    ran: dict[tuple[str, str], list[float]] = {}
    for op in profile.ops:
        if op.module in ("", module.name) and op.name in costs:
            ran.setdefault((op.name, op.kind), []).append(op.self_s)
    if not ran:
        have = ", ".join(sorted({op.module for op in profile.ops})) or "none with a name"
        raise ValueError(f"program {module.name!r} did not run in this profile; programs that did: {have}")
    rows, peaks = [], machine.chip.peak_flops_per_s
    for (name, kind), taken in sorted(ran.items(), key=lambda item: -sum(item[1])):
        if odd := set(costs[name].flops) - set(peaks):
            raise ValueError(
                f"operation {name!r} multiplies {min(odd)}, and machine has peaks for {', '.join(peaks)}; "
                "fit it in the dtype of the program"
            )
        known = kind not in ("collective", "host")
        predicted_s = roofline.bound(costs[name], machine.chip).lower_s if known else None
        rows.append(Row(name, kind, len(taken), sum(taken) / len(taken), predicted_s, costs[name]))
    return tuple(rows)


def _costs(module: hlo.Module) -> Mapping[str, roofline.Cost]:
    """What one run of every operation outside of fusions needs; loops, calls and what moves nothing left out."""
    free = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
    costs: dict[str, roofline.Cost] = {}
    for visit in hlo.walk(module):
        one = visit.instruction
        if visit.holder is one and one.opcode not in free:
            costs[one.name] = roofline.Cost(hbm_bytes=moved_bytes(one, visit.computation, module))
        if visit.holder and one.opcode in ("dot", "convolution"):
            dtype = units.dtype_name(visit.computation.instructions[one.operands[0]].arrays[0].dtype)
            costs[visit.holder.name] += roofline.Cost(flops={dtype: flops.of(visit)})
    return costs
