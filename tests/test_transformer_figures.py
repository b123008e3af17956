"""Figures of a Transformer: what they draw is what the library counts."""

import math
from collections import Counter
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import transformer as tf
from scaling_lib.hardware import chip
from scaling_lib.show import attention, kv_cache, palette, remat, svg, treemap
from scaling_lib.show.treemap import Box, squarify
from tests.test_explorers import assert_room

mpl.use("agg")

SVG = "{http://www.w3.org/2000/svg}"
MODELS = ["Llama-3 8B", "Llama-3 70B", "Mixtral 8x7B", "DeepSeek-V3", "GPT-2 small"]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def texts(figure):
    return [text.text for text in ElementTree.fromstring(figure).iter(f"{SVG}text")]


# Treemaps.

sizes = st.lists(st.floats(1, 1e8), min_size=1, max_size=30)


@given(sizes, st.floats(1, 1000), st.floats(1, 1000))
def test_boxes_have_the_areas_of_their_sizes_and_fill_the_whole(sizes, width, height):
    boxes = squarify(sorted(sizes, reverse=True), Box(3, 5, width, height))
    for size, box in zip(sorted(sizes, reverse=True), boxes, strict=True):
        assert box.area == pytest.approx(width * height * size / sum(sizes), rel=1e-6, abs=1e-6 * width * height)
        assert box.x >= 3 - 1e-6 * width
        assert box.y >= 5 - 1e-6 * height
        assert box.x + box.width <= 3 + width * (1 + 1e-6)
        assert box.y + box.height <= 5 + height * (1 + 1e-6)
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            wide = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
            high = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
            assert min(wide, high) <= 1e-6 * max(width, height)


def test_the_layout_is_that_of_the_paper():
    """Bruls et al. 2000, figure 4: sizes 6, 6, 4, 3, 2, 2, 1 in a box of 6 by 4."""
    six, second, four, three, *_ = squarify([6, 6, 4, 3, 2, 2, 1], Box(0, 0, 6, 4))
    assert (six, second) == (Box(0, 0, 3, 2), Box(0, 2, 3, 2))
    assert (four.width, four.height) == (pytest.approx(12 / 7), pytest.approx(7 / 3))
    assert (three.width, three.height) == (pytest.approx(9 / 7), pytest.approx(7 / 3))


def areas(drawing):
    """Area of the boxes of each part, as a share of all; the legend's squares left out."""
    found = Counter()
    for box in ElementTree.fromstring(drawing.svg).iter(f"{SVG}rect"):
        if box.get("class"):
            assert box.get("fill") == palette.PARTS[box.get("class")]
            found[box.get("class")] += float(box.get("width")) * float(box.get("height"))
    return {part: area / found.total() for part, area in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_the_treemap_of_parameters_has_each_part_at_its_share(name):
    model, found = tf.model(name), areas(treemap.parameters(tf.model(name)))
    counts = tf.parameters(model)
    rest = counts.positions + counts.router + counts.norms
    expected = {
        "attention": counts.attention, "mlp": counts.mlp, "experts + idle": counts.experts, "embedding": counts.embedding,
        "shared_experts": counts.shared_experts, "head": counts.head, "rest": rest,
    }  # fmt: skip
    experts = found.pop("experts", 0) + found.pop("idle", 0)
    for part, share in (found | {"experts + idle": experts}).items():
        assert share == pytest.approx(expected[part] / counts.total, abs=2e-4)
    assert sum(found.values()) + experts == pytest.approx(1)


@pytest.mark.parametrize("name", MODELS)
def test_the_treemap_of_flops_has_each_part_at_its_share(name):
    model = tf.model(name)
    for T, S, causal in ((4096, None, True), (100, 3000, False), (1, 32768, True)):
        flops, found = tf.forward_flops(model, T=T, S=S, causal=causal), areas(treemap.flops(model, T=T, S=S, causal=causal))
        assert found["scores"] == pytest.approx((flops.scores + flops.context) / flops.total, abs=2e-4)
        assert found["attention"] == pytest.approx(flops.projections / flops.total, abs=2e-4)
        assert found["head"] == pytest.approx(flops.head / flops.total, abs=2e-4)
        assert found.get("experts", 0) == pytest.approx(flops.experts / flops.total, abs=2e-4)
        assert "idle" not in found


def test_idle_experts_stand_apart_and_the_active_ones_are_named():
    drawing = treemap.parameters(tf.model("Mixtral 8x7B"))
    assert "experts, 2 of 8 a token" in texts(drawing.svg)
    found = areas(drawing)
    assert found["idle"] == pytest.approx(3 * found["experts"], rel=1e-3)


def test_a_treemap_says_its_total_and_every_share():
    drawing = treemap.parameters(tf.model("Llama-3 8B"))
    shown = texts(drawing.svg)
    assert shown[:2] == ["Llama-3 8B", "8.03 billion parameters"]
    assert shown[-15:-3] == [
        "attention matrices", "1.34 billion", "16.7 %", "MLP", "5.64 billion", "70.2 %", "embedding", "525 million", "6.5 %",
        "head", "525 million", "6.5 %",
    ]  # fmt: skip
    assert {"gate", "up", "down", "query", "key", "value", "out"} <= set(shown)
    assert {"key", "V"} <= set(texts(treemap.parameters(tf.model("Llama-3 70B")).svg))  # where the whole word has no room
    assert str(drawing) == (
        "Treemap of Llama-3 8B: 8.03 billion parameters. attention matrices 16.7 %, MLP 70.2 %, embedding 6.5 %, head 6.5 %, "
        "norms < 0.1 %."
    )
    decode = treemap.flops(tf.model("Llama-3 8B"), T=1, S=8192, causal=True)
    assert texts(decode.svg)[1] == "19.3 GFLOPs for one token of 8,192"


def test_a_part_too_small_for_floats_keeps_its_line_in_the_legend():
    drawing = treemap.parameters(
        tf.model("Llama-3 8B").but(vocab_size=10**15, n_layers=1, d_model=1, d_ff=1, n_heads=1, n_kv_heads=1)
    )
    assert "norms < 0.1 %" in str(drawing)
    assert "attention matrices < 0.1 %" in str(drawing)
    assert set(areas(drawing)) == {"embedding", "head"}


def test_text_in_a_box_stands_out_from_its_color():
    for color in palette.PARTS.values():
        red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
        light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
        contrast = {"white": 1.05 / (light + 0.05), "black": (light + 0.05) / 0.05}
        assert contrast[treemap._ink(color)] == max(contrast.values()) > 4.5


def test_parts_and_resources_have_colors_of_their_own():
    assert len(set(palette.PARTS.values())) == len(palette.PARTS)
    assert not {*palette.PARTS.values(), *palette.MODELS} & {*palette.COLORS.values()}


def test_names_that_are_long_or_hold_signs_of_html_have_room():
    odd = tf.model("DeepSeek-V3").but(name="<b>" + "x" * 90)
    for drawing in (treemap.parameters(odd), kv_cache.curves([odd])):
        assert_room(drawing.svg)
    assert svg.shortened("four", 4) == "four"
    assert svg.shortened("fives", 4) == "fiv…"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (999, "999"),
        (1_500, "1,500"),
        (124e6, "124 million"),
        (999.6e6, "1 billion"),
        (8.03e9, "8.03 billion"),
        (1e12, "1 trillion"),
    ],
)
def test_counts_as_people_say_them(count, words):
    assert treemap.spell(count) == words


