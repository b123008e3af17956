"""One run of a simulation on simpy: the clock, the requests in it, and what is measured as it goes."""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from simpy import Environment, Event
from simpy.events import ProcessGenerator


class Level:
    """A number of requests that rises and falls, its time average and its highest."""

    __slots__ = ("_area", "_at_s", "most", "now")

    def __init__(self) -> None:
        self.now = self.most = 0
        self._area = self._at_s = 0.0

    def add(self, at_s: float, change: int) -> None:
        """From `at_s` on it is `change` more."""
        self._area += self.now * (at_s - self._at_s)
        self._at_s = at_s
        self.now += change
        if self.now > self.most:
            self.most = self.now

    def mean(self, first_s: float, last_s: float) -> float:
        """Average from the first change, at `first_s`, to a time after the last."""
        self.add(last_s, 0)
        return self._area / (last_s - first_s) if last_s > first_s else 0.0


class Pool:
    """Servers that do the same, the requests that wait for them, and how long they work."""

    def __init__(self, name: str, servers: int) -> None:
        self.name, self.servers = name, servers
        self.busy_s = 0.0
        self.waiting = Level()


class Line:
    """Requests that wait for any of several servers, first come first served."""

    def __init__(self, play: Play, pool: Pool) -> None:
        self.play, self.pool = play, pool
        self.requests: deque[int] = deque()
        self._idle: deque[Event] = deque()

    def submit(self, request: int) -> None:
        """A request joins the end, and a server that stands idle is called."""
        self.requests.append(request)
        self.pool.waiting.add(self.play.env.now, 1)
        if self._idle:
            self._idle.popleft().succeed()

    def take(self) -> int:
        """The first request leaves the line."""
        self.pool.waiting.add(self.play.env.now, -1)
        return self.requests.popleft()

    def idle(self) -> Event:
        """What a server without work waits for."""
        self._idle.append(event := self.play.env.event())
        return event


class Play:
    """The clock, the requests, and when what happened to each.

    Args:
        prompt: tokens of every prompt.
        output: tokens of every answer.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.env = Environment()
        self.prompt, self.output = prompt, output
        unset = [math.nan] * len(prompt)
        self.arrival_s, self.start_s, self.first_s, self.decode_s, self.finish_s = (list(unset) for _ in range(5))
        self.finished = 0
        self.steps = 0
        """Decode steps, of all servers."""
        self.inside = Level()
        self._due_s: list[float] = []  # a heap of the times of arrivals, of prefills on other servers and of transfers
        self.gaps_s, self.gaps = array("d"), array("q")
        """Seconds from a token to the next, and how many tokens waited so long."""

    def work(self, pool: Pool, seconds: float) -> Event:
        """A server of `pool` works so long; the event at its end."""
        pool.busy_s += seconds
        return self.env.timeout(_time("prefill_s or step_s", seconds))

    def work_before(self, pool: Pool, seconds: float) -> Event:
        """The same, where a request may go on to another server at the end."""
        pool.busy_s += seconds
        return self._coming("prefill_s", seconds)

    def move(self, seconds: float, then: Callable[[Event], None]) -> None:
        """A request is on its way to another server."""
        self._coming("transfer_s", seconds).callbacks.append(then)

    def quiet_until_s(self) -> float:
        """The earliest time, from now on, at which a server may get a request."""
        while self._due_s and self._due_s[0] < self.env.now:
            heapq.heappop(self._due_s)
        return self._due_s[0] if self._due_s else math.inf

    def finish(self, request: int) -> None:
        """The last token of a request is there."""
        self.finish_s[request] = self.env.now
        self.finished += 1
        self.inside.add(self.env.now, -1)

    def waited(self, seconds: float, tokens: int) -> None:
        """So many tokens came so long after those before them."""
        self.gaps_s.append(seconds)
        self.gaps.append(tokens)

    def run(self, times_s: Sequence[float], submit: Callable[[int], None]) -> None:
        """Let requests arrive and play until nothing is left to do."""
        self.env.process(self._arrivals(times_s, submit))
        self.env.run()
        assert self.finished == len(times_s), f"{len(times_s) - self.finished} requests never finish"

    def _arrivals(self, times_s: Sequence[float], submit: Callable[[int], None]) -> ProcessGenerator:
        env, request = self.env, 0
        while request < len(times_s):
            due_s = times_s[request]
            yield self._coming("times_s", max(0.0, due_s - env.now))
            while request < len(times_s) and times_s[request] == due_s:  # together, before a server sees any of them
                self.arrival_s[request] = env.now
                self.inside.add(env.now, 1)
                submit(request)
                request += 1

    def _coming(self, name: str, seconds: float) -> Event:
        event = self.env.timeout(_time(name, seconds))
        heapq.heappush(self._due_s, self.env.now + seconds)
        return event


def _time(name: str, seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} makes {seconds!r} s of a step; give functions whose seconds are finite and not negative")
    return seconds
