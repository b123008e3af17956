"""Prices of all splits and placements, some sets of degrees and a schedule at a time, as arrays that broadcast.

Axes of the arrays: sets of degrees; microbatches and virtual stages; ZeRO stage and chunks of the loss; remat policy; placement.
Bytes and FLOPs have no placement, and what a byte costs has but the first axis and the last, so that little is computed for every
plan: docs/adr/0013.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling_lib.search.places import Places
from scaling_lib.search.result import RESOLUTION_S
from scaling_lib.search.space import C_, D_, E_, F_, P_, T_, Ints, Space
from scaling_lib.training import Plan, StepEstimate, estimate
from scaling_lib.training.facts import Facts
from scaling_lib.training.memory import How, Ways, largest_stage
from scaling_lib.training.step import Rates, Step, price
from scaling_lib.training.wires import GROUPS

Floats = npt.NDArray[np.float64]

PADDING = 2.5
"""How much larger than the placements it holds an array of them may be."""

LARGEST = 1 << 16
"""Plans priced at once, about: so that the arrays stay in the processor's caches."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A split with its fastest placement. Candidates sort as they are ranked; seconds are rounded to the nanosecond."""

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
    best: list[Candidate] = field(default_factory=list)
    kinds: dict[tuple[bool, ...], Candidate] = field(default_factory=dict)
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
    """Prices a space, some sets of degrees at a time.

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
        self.rates = {off: Rates.of(space.slice, space.base.but(offload=off), efficiency) for off in space.choices.offload}
        self._facts = lru_cache(maxsize=None)(self._make_facts)

    @property
    def total(self) -> int:
        """Plans to price."""
        return sum(self._splits(i) * self.places.count(i) for i in range(len(self.space.degrees)))

    def run(self, ranking: Ranking, progress: Callable[[int, int], None] | None = None) -> None:
        """Price everything."""
        total = self.total if progress else 0
        for batch in self._batches():
            self._price(batch, ranking)
            if progress:
                progress(ranking.plans, total)

    def _batches(self) -> Iterator[list[int]]:
        """Sets of degrees that have the same microbatches, schedules, ZeRO stages and words, and about as many placements.

        Placements of a batch are padded to the largest number, by repeating one, which changes no minimum.
        """
        alike: dict[tuple[Any, ...], list[int]] = {}
        for i, row in enumerate(self.space.degrees.tolist()):
            key = row[P_], row[D_] * row[F_] * row[E_], self.space.zeros(row), self.space.choices.context_by and row[C_] > 1
            alike.setdefault(key, []).append(i)
        for members in alike.values():
            members.sort(key=self.places.count)
            splits = max(len(m) for m, _ in self.space.variants[members[0]].runs.values()) * self.space.others(
                self.space.degrees[members[0]].tolist()
            )
            batch: list[int] = []
            plans = 0
            for i in members:
                count = self.places.count(i)
                padded = (len(batch) + 1) * count
                if batch and (padded * splits > LARGEST or padded > PADDING * (plans + count)):
                    yield batch
                    batch, plans = [], 0
                batch.append(i)
                plans += count
            yield batch

    def _price(self, batch: list[int], ranking: Ranking) -> None:
        """Price all plans of some sets of degrees."""
        space = self.space
        degrees = space.degrees[batch]
        rows = degrees.tolist()
        wires, facts = self.places.wires(batch), self._stacked([(row[T_], row[E_]) for row in rows])
        counts = np.array([self.places.count(i) for i in batch])
        zeros, losses = space.zeros(rows[0]), space.choices.loss_chunks
        loss, stages = np.tile(losses, len(zeros)), np.repeat(zeros, len(losses))
        for off, by in space.words(rows[0]):
            for name, (ms, vs) in space.variants[batch[0]].runs.items():
                how = How.of(space.base.but(schedule=name, pipeline=rows[0][P_], offload=off, context_by=by), space.model)
                each = max(1, LARGEST // (len(batch) * int(counts.max()) * len(loss) * len(space.remats)))
                for at in range(0, len(ms), each):
                    m, v = ms[at : at + each], vs[at : at + each]
                    step = price(facts, self._ways(degrees, m, v, stages, loss), how, wires, self.rates[off])
                    shape = (len(batch), len(m), len(loss), len(space.remats), int(counts.max()))
                    ranking.plans += int(counts.sum()) * math.prod(shape[1:-1])
                    plan = partial(_numbers, batch, counts, (name, off, by), (v, m), (stages, loss))
                    self._rank(step, shape, [_kind(row) for row in rows], ranking, plan)

    def kind(self, candidate: Candidate) -> tuple[bool, ...]:
        """Which axes a candidate uses."""
        return _kind(self.space.degrees[candidate.plan[0]].tolist())

    def plan(self, candidate: Candidate) -> Plan:
        """A candidate's plan, placement included."""
        i, (name, off, by), virtual, m, zero, loss, r, j = candidate.plan
        return self.space.plan(
            self.space.degrees[i].tolist(), (name, virtual, m),
            zero=zero, loss_chunks=loss, remat=self.space.remats[r], offload=off, context_by=by,
        ).but(placement=self.places.placement(i, j))  # fmt: skip

    def estimate(self, candidate: Candidate, how: Mapping[str, Any]) -> StepEstimate:
        """A candidate priced alone, in full; `how` has the arguments of `training.estimate` that say how to price."""
        q = self.space.question
        return estimate(q.model, q.slice, self.plan(candidate), q.batch, T=q.T, **how)

    def _rank(
        self,
        step: Step,
        shape: tuple[int, ...],
        kinds: list[tuple[bool, ...]],
        ranking: Ranking,
        plan: Callable[..., tuple[Any, ...]],
    ) -> None:
        sets, splits, count = shape[0], shape[1:-1], shape[-1]
        held = np.broadcast_to(step.memory_bytes, (*shape[:-1], 1)).reshape(sets, -1)
        fits = held <= step.usable_bytes
        ranking.splits_too_large += int(np.count_nonzero(~fits))
        if not fits.all():
            k = int(np.where(fits, np.inf, held).argmin())
            if ranking.least is None or held.flat[k] < ranking.least.memory_bytes:
                where = map(int, np.unravel_index(k, shape[:-1]))
                ranking.least = Candidate(0.0, 0.0, float(held.flat[k]), plan(*where, 0))
        if not fits.any():
            return
        seconds = np.broadcast_to(step.seconds(self.shown), shape).reshape(sets, -1, count)
        fastest = np.where(fits, _rounded(seconds.min(axis=2)), np.inf)
        near = (fastest <= np.array([[ranking.bar(kind)] for kind in kinds])) & fits
        if not near.any():
            return
        upper_s = np.broadcast_to(step.upper_s, shape).reshape(sets, -1, count)
        for i in np.flatnonzero(near.any(axis=1)).tolist():
            rows = np.flatnonzero(near[i])
            longest = fastest[i, rows]
            upper = np.where(seconds[i, rows] <= longest[:, None] + RESOLUTION_S, upper_s[i, rows], np.inf)
            chosen = upper.argmin(axis=1)
            upper = _rounded(upper.min(axis=1))
            found = [
                Candidate(
                    float(longest[k]), float(upper[k]), float(held[i, rows[k]]),
                    plan(i, *map(int, np.unravel_index(rows[k], splits)), int(chosen[k])),
                )
                for k in np.lexsort((held[i, rows], upper, longest))[: ranking.keep]
            ]  # fmt: skip
            ranking.add(kinds[i], found)

    def _splits(self, i: int) -> int:
        runs = sum(len(m) for m, _ in self.space.variants[i].runs.values())
        return runs * self.space.others(self.space.degrees[i].tolist())

    def _ways(self, degrees: Ints, m: Ints, v: Ints, zeros: Ints, loss: Ints) -> Ways:
        row, stages = degrees[:, :, None, None, None, None], int(degrees[0, P_])
        m, v, zeros, loss = m[:, None, None, None], v[:, None, None, None], zeros[:, None, None], loss[:, None, None]
        replicas = int(degrees[0, D_] * degrees[0, F_] * degrees[0, E_])
        return Ways(
            data=row[:, D_], fsdp=row[:, F_], zero=zeros, tensor=row[:, T_], context=row[:, C_], expert=row[:, E_],
            pipeline=stages, virtual_stages=v, stage_layers=largest_stage(self.space.model.L, stages, v),
            microbatches=m, sequences=self.space.batch // (replicas * m), loss_chunks=loss,
            sequence_parallel=int(self.space.base.sequence_parallel),
        )  # fmt: skip

    def _stacked(self, splits: list[tuple[int, int]]) -> Facts:
        """Facts of several tensor and expert ways, and all remat policies: on the first and the fourth axis."""
        every = np.stack([self._facts(tensor, expert) for tensor, expert in splits])
        same = (every == every[0, 0]).all(axis=(0, 1))
        columns = [every[0, 0, k] if same[k] else every[:, None, None, :, None, k] for k in range(len(same))]
        return Facts(**{f.name: column for f, column in zip(fields(Facts), columns, strict=True)})

    def _make_facts(self, tensor: int, expert: int) -> Floats:
        """Facts of all remat policies: policy, field."""
        space = self.space
        plans = [space.base.but(tensor=tensor, expert=expert, remat=remat) for remat in space.remats]
        every = [Facts.of(space.model, plan, T=space.T, causal=self.causal) for plan in plans]
        return np.array([[getattr(one, f.name) for f in fields(Facts)] for one in every], dtype=np.float64)


def _numbers(
    batch: list[int], counts: Ints, words: tuple[Any, ...], runs: tuple[Ints, Ints], kept: tuple[Ints, Ints],
    row: int, run: int, keeps: int, remat: int, place: int,
) -> tuple[Any, ...]:  # fmt: skip
    """A candidate's `plan`, from its index on each axis of the arrays. Placements beyond the last are the last, repeated."""
    how = [int(values[run]) for values in runs] + [int(values[keeps]) for values in kept]
    return (batch[row], words, *how, remat, min(place, int(counts[row]) - 1))


def _rounded(seconds: Floats) -> Floats:
    return seconds.round(9)  # RESOLUTION_S


def _kind(degrees: list[int]) -> tuple[bool, ...]:
    return tuple(ways > 1 for ways in degrees)
