"""Figures of training steps: bars add up to the times of the estimate, lines cross where the bounds say."""

import re
from xml.etree import ElementTree

import pytest

from scaling_lib.hardware import chip
from scaling_lib.show import bounds, budget, palette, steps
from scaling_lib.training import Plan, estimate
from scaling_lib.training import bounds as says
from scaling_lib.units import human
from tests.test_explorers import assert_room, labels

ESTIMATES = {
    "math binds": estimate("Llama-3 70B", "v5p:8x8x8", Plan(fsdp=128, tensor=4, remat="full"), 512, T=8192),
    "tensor binds": estimate("Llama-3 8B", "v5e:16x16", Plan(fsdp=8, tensor=32, remat="full"), 64, T=4096),
    "fsdp binds": estimate("Llama-3 8B", "v5p:8x8x16", Plan(fsdp=1024), 1024, T=256),
    "a pipeline over DCN": estimate(
        "Llama-3 70B", "h100:8x64", Plan(data=4, fsdp=4, tensor=8, pipeline=4, microbatches=8, uneven_stages=True), 512, T=8192
    ),
    "short of memory": estimate("Llama-3 70B", "v5p:4x4x4", Plan(fsdp=64), 64, T=8192),
}


def bars(drawing, skip=("band", "")):
    """Left, top and width of every bar, by its part."""
    found = {}
    for rect in ElementTree.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}rect"):
        if (part := rect.get("class") or "") not in skip:
            found.setdefault((part, float(rect.get("y"))), []).append((float(rect.get("x")), float(rect.get("width"))))
    return found


def rows_of(drawing):
    """Where each row of bars ends, from above, and the parts in it."""
    rows = {}
    for (part, top), pieces in bars(drawing).items():
        for x, width in pieces:
            rows.setdefault(top, []).append((x, x + width, part))
    return [sorted(rows[top]) for top in sorted(rows)]


@pytest.mark.parametrize("name", ESTIMATES)
def test_bars_are_as_long_as_the_estimate_says(name):
    of = ESTIMATES[name]
    drawing = steps.parts(of)
    hidden, shown, *alone = rows_of(drawing)
    left = min(x for x, _, _ in shown)
    per_s = (steps._RIGHT - left) / of.upper_s
    assert max(end for _, end, _ in hidden) == pytest.approx(left + of.lower_s * per_s, abs=1.1)
    assert max(end for _, end, _ in shown) == pytest.approx(left + of.upper_s * per_s, abs=1.1)
    assert {part for _, _, part in shown} == set(of.parts_s)
    for ((start, end, part),) in alone[: len(of.parts_s)]:
        assert start == left
        assert end - start == pytest.approx(max(of.parts_s[part] * per_s, 0.6), abs=1.1)


@pytest.mark.parametrize("name", ESTIMATES)
def test_parts_have_the_color_of_what_is_busy(name):
    drawing = steps.parts(ESTIMATES[name])
    busy = {"math": "mxu", "elementwise": "hbm", "optimizer": "hbm", "offload": "pcie"}
    for rect in ElementTree.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}rect"):
        part = rect.get("class")
        if part in ESTIMATES[name].parts_s and part != "bubble" and part != "optimizer":
            want = "dcn" if part.endswith(".dcn") else busy.get(part, "ici")
            assert rect.get("fill") == palette.COLORS[want]
        elif part in palette.STATES and part != "optimizer":
            assert rect.get("fill") == palette.STATES[part]


@pytest.mark.parametrize("name", ESTIMATES)
def test_the_memory_of_both_moments_and_the_line_of_what_is_usable(name):
    of = ESTIMATES[name]
    drawing = steps.parts(of)
    begins, ends = rows_of(drawing)[-2:]
    left = begins[0][0]
    per_byte = (steps._RIGHT - left) / max(of.memory.total, of.usable_bytes)
    peak = max(end for _, end, _ in begins + ends)
    assert peak == pytest.approx(left + of.memory.total * per_byte, abs=1.1)
    (line,) = [path for path in ElementTree.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}path") if path.get("class")]
    at = float(re.match(r"M([\d.]+)", line.get("d"))[1])
    assert at == pytest.approx(left + of.usable_bytes * per_byte, abs=0.1)
    assert of.fits == (peak <= at + 1.1)
    assert {"logits", "head", "gradients"} & {part for *_, part in ends} == {"gradients"}
    assert {"working", "buffers"} & {part for *_, part in begins} == set()


