"""The command `scaling-lib chips`: the figures of the catalog."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from scaling_lib import catalog, hardware


def add(commands: Any) -> None:
    """Add the command to the parsers of `scaling_lib.cli`."""
    chips = commands.add_parser("chips", help="the chips of the catalog; with names, every figure with its source")
    chips.add_argument("name", nargs="*", help="v5e, tpu7x, Trillium, h100, ...")
    chips.add_argument("--json", action="store_true", help="base units, under the library's field names")
    chips.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """What `scaling-lib chips` prints."""
    chosen = [hardware.chip(name) for name in arguments.name]
    if arguments.json:
        shown = [asdict(chip) for chip in chosen or hardware.CHIPS.values()]
        if chosen:
            for entry in shown:
                entry["sources"] = [asdict(row) for row in catalog.chip_figures() if row.chip == entry["name"]]
        return json.dumps(shown, indent=2)
    try:
        from scaling_lib.show import tables
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"tables need {error.name}: pip install 'scaling-lib[cli]', or use --json") from error
    return (
        "\n\n".join(f"{chip.name} ({chip.vendor})\n{tables.sources(chip)}" for chip in chosen) if chosen else str(tables.chips())
    )
