"""The tiling explorer: how an array of any shape lies in a chip's memory, and how much of that is padding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

import ipywidgets as widgets

from scaling_lib import hardware, systolic, units
from scaling_lib.hardware import Chip
from scaling_lib.show import tiles
from scaling_lib.show.explorers.base import OWN, Explorer, View, control, dropdown, follow_choice, link, python, words_and_table
from scaling_lib.tiling import SUBLANES, Layout, layout

DTYPES = ("bf16", "f32", "f16", "fp8", "fp4", "int32", "int16", "int8", "int4")
ORDERS = ("as the compiler likes", "as written")
EXAMPLES: Mapping[str, str] = {
    "heads of 64": "[8, 3000, 64]",
    "three rows": "[3, 4096]",
    "one scale a row": "[4096, 1]",
    "one key head": "[4, 8192, 1, 128]",
    "GPT-2's vocabulary": "[50257, 768]",
    "images": "[8, 224, 224, 3]",
}
"""Shapes that are worth a look."""

_SHAPE = r"\s*[0-9]{1,16}(\s*[,x×\s]\s*[0-9]{1,16})*\s*"


def tiling_view(shape: str, dtype: str, chip: str, order: str) -> View:
    """The tiling explorer for one state.

    Args:
        shape: sizes of the dimensions, like "[8, 3000, 64]".
        dtype: of the elements.
        chip: name of a chip.
        order: of the dimensions in memory, one of `ORDERS`.

    Raises:
        ValueError: for text that is no shape, an unknown dtype, chip or order, and an array larger than any.
    """
    sizes, of = read_shape(shape), hardware.chip(chip)
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is unknown; {units.near(order, ORDERS)}")
    to_this = link("tiling", shape=shape, dtype=dtype, chip=of.name, order=order)
    if of.kind != "tpu":
        return _without_tiles(sizes, dtype, of, to_this)
    written = tuple(range(len(sizes)))
    own, plain = layout(sizes, dtype, chip=of), layout(sizes, dtype, chip=of, order=written)
    shown = own if order == ORDERS[0] else plain
    other = plain if order == ORDERS[0] else own
    names = ["lanes", "rows"][: len(sizes)]
    rows = {
        "in HLO": str(shown),
        "one tile": _tile(shown),
        **{name: f"dimension {d}, of {sizes[d]:,}" for name, d in zip(names, reversed(shown.order), strict=False)},
        "padded to": str([*shown.padded]),
        "bytes of the numbers": units.human(shown.logical_bytes, "B"),
        "bytes in memory": units.human(shown.bytes, "B"),
        "padding": _percent(shown.wasted),
        ORDERS[1] if order == ORDERS[0] else ORDERS[0]: (
            "the same" if other.order == shown.order else f"{units.human(other.bytes, 'B')}, {_percent(other.wasted)} padding"
        ),
    }
    if len(sizes) > 1:
        rows["as W in a matmul"] = _matmul(sizes[-2], sizes[-1], of)
    sentence = f"<b>{_percent(shown.wasted)} padding</b>: {units.human(shown.bytes, 'B')} on {escape(of.name)}"
    sentence += f", {units.human(shown.logical_bytes, 'B')} of them numbers." if shown.wasted else ", all of them numbers."
    return View(words_and_table(sentence, rows), tiles.draw(shown).svg, python(_code(sizes, dtype, of, order)), to_this)


def tiling_explorer(
    *, shape: str = "[8, 3000, 64]", dtype: str = "bf16", chip: str = "v5e", order: str = "as the compiler likes"
) -> Explorer:
    """How an array lies in a chip's memory: tiles, padded shape, bytes, and what padding does to a matmul, drawn.

    Args:
        shape: sizes of the dimensions, like "[8, 3000, 64]".
        dtype: of the elements.
        chip: where to start; the reader chooses among all chips of the catalog.
        order: of the dimensions in memory, one of `ORDERS`.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    controls = {
        "shape": control(widgets.Text, "shape", _spelled, value=EXAMPLES["heads of 64"]),
        "dtype": dropdown("number format", DTYPES),
        "chip": dropdown("chip", [*hardware.CHIPS]),
        "order": dropdown("dimensions", ORDERS),
    }
    example = control(widgets.Dropdown, "example", options=(OWN, *EXAMPLES), value=OWN).widget
    start = {"shape": shape, "dtype": units.dtype_name(dtype), "chip": hardware.chip(chip).name, "order": order}
    for field, value in start.items():
        controls[field].fill(field, value)

    def named(text: str) -> str:
        spelled = _spelled(text)
        return next((name for name, its in EXAMPLES.items() if its == spelled), OWN)

    follow = follow_choice(example, controls["shape"].widget, EXAMPLES.__getitem__, named)
    return Explorer("tiling", controls, tiling_view, follow, joint="shape", helpers=(example,))


