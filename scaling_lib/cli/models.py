"""The command `scaling-lib models`: the models of the catalog."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from scaling_lib import catalog, units
from scaling_lib.catalog import ModelEntry
from scaling_lib.cli import screen

EXAMPLES = """
scaling-lib models
scaling-lib models llama-3
scaling-lib models qwen3 --json
"""
NUMBERS = ("parameters", "active", "KV a token", "L", "D", "N", "K", "V")


def run(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Show names and families that have this in them.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Base units, under the library's field names.")] = False,
) -> None:
    """The models of the catalog: names, parameters and sizes.

    L layers of width D with N query heads and K key heads, and V words. `scaling-lib count` says more about one of them.
    """
    entries = _matching(" ".join(text or ()))
    print(screen.to_json([_facts(entry) for entry in entries]) if json else screen.table([*map(_row, entries)], numbers=NUMBERS))


def _matching(wanted: str) -> list[ModelEntry]:
    key = _key(wanted)
    found = [entry for entry in catalog.models() if key in _key(entry.name) or key in _key(entry.family)]
    if not found:
        raise ValueError(f"no model has {wanted!r} in its name; {units.near(wanted, (entry.name for entry in catalog.models()))}")
    return found


def _key(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter == ".")


def _row(entry: ModelEntry) -> dict[str, str]:
    from scaling_lib import transformer

    model = transformer.model(entry.name)
    return {
        "model": entry.name,
        "parameters": _short(transformer.parameters(model).total),
        "active": _short(transformer.active_parameters(model, "all")) if model.experts else "",
        "KV a token": units.human(transformer.kv_cache_bytes(model, S=1), "B"),
        **{letter: f"{getattr(model, letter):,}" for letter in "LDNKV"},
    }


def _short(count: float) -> str:
    million = float(f"{count / 1e6:.3g}")  # compared after rounding, so that 999.9 M is 1 B
    return f"{million:g} M" if million < 1000 else f"{float(f'{count / 1e9:.3g}'):,.4g} B"


def _facts(entry: ModelEntry) -> dict[str, object]:
    from scaling_lib import transformer

    model = transformer.model(entry.name)
    return {
        **asdict(model),
        "parameters": transformer.parameters(model).total,
        "active_parameters": transformer.active_parameters(model, "all"),
        "kv_bytes_per_token": transformer.kv_cache_bytes(model, S=1),
        **{name: value for name, value in asdict(entry).items() if name not in ("name", "shape")},
    }
