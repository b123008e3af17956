"""Three designs of a serving system: static batches, continuous batching, and prefill apart from decoding.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from scaling_lib import units
from scaling_lib.serving.play import Line, Play, Pool
from scaling_lib.serving.processes import Batcher, prefills, static_batches
from scaling_lib.serving.server import Server


@dataclass(frozen=True)
class Static:
    """Batches that start and end together: padded to the longest prompt, and decoding until the longest answer is over.

    A server that is free takes what waits, up to `batch`. Its prefill takes `batch` times that of the longest prompt. Answers
    are streamed: a request is done with its own last token, but its row stays and is computed until the batch is over.

    Args:
        server: its steps, and its cache, which holds rows times longest prompt and answer.
        batch: rows at most.
        servers: so many of it take from one line.

    Raises:
        ValueError: for sizes below 1.
    """

    server: Server
    batch: int
    servers: int = 1

    def __post_init__(self) -> None:
        _sizes(batch=self.batch, servers=self.servers)

    @property
    def kv_tokens(self) -> int | None:
        """Room in the cache in which sequences grow."""
        return self.server.kv_tokens

    @property
    def rows(self) -> int:
        """Requests in all servers at most."""
        return self.servers * self.batch

    def start(self, play: Play) -> tuple[tuple[Pool, ...], Callable[[int], None]]:
        """The servers' processes: their pools, and what takes a request."""
        pool = Pool("server", self.servers)
        line = Line(play, pool)
        for _ in range(self.servers):
            play.env.process(static_batches(play, pool, line, self.server, self.batch))
        return (pool,), line.submit

    def __str__(self) -> str:
        return f"static batches of up to {self.batch:,} on {_said(self.servers, self.server)}"


@dataclass(frozen=True)
class Continuous:
    """A batch that changes between any two decode steps: who is done leaves, who waits joins.

    Prompts go first: before every step, as many of those who wait as have room are prefilled, one after the other, while the
    batch waits. With `chunk`, a step takes up to so many tokens of prompts along with its decoding instead, and lasts as long
    as both after one another; weights are then read once, if `prefill_s` of more tokens is dearer only by their math.

    Args:
        server: its steps, and its cache, in which a sequence needs room for its prompt and its whole answer to join.
        batch: sequences of one server at most.
        chunk: tokens of prompts in a step; None has no chunks.
        servers: so many of it; a request goes to the one with the fewest.

    Raises:
        ValueError: for sizes below 1.

    NB: real servers do not know how long an answer will be; they give room block by block, and interrupt one that finds none.
    """

    server: Server
    batch: int
    chunk: int | None = None
    servers: int = 1

    def __post_init__(self) -> None:
        _sizes(batch=self.batch, chunk=self.chunk, servers=self.servers)

    @property
    def kv_tokens(self) -> int | None:
        """Room in the cache in which sequences grow."""
        return self.server.kv_tokens

    @property
    def rows(self) -> int:
        """Requests in all servers at most."""
        return self.servers * self.batch

    def start(self, play: Play) -> tuple[tuple[Pool, ...], Callable[[int], None]]:
        """The servers' processes: their pools, and what takes a request."""
        pool = Pool("server", self.servers)
        return (pool,), _to_fewest([Batcher(play, pool, self.server, self.batch, chunk=self.chunk) for _ in range(self.servers)])

    def __str__(self) -> str:
        chunks = "" if self.chunk is None else f", prompts in chunks of {self.chunk:,}"
        return f"continuous batches of up to {self.batch:,}{chunks}, on {_said(self.servers, self.server)}"


@dataclass(frozen=True)
class Disaggregated:
    """Prefill on servers of its own: the first token comes from there, then the cache moves to a server that decodes.

    Prefill servers take one prompt at a time from one line. Caches move at once, each in its own time, while both servers go on.
    A decode server batches continuously; a cache goes to the one with the fewest sequences.

    Args:
        prefill: a server for prefill; its `prefill_s` and `transfer_s` are used.
        decode: one for decoding; its `step_s` and `kv_tokens` are used.
        batch: sequences of one decode server at most.
        prefill_servers: how many of the first.
        decode_servers: how many of the second.

    Raises:
        ValueError: for sizes below 1.

    NB: real transfers share links, and a cache that finds no room keeps its place on the prefill server.
    """

    prefill: Server
    decode: Server
    batch: int
    prefill_servers: int = 1
    decode_servers: int = 1

    def __post_init__(self) -> None:
        sizes = {"prefill_servers": self.prefill_servers, "decode_servers": self.decode_servers}
        _sizes(batch=self.batch, **sizes)

    @property
    def kv_tokens(self) -> int | None:
        """Room in the cache in which sequences grow."""
        return self.decode.kv_tokens

    @property
    def rows(self) -> int:
        """Requests in all servers at most."""
        return self.prefill_servers + self.decode_servers * self.batch

    def start(self, play: Play) -> tuple[tuple[Pool, ...], Callable[[int], None]]:
        """The servers' processes: their pools, and what takes a request."""
        before, after = Pool("prefill", self.prefill_servers), Pool("decode", self.decode_servers)
        line = Line(play, before)
        decode = _to_fewest([Batcher(play, after, self.decode, self.batch, prefill=False) for _ in range(self.decode_servers)])

        def move(request: int) -> None:
            seconds = 0.0 if self.prefill.transfer_s is None else self.prefill.transfer_s(play.prompt[request])
            play.move(seconds, lambda _: decode(request))

        for _ in range(self.prefill_servers):
            play.env.process(prefills(play, before, line, self.prefill, move))
        return (before, after), line.submit

    def __str__(self) -> str:
        prefill, decode = _said(self.prefill_servers, self.prefill), _said(self.decode_servers, self.decode)
        return f"prefill on {prefill}; continuous batches of up to {self.batch:,} on {decode}"


Engine: TypeAlias = Static | Continuous | Disaggregated


def _to_fewest(servers: list[Batcher]) -> Callable[[int], None]:
    """Submits a request to the server that has the fewest; to the first of those."""
    if len(servers) == 1:
        return servers[0].submit
    return lambda request: min(servers, key=lambda server: server.requests).submit(request)


def _sizes(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None:
            units.size(name, size)


def _said(servers: int, server: Server) -> str:
    room = "" if server.kv_tokens is None else f" with room for {server.kv_tokens:,} tokens"
    return f"{servers:,} × {server}{room}"
