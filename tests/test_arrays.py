"""Notation to shardings. Meshes here are abstract or simulated; shapes are unequal so that swapped axes show."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from scaling_lib.xla import arrays

MESH = AbstractMesh((3, 5, 2), ("X", "Y", "model"))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("A[I_X, J]", P("X", None)),
        ("[I, J_Y]", P(None, "Y")),
        ("W[D_XY, F_model]", P(("X", "Y"), "model")),
        ("W[D_YX, F]", P(("Y", "X"), None)),
        ("W[D_X_model]", P(("X", "model"))),
        (" batch [ tokens_X ,heads ] ", P("X", None)),
        ("s[]", P()),
    ],
)
def test_notation_becomes_a_sharding(text, spec):
    made = arrays.sharding(MESH, text)
    assert tuple(made.spec) == tuple(jax.sharding.NamedSharding(MESH, spec).spec)


def test_axes_without_devices():
    assert dict(arrays.mesh(X=3, Y=5).shape) == {"X": 3, "Y": 5}
    with pytest.raises(ValueError, match="X=0"):
        arrays.mesh(X=0)


def test_a_spec_has_shape_dtype_and_sharding():
    made = arrays.spec(MESH, "A[I_X, J_Y]", "int8", I=21, J=35)
    assert (made.shape, made.dtype, made.sharding.shard_shape(made.shape)) == ((21, 35), jnp.int8, (7, 7))


def test_without_a_mesh_an_array_is_whole():
    made = arrays.spec(None, "A[I, J]", "f32", I=3, J=5)
    assert (made.shape, made.dtype, made.sharding) == ((3, 5), jnp.float32, None)
    with pytest.raises(ValueError, match="'X' is no axis of the mesh, which has none"):
        arrays.spec(None, "A[I_X]", I=3)


@pytest.mark.parametrize(
    ("dtype", "want"),
    [("bf16", jnp.bfloat16), ("fp8", jnp.float8_e4m3fn), (jnp.float8_e5m2, jnp.float8_e5m2), ("int4", jnp.int4)],
)
def test_dtypes_by_either_name(dtype, want):
    assert arrays.spec(MESH, "A[I]", dtype, I=3).dtype == jnp.dtype(want)


@pytest.mark.parametrize(
    ("text", "sizes", "words"),
    [
        ("A[I_X, J", {}, "does not read as notation"),
        ("A[I_X; J]", {}, "'I_X; J' is no dimension"),
        ("A[I_Z]", {"I": 3}, r"'Z' is no axis of the mesh, which has X=3, Y=5, model=2"),
        ("A[I_X, J_X]", {"I": 3, "J": 3}, "uses mesh axis X twice"),
        ("A[I]{U_X}", {"I": 3}, "holds partial sums"),
        ("A[I, I]", {"I": 3}, "names dimension I twice"),
        ("A[I_X, J]", {"I": 3}, "give a size for J"),
        ("A[I_X]", {"I": 3, "K": 5}, "has no dimension K"),
        ("A[I_XY]", {"I": 21}, r"I=21 is no multiple of X·Y=15; 30 would do"),
        ("A[I_X]", {"I": 0}, "I=0"),
    ],
)
def test_bad_notation_says_what_is_wrong(text, sizes, words):
    with pytest.raises(ValueError, match=words):
        arrays.spec(MESH, text, **sizes)


def test_a_product_sums_over_what_the_result_lacks():
    a, b = np.arange(21.0).reshape(7, 3), np.arange(15.0).reshape(3, 5)
    dims = [arrays.dimensions(text) for text in ("A[rows_X, inner]", "B[inner, cols_YX]", "C[cols, rows]")]
    assert dims == [("rows", "inner"), ("inner", "cols"), ("cols", "rows")]
    np.testing.assert_allclose(arrays.product(dims[:2], dims[2])(a, b), (a @ b).T)


def test_values_are_placed_where_the_notation_says():
    code = """
import numpy as np
from scaling_lib.xla import arrays, simulate, tpu
mesh = simulate.mesh(X=3, Y=2)
x = arrays.place(mesh, "A[I_Y, J_X]", np.arange(60.0, dtype=np.float32).reshape(4, 15))
print(x.addressable_shards[0].data.shape, float(x.sum()), len(x.sharding.device_set))
try:
    arrays.place(mesh, "A[I_Y, J_X]", np.zeros((4, 16)))
except ValueError as error:
    print(error)
try:
    arrays.place(mesh, "A[I_Y]", np.zeros((4, 15)))
except ValueError as error:
    print(error)
for nowhere in (arrays.mesh(X=2, Y=2), tpu.mesh("v5e:2x2", X=2, Y=2)):
    try:
        arrays.place(nowhere, "A[I_Y]", np.zeros(4))
    except ValueError as error:
        print(error)
program = simulate.compile(lambda x: x + 1, arrays.spec(nowhere, "A[I_Y]", "f32", I=4))  # moves to pretend devices
print(program.target, program.memory.arguments_bytes)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    assert out.splitlines() == [
        "(2, 5) 1770.0 6",
        "A[I_Y, J_X]: J=16 is no multiple of X=3; 18 would do, with 12.5 % more elements",
        "'A[I_Y]' has 1 dimensions, the array 2: (4, 15)",
        *["mesh={'X': 2, 'Y': 2} has no devices that hold values; make one with simulate.mesh"] * 2,
        "cpu:4 8.0",
    ]
