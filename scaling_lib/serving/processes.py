"""What servers do, as simpy processes: static batches, prefill alone, and continuous batching.

A batch changes only where a sequence leaves or a request comes. The decode steps up to there are added up one by one, and are one
event.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable

from simpy import Event
from simpy.events import ProcessGenerator

from scaling_lib.serving.play import Line, Play, Pool
from scaling_lib.serving.server import Server


def static_batches(play: Play, pool: Pool, line: Line, server: Server, batch: int) -> ProcessGenerator:
    """Take what waits, up to a batch; pad it to its longest prompt and answer; take no other before the last token of all."""
    prompt, output = play.prompt, play.output
    room = server.kv_tokens or math.inf
    while True:
        while not line.requests:
            yield line.idle()
        taken: list[int] = []
        longest = most = 0
        while line.requests and len(taken) < batch:
            after = max(longest, prompt[line.requests[0]]), max(most, output[line.requests[0]])
            if taken and (len(taken) + 1) * sum(after) > room:
                break
            longest, most = after
            taken.append(line.take())
            play.start_s[taken[-1]] = play.env.now
        rows = len(taken)
        yield play.work(pool, rows * server.prefill_s(longest))
        for request in taken:
            play.first_s[request] = play.decode_s[request] = play.env.now
        taken.sort(key=lambda request: output[request])
        tokens = 1
        for at, request in enumerate(taken):
            if steps := output[request] - tokens:
                seconds = sum(server.step_s(rows, rows * (longest + tokens + step)) for step in range(steps))
                play.waited(seconds / steps, steps * (rows - at))
                play.steps += steps
                tokens += steps
                yield play.work(pool, seconds)
            play.finish(request)


def prefills(play: Play, pool: Pool, line: Line, server: Server, then: Callable[[int], None]) -> ProcessGenerator:
    """One prompt after the other; `then` takes each that has tokens left to decode."""
    while True:
        while not line.requests:
            yield line.idle()
        request = line.take()
        play.start_s[request] = play.env.now
        yield play.work_before(pool, server.prefill_s(play.prompt[request]))
        play.first_s[request] = play.decode_s[request] = play.env.now
        if play.output[request] == 1:
            play.finish(request)
        else:
            then(request)


class Batcher:
    """A server whose batch changes between any two steps: sequences leave when they are done, others join.

    Args:
        play: the run.
        pool: the servers that it is one of.
        server: its steps and its cache; a sequence gets room for prompt and output when it joins.
        batch: sequences at most.
        prefill: whether it does the prefill too; else prompts come with their cache.
        chunk: tokens of prompts in a step at most; None does a whole prompt at a time, while no sequence decodes.
    """

    def __init__(
        self,
        play: Play,
        pool: Pool,
        server: Server,
        batch: int,
        *,
        prefill: bool = True,
        chunk: int | None = None,
    ) -> None:
        self.play, self.pool, self.server, self.most = play, pool, server, batch
        self.kv_tokens = server.kv_tokens or math.inf
        self.waiting: deque[int] = deque()
        self.requests = 0
        """Waiting or in the batch: what a router looks at."""
        self._idle: Event | None = None
        self._prompt: int | None = None  # in prefill chunk by chunk
        self._begun = 0  # tokens of it that are done
        self._held = 0  # tokens of the cache that are given away
        self._batch = self._context = self._steps = 0
        self._ends: list[tuple[int, int]] = []  # step after which a sequence leaves, and which
        self._stepped_s = 0.0  # the end of the latest step, when all got a token but those who joined since
        self._joined_s: list[float] = []  # and when each of these got its first
        play.env.process(self._whole(prefill) if chunk is None else self._chunked(chunk))

    def submit(self, request: int) -> None:
        """A request comes to this server."""
        self.waiting.append(request)
        self.requests += 1
        self.pool.waiting.add(self.play.env.now, 1)
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None

    def _whole(self, prefill: bool) -> ProcessGenerator:
        play, server = self.play, self.server
        while True:
            while self._room(self._batch):
                request = self._take()
                if prefill:
                    play.start_s[request] = play.env.now
                    yield play.work(self.pool, server.prefill_s(play.prompt[request]))
                    play.first_s[request] = play.env.now
                self._join(request)
            yield self._decode() if self._batch else self._nothing_to_do()
            self._leave()

    def _chunked(self, chunk: int) -> ProcessGenerator:
        play = self.play
        while True:
            seconds, over = self._chunks(chunk)
            if seconds is not None:
                if self._batch:
                    seconds += self._step()
                yield play.work(self.pool, seconds)
                self._gaps(play.env.now)
                self._leave()
                for request in over:
                    play.first_s[request] = play.env.now
                    self._join(request)
            else:
                yield self._decode() if self._batch else self._nothing_to_do()
                self._leave()

    def _chunks(self, chunk: int) -> tuple[float | None, Iterable[int]]:
        """What the next tokens of prompts take, if there are any, and whose prompt is over after them."""
        play, prefill_s, over = self.play, self.server.prefill_s, list[int]()
        seconds, left = 0.0, chunk
        while left:
            if self._prompt is None:
                if not self._room(self._batch + len(over)):
                    break
                self._prompt = self._take()
                play.start_s[self._prompt] = play.env.now
            request, begun = self._prompt, self._begun
            tokens = min(left, play.prompt[request] - begun)
            seconds += prefill_s(begun + tokens) - (prefill_s(begun) if begun else 0.0)
            self._begun += tokens
            left -= tokens
            if self._begun == play.prompt[request]:
                over.append(request)
                self._prompt, self._begun = None, 0
        return (None if left == chunk else seconds), over

    def _room(self, batch: int) -> bool:
        """Whether the first of those who wait can join so many others."""
        return bool(self.waiting) and batch < self.most and self._held + self._needs(self.waiting[0]) <= self.kv_tokens

    def _needs(self, request: int) -> int:
        return self.play.prompt[request] + self.play.output[request]

    def _take(self) -> int:
        request = self.waiting.popleft()
        self.pool.waiting.add(self.play.env.now, -1)
        self._held += self._needs(request)
        return request

    def _join(self, request: int) -> None:
        """A sequence with its first token starts to decode, or is done."""
        play = self.play
        play.decode_s[request] = play.env.now
        if play.output[request] == 1:
            self._gone(request)
            return
        self._batch += 1
        self._context += play.prompt[request] + 1
        self._joined_s.append(play.first_s[request])
        heapq.heappush(self._ends, (self._steps + play.output[request] - 1, request))

    def _leave(self) -> None:
        while self._ends and self._ends[0][0] == self._steps:
            _, request = heapq.heappop(self._ends)
            self._batch -= 1
            self._context -= self._needs(request)
            self._gone(request)

    def _gone(self, request: int) -> None:
        self._held -= self._needs(request)
        self.requests -= 1
        self.play.finish(request)

    def _nothing_to_do(self) -> Event:
        self._idle = self.play.env.event()
        return self._idle

    def _step(self) -> float:
        """How long the next decode step takes; it is taken."""
        seconds = self.server.step_s(self._batch, self._context)
        self._steps += 1
        self.play.steps += 1
        self._context += self._batch
        return seconds

    def _decode(self) -> Event:
        """Decode steps until a sequence leaves or a request may come; the event at their end."""
        play, step_s, batch = self.play, self.server.step_s, self._batch
        now_s = play.env.now
        quiet_s = math.inf if self.waiting else play.quiet_until_s() - now_s  # those who wait have no room before one leaves
        seconds = self._step()
        self._gaps(now_s + seconds)
        context, first_s, steps = self._context, seconds, 0
        for _ in range(self._ends[0][0] - self._steps):
            if seconds >= quiet_s:
                break
            seconds += step_s(batch, context)
            context += batch
            steps += 1
        if steps:
            play.waited((seconds - first_s) / steps, steps * batch)
        play.steps += steps
        self._steps += steps
        self._context = context
        self._stepped_s = now_s + seconds
        return play.work(self.pool, seconds)

    def _gaps(self, now_s: float) -> None:
        """Every sequence of the batch gets a token."""
        joined = len(self._joined_s)
        if self._batch > joined:
            self.play.waited(now_s - self._stepped_s, self._batch - joined)
        for at_s in self._joined_s:
            self.play.waited(now_s - at_s, 1)
        self._stepped_s, self._joined_s = now_s, []
