"""Pallas kernels: the numbers in JAX's TPU interpreter, and what the TPU's compiler says of them."""

import itertools
import json
import re
from functools import partial

import jax
import numpy as np
import pytest

from scaling_lib.xla import arrays, tpu
from scaling_lib.xla.pallas import matmul as kernels


def values(seed, *shape, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


A, B, BIAS = values(0, 2 * 8, 3 * 128), values(1, 3 * 128, 256), values(2, 256)


@pytest.mark.parametrize("tiles", [(8, 128, 128), (16, 384, 256)])
def test_a_tiled_matmul_is_the_matmul(tiles):
    np.testing.assert_allclose(kernels.matmul(A, B, tiles=tiles, interpret=True), A @ B, atol=2e-4)


def test_a_fused_matmul_adds_the_bias_and_activates_once():
    found = kernels.fused(A, B, BIAS, activation=jax.nn.gelu, tiles=(16, 128, 128), interpret=True)
    np.testing.assert_allclose(found, jax.nn.gelu(A @ B + BIAS), atol=2e-4)


def test_a_matmul_of_bf16_sums_in_float32():
    a, b = A.astype("bfloat16"), B.astype("bfloat16")
    found = kernels.matmul(a, b, tiles=(16, 128, 256), interpret=True)
    assert found.dtype == "bfloat16"
    exact = a.astype("float32") @ b.astype("float32")
    np.testing.assert_allclose(found.astype("float32"), exact, rtol=2**-8, atol=1e-5)  # rounded once


def specs(I, J, K, dtype="bf16"):  # noqa: E741
    return arrays.spec(None, "A[I, J]", dtype, I=I, J=J), arrays.spec(None, "B[J, K]", dtype, J=J, K=K)


def of_kernel(program):
    """Of a program's one kernel: bytes of VMEM, and its cost as XLA has it."""
    (line,) = (line for line in program.text.splitlines() if '"tpu_custom_call"' in line)
    (used,) = json.loads(re.search(r'"used_scoped_memory_configs":(\[.*?\])', line)[1])
    cost = json.loads(re.search(r'"cost_estimate":(\{.*?\})', line)[1])
    assert used["memory_space"] == "1"
    return int(used["size"]), {name: int(value) for name, value in cost.items()}


def walked(sizes, tiles):
    """Numbers read and written by a pipeline that walks over the grid and fetches a tile where it differs from the last."""
    (I, J, K), (i, j, k) = sizes, tiles  # noqa: E741
    grid = list(itertools.product(range(I // i), range(K // k), range(J // j)))
    changes = {name: 0 for name in "abc"}
    before = {}
    for row, column, step in grid:
        for name, block in {"a": (row, step), "b": (step, column), "c": (row, column)}.items():
            changes[name] += before.get(name) != block
            before[name] = block
    return changes["a"] * i * j + changes["b"] * j * k + changes["c"] * i * k


@pytest.mark.parametrize("tiles", [(3, 5, 7), (3, 15, 7), (3, 15, 21), (9, 5, 21), (9, 15, 7), (3, 5, 21)])
def test_bytes_from_hbm_are_those_of_a_walk_over_the_grid(tiles):
    assert kernels.hbm_bytes((9, 15, 21), tiles) == 2 * walked((9, 15, 21), tiles)


def test_the_vmem_of_tiles_is_counted_by_hand():
    assert kernels.vmem_bytes((3, 5, 7)) == 2 * 2 * (15 + 35 + 21) + 4 * 21


@pytest.mark.parametrize("slice", ["v5e:1x1", "v5p:1x1x1"])
def test_both_kernels_compile_for_a_tpu_and_take_the_vmem_that_is_counted(slice):
    a, b = specs(3 * 256, 5 * 256, 7 * 256)
    bias = arrays.spec(None, "C[K]", K=7 * 256)
    for kernel, given in ((kernels.matmul, (a, b)), (kernels.fused, (a, b, bias))):
        program = tpu.compile(partial(kernel, tiles=(256, 256, 256)), *given, slice=slice, name="kernel")
        assert list(program.code.kernels.values()) == [1]
        assert program.matmuls == ()
        used, cost = of_kernel(program)
        bias_bytes = 2 * 2 * 256 * 2 * len(given[2:])  # padded to two rows
        assert used - kernels.vmem_bytes((256, 256, 256)) in (0, bias_bytes)
        assert cost["flops"] == 2 * (3 * 5 * 7) * 256**3
        assert cost["bytes_accessed"] == 2 * walked((3, 5, 7), (1, 1, 1)) * 256**2


@pytest.mark.slow
@pytest.mark.parametrize(("tiles", "dtype"), [((512, 512, 512), "bf16"), ((768, 1024, 1024), "bf16"), ((512, 512, 1024), "f32")])
def test_large_tiles_take_a_little_more_vmem_than_is_counted(tiles, dtype):
    i, j, k = tiles
    used, _ = of_kernel(tpu.compile(partial(kernels.matmul, tiles=tiles), *specs(2 * i, 3 * j, 2 * k, dtype), slice="v5e:1x1"))
    assert kernels.vmem_bytes(tiles, dtype) <= used <= 1.15 * kernels.vmem_bytes(tiles, dtype)


@pytest.mark.slow
def test_the_compiler_says_how_much_vmem_tiles_take_that_come_too_near():
    tiles = (1024, 1024, 1024)
    assert kernels.vmem_bytes(tiles) == 16 * 2**20
    with pytest.raises(ValueError, match=r"takes 1\d\.\d+MiB of VMEM and has 16\.00MiB; give it smaller blocks"):
        tpu.compile(partial(kernels.matmul, tiles=tiles), *specs(2048, 2048, 2048), slice="v5e:1x1")


@pytest.mark.slow
def test_with_more_room_the_compiler_takes_larger_tiles():
    tiles, more = (1024, 1024, 1024), {"xla_tpu_scoped_vmem_limit_kib": str(20 * 2**10)}
    used, _ = of_kernel(
        tpu.compile(partial(kernels.matmul, tiles=tiles), *specs(2048, 2048, 2048), slice="v5e:1x1", options=more)
    )
    assert kernels.vmem_bytes(tiles) < used <= 1.15 * kernels.vmem_bytes(tiles)


def test_tiles_that_are_too_large_are_refused_before_anything_compiles():
    a, b = specs(2 * 8192, 2 * 2048, 2 * 4096)
    with pytest.raises(
        ValueError, match=r"tiles=\(8192, 2048, 4096\) need 352 MiB of VMEM, and no TPU has more than 128 MiB a core"
    ):
        jax.eval_shape(partial(kernels.matmul, tiles=(8192, 2048, 4096)), a, b)


def test_shapes_and_tiles_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"give \[I, J\] and \[J, K\] of one dtype"):
        kernels.matmul(A, A)
    with pytest.raises(ValueError, match=r"do not divide I, J, K = \(16, 384, 256\)"):
        kernels.matmul(A, B, tiles=(16, 256, 128))
    with pytest.raises(ValueError, match="one number for each column of b"):
        kernels.fused(A, B, BIAS[1:])
