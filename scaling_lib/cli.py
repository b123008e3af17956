"""The command line: `scaling-lib chips` shows the catalog. `--json` prints base units under the library's own field names."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from scaling_lib import __version__, catalog, hardware


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A mistake in the input is one line on stderr and status 2."""
    parser = argparse.ArgumentParser(
        prog="scaling-lib", description="Predict the time, memory and cost of language models on TPUs."
    )
    parser.add_argument("--version", action="version", version=f"scaling-lib {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    chips = commands.add_parser("chips", help="the chips of the catalog; with names, every figure with its source")
    chips.add_argument("name", nargs="*", help="v5e, tpu7x, Trillium, h100, ...")
    chips.add_argument("--json", action="store_true", help="base units, under the library's field names")
    chips.set_defaults(run=_chips)
    arguments = parser.parse_args(argv)
    try:
        print(arguments.run(arguments))
    except BrokenPipeError:  # piped into head
        sys.stderr.close()
    except (ValueError, ModuleNotFoundError) as error:
        print(f"scaling-lib: {error}", file=sys.stderr)
        return 2
    return 0


def _chips(arguments: argparse.Namespace) -> str:
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
