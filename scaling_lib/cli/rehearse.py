"""The command `scaling-lib rehearse`: is this machine ready for a workshop?"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scaling_lib import rehearsal
from scaling_lib.cli import screen, status

EXAMPLES = """
scaling-lib rehearse --quick
scaling-lib rehearse 01-roofline 03-sharding
scaling-lib rehearse --labs students/labs --json
"""


def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="LAB", help="01-roofline, 03-sharding, ...; all labs if none is named.")
    ] = None,
    labs: Annotated[
        Path | None, typer.Option("--labs", metavar="FOLDER", help="Where the notebooks are.", show_default="labs")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run no lab.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Most for one lab.")] = 300,
    json: Annotated[bool, typer.Option("--json", help="The checks as JSON.")] = False,
) -> None:
    """Is this machine ready for a workshop? Looks at what is installed, and runs each lab once, as handed out.

    Checks that nobody has answered are fine; errors are not.
    """
    began = time.monotonic()
    folder, found = rehearsal.labs_in(labs)
    wanted = rehearsal.chosen(found, names or ()) if found else []
    checks = [*rehearsal.machine(), rehearsal.offline([Path(), folder.parent, folder.parent.parent])]
    if found:
        checks.append(rehearsal.Check("notebooks", "ok", f"{len(found)} in {folder}"))
    else:
        there = "say where with --labs FOLDER; make editions writes them, the offline bundle has them"
        checks.append(rehearsal.Check("notebooks", "fix", f"none in {folder}", there))
    if not quick:
        with screen.progress("running labs") as report:
            for done, path in enumerate(wanted):
                if report:
                    report(done, len(wanted))
                checks.append(rehearsal.lab(path, timeout))
    wrong = [check.name for check in checks if check.state == "fix"]
    seconds = time.monotonic() - began
    if json:
        print(screen.to_json({"ready": not wrong, "seconds": seconds, "checks": [asdict(check) for check in checks]}))
    else:
        print(screen.table([{"what": c.name, "is": c.state.replace("fix", "FIX"), "found": c.found, "do": c.do} for c in checks]))
        ran = "no lab was run" if quick or not wanted else "1 lab was run" if len(wanted) == 1 else f"{len(wanted)} labs were run"
        print(f"\n{'NOT READY: ' + ', '.join(wrong) if wrong else 'READY'}; {ran}, {seconds:.0f} s in all")
    if wrong:
        raise typer.Exit(status.NOT_ALL)
