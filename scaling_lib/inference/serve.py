"""What serving takes: seconds to the first token and between tokens, tokens a second of a chip, dollars.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference import disaggregation, forward
from scaling_lib.inference.estimate import USUAL, decode_step, prefill
from scaling_lib.inference.facts import Reads
from scaling_lib.inference.layout import Layout
from scaling_lib.inference.paging import mean_room
from scaling_lib.inference.speed import Speed
from scaling_lib.inference.step import Step, largest_batch, layout_json
from scaling_lib.training.either import Number
from scaling_lib.training.money import bill
from scaling_lib.transformer import Transformer

Engine = Literal["continuous", "static", "disaggregated"]
ENGINES = ("continuous", "static", "disaggregated")
Seconds = Callable[[Step], float]


@dataclass(frozen=True, kw_only=True)
class ServingEstimate:
    """A server that is always full: times in seconds, rates of all its chips unless the name says otherwise.

    Args:
        engine: how prefill and decode share the chips.
        input: tokens of a prompt.
        output: new tokens of a request.
        batch: sequences that are decoded together.
        max_batch: sequences for which there is memory.
        prefill: of one prompt; of all together for a static batch.
        decode: of one step, at the mean length of the sequences.
        mixed: the same with a chunk of a prompt in it; None without chunks.
        chunk: tokens of a chunk, or None.
        prefill_servers: slices for prefill beside this one, where that is done apart; else 0.
        transfer_s: to move the cache of a prompt from there.
        usd_per_chip_hour: price; None where no source states one.
    """

    engine: Engine
    input: int
    output: int
    batch: int
    max_batch: int
    prefill: Step
    decode: Step
    mixed: Step | None
    chunk: int | None
    prefill_servers: float
    transfer_s: float
    usd_per_chip_hour: float | None

    @property
    def ttft_s(self) -> float:
        """Seconds from the start of a prompt's prefill to its first token. Waiting comes on top; see `scaling_lib.serving`."""
        return self._ttft(_asked)

    @property
    def ttft_bounds_s(self) -> tuple[float, float]:
        """The same where all hides, and where nothing does."""
        return self._ttft(_lower), self._ttft(_upper)

    @property
    def tpot_s(self) -> float:
        """Mean seconds from one token of a request to its next, interruptions by the prefill of others included."""
        return self._tpot(_asked)

    @property
    def tpot_bounds_s(self) -> tuple[float, float]:
        """The same where all hides, and where nothing does."""
        return self._tpot(_lower), self._tpot(_upper)

    @property
    def stall_s(self) -> float:
        """Seconds that the tokens of all others wait while one prompt is read; 0 where prefill is done apart, or beforehand."""
        if self.engine != "continuous":
            return 0.0
        return self.prefill.seconds if self.mixed is None else self.mixed.seconds - self.decode.seconds

    def _ttft(self, seconds: Seconds) -> float:
        if self.mixed is not None and self.chunk:
            return -(-self.prefill.new // self.chunk) * seconds(self.mixed)
        return seconds(self.prefill) + self.transfer_s

    def _tpot(self, seconds: Seconds) -> float:
        step_s = seconds(self.decode)
        if self.mixed is not None and self.chunk:
            share = self.batch * self.prefill.new / (self.output * self.chunk)  # of steps that have a chunk in them
            return share * seconds(self.mixed) + (1 - share) * step_s
        return token_s(self.engine, step_s, seconds(self.prefill), self.batch, self.output)

    @property
    def request_s(self) -> float:
        """Seconds from the start of the prefill to the last token."""
        return self.ttft_s + (self.output - 1) * self.tpot_s

    @property
    def requests_per_s(self) -> float:
        """Requests that are finished in a second."""
        if self.engine == "static":
            return self.batch / (self.prefill.seconds + self.output * self.decode.seconds)
        return self.batch / (self.output * self.tpot_s)

    @property
    def tokens_per_s(self) -> float:
        """New tokens."""
        return self.requests_per_s * self.output

    @property
    def chips(self) -> float:
        """Chips, with those of the prefill servers where there are any."""
        return self.decode.slice.chips * (1 + self.prefill_servers)

    @property
    def tokens_per_s_per_chip(self) -> float:
        """New tokens of a chip."""
        return self.tokens_per_s / self.chips

    @property
    def usd_per_million(self) -> float | None:
        """Dollars for a million new tokens; None where there is no price."""
        if self.usd_per_chip_hour is None:
            return None
        chip = self.decode.slice.chip
        price = {"usd_per_chip_hour": self.usd_per_chip_hour}
        return float(bill(chip, chips=self.chips, tokens=1e6, tokens_per_s=self.tokens_per_s, **price).usd)

    @property
    def fits(self) -> bool:
        """Whether memory suffices, for all sequences and the prefill beside them."""
        return self.batch <= self.max_batch and self.prefill.fits

    def meets(self, *, ttft_s: float | None = None, tpot_s: float | None = None) -> bool:
        """Whether it fits and is as fast as that."""
        slow = (ttft_s is not None and self.ttft_s > ttft_s) or (tpot_s is not None and self.tpot_s > tpot_s)
        return self.fits and not slow

    def explain(self) -> str:
        """The estimate in words."""
        d, dollars = self.decode, self.usd_per_million
        memory, usable = (units.human(size, "GiB") for size in (float(d.memory.total), d.usable_bytes))
        cost = "" if dollars is None else f", {dollars:.2f} USD a million tokens at {self.usd_per_chip_hour:g} a chip and hour"
        apart = f"; {self.prefill_servers:.2f} prefill servers each" if self.engine == "disaggregated" else ""
        fits = "fits" if self.fits else f"does not fit: {self.why_not}"
        (low_first, first), (low, high) = self.ttft_bounds_s, self.tpot_bounds_s
        return "\n".join(
            [
                f"{d.model} on {d.slice}: {d.layout}; {self.engine}{apart}",
                f"{self.batch} sequences (memory has room for {self.max_batch}) of {self.input} + {self.output} tokens",
                f"first token after {_s(self.ttft_s)} ({_s(low_first)} to {_s(first)}), "
                f"then one in {_s(self.tpot_s)} ({_s(low)} to {_s(high)}); a decode step takes {_s(d.seconds)}",
                f"{units.human(self.tokens_per_s)} tokens/s, {units.human(self.tokens_per_s_per_chip)} a chip{cost}",
                "decode: " + ", ".join(f"{name} {_s(seconds)}" for name, seconds in d.parts_s.items()) + f"; {d.binds} binds",
                "prefill: " + ", ".join(f"{name} {_s(seconds)}" for name, seconds in self.prefill.parts_s.items()),
                f"memory {memory} of {usable} a device, {fits}",
            ]
        )

    @property
    def why_not(self) -> str | None:
        """Why memory does not suffice, and what would do; None where it does."""
        if self.fits:
            return None
        most = self.max_batch
        if most and self.batch > most:
            return f"{self.batch} sequences are more than the {most} for which there is memory; give batch={most}"
        return self.decode.lacking if not self.decode.fits else self.prefill.lacking

    def to_json(self) -> dict[str, Any]:
        """All of it, in base units, as JSON can hold it."""
        names = ("engine", "input", "output", "batch", "max_batch", "chunk", "fits", "why_not", "ttft_s", "ttft_bounds_s",
                 "tpot_s", "tpot_bounds_s", "stall_s", "request_s", "requests_per_s", "tokens_per_s", "tokens_per_s_per_chip",
                 "usd_per_chip_hour", "usd_per_million", "prefill_servers", "transfer_s", "chips")  # fmt: skip
        steps = {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed}
        return {
            "model": str(self.decode.model),
            "slice": str(self.decode.slice),
            "layout": layout_json(self.decode.layout),
            **{name: getattr(self, name) for name in names},
            **{name: step and step.to_json() for name, step in steps.items()},
        }

    def __str__(self) -> str:
        return self.explain()


def serve(
    model: Transformer | str,
    slice: Slice | str,
    layout: Layout,
    *,
    input: int,
    output: int,
    batch: int | None = None,
    engine: Engine = "continuous",
    chunk: int | None = None,
    cached: int = 0,
    cache: int | None = None,
    block: int | None = None,
    reads: Reads = "used",
    usd_per_chip_hour: float | None = None,
    speed: Speed = USUAL,
) -> ServingEstimate:
    """What it takes to serve requests of one size on a server that is always full.

    Args:
        model: or its name in the catalog.
        slice: or its name.
        layout: of prefill and decode.
        input: tokens of a prompt.
        output: new tokens of each request.
        batch: sequences that are decoded together; as many as fit if not given.
        engine: "continuous" puts a new prompt in the place of each finished sequence, and decode waits for its prefill;
            "static" reads all prompts, then decodes all to the end; "disaggregated" has other servers for prefill, of the same
            slice and layout.
        chunk: for the continuous engine: prompts are read in chunks of so many tokens, inside the decode steps.
        cached: tokens at the start of each prompt that are in the cache already, as of `prefill`.
        cache: tokens that each sequence reserves, as a static cache has them; `input + output` if not given.
        block: tokens of a block where the cache is paged: sequences of all lengths then take the room they need, a mean of half
            the output less. Without, each reserves room for `input + output`.
        reads: as of `decode_step`.
        usd_per_chip_hour: price; the catalog's on-demand price if not given.
        speed: what chips and wires reach, and what hides.

    Raises:
        ValueError: as of `decode_step` and `prefill`; for chunks too small to bring in the prompts of a full batch; and where no
            batch is given and not one sequence fits. A batch beyond the memory is a result: `fits` is False.

    NB: a decode step is priced at the mean length, input and half of the output. All requests are alike and none waits:
    `scaling_lib.serving` simulates what queues and unequal requests add.
    """
    input, output = units.size("input", input), units.size("output", output)
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r} is unknown; give {', '.join(map(repr, ENGINES))}")
    if chunk is not None and engine != "continuous":
        raise ValueError(f"chunk={chunk} is for engine='continuous'; {engine!r} reads a prompt at once")
    middle = input + output // 2
    room = input + output if cache is None else units.size("cache", cache)
    if room < input + output:
        raise ValueError(f"cache={room} has no room for input + output = {input + output} tokens; give cache={input + output}")
    if block is not None:
        if cache is not None:
            raise ValueError(f"cache={cache} and block={block}: a cache is static or paged; give one of them")
        room = max(middle, mean_room(input, output, units.size("block", block)))
    chunk = None if chunk is None else units.size("chunk", chunk)
    how: dict[str, Any] = {"prompt": input, "chunk": chunk, "cached": cached, "cache": room, "speed": speed}
    one = decode_step(model, slice, layout, 1, context=middle, cache=room, reads=reads, speed=speed)
    model, slice, apart = one.model, one.slice, engine == "disaggregated"
    reading = prefill(model, slice, layout, **how)
    beside = float(reading.memory.working) if engine == "continuous" else 0.0
    most = largest_batch(one, beside_bytes=beside)
    if engine == "static":
        most = min(most, largest_batch(reading))
    if batch is None and not most:
        raise ValueError(f"{layout} on {slice}: {one.lacking}")
    batch = most if batch is None else units.size("batch", batch)
    decode = decode_step(model, slice, layout, batch, context=middle, cache=room, reads=reads, speed=speed)
    if not apart:  # on the same devices, so the weights lie as they do for decode
        reading = prefill(model, slice, decode.layout, batch=batch if engine == "static" else 1, **how)
    ratio = disaggregation.servers(prefill_s=reading.seconds, step_s=decode.seconds, batch=batch, output=output)
    return ServingEstimate(
        engine=engine, input=input, output=output, batch=batch, max_batch=most, prefill=reading, decode=decode,
        mixed=None if chunk is None else _mixed(decode, reading, chunk, output), chunk=chunk,
        prefill_servers=float(ratio) if apart else 0.0, usd_per_chip_hour=_price(slice, usd_per_chip_hour),
        transfer_s=disaggregation.transfer_s(model, slice, tokens=input, kv=layout.kv) if apart else 0.0,
    )  # fmt: skip