def test_figures_say_in_words_what_they_show_and_have_room():
    drawings = [*map(steps.parts, ESTIMATES.values()), steps.times(ESTIMATES), steps.memory(ESTIMATES)]
    for drawing in drawings:
        assert_room(drawing.svg)
        assert ElementTree.fromstring(drawing.svg).get("aria-label") == drawing.description == repr(drawing)
    for name, of in ESTIMATES.items():
        assert f"{name}: {human(of.lower_s, 's')} to {human(of.upper_s, 's')}" in drawings[-2].description
        held = f"{human(of.memory.total, 'GiB')} of {human(of.usable_bytes, 'GiB')}"
        assert f"{name}: {held}, {'fits' if of.fits else 'does not fit'}" in drawings[-1].description
    long = {"a name that is much longer than any figure has room for at all": ESTIMATES["short of memory"]}
    for drawing in (steps.times(long), steps.memory(long)):
        assert_room(drawing.svg)
        assert any(text.endswith("…") for _, text in labels(drawing.svg))


def test_steps_side_by_side_share_a_scale():
    drawing = steps.times(ESTIMATES)
    every = rows_of(drawing)
    assert len(every) == 2 * len(ESTIMATES)
    left = every[0][0][0]
    per_s = (steps._RIGHT - left) / max(of.upper_s for of in ESTIMATES.values())
    for of, hidden, shown in zip(ESTIMATES.values(), every[::2], every[1::2], strict=True):
        for row, seconds in ((hidden, of.lower_s), (shown, of.upper_s)):
            assert max(end for _, end, _ in row) - left == pytest.approx(seconds * per_s, abs=2)


def test_none_and_too_many_steps_are_refused():
    for figure in (steps.times, steps.memory):
        for many in ({}, {str(n): ESTIMATES["math binds"] for n in range(steps.MOST + 1)}):
            with pytest.raises(ValueError, match="give 1 to 8"):
                figure(many)


# Bounds.


def line(drawing, name):
    """The first two points of a line, in units of the view box; the second polyline of a name is its legend."""
    found = [each for each in ElementTree.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}polyline")]
    points = next(each.get("points") for each in found if each.get("class") == name)
    return [tuple(map(float, pair.split(","))) for pair in points.split()]


@pytest.mark.parametrize(("c", "fsdp_axes", "tensor_axes"), [("v5p", 2, 1), ("v5e", 1, 1), ("v6e", 1, 1), ("v5p", 1, 2)])
def test_lines_cross_one_where_the_bounds_say(c, fsdp_axes, tensor_axes):
    of, d_ff = chip(c), 28_672
    drawing = bounds.ratios(of, d_ff, chips=64, fsdp_axes=fsdp_axes, tensor_axes=tensor_axes, tokens=(10, 1e5))
    assert_room(drawing.svg)
    (one_left, one), (one_right, _) = line(drawing, "mxu")
    crossings = {
        "FSDP": says.data_tokens(of, fsdp_axes + tensor_axes),
        **{
            f"mixed, {name} hides": says.mixed_tokens(of, d_ff, fsdp_axes=fsdp_axes, tensor_axes=tensor_axes, overlap=overlap)
            for name, overlap in (("all", "full"), ("nothing", "none"))
        },
    }
    for name, tokens in crossings.items():
        (x0, y0), (x1, y1) = line(drawing, name)
        at = x0 + (one - y0) / (y1 - y0) * (x1 - x0)
        read = 10 * 1e4 ** ((at - one_left) / (one_right - one_left))
        assert read == pytest.approx(tokens, rel=0.02)
        assert f"{name} from {human(tokens)} tokens a chip" in drawing.description
    (_, high), (_, same) = line(drawing, "tensor")
    assert high == same
    assert (high < one) == (says.tensor_ways(of, d_ff, fsdp_axes + tensor_axes) < 64)


def test_the_band_ends_where_fsdp_alone_is_best():
    drawing = bounds.ratios(chip("v5p"), 512, chips=64, tokens=(10, 1e4))
    fsdp, mixed = line(drawing, "FSDP"), line(drawing, "mixed, all hides")
    assert mixed[-1][0] < fsdp[-1][0]
    assert says.best_fsdp(512 / 2 * 64, 64, 512, fsdp_axes=2, tensor_axes=1) == pytest.approx(64)
    beyond = bounds.ratios(chip("v5p"), 512, chips=64, tokens=(1e3, 1e4))
    assert "mixed" not in beyond.svg


def test_bounds_that_make_no_sense_are_refused():
    for tokens in ((0, 10), (10, 10), (100, 10)):
        with pytest.raises(ValueError, match="fewer and more tokens"):
            bounds.ratios(chip("v5p"), 512, chips=64, tokens=tokens)
    with pytest.raises(ValueError, match="ici_link_bytes_per_s"):
        bounds.ratios(chip("h100"), 512, chips=64)
    with pytest.raises(ValueError, match="slices is empty"):
        budget.curves([], [], [], links_bind=None)
