"""The command `scaling-lib validate`: what the library predicts against what others measured."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated

import typer

from scaling_lib import units
from scaling_lib.cli import quantities, screen
from scaling_lib.cli.status import Missing

if TYPE_CHECKING:
    from scaling_lib.validation import Report

EXAMPLES = """
scaling-lib validate training
scaling-lib validate training --rows --splits 10
scaling-lib validate training --json
scaling-lib validate memory
"""
WHAT = ("training", "memory")
NUMBERS = ("runs", "chips", "efficiency", "in sample", "held out", "worst", "published", "predicted", "compiled", "error")


def run(
    what: Annotated[
        str,
        typer.Argument(
            metavar="|".join(WHAT), help="Step times of published runs, or memory of training steps compiled for TPUs."
        ),
    ],
    rows: Annotated[bool, typer.Option("--rows", help="Every run as well.")] = False,
    splits: Annotated[
        str, typer.Option("--splits", metavar="N", help="Random halves, fitted on one and tested on the other.")
    ] = "100",
    json: Annotated[bool, typer.Option("--json", help="Base units, under the library's field names.")] = False,
) -> None:
    """Predicted against published, or against the TPU compiler.

    Of training runs: errors where nothing was fitted on the run, by chip, code base and precision. Of memory: every recorded
    program.
    """
    if what not in WHAT:
        raise ValueError(f"{what!r} cannot be validated; {units.near(what, WHAT)}")
    if what == "memory":
        print(_memory(json))
        return
    from scaling_lib import validation

    report = validation.training(quantities.size("--splits", splits))
    if json:
        print(screen.to_json(report.to_json()))
        return
    parts = [
        screen.text(
            f"{len(report.rows)} of {len(report.rows) + len(report.unusable)} published runs, in {report.splits} random halves: "
            "fitted on one, tested on the other. In brackets the 5th to 95th percentile of the halves. "
            "The baseline is 6N and attention over the peak, times a constant."
        ),
        screen.table(_figures(report), numbers=NUMBERS),
        screen.table(_groups(report), numbers=NUMBERS),
        *([screen.table(_runs(report), numbers=NUMBERS)] if rows else []),
        *(screen.text(str(scaling)) for scaling in (validation.korthikanti(), *validation.strong_scaling())),
    ]
    print("\n\n".join(parts))


def _memory(json: bool) -> str:
    try:
        from scaling_lib.xla import judged
    except ModuleNotFoundError as error:
        raise Missing(f"validate memory needs {error.name}: pip install 'scaling-lib[cli,jax]'") from error
    found = judged.judged()
    if json:
        return screen.to_json([one.to_json() for one in found])
    rows = [
        {
            "case": case.name,
            "slice": case.slice,
            "predicted": units.human(one.memory[1].predicted, "GiB"),
            "compiled": units.human(one.memory[1].compiled or 0.0, "GiB"),
            "error": f"{one.memory[1].error or 0.0:+.1%}",
            "fits": ("yes" if one.fits else "no") + ("" if one.agree else ", predicted otherwise"),
        }
        for case, one in zip(judged.CASES, found, strict=True)
    ]
    says = f"peak memory of a device in {len(rows)} training steps, compiled for TPUs and recorded"
    return f"{screen.text(says)}\n\n{screen.table(rows, numbers=NUMBERS)}"


def _figures(report: Report) -> list[dict[str, str]]:
    def spread(value: float, low: float, high: float) -> str:
        return f"{value:.1%}" + (f" ({low:.1%} to {high:.1%})" if low < high else "")

    return [
        {
            "tested on": name,
            "runs": str(of.runs),
            "median error": spread(of.median, *of.median_spread),
            "within 10 %": spread(of.near, *of.near_spread),
            "baseline": f"{report.baseline[name].median:.1%}, {report.baseline[name].near:.1%}",
        }
        for name, of in report.figures.items()
    ]


def _groups(report: Report) -> list[dict[str, str]]:
    shown = []
    for name, rows in report.groups.items():
        tested = [abs(row.held_out) for row in rows if row.held_out is not None]
        shown.append(
            {
                "group": name.replace(", ", " "),
                "runs": str(len(rows)),
                "efficiency": f"{statistics.median(row.efficiency for row in rows):.2f}",
                "in sample": f"{statistics.median(abs(row.error) for row in rows):.1%}",
                "held out": f"{statistics.median(tested):.1%}" if tested else "-",
                "worst": f"{max(tested):.1%}" if tested else "-",
            }
        )
    return shown


def _runs(report: Report) -> list[dict[str, str]]:
    return [
        {
            "id": row.id,
            "model": row.model,
            "group": row.group.replace(", ", " "),
            "chips": f"{row.chips:,}",
            "published": units.human(row.published_s, "s"),
            "predicted": units.human(row.predicted_s, "s"),
            "error": f"{row.error:+.1%}",
        }
        for row in report.rows
    ]