@pytest.mark.parametrize(
    ("of_one", "words"),
    [
        (0, "0.0 %"),
        (1e-9, "< 0.1 %"),
        (0.0004, "< 0.1 %"),
        (0.0005, "0.1 %"),
        (0.5, "50.0 %"),
        (0.9999, "> 99.9 %"),
        (1, "100.0 %"),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_all(of_one, words):
    assert treemap.share(of_one) == words


# KV caches.


def test_each_line_is_the_cache_at_its_length():
    models = [tf.model(name) for name in ("Llama-2 7B", "Gemma-3 27B", "DeepSeek-V3")]
    drawing = kv_cache.curves(models, B=3, dtype="int8", chip=chip("v6e"))
    figure = ElementTree.fromstring(drawing.svg)
    lines = [line for line in figure.iter(f"{SVG}polyline") if len(line.get("points").split()) > 2]
    assert [line.get("class") for line in lines] == ["model", "model", "model", "hbm"]
    ends = [min(tf.kv_cache_bytes(m, S=1000, B=3, dtype="int8") for m in models) / 2, chip("v6e").hbm_bytes]
    ends.append(max(tf.kv_cache_bytes(m, S=10**6, B=3, dtype="int8") for m in models))
    axes = svg.LogAxes(kv_cache.LENGTHS, svg.decades_around(min(ends), max(ends)))
    for line, model in zip(lines, models, strict=False):
        points = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        for S, (x, y) in ((1000, points[0]), (10**6, points[-1])):
            assert (x, y) == pytest.approx((axes.x(S), axes.y(tf.kv_cache_bytes(model, S=S, B=3, dtype="int8"))), abs=0.1)
    (height,) = {pair.split(",")[1] for pair in lines[-1].get("points").split()}
    assert float(height) == pytest.approx(axes.y(chip("v6e").hbm_bytes), abs=0.1)
    assert len({line.get("stroke") for line in lines}) == 4


def test_the_axis_goes_from_the_smallest_cache_to_the_largest():
    shown = texts(kv_cache.curves([tf.model("GPT-3 175B")], B=1000).svg)
    assert [tick for tick in shown if tick.endswith((" G", " T", " P"))] == ["1 T", "10 T", "100 T", "1 P", "10 P"]


def test_a_window_shows_as_a_second_price_of_a_token():
    shown = texts(kv_cache.curves([tf.model("Gemma-3 27B"), tf.model("Llama-3 8B")]).svg)
    assert "508 kB → 81.9 kB a token" in shown
    assert "131 kB a token" in shown
    assert "KV cache of a sequence (bytes, bf16)" in shown


@pytest.mark.parametrize("count", [0, 7])
def test_models_that_have_no_color_are_refused(count):
    models = [tf.model("Llama-3 8B").but(n_layers=n + 1) for n in range(count)]
    for draw in (kv_cache.curves, lambda m: attention.shares(m, causal=True)):
        with pytest.raises(ValueError, match=f"models has {count} of them; give 1 to 6"):
            draw(models)


# Attention's share.


def test_each_curve_is_the_share_of_scores_and_context():
    models = [tf.model("Llama-3 8B"), tf.model("Gemma-3 27B")]
    ax = attention.shares(models, causal=True, lengths=(300, 70_000))
    attention.shares(models, causal=False, lengths=(300, 70_000), ax=ax)
    assert [line.get_label() for line in ax.lines] == [
        "Llama-3 8B", "Gemma-3 27B", "Llama-3 8B, no mask", "Gemma-3 27B, no mask"
    ]  # fmt: skip
    assert [line.get_linestyle() for line in ax.lines] == ["-", "-", "--", "--"]
    for line, (causal, model) in zip(ax.lines, [(c, m) for c in (True, False) for m in models], strict=True):
        xs, ys = line.get_data()
        assert (xs[0], xs[-1]) == (300, 70_000)
        for T, y in ((300, ys[0]), (70_000, ys[-1])):
            flops = tf.forward_flops(model, T=T, causal=causal)
            assert y == (flops.scores + flops.context) / flops.total
    assert ax.get_xscale() == "log"
    assert "% of FLOPs" in ax.get_ylabel()
    with pytest.raises(ValueError, match="give a shorter and a longer one"):
        attention.shares(models, causal=True, lengths=(100, 100))


# Softmax in chunks.

finite = st.floats(-30, 30)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=12), st.integers(1, 13))
def test_softmax_in_chunks_is_softmax(pairs, chunk):
    scores, values = zip(*pairs, strict=True)
    rows = attention.online_softmax(scores, values, chunk=chunk).rows
    assert len(rows) == math.ceil(len(scores) / chunk) + 1
    weights = [math.exp(score - max(scores)) for score in scores]
    output = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    for row in rows[-2:]:
        assert float(row["output"]) == pytest.approx(output, abs=1e-3)
        assert float(row["sum"]) == pytest.approx(sum(weights), abs=1e-3)


