"""Explorers: what they show is what the library says, in every state that their controls allow."""

import contextlib
import io
import itertools
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup

from scaling_lib import roofline as rl
from scaling_lib import transformer as tf
from scaling_lib import units
from scaling_lib.hardware import CHIPS, Slice, chip, slice_of
from scaling_lib.sharding import matmul_plan, parse_product
from scaling_lib.show import explorers, holdings, kv_cache, palette, plots, svg, treemap
from scaling_lib.show.explorers import (
    base,
    batch_explorer,
    budget_explorer,
    cache_explorer,
    cache_view,
    matmul_explorer,
    matmul_view,
    memory_explorer,
    memory_view,
    model_explorer,
    model_view,
    plan_explorer,
    roofline_explorer,
    roofline_view,
    schedule_explorer,
    serving_explorer,
    sharding_explorer,
    sharding_view,
    speculation_explorer,
    tiling_explorer,
    torus_explorer,
    torus_view,
)
from scaling_lib.show.explorers.cache import EXAMPLES as CACHES
from scaling_lib.show.explorers.cache import USUAL, read_models
from scaling_lib.show.explorers.model import AREAS, DTYPES, read_model
from scaling_lib.show.explorers.sharding import EXAMPLES, SLICES, STEPS
from scaling_lib.torus import Torus
from scaling_lib.units import human

ROOT = Path(__file__).parents[1]
WITH_ROOFLINE = [c for c in CHIPS.values() if c.peak_flops_per_s and "hbm_bytes_per_s" in c.figures]
WITH_HBM = [c for c in CHIPS.values() if "hbm_bytes_per_s" in c.figures]
WITH_TORUS = [c for c in CHIPS.values() if c.pod_shape and "ici_link_bytes_per_s" in c.figures]
EXPLORERS = [
    roofline_explorer,
    matmul_explorer,
    memory_explorer,
    torus_explorer,
    sharding_explorer,
    model_explorer,
    cache_explorer,
    plan_explorer,
    budget_explorer,
    batch_explorer,
    serving_explorer,
    speculation_explorer,
    tiling_explorer,
    schedule_explorer,
]
CASE_2 = {
    "slice": "v5e:4x4", "mesh": "X=4, Y=4", "product": "A[I, J_X] · B[J, K_Y] -> C[I, K_Y]",
    "sizes": "I=8192, J=4096, K=16384", "dtype": "bf16", "objective": "sum", "steps": "all",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 5, "num_attention_heads": 24, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 7168, "vocab_size": 1001, "tie_word_embeddings": False, "rope_scaling": None,
}  # fmt: skip
PASTED = json.dumps(LLAMA, separators=(",", ":"))
MODEL = {"model": "Llama-3 8B", "T": 8192, "B": 1, "dtype": "bf16", "area": "parameters"}
CACHE = {"models": USUAL, "S": 32768, "B": 1, "dtype": "bf16", "chip": "v5e"}
PAIRS = [(c.name, dtype) for c in WITH_ROOFLINE for dtype in c.peak_flops_per_s]


@pytest.fixture
def link(monkeypatch):
    """Sets what the page's address asks for."""

    def set_link(**values):
        monkeypatch.setattr(base, "LINK", values)

    return set_link


def rows(view):
    """The table of numbers, by the name of the row."""
    table = BeautifulSoup(view.numbers, "html.parser").find("table", class_="explorer-numbers")
    assert all(row.th["scope"] == "row" for row in table.find_all("tr"))
    return {row.th.text: row.td.text for row in table.find_all("tr")}


def query(view):
    """The state in a view's link."""
    (anchor,) = BeautifulSoup(view.link, "html.parser").find_all("a", class_="explorer-link")
    address = urlsplit(anchor["href"])
    assert not address.netloc
    assert not address.path
    state = dict(parse_qsl(address.query))
    assert address.fragment == f"explorer-{state['explorer']}"
    return state


def problem(explorer, field):
    """The words beside a control."""
    return BeautifulSoup(explorer.controls[field].problem.value, "html.parser").text


def problems(explorer):
    """The words beside the controls that have any."""
    return {field: said for field in explorer.controls if (said := problem(explorer, field))}


def words(view):
    """What stands above the table of numbers."""
    return BeautifulSoup(view.numbers, "html.parser").p.text


def printed(view):
    """What the code to copy prints, and the names it defines; no line of it is too long for a page."""
    code = BeautifulSoup(view.python, "html.parser").code.text
    assert max(map(len, code.splitlines())) <= 70
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue(), names


def move(explorer, **values):
    for field, value in values.items():
        explorer.controls[field].widget.value = value


def on_screen(explorer):
    return "".join(output.value for output in explorer.children[-3:])


def assert_link_carries(make, state, link):
    """An explorer in this state gives a link, and one that is opened by it shows the same."""
    sent = make(**state)
    assert sent.state == state
    link(**query(sent.shown))
    received = make()
    assert received.state == state
    assert on_screen(received) == on_screen(sent)
    assert problems(received) == {}


def html_of(view):
    return view.svg + view.numbers + view.python + view.link


# What the views say.


def expected(c, cost, critical, dtype):
    limits, rate = rl.bound(cost, c), units.rate_unit(dtype)
    return {
        "operations": human(cost.total_flops, rate.replace("/s", "s")),
        "bytes moved": human(cost.hbm_bytes, "B"),
        "matrix unit (mxu)": human(limits.parts_s["mxu"], "s"),
        "memory (hbm)": human(limits.parts_s["hbm"], "s"),
        "maximum, all overlaps": human(limits.lower_s, "s"),
        "sum, nothing overlaps": human(limits.upper_s, "s"),
        "binds": limits.binds,
        "critical batch, exact": "no m is enough" if critical.exact is None else f"m = {human(critical.exact, digits=4)}",
        "critical batch, rule of thumb": f"m = {human(critical.asymptotic, digits=4)}",
    }


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_the_roofline_view_shows_what_the_library_says(name, dtype):
    for log2_m, (k, n) in itertools.product((0, 5, 14), ((256, 256), (8192, 8192), (256, 32768))):
        view = roofline_view(name, dtype, log2_m, k, n)
        cost = rl.matmul(2**log2_m, k, n, x=dtype, w=dtype)
        critical = rl.critical_batch(chip(name), k=k, n=n, x=dtype, w=dtype)
        shown = rows(view)
        assert expected(chip(name), cost, critical, dtype).items() <= shown.items()
        limits = rl.bound(cost, chip(name))
        rate = units.rate_unit(dtype)
        share = limits.flops_per_s / chip(name).flops_per_s(dtype)
        assert shown[f"attained {rate}"] == f"{human(limits.flops_per_s, rate)}, {share:.1%} of the peak"
        assert human(rl.ridge(chip(name), dtype)) in shown["intensity"]
        assert shown["intensity"].startswith(f"{human(cost.intensity())} ")


def test_the_matmul_view_tells_storage_from_arithmetic():
    view = matmul_view(32, 8192, 28672, "bf16", "int8", "v5e")
    cost = rl.matmul(32, 8192, 28672, x="bf16", w="int8")
    critical = rl.critical_batch(chip("v5e"), k=8192, n=28672, x="bf16", w="int8")
    assert expected(chip("v5e"), cost, critical, "bf16").items() <= rows(view).items()
    assert "X[32, 8,192] in bf16 · W[8,192, 28,672] in int8" in view.numbers


def test_one_state_in_full():
    """A golden text: a changed constant, sign, unit or word shows here."""
    view = roofline_view("v5e", "bf16", 5, 8192, 8192)
    assert BeautifulSoup(view.numbers, "html.parser").get_text("|") == (
        "X[32, 8,192] in bf16 · W[8,192, 8,192] in bf16. |Memory binds| on v5e: at most 26 TFLOP/s, 13.2% of the peak."
        "|operations|4.29 GFLOPs|bytes moved|135 MB|intensity|31.8 FLOPs per byte; the ridge is 241"
        "|matrix unit (mxu)|21.8 µs|memory (hbm)|165 µs|maximum, all overlaps|165 µs|sum, nothing overlaps|187 µs|binds|hbm"
        "|attained FLOP/s|26 TFLOP/s, 13.2% of the peak|critical batch, exact|m = 255.5|critical batch, rule of thumb|m = 240.5"
    )


