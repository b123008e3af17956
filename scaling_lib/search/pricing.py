"""Prices of all splits and placements, a set of degrees and a schedule at a time, as arrays that broadcast.

Axes of the arrays: microbatches and virtual stages; ZeRO stage and chunks of the loss; remat policy; placement. Bytes and FLOPs
have no placement, and what a byte costs has nothing else, so that little is computed for every plan: docs/adr/0013.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling_lib.search.places import Places
from scaling_lib.search.space import C_, D_, E_, F_, P_, T_, Space
from scaling_lib.training import Plan
from scaling_lib.training.facts import Facts
from scaling_lib.training.memory import How, Ways, largest_stage
from scaling_lib.training.step import Rates, Step, price
from scaling_lib.training.wires import GROUPS

Floats = npt.NDArray[np.float64]

LARGEST = 1 << 17
"""Plans priced at once, about: so that the arrays stay in the processor's caches."""

NS_DIGITS = 9
"""Steps are compared to the nanosecond; of equal ones the shorter upper bound wins, then the lesser memory."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A split with its fastest placement. Candidates sort as they are ranked."""

    seconds: float
    upper_s: float
    memory_bytes: float
    plan: tuple[Any, ...]


@dataclass
class Ranking:
    """What a search keeps of all it prices.

    Args:
        keep: how many of the fastest.
        best: the fastest splits that fit.
        kinds: the fastest for each set of axes in use.
        plans: priced.
        splits_too_large: which do not fit.
        least: the one of them with the least memory.
    """

    keep: int
    best: list[Candidate]
    kinds: dict[tuple[bool, ...], Candidate]
    plans: int = 0
    splits_too_large: int = 0
    least: Candidate | None = None

    def add(self, kind: tuple[bool, ...], found: list[Candidate]) -> None:
        """Take in candidates of one kind, sorted."""
        if kind not in self.kinds or found[0] < self.kinds[kind]:
            self.kinds[kind] = found[0]
        if len(self.best) < self.keep or found[0] < self.best[-1]:
            self.best = sorted([*self.best, *found])[: self.keep]

    def bar(self, kind: tuple[bool, ...]) -> float:
        """Seconds above which no candidate of a kind matters."""
        if kind not in self.kinds or len(self.best) < self.keep:
            return float("inf")
        return max(self.kinds[kind].seconds, self.best[-1].seconds)


