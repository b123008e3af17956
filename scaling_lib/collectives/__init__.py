"""What a collective costs: the bytes over the busiest link, the hops, and which of them sets the time.

A `Group` says who takes part and over which wires; each collective takes the bytes of one array and a group, and returns a
`CollectiveCost`. Derived in chapters/03-sharding.md.
"""

from scaling_lib.collectives.calibration import Calibration, tpu7x_calibration
from scaling_lib.collectives.costs import (
    CollectiveCost,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    permute,
    reduce_scatter,
)
from scaling_lib.collectives.groups import Group, across, over

__all__ = [
    "Calibration",
    "CollectiveCost",
    "Group",
    "across",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "over",
    "permute",
    "reduce_scatter",
    "tpu7x_calibration",
]
