"""The plan explorer: how a training step is split, and what that makes of its time and of each device's memory."""

from __future__ import annotations

import math
import re
from html import escape
from typing import Any

import ipywidgets as widgets

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.show import steps
from scaling_lib.show.explorers.base import (
    OWN,
    Control,
    Explorer,
    View,
    control,
    dropdown,
    follow_choice,
    link,
    narrow,
    python,
    read_size,
    words_and_table,
)
from scaling_lib.training import Plan, StepEstimate, estimate, why_not
from scaling_lib.training.estimate import MEMORY
from scaling_lib.training.lighter import lighter
from scaling_lib.training.pipeline import SCHEDULES
from scaling_lib.transformer import MODELS

SLICES = (
    "v5e:4x4", "v5e:16x16", "v6e:16x16", "v4:8x8x8", "v5p:4x4x4", "v5p:8x8x8", "v5p:16x16x16", "v5p:16x16x24", "v5p:16x20x28",
    "tpu7x:4x4x4", "tpu7x:8x8x16", "h100:8x8", "h100:8x128", "h200:8x16", "b200:8x32", "gb200:72x8",
)  # fmt: skip
REMATS = ("none", "selective", "full")
REST = "rest"
"""What stands for the ways that are left."""

_OTHERS = ("data", "tensor", "context", "pipeline", "expert")


def plan_view(
    model: str,
    slice: str,
    count: int,
    batch: int,
    T: int,
    data: int,
    fsdp: int | str,
    tensor: int,
    context: int,
    pipeline: int,
    expert: int,
    zero: int,
    microbatches: int,
    schedule: str,
    virtual_stages: int,
    uneven_stages: bool,
    remat: str,
    sequence_parallel: bool,
    loss_chunks: int,
    efficiency: float,
) -> View:
    """The plan explorer for one state; all but `fsdp` as of `training.Plan` and `training.estimate`.

    Args:
        model: name of a model of the catalog.
        slice: the chips of one slice: "v5p:8x8x8", or GPU nodes "h100:8x128".
        count: slices that work together over DCN; 1 for GPUs.
        batch: sequences of a step.
        T: tokens in a sequence.
        data: ways.
        fsdp: ways, or "rest" for what is left of the devices. With zero=0 the rest makes copies, so it counts as data.
        tensor: ways.
        context: ways.
        pipeline: stages.
        expert: ways.
        zero: what is shared out, 0 to 3.
        microbatches: parts of a replica's sequences.
        schedule: of the pipeline.
        virtual_stages: chunks of layers a stage has.
        uneven_stages: whether layers need not divide.
        remat: what is kept for the backward pass.
        sequence_parallel: whether tensor ways split the tokens of what is D wide.
        loss_chunks: parts in which logits are made.
        efficiency: part of the dense peak that matmuls reach.

    Raises:
        ValueError: for a plan that cannot run, in the words of `training.why_not`; one that does not fit is shown.
    """
    state = dict(locals())
    on = slice_of(slice, count)
    plan = _plan(on, fsdp, {name: state[name] for name in (*_OTHERS, *_HOW)})
    if why := why_not(plan, MODELS[model], on, batch, T):
        raise ValueError(why)
    of = estimate(model, on, plan, batch, T=T, efficiency=efficiency)
    return View(_numbers(of), steps.parts(of).svg, python(_code(of, efficiency)), link("plan", **state))


_HOW = ("zero", "microbatches", "schedule", "virtual_stages", "uneven_stages", "remat", "sequence_parallel", "loss_chunks")


