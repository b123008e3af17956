"""The cache explorer: how the KV caches of several models grow with the context, and what a chip's memory holds of them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import ipywidgets as widgets

from scaling_lib import hardware, transformer, units
from scaling_lib.hardware import Chip
from scaling_lib.show import kv_cache
from scaling_lib.show.explorers.base import (
    OWN,
    Explorer,
    View,
    control,
    dropdown,
    follow_choice,
    link,
    python,
    size_field,
    words_and_table,
)
from scaling_lib.show.explorers.model import DTYPES
from scaling_lib.show.hierarchy import capacity
from scaling_lib.show.palette import MODELS as COLORS
from scaling_lib.transformer import Transformer

EXAMPLES: Mapping[str, str] = {
    "kinds of attention": "GPT-3 175B, Llama-2 7B, Llama-3 8B, PaLM 540B, Gemma-3 27B, DeepSeek-V3",
    "Llama, small to large": "Llama-3.2 1B, Llama-3.2 3B, Llama-3.1 8B, Llama-3.1 70B, Llama-3.1 405B",
    "windows and chunks": "Gemma-2 27B, Gemma-3 27B, gpt-oss-120b, Llama-4 Scout",
    "mixtures of experts": "Mixtral 8x22B, Qwen3 235B-A22B, gpt-oss-120b, Llama-4 Maverick, DeepSeek-V3, Kimi-K2",
    "one key head or all": "PaLM 540B, Falcon 7B, GPT-J 6B, OPT-175B",
}
"""Models worth a look together; the first has multi-head, twice, grouped-query, multi-query, windows and a latent."""
USUAL = EXAMPLES["kinds of attention"]


def cache_view(models: str, S: int, B: int, dtype: str, chip: str) -> View:
    """The cache explorer for one state.

    Args:
        models: names of one to six models of the catalog, with commas between them.
        S: tokens of context for which sizes are told.
        B: sequences, all of that length.
        dtype: of keys and values.
        chip: whose HBM is drawn across.

    Raises:
        ValueError: for unknown or too many models, and sizes out of range.
    """
    many, on = read_models(models), hardware.chip(chip)
    S, B = units.size("S", S), units.size("B", B)
    sizes = {model: transformer.kv_cache_bytes(model, S=S, B=B, dtype=dtype) for model in many}
    rows = {
        str(model): f"{units.human(size, 'B')}, {units.human(100 * size / on.hbm_bytes)} % of HBM; {_held(model, B, dtype, on)}"
        for model, size in sizes.items()
    }
    least, most = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    words = f"{B:,} × {S:,} tokens in {escape(dtype)}: <b>{units.human(sizes[least], 'B')}</b> of {escape(str(least))}"
    if sizes[most] > sizes[least]:
        words += f" to <b>{units.human(sizes[most], 'B')}</b> of {escape(str(most))}"
    words += f". {on} has {capacity(on.hbm_bytes)}, here without weights."
    drawing = kv_cache.curves(many, B=B, dtype=dtype, chip=on)
    to_this = link("cache", models=models, S=S, B=B, dtype=dtype, chip=chip)
    return View(words_and_table(words, rows), drawing.svg, python(_code(many, S, B, dtype, on)), to_this)


def cache_explorer(*, models: str = USUAL, S: int = 32768, B: int = 1, dtype: str = "bf16", chip: str = "v5e") -> Explorer:
    """The KV cache against the context, for several models: grouped queries, latents and windows, and the HBM of a chip.

    Args:
        models: names of one to six models, with commas between them.
        S: tokens of context for which sizes are told.
        B: sequences, all of that length.
        dtype: of keys and values.
        chip: whose HBM is drawn across.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    chips = [c.name for c in hardware.CHIPS.values() if "hbm_bytes" in c.figures]
    example = control(widgets.Dropdown, "example", options=(OWN, *EXAMPLES), value=OWN).widget
    controls = {
        "models": control(widgets.Textarea, "models", _spelled, value="", rows=3),
        "S": size_field("S", "S, context"),
        "B": size_field("B", "B, sequences"),
        "dtype": dropdown("number format", DTYPES),
        "chip": dropdown("chip", chips),
    }

    def named(text: str) -> str:
        models = _spelled(text)
        return next((name for name, those in EXAMPLES.items() if those == models), OWN)

    start = {"models": _spelled(models), "S": S, "B": B, "dtype": units.dtype_name(dtype), "chip": hardware.chip(chip).name}
    for field, value in start.items():
        controls[field].fill(field, str(value))
    follow = follow_choice(example, controls["models"].widget, EXAMPLES.__getitem__, named)
    return Explorer("cache", controls, cache_view, follow, helpers=(example,))


def read_models(text: str) -> tuple[Transformer, ...]:
    """The models whose names stand in text, with commas between them.

    Raises:
        ValueError: for an unknown name, one given twice, none, or more than a figure has colors for.
    """
    many = tuple(transformer.model(name.strip()) for name in text.split(",") if name.strip())
    for at, model in enumerate(many):
        if model in many[:at]:
            raise ValueError(f"models names {model} twice; leave one out")
    if not 1 <= len(many) <= len(COLORS):
        raise ValueError(f"models names {len(many)} of them; give 1 to {len(COLORS)}")
    return many


def _spelled(text: str) -> str:
    return ", ".join(map(str, read_models(text)))


def _held(model: Transformer, B: int, dtype: str, chip: Chip) -> str:
    """The most tokens of context that fit into the chip's memory."""
    low, high = 0, 10**12  # no chip holds as many, and no model of the catalog is all windows
    while high - low > 1:
        middle = (low + high) // 2
        fits = transformer.kv_cache_bytes(model, S=middle, B=B, dtype=dtype) <= chip.hbm_bytes
        low, high = (middle, high) if fits else (low, middle)
    return f"all of it holds {low:,} tokens"


def _code(models: tuple[Transformer, ...], S: int, B: int, dtype: str, chip: Chip) -> str:
    names = "".join(f'    "{model}",\n' for model in models)
    return f"""\
from scaling_lib import transformer as tf
from scaling_lib.hardware import chip
from scaling_lib.show import kv_cache

names = [
{names}]
models = [tf.model(name) for name in names]
how = dict(B={B}, dtype="{dtype}")
for model in models:
    print(model, tf.kv_cache_bytes(model, S={S}, **how))
kv_cache.curves(models, chip=chip("{chip}"), **how)"""
