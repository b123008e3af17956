"""What to change where no plan can run: other batches, other slices, uneven stages, offload; each is tried before it is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling_lib.search.result import Nearest
from scaling_lib.search.space import Space


def nearest(space: Space, how: Mapping[str, Any]) -> tuple[Nearest, ...]:
    """Changes with which a plan can run, nearest first of each kind.

    Args:
        space: in which none can.
        how: the arguments of `training.estimate` that say how to price.
    """
    return ()