def test_where_no_batch_is_enough_the_view_says_so():
    assert rows(roofline_view("v5e", "bf16", 14, 256, 256))["critical batch, exact"] == "no m is enough"


def test_the_largest_sizes_stay_readable():
    shown = rows(matmul_view(units.MAX_SIZE, units.MAX_SIZE, units.MAX_SIZE, "bf16", "bf16", "v5e"))
    assert max(map(len, shown.values())) < 60


@pytest.mark.parametrize(
    "view",
    [
        roofline_view("v5e", "bf16", 5, 8192, 8192),
        roofline_view("h100", "int8", 14, 256, 32768),
        matmul_view(77, 8192, 28672, "bf16", "int4", "tpu7x"),
    ],
)
def test_the_code_to_copy_gives_the_same_numbers(view, capsys):
    page = BeautifulSoup(view.python, "html.parser")
    code = page.find("pre", class_="explorer-python").code.text
    names = {}
    exec(code, names)
    cost, limits = names["cost"], names["limits"]
    (dtype,) = cost.flops
    (where,) = [c for c in WITH_ROOFLINE if f'chip("{c.name}")' in code]
    assert expected(where, cost, names["critical"], dtype).items() <= rows(view).items()
    assert str(limits) in capsys.readouterr().out
    button = page.find("button", class_="explorer-copy")
    assert (button["type"], button.text) == ("button", "Copy as Python")
    assert max(map(len, code.splitlines())) <= 70


# The figure.


def labels(figure):
    """Every text of a figure with its box: left, top, right, bottom, from above."""
    boxes = {}
    for number, text in enumerate(ElementTree.fromstring(figure).iter("{http://www.w3.org/2000/svg}text")):
        x, y = float(text.get("x")), float(text.get("y"))
        width = svg.Label(text.text, 0, 0).width
        left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor")]
        boxes[number, text.text] = (left, y - 0.75 * svg.FONT, left + width, y + 0.25 * svg.FONT)
    return boxes


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


EXTREMES = [
    (1, 1, 1, "bf16", "int4"),
    (10**15, 10**15, 10**15, "bf16", "bf16"),
    (1, 10**15, 10**15, "bf16", "bf16"),
    (10**6, 1, 10**6, "bf16", "bf16"),
]


def assert_room(figure):
    """Every label lies in the figure, and none on another."""
    boxes, height = labels(figure), float(ElementTree.fromstring(figure).get("viewBox").split()[3])
    for left, top, right, low in boxes.values():
        assert min(left, top) >= 0
        assert right <= svg.WIDTH
        assert low <= height
    assert [(a, b) for a, b in itertools.combinations(boxes, 2) if overlap(boxes[a], boxes[b])] == []


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_every_label_lies_in_the_figure_and_none_on_another(name, dtype):
    sizes = itertools.product(range(15), (256, 32768), (256, 8192))
    figures = [roofline_view(name, dtype, *size).svg for size in sizes]
    figures += [matmul_view(*shape, name).svg for shape in EXTREMES]
    for figure in figures:
        assert_room(figure)


def test_the_label_check_can_fail():
    figure = svg.figure([str(svg.Label("one", 10, 20)), str(svg.Label("two", 15, 22)), str(svg.Label("far out", 380, 20))], "")
    one, two, out = labels(figure).values()
    assert overlap(one, two)
    assert not overlap(one, out)
    assert out[2] > svg.WIDTH


def numbers(text):
    return [tuple(map(float, pair.split(","))) for pair in text.split()]


@pytest.mark.parametrize("log2_m", range(15))
def test_the_point_lies_on_its_roof(log2_m):
    figure = ElementTree.fromstring(roofline_view("v5e", "bf16", log2_m, 8192, 8192).svg)
    slope, ceiling = (numbers(line.get("points")) for line in figure.iter("{http://www.w3.org/2000/svg}polyline"))
    (point,) = figure.iter("{http://www.w3.org/2000/svg}circle")
    x, y = float(point.get("cx")), float(point.get("cy"))
    binds = rl.bound(rl.matmul(2**log2_m, 8192, 8192), chip("v5e")).binds
    (x0, y0), (x1, y1) = slope if binds == "hbm" else ceiling
    assert x0 - 0.1 <= x <= x1 + 0.1
    assert y == pytest.approx(y0 + (x - x0) / (x1 - x0) * (y1 - y0), abs=0.2)
    assert slope[1] == ceiling[0]


def test_axes_stand_still_while_the_sliders_move():
    def axes(figure):
        return [box for box in labels(figure).items() if not box[0][1].startswith("m = ")]

    assert axes(roofline_view("b200", "fp4", 0, 256, 256).svg) == axes(roofline_view("b200", "fp4", 14, 32768, 32768).svg)


def test_places_on_an_axis_are_logarithmic_and_y_points_up():
    axes = svg.LogAxes((1, 1e4), (1e9, 1e15))
    assert axes.x(100) - axes.x(1) == pytest.approx(axes.x(1e4) - axes.x(100))
    assert axes.y(1e12) == pytest.approx((axes.y(1e9) + axes.y(1e15)) / 2)
    assert axes.y(1e15) < axes.y(1e9)


def test_ticks_are_decades_with_prefixes_and_not_too_many():
    assert [svg.tick(value) for value in svg.decades(0.1, 1e5)] == ["0.1", "1", "10", "100", "1 k", "10 k", "100 k"]
    assert [svg.tick(value) for value in svg.decades(0.1, 1e6)] == ["0.1", "10", "1 k", "100 k"]
    assert [svg.tick(value) for value in svg.decades(5e11, 6e14)] == ["1 T", "10 T", "100 T"]
    assert len(svg.decades(1e-3, 1e30)) <= 7


def test_a_figure_is_described_and_takes_colors_from_page_and_palette():
    text = roofline_view("v5e", "int8", 5, 8192, 8192).svg
    figure = ElementTree.fromstring(text)
    assert figure.get("role") == "img"
    for words in ("v5e", "int8", "slope", "HBM, 819 GB/s", "393 TOP/s", "m = 32", "63.5 FLOPs per byte"):
        assert words in figure.get("aria-label")
    assert figure.get("fill") == "currentColor"
    colors = [line.get("stroke") for line in figure.iter("{http://www.w3.org/2000/svg}polyline")]
    assert colors == [plots.COLORS["hbm"], plots.COLORS["mxu"]]
    shown = [text for _, text in labels(text)]
    assert "FLOPs per byte moved" in shown
    assert "attainable OP/s on v5e" in shown


def test_text_is_readable_on_a_phone_and_not_huge_on_a_desk():
    assert svg.FONT / svg.WIDTH * 350 > 11
    assert svg.FONT / svg.WIDTH * svg.MAX_WIDTH_PX < 18


def test_names_with_signs_of_html_are_escaped():
    odd = chip("v5e").but()
    object.__setattr__(odd, "name", '<v"5&>')
    figure = ElementTree.fromstring(svg.roofline(odd, rl.matmul(8, 8, 8), "a < b"))
    assert '<v"5&>' in figure.get("aria-label")


# Memories.


def test_the_memory_view_shows_what_the_library_says():
    shown = rows(memory_view("v5e", "bf16", 20))
    array, v5e = 2 * 2**20, chip("v5e")
    assert shown == {
        "VMEM to matrix unit": human(array / v5e.vmem_bytes_per_s, "s"),
        "HBM to VMEM": human(array / v5e.hbm_bytes_per_s, "s"),
        "ICI, one link": human(array / v5e.ici_link_bytes_per_s, "s"),
        "ICI, both ways of a ring": human(array / v5e.ici_link_bytes_per_s / 2, "s"),
        "PCIe, from the host": human(array / v5e.pcie_bytes_per_s, "s"),
        "DCN, the chip's share": human(array / v5e.dcn_bytes_per_s, "s"),
    }
    assert rows(memory_view("h100", "f32", 10))["fabric, all links"] == human(4096 / chip("h100").fabric_bytes_per_s, "s")


