"""The budget explorer: days and dollars to train a model, against the number of chips."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

import ipywidgets as widgets

from scaling_lib import hardware, units
from scaling_lib.hardware import Chip, Slice
from scaling_lib.show import budget
from scaling_lib.show.explorers.base import (
    Explorer,
    View,
    control,
    dropdown,
    link,
    python,
    size_field,
    words_and_table,
)
from scaling_lib.show.explorers.chips import LIST, has_all, read_price
from scaling_lib.training import StepEstimate
from scaling_lib.training.goodput import LLAMA_3_CHIP_MTBF_S, Goodput, goodput
from scaling_lib.training.money import Bill, bill
from scaling_lib.training.sizing import links_bind, quick_plan, slices
from scaling_lib.transformer import MODELS

FAILURES: Mapping[str, float | None] = {"none": None, "as for Llama 3 405B": LLAMA_3_CHIP_MTBF_S}
"""Chip-seconds between failures, by what the reader chooses."""
EFFICIENCIES = tuple(n / 20 for n in range(6, 21))


def budget_view(
    model: str,
    chip: str,
    tokens: int,
    batch_tokens: int,
    T: int,
    usd_per_chip_hour: float | str,
    efficiency: float,
    failures: str,
    checkpoint_s: int,
    restart_s: int,
    slice: str,
) -> View:
    """The budget explorer for one state.

    Args:
        model: name of a model of the catalog.
        chip: name of a chip.
        tokens: the budget.
        batch_tokens: tokens of a step, a multiple of T.
        T: tokens in a sequence.
        usd_per_chip_hour: your own price, or "list" for the catalog's.
        efficiency: part of the dense peak that matmuls reach.
        failures: how often chips fail, a key of `FAILURES`.
        checkpoint_s: seconds that training stands still for a checkpoint.
        restart_s: seconds from a failure to the first new step.
        slice: the one that is marked, as `str` writes it: "v5p:8x8x8", or "4 × v5e:16x16".

    Raises:
        ValueError: for a batch that is no whole number of sequences, a chip without a list price, a model that fits on no slice.
    """
    state = dict(locals())
    of, on = MODELS[model], hardware.chip(chip)
    if batch_tokens % T:
        near = " or ".join(f"{n * T}" for n in sorted({max(1, batch_tokens // T), batch_tokens // T + 1}))
        raise ValueError(f"batch_tokens={batch_tokens} is no whole number of sequences of T={T} tokens; give {near}")
    if usd_per_chip_hour == LIST and "usd_per_hour" not in on.figures:
        raise ValueError(f"usd_per_chip_hour='list', but no source states a list price of {on}; write your own, like '2.50'")
    price = None if isinstance(usd_per_chip_hour, str) else usd_per_chip_hour
    tried = {str(each): quick_plan(of, each, batch_tokens // T, T, efficiency) for each in slices(on)}
    steps = [step for step in tried.values() if step is not None]
    if not steps:
        raise ValueError(
            f"model={model!r} with batch_tokens={batch_tokens} fits on no slice of {on} by FSDP and tensor ways; take another "
            "chip or batch"
        )
    shares = [_goodput(step.slice, failures, checkpoint_s, restart_s) for step in steps]
    useful = [1.0 if share is None else float(share.useful) for share in shares]
    many = [*zip(steps, useful, strict=True)]
    least = [_bill(step, step.lower_s, tokens, share, price) for step, share in many]
    most = [_bill(step, step.upper_s, tokens, share, price) for step, share in many]
    binding, marked = links_bind(steps), tried.get(slice)
    drawing = budget.curves(
        [step.slice for step in steps], least, most, links_bind=binding, chosen=None if marked is None else marked.slice
    )
    at = None if marked is None else steps.index(marked)
    cost = None if at is None else (steps[at], least[at], most[at], shares[at])
    numbers = _numbers(cost, slice, tokens, batch_tokens, binding, steps)
    code = python(_code(state))
    return View(numbers, drawing.svg, code, link("budget", **state))


def budget_explorer(
    *,
    model: str = "Llama-3 70B",
    chip: str = "v5p",
    tokens: int = 15 * 10**12,
    batch_tokens: int = 2**22,
    T: int = 8192,
    usd_per_chip_hour: float | str = LIST,
    efficiency: float = 0.7,
    failures: str = "none",
    checkpoint_s: int = 30,
    restart_s: int = 600,
    slice: str | None = None,
) -> Explorer:
    """Days and dollars to train a model against chips, with the region where links bind shaded, and a slice marked.

    Args:
        model: where to start, among the catalog's.
        chip: among those with all figures.
        tokens: the budget.
        batch_tokens: tokens of a step, a multiple of T.
        T: tokens in a sequence.
        usd_per_chip_hour: your own price, or "list" for the catalog's.
        efficiency: part of the dense peak that matmuls reach, in steps of 0.05.
        failures: "none", or "as for Llama 3 405B".
        checkpoint_s: seconds that training stands still for a checkpoint; counts with failures alone.
        restart_s: seconds from a failure to the first new step.
        slice: the marked one, among those offered of the chip; the one in the middle if not given, and for another chip.

    Raises:
        ValueError: for a value that the control cannot hold, and values that do not go together.
    """
    chips = {each.name: each for each in hardware.CHIPS.values() if has_all(each)}
    start = dict(locals())
    controls = {
        "model": dropdown("model", tuple(MODELS)),
        "chip": dropdown("chip", [*chips]),
        "tokens": size_field("tokens", "tokens in all"),
        "batch_tokens": size_field("batch_tokens", "tokens a step"),
        "T": size_field("T", "T, tokens"),
        "usd_per_chip_hour": control(widgets.Text, "$ a chip and hour", read_price, value=LIST),
        "efficiency": control(widgets.SelectionSlider, "efficiency", options=EFFICIENCIES, value=1.0),
        "failures": dropdown("failures", tuple(FAILURES)),
        "checkpoint_s": size_field("checkpoint_s", "checkpoint (s)"),
        "restart_s": size_field("restart_s", "restart (s)"),
        "slice": dropdown("marked slice", _offered(next(iter(chips.values())))),
    }
    of_chip, of_slice = controls["chip"].widget, controls["slice"].widget

    def follow() -> None:
        """Offer the slices of the chip; mark the middle one where the chip is another."""
        offered = _offered(chips[of_chip.value])
        if offered != tuple(of_slice.options):
            of_slice.options = offered
            of_slice.value = offered[len(offered) // 2]

    controls["chip"].fill("chip", hardware.chip(chip).name)
    follow()
    for field, each in controls.items():
        if field != "chip" and start[field] is not None:
            each.fill(field, f"{start[field]:,}" if field in ("tokens", "batch_tokens") else str(start[field]))
    budget_view(**{field: each.read(each.widget.value) for field, each in controls.items()})  # refuses what it must
    return Explorer("budget", controls, budget_view, follow, joint=_at)


def _offered(chip: Chip) -> tuple[str, ...]:
    return tuple(map(str, slices(chip)))


def _at(words: str) -> str:
    """The control that words name first."""
    return next(
        (field for field in re.findall(r"(\w+)=", words) if field in ("model", "batch_tokens", "usd_per_chip_hour")), "chip"
    )


def _goodput(slice: Slice, failures: str, checkpoint_s: int, restart_s: int) -> Goodput | None:
    if failures not in FAILURES:
        raise ValueError(f"failures={failures!r} is unknown; {units.near(failures, FAILURES)}")
    mtbf_s = FAILURES[failures]
    if mtbf_s is None:
        return None
    return goodput(chips=slice.chips, chip_mtbf_s=mtbf_s, checkpoint_s=checkpoint_s, restart_s=restart_s)


def _bill(step: StepEstimate, seconds: float, tokens: int, useful: float, price: float | None) -> Bill:
    return bill(
        step.slice.chip,
        chips=step.slice.chips,
        tokens=tokens,
        tokens_per_s=step.batch * step.T / seconds,
        goodput=useful,
        usd_per_chip_hour=price,
    )


def _numbers(
    cost: tuple[StepEstimate, Bill, Bill, Goodput | None] | None,
    slice: str,
    tokens: int,
    batch_tokens: int,
    binding: float | None,
    steps: list[StepEstimate],
) -> str:
    if binding is None:
        links = f"on none of these, up to {steps[-1].slice.chips:,} chips"
    else:
        links = f"from {units.human(binding)} chips, {units.human(batch_tokens / binding)} tokens a chip"
    fits = f"{steps[0].slice} to {steps[-1].slice}"
    if cost is None:
        words = f"No plan of FSDP and tensor ways runs on {escape(slice)}: <b>the model and this batch fit {escape(fits)}</b>."
        return words_and_table(words, {"fits": fits, "links bind": links})
    step, least, most, share = cost
    days = f"{units.human(float(least.days))} to {units.human(float(most.days))} days"
    usd = f"${_spell(float(least.usd))} to ${_spell(float(most.usd))}"
    words = f"{_spell(tokens)} tokens on {escape(slice)}: <b>{days}, {usd}</b>."
    rows = {
        "plan": str(step.plan),
        "a step": f"{units.human(step.lower_s, 's')} to {units.human(step.upper_s, 's')}",
        "MFU": f"{_mfu(step, step.upper_s)} to {_mfu(step, step.lower_s)}",
        "chip-hours": f"{units.human(float(least.chip_hours))} to {units.human(float(most.chip_hours))}",
        "price": f"${least.usd_per_chip_hour:.2f} a chip and hour",
        "tokens a chip": units.human(batch_tokens / step.slice.chips),
        "links bind": links,
        "fits": fits,
        "goodput": "1, without failures" if share is None else _lost(share),
    }
    return words_and_table(words, rows)


def _lost(share: Goodput) -> str:
    return (
        f"{float(share.useful):.1%}; a failure every {float(share.mtbf_s) / 3600:.3g} h, "
        f"a checkpoint every {float(share.interval_s) / 60:.3g} min"
    )


def _mfu(step: StepEstimate, seconds: float) -> str:
    return f"{step.mfu * step.seconds / seconds:.1%}"


def _spell(count: float) -> str:
    """A number with the word for its thousands: "33.1 million"."""
    for scale, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if float(f"{count:.3g}") >= scale:
            return f"{units.human(count / scale)} {name}"
    return units.human(count)


def _code(state: Mapping[str, object]) -> str:
    failing = FAILURES[str(state["failures"])] is not None
    price = "" if state["usd_per_chip_hour"] == LIST else f"\n        usd_per_chip_hour={state['usd_per_chip_hour']},"
    needs, share = "", "1.0"
    if failing:
        needs = "from scaling_lib.training.goodput import LLAMA_3_CHIP_MTBF_S, goodput\n"
        share = f"""goodput(
        chips=slice.chips, chip_mtbf_s=LLAMA_3_CHIP_MTBF_S,
        checkpoint_s={state["checkpoint_s"]}, restart_s={state["restart_s"]},
    ).useful"""
    return f"""\
from scaling_lib.hardware import chip
{needs}from scaling_lib.training.money import bill
from scaling_lib.training.sizing import quick_plan, slices
from scaling_lib.transformer import model

for slice in slices(chip("{state["chip"]}")):
    step = quick_plan(
        model("{state["model"]}"), slice,
        {state["batch_tokens"]} // {state["T"]}, {state["T"]},
        efficiency={state["efficiency"]},
    )
    if step is None:
        print(slice, "nothing fits")
        continue
    share = {share}
    cost = bill(
        slice.chip, chips=slice.chips, tokens={state["tokens"]},
        tokens_per_s=step.tokens_per_s, goodput=share,{price}
    )
    print(f"{{slice}}: {{cost.days:.3g}} days, ${{cost.usd:.3g}}")"""
