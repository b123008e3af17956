"""Time from FLOPs and bytes, and which resource sets it.

A `Cost` says what an operation needs; `bound` divides it by what a chip can do. Both ends are given: everything overlaps
(the longest part alone, a true lower bound) and nothing does (the sum). Derived in chapters/01-roofline.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from scaling_lib import units
from scaling_lib.hardware import Chip

Level = Literal["vmem", "hbm", "ici", "dcn", "pcie"]
LEVELS: tuple[Level, ...] = ("vmem", "hbm", "ici", "dcn", "pcie")

FLOPS_PER_MAC = 2
"""A multiply-add counts as two FLOPs, here and everywhere."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Cost:
    """What an operation needs of one chip. Costs add, and scale by a number: a layer is a sum, a model is `32 * layer`.

    Args:
        flops: matrix-unit FLOPs by the dtype they are done in; a multiply-add is 2.
        vpu_flops: FLOPs of the vector unit.
        vmem_bytes: bytes between VMEM and the compute units.
        hbm_bytes: bytes between HBM and the chip.
        ici_bytes: bytes the chip sends over one ICI link, one way; fabric bytes sent, for a GPU.
        dcn_bytes: bytes the chip sends over the data-center network.
        pcie_bytes: bytes between chip and host, one way.

    Raises:
        ValueError: for a figure that is negative or not finite.
    """

    flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    vpu_flops: float = 0
    vmem_bytes: float = 0
    hbm_bytes: float = 0
    ici_bytes: float = 0
    dcn_bytes: float = 0
    pcie_bytes: float = 0

    def __post_init__(self) -> None:
        if not isinstance(self.flops, Mapping):
            raise ValueError(f"flops={self.flops!r} does not say the dtype; write it like {{'bf16': 2e12}}")
        flops: dict[str, float] = {}
        for dtype, count in self.flops.items():
            units.number(f"flops[{dtype!r}]", count, minimum=0)
            name = units.dtype_name(dtype)
            flops[name] = flops.get(name, 0) + count
        object.__setattr__(self, "flops", flops)
        for f in fields(self)[1:]:
            units.number(f.name, getattr(self, f.name), minimum=0)

    @property
    def total_flops(self) -> float:
        """FLOPs of matrix and vector unit, all dtypes together."""
        return sum(self.flops.values()) + self.vpu_flops

    def bytes(self, level: Level = "hbm") -> float:
        """Bytes moved at one level of the memory hierarchy."""
        return float(getattr(self, f"{_level(level)}_bytes"))

    def intensity(self, level: Level = "hbm") -> float:
        """Arithmetic intensity: FLOPs for each byte moved at `level`.

        Raises:
            ValueError: where no byte moves at that level, so the ratio has no value.
        """
        if not (moved := self.bytes(level)):
            raise ValueError(f"level={level!r}: this cost moves no bytes there, so it has no intensity")
        return self.total_flops / moved

    def __repr__(self) -> str:
        used = {f.name: value for f in fields(self) if (value := getattr(self, f.name))}
        return f"Cost({', '.join(f'{name}={value!r}' for name, value in used.items())})"

    def __add__(self, other: Cost) -> Cost:
        if not isinstance(other, Cost):
            return NotImplemented
        flops = {dtype: self.flops.get(dtype, 0) + other.flops.get(dtype, 0) for dtype in [*self.flops, *other.flops]}
        return Cost(flops=flops, **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[1:]})

    def __mul__(self, times: float) -> Cost:
        units.number("times", times, minimum=0)
        flops = {dtype: count * times for dtype, count in self.flops.items()}
        return Cost(flops=flops, **{f.name: getattr(self, f.name) * times for f in fields(self)[1:]})

    __rmul__ = __mul__

    def __radd__(self, other: object) -> Cost:
        return self if other == 0 else NotImplemented  # so that sum(costs) works


