"""The roofline explorer, and "your matmul" with sizes and formats of your own: one picture, two sets of controls."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from scaling_lib import hardware, units
from scaling_lib import roofline as rl
from scaling_lib.hardware import Chip
from scaling_lib.show import svg
from scaling_lib.show.explorers.base import Explorer, View, control, dropdown, link, python, size_field, words_and_table

STORED = ("bf16", "fp8", "int8", "fp4", "int4")
"""Formats that arrays are offered in; whether a chip multiplies in them is another question."""

SIZES = tuple(2**power for power in range(8, 16))
MAX_LOG2_M = 14

_PARTS = {"mxu": "matrix unit", "hbm": "memory"}


def roofline_view(chip: str, dtype: str, log2_m: int, k: int, n: int) -> View:
    """The roofline explorer for one state: X[m, k] · W[k, n], all in one dtype.

    Args:
        chip: name of a chip.
        dtype: of all arrays and of the arithmetic.
        log2_m: m, the rows of X, as a power of two.
        k: the contracted dimension.
        n: columns of W.

    Raises:
        ValueError: for what the library refuses: an unknown chip, a dtype for which it has no peak, a size below 1.
    """
    m = 2**log2_m
    to_this = link("roofline", chip=chip, dtype=dtype, log2_m=log2_m, k=k, n=n)
    return _view(hardware.chip(chip), m, k, n, dtype, dtype, f"m = {m:,}", to_this)


def matmul_view(m: int, k: int, n: int, x: str, w: str, chip: str) -> View:
    """The "your matmul" explorer for one state: X[m, k] · W[k, n], X and W stored in dtypes of their own.

    Args:
        m: rows of X.
        k: the contracted dimension.
        n: columns of W.
        x: dtype X and Y are stored in.
        w: dtype W is stored in.
        chip: name of a chip.

    Raises:
        ValueError: for what the library refuses, such as a dtype of the arithmetic for which the chip has no peak.
    """
    to_this = link("matmul", m=m, k=k, n=n, x=x, w=w, chip=chip)
    return _view(hardware.chip(chip), m, k, n, x, w, "your matmul", to_this)


def roofline_explorer(*, chip: str = "v5e", dtype: str = "bf16", log2_m: int = 5, k: int = 8192, n: int = 8192) -> Explorer:
    """Sliders over X[m, k] · W[k, n] on a chip: the time of each part, what binds, and the point on the roofline.

    Args:
        chip: where to start; the reader chooses among all chips with a sourced peak and HBM bandwidth.
        dtype: of all arrays and of the arithmetic, among those the chip has a peak for.
        log2_m: m, the rows of X, as a power of two.
        k: the contracted dimension, a power of two.
        n: columns of W, a power of two.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    chips = _chips()
    controls = {
        "chip": dropdown("chip", [*chips]),
        "dtype": dropdown("number format", [*next(iter(chips.values())).peak_flops_per_s]),
        "log2_m": control(widgets.IntSlider, "log2 of m, rows of X", value=0, min=0, max=MAX_LOG2_M),
        "k": control(widgets.SelectionSlider, "k, contracted", options=SIZES, value=SIZES[0]),
        "n": control(widgets.SelectionSlider, "n, columns of W", options=SIZES, value=SIZES[0]),
    }
    of_chip, of_dtype = controls["chip"].widget, controls["dtype"].widget

    def offer_dtypes() -> None:
        """Offer the dtypes the chip has a peak for; keep the one chosen where it is among them."""
        offered, chosen = tuple(chips[of_chip.value].peak_flops_per_s), of_dtype.value
        if offered != tuple(of_dtype.options):
            of_dtype.options = offered
            of_dtype.value = chosen if chosen in offered else offered[0]

    controls["chip"].fill("chip", hardware.chip(chip).name)
    offer_dtypes()
    for field, value in {"dtype": units.dtype_name(dtype), "log2_m": log2_m, "k": k, "n": n}.items():
        controls[field].fill(field, str(value))
    return Explorer("roofline", controls, roofline_view, offer_dtypes)


