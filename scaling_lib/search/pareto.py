"""The best servers: least seconds a token for the least money, over all slices, layouts and batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling_lib import hardware, units
from scaling_lib.hardware import Chip, Slice, slice_of
from scaling_lib.inference import Layout, ServingEstimate, Speed, serve
from scaling_lib.inference.server import Engine
from scaling_lib.inference.sizing import slices_of
from scaling_lib.search.servers import Candidates, Question, candidates, layouts
from scaling_lib.training.money import HOUR_S
from scaling_lib.transformer import Transformer
from scaling_lib.transformer import model as model_of

FINER = 0.01
"""Part by which a server must be cheaper than the next faster one to be on the front."""


@dataclass(frozen=True, kw_only=True)
class Pareto:
    """Servers of which none is both faster and cheaper than another, and what became of the rest.

    Args:
        model: the model.
        input: tokens of a prompt.
        output: new tokens.
        front: from the fastest, by seconds from token to token, to the cheapest, by dollars a token (by seconds of a chip where
            no price is known). All fit, and all are as fast to the first token as was asked.
        best: the cheapest that is as fast as was asked, of all; None where none is.
        slices: that were looked at.
        servers: layouts on slices at a batch that were priced, all of which fit.
        layouts: that can run, whether they fit or not.
        refused: layouts that a rule refuses, by rule.
        why_none: where none is as fast as was asked or none fits, why, and what comes nearest.
        seconds: that the search took.
    """

    model: Transformer
    input: int
    output: int
    front: tuple[ServingEstimate, ...]
    best: ServingEstimate | None
    slices: tuple[Slice, ...]
    servers: int
    layouts: int
    refused: Mapping[str, int]
    why_none: str | None
    seconds: float

    def explain(self) -> str:
        """The answer in words."""
        looked = f"{len(self.slices)} slice{'s' * (len(self.slices) > 1)}"
        lines = [
            f"{self.model}, requests of {self.input} + {self.output} tokens: {self.servers:,} servers, "
            f"{self.layouts:,} layouts on {looked}, priced in {units.human(self.seconds, 's')}",
        ]
        if self.front:
            fastest, cheapest = self.front[0], self.front[-1]
            lines += [f"fastest: {_described(fastest)}", f"cheapest: {_described(cheapest)}"]
        lines += [f"best: {self.best}" if self.best else f"None will do: {self.why_none}."]
        if self.refused:
            lines.append("layouts refused: " + ", ".join(f"{kind} {count:,}" for kind, count in self.refused.items()))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON can hold it; seconds and dollars in base units."""
        names = ("input", "output", "servers", "layouts", "why_none", "seconds")
        return {
            "model": str(self.model),
            **{name: getattr(self, name) for name in names},
            "slices": [str(slice) for slice in self.slices],
            "refused": dict(self.refused),
            "front": [one.to_json() for one in self.front],
            "best": self.best and self.best.to_json(),
        }

    def __str__(self) -> str:
        return self.explain()


def serving_pareto(
    model: Transformer | str,
    where: Chip | Slice | str | Iterable[Slice | str],
    *,
    input: int,
    output: int,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    engine: Engine = "continuous",
    base: Layout = Layout(),  # noqa: B008  # frozen
    most_chips: int = 256,
    usd_per_chip_hour: float | None = None,
    speed: Speed = Speed(),  # noqa: B008  # frozen
) -> Pareto:
    """The servers that are worth having for requests of one size, over every layout and batch that fits.

    >>> serving_pareto("Llama-3 8B", "v5e", input=2048, output=256, tpot_s=0.025).best.decode.slice.chips <= 8
    True

    Args:
        model: or its name in the catalog.
        where: a chip or its name for all slices of that generation, one for each number of chips; or one slice, or several.
        input: tokens of a prompt.
        output: new tokens of each request.
        ttft_s: seconds that the first token may take, without waiting.
        tpot_s: seconds from token to token.
        engine: "continuous" or "disaggregated", as of `inference.serve`.
        base: dtypes of weights, cache and math. Its ways do not matter.
        most_chips: of a slice, where `where` is a chip.
        usd_per_chip_hour: price; the catalog's if not given. Slices of several generations need it.
        speed: what chips and wires reach, and what hides.

    Raises:
        ValueError: for arguments that make no sense. Where nothing fits or is as fast as asked, the result says why.
    """
    began = time.perf_counter()
    model = model_of(model) if isinstance(model, str) else model
    slices = _slices(where, units.size("most_chips", most_chips))
    for name, value in (("ttft_s", ttft_s), ("tpot_s", tpot_s)):
        if value is not None and units.number(name, value) <= 0:
            raise ValueError(f"{name}={value!r} must be positive")
    if engine not in ("continuous", "disaggregated"):
        raise ValueError(f"engine={engine!r} is no engine to search for; give 'continuous' or 'disaggregated'")
    prices = [_price(slice, usd_per_chip_hour, len({slice.chip.name for slice in slices})) for slice in slices]
    question = Question(
        model=model, input=units.size("input", input), output=units.size("output", output), engine=engine, base=base, speed=speed
    )
    refused: dict[str, int] = {}
    every = [
        (candidates(question, slice, layout), price)
        for slice, price in zip(slices, prices, strict=True)
        for layout in layouts(question, slice, refused)
    ]
    found = [(one, price) for one, price in every if len(one.batch)]
    asked = {"engine": engine, "speed": speed, "usd_per_chip_hour": usd_per_chip_hour, "input": input, "output": output}
    points = _points(found)
    quick = points[points[:, 2] <= (np.inf if ttft_s is None else ttft_s)]
    front = [_server(model, found, point, asked) for point in _front(quick)]
    fast = quick[quick[:, 0] <= (np.inf if tpot_s is None else tpot_s)]
    best = _server(model, found, fast[np.lexsort((fast[:, 0], fast[:, 1]))[0]], asked) if len(fast) else None
    return Pareto(
        model=model, input=input, output=output, front=tuple(front), best=best, slices=slices, servers=len(points),
        layouts=len(every), refused=dict(sorted(refused.items(), key=lambda item: -item[1])),
        why_none=None if best else _why(every, points, ttft_s, tpot_s), seconds=time.perf_counter() - began,
    )  # fmt: skip