def test_a_path_without_a_source_is_named_and_not_dropped():
    view = memory_view("v5p", "bf16", 20)
    assert rows(view)["VMEM to matrix unit"] == "no sourced figure"
    assert "no sourced figure" in [text for _, text in labels(view.svg)]
    assert "VMEM to matrix unit" not in BeautifulSoup(view.python, "html.parser").code.text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (("v5e", "int8", 27), "It fits in VMEM (128 MiB) and fits in HBM (15.8 GiB) on v5e."),
        (("v5e", "bf16", 27), "It does not fit in VMEM (128 MiB) and fits in HBM (15.8 GiB) on v5e."),
        (("v5e", "int8", 34), "It does not fit in VMEM (128 MiB) and does not fit in HBM (15.8 GiB) on v5e."),
        (("h100", "int8", 34), "It fits in HBM (80 GiB) on h100."),
    ],
)
def test_which_memories_hold_the_array(state, words):
    assert BeautifulSoup(memory_view(*state).numbers, "html.parser").p.text.endswith(words)


@pytest.mark.parametrize("c", WITH_HBM, ids=str)
def test_bars_of_every_chip_are_in_order_of_their_times_and_labels_have_room(c):
    for dtype, log2_elements in itertools.product(("f32", "int4"), range(10, 37)):
        view = memory_view(c.name, dtype, log2_elements)
        assert_room(view.svg)
        bars = [
            (rect.get("class"), float(rect.get("width")), rect.get("fill"))
            for rect in ElementTree.fromstring(view.svg).iter("{http://www.w3.org/2000/svg}rect")
        ]
        known = [row for row in rows(view).values() if row != "no sourced figure"]
        assert len(bars) == len(known)
        assert all(0 < wide <= svg.WIDTH and fill == palette.COLORS[resource] for resource, wide, fill in bars)
    hbm, ici = (next(wide for resource, wide, _ in bars if resource == which) for which in ("hbm", "ici"))
    assert hbm < ici


def test_the_memory_code_to_copy_gives_the_same_numbers(capsys):
    for state in (("v5e", "bf16", 24), ("v5p", "int4", 10), ("h100", "f32", 36)):
        view = memory_view(*state)
        code = BeautifulSoup(view.python, "html.parser").find("pre", class_="explorer-python").code.text
        exec(code, names := {})
        known = {path: said for path, said in rows(view).items() if said != "no sourced figure"}
        assert {path: human(seconds, "s") for path, seconds in names["times"].items()} == known
        assert capsys.readouterr().out.splitlines() == [f"{path} {said}" for path, said in known.items()]
        assert max(map(len, code.splitlines())) <= 70


# Tori.


def test_the_torus_view_shows_what_the_library_says():
    view = torus_view("v5p", "4x4x8_twisted", "0, 0, 0", "3, 2, 5")
    torus, ends = Torus(slice_of("v5p:4x4x8"), twisted=True), ((0, 0, 0), (3, 2, 5))
    assert rows(view) == {
        "chips": "128",
        "JAX devices": "128",
        "hosts": "32",
        "wraparound": "axes 0, 1, 2, twisted",
        "links in all": "384; a chip has up to 6",
        "diameter": "6 hops",
        "mean distance": "3.46 hops",
        "bisection": f"64 links, {human(torus.bisection_bytes_per_s(), 'B/s')} one way",
        "from a to b": f"{torus.hops(*ends)} hops, {torus.ports(*ends)} ports at once",
        "1 MB from a to b": f"{human(torus.transfer_s(*ends, 1e6), 's')}, latency left out",
    }


@pytest.mark.parametrize(
    ("state", "wraparound", "way"),
    [
        (("v5e", "4x4", "0,0", "3,3"), "no axis", "6 hops, 2 ports at once"),
        (("v5e", "8x16", "0 0", "0 15"), "axis 1", "1 hop, 1 port at once"),
        (("v6e", "16x16", "(0, 0)", "(8, 8)"), "axes 0, 1", "16 hops, 4 ports at once"),
        (("tpu7x", "4x4x4", "1, 2, 3", "1, 2, 3"), "axes 0, 1, 2", "0 hops, 0 ports at once"),
    ],
)
def test_wraps_and_ways(state, wraparound, way):
    shown = rows(torus_view(*state))
    assert (shown["wraparound"], shown["from a to b"]) == (wraparound, way)


def test_devices_of_a_chip_of_two_are_told_from_chips():
    shown = rows(torus_view("tpu7x", "4x4x8", "0,0,0", "0,0,1"))
    assert (shown["chips"], shown["JAX devices"], shown["hosts"]) == ("128", "256", "32")


def test_every_usual_shape_of_every_chip_is_drawn_with_room_for_its_labels():
    for c in WITH_TORUS:
        move(explorer := torus_explorer(), chip=c.name)
        offered = explorer.controls["shape"].widget.options
        assert "x".join(map(str, c.pod_shape)) in offered
        assert any(shape.endswith("_twisted") for shape in offered) == (c.name in ("v4", "v5p"))
        for shape in offered:
            move(explorer, shape=shape)
            assert explorer.state["shape"] == shape
            assert not any(problem(explorer, field) for field in explorer.controls)
            assert_room(explorer.shown.svg)
            assert len(explorer.shown.svg) < 25_000


def dots(figure):
    (path, *more) = ElementTree.fromstring(figure).findall("{*}path[@class='chips']")
    return sum(layer.get("d").count("M") for layer in (path, *more))


@pytest.mark.parametrize(
    ("state", "drawn"),
    [
        (("v5e", "2x4", "0,0", "1,3"), 8),
        (("v5p", "4x4x8", "0,0,0", "3,3,7"), 128),
        (("v5p", "8x8x16", "0,0,0", "4,4,8"), 1024),
        (("v5p", "16x20x28", "1,0,0", "8,10,14"), 2 * 20 * 28),  # the layers of the two ends
        (("v5p", "16x20x28", "1,0,0", "1,10,14"), 20 * 28),
    ],
)
def test_all_chips_are_drawn_or_the_layers_of_both_ends(state, drawn):
    assert dots(torus_view(*state).svg) == drawn


def test_the_route_is_drawn_link_by_link_and_goes_around():
    def lines(*state):
        paths = ElementTree.fromstring(torus_view(*state).svg).findall("{*}path[@class='ici']")
        return [(len(re.findall("[LQ]", path.get("d"))), path.get("stroke-dasharray") is not None) for path in paths]

    assert lines("v5e", "4x4", "0,0", "3,3") == [(6, False)]
    assert lines("v5e", "16x16", "0,0", "0,15") == [(2, False)]  # out at one end, in at the other
    assert lines("v5p", "4x4x4", "0,0,0", "2,1,1") == [(2, False), (2, True)]  # two hops between layers
    assert lines("v5e", "4x4", "1,1", "1,1") == []


def test_a_torus_is_described():
    figure = ElementTree.fromstring(torus_view("v5p", "16x20x28", "0,0,0", "8,10,14").svg)
    assert figure.get("aria-label") == (
        "The chips of v5p:16x20x28 and their links; axes that wrap: 0, 1, 2. Of its 16 layers, 0 and 8 are drawn. "
        "A shortest route from (0, 0, 0) to (8, 10, 14) takes 32 hops."
    )


def test_the_torus_code_to_copy_gives_the_same_numbers(capsys):
    view = torus_view("v5p", "4x8x8_twisted", "0, 0, 0", "3, 2, 5")
    code = BeautifulSoup(view.python, "html.parser").find("pre", class_="explorer-python").code.text
    exec(code, names := {})
    torus = names["torus"]
    assert torus == Torus(Slice(chip("v5p"), (4, 8, 8)), twisted=True)
    assert rows(view)["from a to b"].startswith(f"{torus.hops(names['a'], names['b'])} hops")
    assert str(torus.route((0, 0, 0), (3, 2, 5))) in capsys.readouterr().out
    assert max(map(len, code.splitlines())) <= 70


def test_a_new_slice_names_two_of_its_own_chips():
    explorer = torus_explorer()
    move(explorer, chip="v5p")
    assert len(Torus(slice_of(f"v5p:{explorer.state['shape']}")).shape) == 3
    move(explorer, shape="2x2x4")
    assert explorer.state == {"chip": "v5p", "shape": "2x2x4", "a": "0, 0, 0", "b": "1, 1, 3"}
    assert torus_explorer(chip="v5p", shape="4x4x8").state["b"] == "2, 2, 4"
    move(explorer, shape="4x4x8", a="(3,3,7)", b="1 2 3")
    assert (explorer.state["a"], explorer.state["b"]) == ("3, 3, 7", "1, 2, 3")
    move(explorer, shape="4x4x8_twisted")  # the same chips
    assert (explorer.state["a"], explorer.state["b"]) == ("3, 3, 7", "1, 2, 3")


