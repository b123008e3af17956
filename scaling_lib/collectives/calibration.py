"""What published measurements say of start-up and efficiency. Nothing applies it unasked."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from scaling_lib import catalog
from scaling_lib.collectives.costs import all_gather
from scaling_lib.collectives.groups import over
from scaling_lib.hardware import slice_of


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What measurements say of a group: give it on with `group.but(start_s=..., efficiency=...)`.

    Args:
        start_s: seconds before the first byte moves.
        efficiency: which part of the links' achievable bandwidth was reached.
    """

    start_s: float
    efficiency: float


def tpu7x_calibration() -> Calibration:
    """Start-up and efficiency that fit the published all-gathers on a TPU7x slice of 2x2x1, by least squares of the ratio.

    Five sizes, from 1 to 256 MiB gathered on each device. Both devices of a chip gather at once, each with those of its place
    in the other chips, and the published rate counts what a chip receives for both. Use it with `ici="achievable"`.

    NB: one slice, one kind of collective, and two figures fitted; for other chips and collectives nothing is claimed.
    Source: AI-Hypercomputer/tpu-recipes, in `catalog/published_microbench.csv`. Derived in chapters/03-sharding.md.
    """
    group = over(slice_of("tpu7x:2x2x1"))
    runs = [run for run in catalog.measurements("tpu7x") if run.what.startswith("all-gather on 2x2x1")]
    took = [run.size / run.value for run in runs]
    ideal = [all_gather(run.size / (2 * group.share), group).bandwidth_s for run in runs]
    # took = start + ideal / efficiency, each run divided by its own time: a straight line without a constant in two unknowns.
    a, b = [1 / t for t in took], [i / t for i, t in zip(ideal, took, strict=True)]
    aa, ab, bb = (sum(map(operator.mul, x, y)) for x, y in ((a, a), (a, b), (b, b)))
    det = aa * bb - ab * ab
    return Calibration(start_s=(sum(a) * bb - sum(b) * ab) / det, efficiency=det / (sum(b) * aa - sum(a) * ab))
