"""The explorers of practice, tiling and schedule: what they show, figured out again; and what they say to bad input."""

import csv
import dataclasses
import importlib.util
import itertools
import math
import re
from importlib import resources
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup

from scaling_lib import systolic, units
from scaling_lib.catalog import schedules as catalog
from scaling_lib.catalog.schedules import schedules
from scaling_lib.hardware import CHIPS, chip
from scaling_lib.show import schedule as drawn
from scaling_lib.show import tiles
from scaling_lib.show.explorers import base, schedule_explorer, schedule_view, tiling_explorer, tiling_view
from scaling_lib.show.explorers.schedule import ZOOMS, window
from scaling_lib.show.explorers.tiling import DTYPES, EXAMPLES, ORDERS, read_shape
from scaling_lib.tiling import layout
from scaling_lib.units import human
from tests.test_explorers import assert_link_carries, assert_room, html_of, move, on_screen, printed, problems, rows, words

TILING = {"shape": "[8, 3000, 64]", "dtype": "bf16", "chip": "v5e", "order": ORDERS[0]}
SCHEDULE = {
    "program": "multiply while gathering", "operation": "collective-permute-start", "center": 50, "zoom": 1,
}  # fmt: skip
STATES = [(tiling_explorer, TILING), (schedule_explorer, SCHEDULE)]
OTHERS = {
    tiling_explorer: {"shape": "[3, 5, 7]", "dtype": "int4", "chip": "v6e", "order": ORDERS[1]},
    schedule_explorer: {
        "program": "training, FSDP", "operation": schedules()["fsdp"].operations[7].name, "center": 81, "zoom": 20,
    },
}  # fmt: skip
PROGRAMS = list(schedules().values())
SVG = "{http://www.w3.org/2000/svg}"
needs_compiler = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no TPU compiler for this platform")


@pytest.fixture
def link(monkeypatch):
    def set_link(**values):
        monkeypatch.setattr(base, "LINK", values)

    return set_link


# Tiles.


@pytest.mark.parametrize(
    ("state", "padded", "size_bytes", "tile"),
    [
        ({}, (8, 3072, 64), 8 * 3072 * 64 * 2, "8 rows × 128 lanes, 2 rows in a word of 32 bits"),
        ({"order": ORDERS[1]}, (8, 3000, 128), 8 * 3000 * 128 * 2, "8 rows × 128 lanes, 2 rows in a word of 32 bits"),
        ({"shape": "[3, 5]", "dtype": "f32"}, (4, 128), 4 * 128 * 4, "4 rows × 128 lanes"),
        ({"shape": "[4096, 1]", "dtype": "f32"}, (4096, 1), 4096 * 4, "1 row × 128 lanes"),
        ({"shape": "[4096, 1]", "dtype": "f32", "order": ORDERS[1]}, (4096, 128), 4096 * 128 * 4, "8 rows × 128 lanes"),
        ({"shape": "[64, 300]", "dtype": "int8"}, (64, 384), 64 * 384, "32 rows × 128 lanes, 4 rows in a word of 32 bits"),
        ({"shape": "[7]", "dtype": "int4", "chip": "tpu7x"}, (1024,), 512, "1,024 elements in a line"),
    ],
)
def test_the_tiling_view_shows_tiles_padded_by_hand(state, padded, size_bytes, tile):
    state = TILING | state
    view = tiling_view(**state)
    shown, sizes = rows(view), read_shape(state["shape"])
    numbers = math.prod(sizes) * units.ITEMSIZE[state["dtype"]]
    assert shown["one tile"] == tile
    assert shown["padded to"] == str([*padded])
    assert shown["bytes of the numbers"] == human(numbers, "B")
    assert shown["bytes in memory"] == human(size_bytes, "B")
    assert shown["padding"] == f"{100 * (1 - numbers / size_bytes):.3g} %"
    assert words(view).startswith(f"{shown['padding']} padding: {human(size_bytes, 'B')} on {state['chip']}")