def test_from_any_slice_another_chip_leads_to_a_slice_of_its_own_and_two_of_its_chips():
    for before, after in itertools.permutations(WITH_TORUS, 2):
        explorer = torus_explorer()
        for shape in offered(before):
            move(explorer, chip=before.name)
            move(explorer, shape=shape)
            move(explorer, b="no chip")
            move(explorer, chip=after.name)
            now = explorer.controls["shape"].widget.value
            assert now in explorer.controls["shape"].widget.options == offered(after)
            if now == shape:  # the same slice: what was typed stays, and what is said of it
                assert "b='no chip' is no chip" in problem(explorer, "b")
                move(explorer, b=explorer.controls["a"].widget.value)
            assert (explorer.state["chip"], explorer.state["shape"]) == (after.name, now)
            assert explorer.shown == torus_view(**explorer.state)
            assert not any(problem(explorer, field) for field in explorer.controls)


def offered(c):
    """The slices that the torus explorer offers of a chip."""
    move(explorer := torus_explorer(), chip=c.name)
    return explorer.controls["shape"].widget.options


@pytest.mark.parametrize(
    ("typed", "words"),
    [("", "b='' is no chip; write its coordinates"), ("x", "b='x' is no chip"), ("-1, 0", "b='-1, 0' is no chip"),
     ("4, 0", "b=(4, 0) is no chip of v5e:4x4; the last one is (3, 3)"), ("1", "b=(1,) is no chip of v5e:4x4"),
     ("1" * 30, "is no chip"), ("<b>", "b='<b>' is no chip")],
)  # fmt: skip
def test_a_chip_that_is_none_is_said_beside_its_field(typed, words):
    explorer = torus_explorer()
    before = on_screen(explorer)
    move(explorer, b=typed)
    assert words in problem(explorer, "b")
    assert [field for field in explorer.controls if problem(explorer, field)] == ["b"]
    assert on_screen(explorer) == before
    move(explorer, b="2, 1")
    assert problem(explorer, "b") == ""
    assert explorer.shown == torus_view("v5e", "4x4", "0, 0", "2, 1")


# Sharded matmuls.


def why(view):
    return BeautifulSoup(view.numbers, "html.parser").find("div", class_="explorer-why").text


@pytest.mark.parametrize(("objective", "steps"), [*itertools.product(("sum", "max"), STEPS)])
def test_the_sharding_view_shows_what_the_library_says(objective, steps):
    view = sharding_view(**CASE_2 | {"objective": objective, "steps": steps})
    sizes, mesh = {"I": 8192, "J": 4096, "K": 16384}, {"X": 4, "Y": 4}
    plan = matmul_plan(CASE_2["product"], sizes, mesh, "v5e:4x4", objective=objective, kinds=STEPS[steps])
    shown = rows(view)
    for number, step in enumerate(plan.steps, 1):
        (cost,) = [text for row, text in shown.items() if row.startswith(f"{number}. {step.kind}")]
        parts = ([human(step.bytes, "B")] if step.communicates else []) + [human(step.seconds, "s")]
        assert cost == (", ".join(parts) if step.kind != "slice" else "no bytes move")
    assert shown["communication"] == human(plan.communication_s, "s")
    assert shown["local matmul"] == human(plan.compute_s, "s")
    assert shown["maximum, all overlaps"] == human(plan.lower_s, "s")
    assert shown["sum, nothing overlaps"] == human(plan.upper_s, "s")
    other = plan.runner_up
    assert shown["runner-up"] == (human(other.seconds, "s") if other else "none with other collectives")
    assert (other is None) == (steps == "textbook")
    assert f"{plan.product}\n{why(view)}" == plan.explain()
    assert view.svg == holdings.draw_plan(plan).svg


def test_one_sharding_in_full():
    """A golden text: a changed constant, sign, unit or word shows here."""
    view = sharding_view(**CASE_2 | {"steps": "textbook"})
    assert BeautifulSoup(view.numbers, "html.parser").get_text("|") == (
        "All-gather over X of A| on v5e:4x4; the local matmul takes longer than communication."
        "|1. all-gather over X of A|67.1 MB, 1.12 ms|2. matmul|1.4 ms|communication|1.12 ms|local matmul|1.4 ms"
        "|maximum, all overlaps|1.4 ms|sum, nothing overlaps|2.51 ms|runner-up|none with other collectives|"
        "1. all-gather over X: A[I, J_X] -> A[I, J]. J is summed over, and B is not cut alike: B[J, K_Y]. 67.1 MB on a device, "
        "1.12 ms.\n2. matmul: A[I, J] · B[J, K_Y] -> C[I, K_Y]. Each device multiplies what it holds, and its part of the result "
        "is complete. 1.4 ms.\nTime: 1.4 ms if communication and compute overlap fully, 2.51 ms if they do not.\n"
        "No plan with other collectives exists."
    )


def test_a_product_that_moves_no_bytes_says_so():
    view = sharding_view(**CASE_2 | {"product": "A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]", "steps": "textbook"})
    assert BeautifulSoup(view.numbers, "html.parser").p.text == "No bytes move between chips on v5e:4x4."


@pytest.mark.parametrize("name", SLICES)
def test_every_example_works_on_every_slice_that_is_offered(name):
    explorer = sharding_explorer()
    example = explorer.children[0].children[0]
    move(explorer, slice=name)
    for each in EXAMPLES:
        example.value = each.name
        assert not any(problem(explorer, field) for field in explorer.controls)
        assert (explorer.state["slice"], explorer.state["product"]) == (name, each.product)
        assert explorer.shown == sharding_view(**explorer.state)
        assert_room(explorer.shown.svg)
        assert len(explorer.shown.svg) < 25_000
        code = BeautifulSoup(explorer.shown.python, "html.parser").find("pre", class_="explorer-python").code.text
        assert max(map(len, code.splitlines())) <= 70


def test_examples_are_written_as_the_library_writes_them():
    for each in EXAMPLES:
        assert str(parse_product(each.product, {"X": 4, "Y": 4})) == each.product
    assert len({each.name for each in EXAMPLES}) == len(EXAMPLES)


def test_the_textbook_knows_four_cases_by_three_kinds_of_steps():
    def kinds(each):
        view = sharding_view(**CASE_2 | {"product": each.product, "sizes": each.sizes, "steps": "textbook"})
        return re.findall(r"[a-z]+-[a-z]+(?= over)", BeautifulSoup(view.numbers, "html.parser").p.text.lower())

    cases = {each.name.partition(":")[0]: kinds(each) for each in EXAMPLES if each.name.startswith("case")}
    assert cases == {
        "case 1": [], "case 2": ["all-gather"], "case 3": ["all-reduce"], "case 3, sum left open": [],
        "case 3, sum scattered": ["reduce-scatter"], "case 4": ["all-gather"],
    }  # fmt: skip


def test_the_sharding_code_to_copy_gives_the_same_numbers(capsys):
    for state in (CASE_2, CASE_2 | {"steps": "textbook", "objective": "max", "dtype": "int8"}):
        view = sharding_view(**state)
        code = BeautifulSoup(view.python, "html.parser").find("pre", class_="explorer-python").code.text
        exec(code, names := {})
        assert rows(view)["sum, nothing overlaps"] == human(names["plan"].upper_s, "s")
        assert why(view) in capsys.readouterr().out
        assert holdings.draw_plan(names["plan"]).svg == view.svg
        assert max(map(len, code.splitlines())) <= 70


