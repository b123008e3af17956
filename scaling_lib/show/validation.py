"""Published training runs against predictions that were not fitted on them, as a drawing."""

from __future__ import annotations

from matplotlib.axes import Axes

from scaling_lib.show.palette import MODELS, NEUTRAL
from scaling_lib.show.plots import new_axes
from scaling_lib.validation import Report

_KINDS = {"tpu": ("TPUs", "o", MODELS[0]), "gpu": ("GPUs", "^", MODELS[1])}


def predictions(report: Report, *, ax: Axes | None = None) -> Axes:
    """Predicted over published seconds of a step, against the published ones: 1 is right, the band is 10 % to either side.

    Args:
        report: what `validation.training` returned. Each mark is the mean of the splits in which the run was tested; runs in a
            group of one are left out.
        ax: axes to draw into; new ones if not given.

    Returns:
        The axes, both logarithmic. Circles are TPUs, triangles GPUs; filled marks are on the clean list.
    """
    ax = ax or new_axes("published step (s)", "predicted / published")
    ax.axhspan(0.9, 1.1, color=NEUTRAL, alpha=0.12, linewidth=0)
    ax.axhline(1, color=NEUTRAL, linewidth=1.2)
    for kind, (label, mark, color) in _KINDS.items():
        for clean in (True, False):
            rows = [row for row in report.rows if row.held_out is not None and (row.kind, row.clean) == (kind, clean)]
            if not rows:
                continue
            ax.plot(
                [row.published_s for row in rows],
                [1 + (row.held_out or 0.0) for row in rows],
                mark,
                color=color,
                markerfacecolor=color if clean else "white",
                markersize=6,
                label=label if clean else f"{label}, not clean",
            )
    ax.set_yscale("log")
    ticks = [0.4, 0.5, 0.7, 0.9, 1.0, 1.1, 1.4]
    ax.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.legend(loc="lower left")
    return ax


def words(report: Report) -> str:
    """What the drawing shows, for readers who cannot see it."""
    tested = [row for row in report.rows if row.held_out is not None]
    counts = {kind: sum(row.kind == kind for row in tested) for kind in _KINDS}
    worst = max(tested, key=lambda row: abs(row.held_out or 0.0))
    return (
        f"Predicted over published step time of {counts['tpu']} TPU and {counts['gpu']} GPU runs, not fitted on them. "
        f"{report.figures['all'].near:.0%} of the errors are within 10 %, {report.figures['clean'].near:.0%} on the clean list. "
        f"The farthest is {worst.model} on {worst.chips} {worst.chip}, {worst.held_out:+.0%}."
    )
