"""How a model is served on slices of all sizes: the slices of a chip, the layouts of a slice, and the best of them.

For curves over batches, without numpy; `scaling_lib.search` prices all batches at once. Derived in chapters/07-inference.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from scaling_lib.hardware import Chip, Slice, tpu_shapes
from scaling_lib.inference.estimate import USUAL, placed, prefill
from scaling_lib.inference.facts import Facts
from scaling_lib.inference.forward import memory, price, rates
from scaling_lib.inference.layout import AXES, RULES, Layout
from scaling_lib.inference.server import token_s
from scaling_lib.inference.speed import Speed
from scaling_lib.inference.step import largest
from scaling_lib.training.step import Rates
from scaling_lib.training.wires import Wires
from scaling_lib.transformer import Transformer

MOST_SEQUENCES = 2**20  # at a time; of models that are all window and no context, more would fit


@dataclass(frozen=True, kw_only=True)
class Server:
    """One layout on one slice, at any batch that fits; the engine is a continuous one, as of `serve`.

    Args:
        slice: where.
        layout: with its placement.
        output: new tokens of a request.
        max_batch: sequences for which there is memory.
        ttft_s: seconds to the first token.
    """

    slice: Slice
    layout: Layout
    output: int
    max_batch: int
    ttft_s: float
    facts: Facts = field(repr=False)
    wires: Mapping[str, Wires] = field(repr=False)
    rates: Rates = field(repr=False)
    speed: Speed

    def step_s(self, batch: int) -> float:
        """Seconds of a decode step."""
        return float(price(self.facts, self.layout, self.wires, self.rates, self.speed, batch).seconds(self.speed))

    def tpot_s(self, batch: int) -> float:
        """Seconds from token to token."""
        return float(token_s("continuous", self.step_s(batch), self.ttft_s, batch, self.output))

    def at(self, batch: int) -> tuple[float, float]:
        """Seconds from token to token, and seconds of a chip for each new token."""
        seconds = self.tpot_s(batch)
        return seconds, self.slice.chips * seconds / batch

    def batch(self, tpot_s: float | None) -> int:
        """The most sequences that fit, and of which each has a token in so many seconds; 0 where none has."""
        if tpot_s is None or self.tpot_s(self.max_batch) <= tpot_s:
            return self.max_batch
        low, high = 1, self.max_batch
        fast, slow = self.tpot_s(low), self.tpot_s(high)
        if fast > tpot_s:
            return 0
        straight = True  # seconds are nearly a straight line in the batch; where they are not, every other step halves the rest
        while high - low > 1:
            share = (tpot_s - fast) / (slow - fast) if straight else 0.5
            middle = min(max(int(low + share * (high - low)), low + 1), high - 1)
            seconds, straight = self.tpot_s(middle), not straight
            if seconds <= tpot_s:
                low, fast = middle, seconds
            else:
                high, slow = middle, seconds
        return low


def slices_of(chip: Chip, most_chips: int) -> tuple[Slice, ...]:
    """Slices of one generation, one for each number of chips: the torus most like a cube, or nodes as full as can be."""
    found: dict[int, Slice] = {}
    if chip.kind == "tpu":
        for shape in sorted(tpu_shapes(chip), key=lambda shape: (math.prod(shape), sum(shape), shape)):
            if math.prod(shape) <= most_chips:
                found.setdefault(math.prod(shape), Slice(chip, shape))
        return tuple(found.values())
    chips = 1
    while chips <= most_chips:
        node = math.gcd(chips, chip.fabric_chips)
        found[chips] = Slice(chip, (node, chips // node))
        chips *= 2
    return tuple(found.values())


def layouts(model: Transformer, slice: Slice, base: Layout) -> Iterator[Layout]:
    """Layouts of a slice, the most tensor ways first; some of them the model may not allow.

    Every number of tensor ways, and for the rest of the devices one axis: sequences of the cache, their tokens, the model's
    width, or data. Experts lie on as few devices as each can have, or all devices share each.
    """
    n = slice.devices
    for tensor in (ways for ways in range(n, 0, -1) if n % ways == 0):
        rest = n // tensor
        for axis in ("data", "kv_batch", "sequence", "width")[: 4 if rest > 1 else 1]:
            for expert in sorted({1, math.gcd(n, model.E or 1)}):
                ways = dict.fromkeys(AXES, 1) | {"tensor": tensor, axis: rest}
                yield base.but(**ways, expert=expert)


def best_server(
    model: Transformer,
    slice: Slice,
    *,
    input: int,
    output: int,
    base: Layout = Layout(),  # noqa: B008  # frozen
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    speed: Speed = USUAL,
) -> Server | None:
    """The cheapest server on a slice that is as fast as asked, over all layouts; where none is, the one fastest for one sequence.

    Args:
        model: the model.
        slice: where.
        input: tokens of a prompt.
        output: new tokens of each request.
        base: dtypes of weights, cache and math. Its ways do not matter.
        ttft_s: seconds that the first token may take, without waiting.
        tpot_s: seconds from token to token.
        speed: what chips and wires reach, and what hides.

    Returns:
        None where not one sequence fits.

    Raises:
        ValueError: for a dtype whose peak no source states.
    """
    found = servers(model, slice, input, output, base, speed)
    quick = [(one, one.batch(tpot_s)) for one in found if ttft_s is None or one.ttft_s <= ttft_s]
    costs = [(one.at(batch)[::-1], which) for which, (one, batch) in enumerate(quick) if batch]
    if costs:
        return quick[min(costs)[1]][0]
    return min(found, key=lambda one: one.tpot_s(1), default=None)


@lru_cache(maxsize=256)
def servers(model: Transformer, slice: Slice, input: int, output: int, base: Layout, speed: Speed = USUAL) -> tuple[Server, ...]:
    """Every layout of a slice that the model allows and on which one sequence fits. Arguments as of `best_server`."""
    allowed = (of for of in layouts(model, slice, base) if not any(rule.why(of, model) for rule in RULES))
    return tuple(filter(None, (_server(model, slice, layout, input, output, speed) for layout in allowed)))


def _server(model: Transformer, slice: Slice, layout: Layout, input: int, output: int, speed: Speed) -> Server | None:
    """At the placement whose largest batch decodes fastest."""
    room = input + output
    facts = Facts.of(model, layout, T=1, S=input + output // 2, cache=room, causal=speed.causal)
    reading = Facts.of(model, layout, T=input, S=input, cache=room, decode=False, causal=speed.causal)
    rate, alone = rates(slice, layout, speed), memory(reading, layout, 1)
    has = rate.usable_bytes - float(alone.working)
    most = largest(lambda batch: bool(memory(facts, layout, batch).total <= has), MOST_SEQUENCES)
    if not most or float(alone.total) > rate.usable_bytes:
        return None
    every = placed(layout, slice, speed)
    wires, placement = min(every, key=lambda one: float(price(facts, layout, one[0], rate, speed, most).seconds(speed)))
    layout = layout.but(placement=placement)
    return Server(
        slice=slice, layout=layout, output=output, max_batch=most, facts=facts, wires=wires, rates=rate, speed=speed,
        ttft_s=prefill(model, slice, layout, prompt=input, speed=speed).seconds,
    )  # fmt: skip