def test_a_picked_example_fills_the_fields_and_other_text_is_your_own():
    explorer = sharding_explorer()
    example = explorer.children[0].children[0]
    assert example.value == "case 2: J of A cut"
    example.value = "a matmul for each sequence"
    assert explorer.state["product"] == "Q[B_X, T, H] · K[B, S_Y, H] -> P[B_X, T, S_Y]"
    assert explorer.state["sizes"] == "B=64, T=4096, S=4096, H=128"
    move(explorer, sizes="B=64, T=4096, S=4096, H=256")
    assert example.value == "your own"
    example.value = "a matmul for each sequence"
    assert explorer.state["sizes"] == "B=64, T=4096, S=4096, H=128"
    move(explorer, product=EXAMPLES[0].product, sizes=EXAMPLES[0].sizes)
    assert example.value == EXAMPLES[0].name


def test_a_slice_keeps_a_mesh_that_lies_on_it_and_gets_another_otherwise():
    explorer = sharding_explorer()
    for change, mesh in (
        ({"slice": "v6e:4x4"}, "X=4, Y=4"), ({"slice": "v5e:8x16"}, "X=8, Y=16"), ({"slice": "v5e:16x16"}, "X=16, Y=16"),
        ({"slice": "v5p:4x4x4"}, "X=4, Y=16"), ({"mesh": "X=16, Y=4"}, "X=16, Y=4"), ({"slice": "tpu7x:4x4x4"}, "X=16, Y=4"),
        ({"mesh": "Y=4, Z=4, X=4"}, "Y=4, Z=4, X=4"), ({"slice": "v5p:8x8x8"}, "Y=8, Z=8, X=8"),
        ({"slice": "v5e:4x4"}, "X=4, Y=4"),
    ):  # fmt: skip
        move(explorer, **change)
        assert explorer.state["mesh"] == mesh
    move(explorer, mesh="nothing")
    move(explorer, slice="v5e:8x16")
    assert explorer.state["mesh"] == "X=8, Y=16"
    assert not any(problem(explorer, field) for field in explorer.controls)


def test_formats_offered_are_those_of_the_chip():
    explorer = sharding_explorer(slice="v6e:4x4", dtype="fp8")
    move(explorer, slice="v5e:4x4")
    assert explorer.state["dtype"] == "bf16"
    assert explorer.controls["dtype"].widget.options == ("bf16", "int8")


@pytest.mark.parametrize(
    ("field", "typed", "words"),
    [
        ("product", "", "a product has one '->' before its result"),
        ("product", "A[I, J_X] · B[J, K_Q] -> C[I, K]", "column 20: 'Q' is no axis of the mesh, which has X=4, Y=4"),
        ("product", "A[I_X, J_X] · B[J, K] -> C[I, K]", "column 10: this array uses mesh axis X twice"),
        ("product", "A[I, J] · B[J, K] -> C[I, L]", "L is in no operand"),
        ("product", "A[I, J] · B[J, <b>] -> C[I, K]", "'<b>' is no dimension"),
        ("product", "A[I] · B[I] -> C[]", "sizes has 'J', which is no dimension of A[I] · B[I] -> C[]"),
        ("sizes", "", "sizes='' does not read; write it like 'I=8192, J=4096'"),
        ("sizes", "I=8192, J=4098, K=16384", "J=4098 is no multiple of X=4; 4100 would do, with 0.0488 % more elements"),
        ("sizes", "I=8192, J=4096", "give a size for K"),
        ("sizes", "I=8192, J=4096, K=0", "K=0 is not a size"),
        ("sizes", "I=8192, J=4096, K=8k", "K='8k' is not a number"),
        ("sizes", "I=8192, J=4096, I=8192", "names I twice"),
        ("mesh", "X=4, Y", "mesh='X=4, Y' does not read; write it like 'X=4, Y=4'"),
        ("mesh", "X=4, Y=5", "does not lie on v5e:4x4, whose axes have 4 and 4 chips"),
        ("mesh", "<b>", "mesh='<b>' does not read"),
        ("mesh", "X=" + "9" * 400, "too large"),
    ],
)
def test_what_sharding_refuses_is_said_beside_its_field(field, typed, words):
    explorer = sharding_explorer()
    before = on_screen(explorer)
    move(explorer, **{field: typed})
    assert words in problem(explorer, field)
    assert [each for each in explorer.controls if problem(explorer, each)] == [field]
    assert on_screen(explorer) == before
    move(explorer, **{field: CASE_2[field]})
    assert problem(explorer, field) == ""
    assert explorer.shown == sharding_view(**CASE_2)


def test_a_product_that_the_textbooks_steps_do_not_make_is_said_beside_it():
    explorer = sharding_explorer(product="A[I_X, J] · B[J, K] -> C[I, K_X]")
    move(explorer, steps="textbook")
    assert "no steps lead to the result" in problem(explorer, "product")
    assert explorer.state["steps"] == "all"


def test_the_column_of_a_fault_is_pointed_at_below_the_text():
    explorer = sharding_explorer()
    text = "A[I, J_X] · B[J, K_Q] -> C[I, K]"
    move(explorer, product=text)
    place = BeautifulSoup(explorer.controls["product"].problem.value, "html.parser").code
    assert place.text == f"{text}\n{' ' * text.index('Q')}^"
    assert "white-space:pre" in place["style"]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [("I=8,192, J=4e3; K=96", "I=8192, J=4000, K=96"), ("I = 8192 J=4_096   K= 64,", "I=8192, J=4096, K=64")],
)
def test_sizes_as_people_write_them(typed, shown):
    move(explorer := sharding_explorer(), sizes=typed)
    assert explorer.state["sizes"] == shown


# Models and their caches.


@pytest.mark.parametrize("name", ["GPT-2 small", "Llama-3 70B", "Mixtral 8x7B", "DeepSeek-V3", "Gemma-3 27B"])
def test_the_model_view_shows_what_the_library_says(name):
    T, B, m = 4097, 3, tf.model(name)
    shown = rows(model_view(name, T, B, "int8", "parameters"))
    weights, cache = tf.weight_bytes(m, "int8").total, tf.kv_cache_bytes(m, S=T, B=B, dtype="int8")
    train = [tf.train_flops(m, T=T, causal=causal).model_flops / T for causal in (True, False)]
    assert shown["parameters"] == f"{tf.parameters(m).total:,}"
    active = [text for row, text in shown.items() if row.startswith("active")]
    assert active == [f"{tf.active_parameters(m, counting):,}" for counting in tf.COUNTINGS]
    assert shown["train, a token"] == f"{human(train[0], 'FLOPs')} causal, {human(train[1], 'FLOPs')} without a mask"
    assert shown["weights"] == human(weights, "GiB" if weights >= units.GIB else "B")
    assert shown["KV cache, batch"] == human(cache, "GiB" if cache >= units.GIB else "B")
    assert shown["KV cache, a token"] == human(tf.kv_cache_bytes(m, S=1, dtype="int8"), "B")
    decode = tf.forward_flops(m, T=1, S=T, causal=True, absorbed=m.latent is not None).total
    assert shown["decode, token T"] == human(decode, "FLOPs")
    assert human(16 * tf.parameters(m).total, "GiB") in shown["training states"]
    kept = tf.activation_bytes(m, T=T, B=B, flash=True, dtype="int8").total_bytes
    assert human(kept, "GiB" if kept >= units.GIB else "B") in shown["activations"]


def test_one_model_in_full():
    view = model_view(**MODEL)
    assert BeautifulSoup(view.numbers, "html.parser").get_text("|") == (
        "Llama-3 8B|: 8.03 billion parameters. To serve 1 × 8,192 tokens: 16 GiB, weights and KV cache in bf16."
        "|parameters|8,030,261,248|active, without idle experts|8,030,261,248|active, and without lookups|7,504,924,672"
        "|active, in matmuls|7,504,658,432|active, in layers|6,979,588,096"
        "|train, a token|51.5 GFLOPs causal, 57.9 GFLOPs without a mask"
        "|forward, a token|17.2 GFLOPs causal, 19.3 GFLOPs without a mask|decode, token T|19.3 GFLOPs"
        "|weights|15 GiB|KV cache, a token|131 kB|KV cache, batch|1 GiB|training states|120 GiB, Adam, 16 B a parameter"
        "|activations|38.1 GiB with flash; 6.04 GiB with full remat"
    )
    assert view.svg == treemap.parameters(tf.model("Llama-3 8B")).svg
    assert model_view(**MODEL | {"area": "FLOPs"}).svg == treemap.flops(tf.model("Llama-3 8B"), T=8192, causal=True).svg


