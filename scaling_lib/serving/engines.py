"""Three designs of a serving system: static batches, continuous batching, and prefill apart from decoding.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from scaling_lib import units
from scaling_lib.serving.play import Line, Play, Pool
from scaling_lib.serving.servers import Continuous as Server
from scaling_lib.serving.servers import prefills, static_batches
from scaling_lib.serving.times import StepTimes


@dataclass(frozen=True)
class Static:
    """Batches that start and end together: padded to the longest prompt, and decoding until the longest answer is over.

    A server that is free takes what waits, up to `batch`. Its prefill takes `batch` times that of the longest prompt. Answers
    are streamed: a request is done with its own last token, but its row stays and is computed until the batch is over.

    Args:
        times: of the steps.
        batch: rows at most.
        kv_tokens: of the cache of one server, rows times longest prompt and answer; None has no end.
        servers: that take from one line.

    Raises:
        ValueError: for sizes below 1.
    """

    times: StepTimes
    batch: int
    kv_tokens: int | None = None
    servers: int = 1

    def __post_init__(self) -> None:
        _sizes(batch=self.batch, kv_tokens=self.kv_tokens, servers=self.servers)

    @property
    def rows(self) -> int:
        """Requests in all servers at most."""
        return self.servers * self.batch

    def start(self, play: Play) -> tuple[tuple[Pool, ...], Callable[[int], None]]:
        """The servers' processes: their pools, and what takes a request."""
        pool = Pool("server", self.servers)
        line = Line(play, pool)
        for _ in range(self.servers):
            play.env.process(static_batches(play, pool, line, self.times, self.batch, self.kv_tokens))
        return (pool,), line.submit

    def __str__(self) -> str:
        return f"static batches of up to {self.batch:,}{_room(self.kv_tokens)}{_times(self.servers)}"


@dataclass(frozen=True)
class Continuous:
    """A batch that changes between any two decode steps: who is done leaves, who waits joins.

    Prompts go first: before every step, as many of those who wait as have room are prefilled, one after the other, while the
    batch waits. With `chunk`, a step takes up to so many tokens of prompts along with its decoding instead, and lasts as long
    as both after one another; weights are then read once, if `prefill_s` of more tokens is dearer only by their math.

    Args:
        times: of the steps.
        batch: sequences of one server at most.
        kv_tokens: of its cache; a sequence needs room for its prompt and its whole answer to join. None has no end.
        chunk: tokens of prompts in a step; None has no chunks.
        servers: a request goes to the one with the fewest.

    Raises:
        ValueError: for sizes below 1.

    NB: real servers do not know how long an answer will be; they give room block by block, and interrupt one that finds none.
    """

    times: StepTimes
    batch: int
    kv_tokens: int | None = None
    chunk: int | None = None
    servers: int = 1

    def __post_init__(self) -> None:
        _sizes(batch=self.batch, kv_tokens=self.kv_tokens, chunk=self.chunk, servers=self.servers)

    @property
    def rows(self) -> int:
        """Requests in all servers at most."""
        return self.servers * self.batch

    def start(self, play: Play) -> tuple[tuple[Pool, ...], Callable[[int], None]]:
        """The servers' processes: their pools, and what takes a request."""
        pool = Pool("server", self.servers)
        servers = [Server(play, pool, self.times, self.batch, self.kv_tokens, chunk=self.chunk) for _ in range(self.servers)]
        return (pool,), _to_fewest(servers)

    def __str__(self) -> str:
        chunks = "" if self.chunk is None else f", prompts in chunks of {self.chunk:,}"
        return f"continuous batches of up to {self.batch:,}{_room(self.kv_tokens)}{chunks}{_times(self.servers)}"


@dataclass(frozen=True)
class Disaggregated:
    """Prefill on servers of its own: the first token comes from there, then the cache moves to a server that decodes.

    Prefill servers take one prompt at a time from one line. Caches move at once, each in its own time, while both servers go on.
    A decode server batches continuously; a cache goes to the one with the fewest sequences.

    Args:
        prefill_times: of the steps of prefill servers, whose `prefill_s` is used.
        decode_times: of decode servers, whose `step_s` is used.
        batch: sequences of one decode server at most.
        transfer_s: how long a cache moves, by its tokens; None takes no time.
        kv_tokens: of the cache of one decode server; None has no end.
        prefill_servers: how many.
        decode_servers: how many.

    Raises:
        ValueError: for sizes below 1.

    NB: real transfers share links, and a cache that finds no room keeps its place on the prefill server.
    """

    prefill_times: StepTimes
    decode_times: StepTimes
    batch: int
    transfer_s: Callable[[int], float] | None = field(default=None, repr=False)
    kv_tokens: int | None = None
    prefill_servers: int = 1
    decode_servers: int = 1

    def __post_init__(self) -> None:
        sizes = {"prefill_servers": self.prefill_servers, "decode_servers": self.decode_servers}
        _sizes(batch=self.batch, kv_tokens=self.kv_tokens, **sizes)

    @property
    def rows(self) -> int:
        """Requests in all servers at most."""
        return self.prefill_servers + self.decode_servers * self.batch

    def start(self, play: Play) -> tuple[tuple[Pool, ...], Callable[[int], None]]:
        """The servers' processes: their pools, and what takes a request."""
        before, after = Pool("prefill", self.prefill_servers), Pool("decode", self.decode_servers)
        line = Line(play, before)
        servers = [
            Server(play, after, self.decode_times, self.batch, self.kv_tokens, prefill=False) for _ in range(self.decode_servers)
        ]
        decode = _to_fewest(servers)

        def move(request: int) -> None:
            seconds = self.transfer_s(play.prompt[request]) if self.transfer_s else 0.0
            play.move(seconds, lambda _: decode(request))

        for _ in range(self.prefill_servers):
            play.env.process(prefills(play, before, line, self.prefill_times, move))
        return (before, after), line.submit

    def __str__(self) -> str:
        servers = f"{self.prefill_servers:,} for prefill and {self.decode_servers:,} for decode"
        return f"servers apart, {servers}, batches of up to {self.batch:,}{_room(self.kv_tokens)}"


Engine: TypeAlias = Static | Continuous | Disaggregated


def _to_fewest(servers: list[Server]) -> Callable[[int], None]:
    """Submits a request to the server that has the fewest; to the first of those."""
    if len(servers) == 1:
        return servers[0].submit
    return lambda request: min(servers, key=lambda server: server.requests).submit(request)


def _sizes(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None:
            units.size(name, size)


def _room(kv_tokens: int | None) -> str:
    return "" if kv_tokens is None else f" with a cache of {kv_tokens:,} tokens"


def _times(servers: int) -> str:
    return f", {servers:,} servers" if servers > 1 else ""
