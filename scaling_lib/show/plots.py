"""The book's one matplotlib style and its roofline plot. Figure functions return the axes and never show them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, FuncFormatter

from scaling_lib import roofline as rl
from scaling_lib import units
from scaling_lib.hardware import Chip
from scaling_lib.show.palette import COLORS, NEUTRAL

DASHES: Sequence[str] = ("-", "--", ":", "-.")


def use_style() -> None:
    """Make matplotlib draw in the book's style: call it once, in a chapter's first cell."""
    mpl.rcParams.update(
        {
            "figure.figsize": (7, 4.6), "figure.dpi": 110, "savefig.bbox": "tight", "figure.facecolor": "white",
            "font.size": 14.5, "axes.titlesize": 15, "axes.labelsize": 14.5, "legend.fontsize": 13,
            "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
            "grid.color": "#DDDDDD", "grid.linewidth": 0.7, "lines.linewidth": 2.2, "lines.markersize": 8,
            "legend.frameon": False, "axes.axisbelow": True,
            "axes.prop_cycle": cycler(color=["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666"]),
        }
    )  # fmt: skip


def new_axes(xlabel: str, ylabel: str, *, loglog: bool = True) -> Axes:
    """Axes of a new figure with labeled axes; on log-log axes, ticks carry SI prefixes (1 k, 1 M, 1 T)."""
    _, ax = plt.subplots(layout="constrained")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if loglog:
        ax.set(xscale="log", yscale="log")
        _si_ticks(ax.xaxis, sep="")
        _si_ticks(ax.yaxis, sep=" ")
    return ax


def _si_ticks(axis: Axis, sep: str) -> None:
    """SI prefixes on a log axis; one that spans few decades also has labels at 2 and 5."""
    si = EngFormatter(sep=sep)

    def minor(value: float, position: int | None) -> str:
        low, high = sorted(axis.get_view_interval())
        leading = round(value / 10 ** math.floor(math.log10(value)))
        return si(value) if leading in (2, 5) and high < 50 * low else ""

    axis.set_major_formatter(si)
    axis.set_minor_formatter(FuncFormatter(minor))


def roofline(
    chip: Chip,
    *,
    dtypes: Sequence[str] = ("bf16",),
    levels: Sequence[rl.Level] = ("hbm",),
    points: Mapping[str, rl.Cost] | None = None,
    intensities: tuple[float, float] = (1, 1e4),
    ax: Axes | None = None,
) -> Axes:
    """Attainable FLOP/s against arithmetic intensity, with one ceiling a dtype and one slope a memory or network.

    Args:
        chip: supplies the ceilings and slopes.
        dtypes: one horizontal ceiling each, in this order of dashes.
        levels: one slope each, in the color of the resource; drawn up to the highest ceiling.
        points: costs to place by label, on the roof of the first level and of their own dtype.
        intensities: range of the horizontal axis, in FLOPs per byte.
        ax: axes to draw into; new ones if not given.

    Returns:
        The axes.

    Raises:
        ValueError: for no dtypes or no levels, or a rate that no source states for the chip.

    Derived in chapters/01-roofline.md.
    """
    if not dtypes or not levels:
        raise ValueError(f"dtypes={dtypes!r}, levels={levels!r}: give at least one of each")
    ax = ax or new_axes("arithmetic intensity (FLOPs per byte moved)", f"attainable on {chip} (FLOP/s)")
    low, high = intensities
    top = max(chip.flops_per_s(dtype) for dtype in dtypes)
    for level in levels:
        knee = rl.ridge(chip, max(dtypes, key=chip.flops_per_s), level=level)
        xs = [x for x in (low, min(knee, high)) if x <= high]
        ys = [rl.attainable_flops_per_s(x, chip, max(dtypes, key=chip.flops_per_s), level=level) for x in xs]
        rate = top / knee
        ax.plot(xs, ys, color=COLORS[level], label=f"{level.upper()}, {units.human(rate, 'B/s')}")
    for dtype, dash in zip(dtypes, itertools.cycle(DASHES), strict=False):
        peak = chip.flops_per_s(dtype)
        start = rl.ridge(chip, dtype, level=levels[0])
        ax.plot(
            [start, high],
            [peak, peak],
            color=COLORS["mxu"],
            linestyle=dash,
            label=f"{dtype}, {units.human(peak, units.rate_unit(dtype))}",
        )
    for label, cost in (points or {}).items():
        x, y = cost.intensity(levels[0]), rl.bound(cost, chip).flops_per_s
        ax.plot(x, y, "o", color=NEUTRAL)
        ax.annotate(label, (x, y), textcoords="offset points", xytext=(8, -14), color=NEUTRAL, fontsize=13)
    ax.set_xlim(low, high)
    ax.legend(loc="lower right")
    return ax