def test_a_pasted_configuration_counts_as_the_model_it_describes():
    explorer = model_explorer()
    (pick,) = [child.children[0] for child in explorer.children[:1]]
    move(explorer, model=json.dumps(LLAMA, indent=2))
    assert explorer.state["model"] == PASTED
    assert pick.value == "your own"
    known = tf.Transformer.from_hf_config(LLAMA)
    assert rows(explorer.shown)["parameters"] == f"{tf.parameters(known).total:,}"
    pick.value = "Mixtral 8x7B"
    assert explorer.state["model"] == explorer.controls["model"].widget.value == "Mixtral 8x7B"
    move(explorer, model="llama3-70b ")
    assert (pick.value, explorer.state["model"]) == ("Llama-3 70B", "Llama-3 70B")
    assert list(pick.options) == ["your own", *tf.MODELS]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "no model: pick one, write its name, or paste a config.json"),
        ("llama9", "did you mean"),
        ("{", "config.json does not read: Expecting property name"),
        ('{"a":' * 100_000, "nested too deep"),
        ('{"model_type": "llama"}', "config has no 'num_hidden_layers', which llama needs"),
        ('{"model_type": "t5"}', "an encoder-decoder"),
        ('{"model_type": "<b>"}', "model_type='<b>'"),
        (PASTED.replace("24", "23"), "does not divide"),
    ],
)
def test_a_model_that_is_none_is_said_beside_its_field(typed, words):
    explorer = model_explorer()
    before = on_screen(explorer)
    move(explorer, model=typed)
    assert words in problem(explorer, "model")
    assert [field for field in explorer.controls if problem(explorer, field)] == ["model"]
    assert on_screen(explorer) == before
    move(explorer, model=MODEL["model"])
    assert problem(explorer, "model") == ""


def test_every_model_of_the_catalog_can_be_explored_with_room_for_its_labels():
    for name in tf.MODELS:
        for area in AREAS:
            assert_room(model_view(name, 8192, 1, "bf16", area).svg)


@pytest.mark.parametrize("model", ["DeepSeek-V3", PASTED])
def test_the_model_code_to_copy_gives_the_same_numbers(model, capsys):
    for area in AREAS:
        view = model_view(model, 4096, 3, "int8", area)
        code = BeautifulSoup(view.python, "html.parser").find("pre", class_="explorer-python").code.text
        exec(code, names := {})
        assert names["model"] == read_model(model)
        assert f"{names['total']:,}" == rows(view)["parameters"]
        assert rows(view)["train, a token"].startswith(human(names["train"], "FLOPs"))
        assert eval(code.splitlines()[-1], names).svg == view.svg
        assert f"KV cache {names['cache']:,.0f} B" in capsys.readouterr().out
        assert max(map(len, code.splitlines())) <= 70


def test_the_cache_view_shows_what_the_library_says():
    S, B = 70_001, 3
    view = cache_view(USUAL, S, B, "int8", "v6e")
    hbm = chip("v6e").hbm_bytes
    for name, text in rows(view).items():
        m = tf.model(name)
        size = tf.kv_cache_bytes(m, S=S, B=B, dtype="int8")
        assert text.startswith(f"{human(size, 'B')}, {human(100 * size / hbm)} % of HBM; all of it holds ")
        most = int(re.search(r"holds ([\d,]+) tokens", text)[1].replace(",", ""))
        assert tf.kv_cache_bytes(m, S=most, B=B, dtype="int8") <= hbm < tf.kv_cache_bytes(m, S=most + 1, B=B, dtype="int8")
    assert [*rows(view)] == USUAL.split(", ")
    assert "of DeepSeek-V3 to" in BeautifulSoup(view.numbers, "html.parser").text
    assert view.svg == kv_cache.curves(read_models(USUAL), B=B, dtype="int8", chip=chip("v6e")).svg


def test_one_cache_in_full():
    assert BeautifulSoup(cache_view("Gemma-3 27B, Llama-2 7B", 32768, 1, "bf16", "v5e").numbers, "html.parser").get_text("|") == (
        "1 × 32,768 tokens in bf16: |3.12 GB| of Gemma-3 27B to |17.2 GB| of Llama-2 7B. v5e has 16 GiB, here without weights."
        "|Gemma-3 27B|3.12 GB, 18.2 % of HBM; all of it holds 204,390 tokens"
        "|Llama-2 7B|17.2 GB, 100 % of HBM; all of it holds 32,768 tokens"
    )


def test_one_model_alone_is_not_compared():
    words = BeautifulSoup(cache_view("Llama-3 8B", 8192, 1, "bf16", "v5e").numbers, "html.parser").p.text
    assert words == "1 × 8,192 tokens in bf16: 1.07 GB of Llama-3 8B. v5e has 16 GiB, here without weights."


def test_a_picked_example_fills_the_models_and_other_models_are_your_own():
    explorer = cache_explorer()
    pick = explorer.children[0].children[0]
    assert pick.value == "kinds of attention"
    for name, models in CACHES.items():
        pick.value = name
        assert explorer.state["models"] == explorer.controls["models"].widget.value == models
        assert_room(explorer.shown.svg)
    move(explorer, models="llama3-8b, mistral 7b")
    assert (pick.value, explorer.state["models"]) == ("your own", "Llama-3 8B, Mistral 7B")
    move(explorer, models=USUAL.lower())
    assert (pick.value, explorer.state["models"]) == ("kinds of attention", USUAL)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "models names 0 of them; give 1 to 6"),
        (f"{USUAL}, PaLM 8B", "models names 7 of them; give 1 to 6"),
        ("PaLM 8B, palm8b", "models names PaLM 8B twice; leave one out"),
        ("Llama-3 8B, <b>", "model='<b>' is unknown"),
    ],
)
def test_models_that_are_none_are_said_beside_their_field(typed, words):
    explorer = cache_explorer()
    before = on_screen(explorer)
    move(explorer, models=typed)
    assert words in problem(explorer, "models")
    assert [field for field in explorer.controls if problem(explorer, field)] == ["models"]
    assert on_screen(explorer) == before


def test_the_cache_code_to_copy_gives_the_same_numbers(capsys):
    view = cache_view(USUAL, 70_001, 3, "int8", "v5p")
    code = BeautifulSoup(view.python, "html.parser").find("pre", class_="explorer-python").code.text
    exec(code, names := {})
    printed = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert [*printed] == [*rows(view)]
    assert all(rows(view)[name].startswith(human(float(size), "B")) for name, size in printed.items())
    assert eval(code.splitlines()[-1], names).svg == view.svg
    assert max(map(len, code.splitlines())) <= 70


def test_caches_of_any_six_models_are_drawn_with_room_for_their_labels():
    many = [*tf.MODELS]
    for start in range(0, len(many), 6):
        for B, dtype, c in itertools.product((1, 10**6), ("f32", "int4"), ("v5e", "b200")):
            assert_room(cache_view(", ".join(many[start : start + 6]), 4096, B, dtype, c).svg)


# The controls.


def test_moving_each_control_shows_the_view_of_the_new_state():
    explorer = roofline_explorer()
    for change in ({"log2_m": 9}, {"k": 256}, {"n": 32768}, {"dtype": "int8"}, {"chip": "v5p"}, {"chip": "b200"}):
        move(explorer, **change)
        assert explorer.state == {**explorer.state, **change}
        assert explorer.shown == roofline_view(**explorer.state)
        assert on_screen(explorer) == html_of(explorer.shown)
    assert set(explorer.state) == set(explorer.controls)


def test_moving_each_control_of_your_matmul_shows_the_view_of_the_new_state():
    explorer = matmul_explorer()
    for change in ({"m": "8,192"}, {"k": "100"}, {"n": "1_000"}, {"x": "fp8"}, {"w": "int4"}, {"chip": "h100"}):
        move(explorer, **change)
    assert explorer.state == {"m": 8192, "k": 100, "n": 1000, "x": "fp8", "w": "int4", "chip": "h100"}
    assert explorer.shown == matmul_view(**explorer.state)
    assert on_screen(explorer) == html_of(explorer.shown)