@pytest.mark.parametrize("order", ORDERS)
def test_the_other_order_stands_beside_the_one_that_is_shown(order):
    (other,) = {*ORDERS} - {order}
    told = rows(tiling_view(**TILING | {"order": other}))
    assert rows(tiling_view(**TILING | {"order": order}))[other] == f"{told['bytes in memory']}, {told['padding']} padding"
    assert rows(tiling_view(**TILING | {"order": order, "shape": "[8, 128]"}))[other] == "the same"


def test_padding_costs_the_mxu_what_systolic_says_and_more_on_a_larger_one():
    for name, useful, n in (("v5e", 3000 / 3072 / 2, 128), ("v6e", 3000 / 3072 / 4, 256)):
        told = rows(tiling_view(**TILING | {"chip": name}))["as W in a matmul"]
        assert told.startswith(f"k × n = 3,072 × {n} on")
        assert told.endswith(f"on an MXU of {chip(name).mxu_dim}: {100 * useful:.3g} % of its work is useful")
        assert systolic.padded(8, 3000, 64, chip(name)).useful == pytest.approx(useful)
    assert "as W in a matmul" not in rows(tiling_view(**TILING | {"shape": "[7]"}))


def test_a_chip_without_tiles_says_so():
    for name in (c.name for c in CHIPS.values() if c.kind != "tpu"):
        view = tiling_view(**TILING | {"chip": name})
        assert words(view).startswith(f"No tiles, no padding: 3.07 MB on {name}.")
        assert rows(view)["one tile"] == f"none: {name} is no TPU, and stores row after row"
        assert printed(view)[0] == "3072000 bytes\n"
        assert_room(view.svg)


def boxes(svg, kind):
    return [
        tuple(float(box.get(side)) for side in ("x", "y", "width", "height"))
        for box in ElementTree.fromstring(svg).iter(f"{SVG}rect")
        if box.get("class") == kind
    ]


def test_the_picture_has_the_numbers_to_scale_in_plane_and_tile():
    (_, _, wide, high), (_, _, last_wide, last_high) = boxes(tiling_view(**TILING).svg, "numbers")
    assert wide / 388 == pytest.approx(3000 / 3072, abs=1e-3)
    assert last_wide / 388 == pytest.approx((3000 % 128) / 128, abs=1e-3)
    assert last_high == 12 * 8  # 64 rows fill their tiles
    assert high == pytest.approx(150 / 6)
    (_, _, narrow, _), _ = boxes(tiling_view(**TILING | {"shape": "[8, 100000, 5]", "order": ORDERS[1]}).svg, "numbers")
    assert narrow == pytest.approx(388 * 5 / 128, abs=0.05)


@pytest.mark.parametrize(
    "shape", ["[1]", "[1, 1]", "[1000000000000000]", "[1000000, 1000, 1000000]", "[2, 3, 5, 7, 11, 13, 17, 19]"]
)
def test_every_label_has_room_in_every_format_and_order(shape):
    for dtype, order in itertools.product(DTYPES, ORDERS):
        view = tiling_view(**TILING | {"shape": shape, "dtype": dtype, "order": order})
        assert_room(view.svg)
        assert "nan" not in view.svg
    for each in EXAMPLES.values():
        assert_room(tiling_view(**TILING | {"shape": each}).svg)


