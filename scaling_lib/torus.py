"""The torus of a TPU slice: how far apart two chips are, by which way, and how much the links carry.

Chips are named by their coordinates along the slice's axes, from zero; a hop is one link. Derived in chapters/02-tpus.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from scaling_lib import units
from scaling_lib.hardware import Slice

Coordinates = tuple[int, ...]


@dataclass(frozen=True)
class Torus:
    """The links of a TPU slice: a ring along each axis that wraps, a line along each that does not.

    A twisted torus (shapes k × k × 2k and k × 2k × 2k) has its wraparound links moved: one that leaves the end of a short
    axis arrives halfway along every long axis, so that all axes become equally long to travel.

    Args:
        slice: the chips; where several slices work together, each of them is such a torus.
        twisted: whether the optical switches join the ends with a twist.

    Raises:
        ValueError: for GPUs, and for a twist of a shape that has none.

    Sources: docs.cloud.google.com/tpu/docs/v5p (which shapes twist); Camara et al., IEEE TPDS 21 (2010), and Camarero et al.,
    arXiv:1311.2019 (the twist, as lattices); Jouppi et al., arXiv:2304.01433 (twisted tori of TPU v4).
    """

    slice: Slice
    twisted: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.slice, Slice) or self.slice.chip.kind != "tpu":
            raise ValueError(f"slice={self.slice!s} has no torus; give a TPU slice, like slice_of('v5e:16x16')")
        if self.twisted and not (set(self.shape) == {min(self.shape), 2 * min(self.shape)} and all(self.slice.wraps)):
            raise ValueError(f"twisted=True: {self.slice.name} cannot be twisted; k x k x 2k and k x 2k x 2k can, k = 4, 8, ...")

    @property
    def shape(self) -> Coordinates:
        """Chips along each axis."""
        return self.slice.shape

    @property
    def name(self) -> str:
        """The name that the TPU compiler takes for this topology, like "v5p:4x4x8_twisted"."""
        return self.slice.name + "_twisted" * self.twisted

    @property
    def links(self) -> int:
        """Links between the chips of the slice, each counted once."""
        return sum(self._lines(axis) * (n if wrap else n - 1) for axis, n, wrap in self._axes())

    @property
    def links_per_chip(self) -> int:
        """Links of a chip that has the most: two for an axis, one where the axis is two chips without wraparound."""
        return sum(min(2, n if wrap else n - 1) for _, n, wrap in self._axes())

    @property
    def diameter(self) -> int:
        """Hops between the two chips that are farthest apart."""
        if self.twisted:
            return max(self._hops_from_one_chip())
        return sum(n // 2 if wrap else n - 1 for _, n, wrap in self._axes())

    @property
    def mean_hops(self) -> float:
        """Hops between two different chips, all pairs averaged; 0 for a single chip."""
        chips = math.prod(self.shape)
        if self.twisted:
            return sum(self._hops_from_one_chip()) / (chips - 1)
        of_axes = sum((n * n // 4) / n if wrap else (n * n - 1) / (3 * n) for _, n, wrap in self._axes())
        return of_axes * chips / max(1, chips - 1)

    @property
    def bisection_links(self) -> int:
        """Links between the two halves of the slice, cut by a plane across one axis, the axis that gives the fewest.

        A cut of a ring counts twice, for the ring is cut in two places.
        NB: some cut that is no plane could be smaller still; a search found none for the twisted shapes of up to 256 chips.
        """
        cuts = {axis: self._lines(axis) * (1 + wrap) for axis, n, wrap in self._axes() if n > 1}
        if self.twisted:
            short = self._short_axes()
            for long in cuts.keys() - short:
                cuts[long] += sum(self._lines(axis) for axis in short)  # their wraparound links end in the other half
        return min(cuts.values(), default=0)

    def bisection_bytes_per_s(self, ici: Literal["achievable", "peak"] = "achievable") -> float:
        """Bytes per second from one half of the slice to the other, one way, over all links of the bisection.

        Args:
            ici: which figure of a link: what large transfers achieve, or what the vendor states.
        """
        return self.bisection_links * self._link_bytes_per_s(ici)

    @property
    def all_to_all_load(self) -> float:
        """Messages over the busiest link, one way, when every chip sends one to every other over shortest routes.

        Multiplied by the bytes of a message and divided by a link's bandwidth, this is the shortest time of an all-to-all.
        NB: routes are taken to be spread evenly over the shortest ones; a real router may do worse.
        """
        chips = math.prod(self.shape)
        if self.twisted:  # all axes are alike, so all links are
            return chips * sum(self._hops_from_one_chip()) / (2 * self.links)
        return max(self._lines(axis) * (n * n // 4) / (1 + wrap) for axis, n, wrap in self._axes())

    def all_to_all_loads(self) -> dict[tuple[Coordinates, Coordinates], float]:
        """Messages over every link, one way, when every chip sends one to every other: by (from, to), two neighbors.

        A message goes along one axis after the other, the shorter way; half of it each way where both are as short. The
        order of the axes does not matter. The busiest link carries `all_to_all_load`.

        Raises:
            ValueError: for a twisted torus, where such routes are not the shortest.
        """
        if self.twisted:
            raise ValueError(f"{self.name} is twisted: routes axis by axis are not its shortest; see all_to_all_load")
        loads: dict[tuple[Coordinates, Coordinates], float] = {}
        for chip in itertools.product(*map(range, self.shape)):
            for axis, n, wrap in self._axes():
                if n > 1 and (to := self._step(chip, axis, 1)):
                    # Chips on one side of the link, times those on the other; on a ring, hops spread over both ways.
                    along = n * n // 4 / 2 if wrap else (chip[axis] + 1) * (n - 1 - chip[axis])
                    loads[chip, to] = loads[to, chip] = self._lines(axis) * along
        return loads

    def neighbors(self, chip: Sequence[int]) -> tuple[Coordinates, ...]:
        """The chips one hop away, each once, along the axes in order, down before up."""
        at = self._chip("chip", chip)
        steps = (self._step(at, axis, way) for axis in range(len(at)) for way in (-1, 1))
        return tuple(dict.fromkeys(to for to in steps if to is not None))

    def hops(self, a: Sequence[int], b: Sequence[int]) -> int:
        """Hops of a shortest route from chip `a` to chip `b`."""
        return sum(map(abs, self._steps(self._chip("a", a), self._chip("b", b))))

    def route(self, a: Sequence[int], b: Sequence[int]) -> tuple[Coordinates, ...]:
        """One shortest route, from `a` to `b` with both ends: one axis after the other, in their order."""
        at, to = self._chip("a", a), self._chip("b", b)
        way = [at]
        for axis, steps in enumerate(self._steps(at, to)):
            for _ in range(abs(steps)):
                at = self._step(at, axis, 1 if steps > 0 else -1) or at
                way.append(at)
        return tuple(way)

    def ports(self, a: Sequence[int], b: Sequence[int]) -> int:
        """Links of chip `a` that begin a shortest route to chip `b`: as many parts of a message can leave at once."""
        far = self.hops(a, b)
        return sum(self.hops(near, b) < far for near in self.neighbors(a))

    def first_byte_s(self, a: Sequence[int], b: Sequence[int], *, hop_s: float) -> float:
        """Seconds until the first byte arrives: hops, times the latency of one.

        Args:
            a: coordinates of the sender.
            b: coordinates of the receiver.
            hop_s: seconds a hop takes. No source states it for any chip, so there is no default; 1e-6 is often assumed.
        """
        return self.hops(a, b) * units.number("hop_s", hop_s, minimum=0)

    def transfer_s(
        self, a: Sequence[int], b: Sequence[int], bytes: float, *, ici: Literal["achievable", "peak"] = "achievable"
    ) -> float:
        """Seconds that `bytes` take from `a` to `b` over all `ports`, latency left out; 0 where the two are one chip."""
        moved = units.number("bytes", bytes, minimum=0)
        if not (ports := self.ports(a, b)):
            return 0.0
        return moved / (ports * self._link_bytes_per_s(ici))

    def __str__(self) -> str:
        return self.name

    def _axes(self) -> Iterator[tuple[int, int, bool]]:
        return ((axis, n, wrap) for axis, (n, wrap) in enumerate(zip(self.shape, self.slice.wraps, strict=True)))

    def _lines(self, axis: int) -> int:
        """Lines of chips along an axis."""
        return math.prod(self.shape) // self.shape[axis]

    def _short_axes(self) -> list[int]:
        return [axis for axis, n in enumerate(self.shape) if n == min(self.shape)]

    def _step(self, at: Coordinates, axis: int, way: int) -> Coordinates | None:
        """The chip one link from `at`; None at the end of a line."""
        to, n = list(at), self.shape[axis]
        to[axis] += way
        if 0 <= to[axis] < n:
            return tuple(to)
        if not self.slice.wraps[axis]:
            return None
        to[axis] %= n
        if self.twisted and axis in self._short_axes():
            to = [x if size == n else (x + n) % size for x, size in zip(to, self.shape, strict=True)]
        return tuple(to)

    def _steps(self, a: Coordinates, b: Coordinates) -> Coordinates:
        """Steps along each axis of a shortest route, negative for down."""
        if not self.twisted:
            return tuple(self._straight(axis, to - at) for axis, (at, to) in enumerate(zip(a, b, strict=True)))
        short, k = self._short_axes(), min(self.shape)
        ways = []
        for wraps in itertools.product((0, -1, 1), repeat=len(short)):  # around the short axes, each of which shifts the long
            around = dict(zip(short, wraps, strict=True))
            ways.append(
                tuple(
                    to - at + around[axis] * k if axis in around else self._straight(axis, to - at + sum(wraps) * k)
                    for axis, (at, to) in enumerate(zip(a, b, strict=True))
                )
            )
        return min(ways, key=lambda steps: sum(map(abs, steps)))

    def _straight(self, axis: int, steps: int) -> int:
        """`steps` along a line; on a ring, the shorter way around, up where both are as long."""
        if not self.slice.wraps[axis]:
            return steps
        n = self.shape[axis]
        return steps % n if steps % n <= n / 2 else steps % n - n

    def _hops_from_one_chip(self) -> list[int]:
        """Hops to every chip, itself included: the same from wherever one looks, where all axes wrap."""
        origin = (0,) * len(self.shape)
        return [sum(map(abs, self._steps(origin, to))) for to in itertools.product(*map(range, self.shape))]

    def _chip(self, name: str, chip: Sequence[int]) -> Coordinates:
        at = tuple(chip)
        if len(at) != len(self.shape) or not all(type(x) is int and 0 <= x < n for x, n in zip(at, self.shape, strict=True)):
            raise ValueError(f"{name}={chip!r} is no chip of {self}; the last one is {tuple(n - 1 for n in self.shape)}")
        return at

    def _link_bytes_per_s(self, ici: str) -> float:
        if ici not in ("achievable", "peak"):
            raise ValueError(f"ici={ici!r} is neither 'achievable' nor 'peak'")
        chip = self.slice.chip
        return chip.ici_link_bytes_per_s if ici == "achievable" else chip.ici_link_peak_bytes_per_s
