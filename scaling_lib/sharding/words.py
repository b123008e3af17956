"""A plan in words: why each step is needed."""

from __future__ import annotations

from scaling_lib import units
from scaling_lib.sharding.notation import Sharding
from scaling_lib.sharding.plan import MatmulPlan, Step

_MOVED_ON = "The parts have the right size for {}, and other devices are to hold them."
_SHARED_OUT = "Devices along {} hold copies; each passes on a part of them."


def explain(plan: MatmulPlan) -> str:
    """One line for each step, one for the time, one for the runner-up."""
    lines = [f"{plan.product}"]
    for number, step in enumerate(plan.steps, 1):
        lines.append(f"{number}. {step}. {_why(step, plan)}{_cost(step)}")
    lines.append(
        f"Time: {units.human(plan.lower_s, 's')} if communication and compute overlap fully, "
        f"{units.human(plan.upper_s, 's')} if they do not."
    )
    if plan.runner_up is None:
        lines.append("No plan with other collectives exists.")
    else:
        other = plan.runner_up
        instead = "; ".join(str(step) for step in other.collectives) or "no collective"
        work = "" if other.compute_s == plan.compute_s else f", local matmul {units.human(other.compute_s, 's')}"
        lines.append(f"Runner-up: {instead}{work}. It takes {units.human(other.seconds, 's')}{_longer(other, plan)}.")
    return "\n".join(lines)


def _longer(other: MatmulPlan, plan: MatmulPlan) -> str:
    if not plan.seconds:
        return "" if other.seconds else ", as long"
    times = f"{other.seconds / plan.seconds:.3g}"
    return ", as long" if times == "1" else f", {times} times as long"


def _cost(step: Step) -> str:
    if step.kind == "slice":
        return " No bytes move."
    if step.kind == "matmul":
        return f" {units.human(step.seconds, 's')}."
    return f" {units.human(step.bytes, 'B')} on a device, {units.human(step.seconds, 's')}."


def _why(step: Step, plan: MatmulPlan) -> str:
    if step.kind == "matmul":
        sums = ", ".join(step.after.unreduced)
        if sums:
            return f"Each device multiplies what it holds; along {sums} it has a part of the sum."
        return "Each device multiplies what it holds, and its part of the result is complete."
    return _why_result(step, plan) if step.array == "c" else _why_operand(step, plan)


def _why_result(step: Step, plan: MatmulPlan) -> str:
    name, axes, wanted = step.after.name, _list(step.axes), plan.product.c
    lost, gained = _changed(step)
    if step.kind == "all-reduce":
        return f"The parts of the sum over {axes} are added, and each device gets the sum of what it holds."
    if step.kind == "reduce-scatter":
        return f"The parts of the sum over {axes} are added, and each device gets a part of {_list(gained)}."
    if step.kind == "slice":
        if _cut(wanted, gained, step.axes):
            return f"{name} is wanted with {_list(gained)} cut by {axes}, and every device has that part."
        return _SHARED_OUT.format(axes)
    if step.kind == "permute":
        return _MOVED_ON.format(step.after)
    if any(axis in _axes_of(wanted, dim) for dim in lost for axis in step.axes):
        return f"On the way to {wanted}."
    if step.kind == "all-gather":
        return f"{name} is wanted with {_list(lost)} not cut by {axes}."
    if _cut(wanted, gained, step.axes):
        return f"{name} is wanted with {axes} on {_list(gained)}, not on {_list(lost)}."
    return f"On the way to {wanted}."


def _why_operand(step: Step, plan: MatmulPlan) -> str:
    axes = _list(step.axes)
    own, other = plan.matmul.before if step.array == "a" else plan.matmul.before[::-1]
    lost, gained = _changed(step)
    if step.kind in ("all-reduce", "reduce-scatter"):
        instead, by = _instead(step.axes, own, other)
        reason = f"{own.name} arrives as partial sums over {axes}" + (f", and {instead} cut by {by}." if instead else ".")
        return reason + (f" Each device keeps a part of {_list(gained)}." if gained else "")
    if step.kind == "slice":
        if _given_cut(other, gained, step, plan):
            return f"{_list(gained)} of {other.name} is cut by {axes}; each device keeps the part that goes with it."
        if _cut(own, gained, step.axes):
            return f"Copies along {axes} would do the same work; each device keeps a part of {_list(gained)}."
        return _SHARED_OUT.format(axes)
    if step.kind == "permute":
        return _MOVED_ON.format(step.after)
    if any(axis in _axes_of(own, dim) for dim in lost for axis in step.axes):
        return f"On the way to {own}, which the matmul reads."
    if step.kind == "all-gather":
        if dims := [dim for dim in lost if dim in plan.product.contracted]:
            return f"{_list(dims)} is summed over, and {other.name} is not cut alike: {other}."
        instead, by = _instead(step.axes, own, other)
        rest = "" if by == axes else f" cut by {by}"
        return f"{_list(lost)} is not cut by {axes} in the matmul" + (f"; {instead}{rest}." if instead else ".")
    if _cut(own, gained, step.axes):
        return f"The matmul reads {own}, with {axes} on {_list(gained)} where it was on {_list(lost)}."
    return f"On the way to {own}, which the matmul reads."


def _axes_of(array: Sharding, dim: str) -> tuple[str, ...]:
    return array.axes[array.dims.index(dim)]


def _cut(array: Sharding, dims: list[str], axes: tuple[str, ...]) -> bool:
    """Whether all these axes cut all these dimensions."""
    return all(axis in _axes_of(array, dim) for dim in dims for axis in axes)


def _given_cut(other: Sharding, gained: list[str], step: Step, plan: MatmulPlan) -> bool:
    """Whether the other operand is cut alike in the matmul, and not by a slice of its own."""
    if not all(dim in other.dims and _cut(other, [dim], step.axes) for dim in gained):
        return False
    slices = [one for one in plan.steps if one.kind == "slice" and one.array not in (step.array, "c")]
    return not any(one.axes == step.axes and _changed(one)[1] == gained for one in slices)


def _instead(axes: tuple[str, ...], own: Sharding, other: Sharding) -> tuple[str, str]:
    """What some of the axes cut in the matmul, and which: a dimension of the other operand, or else one of this; or nothing."""
    for array in (other, own):
        if on := [dim for dim in array.dims if set(_axes_of(array, dim)) & set(axes)]:
            by = [axis for axis in axes if any(axis in _axes_of(array, dim) for dim in on)]
            return f"{_list(on)} of {array.name} {'is' if len(on) == 1 else 'are'}", _list(by)
    return "", ""


def _changed(step: Step) -> tuple[list[str], list[str]]:
    """Dimensions that lose axes in a step, and dimensions that gain some."""
    (before,) = step.before
    pairs = list(zip(before.dims, before.axes, step.after.axes, strict=True))
    return [dim for dim, old, new in pairs if set(old) - set(new)], [dim for dim, old, new in pairs if set(new) - set(old)]


def _list(names: tuple[str, ...] | list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
