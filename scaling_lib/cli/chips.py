"""The command `scaling-lib chips`: the figures of the catalog."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from scaling_lib import catalog, hardware
from scaling_lib.cli import screen
from scaling_lib.cli.status import Missing

EXAMPLES = """
scaling-lib chips
scaling-lib chips v5e
scaling-lib chips Trillium h100 --json
"""


def run(
    name: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="v5e, tpu7x, Trillium, h100, ...", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Base units, under the library's field names.")] = False,
) -> None:
    """The chips of the catalog; with names, every figure with its source."""
    chosen = [hardware.chip(each) for each in name or ()]
    if json:
        shown = [asdict(chip) for chip in chosen or hardware.CHIPS.values()]
        if chosen:
            for entry in shown:
                entry["sources"] = [asdict(row) for row in catalog.chip_figures() if row.chip == entry["name"]]
        print(screen.to_json(shown))
        return
    try:
        from scaling_lib.show import tables
    except ModuleNotFoundError as error:
        raise Missing(f"tables need {error.name}: pip install 'scaling-lib[cli]', or use --json") from error
    if not chosen:
        print(_table(tables.chips()))
    print("\n\n".join(f"{chip.name} ({chip.vendor})\n{_table(tables.sources(chip))}" for chip in chosen), end="\n" * bool(chosen))


def _table(table: object) -> str:
    rows = [{name: str(value) for name, value in row.items()} for row in table.rows]  # type: ignore[attr-defined]
    return screen.table(rows)
