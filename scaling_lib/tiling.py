"""How a TPU lays an array out in memory: in tiles of rows and lanes, and with what padding.

The vector unit works on registers of 8 sublanes × 128 lanes of 32 bits, so arrays lie in HBM in tiles of that form. The last
dimension in memory, the minor one, runs along the 128 lanes; the one before it along the rows. What does not fill a tile is
padding, which is stored, copied and multiplied like the rest. Numbers of fewer than 32 bits share a 32-bit word with those of
the rows below: bf16 in pairs.

The rules here are not documented: they were found by compiling, and held for the arguments of every program tried, on five TPU
generations. Derived in chapters/09-profiling.md.

NB: inside a program the compiler may leave elements of one byte or less in tiles of 8 rows where `layout` says 32 or 64. That
changes no size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from scaling_lib import hardware, units
from scaling_lib.hardware import Chip

SUBLANES, LANES = 8, 128
"""Rows and columns of a vector register, which TPUs handle together."""
WORD_BYTES = 4
"""A register's element."""
MOST_DIMENSIONS = 8

_HLO = {
    "f64": "f64", "f32": "f32", "bf16": "bf16", "f16": "f16", "fp8": "f8e4m3fn", "fp4": "f4e2m1fn",
    "int32": "s32", "int16": "s16", "int8": "s8", "int4": "s4",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """An array as it lies in a TPU's memory. `str` writes it as HLO does: "bf16[300,100]{1,0:T(8,128)(2,1)}".

    Args:
        shape: sizes as the program has them.
        dtype: of the elements.
        order: dimensions from the major one, whose neighbors lie farthest apart, to the minor one, which runs along the lanes.
        tile: rows and lanes of a tile; of a one-dimensional array, its elements.
    """

    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def packing(self) -> int:
        """Elements in a word of 32 bits, one below the other: 2 for bf16."""
        return _packing(self.dtype)

    @property
    def padded(self) -> tuple[int, ...]:
        """Sizes rounded up to whole tiles, dimension by dimension."""
        sizes = list(self.shape)
        for dimension, side in zip(reversed(self.order), reversed(self.tile), strict=False):
            sizes[dimension] = _up(sizes[dimension], side)
        return tuple(sizes)

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        return math.prod(self.padded) // math.prod(self.tile)

    @property
    def logical_bytes(self) -> float:
        """Bytes of the elements alone."""
        return math.prod(self.shape) * units.itemsize(self.dtype)

    @property
    def bytes(self) -> float:
        """Bytes of all tiles: what the array takes in memory, and what a copy of it moves."""
        return math.prod(self.padded) * units.itemsize(self.dtype)

    @property
    def wasted(self) -> float:
        """Share of the memory that is padding."""
        return 1 - math.prod(self.shape) / math.prod(self.padded)

    def __str__(self) -> str:
        sizes, order = ",".join(map(str, self.shape)), ",".join(map(str, reversed(self.order)))
        tile = f"T({','.join(map(str, self.tile))})"
        if self.packing > 1:
            tile += f"({LANES})" * (len(self.tile) == 1) + f"({self.packing},1)"
        bits = round(8 * units.itemsize(self.dtype))
        return f"{_HLO[self.dtype]}[{sizes}]{{{order}:{tile}{f'E({bits})' * (bits < 8)}}}"


def layout(
    shape: Sequence[int], dtype: object = "bf16", *, chip: Chip | str = "v5e", order: Sequence[int] | None = None
) -> Layout:
    """How an argument of a program lies in a TPU's memory.

    A tile has 128 lanes. Its rows are the smallest power of two that holds the dimension along them, at least the elements in
    a word and at most 8. Where the rows fill whole tiles of 8 words, elements of one byte or less take such larger tiles:
    32 rows of int8, 64 of int4. The tile of one-dimensional arrays is the smallest power of two that holds them, from 128
    words to 1024 elements.

    The compiler puts those two dimensions last that leave least padding; where several do, those that come last in the program.

    Args:
        shape: sizes of one or more dimensions.
        dtype: of the elements.
        chip: a TPU; all of the catalog do the same.
        order: dimensions from major to minor, where another one is wanted than the compiler's own for arguments: inside a
            program it takes others, as its operations like them.

    Raises:
        ValueError: for a chip that is no TPU, no dimension or too many, a size below 1, an unknown dtype, or an order that
            does not name each dimension once.
    """
    dtype, chip = units.dtype_name(dtype), hardware.chip(chip) if isinstance(chip, str) else chip
    if chip.kind != "tpu":
        raise ValueError(f"chip={chip.name!r} has no tiles: a {chip.kind.upper()} stores row after row; give a TPU, like 'v5e'")
    sizes = tuple(units.size("shape", size) for size in shape)
    if math.prod(sizes) > units.MAX_SIZE:
        raise ValueError(f"shape={sizes} has {math.prod(sizes):.0e} elements, more than any array; give smaller sizes")
    if not 1 <= len(sizes) <= MOST_DIMENSIONS:
        raise ValueError(f"shape={sizes} has {len(sizes)} dimensions; give 1 to {MOST_DIMENSIONS}")
    dimensions = tuple(range(len(sizes)))
    if order is not None:
        if sorted(order) != [*dimensions]:
            raise ValueError(f"order={tuple(order)} must name each of the dimensions {dimensions} once")
        return Layout(sizes, dtype, tuple(order), _tile(sizes, dtype, order))
    orders = [
        (*(other for other in dimensions if other not in last), *last)
        for last in itertools.permutations(dimensions, min(2, len(dimensions)))
    ]
    each = [Layout(sizes, dtype, order, _tile(sizes, dtype, order)) for order in orders]
    return min(each, key=lambda one: (one.bytes, [-place for place in reversed(one.order)]))


def _tile(shape: Sequence[int], dtype: str, order: Sequence[int]) -> tuple[int, ...]:
    packing = _packing(dtype)
    if len(shape) == 1:
        return (min(max(_power(shape[0]), LANES * packing), SUBLANES * LANES),)
    along = shape[order[-2]]
    if packing > 2 and along % (SUBLANES * packing) == 0:
        return SUBLANES * packing, LANES
    return min(max(_power(along), packing), SUBLANES), LANES


def _packing(dtype: str) -> int:
    return max(1, round(WORD_BYTES / units.itemsize(dtype)))


def _power(size: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << (size - 1).bit_length()


def _up(size: int, to: int) -> int:
    return -(-size // to) * to