@dataclass(frozen=True, repr=False)
class Bound:
    """How long a `Cost` takes on a chip, by resource.

    Args:
        parts_s: seconds each used resource needs on its own: "mxu", "vpu", "vmem", "hbm", "ici", "dcn", "pcie".
        flops: FLOPs done meanwhile, for the attained rate.
    """

    parts_s: Mapping[str, float]
    flops: float

    @property
    def lower_s(self) -> float:
        """Seconds if everything overlaps, the longest part. Real programs take at least this."""
        return max(self.parts_s.values())

    @property
    def upper_s(self) -> float:
        """Seconds at full peaks if nothing overlaps, the sum of the parts. With two parts, at most twice `lower_s`."""
        return sum(self.parts_s.values())

    @property
    def binds(self) -> str:
        """The resource that takes longest."""
        return max(self.parts_s, key=lambda part: self.parts_s[part])

    @property
    def math_s(self) -> float:
        """Seconds of arithmetic, matrix unit and vector unit one after the other."""
        return self.parts_s.get("mxu", 0.0) + self.parts_s.get("vpu", 0.0)

    @property
    def flops_per_s(self) -> float:
        """The most FLOP/s this operation can attain, its FLOPs over `lower_s`."""
        return self.flops / self.lower_s

    def __str__(self) -> str:
        parts = ", ".join(f"{part} {units.human(s, 's')}" for part, s in self.parts_s.items())
        return f"{units.human(self.lower_s, 's')} to {units.human(self.upper_s, 's')}, {self.binds} binds ({parts})"

    __repr__ = __str__


def bound(cost: Cost, chip: Chip, *, ici: Literal["achievable", "peak"] = "achievable") -> Bound:
    """The time of `cost` on one chip, with full overlap (a lower bound) and with none.

    Args:
        cost: what the operation needs of this chip.
        chip: supplies the rates: dense peak FLOP/s by dtype, peak bandwidths, one ICI link one way.
        ici: which ICI figure: what large transfers achieve, or what the vendor states.

    Raises:
        ValueError: for a cost of nothing, or one that needs a rate no source states for this chip.

    NB: real chips do not quite reach their peaks, and start-up time is left out, so a run can take longer than the sum.
    Derived in chapters/01-roofline.md.
    """
    if not isinstance(cost, Cost):
        raise ValueError(f"cost={cost!r} is not a Cost; make one with matmul, einsum or Cost(...)")
    _check(chip)
    parts = {}
    if any(cost.flops.values()):
        parts["mxu"] = sum(count / chip.flops_per_s(dtype) for dtype, count in cost.flops.items())
    if cost.vpu_flops:
        parts["vpu"] = cost.vpu_flops / chip.vpu_flops_per_s
    for level in LEVELS:
        if moved := cost.bytes(level):
            parts[level] = moved / _bytes_per_s(chip, level, ici)
    if not parts:
        raise ValueError("cost is empty: it has neither FLOPs nor bytes, so no resource bounds it")
    return Bound(parts, cost.total_flops)


