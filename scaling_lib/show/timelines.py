"""The timeline of a compiled program as a figure: a lane for each resource, hidden communication told from exposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from scaling_lib.show.palette import COLORS, NEUTRAL

LANES = {"compute": "compute", "ici": "ICI", "dcn": "DCN", "hbm": "copies", "host": "host"}
_COLORS = {"ici": COLORS["ici"], "dcn": COLORS["dcn"], "hbm": COLORS["hbm"], "host": COLORS["pcie"]}
_THICK = 0.76  # of a lane
_LEGIBLE = 0.04  # of the axis: a narrower bracket has no label
_NARROW = 0.01
_SCALES = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def timeline(spans: Sequence[Any], loops: Sequence[Any] = (), *, ax: Axes | None = None) -> Axes:
    """Operations over time, one lane a resource: `timeline(t.spans, t.loops)` for a timeline `t` of `scaling_lib.xla.timeline`.

    Of a loop only the first pass is drawn, under a bracket with the number of passes. The part of a transfer for which the
    compute units wait is drawn full, at the transfer's end; the rest, hidden behind other work, pale and hatched. Transfers
    at the same time share their lane.

    Args:
        spans: operations, each with `start_s`, `duration_s`, `exposed_s`, `resource` and `kind`; those in a loop as in its
            first pass.
        loops: the loops around them, outer ones first, each with `name`, `start_s`, `pass_s`, `passes` and `loop`, the name
            of the one around it.
        ax: axes to draw into; new ones if not given.

    Returns:
        The axes.

    Raises:
        ValueError: for no spans, or a resource that has no lane.
    """
    if not spans:
        raise ValueError("spans is empty; give the spans of a timeline")
    if odd := {span.resource for span in spans} - set(LANES):
        raise ValueError(f"spans have the resource {min(odd)!r}; there are lanes for {', '.join(LANES)}")
    if ax is None:
        _, ax = plt.subplots(layout="constrained", figsize=(7, 3.6))
    last = max(span.start_s + span.duration_s for span in spans)
    scale, unit = next(((s, u) for s, u in _SCALES if _in_first_passes(last, loops) >= s), _SCALES[-1])

    def drawn(at_s: float) -> float:
        return _in_first_passes(at_s, loops) / scale

    end = drawn(last)
    used = [resource for resource in LANES if any(span.resource == resource for span in spans)]
    for lane, resource in enumerate(used):
        _lane(ax, [span for span in spans if span.resource == resource], -lane, drawn, end)
    depths = _depths(loops)
    tiers = max(depths.values(), default=-1) + 1
    for loop in loops:
        left, right = drawn(loop.start_s), drawn(loop.start_s + loop.pass_s)
        height = 0.1 + 0.5 * (tiers - depths[loop.name])
        ax.plot([left, left, right, right], [height - 0.1, height, height, height - 0.1], color=NEUTRAL, linewidth=1.4)
        if right - left > _LEGIBLE * end:
            label = f"× {loop.passes}"
            ax.text((left + right) / 2, height + 0.03, label, ha="center", va="bottom", fontsize=12, color=NEUTRAL)
    ax.set_yticks([-lane for lane in range(len(used))], [LANES[resource] for resource in used])
    ax.set(xlim=(0, end), ylim=(0.5 - len(used), 0.6 + 0.5 * tiers))
    ax.set_xlabel(f"time ({unit})" + (", each loop drawn once" if loops else ""))
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.legend(handles=_legend(spans, used), loc="upper center", bbox_to_anchor=(0.45, -0.28), ncols=2, handlelength=1.6)
    return ax


def _in_first_passes(at_s: float, loops: Sequence[Any]) -> float:
    """From the program's time to that of a figure in which every loop has one pass."""
    cuts = ((at_s - loop.start_s - loop.pass_s, loop.pass_s * (loop.passes - 1)) for loop in loops)
    return at_s - float(sum(min(max(over, 0.0), length) for over, length in cuts))


def _depths(loops: Sequence[Any]) -> dict[str, int]:
    depths: dict[str, int] = {}
    for loop in loops:  # outer ones come first
        depths[loop.name] = depths.get(loop.loop, -1) + 1
    return depths


def _lane(ax: Axes, spans: Sequence[Any], middle: float, drawn: Callable[[float], float], end: float) -> None:
    free: list[float] = []  # until when each row of the lane is taken
    placed = []
    for span in sorted(spans, key=lambda span: span.start_s):
        left, right = drawn(span.start_s), drawn(span.start_s + span.duration_s)
        row = next((i for i, until in enumerate(free) if until <= left + 1e-9 * end), len(free))
        free[row : row + 1] = [right]
        waits = right if span.resource == "compute" else max(left, drawn(span.start_s + span.duration_s - span.exposed_s))
        placed.append((row, _color(span), ((left, waits, span.resource != "compute"), (waits, right, False))))
    height = _THICK / len(free)
    for row, color, parts in placed:
        for left, right, hidden in parts:
            if right > left:
                corner = (left, middle + _THICK / 2 - (row + 1) * height)
                look = _look(color, hidden, narrow=right - left < _NARROW * end)
                ax.add_patch(Rectangle(corner, right - left, height, **look))


def _color(span: Any) -> str:
    return COLORS["mxu" if span.kind == "matmul" else "vpu"] if span.resource == "compute" else _COLORS[span.resource]


def _look(color: str, hidden: bool, narrow: bool = False) -> dict[str, Any]:
    """Full with a white edge, or pale and hatched; edges would swallow what is narrow."""
    pale = tuple(1 - 0.3 * (1 - part) for part in to_rgb(color))
    edge: dict[str, Any] = {"linewidth": 0} if narrow else {"linewidth": 0.6, "edgecolor": color if hidden else "white"}
    return {"facecolor": pale if hidden else color, "hatch": "////" if hidden and not narrow else None, **edge}


def _legend(spans: Sequence[Any], used: Sequence[str]) -> list[Patch]:
    kinds = {("matmul" if span.kind == "matmul" else "other") for span in spans if span.resource == "compute"}
    patches = [
        Patch(label=label, **_look(COLORS[part], False))
        for key, part, label in (("matmul", "mxu", "matmul"), ("other", "vpu", "other compute"))
        if key in kinds
    ]
    for resource in used:
        if resource != "compute":
            moved = [span for span in spans if span.resource == resource]
            if any(span.exposed_s for span in moved):
                patches.append(Patch(label=f"{LANES[resource]}, exposed", **_look(_COLORS[resource], False)))
            if any(span.exposed_s < span.duration_s for span in moved):
                patches.append(Patch(label=f"{LANES[resource]}, hidden", **_look(_COLORS[resource], True)))
    return patches