def plan_explorer(
    *,
    model: str = "Llama-3 70B",
    slice: str = "v5p:8x8x8",
    count: int = 1,
    batch: int = 512,
    T: int = 8192,
    data: int = 1,
    fsdp: int | str = REST,
    tensor: int = 4,
    context: int = 1,
    pipeline: int = 1,
    expert: int = 1,
    zero: int = 3,
    microbatches: int = 1,
    schedule: str = "1f1b",
    virtual_stages: int = 1,
    uneven_stages: bool = False,
    remat: str = "full",
    sequence_parallel: bool = True,
    loss_chunks: int = 1,
    efficiency: float = 1.0,
) -> Explorer:
    """A training step under a plan: time by part with the band between both overlaps, memory by part, MFU, and what binds.

    Args:
        model: where to start, among the catalog's.
        slice: the chips of one slice, typed or picked.
        count: slices over DCN.
        batch: sequences of a step.
        T: tokens in a sequence.
        data: ways; this and all that follow as of `training.Plan`.
        fsdp: ways, or "rest" for what is left of the devices.
        tensor: ways.
        context: ways.
        pipeline: stages.
        expert: ways.
        zero: what is shared out.
        microbatches: parts of a replica's sequences.
        schedule: of the pipeline.
        virtual_stages: chunks of layers a stage has.
        uneven_stages: whether layers need not divide.
        remat: "none", "selective" or "full".
        sequence_parallel: whether tensor ways split the tokens of what is D wide.
        loss_chunks: parts in which logits are made.
        efficiency: part of the dense peak that matmuls reach, in steps of 0.05.

    Raises:
        ValueError: for a value that the control cannot hold, and a plan that cannot run.
    """
    start = dict(locals())
    pick = control(widgets.Dropdown, "usual slices", options=(OWN, *SLICES), value=OWN).widget
    controls = {
        "model": dropdown("model", tuple(MODELS)),
        "slice": control(widgets.Text, "slice", lambda text: slice_of(text).name, value=SLICES[0]),
        "count": _small("count", "slices"),
        "batch": _small("batch", "sequences"),
        "T": _small("T", "T, tokens"),
        "data": _small("data", "data"),
        "fsdp": narrow(control(widgets.Text, "fsdp", _read_fsdp, value=REST)),
        "tensor": _small("tensor", "tensor"),
        "context": _small("context", "context"),
        "pipeline": _small("pipeline", "pipeline"),
        "expert": _small("expert", "expert"),
        "zero": _choice("zero", (0, 1, 2, 3)),
        "microbatches": _small("microbatches", "microbatches"),
        "schedule": _choice("schedule", SCHEDULES),
        "virtual_stages": _small("virtual_stages", "virt. stages"),
        "uneven_stages": _choice("uneven", (False, True)),
        "remat": _choice("remat", REMATS),
        "sequence_parallel": _choice("seq. parallel", (False, True)),
        "loss_chunks": _small("loss_chunks", "loss chunks"),
        "efficiency": _choice("efficiency", tuple(n / 20 for n in range(6, 21))),
    }
    for field, each in controls.items():
        each.fill(field, str(start[field]))
    plan_view(**{field: each.read(each.widget.value) for field, each in controls.items()})  # refuses what it must

    def named(text: str) -> str:
        name = slice_of(text).name
        return name if name in SLICES else OWN

    follow = follow_choice(pick, controls["slice"].widget, str, named)
    groups = (
        ("count", "batch", "T", "microbatches", "virtual_stages", "loss_chunks"),
        ("data", "fsdp", "tensor", "context", "pipeline", "expert"),
        ("zero", "remat", "sequence_parallel", "schedule", "uneven_stages", "efficiency"),
    )
    return Explorer("plan", controls, plan_view, follow, joint=_at, helpers=(pick,), groups=groups)


def _small(name: str, description: str) -> Control:
    return narrow(control(widgets.Text, description, lambda text: read_size(name, text), value="1"))


def _choice(description: str, options: Any) -> Control:
    return narrow(dropdown(description, options), "180px")


def _read_fsdp(text: str) -> int | str:
    return REST if text.strip().lower() == REST else read_size("fsdp", text)


def _at(words: str) -> str:
    """The control that words about a plan name first; of a product that is not the devices, the last that was free to choose."""
    if "devices, but" in words:
        return "fsdp"
    found = ["virtual_stages" if name == "virtual" else name for name in re.findall(r"(\w+)=", words)]
    fields = {"data", "fsdp", "zero", "batch", "T", "tensor", "context", "pipeline", "expert", "microbatches", "schedule",
              "virtual_stages", "loss_chunks"}  # fmt: skip
    return next((field for field in found if field in fields), "slice")


