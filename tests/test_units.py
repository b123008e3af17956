import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import units


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bf16", 2),
        ("bfloat16", 2),
        ("float32", 4),
        ("int8", 1),
        ("s8", 1),
        ("int4", 0.5),
        ("float8_e4m3fn", 1),
        ("fp4", 0.5),
    ],
)
def test_itemsize_knows_the_names_people_and_jax_use(dtype, expected):
    assert units.itemsize(dtype) == expected


def test_itemsize_takes_numpy_and_jax_dtypes():
    import jax.numpy as jnp
    import numpy as np

    assert [units.itemsize(d) for d in (np.float32, np.dtype("int8"), jnp.bfloat16, jnp.dtype("float16"))] == [
        4,
        1,
        2,
        2,
    ]


def test_unknown_dtype_offers_near_names():
    with pytest.raises(ValueError, match=r"dtype='blfoat16'.*did you mean 'bfloat16'"):
        units.itemsize("blfoat16")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.97e14, "FLOP/s", "197 TFLOP/s"), (8.19e11, "B/s", "819 GB/s"), (3.2e-5, "s", "32 µs"), (0.0123, "s", "12.3 ms"),
        (16 * 2**30, "GiB", "16 GiB"), (0, "B", "0 B"),
        (0, "s", "0 s"), (999.9e9, "FLOPs", "1 TFLOPs"), (240.2, "FLOPs/byte", "240 FLOPs/byte"),
        (2.5e-10, "s", "0.25 ns"), (-1.5e9, "B", "-1.5 GB"), (1234567, "tokens", "1,230,000 tokens"), (7200, "s", "7,200 s"),
    ],
)  # fmt: skip
def test_human_writes_numbers_as_people_do(value, unit, text):
    assert units.human(value, unit) == text


@given(st.floats(1e-9, 1e18), st.integers(1, 6))
def test_human_keeps_the_value_to_its_digits(value, digits):
    number, prefix = units.human(value, "B", digits).split(" ")
    scale = dict((p + "B", s) for s, p in units._DECIMAL)[prefix]
    assert math.isclose(float(number.replace(",", "")) * scale, value, rel_tol=0.5 * 10.0 ** (1 - digits) * 1.0001)


@pytest.mark.parametrize("bad", [0, -3, 2.5, math.nan, math.inf, "8", True, None, 10**16, 10**400])
def test_size_refuses_what_is_no_array_dimension(bad):
    with pytest.raises(ValueError, match=r"^rows"):
        units.size("rows", bad)


def test_size_takes_whole_floats_and_numpy_integers():
    import numpy as np

    assert units.size("m", 8.0) == 8
    assert type(units.size("m", np.int32(8))) is int


def test_sizes_agree_with_those_of_jax():
    import jax.numpy as jnp

    bits_are_packed = {"fp4", "int4"}  # JAX stores these in a byte each; on the wire and in HBM two share one
    for name, nbytes in units.ITEMSIZE.items():
        for alias in [name, *(a for a, to in units._ALIASES.items() if to == name)]:
            assert units.dtype_name(alias) == name
            assert units.itemsize(alias.upper()) == nbytes
            if hasattr(jnp, alias) and name not in bits_are_packed:
                assert jnp.dtype(alias).itemsize == nbytes
    assert {n: units.itemsize(n) for n in ("f64", "fp4", "int32", "int16", "fp8")} == {
        "f64": 8, "fp4": 0.5, "int32": 4, "int16": 2, "fp8": 1,
    }  # fmt: skip


def test_aliases_mean_what_their_letters_say():
    for alias, name in units._ALIASES.items():
        digits = "".join(c for c in alias.split("_")[0] if c.isdigit())
        assert digits in ("", name.removeprefix("bf").removeprefix("fp").removeprefix("f").removeprefix("int"))
    assert units.dtype_name("half") == "f16"


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(2.5e18, "OPs", "2.5 EOPs"), (123456.0, "Hz", "123 kHz"), (0.5, "B", "0.5 B")]
)
def test_human_knows_every_prefix(value, unit, text):
    assert units.human(value, unit) == text


def test_binary_and_decimal_units_differ_by_their_factors():
    assert (units.KIB, units.MIB, units.GIB) == (1024, 1024**2, 1024**3)


def test_the_largest_size_is_accepted_and_one_more_is_not():
    assert units.size("m", units.MAX_SIZE) == units.MAX_SIZE == 10**15
    with pytest.raises(ValueError, match="were bytes or FLOPs meant"):
        units.size("m", units.MAX_SIZE + 1)


def test_number_refuses_bytes_and_takes_its_minimum():
    with pytest.raises(ValueError, match="x=b'8' is not a number"):
        units.number("x", b"8")
    assert units.number("x", 2, minimum=2) == 2


def test_up_to_three_near_names_are_offered():
    assert units.near("int", ["int4", "int8", "int16", "zzz"]).count(" or ") == 2


@pytest.mark.parametrize(("value", "digits"), [(math.nan, 3), (math.inf, 3), ("8", 3), (10**400, 3), (1.0, 0), (1.0, 2.5)])
def test_human_refuses_what_it_cannot_print(value, digits):
    with pytest.raises(ValueError, match=r"^(value|digits)"):
        units.human(value, "B", digits)


def test_a_number_beyond_the_prefixes_is_written_with_its_power_of_ten():
    assert units.human(4.36e30, "s") == "4.36e+30 s"
    assert units.human(2e45, "FLOPs") == "2e+27 EFLOPs"
    assert units.human(999e12, "s") == "999,000,000,000,000 s"


@pytest.mark.parametrize("name", ["f4", "f8", "i4", "i8"])
def test_names_that_numpy_reads_otherwise_are_refused(name):
    # numpy: f4 is float32 and i8 is int64, eight times the size of fp4 and int8.
    with pytest.raises(ValueError, match=f"dtype='{name}' is unknown"):
        units.itemsize(name)


def test_of_many_names_the_first_dozen_are_listed():
    assert units.near("zzz", map(str, range(10, 50))).endswith(", 48, 49")
    assert units.near("zzz", map(str, range(10, 51))).endswith(", 20, 21, and 29 more")
