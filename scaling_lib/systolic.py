"""The matrix unit (MXU) as a systolic array, cycle by cycle: X[m, k] · W[k, n] on side × side cells.

A cell keeps one weight. In each cycle it multiplies its weight by the activation that comes from the left, adds the partial
sum that comes from above, and hands the activation to the right and the sum down. Row i of the array starts i cycles late, so
that sums and activations meet: work crosses the array as a diagonal wave. Larger matrices go through tile by tile.

NB: this is the textbook's array. The timing of real TPUs is not public: they take rows in groups of 8, split a matmul over
several units, and add up the tiles of one output behind the array, which costs no cycles here.
Derived in chapters/02-tpus.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scaling_lib import units
from scaling_lib.hardware import Chip
from scaling_lib.tiling import SUBLANES

Matrix = Sequence[Sequence[float]]
Place = tuple[int, int]
Entry = tuple[int, int]


@dataclass(frozen=True)
class Cycle:
    """What the cells do in one cycle, by (row, column); a cell in none of the sets is idle and has no weight yet.

    Args:
        activations: what has come into each cell from the left, by cell.
        busy: cells that multiply a number of X by a number of W.
        padding: cells that multiply too, but by a zero that only fills the tile up.
        holding: cells that multiply nothing, and by the end of the cycle have a weight.
        loading: cells that take a weight from above; with double buffers they may be busy meanwhile.
    """

    activations: Mapping[Place, float] = field(hash=False)
    busy: frozenset[Place]
    padding: frozenset[Place]
    holding: frozenset[Place]
    loading: frozenset[Place]


@dataclass(frozen=True)
class Run:
    """A matmul that went through the array.

    Args:
        side: cells along each side of the array.
        product: X · W, as the bottom of the array gave it out.
        cycles: one snapshot each, the first when the first weight comes in, the last when the last result leaves.
    """

    side: int
    product: tuple[tuple[float, ...], ...]
    cycles: tuple[Cycle, ...] = field(repr=False)

    @property
    def utilization(self) -> float:
        """Share of all cells, in all cycles, that multiply a number of X by a number of W."""
        return sum(len(cycle.busy) for cycle in self.cycles) / (len(self.cycles) * self.side**2)


@dataclass(frozen=True)
class Padded:
    """Sizes of a matmul as the MXU sees them, and how much of its work is not padding.

    Args:
        m: rows of X, rounded up to the sublanes.
        k: the contracted dimension, rounded up to the side of the MXU.
        n: columns of W, rounded up to the side of the MXU.
        useful: share of the multiply-adds that the unpadded matmul needs.
    """

    m: int
    k: int
    n: int
    useful: float


def cycles(m: int, k: int, n: int, side: int, *, double_buffered: bool = True) -> int:
    """Cycles of X[m, k] · W[k, n] on an array of side × side cells, from the first weight in to the last result out.

    The first weights take `side` cycles to load, and after its last row the array takes 2·side - 2 to drain. In between, a
    tile of W takes m cycles to stream the rows of X, and `side` to load the next weights: at the same time if
    double-buffered, else one after the other. So with double buffers, m ≥ side hides the loads.

    Args:
        m: rows of X.
        k: the contracted dimension.
        n: columns of W.
        side: cells along each side, 128 or 256 on TPUs.
        double_buffered: whether a cell can take its next weight while it works with the one before.

    Raises:
        ValueError: for a size below 1.
    """
    m, k, n, side = (units.size(name, value) for name, value in (("m", m), ("k", k), ("n", n), ("side", side)))
    tiles = math.ceil(k / side) * math.ceil(n / side)
    a_tile = max(m, side) if double_buffered else m + side
    return side + (tiles - 1) * a_tile + m + 2 * side - 2


def utilization(m: int, k: int, n: int, side: int, *, double_buffered: bool = True) -> float:
    """Useful multiply-adds over what all cells could do in the `cycles` of the matmul; arguments as there."""
    return m * k * n / (cycles(m, k, n, side, double_buffered=double_buffered) * side**2)


def padded(m: int, k: int, n: int, chip: Chip) -> Padded:
    """What X[m, k] · W[k, n] becomes on a chip's MXU: k and n rounded up to its side, m to 8 rows.

    Args:
        m: rows of X.
        k: the contracted dimension.
        n: columns of W.
        chip: supplies the side, `mxu_dim`.

    Raises:
        ValueError: for a size below 1, or a chip for which no source gives the MXU's side.

    NB: the compiler pads more in places (narrow dtypes pack 16 or 32 rows) and sometimes swaps operands to pad less.
    """
    m, k, n, side = units.size("m", m), units.size("k", k), units.size("n", n), chip.mxu_dim
    up = (_up(m, SUBLANES), _up(k, side), _up(n, side))
    return Padded(*up, useful=m * k * n / math.prod(up))


def simulate(x: Matrix, w: Matrix, side: int, *, double_buffered: bool = True) -> Run:
    """Send numbers through the array, and watch every cell in every cycle.

    Args:
        x: m rows of k numbers.
        w: k rows of n numbers.
        side: cells along each side of the array. Python takes about a second for a million of side² × cycles.
        double_buffered: as in `cycles`.

    Raises:
        ValueError: for matrices that are empty or ragged, or do not fit each other.
    """
    side = units.size("side", side)
    (m, k), (k_of_w, n) = _shape("x", x), _shape("w", w)
    if k != k_of_w:
        raise ValueError(f"x has {k} columns and w has {k_of_w} rows; they must be as many")
    tiles = [(i, j) for j in range(0, n, side) for i in range(0, k, side)]
    feed = list(_feed(len(tiles), m, side, double_buffered))
    product = [[0.0] * n for _ in range(m)]
    seen: list[Cycle] = []
    flowing: dict[Place, Entry] = {}  # the row of X, and its tile, that each cell has
    sums: dict[Place, float] = {}
    arrived: dict[Place, float] = {}  # weights as they come in; where a cell has one register, it works with these
    working: dict[Place, float] = {} if double_buffered else arrived
    for now in range(len(feed) + 2 * (side - 1)):  # until the last row has crossed the array
        from_left, from_above = flowing, sums
        flowing, sums, activations, busy = {}, {}, {}, set()
        for i, j in itertools.product(range(side), repeat=2):
            entry = from_left.get((i, j - 1)) if j else _at(feed, now - i)[0]  # row i of the array starts i cycles late
            if entry is None:
                continue
            flowing[i, j] = tile, row = entry
            top, first = tiles[tile]
            if row == 0:
                working[i, j] = arrived[i, j]
            activations[i, j] = x[row][top + i] if top + i < k else 0.0
            sums[i, j] = from_above.get((i - 1, j), 0.0) + activations[i, j] * working[i, j]
            if top + i < k and first + j < n:
                busy.add((i, j))
            if i == side - 1 and first + j < n:
                product[row][first + j] += sums[i, j]

        loading: set[Place] = set()
        for j in range(side):
            entry = _at(feed, now - j)[1]  # and column j takes its weights j cycles late
            if entry is None:
                continue
            tile, count = entry
            top, first = tiles[tile]
            for i in range(count, 0, -1):  # those that have come move down by one, and the next one comes in on top
                arrived[i, j] = arrived[i - 1, j]
            row = top + side - 1 - count
            arrived[0, j] = w[row][first + j] if row < k and first + j < n else 0.0
            loading |= {(i, j) for i in range(count + 1)}
        padding = flowing.keys() - busy
        holding = arrived.keys() - flowing.keys()
        seen.append(Cycle(activations, frozenset(busy), frozenset(padding), frozenset(holding), frozenset(loading)))
    return Run(side, tuple(map(tuple, product)), tuple(seen))


def _feed(tiles: int, m: int, side: int, double_buffered: bool) -> Iterator[tuple[Entry | None, Entry | None]]:
    """What comes in at the array's corner in each cycle: a row of X for a tile, and a row of a tile's weights, the last first.

    Both are a tile's number and a count from zero. A row needs all weights of its tile. Weights of the next tile come once
    the tile before has begun to work, out of its second registers; where there are none, once all its rows are in.
    """
    streamed = loaded = 0  # of each, over all tiles
    while streamed < tiles * m:
        row, weights = divmod(streamed, m), divmod(loaded, side)
        enters = loaded >= (row[0] + 1) * side
        next_tile, count = weights
        free = streamed + enters > (next_tile - 1) * m if double_buffered else streamed >= next_tile * m
        loads = next_tile < tiles and (count > 0 or free)
        yield row if enters else None, weights if loads else None
        streamed, loaded = streamed + enters, loaded + loads


def _at(feed: Sequence[tuple[Entry | None, Entry | None]], cycle: int) -> tuple[Entry | None, Entry | None]:
    return feed[cycle] if 0 <= cycle < len(feed) else (None, None)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _shape(name: str, matrix: Matrix) -> tuple[int, int]:
    wide = len(matrix[0]) if len(matrix) else 0
    if not wide or any(len(row) != wide for row in matrix):
        raise ValueError(f"{name} is no matrix: give rows of equal length, at least one number in each")
    return len(matrix), wide