def matmul(
    m: int,
    k: int,
    n: int,
    *,
    x: object = "bf16",
    w: object = "bf16",
    out: object | None = None,
    math: object | None = None,
    batch: int = 1,
    tile: tuple[int, int] | None = None,
    level: Level = "hbm",
) -> Cost:
    """Cost of X[m, k] · W[k, n] → Y[m, n]: 2mkn FLOPs, and every array crosses HBM once.

    Args:
        m: rows of X; in a language model, tokens.
        k: the contracted dimension.
        n: columns of W.
        x: dtype X is stored in.
        w: dtype W is stored in.
        out: dtype Y is stored in; the dtype of X if not given.
        math: dtype the matrix unit works in. If not given: a float wins over an integer, then the wider of x and w
            (int8 weights with bf16 activations are multiplied in bf16).
        batch: how many independent matmuls, each with its own X, W and Y.
        tile: output tile (rows, columns) that fits on chip. X is then read once for each column of tiles and W once
            for each row of tiles. If not given, the on-chip memory is large enough for one read of each.
        level: where the arrays live, if not in HBM: "vmem" when they are already on chip, "pcie" when on the host.

    Raises:
        ValueError: for a size that is no whole number of at least 1, or an unknown dtype or level.

    NB: real programs also write and read back float32 partial sums when k is split; left out.
    Derived in chapters/01-roofline.md.
    """
    m, k, n, batch = units.size("m", m), units.size("k", k), units.size("n", n), units.size("batch", batch)
    x_reads = w_reads = 1
    if tile is not None:
        if not isinstance(tile, Sequence) or len(tile) != 2:
            raise ValueError(f"tile={tile!r} is not a pair; give (rows, columns), like (256, 512)")
        rows, columns = (min(units.size("tile", t), limit) for t, limit in zip(tile, (m, n), strict=True))
        x_reads, w_reads = -(-n // columns), -(-m // rows)
    x_bytes, w_bytes = m * k * units.itemsize(x), k * n * units.itemsize(w)
    y_bytes = m * n * units.itemsize(x if out is None else out)
    return Cost(
        flops={_math_dtype(x, w) if math is None else units.dtype_name(math): FLOPS_PER_MAC * batch * m * k * n},
        **{f"{_level(level)}_bytes": batch * (x_reads * x_bytes + w_reads * w_bytes + y_bytes)},
    )


def einsum(
    spec: str, sizes: Mapping[str, int], *, dtypes: Sequence[object] | object = "bf16", math: object | None = None
) -> Cost:
    """Cost of a one- or two-operand einsum such as "btd,df->btf", every array crossing HBM once.

    Args:
        spec: numpy's notation, one letter a dimension, output written out.
        sizes: the size of each letter.
        dtypes: one dtype for all arrays, or one each for the operands and the output, in that order.
        math: dtype the matrix unit works in; chosen as in `matmul` if not given.

    Returns:
        FLOPs = 2 × the product of all dimensions where something is contracted; without contraction one multiply an
        element, and for one operand only the additions of what is summed away, both on the vector unit.

    Raises:
        ValueError: for more than two operands (the order would decide the cost: chain them), repeated letters in one
            array, letters without a size, sizes without a letter, or a missing output.

    Derived in chapters/01-roofline.md.
    """
    if not isinstance(spec, str) or not isinstance(sizes, Mapping):
        raise ValueError(f"spec={spec!r}, sizes={sizes!r}: write them like 'bd,df->bf', {{'b': 8, 'd': 16, 'f': 32}}")
    terms, letters = _parse(spec, sizes)
    if math is not None:
        units.dtype_name(math)
    operands, output = terms[:-1], terms[-1]
    kinds = list(dtypes) if isinstance(dtypes, Sequence) and not isinstance(dtypes, str) else [dtypes] * len(terms)
    if len(kinds) != len(terms):
        raise ValueError(f"dtypes has {len(kinds)} entries; {spec!r} needs one, or {len(terms)} (operands, then output)")
    checked = {letter: units.size(f"sizes[{letter!r}]", sizes[letter]) for letter in letters}

    def elements(term: str) -> int:
        count = _product(checked[letter] for letter in term)
        units.number(f"elements of {term!r}", count)
        return count

    moved = sum(elements(term) * units.itemsize(kind) for term, kind in zip(terms, kinds, strict=True))
    everything, contracted = elements("".join(letters)), set("".join(operands)) - set(output)
    if len(operands) == 2 and contracted:
        dtype = _math_dtype(*kinds[:2]) if math is None else units.dtype_name(math)
        return Cost(flops={dtype: FLOPS_PER_MAC * everything}, hbm_bytes=moved)
    return Cost(vpu_flops=everything if len(operands) == 2 else everything - elements(output), hbm_bytes=moved)


def ridge(
    chip: Chip, dtype: object = "bf16", *, level: Level = "hbm", ici: Literal["achievable", "peak"] = "achievable"
) -> float:
    """The chip's critical intensity: FLOPs per byte above which arithmetic in `dtype` binds and not the bytes of `level`.

    Args:
        chip: supplies peak and bandwidth.
        dtype: dtype of the arithmetic.
        level: the memory or network that supplies the bytes; "ici" is one link, one way.
        ici: which ICI figure, as in `bound`.

    Derived in chapters/01-roofline.md.
    """
    _check(chip)
    return chip.flops_per_s(dtype) / _bytes_per_s(chip, _level(level), ici)


def attainable_flops_per_s(intensity: float, chip: Chip, dtype: object = "bf16", *, level: Level = "hbm") -> float:
    """The roofline itself: min(peak FLOP/s, intensity × bandwidth), for full overlap.

    Args:
        intensity: FLOPs per byte of `level`.
        chip: supplies peak and bandwidth.
        dtype: dtype of the arithmetic.
        level: the memory or network that supplies the bytes.
    """
    _check(chip)
    units.number("intensity", intensity, minimum=0)
    return min(chip.flops_per_s(dtype), intensity * _bytes_per_s(chip, _level(level), "achievable"))


@dataclass(frozen=True, kw_only=True)
class CriticalBatch:
    """The number of rows m from which X[m, k] · W[k, n] is compute-bound on a chip.

    `asymptotic` lets k and n grow without limit, so only the weights' bytes count: the rule of thumb. `exact` counts all
    three arrays; None where no m is enough, because X and Y alone take longer than the arithmetic.
    """

    asymptotic: float
    exact: float | None


def critical_batch(
    chip: Chip,
    *,
    k: int,
    n: int,
    x: object = "bf16",
    w: object = "bf16",
    out: object | None = None,
    math: object | None = None,
    level: Level = "hbm",
) -> CriticalBatch:
    """From how many rows m is X[m, k] · W[k, n] → Y[m, n] compute-bound?

    Args:
        chip: supplies peak and bandwidth.
        k: the contracted dimension.
        n: columns of W.
        x: dtype of X.
        w: dtype of W.
        out: dtype of Y, as in `matmul`.
        math: dtype of the arithmetic, as in `matmul`.
        level: where the three arrays come from: "hbm", or "vmem" when they are already on chip.

    Returns:
        Rows as a float (round up for a count).

    Source: solving 2mkn/C = (mk·x + kn·w + mn·out)/W for m. Derived in chapters/01-roofline.md.
    """
    k, n = units.size("k", k), units.size("n", n)
    dtype = _math_dtype(x, w) if math is None else units.dtype_name(math)
    critical = ridge(chip, dtype, level=level)
    w_bytes, out_bytes = units.itemsize(w), units.itemsize(x if out is None else out)
    spare = FLOPS_PER_MAC * k * n / critical - (k * units.itemsize(x) + n * out_bytes)  # bytes a row could still move
    return CriticalBatch(asymptotic=w_bytes * critical / FLOPS_PER_MAC, exact=k * n * w_bytes / spare if spare > 0 else None)


def _check(chip: Chip) -> None:
    if not isinstance(chip, Chip):
        raise ValueError(f"chip={chip!r} is not a Chip; look it up with hardware.chip(...)")


def _bytes_per_s(chip: Chip, level: Level, ici: str) -> float:
    if ici not in ("achievable", "peak"):
        raise ValueError(f"ici={ici!r} is neither 'achievable' nor 'peak'")
    if level == "ici":
        if chip.kind == "gpu":
            return chip.fabric_bytes_per_s
        return chip.ici_link_bytes_per_s if ici == "achievable" else chip.ici_link_peak_bytes_per_s
    return float(getattr(chip, f"{level}_bytes_per_s"))


def _level(level: str) -> Level:
    for known in LEVELS:
        if level == known:
            return known
    raise ValueError(f"level={level!r} is unknown; {units.near(str(level), LEVELS)}")


def _math_dtype(x: object, w: object) -> str:
    names = [units.dtype_name(x), units.dtype_name(w)]
    return max(names, key=lambda name: (not name.startswith("int"), units.ITEMSIZE[name]))


def _parse(spec: str, sizes: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Split "ab,bc->ac" into its terms (operands, then output) and its distinct letters, checking both."""
    left, arrow, output = spec.replace(" ", "").partition("->")
    terms = [*left.split(","), output]
    letters = sorted(set("".join(terms)))
    if not arrow:
        raise ValueError(f"spec={spec!r} has no output; write it out, like 'bd,df->bf'")
    if len(terms) > 3:
        raise ValueError(f"spec={spec!r} has {len(terms) - 1} operands; their order decides the cost, so chain einsums of two")
    if not all(letter.isalpha() for letter in letters):
        raise ValueError(f"spec={spec!r} may hold letters, ',' and '->' only")
    if any(len(set(term)) < len(term) for term in terms):
        raise ValueError(f"spec={spec!r} repeats a letter within one array; diagonals are not priced")
    if lone := [a for a in letters if a not in output and len(terms) == 3 and "".join(terms[:-1]).count(a) == 1]:
        raise ValueError(
            f"spec={spec!r} sums over {lone[0]!r}, which one operand alone has; sum it first, in an einsum of its own"
        )
    if unknown := set(output) - set("".join(terms[:-1])):
        raise ValueError(f"spec={spec!r} has output letter {min(unknown)!r} that no operand has")
    if missing := set(letters) - set(sizes):
        raise ValueError(f"sizes lacks {min(missing)!r}, which {spec!r} uses")
    if extra := set(sizes) - set(letters):
        raise ValueError(f"sizes has {min(extra)!r}, which {spec!r} does not use")
    return terms, letters


def _product(values: Iterable[int]) -> int:
    return math.prod(values)  # its own function, because `math` is a parameter above
