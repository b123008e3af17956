"""The models of the catalog, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from scaling_lib import catalog, units
from scaling_lib.transformer.architecture import Transformer
from scaling_lib.transformer.blocks import Experts, Latent

MODELS: Mapping[str, Transformer]
"""Every model of `catalog/models.csv` by name; read from disk when first asked for."""


def __getattr__(name: str) -> Any:
    if name == "MODELS":
        return _models()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def model(name: str) -> Transformer:
    """The model called `name`, like "Llama-3 8B"; capitals, spaces and hyphens do not matter: "llama3-8b" is the same.

    Raises:
        ValueError: for an unknown name, with near names, and for encoder-decoders.
    """
    key = _key(str(name))
    if key in _by_key():
        return _by_key()[key]
    if key.startswith(("t5", "flant5", "mt5", "ul2", "bart")):
        raise ValueError(f"model={name!r} is an encoder-decoder: only decoders are counted, cross attention has no place here")
    raise ValueError(f"model={name!r} is unknown; {units.near(str(name), _models())}; or give a Hugging Face config.json")


@cache
def _models() -> Mapping[str, Transformer]:
    return MappingProxyType({entry.name: _built(entry) for entry in catalog.models()})


@cache
def _by_key() -> Mapping[str, Transformer]:
    return {_key(name): known for name, known in _models().items()}


def _key(name: str) -> str:
    return "".join(name.lower().replace("-", " ").replace("_", " ").split())


def _built(entry: catalog.ModelEntry) -> Transformer:
    """The Transformer that a row of the catalog describes: columns are arguments, "experts.top_k" is one of `Experts`."""
    arguments: dict[str, Any] = {"name": entry.name}
    parts: dict[str, dict[str, Any]] = {}
    for column, text in entry.shape.items():
        part, _, inner = column.rpartition(".")
        (parts.setdefault(part, {}) if part else arguments)[inner] = _value(inner, text)
    if "experts" in parts:
        arguments["experts"] = Experts(**parts["experts"])
    if "latent" in parts:
        arguments["latent"] = Latent(**parts["latent"])
    return Transformer(**arguments)


def _value(name: str, text: str) -> Any:
    if name == "layer_pattern":
        return tuple(text.split())
    if name in ("norms", "qk_norm"):
        return text
    return text == "yes" if text in ("yes", "no") else int(text)