def test_padding_is_hatched_and_full_tiles_are_not():
    def hatched(svg):
        return [path for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("class") == "padding"]

    assert not hatched(tiling_view(**TILING | {"shape": "[16, 256]"}).svg)
    assert len(hatched(tiling_view(**TILING | {"shape": "[9, 129]"}).svg)) == 4  # to the right and below, in plane and tile
    assert "the last tile: 1 of 128 lanes, 1 of 8 rows" in tiles.draw(layout((9, 129))).description


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("[8, 3000, 64]", (8, 3000, 64)),
        ("8x3000x64", (8, 3000, 64)),
        ("(3, )", (3,)),
        ("3 × 5", (3, 5)),
        (" 7 ", (7,)),
        ("3,5", (3, 5)),
    ],
)
def test_shapes_are_read_as_people_write_them(text, sizes):
    assert read_shape(text) == sizes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "shape='' is no shape; write sizes like '[8, 3000, 64]'"),
        ("abc", "shape='abc' is no shape"),
        ("<b>", "shape='<b>' is no shape"),
        ("[3, 5", "shape='[3, 5' is no shape"),
        ("3.5", "is no shape"),
        ("-3", "is no shape"),
        ("[3, 0]", "shape=0 is not a size; give a whole number of at least 1"),
        ("3,000", "shape='3,000' has a size '000'; write thousands without a comma"),
        ("9999999999999999", "is larger than any array dimension"),
        ("9" * 400, "is no shape"),
        ("10000000000 100000000", "has 1e+18 elements, more than any array; give smaller sizes"),
        ("1 1 1 1 1 1 1 1 1", "has 9 dimensions; give 1 to 8"),
    ],
)
def test_what_is_no_shape_is_said_beside_it_and_the_last_good_picture_stays(text, said):
    explorer = tiling_explorer()
    before = on_screen(explorer)
    move(explorer, shape=text)
    assert said in problems(explorer)["shape"]
    assert on_screen(explorer) == before
    move(explorer, shape="[3, 5]")
    assert problems(explorer) == {}
    assert explorer.shown == tiling_view(**TILING | {"shape": "[3, 5]"})


def test_examples_fill_the_shape_and_a_shape_of_your_own_is_no_example():
    explorer = tiling_explorer()
    example = explorer.children[0].children[0]
    assert example.value == "heads of 64"
    for name, shape in EXAMPLES.items():
        example.value = name
        assert explorer.state["shape"] == shape
    move(explorer, shape="3 5 7")
    assert (example.value, explorer.state["shape"]) == (base.OWN, "[3, 5, 7]")


# Schedules.


def recorded():
    """Rows of the catalog's file, as they stand there, by program."""
    by_program = {}
    text = resources.files("scaling_lib.catalog").joinpath(catalog.OPERATIONS).read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        by_program.setdefault(row["program"], []).append(row)
    return by_program


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_work_and_waiting_fill_every_window_nanosecond_by_nanosecond(program):
    """Counted again on a grid: what each of 3000 moments is spent on."""
    mine = recorded()[program.name]
    for zoom, center in ((1, 50), (5, 33), (20, 71)):
        from_s, to_s = window(program, center, zoom)
        counts = dict.fromkeys(program.within(from_s, to_s), 0)
        moments = [from_s + (i + 0.5) * (to_s - from_s) / 3000 for i in range(3000)]
        for row in mine:
            start, end = int(row["start_ns"]) * 1e-9, (int(row["start_ns"]) + int(row["duration_ns"])) * 1e-9
            waits = end - int(row["exposed_ns"]) * 1e-9
            for at in moments:
                if start <= at < end:
                    kind = row["resource"] if at >= waits else f"hidden {row['resource']}"
                    if row["resource"] == "compute":
                        kind = "matmul" if row["kind"] == "matmul" else "vector"
                    counts[kind] += 1
        shares = program.within(from_s, to_s)
        for name, seconds in shares.items():
            assert seconds / (to_s - from_s) == pytest.approx(counts[name] / 3000, abs=0.01), name
        assert sum([*shares.values()][:4]) == pytest.approx(to_s - from_s, rel=2e-3)


def test_the_recorded_programs_show_what_they_are_for():
    of = {name: one.within(0, one.total_s) for name, one in schedules().items()}
    assert {one.slice for one in PROGRAMS} == {"v5e:4x4"}
    assert of["gather"]["hidden ici"] == 0 < of["gather"]["ici"]
    assert of["ring"]["hidden ici"] > 10 * of["ring"]["ici"]
    assert schedules()["ring"].total_s < 0.7 * schedules()["gather"].total_s
    assert of["data"]["ici"] > 10 * of["data"]["hidden ici"]
    assert of["fsdp"]["hidden ici"] > 0.3 * of["fsdp"]["ici"] > 0
    gathered = [one for one in schedules()["fsdp"].operations if one.kind == "all-gather"]
    assert gathered[0].exposed_s > 0.9 * gathered[0].duration_s
    assert sum(one.exposed_s < 0.1 * one.duration_s for one in gathered) >= 4


