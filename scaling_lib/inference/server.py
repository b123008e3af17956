"""A priced server, and what can be asked of it: seconds to the first token and between tokens, tokens a second, dollars.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from scaling_lib import units
from scaling_lib.inference.step import Step, layout_json
from scaling_lib.training.either import Number
from scaling_lib.training.money import bill

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
        return float(token_s(self.engine, step_s, seconds(self.prefill), self.batch, self.output))

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


def token_s(engine: Engine, step_s: Number, prefill_s: Number, batch: Number, output: Number) -> Number:
    """Mean seconds from token to token; numbers or arrays. A step of a continuous batch has batch/output prefills beside it."""
    return step_s + batch / output * prefill_s if engine == "continuous" else step_s


def _asked(step: Step) -> float:
    return step.seconds


def _lower(step: Step) -> float:
    return step.lower_s


def _upper(step: Step) -> float:
    return step.upper_s


def _s(seconds: float) -> str:
    return units.human(seconds, "s")