def _slices(where: Chip | Slice | str | Iterable[Slice | str], most_chips: int) -> tuple[Slice, ...]:
    if isinstance(where, Chip):
        return slices_of(where, most_chips)
    if isinstance(where, str):
        return (slice_of(where),) if ":" in where else slices_of(hardware.chip(where), most_chips)
    given = (where,) if isinstance(where, Slice) else where
    found = tuple(slice_of(each) if isinstance(each, str) else each for each in given)
    if not found or not all(isinstance(each, Slice) for each in found):
        raise ValueError(f"where={where!r}: give a chip, a slice, or a list of slices")
    return found


def _price(slice: Slice, given: float | None, generations: int) -> float:
    """Dollars of a chip and second; 1 where no price is known, and none is needed to compare."""
    if given is not None:
        if units.number("usd_per_chip_hour", given) <= 0:
            raise ValueError(f"usd_per_chip_hour={given!r} must be positive")
        return given / HOUR_S
    if generations > 1:
        return slice.chip.usd_per_hour / HOUR_S
    return slice.chip.figures.get("usd_per_hour", HOUR_S) / HOUR_S


def _points(found: list[tuple[Candidates, float]]) -> Any:
    """Every server as a row: seconds from token to token, cost of a token, seconds to the first, and where it is in `found`."""
    rows = [
        np.column_stack(
            [one.tpot_s, one.chip_s * price, np.full_like(one.batch, one.ttft_s), np.full_like(one.batch, at), one.batch]
        )
        for at, (one, price) in enumerate(found)
    ]
    return np.concatenate(rows) if rows else np.empty((0, 5))


def _front(points: Any) -> list[Any]:
    """Of these, from the fastest on, each that is cheaper than all that are faster; the cheapest is always there."""
    ordered = points[np.lexsort((points[:, 1], points[:, 0]))]
    front: list[Any] = []
    for point in ordered:
        if not front or point[1] < front[-1][1] * (1 - FINER):
            front.append(point)
    if front and (cheapest := ordered[int(np.argmin(ordered[:, 1]))])[1] < front[-1][1]:
        front.append(cheapest)
    return front


def _server(model: Transformer, found: list[tuple[Candidates, float]], point: Any, asked: Mapping[str, Any]) -> ServingEstimate:
    one, _ = found[int(point[3])]
    return serve(model, one.slice, one.layout, batch=int(point[4]), **asked)


def _why(every: list[tuple[Candidates, float]], points: Any, ttft_s: float | None, tpot_s: float | None) -> str:
    if not every:
        return "no layout divides the model"
    if not len(points):
        least = min((one for one, _ in every), key=lambda one: one.lacks_bytes)
        lacks = units.human(least.lacks_bytes, "GiB")
        return f"one sequence does not fit; {least.layout} on {least.slice} comes nearest, where a device lacks {lacks}"
    first, token = (units.human(float(points[:, column].min()), "s") for column in (2, 0))
    parts = []
    if ttft_s is not None and ttft_s < points[:, 2].min():
        parts.append(f"the first token takes at least {first}, and may take {units.human(ttft_s, 's')}")
    if tpot_s is not None and tpot_s < points[:, 0].min():
        parts.append(f"a token takes at least {token}, and may take {units.human(tpot_s, 's')}")
    return " and ".join(parts) or f"no server has both; a token takes at least {token}, and the first {first}, on others"


def _described(one: ServingEstimate) -> str:
    cost = "" if one.usd_per_million is None else f", {one.usd_per_million:.2f} USD a million tokens"
    return (
        f"{one.decode.layout} on {one.decode.slice}, {one.batch} sequences: a token in {units.human(one.tpot_s, 's')}, "
        f"{units.human(one.tokens_per_s_per_chip)} tokens/s a chip{cost}"
    )