def test_a_higher_maximum_scales_what_was_summed_before():
    first, second, third, whole = attention.online_softmax([1, 3, 2, 5, 4, 0, 2], range(1, 8), chunk=3).rows
    assert first == {
        "scores": "1, 3, 2", "maximum": "3", "factor": "0.0000", "sum": "1.5032", "sum of values": "3.2390", "output": "2.1547"
    }  # fmt: skip
    assert second["factor"] == f"{math.exp(3 - 5):.4f}"
    assert third["factor"] == "1.0000"
    assert (third["output"], whole["factor"]) == (whole["output"], "")


@pytest.mark.parametrize(("scores", "values"), [([], []), ([1], [1, 2]), ([float("nan")], [1]), ([1], ["x"])])
def test_what_has_no_softmax_is_refused(scores, values):
    with pytest.raises(ValueError, match=r"scores|values"):
        attention.online_softmax(scores, values, chunk=2)


# Remat.


@pytest.mark.parametrize("name", ["Llama-3 8B", "Mixtral 8x7B", "DeepSeek-V3", "GPT-J 6B"])
def test_each_policy_is_a_point_of_bytes_and_flops(name):
    model, T, B = tf.model(name), 3000, 2
    ax = remat.trade_off(model, T=T, B=B, causal=True, measured={"a program": (0.1, 1e9)})
    drawn = [(line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor() == "none") for line in ax.lines]
    expected = []
    for policy in remat.policies(model).values():
        for flash in (False, True):
            step = tf.train_flops(model, T=T, B=B, causal=True, remat=policy, flash=flash)
            kept = tf.activation_bytes(model, T=T, B=B, remat=policy, flash=flash)
            expected.append((step.recompute.total / step.model_flops, kept.layers_bytes, flash))
    assert drawn[:-1] == expected
    assert drawn[-1][:2] == (0.1, 1e9)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        *remat.policies(model), "filled: plain attention", "hollow: flash", "a program"
    ]  # fmt: skip
    plain = [(x, y) for x, y, flash in expected if not flash]
    assert [y for _, y in plain] == sorted((y for _, y in plain), reverse=True)


def test_policies_can_be_ones_own_and_are_counted():
    model = tf.model("Llama-3 8B")
    ax = remat.trade_off(model, T=300, causal=True, remat={"context": ("attention.context",)})
    assert len(ax.lines) == 2
    with pytest.raises(ValueError, match="remat has 8 policies; give 1 to 7"):
        remat.trade_off(model, T=300, causal=True, remat={str(n): "none" for n in range(8)})
    with pytest.raises(ValueError, match="remat has 0 policies"):
        remat.trade_off(model, T=300, causal=True, remat={})
