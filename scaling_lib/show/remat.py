"""The remat trade-off: bytes kept for the backward pass against FLOPs done again, one point a policy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, PercentFormatter

from scaling_lib import transformer
from scaling_lib.show.palette import COLORS, NEUTRAL
from scaling_lib.transformer import Transformer
from scaling_lib.transformer.remat import Remat

_MARKS = "osD^vPX"


def policies(model: Transformer) -> dict[str, Remat]:
    """Usual policies by their label, from the one that keeps most to the one that keeps least."""
    named = transformer.names(model)
    results = {row.name for row in transformer.matmuls(model, T=1, causal=False)}
    return {
        "keep all": "none",
        "all but scores (selective)": "selective",
        "results of matmuls, no scores": tuple(name for name in named if name in results - {"attention.scores"}),
        "context and out": tuple(name for name in ("attention.context", "attention.out") if name in named),
        "layer inputs, what is needed again": (),
        "layer inputs, all again (full)": "full",
    }


def trade_off(
    model: Transformer,
    *,
    T: int,
    causal: bool,
    B: int = 1,
    remat: Mapping[str, Remat] | None = None,
    measured: Mapping[str, tuple[float, float]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Activations of all layers against recomputed FLOPs, for each policy: filled with plain attention, hollow with flash.

    Args:
        model: whose training step it is.
        T: tokens in a sequence.
        causal: as of `transformer.train_flops`.
        B: sequences on a device.
        remat: policies by label, as of `transformer.activation_bytes`; usual ones if not given.
        measured: what a program did, by label: (FLOPs done again over those of forward and backward, bytes kept by the layers).
        ax: axes to draw into; new ones if not given.

    Returns:
        The axes: bytes logarithmic, extra FLOPs in percent of the model's.

    Raises:
        ValueError: as `transformer.activation_bytes`, and for more policies than there are marks.

    Derived in chapters/04-transformers.md.
    """
    chosen = policies(model) if remat is None else remat
    if not 1 <= len(chosen) <= len(_MARKS):
        raise ValueError(f"remat has {len(chosen)} policies; give 1 to {len(_MARKS)}")
    if ax is None:
        _, ax = plt.subplots(layout="constrained", figsize=(7, 6.4))
    ax.set(yscale="log", xlabel="computed again (% of forward and backward)", ylabel="kept by all layers (bytes)")
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
    ax.yaxis.set_major_formatter(EngFormatter(sep=" "))
    for mark, (label, policy) in zip(_MARKS, chosen.items(), strict=False):
        for flash in (False, True):
            x, y = point(model, policy, T=T, causal=causal, B=B, flash=flash)
            face = "none" if flash else COLORS["hbm"]
            ax.plot(x, y, mark, color=COLORS["hbm"], markerfacecolor=face, markeredgewidth=1.8, markersize=11, label=f"_{label}")
    for mark, (label, (x, y)) in zip(itertools.cycle("x+"), (measured or {}).items(), strict=False):
        ax.plot(x, y, mark, color=NEUTRAL, markeredgewidth=2.2, markersize=11, label=label)
    marks = [
        Line2D([], [], linestyle="", marker=mark, color=COLORS["hbm"], label=label)
        for mark, label in zip(_MARKS, chosen, strict=False)
    ]
    marks += [
        Line2D([], [], linestyle="", marker="o", color=COLORS["hbm"], markerfacecolor=face, label=label)
        for face, label in ((COLORS["hbm"], "filled: plain attention"), ("none", "hollow: flash"))
    ]
    marks += [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    ax.margins(0.08, 0.15)
    ax.legend(handles=marks, loc="upper center", bbox_to_anchor=(0.4, -0.16))
    return ax


def point(model: Transformer, remat: Remat, *, T: int, causal: bool, B: int, flash: bool) -> tuple[float, float]:
    """FLOPs done again over those of forward and backward, and bytes that the layers keep, under one policy."""
    step = transformer.train_flops(model, T=T, causal=causal, B=B, remat=remat, flash=flash)
    kept = transformer.activation_bytes(model, T=T, B=B, remat=remat, flash=flash)
    return step.recompute.total / step.model_flops, kept.layers_bytes
