"""The batch explorer: how many sequences fit on a slice beside the weights, against their length, for several models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from html import escape

import ipywidgets as widgets

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.inference import Layout, Step, decode_step, max_batch, max_context
from scaling_lib.inference.layout import RULES, why_not
from scaling_lib.inference.limits import LONGEST
from scaling_lib.inference.sizing import layouts
from scaling_lib.show import batches
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
from scaling_lib.show.explorers.cache import EXAMPLES as CACHES
from scaling_lib.show.explorers.cache import read_models
from scaling_lib.show.explorers.serving import CACHES as KV
from scaling_lib.show.explorers.serving import WEIGHTS
from scaling_lib.transformer import Transformer

EXAMPLES: Mapping[str, str] = {
    "for a host of eight": "Llama-2 7B, Llama-3 8B, Gemma-3 12B, Qwen3 30B-A3B, gpt-oss-20b",
    **CACHES,
}
"""Models worth a look together; the first ones fit on eight v5e, and have many key heads, few, windows, experts, and both."""
USUAL = EXAMPLES["for a host of eight"]

_POINTS = 16


@dataclass(frozen=True)
class _Wall:
    """What fits of one model on a slice; `why` says why nothing does.

    `points` are (tokens, sequences), `longest` the tokens of the longest sequence that fits, `step` is of one sequence.
    """

    points: tuple[tuple[int, int], ...]
    longest: int
    step: Step | None
    why: str


def batch_view(models: str, slice: str, S: int, weights: str, kv: str) -> View:
    """The batch explorer for one state.

    Args:
        models: names of one to six models of the catalog, with commas between them.
        slice: where they are served: "v5e:2x4".
        S: tokens of context for which batches are told.
        weights: dtype of the weights.
        kv: dtype of the cache.

    Raises:
        ValueError: for unknown or too many models, sizes out of range, and where not one of the models fits.
    """
    on, S = slice_of(slice), units.size("S", S)
    walls = {model: _wall(model, on, S, Layout(weights=weights, kv=kv)) for model in read_models(models)}
    drawn = {str(model): wall.points for model, wall in walls.items() if wall.points}
    if not drawn:
        raise ValueError(f"slice={slice!r}: {next(iter(walls.values())).why}")
    rows = {str(model): _told(model, wall, S) for model, wall in walls.items()}
    most = {
        model: max_batch(model, on, wall.step.layout, context=S)
        for model, wall in walls.items()
        if wall.step and wall.longest >= S
    }
    words = f"Of {S:,} tokens each, <b>{escape(on.name)} holds "
    if most:
        many, few = max(most, key=most.__getitem__), min(most, key=most.__getitem__)
        words += f"{most[many]:,} sequences of {escape(str(many))}</b>"
        words += f", and {most[few]:,} of {escape(str(few))}." if most[few] < most[many] else "."
    else:
        words += "not one sequence</b> of any of these."
    drawing = batches.curves(drawn, where=str(on), context=S)
    code = python(_code(walls, on, S))
    return View(
        words_and_table(words, rows), drawing.svg, code, link("batch", models=models, slice=slice, S=S, weights=weights, kv=kv)
    )


def batch_explorer(
    *, models: str = USUAL, slice: str = "v5e:2x4", S: int = 8192, weights: str = "bf16", kv: str = "bf16"
) -> Explorer:
    """How many sequences a slice holds beside the weights, against their length: the wall of its memory, for several models.

    Args:
        models: names of one to six models, with commas between them.
        slice: where they are served.
        S: tokens of context for which batches are told.
        weights: dtype of the weights.
        kv: dtype of the cache.

    Raises:
        ValueError: for a value that the control cannot hold, and where not one of the models fits.
    """
    example = control(widgets.Dropdown, "example", options=(OWN, *EXAMPLES), value=OWN).widget
    controls = {
        "models": control(widgets.Textarea, "models", _spelled, value="", rows=3),
        "slice": control(widgets.Text, "slice", lambda text: slice_of(text).name, value="v5e:2x4"),
        "S": size_field("S", "S, context"),
        "weights": narrow(dropdown("weights in", WEIGHTS), "180px"),
        "kv": narrow(dropdown("cache in", KV), "180px"),
    }

    def named(text: str) -> str:
        models = _spelled(text)
        return next((name for name, those in EXAMPLES.items() if those == models), OWN)

    start = {"models": _spelled(models), "slice": slice, "S": S, "weights": weights, "kv": kv}
    for field, value in start.items():
        controls[field].fill(field, str(value))
    batch_view(**{field: each.read(each.widget.value) for field, each in controls.items()})  # refuses what it must
    follow = follow_choice(example, controls["models"].widget, EXAMPLES.__getitem__, named)
    return Explorer("batch", controls, batch_view, follow, joint="slice", helpers=(example,), groups=(("weights", "kv"),))


def _spelled(text: str) -> str:
    return ", ".join(map(str, read_models(text)))


@lru_cache(maxsize=256)
def _wall(model: Transformer, slice: Slice, S: int, base: Layout) -> _Wall:
    """Split so that most sequences of S tokens fit; of splits that hold as many, the one with the most tensor ways."""
    allowed = [of for of in layouts(model, slice, base) if not any(rule.why(of, model) for rule in RULES)]
    if not allowed:
        return _Wall((), 0, None, str(why_not(base.but(tensor=slice.devices), model, slice)))
    low, high = batches.LENGTHS
    table = model.learned_positions or S
    for tokens in (min(S, table), round(low)):  # where no split holds one sequence of S, what holds most short ones
        most = {layout: max_batch(model, slice, layout, context=tokens) for layout in allowed}
        if any(most.values()):
            break
    layout = max(most, key=most.__getitem__)
    step = decode_step(model, slice, layout, 1, context=tokens)
    longest = max_context(model, slice, layout, batch=1)
    if longest < low:
        return _Wall((), longest, None, f"{model} does not fit: {step.lacking}")
    ends = min(longest, round(high))
    lengths = [length for i in range(_POINTS + 1) if (length := round(low * (high / low) ** (i / _POINTS))) < ends]
    points = tuple((length, max_batch(model, slice, layout, context=length)) for length in (*lengths, ends))
    return _Wall(points, longest, step, "")


def _told(model: Transformer, wall: _Wall, S: int) -> str:
    """What fits of a model, as a row of the table."""
    if wall.step is None or not wall.points:
        return wall.why
    step = wall.step
    split = str(step.layout).partition(", weights")[0]
    held = f"{split}, weights {units.human(float(step.memory.weights), 'GiB')} a device"
    longest = f"one alone may have {wall.longest:,} tokens" if wall.longest < LONGEST else "one alone may have any length"
    if wall.longest < S:
        if wall.longest == model.learned_positions:
            longest = f"its table of positions ends at {wall.longest:,} tokens"
        return f"none fits, {longest}; {held}"
    many = max_batch(model, step.slice, step.layout, context=S)
    return f"{many:,} fit; {held}, cache {units.human(float(step.memory.cache), 'GiB')} each; {longest}"


def _code(walls: Mapping[Transformer, _Wall], slice: Slice, S: int) -> str:
    rows = []
    for model, wall in walls.items():
        if wall.step is not None:
            layout = wall.step.layout
            ways = {**layout.axes, "expert": layout.expert}
            given = [f"{axis}={count}" for axis, count in ways.items() if count > 1]
            given += [f'{name}="{of}"' for name, of in (("weights", layout.weights), ("kv", layout.kv)) if of != "bf16"]
            rows.append(f'    "{model}": Layout(\n        {", ".join(given)}\n    ),\n')
    return f"""\
from scaling_lib.inference import Layout, max_batch

layouts = {{
{"".join(rows)}}}
for model, layout in layouts.items():
    print(model, max_batch(
        model, "{slice.name}", layout, context={S},
    ))"""
