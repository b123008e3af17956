"""The command `scaling-lib grade`: grades filled notebooks, each in a guarded process of its own."""

from __future__ import annotations

import importlib.util
import json as json_module
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from scaling_lib.cli import status

EXAMPLES = """
scaling-lib grade submissions --lab students/labs/03-sharding.ipynb
scaling-lib grade anna.ipynb --lab 01-roofline.ipynb --json report.json
"""


def run(
    submissions: Annotated[list[Path], typer.Argument(metavar="SUBMISSION ...", help="Filled notebooks, or folders of them.")],
    lab: Annotated[Path, typer.Option("--lab", metavar="NOTEBOOK", help="The notebook that was handed out.")],
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the reports there as JSON, too.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Most for one submission.")] = 300,
    cell_timeout: Annotated[float, typer.Option("--cell-timeout", metavar="SECONDS", help="Most for one cell.")] = 60,
    memory: Annotated[float, typer.Option("--memory", metavar="GIB", help="Most memory of one submission.")] = 6,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="Submissions at a time.", min=1)] = 2,
) -> None:
    """Grade filled notebooks: points for the checks they pass, and hints for those they do not.

    Each runs in a process of its own that reads no files but Python's and its own, and has limits of time, memory and output.
    Only answers and added cells are taken from it; the checks are those of the notebook that was handed out.
    """
    if sys.platform != "linux":
        raise status.Missing("grading guards submissions with what Linux has: on Windows use WSL, on macOS a virtual machine")
    for needed in ("IPython", "jax"):
        if importlib.util.find_spec(needed) is None:
            raise status.Missing(f"grading needs {needed}: pip install 'scaling-lib[grading]'")
    from scaling_lib.grading import grade, sandbox

    limits = sandbox.Limits(seconds=timeout, cell_s=min(cell_timeout, timeout), memory_bytes=int(memory * 2**30))
    named = grade.found(submissions)
    opened = grade.open_lab(lab if lab.suffix == ".ipynb" else lab.with_name(lab.name + ".ipynb"), limits, jobs)
    reports = grade.grade_all(opened, named, limits, jobs, each=lambda report: print(report.text(), flush=True))
    if json:
        written = json.with_name(f".{json.name}.{os.getpid()}")
        all_of_it = {"lab": opened.title, "submissions": [report.json() for report in reports]}
        written.write_text(json_module.dumps(all_of_it, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(written, json)
    whole = [report for report in reports if not (report.refused or report.stopped)]
    print(f"{len(whole)} of {len(reports)} graded to their end", file=sys.stderr)
    if len(whole) < len(reports):
        raise typer.Exit(status.NOT_ALL)