def test_moving_each_control_of_the_memory_and_the_torus_shows_the_view_of_the_new_state():
    memory = memory_explorer()
    for change in ({"chip": "v6e"}, {"dtype": "f32"}, {"log2_elements": 30}):
        move(memory, **change)
        assert memory.state == {**memory.state, **change}
        assert memory.shown == memory_view(**memory.state)
        assert on_screen(memory) == html_of(memory.shown)
    torus = torus_explorer()
    for change in ({"chip": "v5p"}, {"shape": "4x8x8"}, {"a": "1, 7, 2"}, {"b": "3, 0, 5"}):
        move(torus, **change)
        assert torus.state == {**torus.state, **change}
        assert torus.shown == torus_view(**torus.state)
        assert on_screen(torus) == html_of(torus.shown)


def test_moving_each_control_of_sharding_shows_the_view_of_the_new_state():
    explorer = sharding_explorer()
    for change in (
        {"steps": "textbook"}, {"objective": "max"}, {"dtype": "int8"}, {"sizes": "I=64, J=32, K=128"},
        {"product": "A[I_X, J] · B[J, K_X] -> C[I_X, K]"}, {"slice": "v6e:16x16"}, {"mesh": "Y=16, X=16"},
    ):  # fmt: skip
        move(explorer, **change)
        assert explorer.state == {**explorer.state, **change}
        assert explorer.shown == sharding_view(**explorer.state)
        assert on_screen(explorer) == html_of(explorer.shown)


def test_moving_each_control_of_the_model_and_the_cache_shows_the_view_of_the_new_state():
    model = model_explorer()
    for change in ({"model": "DeepSeek-V3"}, {"T": "300"}, {"B": "7"}, {"dtype": "int4"}, {"area": "FLOPs"}):
        move(model, **change)
        assert model.state == {**model.state, **{name: int(v) if name in "TB" else v for name, v in change.items()}}
        assert model.shown == model_view(**model.state)
        assert on_screen(model) == html_of(model.shown)
    cache = cache_explorer()
    for change in ({"models": "Qwen3 8B, Kimi-K2"}, {"S": "300"}, {"B": "7"}, {"dtype": "int4"}, {"chip": "h100"}):
        move(cache, **change)
        assert cache.state == {**cache.state, **{name: int(v) if name in "SB" else v for name, v in change.items()}}
        assert cache.shown == cache_view(**cache.state)
        assert on_screen(cache) == html_of(cache.shown)


def test_every_chip_that_an_explorer_has_figures_for_is_offered():
    assert list(cache_explorer().controls["chip"].widget.options) == [c.name for c in CHIPS.values() if "hbm_bytes" in c.figures]
    assert list(memory_explorer().controls["chip"].widget.options) == [c.name for c in WITH_HBM]
    assert list(torus_explorer().controls["chip"].widget.options) == [c.name for c in WITH_TORUS]


def test_every_chip_with_a_roofline_is_offered_and_no_other():
    for explorer in (roofline_explorer(), matmul_explorer()):
        assert list(explorer.controls["chip"].widget.options) == [c.name for c in WITH_ROOFLINE]
    for c in WITH_ROOFLINE:
        move(explorer := roofline_explorer(), chip=c.name)
        assert list(explorer.controls["dtype"].widget.options) == list(c.peak_flops_per_s)


def test_a_chip_that_has_the_format_keeps_it_and_another_takes_its_first():
    explorer = roofline_explorer(dtype="int8")
    move(explorer, chip="h100")
    assert explorer.state["dtype"] == "int8"
    move(explorer, chip="tpu7x")
    assert explorer.state["dtype"] == next(iter(chip("tpu7x").peak_flops_per_s))
    assert explorer.controls["dtype"].widget.value == explorer.state["dtype"]


def test_one_step_of_a_control_draws_once(monkeypatch):
    explorer, drawn = roofline_explorer(dtype="int8"), []
    monkeypatch.setattr(explorer, "_view", lambda **state: drawn.append(state) or roofline_view(**state))
    move(explorer, chip="tpu7x")
    assert len(drawn) == 1


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "m='' is not a number"),
        ("8k", "m='8k' is not a number"),
        ("2**13", "m='2**13' is not a number"),
        ("8,5", "m='8,5' is not a number"),
        ("0", "m=0 is not a size; give a whole number of at least 1"),
        ("-5", "m=-5 is not a size"),
        ("1.5", "m=1.5 is not a size"),
        ("nan", "m=nan is not finite"),
        ("1e30", "larger than any array dimension"),
        ("1" * 400, "too large"),
        ("1" * 5000, "not finite"),
        ("<b>", "m='<b>' is not a number"),
    ],
)
def test_bad_text_keeps_the_last_good_picture_and_says_why_beside_the_field(typed, words):
    explorer = matmul_explorer(m=77)
    before = on_screen(explorer)
    move(explorer, m=typed)
    assert words in problem(explorer, "m")
    assert [field for field in explorer.controls if problem(explorer, field)] == ["m"]
    assert on_screen(explorer) == before
    assert explorer.state["m"] == 77
    move(explorer, k="100")  # another field does not hide what is still wrong
    assert words in problem(explorer, "m")
    assert on_screen(explorer) == before
    move(explorer, m="78")
    assert problem(explorer, "m") == ""
    assert explorer.shown == matmul_view(78, 100, 28672, "bf16", "int8", "v5e")


@pytest.mark.parametrize(
    ("typed", "size"), [("8192", 8192), ("8,192", 8192), ("8_192", 8192), (" 64 ", 64), ("8e3", 8000), ("1,000,000", 10**6)]
)
def test_numbers_as_people_write_them(typed, size):
    assert explorers.read_size("m", typed) == size


def test_formats_a_chip_cannot_multiply_are_named_beside_the_chip():
    explorer = matmul_explorer()
    before = on_screen(explorer)
    move(explorer, x="fp8", w="fp8")
    assert "dtype='fp8' has no sourced peak on v5e" in problem(explorer, "chip")
    move(explorer, chip="h100")
    assert problem(explorer, "chip") == ""
    assert on_screen(explorer) != before


def test_a_wrong_argument_is_an_error_and_aliases_are_taken():
    for wrong in ({"chip": "v9"}, {"dtype": "f32"}, {"log2_m": 15}, {"log2_m": 1.5}, {"k": 1000}):
        with pytest.raises(ValueError, match=str(*wrong)):
            roofline_explorer(**wrong)
    for wrong in ({"chip": "v5e:4x4"}, {"chip": "h100"}, {"shape": "4x5"}, {"a": "4, 0"}, {"b": "0"}):
        with pytest.raises(ValueError, match=str(*wrong)):
            torus_explorer(**wrong)
    for wrong in ({"chip": "v9"}, {"dtype": "f64"}, {"log2_elements": 9}, {"log2_elements": 37}):
        with pytest.raises(ValueError, match=str(*wrong)):
            memory_explorer(**wrong)
    for wrong in (
        {"slice": "v5e:3x4"}, {"mesh": "X=3, Y=4"}, {"product": "A[I]"}, {"sizes": "I=2"}, {"dtype": "fp8"}, {"objective": "min"},
        {"steps": "few"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=str(*wrong) if "sizes" not in wrong else "give a size for J"):
            sharding_explorer(**wrong)
    with pytest.raises(ValueError, match="no steps lead to the result"):
        sharding_explorer(product="A[I_X, J] · B[J, K] -> C[I, K_X]", steps="textbook")
    with pytest.raises(ValueError, match="steps='few' is unknown"):
        sharding_view(**CASE_2 | {"steps": "few"})
    for wrong in ({"model": "llama9"}, {"T": 0}, {"B": 1.5}, {"dtype": "f64"}, {"area": "bytes"}):
        with pytest.raises(ValueError, match=str(*wrong)):
            model_explorer(**wrong)
    with pytest.raises(ValueError, match="area='bytes' is unknown"):
        model_view(**MODEL | {"area": "bytes"})
    for wrong in ({"models": ","}, {"S": -1}, {"B": 0}, {"dtype": "f64"}, {"chip": "v9"}):
        with pytest.raises(ValueError, match=str(*wrong)):
            cache_explorer(**wrong)
    assert cache_explorer(models="llama3-8b,qwen3 8b", dtype="bfloat16").state["models"] == "Llama-3 8B, Qwen3 8B"
    assert set(DTYPES) <= set(units.ITEMSIZE)
    for wrong in ({"m": 0}, {"x": "f64"}, {"x": "fp8", "w": "fp8"}):
        with pytest.raises(ValueError, match=r"m=|x=|dtype="):
            matmul_explorer(**wrong)
    assert roofline_explorer(chip="Trillium", dtype="bfloat16").state["chip"] == "v6e"


# Links.


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (roofline_explorer, {"chip": "h100", "dtype": "fp8", "log2_m": 0, "k": 256, "n": 32768}),
        (matmul_explorer, {"m": 7, "k": 11, "n": 10**15, "x": "int8", "w": "fp4", "chip": "b200"}),
        (memory_explorer, {"chip": "h100", "dtype": "int4", "log2_elements": 36}),
        (torus_explorer, {"chip": "v5p", "shape": "4x8x8_twisted", "a": "3, 0, 7", "b": "1, 5, 2"}),
        (torus_explorer, {"chip": "v6e", "shape": "2x4", "a": "0, 3", "b": "0, 3"}),
        (model_explorer, {"model": "DeepSeek-V3", "T": 1, "B": 77, "dtype": "fp4", "area": "FLOPs"}),
        (model_explorer, MODEL | {"model": PASTED}),
        (cache_explorer, {"models": "Kimi-K2", "S": 10**6, "B": 7, "dtype": "fp8", "chip": "b200"}),
        (cache_explorer, CACHE),
        (sharding_explorer, CASE_2 | {"objective": "max", "dtype": "int8"}),
        (
            sharding_explorer,
            {
                "slice": "v5p:4x4x4",
                "mesh": "P=4, Q=16",
                "product": "X[B_P, D] · W[D_Q, F] -> Y[B_P, F_Q]",
                "sizes": "B=512, D=1024, F=2048",
                "dtype": "fp8",
                "objective": "max",
                "steps": "all",
            },
        ),
    ],
)
def test_a_link_carries_the_state(make, state, link):
    assert_link_carries(make, state, link)