class Pricing:
    """Prices a space, a set of degrees at a time.

    Args:
        space: what to price.
        shown: as of `Step.seconds`.
        causal: as of `training.estimate`, like all that follow.
    """

    def __init__(
        self, space: Space, *, shown: Mapping[str, float], causal: bool, efficiency: float, ici: str, hop_s: float, start_s: float
    ) -> None:
        self.space, self.shown, self.causal = space, shown, causal
        groups = tuple(name for name in GROUPS if space.model.experts or name not in ("expert", "expert_shard"))
        self.places = Places(space.slice, space.degrees, groups, ici=ici, hop_s=hop_s, start_s=start_s)
        self.rates = {off: Rates.of(space.slice, space.base.but(offload=off), efficiency) for off in space.choices.offload or ()}
        self._facts = lru_cache(maxsize=None)(self._make_facts)

    @property
    def total(self) -> int:
        """Plans to price."""
        return sum(self._splits(i) * self.places.count(i) for i in range(len(self.space.degrees)))

    def run(self, ranking: Ranking, progress: Callable[[int, int], None] | None = None) -> None:
        """Price everything."""
        total = self.total if progress else 0
        for i in range(len(self.space.degrees)):
            self.price(i, ranking)
            if progress:
                progress(ranking.plans, total)

    def price(self, i: int, ranking: Ranking) -> None:
        """Price all plans of the i-th set of degrees."""
        space, row = self.space, self.space.degrees[i].tolist()
        wires, facts = self.places.wires(i), self._facts(row[T_], row[E_])
        count, zeros = self.places.count(i), space.zeros(row)
        kind = _kind(row)
        loss = np.array([n for _ in zeros for n in space.choices.loss_chunks], dtype=np.int64)  # type: ignore[union-attr]
        stages = np.repeat(zeros, len(loss) // len(zeros))
        for off, by in space.words(row):
            for name, (ms, vs) in space.variants[i].runs.items():
                how = How.of(space.base.but(schedule=name, pipeline=row[P_], offload=off, context_by=by), space.model)
                each = max(1, LARGEST // (count * len(loss) * len(space.choices.remat)))
                for at in range(0, len(ms), each):
                    m, v = ms[at : at + each], vs[at : at + each]
                    ways = self._ways(row, m, v, stages, loss)
                    step = price(facts, ways, how, wires, self.rates[off])

                    def plan(a: int, z: int, r: int, j: int, m=m, v=v, words=(name, off, by)) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
                        return (i, words, int(v[a]), int(m[a]), int(stages[z]), int(loss[z]), r, j)

                    self._rank(step, (len(m), len(loss), len(space.choices.remat), count), kind, ranking, plan)

    def kind(self, candidate: Candidate) -> tuple[bool, ...]:
        """Which axes a candidate uses."""
        return _kind(self.space.degrees[candidate.plan[0]].tolist())

    def plan(self, candidate: Candidate) -> Plan:
        """A candidate's plan, placement included."""
        i, (name, off, by), virtual, m, zero, loss, r, j = candidate.plan
        return self.space.plan(
            self.space.degrees[i].tolist(), (name, virtual, m),
            zero=zero, loss_chunks=loss, remat=self.space.choices.remat[r], offload=off, context_by=by,
        ).but(placement=self.places.placement(i, j))  # fmt: skip

    def _rank(
        self, step: Step, shape: tuple[int, ...], kind: tuple[bool, ...], ranking: Ranking, plan: Callable[..., tuple[Any, ...]]
    ) -> None:
        splits, count = shape[:-1], shape[-1]
        ranking.plans += int(np.prod(shape))
        held = np.broadcast_to(step.memory_bytes, (*splits, 1)).reshape(-1)
        fits = held <= step.usable_bytes
        ranking.splits_too_large += len(held) - int(np.count_nonzero(fits))
        if not fits.all():
            k = int(np.where(fits, np.inf, held).argmin())
            if ranking.least is None or held[k] < ranking.least.memory_bytes:
                ranking.least = Candidate(0.0, 0.0, float(held[k]), plan(*map(int, np.unravel_index(k, splits)), 0))
        if not fits.any():
            return
        seconds = np.broadcast_to(step.seconds(self.shown), shape).reshape(-1, count)
        fastest = np.where(fits, seconds.min(axis=1).round(NS_DIGITS), np.inf)
        rows = np.flatnonzero(fastest <= min(ranking.bar(kind), float(np.finfo(float).max)))
        if not len(rows):
            return
        upper = np.broadcast_to(step.upper_s, shape).reshape(-1, count)[rows]
        upper = np.where(seconds[rows] <= fastest[rows, None] + 10.0**-NS_DIGITS, upper, np.inf)
        chosen = upper.argmin(axis=1)
        upper = upper[np.arange(len(rows)), chosen].round(NS_DIGITS)
        order = np.lexsort((held[rows], upper, fastest[rows]))[: ranking.keep]
        found = [
            Candidate(
                float(fastest[rows[k]]), float(upper[k]), float(held[rows[k]]),
                plan(*map(int, np.unravel_index(rows[k], splits)), int(chosen[k])),
            )
            for k in order
        ]  # fmt: skip
        ranking.add(kind, found)

    def _splits(self, i: int) -> int:
        runs = sum(len(m) for m, _ in self.space.variants[i].runs.values())
        return runs * self.space.others(self.space.degrees[i].tolist())

    def _ways(self, row: list[int], m: Any, v: Any, zeros: Any, loss: Any) -> Ways:
        m, v, zeros, loss = m[:, None, None, None], v[:, None, None, None], zeros[:, None, None], loss[:, None, None]
        return Ways(
            data=row[D_], fsdp=row[F_], zero=zeros, tensor=row[T_], context=row[C_], pipeline=row[P_], expert=row[E_],
            sequence_parallel=self.space.base.sequence_parallel, virtual_stages=v, microbatches=m, loss_chunks=loss,
            sequences=self.space.batch // (row[D_] * row[F_] * row[E_] * m),
            stage_layers=largest_stage(self.space.model.L, row[P_], v),
        )  # fmt: skip

    def _make_facts(self, tensor: int, expert: int) -> Facts:
        """Facts of all remat policies, along the third axis."""
        space = self.space
        plans = [space.base.but(tensor=tensor, expert=expert, remat=remat) for remat in space.choices.remat]
        every = [Facts.of(space.model, plan, T=space.T, causal=self.causal) for plan in plans]

        def column(name: str) -> Any:
            values = [getattr(one, name) for one in every]
            return values[0] if len(set(values)) == 1 else np.array(values, dtype=np.float64)[:, None]

        return Facts(**{f.name: column(f.name) for f in fields(Facts)})


def _kind(degrees: list[int]) -> tuple[bool, ...]:
    return tuple(ways > 1 for ways in degrees)
