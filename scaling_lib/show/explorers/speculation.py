"""The speculation explorer: what guesses of a draft bring, over their acceptance and their number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ipywidgets as widgets

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.inference import Layout, Step, decode_step, speculate, why_not
from scaling_lib.inference.speculation import expected_tokens, speedup
from scaling_lib.show import surface
from scaling_lib.show.explorers.base import (
    OWN,
    Explorer,
    View,
    control,
    dropdown,
    follow_choice,
    link,
    narrow,
    python,
    size_field,
    words_and_table,
)
from scaling_lib.transformer import MODELS, Transformer
from scaling_lib.transformer import model as model_of

MOST_GUESSES = 16
DRAFTS = ("Llama-3.2 1B", "Llama-3.2 3B", "Llama-3 8B", "Qwen3 0.6B", "Gemma-2 2B", "OPT-125M", "1 %", "5 %", "20 %", "50 %")
"""Drafts worth a look: models for targets of their family, and costs for any target."""


@dataclass(frozen=True)
class _Costs:
    """Priced steps of one target and draft; `small` is None for a draft of which only the cost is known."""

    plain: Step
    checks: tuple[Step, ...]
    draft: float
    small: Step | None

    @property
    def shares(self) -> tuple[float, ...]:
        """Seconds of the checks over those of a plain step."""
        return tuple(check.seconds / self.plain.seconds for check in self.checks)


def speculation_view(
    model: str, draft: str, slice: str, tensor: int, batch: int, context: int, acceptance: float, guesses: int
) -> View:
    """The speculation explorer for one state.

    Args:
        model: the target, a name of the catalog.
        draft: another name, or the cost of its step as part of the target's: "5 %".
        slice: where both run: "v5e:2x4".
        tensor: ways; the rest of the devices shares the sequences of the cache. A draft with fewer heads has fewer.
        batch: sequences.
        context: tokens of each.
        acceptance: probability that a guess is kept, of `surface.ACCEPTANCES`.
        guesses: for each check, up to 16.

    Raises:
        ValueError: for a draft that is no smaller than its target or has another vocabulary, and a slice that the target's heads
            do not allow. A batch that does not fit is shown.
    """
    state = dict(locals())
    costs = _costs(MODELS[model], read_draft(draft), slice_of(slice), tensor, batch, context)
    drawing = surface.speedups(draft=costs.draft, checks=costs.shares, acceptance=acceptance, guesses=guesses)
    numbers = _numbers(costs, acceptance, guesses)
    return View(numbers, drawing.svg, python(_code(state, costs)), link("speculation", **state))


def speculation_explorer(
    *,
    model: str = "Llama-3 8B",
    draft: str = "Llama-3.2 1B",
    slice: str = "v5e:2x4",
    tensor: int = 8,
    batch: int = 8,
    context: int = 2176,
    acceptance: float = 0.8,
    guesses: int = 4,
) -> Explorer:
    """The speed-up of speculative decoding over acceptance and guesses, the best number of guesses marked.

    Args:
        model: the target, where to start among the catalog's.
        draft: a name of the catalog, or the cost of a step as part of the target's: "5 %".
        slice: where both run.
        tensor: ways; the rest of the devices shares the sequences of the cache.
        batch: sequences.
        context: tokens of each.
        acceptance: probability that a guess is kept, in steps of 0.05.
        guesses: for each check.

    Raises:
        ValueError: for a value that the control cannot hold, and values that do not go together.
    """
    start = dict(locals())
    pick = control(widgets.Dropdown, "usual drafts", options=(OWN, *DRAFTS), value=OWN).widget
    controls = {
        "model": dropdown("model", tuple(MODELS)),
        "draft": control(widgets.Text, "draft", lambda text: _spelled(read_draft(text)), value=DRAFTS[0]),
        "slice": control(widgets.Text, "slice", lambda text: slice_of(text).name, value="v5e:2x4"),
        "tensor": narrow(size_field("tensor", "tensor ways")),
        "batch": narrow(size_field("batch", "sequences")),
        "context": narrow(size_field("context", "context")),
        "acceptance": control(widgets.SelectionSlider, "acceptance", options=surface.ACCEPTANCES, value=surface.ACCEPTANCES[0]),
        "guesses": control(widgets.IntSlider, "guesses, k", min=1, max=MOST_GUESSES, value=1),
    }

    def named(text: str) -> str:
        spelled = _spelled(read_draft(text))
        return spelled if spelled in DRAFTS else OWN

    for field, each in controls.items():
        each.fill(field, str(start[field]))
    speculation_view(**{field: each.read(each.widget.value) for field, each in controls.items()})  # refuses what it must
    follow = follow_choice(pick, controls["draft"].widget, str, named)
    return Explorer(
        "speculation", controls, speculation_view, follow, joint=_at, helpers=(pick,), groups=(("tensor", "batch", "context"),)
    )


def read_draft(text: str) -> Transformer | float:
    """The model that text names, or the part of the target's step that it says: "5 %" is 0.05.

    Raises:
        ValueError: for anything else.
    """
    typed = text.strip()
    if found := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) *%", typed):
        share = float(found[1]) / 100
        if not 0 < share <= 1:
            raise ValueError(f"draft={text!r} is no part of the target's step; give more than 0 % and up to 100 %")
        return share
    try:
        return model_of(typed)
    except ValueError:
        near = units.near(typed, MODELS)
        raise ValueError(f"draft={text!r} is unknown; {near}; or write what its step costs, like '5 %'") from None


def _spelled(draft: Transformer | float) -> str:
    return str(draft) if isinstance(draft, Transformer) else f"{round(100 * draft, 3):g} %"


def _at(words: str) -> str:
    """The control that words name first; of ways that do not divide, the slice."""
    return next((field for field in re.findall(r"(\w+)=", words) if field in ("draft", "tensor", "batch", "context")), "slice")


@lru_cache(maxsize=64)
def _costs(model: Transformer, draft: Transformer | float, slice: Slice, tensor: int, batch: int, context: int) -> _Costs:
    if context <= MOST_GUESSES:
        raise ValueError(f"context={context} has no room for {MOST_GUESSES} guesses and a token; give {MOST_GUESSES + 1} or more")
    layout = _split(slice, tensor)
    plain = decode_step(model, slice, layout, batch, context=context)
    small: Step | None = None
    if isinstance(draft, Transformer):
        ways = (_split(slice, t) for t in range(tensor, 0, -1) if slice.devices % t == 0)
        of_draft = next((each for each in ways if why_not(each, draft, slice) is None), layout)
        how: dict[str, Any] = {"context": context, "acceptance": 0.5, "guesses": 1}
        small = speculate(model, draft, slice, layout, batch, **how, draft_layout=of_draft).draft
        share = small.seconds / plain.seconds
    else:
        share = draft
    guesses = range(1, MOST_GUESSES + 1)
    checks = tuple(decode_step(model, slice, layout, batch, context=context, new=k + 1) for k in guesses)
    return _Costs(plain, checks, share, small)


def _split(slice: Slice, tensor: int) -> Layout:
    return Layout(tensor=tensor, kv_batch=max(1, slice.devices // tensor))


def _numbers(costs: _Costs, acceptance: float, guesses: int) -> str:
    plain_s, shares = costs.plain.seconds, costs.shares

    def times(a: float, k: int) -> float:
        return float(speedup(a, k, draft=costs.draft, check=shares[k - 1]))

    def best(a: float) -> int:
        return max(range(1, len(shares) + 1), key=lambda k: times(a, k))

    k, now = best(acceptance), times(acceptance, guesses)
    fastest = times(acceptance, k)
    guess = "1 guess is" if k == 1 else f"{k} guesses are"
    words = f"At an acceptance of {acceptance:g}, <b>{guess} best: {fastest:.2f} times as fast</b>."
    if fastest <= 1:
        words = f"At an acceptance of {acceptance:g}, <b>guesses do not pay</b>: at best, with {k}, {fastest:.2f} times as fast."
    pays = next((n / 100 for n in range(1, 100) if times(n / 100, best(n / 100)) > 1), None)
    rows = {
        f"with k = {guesses}": f"{now:.2f} times as fast, {units.human(plain_s / now, 's')} a token",
        "without": f"{units.human(plain_s, 's')} a token",
        "tokens a check": f"{float(expected_tokens(acceptance, guesses)):.2f}, at most {guesses + 1}",
        "a guess costs": f"{units.human(costs.draft * plain_s, 's')}, {costs.draft:.1%} of a plain step",
        "the check costs": f"{units.human(costs.checks[guesses - 1].seconds, 's')}, {shares[guesses - 1]:.2f} plain steps",
        "guesses pay": "never" if pays is None else f"from an acceptance of {pays:.2f}",
        "split": str(costs.plain.layout).partition(", weights")[0],
        "memory": _memory(costs, guesses),
    }
    return words_and_table(words, rows)


def _memory(costs: _Costs, guesses: int) -> str:
    check, small = costs.checks[guesses - 1], costs.small
    held = float(check.memory.total) + (0.0 if small is None else float(small.memory.total))
    usable = units.human(check.usable_bytes, "GiB")
    both = "without the draft" if small is None else "with the draft"
    fits = f"{units.human(held, 'GiB')} of {usable} a device, {both}"
    return fits if held <= check.usable_bytes else f"does not fit: {fits}; take more chips, or fewer sequences"


def _code(state: Mapping[str, Any], costs: _Costs) -> str:
    layout = _layout(costs.plain)
    if costs.small is None:
        return f"""\
from scaling_lib.inference import Layout, decode_step
from scaling_lib.inference.speculation import speedup

plain, check = (
    decode_step(
        "{state["model"]}", "{state["slice"]}",
        {layout},
        {state["batch"]}, context={state["context"]}, new=new,
    ).seconds
    for new in (1, {state["guesses"]} + 1)
)
print(speedup(
    {state["acceptance"]}, {state["guesses"]}, draft={costs.draft:g}, check=check / plain
))"""
    return f"""\
from scaling_lib.inference import Layout, speculate

for guesses in ({state["guesses"]}, None):  # None: the best
    both = speculate(
        "{state["model"]}", "{costs.small.model}", "{state["slice"]}",
        {layout},
        {state["batch"]}, context={state["context"]},
        acceptance={state["acceptance"]}, guesses=guesses,
        draft_layout={_layout(costs.small)},
    )
    print(both.guesses, both.speedup)"""


def _layout(step: Step) -> str:
    ways = {**step.layout.axes, "expert": step.layout.expert}
    return f"Layout({', '.join(f'{axis}={count}' for axis, count in ways.items() if count > 1)})"
