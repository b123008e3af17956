"""What to change where no plan can run: other batches, other slices, uneven stages, offload. Each is tried before it is named."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from scaling_lib.hardware import Slice
from scaling_lib.search.choices import Choices
from scaling_lib.search.pricing import Pricing, Ranking
from scaling_lib.search.result import Change, Nearest
from scaling_lib.search.space import Space
from scaling_lib.training import StepEstimate
from scaling_lib.training.estimate import shown_parts

CLOSE = 1 / 8
"""How far a batch may be off to be worth a look for its speed, rather than for being the nearest."""

TRIES = 6
"""Batches to look at on each side: a look takes some tenths of a second where there are thousands of chips."""

DOUBLINGS = 12
"""Of a slice in which a model does not fit, more than from one chip to a pod. Of other slices twice as many are looked at."""


def nearest(space: Space, how: Mapping[str, Any]) -> tuple[Nearest, ...]:
    """Changes with which a plan can run, each with a plan that does.

    Args:
        space: in which none can.
        how: the arguments of `training.estimate` that say how to price.
    """
    tries = (_uneven, _offload, _batch, _slice)
    return tuple(
        Nearest(change=change, value=value, estimate=found) for look in tries for change, value, found in look(space, how)
    )


Found = Iterator[tuple[Change, Any, StepEstimate]]


def _uneven(space: Space, how: Mapping[str, Any]) -> Found:
    base = space.question.base
    if not base.uneven_stages:
        yield from _with("uneven_stages", True, _look(space, how, base=base.but(uneven_stages=True)))


def _offload(space: Space, how: Mapping[str, Any]) -> Found:
    choices, off = space.question.choices, ("optimizer", *space.question.base.offload)
    if not any("optimizer" in one for one in choices.offload or ()):
        yield from _with("offload", off, _look(space, how, choices=replace(choices, offload=(off,))))


def _batch(space: Space, how: Mapping[str, Any]) -> Found:
    """The nearest batches below and above, and the one close by that trains fastest."""
    batch = space.question.batch
    wanted = sorted({ways * n for ways in space.parts for n in (batch // ways, batch // ways + 1) if n} - {batch})
    looked: dict[int, StepEstimate | None] = {}

    def runs(other: int) -> bool:
        if other not in looked:
            looked[other] = _look(space, how, batch=other)
        return looked[other] is not None

    def ways(other: int) -> int:
        return max(n for n in space.parts if other % n == 0)

    def first(others: Iterable[int]) -> set[int]:
        return set(itertools.islice(filter(runs, itertools.islice(others, TRIES)), 1))

    near = first(n for n in reversed(wanted) if n < batch) | first(n for n in wanted if n > batch)
    close = sorted((n for n in wanted if abs(n - batch) <= CLOSE * batch), key=lambda n: -ways(n))
    found = {n: e for n in [*near, *filter(runs, close[:TRIES])] if (e := looked[n])}
    near |= set(sorted(found, key=lambda n: -found[n].mfu)[:1])
    yield from (("batch", n, found[n]) for n in sorted(near))


def _slice(space: Space, how: Mapping[str, Any]) -> Found:
    """Where the ways do not come out: the nearest slices with fewer and with more chips. Where memory lacks: the next larger."""
    slice = space.question.slice
    if len(space.degrees):
        sides = [[_doubled(slice, n) for n in range(1, DOUBLINGS + 1)]]
    else:
        others = sorted(_others(slice), key=lambda s: (abs(math.log(s.chips / slice.chips)), s.count, sum(s.shape), s.shape))
        sides = [[s for s in others if s.chips < slice.chips], [s for s in others if s.chips > slice.chips]]
    for side in sides:
        of_each_size: dict[int, Slice] = {}
        for other in side:
            of_each_size.setdefault(other.chips, other)  # the first, the one most like a cube
        for other in itertools.islice(of_each_size.values(), 2 * DOUBLINGS):
            if found := _look(space, how, slice=other):
                yield "slice", other, found
                break


def _doubled(slice: Slice, times: int) -> Slice:
    """The slice with so many times its chips doubled: the one most like a cube, or, beyond a pod, several slices."""
    if slice.chip.kind != "tpu":
        return replace(slice, shape=(slice.shape[0], slice.shape[1] << times))
    powers = itertools.product(range(times + 1), repeat=len(slice.shape))
    shapes = (tuple(n << k for n, k in zip(slice.shape, by, strict=True)) for by in powers if sum(by) == times)
    if made := [s for shape in shapes if (s := _made(slice, shape, slice.count))]:
        return min(made, key=lambda s: (sum(s.shape), s.shape))
    return replace(slice, count=slice.count << times)


def _others(slice: Slice) -> list[Slice]:
    """Slices of other sizes: axes a cube longer or shorter, halved, doubled, or powers of two; also fewer and more slices."""

    def sizes(n: int, cube: int) -> list[int]:
        below = 1 << (n.bit_length() - 1)
        return sorted({size for size in (n - cube, n, n + cube, n // 2, 2 * n, below, 2 * below) if size > 0})

    gpu = slice.chip.kind != "tpu"
    axes = [[slice.shape[0]], sizes(slice.shape[1], 1)] if gpu else [sizes(n, 4) for n in slice.shape]
    counts = sizes(slice.count, 1) if slice.count > 1 else [1]
    made = (_made(slice, shape, count) for shape in itertools.product(*axes) for count in counts)
    return [s for s in made if s and s.chips != slice.chips]


def _made(slice: Slice, shape: tuple[int, ...], count: int) -> Slice | None:
    try:
        return Slice(slice.chip, shape, count)
    except ValueError:  # no such slice can be had
        return None


def _look(space: Space, how: Mapping[str, Any], **changes: Any) -> StepEstimate | None:
    """The best of a few plans with something changed: those that need the least memory, of one schedule."""
    question = replace(space.question, **changes)
    question = replace(question, choices=_few(question.choices))
    rates = {name: value for name, value in how.items() if name != "overlap"}
    ranking = Ranking(1)
    try:
        pricing = Pricing(Space(question), shown=shown_parts(how["overlap"]), **rates)
    except ValueError:  # what is pinned does not go with the change, or no source has a figure that it needs
        return None
    pricing.run(ranking)
    return pricing.estimate(ranking.best[0], how) if ranking.best else None


def _few(choices: Choices) -> Choices:
    few: dict[str, Any] = {"zero": max(choices.zero), "loss_chunks": max(choices.loss_chunks)}
    few |= {name: value for name, value in (("schedule", "1f1b"), ("remat", "full")) if value in getattr(choices, name)}
    return replace(choices, **few)


def _with(change: Change, value: Any, found: StepEstimate | None) -> Found:
    if found:
        yield change, value, found
