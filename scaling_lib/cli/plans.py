"""Training plans as text, as rows of a table, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from scaling_lib import units
from scaling_lib.cli.assumed import Assumed
from scaling_lib.training import Plan, StepEstimate
from scaling_lib.training.estimate import MEMORY

FIELDS = {f.name: f.default for f in fields(Plan) if f.name != "placement"}
NUMBERS = ("#", "micro", "step", "MFU", "memory, GiB", "tokens/s", "days", "USD")
_YES_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def settings(option: str, given: Iterable[str]) -> dict[str, Any]:
    """`fsdp=16,remat=full,sequence_parallel=no` as arguments of `Plan`; + joins names: offload=optimizer+activations.

    Raises:
        ValueError: for what is no argument of a plan, or has a value of another kind.
    """
    found: dict[str, Any] = {}
    for part in ",".join(given).replace(",", " ").split():
        name, _, value = part.partition("=")
        name = name.replace("-", "_")
        if not value:
            raise ValueError(f"{option} {part} does not read as name=value; write it like fsdp=16,remat=full")
        if name not in FIELDS:
            raise ValueError(f"{option} names {name!r}, which no plan has; {units.near(name, FIELDS)}")
        if name in found:
            raise ValueError(f"{option} gives {name} twice")
        found[name] = _value(option, name, value)
    return found


def _value(option: str, name: str, value: str) -> Any:
    default = FIELDS[name]
    if isinstance(default, bool):
        if value.lower() not in _YES_NO:
            raise ValueError(f"{option} {name}={value} is neither yes nor no")
        return _YES_NO[value.lower()]
    if isinstance(default, int):
        if not value.isdecimal() or len(value) > 15:
            raise ValueError(f"{option} {name}={value} is no whole number; write it like {name}=4")
        return int(value)
    if name == "offload":
        return () if value == "none" else tuple(value.split("+"))
    if name == "remat":
        return remat(value)
    return None if name in ("master", "reduced") and value == "none" else value


def placement(option: str, given: str) -> dict[str, Any]:
    """`fsdp=0+1,tensor=2:4,data=2:2` as the placement of a plan: fsdp on all of axes 0 and 1, and axis 2 cut into two.

    Raises:
        ValueError: for what does not read so.
    """
    found: dict[str, Any] = {}
    for part in given.replace(",", " ").split():
        match = re.fullmatch(
            r"([a-z]+)=((?:[0-9]|chip|node|dcn)(?::[0-9]{1,9})?(?:\+(?:[0-9]|chip|node|dcn)(?::[0-9]{1,9})?)*)", part
        )
        if not match:
            raise ValueError(f"{option} {part} does not read as axis=place; write it like fsdp=0+1,tensor=2:4,data=2:2")
        places = [place.partition(":") for place in match[2].split("+")]
        whole = [int(name) if name.isdecimal() else name for name, _, _ in places]
        if all(size for _, _, size in places):
            found[match[1]] = {place: int(size) for place, (_, _, size) in zip(whole, places, strict=True)}
        elif any(size for _, _, size in places):
            raise ValueError(f"{option} {part} gives parts for some places and not for others; give them for all or none")
        else:
            found[match[1]] = tuple(whole)
    return found


def remat(value: str) -> str | tuple[str, ...]:
    """A policy, or the names of what is kept: mlp.up+mlp.gate, mlp.up+ for one alone, + for none."""
    return tuple(filter(None, value.split("+"))) if "+" in value else value


def row(estimate: StepEstimate, rank: int, assumed: Assumed) -> dict[str, str]:
    """One plan of a table; days and dollars where there is a budget of tokens, and a price."""
    plan = estimate.plan
    ways = [f"{axis} {ways}" for axis, ways in plan.axes.items() if ways > 1]
    ways += [f"zero {plan.zero}"] * (plan.zero < 3 and plan.fsdp * plan.context * plan.expert > 1)
    if plan.pipeline > 1:
        ways += [plan.schedule + (f" × {plan.virtual_stages}" if plan.virtual_stages > 1 else "")]
    shown = {
        "#": str(rank),
        "splits": " · ".join(ways) or "one device",
        "micro": str(plan.microbatches),
        "remat": plan.remat if isinstance(plan.remat, str) else "+".join(plan.remat),
        "step": units.human(estimate.seconds, "s"),
        "MFU": f"{estimate.mfu:.1%}",
        "memory, GiB": f"{float(estimate.memory.total) / units.GIB:.1f}/{estimate.usable_bytes / units.GIB:.1f}",
        "tokens/s": f"{estimate.tokens_per_s:,.0f}",
    }
    if assumed.tokens is not None:
        shown["days"] = f"{estimate.days(assumed.tokens, assumed.goodput):,.1f}"
        if assumed.usd is not None:
            shown["USD"] = f"{estimate.dollars(assumed.tokens, assumed.goodput, assumed.usd):,.0f}"
    return shown


def facts(estimate: StepEstimate, assumed: Assumed) -> dict[str, Any]:
    """An estimate in base units, under the names of its fields and properties; memory and usable bytes are of one device."""
    inequality, memory = estimate.inequality, estimate.memory
    budget: dict[str, Any] = {"efficiency": assumed.efficiency}
    if (tokens := assumed.tokens) is not None:
        budget |= {"tokens": tokens, "days": estimate.days(tokens, assumed.goodput), "goodput": assumed.goodput}
        budget["usd"] = None if assumed.usd is None else estimate.dollars(tokens, assumed.goodput, assumed.usd)
        budget |= {"usd_per_chip_hour": assumed.usd, "price_source": assumed.source}
    names = (
        "seconds",
        "lower_s",
        "upper_s",
        "bubble_s",
        "parts_s",
        "tokens_per_s",
        "mfu",
        "hfu",
        "binds",
        "fits",
        "usable_bytes",
    )
    return {
        "model": str(estimate.model),
        "slice": str(estimate.slice),
        "batch": estimate.batch,
        "T": estimate.T,
        "plan": _plan(estimate.plan),
        **{name: getattr(estimate, name) for name in names},
        "exposed_s": estimate.exposed_s(),
        "memory_bytes": {name: float(getattr(memory, name)) for name in (*MEMORY, "total")},
        "memory_bytes_per_chip": estimate.memory_bytes_per_chip,
        "inequality": asdict(inequality),
        "collectives": [
            {name: getattr(each, name) for name in ("part", "what", "kind", "group", "array_bytes", "count", "total_bytes")}
            for each in estimate.collectives
        ],
        **budget,
    }


def _plan(plan: Plan) -> dict[str, Any]:
    placement: Mapping[str, Any] | None = plan.placement
    shown: dict[str, Any] = {name: getattr(plan, name) for name in FIELDS}
    if placement is not None:
        shown["placement"] = {axis: {str(place): ways for place, ways in parts.items()} for axis, parts in placement.items()}
    return shown
