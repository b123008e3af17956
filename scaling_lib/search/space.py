"""All splits of a step, and which of them no rule refuses. A split is a plan without its placement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from scaling_lib.hardware import Slice
from scaling_lib.search.choices import Choices
from scaling_lib.training import Plan
from scaling_lib.training.facts import Facts
from scaling_lib.training.plan import RULES
from scaling_lib.training.wires import AXES
from scaling_lib.transformer import Transformer

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

T_, E_, C_, F_, D_, P_ = range(len(AXES))
"""Columns of an array of degrees, as in `AXES`."""


@dataclass
class Refused:
    """Splits that a rule refuses: how many, and one of them."""

    count: int
    example: Plan


@dataclass(frozen=True)
class Variants:
    """Microbatches and virtual stages that some replicas and stages can run, by schedule; and how many a rule refuses.

    `refused` has, by rule, the number and the schedule, virtual stages and microbatches of one.
    """

    runs: dict[str, tuple[Ints, Ints]]
    left: int
    refused: dict[str, tuple[int, tuple[str, int, int]]]


@dataclass(frozen=True)
class Question:
    """What is searched for: a model on a slice, with a batch of sequences of T tokens; and what may be chosen."""

    model: Transformer
    slice: Slice
    batch: int
    T: int
    base: Plan
    choices: Choices


class Space:
    """The splits to price, by degrees.

    Args:
        question: of which they are the splits.

    Attributes:
        degrees: sets of degrees that some split can run, one a row, columns as in `AXES`.
        variants: for each row.
        remats: remat policies that differ; attention in a flash kernel keeps no scores, so "selective" is "none".
        splits: all there are, refused ones included.
        refused: by rule.
        parts: numbers of parts into which the batch does not divide, where nothing else stands against it.

    Raises:
        ValueError: where no degrees of the choices multiply to the devices.
    """

    degrees: Ints
    variants: list[Variants]
    splits: int

    def __init__(self, question: Question) -> None:
        self.question, self.base, self.choices = question, question.base, question.choices
        self.model, self.slice, self.batch, self.T = question.model, question.slice, question.batch, question.T
        self.refused: dict[str, Refused] = {}
        self.parts: set[int] = set()
        self.remats = self._remats()
        self._ask = {rule.kind: lru_cache(maxsize=None)(self._asker(rule.kind)) for rule in RULES}
        self._variants = lru_cache(maxsize=None)(self._make_variants)
        given = [getattr(self.choices, axis) for axis in AXES]
        if not self.model.E and given[E_] is None:
            given[E_] = (1,)
        rows = np.array(list(_factors(self.slice.devices, given)), dtype=np.int64).reshape(-1, len(AXES))
        if self.choices.zero == (0,):
            rows = rows[rows[:, F_] == 1]
        if not len(rows):
            pins = {axis: getattr(self.choices, axis) for axis in AXES if getattr(self.choices, axis)}
            said = ", ".join(f"{axis}={ways[0] if len(ways) == 1 else ways}" for axis, ways in pins.items())
            near = ", ".join(map(str, divisors(self.slice.devices)))
            raise ValueError(
                f"choices: {said} cannot multiply to the {self.slice.devices} devices of {self.slice} with what is open; "
                f"give some of its divisors {near}, or leave more open"
            )
        self._sift(rows)

    def _sift(self, rows: Ints) -> None:
        others = np.array([self.others(row) for row in rows.tolist()], dtype=np.int64)
        each = self._map(lambda p: len(self.schedules(p)) * len(self.microbatches), rows[:, P_])
        self.splits = int((others * each).sum())
        keep = np.ones(len(rows), dtype=bool)
        for kind, column in (("heads", T_), ("hidden width", T_), ("experts", E_)):
            good = self._map(partial(self.allows, kind), rows[:, column]).astype(bool)
            self._refuse(kind, int((others * each)[keep & ~good].sum()), rows[keep & ~good])
            keep &= good
        rows, others = rows[keep], others[keep]
        tokens = np.array([self.allows("tokens", c, t) for t, c in rows[:, [T_, C_]].tolist()], dtype=bool)
        replicas = rows[:, D_] * rows[:, F_] * rows[:, E_]
        found: list[tuple[Ints, Variants]] = []
        for pair in sorted(set(zip(replicas.tolist(), rows[:, P_].tolist(), strict=True))):
            here = (replicas == pair[0]) & (rows[:, P_] == pair[1])
            variants = self._variants(*pair)
            for kind in ("layers", "batch"):
                if kind in variants.refused:
                    count, how = variants.refused[kind]
                    self._refuse(kind, count * int(others[here].sum()), rows[here], how)
            runs = [(name, int(v[0]), int(m[0])) for name, (m, v) in variants.runs.items()]
            wrong = variants.refused.get("schedule")
            some = runs[0] if runs else wrong[1] if wrong else None
            if some:
                self._refuse("tokens", variants.left * int(others[here & ~tokens].sum()), rows[here & ~tokens], some)
            if wrong:
                self._refuse("schedule", wrong[0] * int(others[here & tokens].sum()), rows[here & tokens], wrong[1])
            if not variants.left and self._layers_allow(pair[1]) and (here & tokens).any():
                self.parts.add(pair[0] * min(self.choices.microbatches or (1,)))
            if runs:
                found += [(row, variants) for row in rows[here & tokens]]
        found.sort(key=lambda one: tuple(one[0].tolist()))
        self.degrees = np.array([row for row, _ in found], dtype=np.int64).reshape(-1, len(AXES))
        self.variants = [variants for _, variants in found]

    # --- What a split is made of. ---

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Numbers of microbatches to try."""
        return self.choices.microbatches or divisors(self.batch)

    def schedules(self, stages: int) -> list[tuple[str, int]]:
        """Schedules of a pipeline of so many stages, with virtual stages. Without a pipeline all are the same."""
        if stages == 1:
            return [("1f1b", 1)]
        chosen, L = self.choices.virtual_stages, self.model.L
        if chosen is None:
            uneven = self.base.uneven_stages
            chosen = tuple(v for v in range(2, L // stages + 1) if L % (stages * v) == 0 or (uneven and v & (v - 1) == 0))
        virtual = {"interleaved": chosen}
        return [(name, v) for name in self.choices.schedule for v in virtual.get(name, (1,))]

    def zeros(self, degrees: Sequence[int]) -> tuple[int, ...]:
        """ZeRO stages for these degrees: stage 0 has no fsdp ways, and without ways to share all stages are one."""
        zeros: tuple[int, ...] = self.choices.zero
        if degrees[E_] * degrees[C_] * degrees[F_] == 1:
            return (min(zeros),)
        return tuple(z for z in zeros if z) if degrees[F_] > 1 else zeros

    def words(self, degrees: Sequence[int]) -> list[tuple[tuple[str, ...], str]]:
        """What is offloaded, and how attention sees all keys, where these can differ."""
        by = self.choices.context_by
        return [(off, how) for off in self.choices.offload for how in (by if degrees[C_] > 1 else by[:1])]

    def others(self, degrees: Sequence[int]) -> int:
        """Splits that differ in ZeRO stage, remat, chunks of the loss, and words alone."""
        return len(self.zeros(degrees)) * len(self.remats) * len(self.choices.loss_chunks) * len(self.words(degrees))

    def plan(self, degrees: Sequence[int], how: tuple[str, int, int], **others: object) -> Plan:
        """A plan of some degrees; `how` has schedule, virtual stages and microbatches."""
        name, virtual, microbatches = how
        fields = {**dict(zip(AXES, map(int, degrees), strict=True)), **others}
        fields.setdefault("zero", self.zeros(degrees)[-1])
        return self.base.but(**fields, schedule=name, virtual_stages=virtual, microbatches=microbatches, placement=None)

    def short_of(self) -> str:
        """Why no degrees come out: a factor of the devices that nothing they share has as often, if that is why."""
        model, devices = self.model, self.slice.devices
        widths = [model.F] * bool(model.dense_layers) + ([model.experts.d_ff] if model.experts else [])
        shared = {
            f"{self.batch} sequences (data, fsdp)": self.batch,
            f"{model.N} heads (tensor)": math.gcd(model.N, *widths),
            f"{self.T} tokens (context)": self.T,
            f"{model.L} layers (pipeline)": 0 if self.base.uneven_stages else model.L,
            **({f"{model.E} experts (expert)": model.E} if model.E else {}),
        }
        for prime, times in _primes(devices).items():
            have = sum(times if n == 0 else _primes(n).get(prime, 0) for n in shared.values())
            if have < times:
                power = f"{prime}" if times == 1 else f"{prime}^{times}"
                product = " · ".join(f"{p}" if k == 1 else f"{p}^{k}" for p, k in _primes(devices).items())
                divides = "divides none of" if not have else "is more than there is in"
                return f"{devices:,} devices are {product}, and {power} {divides} {', '.join(shared)}"
        return f"no degrees that multiply to {devices:,} devices keep all rules at once; the counts below say which refuse most"

    def _remats(self) -> tuple[Any, ...]:
        plans = {remat: self.base.but(remat=remat, tensor=1, expert=1) for remat in self.choices.remat}
        facts = {Facts.of(self.model, plan, T=self.T, causal=True): remat for remat, plan in reversed(plans.items())}
        return tuple(reversed(facts.values()))

    # --- What the rules say. ---

    def allows(self, kind: str, *values: object) -> bool:
        """Whether the rule of this kind lets plans run that have these values in the fields it reads."""
        return self._ask[kind](*values)

    def _layers_allow(self, stages: int) -> bool:
        return any(self.allows("layers", stages, virtual) for _, virtual in self.schedules(stages))

    def _asker(self, kind: str) -> Callable[..., bool]:
        rule = next(rule for rule in RULES if rule.kind == kind)
        blank = Plan(sequence_parallel=self.base.sequence_parallel, uneven_stages=self.base.uneven_stages)
        fields = [{"replicas": "data"}.get(name, name) for name in rule.of]

        def ask(*values: object) -> bool:
            return rule.why(blank.but(**dict(zip(fields, values, strict=True))), self.model, self.batch, self.T) is None

        return ask

    def _make_variants(self, replicas: int, stages: int) -> Variants:
        runs: dict[str, tuple[list[int], list[int]]] = {}
        refused: dict[str, tuple[int, tuple[str, int, int]]] = {}
        left = 0

        def refuse(kind: str, count: int, how: tuple[str, int, int]) -> None:
            so_far, first = refused.get(kind, (0, how))
            refused[kind] = so_far + count, first

        divide = [m for m in self.microbatches if self.allows("batch", replicas, m)]
        rest = [m for m in self.microbatches if m not in set(divide)]
        for name, virtual in self.schedules(stages):
            if not self.allows("layers", stages, virtual):
                refuse("layers", len(self.microbatches), (name, virtual, self.microbatches[0]))
                continue
            if rest:
                refuse("batch", len(rest), (name, virtual, rest[0]))
            left += len(divide)
            for m in divide:
                if self.allows("schedule", name, stages, m, virtual):
                    ms, vs = runs.setdefault(name, ([], []))
                    ms.append(m)
                    vs.append(virtual)
                else:
                    refuse("schedule", 1, (name, virtual, m))
        arrays = {name: (np.array(m, dtype=np.int64), np.array(v, dtype=np.int64)) for name, (m, v) in runs.items()}
        return Variants(arrays, left, refused)

    def _refuse(self, kind: str, count: int, rows: Ints, how: tuple[str, int, int] | None = None) -> None:
        if not count:
            return
        if kind in self.refused:
            self.refused[kind].count += count
            return
        row = rows[0].tolist()
        self.refused[kind] = Refused(count, self.plan(row, how or (*self.schedules(row[P_])[0], self.microbatches[0])))

    @staticmethod
    def _map(of: Callable[[int], int | bool], column: Ints) -> Ints:
        values, where = np.unique(column, return_inverse=True)
        return np.array([of(int(value)) for value in values], dtype=np.int64)[where]


def divisors(n: int) -> tuple[int, ...]:
    """All of them, the smallest first."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return (*small, *(n // d for d in reversed(small) if d * d != n))


def _primes(n: int) -> dict[int, int]:
    """Prime factors, and how often each."""
    found: dict[int, int] = {}
    prime = 2
    while n > 1:
        if prime * prime > n:
            prime = n
        while n % prime == 0:
            found[prime], n = found.get(prime, 0) + 1, n // prime
        prime += 1
    return found


def _factors(n: int, given: Sequence[tuple[int, ...] | None]) -> Iterator[tuple[int, ...]]:
    """Every way to write n as a product of as many numbers, each one of those given for it."""
    if len(given) == 1:
        if given[0] is None or n in given[0]:
            yield (n,)
        return
    for first in divisors(n) if given[0] is None else given[0]:
        if n % first == 0:
            for others in _factors(n // first, given[1:]):
                yield (first, *others)
