"""Pallas kernels: the numbers in JAX's TPU interpreter, and what the TPU's compiler says of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling_lib.xla import arrays, tpu
from scaling_lib.xla.pallas import matmul as kernels


def values(seed, *shape, dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


A, B, BIAS = values(0, 3 * 8, 5 * 128), values(1, 5 * 128, 7 * 128), values(2, 7 * 128)


@pytest.mark.parametrize("tiles", [(8, 128, 128), (24, 640, 896)])
def test_a_tiled_matmul_is_the_matmul(tiles):
    np.testing.assert_allclose(kernels.matmul(A, B, tiles=tiles, interpret=True), A @ B, atol=2e-4)


def test_a_fused_matmul_adds_the_bias_and_activates_once():
    found = kernels.fused(A, B, BIAS, activation=jax.nn.gelu, tiles=(8, 128, 128), interpret=True)
    np.testing.assert_allclose(found, jax.nn.gelu(A @ B + BIAS), atol=2e-4)


@pytest.mark.parametrize("slice", ["v5e:1x1", "v5p:1x1x1"])
def test_both_kernels_compile_for_a_tpu(slice):
    a, b = arrays.spec(None, "A[I, J]", I=3 * 256, J=5 * 256), arrays.spec(None, "B[J, K]", J=5 * 256, K=7 * 256)
    bias = arrays.spec(None, "C[K]", K=7 * 256)
    for kernel, given in ((kernels.matmul, (a, b)), (kernels.fused, (a, b, bias))):
        program = tpu.compile(partial(kernel, tiles=(256, 256, 256)), *given, slice=slice, name="kernel")
        assert list(program.code.kernels.values()) == [1]
        assert program.matmuls == ()


def test_the_vmem_of_tiles_is_counted_by_hand():
    assert kernels.vmem_bytes((3, 5, 7)) == 2 * 2 * (15 + 35 + 21) + 4 * 21


def test_shapes_and_tiles_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="give .I, J. and .J, K. of one dtype"):
        kernels.matmul(A, A)
    with pytest.raises(ValueError, match=r"do not divide I, J, K = \(24, 640, 896\)"):
        kernels.matmul(A, B, tiles=(16, 128, 128))
    with pytest.raises(ValueError, match="one number for each column of b"):
        kernels.fused(A, B, BIAS[1:])
