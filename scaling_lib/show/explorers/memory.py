"""The memory explorer: how long an array takes along each path of a chip, and which memories hold it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import ipywidgets as widgets

from scaling_lib import hardware, units
from scaling_lib.hardware import Chip
from scaling_lib.roofline import LEVELS, Cost, Level, bound
from scaling_lib.show.explorers.base import Explorer, View, control, dropdown, link, python, words_and_table
from scaling_lib.show.hierarchy import Path, bars, capacity

DTYPES = ("f32", "bf16", "int8", "int4")
MIN_LOG2, MAX_LOG2 = 10, 36

_TPU: Mapping[str, Cost] = {
    "VMEM to matrix unit": Cost(vmem_bytes=1),
    "HBM to VMEM": Cost(hbm_bytes=1),
    "ICI, one link": Cost(ici_bytes=1),
    "ICI, both ways of a ring": Cost(ici_bytes=0.5),
    "PCIe, from the host": Cost(pcie_bytes=1),
    "DCN, the chip's share": Cost(dcn_bytes=1),
}
_GPU: Mapping[str, Cost] = {
    "HBM to the chip": Cost(hbm_bytes=1),
    "fabric, all links": Cost(ici_bytes=1),
    "PCIe, from the host": Cost(pcie_bytes=1),
    "DCN, the chip's share": Cost(dcn_bytes=1),
}
"""What one byte costs on each path of a chip."""


def memory_view(chip: str, dtype: str, log2_elements: int) -> View:
    """The memory explorer for one state.

    Args:
        chip: name of a chip.
        dtype: of the array.
        log2_elements: size of the array, as a power of two.

    Raises:
        ValueError: for an unknown chip or dtype.
    """
    of, elements = hardware.chip(chip), 2**log2_elements
    array = elements * units.itemsize(dtype)
    paths = [Path(name, _level(cost), _seconds(array * cost, of)) for name, cost in _paths(of).items()]
    rows = {path.name: path.said for path in paths}
    size = units.human(array, "B")
    described = ", ".join(f"{name} {said}" for name, said in rows.items())
    drawing = bars(paths, f"Time to move {size} along each path of {of}: {described}.")
    sentence = f"{elements:,} elements of {escape(dtype)} are {size}. <b>{_fits(of, array)}</b> on {escape(str(of))}."
    to_this = link("memory", chip=chip, dtype=dtype, log2_elements=log2_elements)
    return View(words_and_table(sentence, rows), drawing.svg, python(_code(of, dtype, log2_elements)), to_this)


def memory_explorer(*, chip: str = "v5e", dtype: str = "bf16", log2_elements: int = 24) -> Explorer:
    """An array on a chip: the time along each path from the matrix unit to the data center, and the memories that hold it.

    Args:
        chip: where to start; the reader chooses among all chips with a sourced HBM bandwidth.
        dtype: of the array.
        log2_elements: size of the array, as a power of two.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    chips = [c.name for c in hardware.CHIPS.values() if "hbm_bytes_per_s" in c.figures]
    controls = {
        "chip": dropdown("chip", chips),
        "dtype": dropdown("number format", DTYPES),
        "log2_elements": control(widgets.IntSlider, "log2 of elements", value=MIN_LOG2, min=MIN_LOG2, max=MAX_LOG2),
    }
    start = {"chip": hardware.chip(chip).name, "dtype": units.dtype_name(dtype), "log2_elements": log2_elements}
    for field, value in start.items():
        controls[field].fill(field, str(value))
    return Explorer("memory", controls, memory_view)


def _paths(chip: Chip) -> Mapping[str, Cost]:
    return _TPU if chip.kind == "tpu" else _GPU


def _level(cost: Cost) -> Level:
    return next(level for level in LEVELS if cost.bytes(level))


def _seconds(cost: Cost, chip: Chip) -> float | None:
    """How long the bytes take; None where no source states the bandwidth."""
    try:
        return bound(cost, chip).lower_s
    except ValueError:
        return None


def _fits(chip: Chip, array: float) -> str:
    """Which memories of the chip hold the array; a memory of unknown size is left out."""
    hbm = "usable_hbm_bytes" if "usable_hbm_bytes" in chip.figures else "hbm_bytes"
    sizes = {name: chip.figures[of] for name, of in (("VMEM", "vmem_bytes"), ("HBM", hbm)) if of in chip.figures}
    fits = [f"{'fits' if array <= size else 'does not fit'} in {name} ({capacity(size)})" for name, size in sizes.items()]
    return "It " + " and ".join(fits)


def _code(chip: Chip, dtype: str, log2_elements: int) -> str:
    known = {name: cost for name, cost in _paths(chip).items() if _seconds(cost, chip) is not None}
    paths = "\n".join(f'    "{name}": {cost},' for name, cost in known.items())
    return f"""\
from scaling_lib import units
from scaling_lib.hardware import chip
from scaling_lib.roofline import Cost, bound

array = 2**{log2_elements} * units.itemsize("{dtype}")
byte = {{
{paths}
}}
times = {{
    path: bound(array * cost, chip("{chip}")).lower_s
    for path, cost in byte.items()
}}
for path, seconds in times.items():
    print(path, units.human(seconds, "s"))"""