def test_a_link_to_one_explorer_leaves_the_other_alone(link):
    link(explorer="roofline", chip="h100", k="256")
    assert matmul_explorer().state["chip"] == "v5e"
    assert roofline_explorer().state == {"chip": "h100", "dtype": "bf16", "log2_m": 5, "k": 256, "n": 8192}


def test_bad_values_of_a_link_are_left_out_one_by_one_and_said(link):
    link(explorer="roofline", chip="v9", dtype="f64", log2_m="-1", k="8k", n="256", utm_source="mail")
    explorer = roofline_explorer()
    assert explorer.state == {"chip": "v5e", "dtype": "bf16", "log2_m": 5, "k": 8192, "n": 256}
    said = problems(explorer)
    assert set(said) == {"chip", "dtype", "log2_m", "k"}
    assert "chip='v9' is not offered here; did you mean" in said["chip"]
    assert "log2_m='-1' is not a whole number from 0 to 14; the link's value was left out" in said["log2_m"]
    move(explorer, log2_m=3)
    assert not any(problem(explorer, field) for field in explorer.controls)


def test_bad_sizes_of_a_link_are_left_out_too(link):
    link(explorer="matmul", m="<script>", k="512", n="0", w="bf16")
    explorer = matmul_explorer()
    assert explorer.state == {"m": 32, "k": 512, "n": 28672, "x": "bf16", "w": "bf16", "chip": "v5e"}
    assert "n=0 is not a size" in problem(explorer, "n")
    assert "<script>" not in explorer.controls["m"].problem.value


def test_a_chip_outside_the_slice_of_a_link_is_left_out_too(link):
    link(explorer="torus", chip="v5p", shape="4x4x8", a="0,0,9", b="3,0,1")
    explorer = torus_explorer()
    assert explorer.state == {"chip": "v5p", "shape": "4x4x8", "a": "0, 0, 0", "b": "3, 0, 1"}
    said = problems(explorer)
    assert set(said) == {"a"}
    assert "a=(0, 0, 9) is no chip of v5p:4x4x8" in said["a"]
    assert "the link's value was left out" in said["a"]


def test_bad_values_of_a_link_to_a_sharding_are_left_out_too(link):
    wrong = {"mesh": "X=4, Z=5", "product": "A[I_Y] <script>", "sizes": "I=8,J=8,K=9"}
    link(**CASE_2 | {"explorer": "sharding", "dtype": "int8"} | wrong)
    explorer = sharding_explorer()
    assert explorer.state == CASE_2 | {"dtype": "int8"}
    assert {field for field in explorer.controls if "link's value was left out" in problem(explorer, field)} == set(wrong)
    assert "<script>" not in explorer.controls["product"].problem.value


def test_bad_values_of_a_link_to_a_model_and_a_cache_are_left_out_too(link):
    link(explorer="model", model="<script>", T="0", B="3", dtype="f64", area="FLOPs")
    explorer = model_explorer()
    assert explorer.state == MODEL | {"B": 3, "area": "FLOPs"}
    assert {field for field in explorer.controls if "link's value was left out" in problem(explorer, field)} == {
        "model",
        "T",
        "dtype",
    }
    assert "<script>" not in explorer.controls["model"].problem.value
    link(explorer="cache", models="GPT-3 175B, GPT-9", S="x", chip="v6e")
    explorer = cache_explorer()
    assert explorer.state == CACHE | {"chip": "v6e"}
    assert {field for field in explorer.controls if "link's value was left out" in problem(explorer, field)} == {"models", "S"}


def test_a_slice_that_a_chip_of_a_link_does_not_offer_is_left_out_with_its_coordinates(link):
    link(explorer="torus", chip="v5e", shape="4x4x8_twisted", a="0,0,3", b="3,0,1")
    explorer = torus_explorer(chip="v5p", shape="4x4x4")
    assert explorer.state == {"chip": "v5e", "shape": "4x4", "a": "0, 0", "b": "3, 3"}
    assert {field for field in explorer.controls if problem(explorer, field)} == {"shape", "a", "b"}


# How it is shown.


def test_a_static_picture_stands_beside_the_widget():
    explorer = roofline_explorer()
    move(explorer, log2_m=9)
    bundle = explorer._repr_mimebundle_()
    view = roofline_view(**explorer.state)
    assert bundle["text/html"] == view.svg + view.numbers
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert "button" not in bundle["text/html"]
    assert "roofline" in bundle["text/plain"]


def test_ipython_shows_the_bundle():
    from IPython.core.formatters import DisplayFormatter

    explorer = matmul_explorer()
    data, _ = DisplayFormatter().format(explorer)
    assert data["text/html"] == explorer.shown.static
    assert "application/vnd.jupyter.widget-view+json" in data


def test_every_control_is_described_and_fits_a_phone():
    for explorer in (make() for make in EXPLORERS):
        for control in explorer.controls.values():
            assert control.widget.description
            assert control.widget.layout.max_width == "100%"
            wide = int(control.widget.style.description_width.removesuffix("px"))
            assert len(control.widget.description) * 7 <= wide <= 160
        assert {"explorer", f"explorer-{explorer.name}"} <= set(explorer._dom_classes)


def test_the_page_of_a_view_is_well_formed():
    view = matmul_view(32, 8192, 28672, "bf16", "int8", "v5e")
    for part in (view.numbers, view.svg, view.python, view.link):
        ElementTree.fromstring(f"<div>{part}</div>")
    assert unescape(view.link).count("&") == 6


def modules_after(code):
    script = f"import sys\n{code}\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return {name.split(".")[0] for name in out.split()} - set(sys.stdlib_module_names)


def test_an_explorer_loads_nothing_but_ipywidgets():
    made = f"from scaling_lib.show.explorers import *; {'; '.join(f'{make.__name__}()' for make in EXPLORERS)}"
    assert modules_after(made) - modules_after("import ipywidgets") == {"scaling_lib"}
    assert {"numpy", "matplotlib"} & modules_after(made) == set()


def test_the_figure_loads_the_standard_library_alone():
    figures = "from scaling_lib.show import batches, bounds, budget, hierarchy, holdings, kv_cache, mxu, palette, pareto"
    figures += "; from scaling_lib.show import steps, surface, svg, tensor_core, treemap, wiring"
    assert modules_after(figures) - modules_after("") == {"scaling_lib"}
