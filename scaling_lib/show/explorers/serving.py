"""The serving explorer: latency against dollars or throughput, over batches and slices, up to where memory is full."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as widgets

from scaling_lib import hardware, units
from scaling_lib.hardware import Chip, Slice
from scaling_lib.inference import Layout
from scaling_lib.inference.sizing import Server, best_server, slices_of
from scaling_lib.show import pareto
from scaling_lib.show.explorers.base import (
    Control,
    Explorer,
    View,
    control,
    dropdown,
    link,
    narrow,
    python,
    size_field,
    words_and_table,
)
from scaling_lib.show.explorers.chips import LIST, has_all, read_price
from scaling_lib.training.money import HOUR_S
from scaling_lib.transformer import MODELS

ANY = "any"
"""What stands for a time that does not matter."""
AGAINST = ("USD a million tokens", "tokens/s a chip")
WEIGHTS, CACHES, MATHS = ("bf16", "int8", "fp8", "int4", "fp4"), ("bf16", "int8", "fp8", "int4"), ("bf16", "int8", "fp8", "fp4")
MOST_CHIPS = 256

_LINES = 5  # slices that are drawn, the smallest that hold the model: each has its many layouts to be priced
_BEYOND = (1.25, 1.5, 2, 3, 4)  # times the largest batch, drawn as what cannot be had


def serving_view(
    model: str,
    chip: str,
    input: int,
    output: int,
    weights: str,
    kv: str,
    math: str,
    tpot_ms: float | str,
    ttft_ms: float | str,
    usd_per_chip_hour: float | str,
    against: str,
) -> View:
    """The serving explorer for one state.

    Args:
        model: name of a model of the catalog.
        chip: name of a chip.
        input: tokens of a prompt.
        output: new tokens of a request.
        weights: dtype of the weights.
        kv: dtype of the cache.
        math: dtype of the layers' matmuls.
        tpot_ms: milliseconds that may pass from token to token, or "any".
        ttft_ms: milliseconds that the first token may take, without waiting, or "any".
        usd_per_chip_hour: your own price, or "list" for the catalog's.
        against: the vertical axis, of `AGAINST`.

    Raises:
        ValueError: for a chip without a list price, a dtype that it has no figure for, a model that fits on no slice.
    """
    state = dict(locals())
    of, on = MODELS[model], hardware.chip(chip)
    base = Layout(weights=weights, kv=kv, math=math)
    dollars = against == AGAINST[0]
    price = _price(on, usd_per_chip_hour) if dollars else None
    limit_s, first_s = _seconds(tpot_ms), _seconds(ttft_ms)
    found: list[Server] = []
    small: list[Slice] = []
    for slice in slices_of(on, MOST_CHIPS):
        one = best_server(of, slice, input=input, output=output, base=base, tpot_s=limit_s, ttft_s=first_s)
        if one is not None:
            found.append(one)
        else:
            small.append(slice)
        if len(found) == _LINES:
            break
    if not found:
        raise ValueError(
            f"model={model!r}: not one sequence of {input} + {output} tokens fits on {small[-1]} or less of {on}; take another "
            "chip, fewer bits, or fewer tokens"
        )
    will_do = [(one, one.batch(limit_s)) for one in found if first_s is None or one.ttft_s <= first_s]
    costs = [(one.at(batch)[1], which) for which, (one, batch) in enumerate(will_do) if batch]
    best = will_do[min(costs)[1]] if costs else None

    def point(one: Server, batch: int) -> pareto.Point:
        seconds, chip_s = one.at(batch)
        return seconds, _worth(chip_s, price)

    lines = [
        pareto.Line(
            str(one.slice),
            f"to {one.max_batch:,} conversations",
            [point(one, batch) for batch in batches(one.max_batch)],
            [point(one, round(times * one.max_batch)) for times in _BEYOND if round(times * one.max_batch) > one.max_batch],
            first_s is not None and one.ttft_s > first_s,
        )
        for one in found
    ]
    drawing = pareto.curves(
        lines, against, more_is_better=not dollars, limit_s=limit_s, best=None if best is None else point(*best)
    )
    numbers = _numbers(found, small, best, limit_s, first_s, price)
    return View(numbers, drawing.svg, python(_code(state)), link("serving", **state))


def serving_explorer(
    *,
    model: str = "Llama-3 8B",
    chip: str = "v5e",
    input: int = 2048,
    output: int = 256,
    weights: str = "bf16",
    kv: str = "bf16",
    math: str = "bf16",
    tpot_ms: float | str = 25,
    ttft_ms: float | str = ANY,
    usd_per_chip_hour: float | str = LIST,
    against: str = AGAINST[0],
) -> Explorer:
    """Latency against dollars or throughput: a line of batches for each slice, to where memory is full, and the best marked.

    Args:
        model: where to start, among the catalog's.
        chip: among those with all figures.
        input: tokens of a prompt.
        output: new tokens of a request.
        weights: dtype of the weights.
        kv: dtype of the cache.
        math: dtype of the layers' matmuls.
        tpot_ms: milliseconds that may pass from token to token, or "any".
        ttft_ms: milliseconds that the first token may take, or "any".
        usd_per_chip_hour: your own price, or "list" for the catalog's.
        against: "USD a million tokens" or "tokens/s a chip".

    Raises:
        ValueError: for a value that the control cannot hold, and values that do not go together.
    """
    start = dict(locals())
    chips = tuple(each.name for each in hardware.CHIPS.values() if has_all(each))
    controls = {
        "model": dropdown("model", tuple(MODELS)),
        "chip": dropdown("chip", chips),
        "input": narrow(size_field("input", "prompt")),
        "output": narrow(size_field("output", "answer")),
        "weights": narrow(dropdown("weights in", WEIGHTS), "180px"),
        "kv": narrow(dropdown("cache in", CACHES), "180px"),
        "math": narrow(dropdown("matmuls in", MATHS), "180px"),
        "tpot_ms": narrow(_limit("tpot_ms", "≤ ms a token")),
        "ttft_ms": narrow(_limit("ttft_ms", "≤ ms first")),
        "usd_per_chip_hour": control(widgets.Text, "$ a chip and hour", read_price, value=LIST),
        "against": dropdown("against", AGAINST),
    }
    start |= {"chip": hardware.chip(chip).name}
    for field, each in controls.items():
        each.fill(field, str(start[field]))
    serving_view(**{field: each.read(each.widget.value) for field, each in controls.items()})  # refuses what it must
    groups = (("input", "output"), ("weights", "kv", "math"), ("tpot_ms", "ttft_ms"))
    return Explorer("serving", controls, serving_view, joint=_at, groups=groups)


def batches(most: int) -> list[int]:
    """Batches up to the largest: two for each doubling, and the largest."""
    steps = {n << power for power in range(most.bit_length()) for n in (2, 3)} | {1}
    return sorted({step for step in steps if step < most} | {most})


def _limit(name: str, description: str) -> Control:
    def read(text: str) -> float | str:
        typed = text.strip().lower().removesuffix("ms").strip()
        if typed == ANY:
            return ANY
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", typed) or float(typed) == 0:
            raise ValueError(f"{name}={text!r} is no time; write milliseconds like '25', or 'any'")
        return float(typed)

    return control(widgets.Text, description, read, value=ANY)


def _at(words: str) -> str:
    """The control that words name first; of a dtype without a figure, that of the matmuls."""
    if words.startswith("dtype="):
        return "math"
    return next((field for field in re.findall(r"(\w+)=", words) if field in ("model", "usd_per_chip_hour")), "chip")


def _price(chip: Chip, given: float | str) -> float:
    if not isinstance(given, str):
        return given
    if "usd_per_hour" not in chip.figures:
        raise ValueError(
            f"usd_per_chip_hour='list', but no source states a list price of {chip}; write your own, like '2.50', or look at "
            "tokens/s a chip"
        )
    return chip.usd_per_hour


def _seconds(ms: float | str) -> float | None:
    return None if isinstance(ms, str) else ms / 1e3


def _worth(chip_s: float, price: float | None) -> float:
    """Dollars of a million tokens, or tokens that a chip makes in a second, where no price is asked for."""
    return 1 / chip_s if price is None else 1e6 * chip_s * price / HOUR_S


def _ways(layout: Layout) -> str:
    return str(layout).partition(", weights")[0]


def _numbers(
    found: list[Server],
    small: list[Slice],
    best: tuple[Server, int] | None,
    limit_s: float | None,
    first_s: float | None,
    price: float | None,
) -> str:
    def worth(one: Server, batch: int) -> str:
        value = units.human(_worth(one.at(batch)[1], price))
        return f"{value} tokens/s a chip" if price is None else f"${value} a million"

    def row(one: Server) -> str:
        if first_s is not None and one.ttft_s > first_s:
            return f"the first token takes {units.human(one.ttft_s, 's')}, too long"
        batch = one.batch(limit_s)
        if not batch:
            return f"a token takes {units.human(one.tpot_s(1), 's')} at least, too long"
        at = (
            f"{batch:,} of {one.max_batch:,} conversations"
            if batch < one.max_batch
            else f"{batch:,} conversations, memory is full"
        )
        times = f"a token in {units.human(one.tpot_s(batch), 's')}, the first in {units.human(one.ttft_s, 's')}"
        return f"{at}, {times}, {worth(one, batch)}"

    asked = [] if limit_s is None else [f"a token within {units.human(limit_s, 's')}"]
    asked += [] if first_s is None else [f"the first within {units.human(first_s, 's')}"]
    what = " and ".join(asked) or "the cheapest token, however slow"
    if best is None:
        words = f"{what[0].upper()}{what[1:]}: <b>none of these will do</b>."
    else:
        one, batch = best
        words = f"{what[0].upper()}{what[1:]}: <b>{escape(str(one.slice))} with {batch:,} conversations, {worth(one, batch)}</b>."
    rows = {f"{one.slice}": f"{_ways(one.layout)}: {row(one)}" for one in found}
    if small:
        rows = {"do not fit": ", ".join(map(str, small))} | rows
    return words_and_table(words, rows)


def _code(state: Mapping[str, Any]) -> str:
    price = "" if state["usd_per_chip_hour"] == LIST else f"\n    usd_per_chip_hour={state['usd_per_chip_hour']},"
    limits = "".join(
        f"{name}={_seconds(state[field])!r}, "
        for name, field in (("tpot_s", "tpot_ms"), ("ttft_s", "ttft_ms"))
        if state[field] != ANY
    ).strip()
    return f"""\
from scaling_lib.inference import Layout
from scaling_lib.search import serving_pareto

found = serving_pareto(
    "{state["model"]}", "{state["chip"]}",
    input={state["input"]}, output={state["output"]},{f"{chr(10)}    {limits}" if limits else ""}
    base=Layout(
        weights="{state["weights"]}", kv="{state["kv"]}", math="{state["math"]}",
    ),{price}
)
print(found)"""
