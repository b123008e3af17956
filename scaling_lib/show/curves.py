"""From latency to bandwidth: how fast an all-gather is for its size, as priced and as published measurements have it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from scaling_lib import catalog, units
from scaling_lib.collectives import Group, all_gather, all_reduce, over
from scaling_lib.hardware import slice_of
from scaling_lib.show.palette import COLORS, NEUTRAL
from scaling_lib.show.plots import DASHES, new_axes

Point = tuple[float, float]
_MARKS = "osD^"
_UNSTATED = ", counting not stated"
_ALL_REDUCES = (
    ("a100-80gb", "all-reduce by rings", "a100-80gb:8x1", False),
    ("h200", "all-reduce by rings", "h200:8x1", False),
    ("h200", "all-reduce in the network", "h200:8x1", True),
    ("v6e", "all-reduce on 16x16", "v6e:16x16", False),
)


def all_gathers(
    groups: Mapping[str, Group],
    *,
    points: Mapping[str, Sequence[Point]] | None = None,
    sizes_bytes: tuple[float, float] = (1e5, 1e9),
    ax: Axes | None = None,
) -> Axes:
    """Bytes per second that a device receives in an all-gather, against the bytes of the gathered array.

    Args:
        groups: a line each, by its label, of what `collectives.all_gather` says. A group with a start-up or the latency of
            hops is slow for small arrays.
        points: measurements, by label: (bytes of the gathered array on a device, bytes per second that it receives).
        sizes_bytes: the smallest and the largest array.
        ax: axes to draw into; new ones if not given.

    Returns:
        The axes, both logarithmic.

    Raises:
        ValueError: for no groups, a group of one device, and sizes out of order.

    Derived in chapters/03-sharding.md.
    """
    low, high = (units.number("sizes_bytes", size) for size in sizes_bytes)
    if not 0 < low < high:
        raise ValueError(f"sizes_bytes={sizes_bytes}: give a smaller and a larger size, both positive")
    if not groups:
        raise ValueError("groups is empty; give at least one, like {'v5e': over(slice_of('v5e:4x4'))}")
    ax = ax or new_axes("gathered array on a device (bytes)", "received by a device (bytes/s)")
    sizes = [low * (high / low) ** (i / 100) for i in range(101)]
    for dash, (label, group) in zip(itertools.cycle(DASHES), groups.items(), strict=False):
        if group.members == 1:
            raise ValueError(f"groups[{label!r}] is one device, which has nothing to gather")
        rates = [size * group.share / all_gather(size, group).seconds for size in sizes]
        ax.plot(sizes, rates, dash, color=COLORS["ici"], label=label)
    for mark, (label, measured) in zip(itertools.cycle(_MARKS), (points or {}).items(), strict=False):
        ax.plot(*zip(*measured, strict=True), mark, color=NEUTRAL, label=label)
    ax.legend(loc="lower right")
    return ax


def published_all_gathers(where: str = "2x2x1") -> list[Point]:
    """The published all-gathers of TPU7x on a slice of 2x2x1 or 2x2x2, as points for `all_gathers`.

    The publisher counts what a chip receives for its two devices, each from three others; here both figures are a device's.

    Raises:
        ValueError: for another slice.
    """
    found = [run for run in catalog.measurements("tpu7x") if run.what.startswith(f"all-gather on {where},")]
    if not found:
        raise ValueError(f"where={where!r} has no published all-gathers; 2x2x1 and 2x2x2 have")
    share = over(slice_of("tpu7x:2x2x1")).share  # on both slices a device gathers with three others
    return [(run.size / 2 / share, run.value / 2) for run in found]


def published_shares() -> dict[str, list[Point]]:
    """Published collectives by what they are: (bytes of the array on a device, part of the priced bandwidth it reaches).

    The price is that of `collectives`, without start-up and at full efficiency: 1 is the bound.
    NB: the rate of v6e is taken to count 2(n - 1)/n of the array, as those of the GPUs do; its publisher does not say. Its
    all-reduce between slices is left out: between how many is not said either.
    """
    shares = {}
    for where in ("2x2x1", "2x2x2"):
        group = over(slice_of(f"tpu7x:{where}"), 0, 1)
        bound = group.links * group.link_bytes_per_s
        shares[f"tpu7x all-gather, {where}"] = [(size, rate / bound) for size, rate in published_all_gathers(where)]
    for name, what, where, in_network in _ALL_REDUCES:
        (run,) = [run for run in catalog.measurements(name) if run.what.startswith(what)]
        group = over(slice_of(where))
        took = 2 * group.share * run.size / run.value
        label = f"{name} {what}" + _UNSTATED * (name == "v6e")
        shares[label] = [(run.size, all_reduce(run.size, group, in_network=in_network).seconds / took)]
    return shares


def shares_of_bound(*, ax: Axes | None = None) -> Axes:
    """Published collectives against the bandwidth that `collectives` prices, by the size of the array.

    Args:
        ax: axes to draw into; new ones if not given.

    Returns:
        The axes: sizes logarithmic, shares from 0 to 1. A hollow mark is a rate whose counting the publisher does not state.

    Derived in chapters/03-sharding.md.
    """
    if ax is None:
        _, ax = plt.subplots(layout="constrained", figsize=(7, 6))
    ax.set(xscale="log", xlabel="array on a device (bytes)", ylim=(0, 1.08), ylabel="part of the priced bandwidth")
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    for mark, (label, points) in zip("oxD^vs", published_shares().items(), strict=True):
        color = NEUTRAL if mark in "x^vD" else COLORS["ici"]  # GPUs dark; a cross is seen on the dot of the other slice
        face = "white" if label.endswith(_UNSTATED) else color
        ax.plot(*zip(*points, strict=True), mark, color=color, markerfacecolor=face, markeredgewidth=1.6, label=label)
    ax.axhline(1, color=NEUTRAL, linewidth=1.2, linestyle=":")
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2))
    return ax