def test_flops_and_bytes_are_those_of_the_arrays():
    product = 2 * 8192 * 4096 * 2048
    gather = schedules()["gather"].operations
    assert [(one.kind, one.flops, one.bytes) for one in gather] == [
        ("all-gather", 0, 15 * 512 * 4096 * 2),
        ("matmul", product, 2 * (8192 * 4096 + 4096 * 2048 + 8192 * 2048)),
    ]
    ring = schedules()["ring"].operations
    assert sum(one.flops for one in ring) == product
    assert {one.bytes for one in ring if one.resource == "ici"} == {512 * 4096 * 2}
    for name in ("data", "fsdp"):  # forward, and twice as much backward, but for the gradient of what comes in
        block = 2 * 2048 * 4096 * 8192
        assert sum(one.flops for one in schedules()[name].operations) == 3 * 3 * 2 * block - block


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_the_schedule_view_shows_what_the_catalog_says(program):
    for one in program.operations[:: max(1, len(program.operations) // 7)]:
        for zoom, center in ((1, 50), (50, round(100 * one.start_s / program.total_s))):
            view = schedule_view(program.title, one.name, center, zoom)
            from_s, to_s = window(program, center, zoom)
            assert to_s - from_s == pytest.approx(program.total_s / zoom)
            assert 0 <= from_s < to_s <= program.total_s * (1 + 1e-12)
            shown, shares = rows(view), program.within(from_s, to_s)
            for name, part in zip(("matmuls", "other work", "waiting for ICI", "waiting for copies"), shares, strict=False):
                share = 100 * shares[part] / (to_s - from_s)
                assert shown[name] == f"{human(shares[part], 's')}, {share:.3g} % of the window"
            assert shown["ICI, hidden"] == human(shares["hidden ici"], "s")
            assert (shown["operation"], shown["its kind"]) == (one.name, one.kind)
            assert shown["its duration"].startswith(human(one.duration_s, "s"))
            assert shown["of it waited for"] == human(one.exposed_s, "s")
            assert shown["its FLOPs"] == human(one.flops, "FLOPs")
            assert shown["its bytes"] == human(one.bytes, "B")
            inside = one.start_s < to_s and one.end_s > from_s
            assert shown["its start"].endswith(", outside the window") is not inside
            assert (len(chosen(view.svg)) == 1) is inside


def chosen(svg):
    return [path for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("class") == "chosen"]


def bars(svg, resource):
    """Parts of each operation of a lane: (class, left, right) of each."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if group.get("class") == f"operation {resource}":
            parts = [
                (box.get("class"), float(box.get("x")), float(box.get("x")) + float(box.get("width")))
                for box in group.iter(f"{SVG}rect")
            ]
            found.append((group.find(f"{SVG}title").text, parts))
    return found


def test_bars_stand_at_their_times_and_only_those_of_the_window():
    program = schedules()["fsdp"]
    for center, zoom in ((50, 1), (20, 10)):
        from_s, to_s = window(program, center, zoom)
        svg = schedule_view(program.title, program.operations[0].name, center, zoom).svg
        for resource in ("compute", "ici", "hbm"):
            inside = [one for one in program.operations if one.resource == resource and one.start_s < to_s and one.end_s > from_s]
            found = bars(svg, resource)
            assert [title for title, _ in found] == [drawn.about(one) for one in inside]
            for one, (_, parts) in zip(inside, found, strict=True):
                left = 8 + 384 * (max(one.start_s, from_s) - from_s) / (to_s - from_s)
                right = 8 + 384 * (min(one.end_s, to_s) - from_s) / (to_s - from_s)
                assert parts[0][1] == pytest.approx(left, abs=0.8)
                assert parts[-1][2] == pytest.approx(right, abs=0.9)
                kinds = {kind for kind, *_ in parts}
                if resource == "compute":
                    assert kinds == {"shown"}
                elif one.exposed_s == 0:
                    assert kinds == {"hidden"}


def test_bars_of_one_lane_do_not_cover_each_other():
    for program in PROGRAMS:
        svg = ElementTree.fromstring(schedule_view(program.title, program.operations[0].name, 50, 1).svg)
        for resource in ("compute", "ici", "hbm"):
            seen = []
            for group in svg.iter(f"{SVG}g"):
                if group.get("class") == f"operation {resource}":
                    boxes = [[float(b.get(k)) for k in ("x", "y", "width", "height")] for b in group.iter(f"{SVG}rect")]
                    left, right = min(b[0] for b in boxes), max(b[0] + b[2] for b in boxes)
                    seen.append((left, boxes[0][1], right, boxes[0][1] + boxes[0][3]))
            covered = [
                (a, b)
                for a, b in itertools.combinations(seen, 2)
                if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 0.2
            ]
            assert covered == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_every_label_of_every_window_has_room(program):
    for zoom, center in itertools.product(ZOOMS, range(0, 101, 9)):
        view = schedule_view(program.title, program.operations[0].name, center, zoom)
        assert_room(view.svg)
        labels = [text.text for text in ElementTree.fromstring(view.svg).iter(f"{SVG}text")]
        assert sum(label[0].isdigit() for label in labels) >= 2, "an axis needs two numbers"


@pytest.mark.parametrize(
    ("center", "zoom", "ends"),
    [(50, 1, (0, 1)), (50, 2, (0.25, 0.75)), (30, 5, (0.2, 0.4)), (0, 10, (0, 0.1)), (100, 10, (0.9, 1)), (4, 10, (0, 0.1))],
)
def test_a_window_lies_around_its_center_and_inside_the_program(center, zoom, ends):
    program = schedules()["fsdp"]
    assert window(program, center, zoom) == pytest.approx([end * program.total_s for end in ends], abs=1e-12)


def test_picking_an_operation_outside_the_window_moves_the_window_there():
    explorer = schedule_explorer(program="training, FSDP", zoom=20, center=10)
    last = schedules()["fsdp"].operations[-1]
    move(explorer, operation=last.name)
    assert explorer.state["center"] == round(100 * (last.start_s + last.duration_s / 2) / schedules()["fsdp"].total_s)
    assert "outside" not in rows(explorer.shown)["its start"]
    move(explorer, operation=schedules()["fsdp"].operations[-2].name)
    center = explorer.state["center"]
    move(explorer, center=center - 1)  # and a slider still moves it away
    assert explorer.state["center"] == center - 1


def test_another_program_offers_its_own_operations_and_starts_with_the_longest():
    explorer = schedule_explorer()
    for program in PROGRAMS:
        move(explorer, program=program.title)
        offered = explorer.controls["operation"].widget.options
        assert [*offered] == [one.name for one in program.operations]
        assert len({*offered}) == len(offered)
        longest = max(one.duration_s for one in program.operations)
        assert rows(explorer.shown)["its duration"].startswith(human(longest, "s"))
        assert problems(explorer) == {}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"program": "training"}, "program='training' is not recorded; did you mean"),
        ({"program": ""}, "program='' is not recorded"),
        ({"operation": "fusion.999"}, "operation='fusion.999' is not in 'multiply while gathering'; did you mean"),
        ({"center": 101}, "center=101 is not in the program"),
        ({"center": "x"}, "center='x' is not a number"),
        ({"zoom": 3}, "zoom=3 is not offered; give one of 1, 2, 5, 10, 20, 50"),
        ({"zoom": 0}, "zoom=0 is not offered"),
    ],
)
def test_bad_states_of_a_schedule_say_what_would_do(state, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        schedule_view(**SCHEDULE | state)


def test_a_window_of_a_schedule_has_a_length_and_lies_in_the_program():
    program = schedules()["gather"]
    for window_s in ((0.5, 0.6), (1e-4, 1e-4), (2e-4, 1e-4), (-1.0, 1e-4), (0.0, float("nan"))):
        with pytest.raises(ValueError, match=r"from_s=|to_s="):
            program.within(*window_s)


# Both.


@pytest.mark.parametrize(("make", "state"), STATES)
def test_an_explorer_starts_as_its_view_says_and_its_link_carries(make, state, link):
    explorer = make()
    view = {tiling_explorer: tiling_view, schedule_explorer: schedule_view}[make]
    assert explorer.state == state
    assert explorer.shown == view(**state)
    assert_room(explorer.shown.svg)
    assert_link_carries(make, OTHERS[make], link)


@pytest.mark.parametrize(("make", "state"), STATES)
def test_the_code_to_copy_prints_the_numbers_of_the_view(make, state):
    out, names = printed(make().shown)
    if make is tiling_explorer:
        array = layout((8, 3000, 64), "bf16", chip="v5e")
        assert out.splitlines()[:2] == [f"{array} (8, 128) (8, 3072, 64)", f"{array.logical_bytes} {array.bytes} {array.wasted}"]
        assert names["array"] == array
    else:
        program = schedules()["ring"]
        assert out.splitlines()[0] == str(program.within(0, round(program.total_s, 9)))
        assert names["operation"] == next(one for one in program.operations if one.name == state["operation"])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tiling_explorer(shape="many"), "shape='many' is no shape"),
        (lambda: tiling_explorer(dtype="b16"), "dtype='b16' is unknown"),
        (lambda: tiling_explorer(chip="v99"), "chip='v99' is unknown"),
        (lambda: tiling_explorer(order="mine"), "order='mine' is not offered here"),
        (lambda: tiling_view("[3]", "b16", "v5e", ORDERS[0]), "dtype='b16' is unknown"),
        (lambda: tiling_view("[3]", "b16", "h100", ORDERS[0]), "dtype='b16' is unknown"),
        (lambda: tiling_view("[3]", "f32", "v5e", "mine"), "order='mine' is unknown"),
        (lambda: schedule_explorer(program="mine"), "program='mine' is not offered here"),
        (lambda: schedule_explorer(operation="mine"), "operation='mine' is not offered here"),
        (lambda: schedule_explorer(center=200), "center='200' is not a whole number from 0 to 100"),
        (lambda: schedule_explorer(zoom=3), "zoom='3' is not offered here"),
    ],
)
def test_an_explorer_refuses_a_start_that_it_cannot_hold(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()


@pytest.mark.parametrize(("make", "state"), STATES)
def test_nothing_that_a_reader_writes_is_taken_for_html(make, state):
    assert "<b>x" not in html_of(make().shown)
    page = BeautifulSoup(html_of(make().shown), "html.parser")
    assert page.find("svg")["aria-label"]
    assert page.find("button")["type"] == "button"


# The compiler itself.


RARELY = {"data": pytest.mark.weekly}  # it takes half a minute, and so does FSDP


@needs_compiler
@pytest.mark.parametrize("name", [pytest.param(name, marks=RARELY.get(name, pytest.mark.slow)) for name in schedules()])
def test_the_recorded_schedule_is_that_of_the_compiler(name):
    """By the recorded version to the nanosecond; another may order and fuse otherwise, and do the same work."""
    from scaling_lib.xla import schedules as compiled

    was, now = schedules()[name], compiled.schedule(name)
    if now.source == was.source:
        assert dataclasses.replace(now, date=was.date) == was
        return
    assert (now.title, now.words, now.slice) == (was.title, was.words, was.slice)
    assert sum(one.flops for one in now.operations) == sum(one.flops for one in was.operations)
    assert now.total_s == pytest.approx(was.total_s, rel=0.25)
    for part in ("ici", "hidden ici"):
        told, before = (one.within(0, one.total_s)[part] for one in (now, was))
        assert told == pytest.approx(before, rel=0.5, abs=0.1 * was.total_s)


@needs_compiler
@pytest.mark.weekly
def test_what_is_written_is_what_is_read(tmp_path):
    from scaling_lib.xla import schedules as compiled

    compiled.write(tmp_path)
    for file in (catalog.PROGRAMS, catalog.OPERATIONS):
        before = resources.files("scaling_lib.catalog").joinpath(file).read_text(encoding="utf-8")
        assert len((tmp_path / file).read_text(encoding="utf-8").splitlines()) == pytest.approx(len(before.splitlines()), rel=0.2)
