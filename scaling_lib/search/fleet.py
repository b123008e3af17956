"""Servers of one kind that share a load, and the engine that they make in the simulator. Needs simpy and NumPy.

What an entry of `search.serving_contest` is. Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.inference import Layout, decode_step, prefill
from scaling_lib.inference.server import ENGINES
from scaling_lib.inference.server import Engine as EngineName
from scaling_lib.inference.step import largest_batch
from scaling_lib.serving import Continuous, Disaggregated, Engine, Server, Static
from scaling_lib.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Servers of one kind that share a load.

    Args:
        slice: of each server, or its name.
        layout: how it serves the model.
        batch: sequences that one server decodes together at most.
        servers: how many.
        engine: "static", "continuous" or "disaggregated".
        chunk: for the continuous engine: prompts are read in chunks of so many tokens, inside the decode steps; None reads each
            at once.
        prefill_servers: for the disaggregated engine: so many more, of the same slice and layout, that do nothing but prefill.

    Raises:
        ValueError: for sizes below 1, an unknown engine, and a `chunk` or `prefill_servers` that the engine has no use for.
    """

    slice: Slice | str
    layout: Layout
    batch: int
    servers: int = 1
    engine: EngineName = "continuous"
    chunk: int | None = None
    prefill_servers: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.slice, str):
            object.__setattr__(self, "slice", slice_of(self.slice))
        if not isinstance(self.layout, Layout):
            raise ValueError(f"layout={self.layout!r}: give inference.Layout(...)")
        for name in ("batch", "servers"):
            units.size(name, getattr(self, name))
        if self.engine not in ENGINES:
            raise ValueError(f"engine={self.engine!r} is unknown; give {', '.join(map(repr, ENGINES))}")
        if self.chunk is not None:
            units.size("chunk", self.chunk)
            if self.engine != "continuous":
                raise ValueError(f"chunk={self.chunk} is for engine='continuous'; {self.engine!r} reads a prompt at once")
        if self.engine == "disaggregated":
            units.size("prefill_servers", self.prefill_servers)
        elif self.prefill_servers:
            given = f"prefill_servers={self.prefill_servers!r}"
            raise ValueError(f"{given} are for engine='disaggregated'; leave them out for {self.engine!r}")

    @property
    def place(self) -> Slice:
        """The slice of each server."""
        return slice_of(self.slice) if isinstance(self.slice, str) else self.slice

    @property
    def chips(self) -> int:
        """Of all servers."""
        return self.place.chips * (self.servers + self.prefill_servers)

    def but(self, **changes: Any) -> Fleet:
        """This fleet with some arguments changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        apart = f" and {self.prefill_servers} for prefill" if self.prefill_servers else ""
        chunk = f" in chunks of {self.chunk}" if self.chunk else ""
        return f"{self.servers}{apart} × {self.slice}, {self.layout}, {self.engine}{chunk}, batches of {self.batch}"


def engine(fleet: Fleet, model: Transformer, *, prompt: int, output: int) -> Engine | str:
    """The engine of a fleet, with steps as `inference` prices them; or why a server does not fit, and what would do.

    Args:
        fleet: the servers.
        model: what they serve.
        prompt: tokens of the longest prompt.
        output: tokens of the longest answer.

    Raises:
        ValueError: for a layout that cannot run.
    """
    one = decode_step(model, fleet.place, fleet.layout, 1, context=prompt + output)
    reading = prefill(model, fleet.place, one.layout, prompt=prompt, chunk=fleet.chunk)
    if not reading.fits:
        return reading.lacking
    apart = fleet.engine == "disaggregated"
    beside = 0.0 if apart else float(reading.memory.working)
    most = largest_batch(one, beside_bytes=beside)
    if not most:
        short = units.human(float(one.memory.total) + beside - one.usable_bytes, "GiB")
        what = "" if apart else ", and for its prefill"
        return (
            f"for the longest conversation, {prompt:,} + {output:,} tokens{what}, {short} a device are lacking; take more chips"
        )
    server = _server(model, fleet.place, one.layout, fleet.batch, prompt + output)
    server = replace(server, kv_tokens=most * (prompt + output))
    if apart:
        return Disaggregated(server, server, fleet.batch, prefill_servers=fleet.prefill_servers, decode_servers=fleet.servers)
    if fleet.engine == "static":
        return Static(server, fleet.batch, servers=fleet.servers)
    return Continuous(server, fleet.batch, chunk=fleet.chunk, servers=fleet.servers)


@lru_cache(maxsize=256)
def _server(model: Transformer, place: Slice, layout: Layout, batch: int, context: int) -> Server:
    return Server.of(model, place, layout, batch=batch, context=context)
