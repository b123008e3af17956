"""The model explorer: what a model of the catalog, or of a pasted `config.json`, costs to hold, to run and to train."""

from __future__ import annotations

import json
from html import escape
from pprint import pformat

import ipywidgets as widgets

from scaling_lib import transformer, units
from scaling_lib.show import treemap
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
from scaling_lib.transformer import COUNTINGS, Transformer
from scaling_lib.transformer.params import Counting

DTYPES = ("bf16", "f32", "fp8", "int8", "fp4", "int4")
AREAS = ("parameters", "FLOPs")

_COUNTED: dict[Counting, str] = {
    "all": "without idle experts", "without_lookup": "and without lookups", "matmul": "in matmuls",
    "without_embeddings": "in layers",
}  # fmt: skip


def model_view(model: str, T: int, B: int, dtype: str, area: str) -> View:
    """The model explorer for one state.

    Args:
        model: name of a model of the catalog, or the text of a Hugging Face `config.json`.
        T: tokens in a sequence.
        B: sequences.
        dtype: of weights, KV cache and activations.
        area: what the boxes of the treemap are: "parameters", or "FLOPs" of a forward pass.

    Raises:
        ValueError: for an unknown model, a configuration that the library refuses, and sizes out of range.
    """
    if area not in AREAS:
        raise ValueError(f"area={area!r} is unknown; {units.near(area, AREAS)}")
    of, T, B = read_model(model), units.size("T", T), units.size("B", B)
    drawing = treemap.parameters(of) if area == "parameters" else treemap.flops(of, T=T, causal=True)
    to_this = link("model", model=model, T=T, B=B, dtype=dtype, area=area)
    return View(_numbers(of, T, B, dtype), drawing.svg, python(_code(model, T, B, dtype, area)), to_this)


def model_explorer(
    *, model: str = "Llama-3 8B", T: int = 8192, B: int = 1, dtype: str = "bf16", area: str = "parameters"
) -> Explorer:
    """A model, picked or pasted: parameters, FLOPs a token, memory at a length and batch, and a treemap.

    Args:
        model: where to start: a name of the catalog, or the text of a `config.json`.
        T: tokens in a sequence.
        B: sequences.
        dtype: of weights, KV cache and activations.
        area: what the boxes of the treemap are, "parameters" or "FLOPs".

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    pick = control(widgets.Dropdown, "model", options=(OWN, *transformer.MODELS), value=OWN).widget
    controls = {
        "model": control(widgets.Textarea, "or config.json", _spelled, value="", rows=2),
        "T": size_field("T", "T, tokens"),
        "B": size_field("B", "B, sequences"),
        "dtype": dropdown("number format", DTYPES),
        "area": dropdown("treemap of", AREAS),
    }

    def named(text: str) -> str:
        written = _spelled(text)
        return written if written in transformer.MODELS else OWN

    start = {"model": _spelled(model), "T": T, "B": B, "dtype": units.dtype_name(dtype), "area": area}
    for field, value in start.items():
        controls[field].fill(field, str(value))
    follow = follow_choice(pick, controls["model"].widget, str, named)
    return Explorer("model", controls, model_view, follow, joint="T", helpers=(pick,))


def read_model(text: str) -> Transformer:
    """The model that text names, or that it describes as a Hugging Face `config.json`.

    Raises:
        ValueError: for text that is neither.
    """
    if not text.strip():
        raise ValueError("no model: pick one, write its name, or paste a config.json")
    return Transformer.from_hf_config(_json(text)) if _is_json(text) else transformer.model(text.strip())


def _spelled(text: str) -> str:
    """The text as a state holds it: the name as the catalog writes it, or the configuration without blanks."""
    model = read_model(text)
    return json.dumps(_json(text), separators=(",", ":")) if _is_json(text) else model.name


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _json(text: str) -> dict[str, object]:
    try:
        return dict(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"config.json does not read: {error}") from error
    except RecursionError as error:
        raise ValueError("config.json is nested too deep to read") from error


def _numbers(model: Transformer, T: int, B: int, dtype: str) -> str:
    """One sentence, and a table of what the library counts."""
    total = transformer.parameters(model).total
    weights, cache = transformer.weight_bytes(model, dtype).total, transformer.kv_cache_bytes(model, S=T, B=B, dtype=dtype)
    causal, full = (transformer.train_flops(model, T=T, causal=causal) for causal in (True, False))
    decode = transformer.forward_flops(model, T=1, S=T, causal=True, absorbed=model.latent is not None)
    kept, least = (
        transformer.activation_bytes(model, T=T, B=B, remat=policy, flash=True, dtype=dtype).total_bytes
        for policy in ("none", "full")
    )
    words = f"<b>{escape(str(model))}</b>: {treemap.spell(total)} parameters. "
    words += f"To serve {B:,} × {T:,} tokens: {_memory(weights + cache)}, weights and KV cache in {escape(dtype)}."
    rows = {"parameters": f"{total:,}"}
    rows |= {f"active, {_COUNTED[name]}": f"{transformer.active_parameters(model, name):,}" for name in COUNTINGS}
    rows |= {
        "train, a token": _both(causal.model_flops / T, full.model_flops / T),
        "forward, a token": _both(causal.forward.total / T, full.forward.total / T),
        "decode, token T": units.human(decode.total, "FLOPs"),
        "weights": _memory(weights),
        "KV cache, a token": units.human(transformer.kv_cache_bytes(model, S=1, dtype=dtype), "B"),
        "KV cache, batch": _memory(cache),
        "training states": f"{_memory(transformer.state_bytes(total).total)}, Adam, 16 B a parameter",
        "activations": f"{_memory(kept)} with flash; {_memory(least)} with full remat",
    }
    return words_and_table(words, rows)


def _both(causal: float, full: float) -> str:
    return f"{units.human(causal, 'FLOPs')} causal, {units.human(full, 'FLOPs')} without a mask"


def _memory(size_bytes: float) -> str:
    return units.human(size_bytes, "GiB") if size_bytes >= units.GIB else units.human(size_bytes, "B")


def _code(model: str, T: int, B: int, dtype: str, area: str) -> str:
    made = f'model = tf.model("{model}")'
    if _is_json(model):
        made = f"config = {pformat(_json(model), width=60, sort_dicts=False)}\nmodel = tf.Transformer.from_hf_config(config)"
    shown = "parameters(model)" if area == "parameters" else f"flops(model, T={T}, causal=True)"
    return f"""\
from scaling_lib import transformer as tf
from scaling_lib.show import treemap

{made}
T, B = {T}, {B}
total = tf.parameters(model).total
train = tf.train_flops(model, T=T, causal=True).model_flops / T
weights = tf.weight_bytes(model, "{dtype}").total
cache = tf.kv_cache_bytes(model, S=T, B=B, dtype="{dtype}")
print(f"{{total:,}} parameters, {{train:,.0f}} FLOPs a token")
print(f"weights {{weights:,.0f}} B, KV cache {{cache:,.0f}} B")
treemap.{shown}"""
