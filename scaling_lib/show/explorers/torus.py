"""The torus explorer: the shape of a slice, what its links make of it, and the way between two of its chips."""

from __future__ import annotations

import math
import re
from html import escape

import ipywidgets as widgets

from scaling_lib import hardware, units
from scaling_lib.hardware import Chip
from scaling_lib.show import wiring
from scaling_lib.show.explorers.base import Explorer, View, control, dropdown, link, python, words_and_table
from scaling_lib.torus import Coordinates, Torus

_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_DEEP = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16", "16x16x24")
_FIRST = ("4x4", "4x4x4")
"""Where a chip starts that cannot have the shape of the one before."""
_TWIST = "_twisted"
_TWISTED_CHIPS = ("v4", "v5p")
"""Chips whose documentation offers twisted tori."""


def torus_view(chip: str, shape: str, a: str, b: str) -> View:
    """The torus explorer for one state.

    Args:
        chip: name of a TPU.
        shape: of the slice, as the compiler writes it: "4x4x8", or "4x4x8_twisted".
        a: coordinates of the sender, like "0, 0".
        b: coordinates of the receiver.

    Raises:
        ValueError: for a slice that cannot be built, or coordinates outside it.
    """
    torus = _torus(chip, shape)
    here, there = read_chip("a", a), read_chip("b", b)
    hops, ports = torus.hops(here, there), torus.ports(here, there)
    rings = [str(axis) for axis, wrap in enumerate(torus.slice.wraps) if wrap]
    wraps = f"axes {', '.join(rings)}" if len(rings) > 1 else f"axis {rings[0]}" if rings else "no axis"
    from_half = torus.bisection_bytes_per_s()
    rows = {
        "chips": f"{torus.slice.chips:,}",
        "JAX devices": f"{torus.slice.devices:,}",
        "hosts": f"{torus.slice.hosts:,}",
        "wraparound": wraps + (", twisted" if torus.twisted else ""),
        "links in all": f"{torus.links:,}; a chip has up to {torus.links_per_chip}",
        "diameter": _count(torus.diameter, "hop"),
        "mean distance": f"{units.human(torus.mean_hops)} hops",
        "bisection": f"{torus.bisection_links:,} links, {units.human(from_half, 'B/s')} one way",
        "from a to b": f"{_count(hops, 'hop')}, {_count(ports, 'port')} at once",
        "1 MB from a to b": f"{units.human(torus.transfer_s(here, there, 1e6), 's')}, latency left out",
    }
    drawing = wiring.draw(torus, here, there)
    sentence = f"<b>{escape(str(torus))}</b>: {_count(hops, 'hop')} from a to b, of at most {torus.diameter} in this slice."
    to_this = link("torus", chip=chip, shape=shape, a=a, b=b)
    return View(words_and_table(sentence, rows), drawing.svg, python(_code(torus, here, there)), to_this)


def torus_explorer(*, chip: str = "v5e", shape: str = "4x4", a: str | None = None, b: str | None = None) -> Explorer:
    """A TPU slice and two of its chips: wraps, diameter, bisection, and a shortest route, drawn.

    Args:
        chip: where to start; the reader chooses among all TPUs with a sourced ICI bandwidth.
        shape: of the slice, among the usual ones of that chip; "_twisted" at its end gives the twisted torus.
        a: coordinates of the sender; the first chip if not given, and where the slice becomes another one.
        b: coordinates of the receiver; likewise, a chip that is farthest from the first.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    chips = {c.name: c for c in hardware.CHIPS.values() if c.pod_shape and "ici_link_bytes_per_s" in c.figures}
    named: Coordinates = ()  # shape of the slice that the fields name chips of

    def read(name: str, text: str) -> str:
        at, torus = read_chip(name, text), _torus(of_chip.value, of_shape.value)
        ends = {"a": (0,) * len(torus.shape), "b": (0,) * len(torus.shape)} | {name: at}
        torus.hops(**ends)  # refuses what lies outside
        return _spell(at)

    controls = {
        "chip": dropdown("chip", [*chips]),
        "shape": dropdown("slice", _shapes(chips[next(iter(chips))])),
        "a": control(widgets.Text, "from chip a", lambda text: read("a", text), value="0, 0"),
        "b": control(widgets.Text, "to chip b", lambda text: read("b", text), value="0, 0"),
    }
    of_chip, of_shape, of_a, of_b = (each.widget for each in controls.values())

    def follow() -> None:
        """Offer the shapes of the chip; where the slice is another one, name two of its chips."""
        nonlocal named
        offered = _shapes(chips[of_chip.value])
        if offered != tuple(of_shape.options):
            chosen = of_shape.value
            of_shape.options = offered
            of_shape.value = chosen if chosen in offered else next(shape for shape in _FIRST if shape in offered)
        torus = _torus(of_chip.value, of_shape.value)
        if named != torus.shape:
            named = torus.shape
            of_a.value = _spell((0,) * len(named))
            of_b.value = _spell(tuple(n // 2 if wrap else n - 1 for n, wrap in zip(named, torus.slice.wraps, strict=True)))

    for field, value in {"chip": hardware.chip(chip).name, "shape": shape, "a": a, "b": b}.items():
        if value is not None:
            controls[field].fill(field, value)
        follow()
    return Explorer("torus", controls, torus_view, follow)


def read_chip(name: str, text: str) -> Coordinates:
    """The coordinates that text spells: whole numbers with commas or blanks between them, in brackets if you like.

    Raises:
        ValueError: for anything else.
    """
    typed = str(text).strip().removeprefix("(").removesuffix(")")
    if not re.fullmatch(r"\s*[0-9]{1,4}(\s*[,\s]\s*[0-9]{1,4})*\s*", typed):
        raise ValueError(f"{name}={text!r} is no chip; write its coordinates, like '0, 3'")
    return tuple(map(int, re.findall(r"[0-9]+", typed)))


def _torus(chip: str, shape: str) -> Torus:
    return Torus(hardware.slice_of(f"{chip}:{shape.removesuffix(_TWIST)}"), twisted=shape.endswith(_TWIST))


def _shapes(chip: Chip) -> tuple[str, ...]:
    """The usual shapes of a chip's slices, in the order of their size."""
    usual = [*(_FLAT if len(chip.pod_shape) == 2 else _DEEP), "x".join(map(str, chip.pod_shape))]
    shapes = []
    for shape in dict.fromkeys(usual):
        sizes = tuple(map(int, shape.split("x")))
        if math.prod(sizes) <= math.prod(chip.pod_shape):
            shapes.append(shape)
        if chip.name in _TWISTED_CHIPS and min(sizes) >= 4 and set(sizes) == {min(sizes), 2 * min(sizes)}:
            shapes.append(shape + _TWIST)
    return tuple(shapes)


def _spell(chip: Coordinates) -> str:
    return ", ".join(map(str, chip))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _code(torus: Torus, a: Coordinates, b: Coordinates) -> str:
    twisted = ", twisted=True" if torus.twisted else ""
    return f"""\
from scaling_lib.hardware import slice_of
from scaling_lib.torus import Torus

torus = Torus(slice_of("{torus.slice.name}"){twisted})
a, b = {a}, {b}
print(torus.slice.wraps, torus.diameter, torus.mean_hops)
print(torus.bisection_links, torus.bisection_bytes_per_s())
print(torus.hops(a, b), torus.ports(a, b))
print(torus.route(a, b))"""