def _plan(on: Slice, fsdp: int | str, settings: dict[str, Any]) -> Plan:
    if not isinstance(fsdp, str):
        return Plan(fsdp=fsdp, **settings)
    if fsdp != REST:
        raise ValueError(f"fsdp={fsdp!r} is no number of ways; give one, or 'rest' for what is left of the devices")
    others = math.prod(units.size(name, settings[name]) for name in _OTHERS)
    rest = on.devices // others if on.devices % others == 0 else 1  # where it does not divide, `why_not` says so
    return Plan(**settings | {"data": settings["data"] * rest}) if settings["zero"] == 0 else Plan(fsdp=rest, **settings)


def _numbers(of: StepEstimate) -> str:
    held, usable = (units.human(float(size), "GiB") for size in (of.memory.total, of.usable_bytes))
    binds = "The matrix unit binds" if of.binds == "math" else f"{of.binds} binds"
    fits = f"It fits: {held} of {usable} a device." if of.fits else _short(of)
    words = f"<b>{escape(binds[0].upper() + binds[1:])}</b>: {escape(str(of.inequality))}. <b>{escape(fits)}</b>"
    places = of.plan.placement or {}
    rows = {
        "plan": str(of.plan),
        "a step": f"{units.human(of.lower_s, 's')} if all hides, {units.human(of.upper_s, 's')} if nothing does",
        "beside math": f"{units.human(of.exposed_s('full'), 's')} to {units.human(of.exposed_s('none'), 's')}",
        "MFU": f"{_mfu(of, of.upper_s)} to {_mfu(of, of.lower_s)}",
        "tokens/s": f"{units.human(of.batch * of.T / of.upper_s)} to {units.human(of.batch * of.T / of.lower_s)}",
        "tokens a chip": units.human(of.batch * of.T / of.slice.chips, digits=4),
        "memory": f"{held} of {usable} a device",
        "the most of it": _largest(of),
        "lie on": "; ".join(f"{axis} on {_where(parts)}" for axis, parts in places.items()) or "nothing",
    }
    return words_and_table(words, rows)


def _mfu(of: StepEstimate, seconds: float) -> str:
    return f"{of.mfu * of.seconds / seconds:.1%}"


def _largest(of: StepEstimate) -> str:
    name = max(MEMORY, key=lambda part: float(getattr(of.memory, part)))
    return f"{name}, {units.human(float(getattr(of.memory, name)), 'GiB')}"


def _where(parts: Any) -> str:
    return ", ".join(
        f"{size} of axis {place}" if isinstance(place, int) else f"{size} of {place}" for place, size in parts.items()
    )


def _short(of: StepEstimate) -> str:
    """How much is missing, and the first change that makes it fit."""
    missing = units.human(float(of.memory.total) - of.usable_bytes, "GiB")
    usable = units.human(of.usable_bytes, "GiB")
    would = next((f"{what} would do" for what, less in lighter(of) if less.fits), "take more chips, or pipeline stages")
    return f"It does not fit: {missing} too much for the {usable} of a device; {would}."


def _code(of: StepEstimate, efficiency: float) -> str:
    default, plan = Plan(), of.plan
    fields = ("data", "fsdp", "tensor", "context", "pipeline", "expert", *_HOW)
    given = [f"    {name}={getattr(plan, name)!r},\n" for name in fields if getattr(plan, name) != getattr(default, name)]
    where = f'slice_of("{of.slice.name}"{f", count={of.slice.count}" if of.slice.count > 1 else ""})'
    return f"""\
from scaling_lib.hardware import slice_of
from scaling_lib.show import steps
from scaling_lib.training import Plan, estimate

plan = Plan(
{"".join(given)})
step = estimate(
    "{of.model}", {where}, plan,
    {of.batch}, T={of.T}, efficiency={efficiency},
)
print(step)
steps.parts(step)"""