def matmul_explorer(
    *, m: int = 32, k: int = 8192, n: int = 28672, x: str = "bf16", w: str = "int8", chip: str = "v5e"
) -> Explorer:
    """Your matmul: sizes typed in freely, formats of X and W chosen apart, on a chip.

    Args:
        m: rows of X.
        k: the contracted dimension.
        n: columns of W.
        x: dtype X and Y are stored in.
        w: dtype W is stored in.
        chip: where it runs.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    controls = {
        "m": size_field("m", "m, rows of X"),
        "k": size_field("k", "k, contracted"),
        "n": size_field("n", "n, columns of W"),
        "x": dropdown("X stored in", STORED),
        "w": dropdown("W stored in", STORED),
        "chip": dropdown("chip", [*_chips()]),
    }
    start = {"m": m, "k": k, "n": n, "x": units.dtype_name(x), "w": units.dtype_name(w), "chip": hardware.chip(chip).name}
    for field, value in start.items():
        controls[field].fill(field, str(value))
    matmul_view(**{field: control.read(control.widget.value) for field, control in controls.items()})  # refuses what it must
    return Explorer("matmul", controls, matmul_view)


def _view(chip: Chip, m: int, k: int, n: int, x: str, w: str, label: str, to_this: str) -> View:
    cost = rl.matmul(m, k, n, x=x, w=w)
    critical = rl.critical_batch(chip, k=k, n=n, x=x, w=w)
    numbers = _numbers(chip, cost, critical, f"X[{m:,}, {k:,}] in {x} · W[{k:,}, {n:,}] in {w}")
    return View(numbers, svg.roofline(chip, cost, label), _python(chip, m, k, n, x, w), to_this)


def _numbers(chip: Chip, cost: rl.Cost, critical: rl.CriticalBatch, shapes: str) -> str:
    """One sentence, and a table of what the library says of a cost."""
    (dtype,) = cost.flops
    limits, rate = rl.bound(cost, chip), units.rate_unit(dtype)
    counted = rate.replace("/s", "s")
    attained = f"{units.human(limits.flops_per_s, rate)}, {limits.flops_per_s / chip.flops_per_s(dtype):.1%} of the peak"
    words = f"<b>{_PARTS[limits.binds].capitalize()} binds</b> on {chip}: at most {attained}."
    rows = {
        "operations": units.human(cost.total_flops, counted),
        "bytes moved": units.human(cost.bytes(), "B"),
        "intensity": f"{units.human(cost.intensity())} {counted} per byte; the ridge is {units.human(rl.ridge(chip, dtype))}",
        **{f"{_PARTS[part]} ({part})": units.human(seconds, "s") for part, seconds in limits.parts_s.items()},
        "maximum, all overlaps": units.human(limits.lower_s, "s"),
        "sum, nothing overlaps": units.human(limits.upper_s, "s"),
        "binds": limits.binds,
        f"attained {rate}": attained,
        "critical batch, exact": "no m is enough" if critical.exact is None else f"m = {units.human(critical.exact, digits=4)}",
        "critical batch, rule of thumb": f"m = {units.human(critical.asymptotic, digits=4)}",
    }
    return words_and_table(f"{escape(shapes)}. {words}", rows)


def _python(chip: Chip, m: int, k: int, n: int, x: str, w: str) -> str:
    code = f"""\
from scaling_lib import roofline
from scaling_lib.hardware import chip

stored = {{"x": "{x}", "w": "{w}"}}
cost = roofline.matmul({m}, {k}, {n}, **stored)
limits = roofline.bound(cost, chip("{chip}"))
critical = roofline.critical_batch(
    chip("{chip}"), k={k}, n={n}, **stored
)
print(limits)
print(critical)"""
    return python(code)


def _chips() -> dict[str, Chip]:
    """The chips that have a roofline: a sourced peak and a sourced HBM bandwidth."""
    return {c.name: c for c in hardware.CHIPS.values() if c.peak_flops_per_s and "hbm_bytes_per_s" in c.figures}
