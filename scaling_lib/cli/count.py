"""The command `scaling-lib count`: what a model costs to hold and to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling_lib import units
from scaling_lib.cli import names, quantities, screen

if TYPE_CHECKING:
    from scaling_lib.transformer import Transformer

EXAMPLES = """
scaling-lib count llama-3-8b
scaling-lib count deepseek-v3 --length 128Ki --dtype fp8
scaling-lib count ./config.json --json
"""


def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=names.MODEL)],
    length: Annotated[str, typer.Option("--length", metavar="N", help="Tokens of a sequence.")] = "4096",
    batch: Annotated[str, typer.Option("--batch", metavar="B", help="Sequences.")] = "1",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of weights and KV cache.")] = "bf16",
    json: Annotated[bool, typer.Option("--json", help="Base units, under the library's field names.")] = False,
) -> None:
    """Parameters, FLOPs and memory of a model, each under a named convention.

    A dense model of your own is a file of this and no more: {"model_type": "llama", "hidden_size": 6144, "intermediate_size":
    20480, "num_hidden_layers": 60, "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 128256}.
    """
    T, B = quantities.size("--length", length), quantities.size("--batch", batch)
    counted = counts(names.model(model), T=T, B=B, dtype=dtype)
    print(screen.to_json(counted) if json else _table(counted))


def counts(model: Transformer, *, T: int, B: int = 1, dtype: str = "bf16") -> dict[str, Any]:
    """Every count of the command, in base units.

    FLOPs a token are of training at length T, head included, input lookup not; those of decode are of one token after T - 1
    others, useful pairs only.
    """
    from scaling_lib import transformer

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
