"""A TPU chip as a block diagram: its TensorCores, their memories, and the roads inside the chip and out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from scaling_lib.hardware import Chip
from scaling_lib.show.hierarchy import capacity
from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import FONT, WIDTH, Drawing, Label, figure
from scaling_lib.units import human

_ABSENT = "not sourced"
_EDGE, _INSET, _BEHIND, _GAP = 2, 10, 6, 8
_TITLE, _LINE, _BOX, _UNITS, _ROAD = 26, 17, 30, 78, 40  # heights
_MXU, _VPU = 164, 96  # widths
_HOST = 206  # where the column of host and network begins


def draw(chip: Chip) -> Drawing:
    """One TPU chip with its sizes and bandwidths, as the catalog has them; a figure that it lacks is called "not sourced".

    Inside a TensorCore stand the figures of one core. Where a chip is two JAX devices, each is drawn with its share of the HBM.
    ICI is what large transfers achieve on one link; ICI, PCIe and DCN are one way, and DCN is the chip's share.

    Raises:
        ValueError: for a chip that is no TPU, or one of an unknown number of cores or devices.
    """
    if chip.kind != "tpu":
        raise ValueError(f"chip={chip.name} has no TensorCore to draw; give a TPU, like chip('v5e')")
    has = _figures(chip)
    inside, bottom = _inside(chip, has)
    outside, height = _outside(chip, has, bottom)
    description = _describe(chip, has)
    return Drawing(figure([*inside, *outside], description, height), description)


def _inside(chip: Chip, has: Mapping[str, str]) -> tuple[list[str], float]:
    """What is on the chip, and where the chip ends."""
    devices, per_device = chip.devices, chip.cores // chip.devices
    parts: list[str] = []

    # Frames from the outside in: a row of the title below each top edge, less width where copies look out behind.
    left, right, top = float(_EDGE), float(WIDTH - _EDGE), float(_EDGE)
    frames = [(left, right, top, f"{chip} chip" + ", one JAX device" * (devices == 1), 1)]
    if devices > 1:
        left, right, top = left + _INSET, right - _INSET - _BEHIND, top + _TITLE
        frames.append((left, right, top, f"{devices} JAX devices, each:", devices))
    left, right, top = left + _INSET, right - _INSET - _BEHIND * (per_device > 1), top + _TITLE
    frames.append((left, right, top, "TensorCore" if per_device == 1 else f"{per_device} TensorCores, each:", per_device))
    left, right, units_top = left + _INSET, right - _INSET, top + _TITLE
    vmem_top = units_top + _UNITS + _ROAD
    core_bottom = vmem_top + _BOX + _INSET
    hbm_top = core_bottom + _BEHIND + _ROAD
    device_bottom = hbm_top + _BOX + _INSET
    chip_bottom = device_bottom + (_INSET + _BEHIND) * (devices > 1)
    bottoms = [chip_bottom, device_bottom, core_bottom] if devices > 1 else [chip_bottom, core_bottom]
    for (x0, x1, y, title, count), bottom in zip(frames, bottoms, strict=True):
        parts += _frame(x0, y, x1 - x0, bottom - y, title, count)

    vpu = left + _MXU + _GAP
    scalar = vpu + _VPU + _GAP
    parts += _box(left, units_top, _MXU, _UNITS, [has["MXUs"], has["MXU side"]], "mxu")
    parts += _grids(chip, left, units_top + 5)
    parts += _box(vpu, units_top, _VPU, _UNITS, ["VPU", has["VPU"]], "vpu")
    parts += _box(scalar, units_top, right - scalar, _UNITS, ["scalar", "unit"])
    parts += _road(left + _MXU / 4, units_top + _UNITS, vmem_top, "vmem", has["VMEM to MXU"])
    parts += _road(vpu + _VPU / 2, units_top + _UNITS, vmem_top, "vmem")
    parts += _box(left, vmem_top, right - left, _BOX, [f"VMEM, {has['VMEM']}"], "vmem")
    parts += _road((left + right) / 2, vmem_top + _BOX, hbm_top, "hbm", has["HBM to VMEM"], hbm_top - 15)
    parts += _box(left, hbm_top, right - left, _BOX, [f"HBM, {has['HBM']}"], "hbm")
    return parts, chip_bottom


def _outside(chip: Chip, has: Mapping[str, str], top: float) -> tuple[list[str], float]:
    """The roads out of the chip, and where the drawing ends."""
    parts: list[str] = []
    near = top + _BEHIND + _ROAD
    far = near + _BOX + _ROAD
    links = [_EDGE + 2 * _GAP + _GAP * link for link in range(2 * int(chip.figures.get("ici_axes", 0)))]
    lines = "".join(f"M{x} {top:.1f}V{near:.1f}" for x in links)
    parts.append(f'<path class="ici" d="{lines}" stroke="{COLORS["ici"]}" stroke-width="2"/>' if links else "")
    parts += _words(max(links, default=_EDGE) + _GAP, top + 20, [has["ICI links"], has["ICI"]])
    parts += _box(_EDGE, near, _HOST - 2 * _GAP, _BOX, ["neighbor chips"], "ici")
    parts += _road(_HOST + 2 * _GAP, top, near, "pcie", f"PCIe, {has['PCIe']}")
    parts += _box(_HOST, near, WIDTH - _EDGE - _HOST, _BOX, [has["host"]], "pcie")
    parts += _road(_HOST + 2 * _GAP, near + _BOX, far, "dcn", f"DCN, {has['DCN']}")
    parts += _box(_HOST, far, WIDTH - _EDGE - _HOST, _BOX, ["hosts of other slices"], "dcn")
    parts += _words(_EDGE + 4, far + 2, ["ICI, PCIe, DCN: one way", "DCN: a chip's share"])
    return parts, far + _BOX + _EDGE


def _figures(chip: Chip) -> dict[str, str]:
    """The figures in words: those of one core for what a core has, those of one device for HBM."""
    cores, devices = chip.cores, chip.devices

    def said(quantity: str, say: Callable[[float], str], share: int = 1, absent: str = _ABSENT) -> str:
        return say(chip.figures[quantity] / share) if quantity in chip.figures else absent

    def rate(value: float) -> str:
        return human(value, "B/s")

    return {
        "MXUs": said("mxus", lambda n: f"{n:g} MXU{'s' * (n != 1)}", cores, f"MXUs: {_ABSENT}"),
        "MXU side": said("mxu_dim", lambda n: f"{n:g} × {n:g}", absent=f"side: {_ABSENT}"),
        "VPU": said("vpu_flops_per_s", lambda value: human(value, "FLOP/s"), cores),
        "VMEM": said("vmem_bytes", capacity, cores),
        "VMEM to MXU": said("vmem_bytes_per_s", rate, cores),
        "HBM": said("hbm_bytes", capacity, devices),
        "HBM to VMEM": said("hbm_bytes_per_s", rate, devices),
        "ICI links": said("ici_axes", lambda n: f"ICI, {2 * n:g} links", absent=f"ICI links: {_ABSENT}"),
        "ICI": said("ici_link_bytes_per_s", lambda value: f"{rate(value)} each"),
        "PCIe": said("pcie_bytes_per_s", rate),
        "DCN": said("dcn_bytes_per_s", rate),
        "host": said("chips_per_host", lambda n: f"host of {n:g} chip{'s' * (n != 1)}", absent=f"host, chips {_ABSENT}"),
    }


def _frame(x: float, y: float, wide: float, high: float, title: str, count: int) -> Iterator[str]:
    """A frame with its title; where it stands for several, the edges of another look out behind it."""
    line = 'fill="none" stroke="currentColor" stroke-opacity="0.6"'
    yield f'<rect class="frame" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="5" {line}/>'
    if count > 1:
        edges = f"M{x + wide:.1f} {y + _BEHIND:.1f}h{_BEHIND}v{high:.1f}h{-wide:.1f}v{-_BEHIND}"
        yield f'<path class="behind" d="{edges}" {line}/>'
    yield str(Label(title, x + 8, y + 18))


def _box(x: float, y: float, wide: float, high: float, lines: Sequence[str], resource: str = "") -> Iterator[str]:
    """A box in the color of its resource, with lines of text at its foot."""
    color = COLORS.get(resource, "currentColor")
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    yield f'<rect class="{resource}" {place} rx="3" fill="{color}" fill-opacity="0.18" stroke="{color}" stroke-width="1.5"/>'
    for number, text in enumerate(reversed(lines)):
        yield str(Label(text, x + wide / 2, y + high - 10 - number * _LINE, "middle"))


def _grids(chip: Chip, x: float, y: float) -> Iterator[str]:
    """The matrix units of one core as squares, their sides in proportion to those of other chips."""
    count, side = int(chip.figures.get("mxus", 0)) // chip.cores, chip.figures.get("mxu_dim", 0)
    if not count or not side:
        return
    room = (_MXU - 8) / count
    size = min(32 * side / 256, room - 4)
    for number in range(count):
        left = x + 4 + number * room + (room - size) / 2
        place = f'x="{left:.1f}" y="{y + (32 - size) / 2:.1f}" width="{size:.1f}" height="{size:.1f}"'
        yield f'<rect class="grid" {place} fill="{COLORS["mxu"]}"/>'


def _road(x: float, top: float, bottom: float, resource: str, text: str = "", at: float = 0) -> Iterator[str]:
    """An arrow of two heads, and text to its right: with its baseline at `at`, or at half its height."""
    color, head = COLORS[resource], 7
    line = f"M{x:.1f} {top + head:.1f}V{bottom - head:.1f}"
    up = f"M{x - head:.1f} {top + head:.1f}L{x:.1f} {top:.1f}L{x + head:.1f} {top + head:.1f}z"
    down = f"M{x - head:.1f} {bottom - head:.1f}L{x:.1f} {bottom:.1f}L{x + head:.1f} {bottom - head:.1f}z"
    yield f'<path class="{resource}" d="{line}" stroke="{color}" stroke-width="4"/><path d="{up}{down}" fill="{color}"/>'
    yield from _words(x + head + 5, at or (top + bottom) / 2 + 0.35 * FONT, [text] if text else [])


def _words(x: float, y: float, lines: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(lines):
        yield str(Label(text, x, y + number * _LINE))


def _describe(chip: Chip, has: Mapping[str, str]) -> str:
    cores, devices = chip.cores, chip.devices
    many = f"{cores} TensorCores, each" if cores > 1 else "one TensorCore"
    device = f"It is {devices} JAX devices, each with its share of the HBM" if devices > 1 else "It is one JAX device"
    return (
        f"A {chip} chip: {many} with {has['MXUs']}, {has['MXU side']}, a VPU ({has['VPU']}), a scalar unit, "
        f"and VMEM ({has['VMEM']}). {device}. "
        f"VMEM to MXU: {has['VMEM to MXU']}. HBM ({has['HBM']}) to VMEM: {has['HBM to VMEM']}. "
        f"{has['ICI links']}, {has['ICI']}. PCIe, {has['PCIe']}, to a {has['host']}. DCN: {has['DCN']}."
    )
