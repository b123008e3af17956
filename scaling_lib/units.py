"""Units: how many bytes a number takes, and how numbers are printed.

The library computes in plain SI floats with the unit in the name (`_bytes`, `_s`, `_flops_per_s`);
decimal prefixes are for rates and sizes, `GIB` is for memory that a vendor states in GiB.
Notation: chapters/appendix-notation.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

KIB, MIB, GIB = 2**10, 2**20, 2**30

MAX_SIZE = 10**15
"""Largest accepted array dimension. No array has one this large; bytes or FLOPs passed as a size do."""

ITEMSIZE: Mapping[str, float] = MappingProxyType(
    {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "fp8": 1, "fp4": 0.5, "int32": 4, "int16": 2, "int8": 1, "int4": 0.5}
)
"""Bytes one element takes, by canonical dtype name."""

_ALIASES = {
    "float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "half": "f16",
    "float8": "fp8", "float8_e4m3": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "float4": "fp4", "float4_e2m1fn": "fp4",
    "s32": "int32", "s16": "int16", "s8": "int8", "s4": "int4",
}  # fmt: skip

_DECIMAL = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_PREFIXED = {"B", "B/s", "FLOPs", "FLOP/s", "OPs", "OP/s", "Hz"}


def dtype_name(dtype: object) -> str:
    """The canonical name of a dtype: "bfloat16", `numpy.dtype("float32")` and `jnp.int8` all resolve.

    Args:
        dtype: a name, or anything with a `name` or `__name__` that is one.

    Raises:
        ValueError: for a dtype the library has no size for; near names are offered.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    key = str(name).lower()
    key = _ALIASES.get(key, key)
    if key not in ITEMSIZE:
        raise ValueError(f"dtype={dtype!r} is unknown; {near(key, [*ITEMSIZE, *_ALIASES])}")
    return key


def itemsize(dtype: object) -> float:
    """Bytes one element of `dtype` takes: 2 for "bf16", 0.5 for "int4". Packed; scales of quantized blocks are left out."""
    return ITEMSIZE[dtype_name(dtype)]


def rate_unit(dtype: object) -> str:
    """What a rate of arithmetic in `dtype` is called: "FLOP/s", or "OP/s" for integers."""
    return "OP/s" if dtype_name(dtype).startswith("int") else "FLOP/s"


def human(value: float, unit: str = "", digits: int = 3) -> str:
    """A number as people write it: `human(1.97e14, "FLOP/s")` is "197 TFLOP/s", `human(3.2e-5, "s")` is "32 µs".

    Args:
        value: in base units (bytes, seconds, FLOPs); negative and zero are fine.
        unit: "B", "B/s", "FLOPs", "FLOP/s", "OP/s", "Hz", "s", "GiB" (value still in bytes); other text gets no prefix.
        digits: significant digits.

    Raises:
        ValueError: for a value that is not a finite number, or digits that are no whole number of at least 1.
    """
    value, digits = number("value", value), size("digits", digits)
    if unit == "GiB":
        return f"{_significant(value / GIB, digits)} GiB"
    steps = _SMALL if unit == "s" else _DECIMAL if unit in _PREFIXED else ((1.0, ""),)
    # Compare after rounding, so that 999.9e9 becomes 1 T and not 1000 G.
    rounded = abs(float(f"{value:.{digits}g}"))
    scale, prefix = next((step for step in steps if rounded >= step[0]), steps[-1]) if value else (1.0, "")
    return f"{_significant(value / scale, digits)} {prefix}{unit}".rstrip()


def _significant(value: float, digits: int) -> str:
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) >= 1e15:  # beyond the prefixes, or too long to read
        return f"{rounded:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    text = f"{rounded:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(name: str, value: object) -> int:
    """`value` as a checked array dimension.

    Raises:
        ValueError: unless `value` is a whole number from 1 to `MAX_SIZE`; names the argument and what would do.
    """
    whole = number(name, value)
    if whole != int(whole) or whole < 1:
        raise ValueError(f"{name}={value!r} is not a size; give a whole number of at least 1")
    if whole > MAX_SIZE:
        raise ValueError(f"{name}={value!r} is larger than any array dimension ({MAX_SIZE:.0e}); were bytes or FLOPs meant?")
    return int(value)  # type: ignore[call-overload, no-any-return]  # number() has refused what int() cannot take


def number(name: str, value: object, *, minimum: float | None = None) -> float:
    """`value` as a finite float, at least `minimum` where one is given.

    Raises:
        ValueError: for text, booleans, NaN, infinities, or a value below `minimum`; names the argument.
    """
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is not a number") from None
    except OverflowError:
        raise ValueError(f"{name} is an integer too large for a float; were units mixed up?") from None
    if not math.isfinite(result):
        raise ValueError(f"{name}={value!r} is not finite; give an ordinary number")
    if minimum is not None and result < minimum:
        raise ValueError(f"{name}={value!r} is too small; give a number of at least {minimum:g}")
    return result


def near(name: str, known: Iterable[str]) -> str:
    """Words for an error message: the names in `known` close to `name`, or all of them where none is close.

    Of more than forty, the first dozen stand for all.
    """
    import difflib  # only errors need it

    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known: {', '.join(names if len(names) <= 40 else [*names[:12], f'and {len(names) - 12} more'])}"
