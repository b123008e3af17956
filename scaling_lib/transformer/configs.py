"""Hugging Face `config.json` files, read into a `Transformer`; how each family of models writes them is in `families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling_lib import units
from scaling_lib.transformer.architecture import Transformer
from scaling_lib.transformer.families import FAMILIES, Config


def read(config: Mapping[str, Any]) -> Transformer:
    """The model of a Hugging Face configuration; of a model with images or sound, its text part.

    Raises:
        ValueError: for an unknown architecture, and for a missing or contradictory key; names it.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"config={config!r} is not a dictionary; read the file with json.load")
    if isinstance(inner := config.get("text_config"), Mapping):
        config = {"tie_word_embeddings": config.get("tie_word_embeddings"), **inner}
    kind = config.get("model_type")
    if config.get("is_encoder_decoder") or kind in ("t5", "mt5", "bart", "umt5"):
        raise ValueError(
            f"config has model_type={kind!r}: an encoder-decoder, whose cross attention is not counted; only decoders are"
        )
    if kind is None:
        raise ValueError(
            f"config has no 'model_type'; give 'llama' for a dense model of your own; known: {', '.join(sorted(FAMILIES))}"
        )
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"config has model_type={kind!r}, whose layers are not known here; {units.near(str(kind), FAMILIES)}")
    try:
        _check_architecture(config, kind)
        return FAMILIES[kind](Config(config, kind))
    except (TypeError, OverflowError) as error:  # text or a list where a number belongs, or the other way
        raise ValueError(f"config has a value of a kind that {kind} does not have there: {error}") from error


def _check_architecture(config: Mapping[str, Any], kind: str) -> None:
    """Refuse `LlamaForCausalLM` with `model_type="mistral"`: one of the two is a slip."""
    for name in config.get("architectures") or ():
        stem = str(name).split("For")[0].removesuffix("LMHeadModel").removesuffix("Model").lower()
        others = {other.replace("_", "").removesuffix("text") for other in FAMILIES} - {
            kind.replace("_", "").removesuffix("text")
        }
        if stem in others and kind != "kimi_k2":
            raise ValueError(f"config contradicts itself: architectures has {name!r}, model_type={kind!r}")
