"""A tiled matmul as a Pallas kernel, and one with bias and activation fused in.

A is [I, J], B is [J, K]. The grid goes over tiles of I, of K and, fastest, of J. While the matrix unit works on one tile, the
next ones are on their way from HBM: every tile has two places in VMEM. Sums stay there, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from scaling_lib import hardware, units

Tiles = tuple[int, int, int]
Finish = Callable[..., jax.Array]
TILES: Tiles = (512, 512, 512)
"""Rows of A, numbers summed over, and columns of B that a tile has, unless the arrays have fewer."""


def matmul(a: jax.Array, b: jax.Array, *, tiles: Tiles = TILES, interpret: bool = False) -> jax.Array:
    """A · B, tile by tile.

    Args:
        a: [I, J].
        b: [J, K], of the same dtype.
        tiles: of I, J and K. TPUs want multiples of 8, 128 and 128, or whole dimensions.
        interpret: run in JAX's TPU interpreter, on any device and slowly; else for TPUs alone.

    Returns:
        [I, K], in the operands' dtype; summed in float32.

    Raises:
        ValueError: for shapes that do not multiply, other dtypes, tiles that do not divide them, or tiles whose `vmem_bytes` no
            TPU has: the compiler worked on such for over 100 s without a word.

    NB: a kernel has 16 MiB of VMEM on v5e and v5p, unless the compiler's option "xla_tpu_scoped_vmem_limit_kib" gives it more.
    The compiler was seen to take up to 15 % more than `vmem_bytes`. It refuses what is over the limit, large tiles slowly.
    """
    return _tiled(lambda total: total, a, b, (), tiles, interpret)


def fused(
    a: jax.Array,
    b: jax.Array,
    bias: jax.Array,
    *,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.silu,
    tiles: Tiles = TILES,
    interpret: bool = False,
) -> jax.Array:
    """activation(A · B + bias), where the product never goes to HBM.

    Args:
        a: as of `matmul`.
        b: as of `matmul`.
        bias: [K].
        activation: of each number, in float32.
        tiles: as of `matmul`.
        interpret: as of `matmul`.

    Returns:
        [I, K], in the operands' dtype.

    Raises:
        ValueError: as of `matmul`, and for a bias that is not [K].
    """
    if bias.shape != b.shape[1:]:
        raise ValueError(f"bias has shape {bias.shape}, b {b.shape}; give one number for each column of b")
    return _tiled(lambda total, bias: activation(total + bias.astype(jnp.float32)), a, b, (bias[None],), tiles, interpret)


def vmem_bytes(tiles: Tiles, dtype: object = "bf16") -> float:
    """Bytes of VMEM that a `matmul` takes at the least: two places a tile of A, B and the result, one for sums.

    Args:
        tiles: of I, J and K.
        dtype: of operands and result.
    """
    i, j, k = (units.size(f"tiles[{at}]", size) for at, size in enumerate(tiles))
    return 2 * (i * j + j * k + i * k) * units.itemsize(dtype) + 4 * i * k


def hbm_bytes(sizes: Tiles, tiles: Tiles, dtype: object = "bf16") -> float:
    """Bytes that a `matmul` reads from HBM and writes to it.

    A is read once for each tile of K, B once for each tile of I, and the result is written once. A tile that the next step needs
    again is not read again: with whole rows in a tile, A is read once, and with whole columns of B besides, so is B.

    Args:
        sizes: I, J and K, which the tiles divide.
        tiles: of I, J and K.
        dtype: of operands and result.
    """
    I, J, K = sizes  # noqa: E741
    i, j, k = (min(tile, size) for tile, size in zip(tiles, sizes, strict=True))
    reads_a = 1 if j == J else K // k
    reads_b = 1 if j == J and k == K else I // i
    return (I * J * reads_a + J * K * reads_b + I * K) * units.itemsize(dtype)


def _largest_vmem_bytes() -> float:
    """Of one core, of any TPU in the catalog."""
    return max(chip.vmem_bytes / chip.cores for chip in hardware.CHIPS.values() if "vmem_bytes" in chip.figures)


def _tiled(finish: Finish, a: jax.Array, b: jax.Array, rows: tuple[jax.Array, ...], tiles: Tiles, interpret: bool) -> jax.Array:
    """finish(A · B, *rows) with rows [1, K]."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"a is {a.dtype}{a.shape} and b {b.dtype}{b.shape}; give [I, J] and [J, K] of one dtype")
    sizes = I, J, K = *a.shape, b.shape[1]  # noqa: E741
    i, j, k = (min(units.size(f"tiles[{at}]", tile), sizes[at]) for at, tile in enumerate(tiles))
    if I % i or J % j or K % k:
        raise ValueError(f"tiles={tiles} do not divide I, J, K = {sizes}; pad the arrays, or give tiles that do")
    dtype = a.dtype.name
    if (needs := vmem_bytes((i, j, k), dtype)) > (largest := _largest_vmem_bytes()):
        need, have = (f"{size / units.MIB:.3g} MiB" for size in (needs, largest))
        raise ValueError(f"tiles={tiles} need {need} of VMEM, and no TPU has more than {have} a core; give smaller ones")
    call: Any = pl.pallas_call
    spec: Any = jax.ShapeDtypeStruct
    found: jax.Array = call(
        partial(_kernel, finish),
        out_shape=spec((I, K), a.dtype),
        grid=(I // i, K // k, J // j),
        in_specs=[
            pl.BlockSpec((i, j), lambda row, column, step: (row, step)),
            pl.BlockSpec((j, k), lambda row, column, step: (step, column)),
            *(pl.BlockSpec((1, k), lambda row, column, step: (0, column)) for _ in rows),
        ],
        out_specs=pl.BlockSpec((i, k), lambda row, column, step: (row, column)),
        scratch_shapes=[pltpu.VMEM((i, k), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * math.prod(sizes), bytes_accessed=int(hbm_bytes((I, J, K), (i, j, k), dtype)), transcendentals=0
        ),
        interpret=pltpu.InterpretParams() if interpret else False,
    )(a, b, *rows)  # fmt: skip
    return found


def _kernel(finish: Finish, a: Any, b: Any, *others: Any) -> None:
    """One step of the grid: adds a tile's product to the sums; the last of a tile writes them out."""
    *rows, out, total = others
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    total[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

    @pl.when(step == pl.num_programs(2) - 1)
    def _() -> None:
        out[...] = finish(total[...], *(row[...] for row in rows)).astype(out.dtype)
