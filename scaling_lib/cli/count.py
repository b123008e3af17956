"""The command `scaling-lib count`: what a model costs to hold and to run."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scaling_lib import transformer, units
from scaling_lib.transformer import Transformer


def add(commands: Any) -> None:
    """Add the command to the parsers of `scaling_lib.cli`."""
    count = commands.add_parser("count", help="parameters, FLOPs and memory of a model, each under a named convention")
    count.add_argument("model", help="a name of the catalog, like llama3-8b, or the path of a Hugging Face config.json")
    count.add_argument("--length", type=int, default=4096, metavar="N", help="tokens of a sequence; 4096 if not given")
    count.add_argument("--batch", type=int, default=1, metavar="B", help="sequences; 1 if not given")
    count.add_argument("--dtype", default="bf16", help="of weights and KV cache; bf16 if not given")
    count.add_argument("--json", action="store_true", help="base units, under the library's field names")
    count.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """What `scaling-lib count` prints."""
    counted = counts(_model(arguments.model), T=arguments.length, B=arguments.batch, dtype=arguments.dtype)
    return json.dumps(counted, indent=2) if arguments.json else _table(counted)


def counts(model: Transformer, *, T: int, B: int = 1, dtype: str = "bf16") -> dict[str, Any]:
    """Every count of the command, in base units.

    FLOPs a token are of training at length T, head included, input lookup not; those of decode are of one token after T - 1
    others, useful pairs only.
    """
    T, B = units.size("--length", T), units.size("--batch", B)
    parameters, weights = transformer.parameters(model), transformer.weight_bytes(model, dtype)
    per_token = {name: transformer.train_flops(model, T=T, causal=causal) for name, causal in (("causal", True), ("full", False))}
    decode = transformer.forward_flops(model, T=1, S=T, causal=True, absorbed=model.latent is not None)
    return {
        "model": str(model),
        "T": T,
        "B": B,
        "dtype": units.dtype_name(dtype),
        "parameters": {"total": parameters.total, **asdict(parameters)},
        "active_parameters": {name: transformer.active_parameters(model, name) for name in transformer.COUNTINGS},
        "train_flops_per_token": {name: step.model_flops / T for name, step in per_token.items()},
        "forward_flops_per_token": {name: step.forward.total / T for name, step in per_token.items()},
        "decode_flops_per_token": decode.total,
        "kv_bytes_per_token": transformer.kv_cache_bytes(model, S=1, dtype=dtype),
        "kv_cache_bytes": transformer.kv_cache_bytes(model, S=T, B=B, dtype=dtype),
        "weight_bytes": {"total": weights.total, **asdict(weights)},
    }


def _model(name: str) -> Transformer:
    path = Path(name)
    if path.suffix != ".json" and not os.path.isfile(path):
        return transformer.model(name)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"model={name!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or a number of thousands of digits; nested too deep
        raise ValueError(f"model={name!r} is no JSON: {error}") from error
    model = Transformer.from_hf_config(config)
    return model if model.name else model.but(name=path.resolve().parent.name)


def _table(counted: Mapping[str, Any]) -> str:
    lines = [f"{counted['model']}: sequences of {counted['T']:,} tokens, batch {counted['B']}, {counted['dtype']}"]
    unit_of = {"parameters": "", "active_parameters": "", "weight_bytes": "B"}
    for name in ("parameters", "active_parameters", "weight_bytes"):
        rows = {key: value for key, value in counted[name].items() if value}
        lines += ["", name.replace("_", " ")]
        lines += [f"  {key:<20} {_number(value, unit_of[name])}" for key, value in rows.items()]
    lines += ["", "FLOPs a token, head included, without the input lookup"]
    for name in ("train_flops_per_token", "forward_flops_per_token"):
        for key, value in counted[name].items():
            lines.append(f"  {name.partition('_')[0] + ', ' + key:<20} {units.human(value, 'FLOPs', 4)}")
    lines.append(f"  {'decode, after T - 1':<20} {units.human(counted['decode_flops_per_token'], 'FLOPs', 4)}")
    lines += ["", "KV cache"]
    lines.append(f"  {'a token':<20} {_number(counted['kv_bytes_per_token'], 'B')}")
    lines.append(f"  {'the batch':<20} {_number(counted['kv_cache_bytes'], 'B')}")
    return "\n".join(lines)


def _number(value: float, unit: str) -> str:
    """A count to the last digit, with a short form where that is easier to read."""
    if not unit:
        return f"{value:>23,.0f}"
    gib = f" = {units.human(value, 'GiB', 4)}" if value >= units.GIB else ""
    return f"{value:>23,.0f}  {units.human(value, unit, 4)}{gib}"