def read_shape(text: str) -> tuple[int, ...]:
    """The sizes that text spells: with commas, blanks or × between them, in brackets if you like.

    Raises:
        ValueError: for anything else, and sizes that `units.size` refuses.
    """
    typed = re.sub(r"^[\[(](.*?),?\s*[\])]$", r"\1", str(text).strip())
    if not re.fullmatch(_SHAPE, typed):
        raise ValueError(f"shape={str(text)[:40]!r} is no shape; write sizes like '[8, 3000, 64]'")
    sizes = re.findall(r"[0-9]+", typed)
    if odd := [size for size in sizes if size.startswith("0") and size != "0"]:
        raise ValueError(f"shape={text!r} has a size {odd[0]!r}; write thousands without a comma, like '[8, 3000, 64]'")
    return tuple(units.size("shape", int(size)) for size in sizes)


def _spelled(text: str) -> str:
    sizes = read_shape(text)
    layout(sizes)  # refuses too many dimensions, and arrays larger than any
    return str([*sizes])


def _tile(of: Layout) -> str:
    if len(of.tile) == 1:
        return f"{of.tile[0]:,} elements in a line"
    words = f", {of.packing} rows in a word of 32 bits" if of.packing > 1 else ""
    return f"{of.tile[0]} row{'s' * (of.tile[0] > 1)} × {of.tile[1]} lanes{words}"


def _matmul(k: int, n: int, chip: Chip) -> str:
    """What padding to the side of the MXU leaves of its work; whole rows of X, so that these cost nothing."""
    to = systolic.padded(SUBLANES, k, n, chip)
    return f"k × n = {to.k:,} × {to.n:,} on an MXU of {chip.mxu_dim}: {_percent(to.useful)} of its work is useful"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 0.9995 or share == 1 else "99.9 %"


def _without_tiles(sizes: tuple[int, ...], dtype: str, chip: Chip, to_this: str) -> View:
    """A GPU keeps arrays row after row."""
    plain = layout(sizes, dtype)  # for the checks and bytes that do not depend on tiles
    size = units.human(plain.logical_bytes, "B")
    rows = {
        "one tile": f"none: {chip.name} is no TPU, and stores row after row",
        "bytes of the numbers": size,
        "bytes in memory": size,
        "padding": "0 %",
    }
    sentence = f"<b>No tiles, no padding</b>: {size} on {escape(chip.name)}. Its matmuls pad in registers, not in memory."
    code = f"""\
import math

from scaling_lib import units

print(math.prod({list(sizes)}) * units.itemsize("{dtype}"), "bytes")"""
    return View(
        words_and_table(sentence, rows), tiles.draw_plain(sizes, f"{dtype} on {chip.name}: {size}").svg, python(code), to_this
    )


def _code(sizes: tuple[int, ...], dtype: str, chip: Chip, order: str) -> str:
    given = f", order={tuple(range(len(sizes)))}" if order == ORDERS[1] else ""
    matmul = ""
    if len(sizes) > 1:
        matmul = f"\nprint(systolic.padded(8, {sizes[-2]}, {sizes[-1]}, chip))"
    return f"""\
from scaling_lib import hardware, systolic
from scaling_lib.tiling import layout

chip = hardware.chip("{chip.name}")
array = layout(
    {list(sizes)}, "{dtype}",
    chip=chip{given},
)
print(array, array.tile, array.padded)
print(array.logical_bytes, array.bytes, array.wasted){matmul}"""
