"""The schedule explorer: what one chip of a compiled program does when, what its transfers hide behind, and what waits."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from scaling_lib import units
from scaling_lib.catalog.schedules import Operation, Schedule, schedules
from scaling_lib.show.explorers.base import Explorer, View, control, dropdown, link, python, words_and_table
from scaling_lib.show.schedule import draw

ZOOMS = (1, 2, 5, 10, 20, 50)


def schedule_view(program: str, operation: str, center: int, zoom: int) -> View:
    """The schedule explorer for one state.

    Args:
        program: title of a recorded program.
        operation: name of one of its instructions.
        center: middle of the window, in per cent of the program.
        zoom: the window is so much shorter than the program.

    Raises:
        ValueError: for an unknown program or operation, and a window that is none.
    """
    of = _named(program)
    one = _operation(of, operation)
    from_s, to_s = window(of, center, zoom)
    shares, long = of.within(from_s, to_s), to_s - from_s
    waits = shares["ici"] + shares["hbm"]

    def share(name: str) -> str:
        return f"{units.human(shares[name], 's')}, {_percent(shares[name] / long)} of the window"

    rows = {
        "window": f"{units.human(from_s, 's', digits=4)} to {units.human(to_s, 's', digits=4)} of {units.human(of.total_s, 's')}",
        "matmuls": share("matmul"),
        "other work": share("vector"),
        "waiting for ICI": share("ici"),
        "waiting for copies": share("hbm"),
        "ICI, hidden": units.human(shares["hidden ici"], "s"),
        "copies, hidden": units.human(shares["hidden hbm"], "s"),
        "operation": one.name,
        "its kind": one.kind,
        "in the source": "/".join(one.op_name.split("/")[-2:]) or "not said",
        "its start": units.human(one.start_s, "s", digits=4) + ("" if _inside(one, from_s, to_s) else ", outside the window"),
        "its duration": f"{units.human(one.duration_s, 's')}, {_percent(one.duration_s / of.total_s)} of the program",
        "of it waited for": units.human(one.exposed_s, "s"),
        "its FLOPs": units.human(one.flops, "FLOPs"),
        "its bytes": units.human(one.bytes, "B"),
    }
    sentence = f"{escape(of.words)}. <b>{_percent(waits / long)} of this window is waiting.</b>"
    sentence += f" An estimate for {escape(of.slice)} by {escape(of.source)}; nothing ran."
    to_this = link("schedule", program=program, operation=operation, center=center, zoom=zoom)
    drawing = draw(of, from_s, to_s, one.name)
    return View(words_and_table(sentence, rows), drawing.svg, python(_code(of, one, from_s, to_s)), to_this)


def schedule_explorer(
    *, program: str = "multiply while gathering", operation: str | None = None, center: int = 50, zoom: int = 1
) -> Explorer:
    """The timeline of a program that the TPU compiler made: zoom in, and pick an operation.

    Args:
        program: title of a recorded program; the reader chooses among all.
        operation: name of one of its instructions; the longest one if not given.
        center: middle of the window, in per cent of the program.
        zoom: the window is so much shorter than the program; one of `ZOOMS`.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    titles = [one.title for one in schedules().values()]
    controls = {
        "program": dropdown("program", titles),
        "operation": dropdown("operation", _names(_named(titles[0]))),
        "center": control(widgets.IntSlider, "center (%)", value=50, min=0, max=100),
        "zoom": dropdown("zoom", ZOOMS),
    }
    of_program, of_operation, of_center, of_zoom = (each.widget for each in controls.values())
    showing, picked = "", ""

    def follow() -> None:
        """Offer the operations of the program; move the window to one that is picked outside of it."""
        nonlocal showing, picked
        of = _named(of_program.value)
        if showing != of.name:
            of_operation.options = _names(of)
            of_operation.value = picked = _longest(of).name
            showing = of.name
        elif picked != of_operation.value:
            picked = of_operation.value
            one = _operation(of, picked)
            if not _inside(one, *window(of, of_center.value, of_zoom.value)):
                of_center.value = round(100 * (one.start_s + one.duration_s / 2) / of.total_s)

    follow()
    for field, value in {"program": program, "operation": operation, "center": center, "zoom": zoom}.items():
        if value is not None:
            controls[field].fill(field, str(value))
        follow()
    return Explorer("schedule", controls, schedule_view, follow, joint="program")


def window(schedule: Schedule, center: int, zoom: int) -> tuple[float, float]:
    """From when to when a window goes; at the ends of the program it is moved inside.

    Raises:
        ValueError: for a center outside of 0 to 100, or a zoom that is not offered.
    """
    if not 0 <= units.number("center", center) <= 100:
        raise ValueError(f"center={center!r} is not in the program; give per cent, from 0 to 100")
    if zoom not in ZOOMS:
        raise ValueError(f"zoom={zoom!r} is not offered; give one of {', '.join(map(str, ZOOMS))}")
    long = schedule.total_s / zoom
    from_s = min(max(schedule.total_s * center / 100 - long / 2, 0.0), schedule.total_s - long)
    return from_s, from_s + long


def _named(title: str) -> Schedule:
    known = {one.title: one for one in schedules().values()}
    if title not in known:
        raise ValueError(f"program={title!r} is not recorded; {units.near(title, known)}")
    return known[title]


def _names(of: Schedule) -> list[str]:
    return [one.name for one in of.operations]


def _operation(of: Schedule, name: str) -> Operation:
    known = {one.name: one for one in of.operations}
    if name not in known:
        raise ValueError(f"operation={name!r} is not in {of.title!r}; {units.near(name, known)}")
    return known[name]


def _longest(of: Schedule) -> Operation:
    return max(of.operations, key=lambda one: one.duration_s)


def _inside(one: Operation, from_s: float, to_s: float) -> bool:
    return one.start_s < to_s and one.end_s > from_s


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _code(of: Schedule, one: Operation, from_s: float, to_s: float) -> str:
    return f"""\
from scaling_lib.catalog.schedules import schedules

program = schedules()["{of.name}"]
print(program.within({from_s:.9f}, {to_s:.9f}))
(operation,) = (
    one for one in program.operations
    if one.name == "{one.name}"
)
print(operation)"""
