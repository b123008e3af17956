"""The best plan on each of a chip's usual slices, and the smallest that is done in time: `scaling-lib plan MODEL v5p`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scaling_lib.cli import plans, screen
from scaling_lib.cli.assumed import Assumed
from scaling_lib.hardware import Chip, Slice

if TYPE_CHECKING:
    from scaling_lib.search import Search
    from scaling_lib.training import StepEstimate


def of_chip(chip: Chip, count: int) -> list[Slice]:
    """Slices from the smallest to a pod, each with twice the chips of the one before; so many of each, over DCN."""
    from scaling_lib.training import sizing

    return [Slice(chip, one.shape, count) for one in sizing.slices(chip) if one.count == 1]


def best(slices: list[Slice], search: Callable[[Slice], Search]) -> list[StepEstimate]:
    """The best plan on each slice on which one can run."""
    with screen.progress("slices") as report:
        found: list[StepEstimate] = []
        for done, where in enumerate(slices, start=1):
            found += search(where).best[:1]
            if report:
                report(done, len(slices))
    return found


def in_time(found: list[StepEstimate], assumed: Assumed, days: float) -> StepEstimate | None:
    """The one with the fewest chips that trains the budget in so many days."""
    assert assumed.tokens is not None
    return next((one for one in found if one.days(assumed.tokens, assumed.goodput) <= days), None)


def shown(found: list[StepEstimate], assumed: Assumed, days: float | None) -> str:
    """A row for each slice, and the answer to how many chips."""
    rows: list[dict[str, str]] = []
    for one in found:
        row = plans.row(one, 1, assumed)
        tokens = f"{one.batch * one.T:,}"
        rows.append({"slice": str(one.slice), "chips": f"{one.slice.chips:,}", "tokens a step": tokens, **row})
        del rows[-1]["#"]
    parts = [screen.text(str(assumed)), screen.table(rows, numbers=(*plans.NUMBERS, "chips", "tokens a step"))]
    if not found:
        parts.append(screen.text("No plan can run on any of these slices; name one, as v5p:8x8x8, to see why"))
    elif days is not None:
        enough = in_time(found, assumed, days)
        none = "none of these slices is fast enough; --slices 2 joins two of each"
        says = f"{enough.slice}, {enough.slice.chips:,} chips, is the smallest of these that is fast enough" if enough else none
        parts.append(screen.text(f"{days:g} days: {says}"))
    return "\n\n".join(filter(None, parts))


def facts(found: list[StepEstimate], assumed: Assumed, days: float | None) -> dict[str, Any]:
    """The same in base units."""
    one = None if days is None else in_time(found, assumed, days)
    return {"slices": [plans.facts(each, assumed) for each in found], "in_time": None if one is None else str(one.slice)}