def token_s(engine: Engine, step_s: Number, prefill_s: Number, batch: Number, output: Number) -> Number:
    """Mean seconds from token to token; numbers or arrays. In a continuous batch each step has batch/output prefills beside it."""
    return step_s + batch / output * prefill_s if engine == "continuous" else step_s


def _price(slice: Slice, given: float | None) -> float | None:
    if given is None:
        return slice.chip.figures.get("usd_per_hour")
    if units.number("usd_per_chip_hour", given) <= 0:
        raise ValueError(f"usd_per_chip_hour={given!r} must be positive")
    return given


def _mixed(decode: Step, reading: Step, chunk: int, output: int) -> Step:
    """A decode step with a chunk of a prompt in it, at the middle of the prompt."""
    need = decode.batch * reading.new / output
    if chunk < need:
        most = chunk * output // reading.new
        raise ValueError(
            f"chunk={chunk} tokens a step cannot bring in the prompts of {decode.batch} sequences, {need:.0f} tokens a step; "
            f"give chunk={-int(-need // 1)}" + (f", or batch={most}" if most else "")
        )
    size = min(chunk, reading.new)
    end = min(reading.context, reading.context - reading.new + max(size, (reading.new + size) // 2))
    piece = prefill(
        decode.model, decode.slice, decode.layout, prompt=end, cached=end - size, cache=reading.context, speed=decode.speed
    )
    both = forward.together(decode.passes[0], piece.passes[0])
    return replace(decode, passes=(both,))


def _asked(step: Step) -> float:
    return step.seconds


def _lower(step: Step) -> float:
    return step.lower_s


def _upper(step: Step) -> float:
    return step.upper_s


def _s(seconds: float) -> str:
    return units.human(seconds, "s")
