"""The explorers of serving: what they show is what the library says, and what they refuse says what would do."""

import contextlib
import itertools
import re
import time

import pytest
from bs4 import BeautifulSoup

from scaling_lib import transformer as tf
from scaling_lib.hardware import CHIPS, chip, slice_of
from scaling_lib.inference import Layout, max_batch, max_context, serve, speculate
from scaling_lib.inference.sizing import best_server, servers, slices_of
from scaling_lib.inference.speculation import speedup
from scaling_lib.search import serving_pareto
from scaling_lib.show import batches, pareto, surface
from scaling_lib.show.explorers import (
    base,
    batch_explorer,
    batch_view,
    serving_explorer,
    serving_view,
    speculation_explorer,
    speculation_view,
)
from scaling_lib.show.explorers import batch as batch_module
from scaling_lib.show.explorers.serving import AGAINST
from scaling_lib.show.explorers.serving import batches as drawn_batches
from scaling_lib.show.explorers.speculation import DRAFTS, MOST_GUESSES, read_draft
from scaling_lib.transformer import MODELS
from scaling_lib.units import human
from tests.test_explorers import assert_link_carries, assert_room, html_of, move, on_screen, printed, problems, rows, words

SERVING = {
    "model": "Llama-3 8B", "chip": "v5e", "input": 2048, "output": 256, "weights": "bf16", "kv": "bf16", "math": "bf16",
    "tpot_ms": 25.0, "ttft_ms": "any", "usd_per_chip_hour": "list", "against": AGAINST[0],
}  # fmt: skip
GUESSES = {
    "model": "Llama-3 8B", "draft": "Llama-3.2 1B", "slice": "v5e:2x4", "tensor": 8, "batch": 8, "context": 2176,
    "acceptance": 0.8, "guesses": 4,
}  # fmt: skip
BATCH = {"models": batch_module.USUAL, "slice": "v5e:2x4", "S": 8192, "weights": "bf16", "kv": "bf16"}
STATES = [(serving_explorer, SERVING), (speculation_explorer, GUESSES), (batch_explorer, BATCH)]


# The best server of a slice.


@pytest.mark.parametrize(
    ("model", "of", "limits"),
    [
        ("Llama-3 8B", "v5e", {"tpot_s": 0.025}),
        ("Llama-3 70B", "v6e", {"tpot_s": 0.02, "ttft_s": 0.3}),
        ("DeepSeek-V3", "h100", {}),
        ("Mixtral 8x7B", "tpu7x", {"tpot_s": 0.01}),
    ],
)
def test_no_server_of_the_search_is_cheaper_than_the_best_of_all_slices(model, of, limits):
    """The search tries eight batches a doubling, so it may be a little dearer, and no more."""
    found, costs = serving_pareto(model, of, input=1000, output=200, most_chips=64, **limits), []
    for slice in slices_of(chip(of), 64):
        one = best_server(MODELS[model], slice, input=1000, output=200, **limits)
        if one is not None and one.ttft_s <= limits.get("ttft_s", 9) and (batch := one.batch(limits.get("tpot_s"))):
            costs.append(one.at(batch)[1])
    assert 0.9 < min(costs) * found.best.tokens_per_s_per_chip <= 1 + 1e-9


def test_a_server_is_priced_as_serve_prices_it_and_holds_as_many():
    seen = 0
    for name, slice in (("Llama-3 8B", "v5e:4x4"), ("Mixtral 8x7B", "h100:8x1"), ("DeepSeek-V2-Lite", "tpu7x:1x1x1")):
        for one in servers(MODELS[name], slice_of(slice), 700, 130, Layout(kv="int8")):
            for batch in {1, one.max_batch}:
                full = serve(name, slice, one.layout, input=700, output=130, batch=batch)
                assert one.ttft_s == pytest.approx(full.ttft_s, rel=1e-9)
                assert one.at(batch) == pytest.approx((full.tpot_s, 1 / full.tokens_per_s_per_chip), rel=1e-9)
                assert full.max_batch == one.max_batch
                seen += 1
    assert seen > 20


@pytest.mark.parametrize(("name", "slice"), [("Llama-3 8B", "v5e:2x4"), ("DeepSeek-V3", "h100:8x4"), ("Mixtral 8x7B", "v6e:2x4")])
def test_the_batch_for_a_limit_is_the_largest_that_keeps_it(name, slice):
    """Whatever the line of seconds is: bent where math takes over, and in steps where sequences do not divide."""
    seen = 0
    for one in servers(MODELS[name], slice_of(slice), 2048, 256, Layout()):
        for limit in (0.004, 0.012, 0.025, 0.1):
            batch = one.batch(limit)
            assert batch == 0 or one.tpot_s(batch) <= limit
            assert batch == one.max_batch or one.tpot_s(batch + 1) > limit
            seen += 0 < batch < one.max_batch
        assert one.batch(None) == one.max_batch
        assert one.batch(1e-6) == 0
    assert seen > 10


def test_where_none_is_fast_enough_the_fastest_is_given_and_where_none_fits_none():
    model = MODELS["Llama-3 8B"]
    slow = best_server(model, slice_of("v5e:2x4"), input=2048, output=256, tpot_s=1e-4)
    every = servers(model, slice_of("v5e:2x4"), 2048, 256, Layout())
    assert slow.tpot_s(1) == min(one.tpot_s(1) for one in every)
    assert best_server(MODELS["Llama-3 70B"], slice_of("v5e:2x2"), input=2048, output=256) is None


# Serving.


def test_the_serving_view_shows_what_the_library_says():
    view = serving_view(**SERVING)
    shown = rows(view)
    assert list(shown) == ["v5e:1x1", "v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:4x8"]
    four = serve("Llama-3 8B", "v5e:2x2", Layout(tensor=4), input=2048, output=256, batch=59)
    assert four.tpot_s <= 0.025 < serve("Llama-3 8B", "v5e:2x2", Layout(tensor=4), input=2048, output=256, batch=60).tpot_s
    assert shown["v5e:2x2"] == (
        f"tensor 4: 59 of {four.max_batch} conversations, a token in {human(four.tpot_s, 's')}, "
        f"the first in {human(four.ttft_s, 's')}, ${human(four.usd_per_million)} a million"
    )
    assert shown["v5e:1x1"].startswith("one device: 2 conversations, memory is full, a token in ")
    assert words(view) == f"A token within 25 ms: v5e:2x2 with 59 conversations, ${human(four.usd_per_million)} a million."
    found = serving_pareto("Llama-3 8B", "v5e", input=2048, output=256, tpot_s=0.025)
    assert found.best.decode.slice == slice_of("v5e:2x2")


def test_each_line_of_the_figure_ends_at_its_wall_and_goes_on_where_memory_lacks():
    view = serving_view(**SERVING)
    svg = BeautifulSoup(view.svg, "html.parser")
    solid, beyond, crosses = (svg.find_all(attrs={"class": name}) for name in ("server", "beyond", "wall"))
    assert len(solid) == len(beyond) == len(crosses) == 5
    for line, more, cross in zip(solid, beyond, crosses, strict=True):
        x, y = map(float, line["points"].split()[-1].split(","))
        assert more["points"].split()[0] == line["points"].split()[-1]
        left, top = map(float, re.match(r"M([\d.]+) ([\d.]+)", cross["d"]).groups())
        assert (left + 6, top + 6) == pytest.approx((x, y), abs=0.11)
        assert float(more["points"].split()[-1].split(",")[0]) > x
    assert len(svg.find_all(attrs={"class": "point"})) == len(svg.find_all(attrs={"class": "too-slow"})) == 1
    assert "front" in {tag["class"][0] for tag in svg.find_all("polyline")}
    none = BeautifulSoup(serving_view(**SERVING | {"tpot_ms": 1}).svg, "html.parser")
    assert not none.find_all(attrs={"class": "point"})
    assert not BeautifulSoup(serving_view(**SERVING | {"tpot_ms": "any"}).svg, "html.parser").find_all(
        attrs={"class": "too-slow"}
    )


def test_the_front_is_what_no_other_point_beats_in_both():
    lines = [[(1, 9), (2, 5), (4, 4)], [(3, 3), (5, 2)], [(0.5, 10)]]
    assert pareto.front_of(lines, more_is_better=False) == [(0.5, 10), (1, 9), (2, 5), (3, 3), (5, 2)]
    assert pareto.front_of(lines, more_is_better=True) == [(0.5, 10)]
    assert pareto.front_of([[(1, 2), (3, 1), (2, 5)]], more_is_better=True) == [(1, 2), (2, 5)]


def test_drawn_batches_grow_to_the_largest():
    assert drawn_batches(1) == [1]
    assert drawn_batches(2) == [1, 2]
    assert drawn_batches(7) == [1, 2, 3, 4, 6, 7]
    many = drawn_batches(1000)
    assert many[-1] == 1000
    assert many == sorted(set(many))
    assert max(b / a for a, b in itertools.pairwise(many)) <= 2


def test_late_first_tokens_and_slow_tokens_are_said():
    shown = rows(serving_view(**SERVING | {"ttft_ms": 50.0}))
    assert shown["v5e:2x2"] == "tensor 4: the first token takes 63.2 ms, too long"
    assert "a token in" in shown["v5e:2x4"]
    slow = serving_view(**SERVING | {"tpot_ms": 4.0})
    assert re.search(r": a token takes 5\.\d+ ms at least, too long", rows(slow)["v5e:2x2"])
    assert "a token in" in rows(slow)["v5e:4x4"]
    none = serving_view(**SERVING | {"tpot_ms": 0.5})
    assert words(none) == "A token within 500 µs: none of these will do."
    both = words(serving_view(**SERVING | {"ttft_ms": 50.0}))
    assert both.startswith("A token within 25 ms and the first within 50 ms: v5e:2x4 with ")
    assert words(serving_view(**SERVING | {"tpot_ms": "any"})).startswith("The cheapest token, however slow: v5e:2x2 with 169 ")


def test_slices_that_do_not_hold_the_model_are_named():
    shown = rows(serving_view(**SERVING | {"model": "Llama-3 70B"}))
    assert shown["do not fit"] == "v5e:1x1, v5e:2x2, v5e:2x4"
    assert [*shown][1:] == ["v5e:4x4", "v5e:4x8", "v5e:8x8", "v5e:8x16", "v5e:16x16"]


def test_a_price_of_your_own_scales_dollars_and_throughput_needs_none():
    listed, own = (serving_view(**SERVING | {"usd_per_chip_hour": price}) for price in ("list", 2 * chip("v5e").usd_per_hour))
    dollars = [float(re.search(r"\$([\d.]+) a million", words(view))[1]) for view in (listed, own)]
    assert dollars[1] == pytest.approx(2 * dollars[0], rel=0.005)
    rate = serving_view(**SERVING | {"against": AGAINST[1], "chip": "h200"})
    assert "tokens/s a chip" in words(rate)
    assert "$" not in rate.numbers


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"chip": "h200"}, "usd_per_chip_hour", "no source states a list price of h200; write your own, like '2.50', or look at"),
        ({"math": "fp8"}, "math", "dtype='fp8' has no sourced peak on v5e; it has: bf16, int8"),
        ({"input": "1e8"}, "model", "not one sequence of 100000000 + 256 tokens fits on v5e:16x16 or less of v5e; take another"),
        ({"input": "0"}, "input", "input=0 is not a size"),
        ({"output": "many"}, "output", "output='many' is not a number"),
        ({"tpot_ms": "fast"}, "tpot_ms", "tpot_ms='fast' is no time; write milliseconds like '25', or 'any'"),
        ({"tpot_ms": "0"}, "tpot_ms", "is no time"),
        ({"ttft_ms": "-3"}, "ttft_ms", "ttft_ms='-3' is no time"),
        ({"ttft_ms": "<b>"}, "ttft_ms", "ttft_ms='<b>' is no time"),
        ({"usd_per_chip_hour": "cheap"}, "usd_per_chip_hour", "is no price; write dollars like '2.50'"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_said_beside_its_field_and_the_last_good_picture_stays(change, field, said):
    explorer = serving_explorer()
    before = on_screen(explorer)
    move(explorer, **change)
    assert said in problems(explorer)[field]
    assert len(problems(explorer)) == 1
    assert on_screen(explorer) == before
    move(explorer, **{name: f"{SERVING[name]}" for name in change})
    assert problems(explorer) == {}
    assert explorer.shown == serving_view(**SERVING)


def test_every_chip_that_is_offered_serves_with_room_for_all_labels():
    offered = serving_explorer().controls["chip"].widget.options
    assert {"v4", "v5e", "v5p", "v6e", "tpu7x", "h100", "b200", "gb200"} <= set(offered) <= set(CHIPS)
    for name in offered:
        for model in ("Llama-3.2 1B", "DeepSeek-V3"):
            limit = {"ttft_ms": 300.0, "tpot_ms": 20.0, "against": AGAINST[1]}
            assert_room(serving_view(**SERVING | limit | {"chip": name, "model": model}).svg)


@pytest.mark.parametrize(
    "state", [{"tpot_ms": 0.01}, {"tpot_ms": 9e5}, {"output": 1}, {"input": 1, "output": 1}, {"output": 40_000}]
)
def test_extreme_requests_are_drawn(state):
    view = serving_view(**SERVING | state)
    assert_room(view.svg)
    assert "nan" not in view.svg


def test_a_figure_needs_lines():
    line = pareto.Line("a", "to 3", [(0.1, 2.0)])
    assert "a, to 3: from 100 ms and 2 to 100 ms and 2" in pareto.curves([line], "cost").description
    for wrong in ([], [line] * (pareto.MOST + 1), [pareto.Line("a", "", [])]):
        with pytest.raises(ValueError, match="lines has"):
            pareto.curves(wrong, "cost")


# Guesses.


def test_the_speculation_view_shows_what_the_library_says():
    view = speculation_view(**GUESSES)
    shown, eight = rows(view), Layout(tensor=8)
    how = {"context": 2176, "acceptance": 0.8}
    chosen, best = (speculate("Llama-3 8B", "Llama-3.2 1B", "v5e:2x4", eight, 8, **how, guesses=guesses) for guesses in (4, None))
    assert shown["with k = 4"] == f"{chosen.speedup:.2f} times as fast, {human(chosen.tpot_s, 's')} a token"
    assert words(view) == f"At an acceptance of 0.8, {best.guesses} guesses are best: {best.speedup:.2f} times as fast."
    assert shown["without"] == f"{human(chosen.plain.seconds, 's')} a token"
    assert shown["tokens a check"] == f"{chosen.tokens:.2f}, at most 5"
    assert shown["a guess costs"].startswith(f"{human(chosen.draft.seconds, 's')}, ")
    assert shown["the check costs"].startswith(f"{human(chosen.check.seconds, 's')}, ")
    held = float(chosen.check.memory.total + chosen.draft.memory.total)
    assert shown["memory"] == f"{human(held, 'GiB')} of {human(chosen.check.usable_bytes, 'GiB')} a device, with the draft"


def test_every_cell_of_the_surface_is_the_speedup_that_the_library_says():
    svg = BeautifulSoup(speculation_view(**GUESSES).svg, "html.parser")
    width, bands = 300 / MOST_GUESSES, {}
    for band in svg.find_all("path", class_="band"):
        for x, y, wide in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v14", band["d"]):
            row = round((300 - float(y)) / 14) - 1
            for column in range(round(float(wide) / width)):
                bands[row, round((float(x) - 40) / width) + column] = (band["fill"], band["fill-opacity"])
    assert len(bands) == len(surface.ACCEPTANCES) * MOST_GUESSES
    looks = {}
    for (row, column), look in bands.items():
        one = speculate(
            "Llama-3 8B", "Llama-3.2 1B", "v5e:2x4", Layout(tensor=8), 8, context=2176,
            acceptance=surface.ACCEPTANCES[row], guesses=column + 1,
        )  # fmt: skip
        looks.setdefault(look, []).append(one.speedup)
    ends = sorted((min(values), max(values)) for values in looks.values())
    edges = [0.0, *surface.BANDS, 99.0]
    for low, high in ends:
        assert any(a <= low <= high < b for a, b in itertools.pairwise(edges))
    assert len(ends) >= 6


def test_a_dot_marks_the_best_number_of_guesses_of_each_row_where_they_pay():
    checks, draft = [1.0 + 0.02 * k for k in range(1, 17)], 0.1
    svg = BeautifulSoup(surface.speedups(draft=draft, checks=checks, acceptance=0.5, guesses=2).svg, "html.parser")
    best = {}
    for row, a in enumerate(surface.ACCEPTANCES):
        values = [speedup(a, k, draft=draft, check=check) for k, check in enumerate(checks, start=1)]
        if max(values) > 1:
            best[row] = values.index(max(values))
    dots = {
        round((293 - float(dot["cy"])) / 14): round((float(dot["cx"]) - 40) / (300 / 16) - 0.5)
        for dot in svg.find_all("circle", class_="best")
    }
    assert dots == best
    assert 0 < len(best) < len(surface.ACCEPTANCES)


@pytest.mark.parametrize("share", [1.0, 0.2, 0.05])
def test_a_draft_of_a_cost_is_one_with_such_a_step(share):
    view = speculation_view(**GUESSES | {"draft": f"{100 * share:g} %"})
    plain, check = (
        serve_step.seconds
        for serve_step in (
            speculate(
                "Llama-3 8B", "Llama-3.2 1B", "v5e:2x4", Layout(tensor=8), 8, context=2176, acceptance=0.5, guesses=4
            ).plain,
            speculate(
                "Llama-3 8B", "Llama-3.2 1B", "v5e:2x4", Layout(tensor=8), 8, context=2176, acceptance=0.5, guesses=4
            ).check,
        )
    )
    times = (1 - 0.8**5) / 0.2 / (4 * share + check / plain)
    assert rows(view)["with k = 4"].startswith(f"{times:.2f} times as fast")
    assert rows(view)["a guess costs"].endswith(f"{share:.1%} of a plain step")
    assert "without the draft" in rows(view)["memory"]


def test_from_where_guesses_pay_is_where_the_best_reaches_one():
    view = speculation_view(**GUESSES)
    said = float(re.fullmatch(r"from an acceptance of (0\.\d\d)", rows(view)["guesses pay"])[1])
    best = [
        speculate("Llama-3 8B", "Llama-3.2 1B", "v5e:2x4", Layout(tensor=8), 8, context=2176, acceptance=a).speedup
        for a in (said - 0.01, said)
    ]
    assert best[0] <= 1 < best[1]
    never = speculation_view(**GUESSES | {"draft": "100 %", "batch": 256})
    assert rows(never)["guesses pay"] == "never"
    assert words(never).startswith("At an acceptance of 0.8, guesses do not pay: at best, with 1, 0.")


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"draft": "Llama-3 8B"}, "draft", "draft=Llama-3 8B has 8,030,000,000 parameters, and its target"),
        ({"draft": "Qwen3 0.6B"}, "draft", "draft=Qwen3 0.6B has 151936 tokens, and Llama-3 8B 128256"),
        ({"draft": "llama9"}, "draft", "draft='llama9' is unknown; did you mean"),
        ({"draft": "0 %"}, "draft", "give more than 0 % and up to 100 %"),
        ({"draft": "300 %"}, "draft", "up to 100 %"),
        ({"draft": "<b>"}, "draft", "draft='<b>' is unknown"),
        ({"slice": "v5e:3x3"}, "slice", "v5e"),
        ({"slice": "eight"}, "slice", "does not read as chip:shape"),
        ({"tensor": "3"}, "tensor", "tensor=3 · kv_batch=2 is 6 devices, but v5e:2x4 has 8; tensor=4 would do"),
        ({"tensor": "64"}, "tensor", "tensor=64 is 64 devices, but v5e:2x4 has 8; tensor=8 would do"),
        ({"context": "16"}, "context", "context=16 has no room for 16 guesses and a token; give 17 or more"),
        ({"batch": "0"}, "batch", "batch=0 is not a size"),
    ],
)
def test_guesses_that_make_no_sense_are_said_beside_their_field_and_the_last_good_picture_stays(change, field, said):
    explorer = speculation_explorer()
    before = on_screen(explorer)
    move(explorer, **change)
    assert said in problems(explorer)[field]
    assert len(problems(explorer)) == 1
    assert on_screen(explorer) == before


def test_a_batch_that_does_not_fit_is_shown_and_said():
    shown = rows(speculation_view(**GUESSES | {"batch": 5000}))
    assert shown["memory"].startswith("does not fit: ")
    assert shown["memory"].endswith("take more chips, or fewer sequences")


def test_a_draft_with_fewer_heads_is_split_less():
    _, names = printed(
        speculation_view(**GUESSES | {"model": "Qwen3 32B", "draft": "Qwen3 0.6B", "slice": "v5e:8x8", "tensor": 64})
    )
    assert names["both"].draft.layout.tensor == 16
    assert names["both"].draft.layout.kv_batch == 4


def test_picked_drafts_fill_the_field_and_others_are_your_own():
    assert all(read_draft(draft) for draft in DRAFTS)
    explorer = speculation_explorer()
    pick = explorer.children[0].children[0]
    assert pick.value == "Llama-3.2 1B"
    pick.value = "20 %"
    assert explorer.state["draft"] == explorer.controls["draft"].widget.value == "20 %"
    move(explorer, draft="2.5%")
    assert (pick.value, explorer.state["draft"]) == (base.OWN, "2.5 %")
    move(explorer, draft="llama-3.2-1b")
    assert (pick.value, explorer.state["draft"]) == ("Llama-3.2 1B", "Llama-3.2 1B")


def test_the_surface_has_room_for_its_labels_and_refuses_what_is_not_on_it():
    for acceptance, guesses, draft in itertools.product((0.05, 0.5, 0.95), (1, 16), (0.01, 0.3, 1.0)):
        assert_room(surface.speedups(draft=draft, checks=[1.0] * 16, acceptance=acceptance, guesses=guesses).svg)
    with pytest.raises(ValueError, match=r"acceptance=0\.33 has no row; give one of 0\.05, 0\.1"):
        surface.speedups(draft=0.1, checks=[1.0] * 16, acceptance=0.33, guesses=1)
    for guesses in (0, 17):
        with pytest.raises(ValueError, match=f"guesses={guesses} has no column; give 1 to 16"):
            surface.speedups(draft=0.1, checks=[1.0] * 16, acceptance=0.5, guesses=guesses)


# Batches.


@pytest.mark.parametrize(("slice", "S", "kv"), [("v5e:2x4", 8192, "bf16"), ("v6e:2x2", 70_001, "int8"), ("h100:8x1", 500, "fp8")])
def test_the_batch_view_shows_what_the_library_says(slice, S, kv):
    view = batch_view(**BATCH | {"slice": slice, "S": S, "kv": kv})
    _, names = printed(view)
    counts = {}
    for name, layout in names["layouts"].items():
        counts[name] = max_batch(name, slice, layout, context=S)
        longest = max_context(name, slice, layout, batch=1)
        assert layout.kv == kv
        assert rows(view)[name].startswith(f"{counts[name]:,} fit; ")
        assert rows(view)[name].endswith(f"one alone may have {longest:,} tokens")
    assert [*counts] == batch_module.USUAL.split(", ")
    most, least = max(counts, key=counts.get), min(counts, key=counts.get)
    assert words(view) == (
        f"Of {S:,} tokens each, {slice} holds {counts[most]:,} sequences of {most}, and {counts[least]:,} of {least}."
    )


def test_no_split_of_a_slice_holds_more_than_the_one_shown():
    shown = rows(batch_view(**BATCH))
    for tensor, rest in ((8, 1), (4, 2), (2, 4), (1, 8)):
        for axis in ("kv_batch", "sequence", "data"):
            most = max_batch("Llama-3 8B", "v5e:2x4", Layout(**{"tensor": tensor, axis: rest}), context=8192)
            assert most <= int(re.match(r"([\d,]+) fit", shown["Llama-3 8B"])[1].replace(",", ""))


def test_lines_go_to_the_longest_sequence_and_no_point_holds_one_more():
    view = batch_view(**BATCH | {"models": "Llama-2 7B, Llama-3.2 1B"})
    svg = BeautifulSoup(view.svg, "html.parser")
    assert len(svg.find_all(class_="model")) == 2
    assert len(svg.find_all(class_="wall")) == 1  # of the other, sequences of a million fit
    longest = max_context("Llama-2 7B", "v5e:2x4", Layout(tensor=8), batch=1)
    assert f"to {longest:,} tokens" in svg.text
    assert longest < batches.LENGTHS[1]
    assert max_batch("Llama-2 7B", "v5e:2x4", Layout(tensor=8), context=longest + 1) == 0


def test_what_does_not_fit_says_why():
    shown = rows(batch_view(**BATCH | {"slice": "v5e:1x1"}))
    assert shown["gpt-oss-20b"].startswith("gpt-oss-20b does not fit: ")
    assert "take more chips, or weights of fewer bits" in shown["gpt-oss-20b"]
    longest = max_context("Llama-3 8B", "v5e:1x1", Layout(), batch=1)
    beyond = batch_view(**BATCH | {"slice": "v5e:1x1", "S": longest + 1, "models": "Llama-3 8B"})
    assert rows(beyond)["Llama-3 8B"].startswith(f"none fits, one alone may have {longest:,} tokens; ")
    assert words(beyond) == f"Of {longest + 1:,} tokens each, v5e:1x1 holds not one sequence of any of these."
    table = rows(batch_view(**BATCH | {"models": "OPT-13B, Llama-3 8B"}))
    assert table["OPT-13B"].startswith("none fits, its table of positions ends at 2,050 tokens; ")
    falcon = rows(batch_view(**BATCH | {"models": "Falcon 7B, Llama-3 8B", "slice": "v5e:2x4"}))
    assert " fit; " in falcon["Falcon 7B"]  # 71 heads, so its eight devices share tokens


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"models": "Llama-3 8B, Llama-9"}, "models", "model='Llama-9' is unknown"),
        ({"models": ""}, "models", "models names 0 of them; give 1 to 6"),
        ({"models": "Llama-3 8B, llama-3-8b"}, "models", "names Llama-3 8B twice"),
        ({"slice": "v5e-8"}, "slice", "is a Cloud name"),
        ({"slice": "<b>"}, "slice", "does not read as chip:shape"),
        ({"models": "Kimi-K2"}, "slice", "slice='v5e:2x4': Kimi-K2 does not fit: "),
        ({"S": "0"}, "S", "S=0 is not a size"),
        ({"S": "x"}, "S", "S='x' is not a number"),
    ],
)
def test_what_no_batch_can_be_told_of_is_said_and_the_last_good_picture_stays(change, field, said):
    explorer = batch_explorer()
    before = on_screen(explorer)
    move(explorer, **change)
    assert said in problems(explorer)[field]
    assert len(problems(explorer)) == 1
    assert on_screen(explorer) == before


def test_batches_of_all_examples_are_drawn_with_room_for_their_labels():
    for models in batch_module.EXAMPLES.values():
        for slice in ("v5p:4x4x4", "tpu7x:2x2x2"):
            with contextlib.suppress(ValueError):
                assert_room(batch_view(**BATCH | {"models": models, "slice": slice, "S": 1000}).svg)
    with pytest.raises(ValueError, match="walls has 0 models; give 1 to 6"):
        batches.curves({}, where="v5e:2x4")


# All three.


@pytest.mark.parametrize(
    ("make", "view", "changes"),
    [
        (
            serving_explorer,
            serving_view,
            [
                {"tpot_ms": "10"}, {"ttft_ms": "80"}, {"kv": "int8"}, {"weights": "int8"}, {"math": "int8"}, {"input": "1,000"},
                {"output": "100"}, {"usd_per_chip_hour": "$3"}, {"chip": "v6e"}, {"model": "Qwen3 8B"}, {"against": AGAINST[1]},
            ],
        ),
        (
            speculation_explorer,
            speculation_view,
            [
                {"acceptance": 0.9}, {"guesses": 7}, {"batch": "64"}, {"context": "1e4"}, {"draft": "Llama-3.2 3B"},
                {"tensor": "4"}, {"slice": "v6e:2x4"}, {"model": "Llama-3.1 70B"},
            ],
        ),
        (
            batch_explorer,
            batch_view,
            [{"models": "Llama-3 8B, Qwen3 8B"}, {"S": "2e4"}, {"weights": "int8"}, {"kv": "fp8"}, {"slice": "v6e:4x4"}],
        ),
    ],
)  # fmt: skip
def test_every_control_changes_what_is_said(make, view, changes):
    explorer = make()
    for change in changes:
        before = explorer.shown
        move(explorer, **change)
        assert problems(explorer) == {}, change
        assert explorer.shown.numbers != before.numbers, change
        assert explorer.shown.svg != before.svg, change
        assert explorer.shown == view(**explorer.state)
        assert on_screen(explorer) == html_of(explorer.shown)
    assert {name for change in changes for name in change} == set(explorer.state)


@pytest.fixture
def link(monkeypatch):
    return lambda **values: monkeypatch.setattr(base, "LINK", values)


@pytest.mark.parametrize(
    ("make", "state"),
    [
        *STATES,
        (
            serving_explorer,
            SERVING | {"chip": "h200", "usd_per_chip_hour": 2.5, "tpot_ms": "any", "ttft_ms": 900.5, "math": "fp8"},
        ),
        (speculation_explorer, GUESSES | {"draft": "2.5 %", "slice": "v5p:2x2x2", "acceptance": 0.35, "guesses": 16}),
        (batch_explorer, BATCH | {"models": "Kimi-K2, Llama-3 8B", "slice": "h100:8x4", "S": 77, "weights": "fp4"}),
    ],
)
def test_a_link_carries_the_state(make, state, link):
    assert_link_carries(make, state, link)


def test_bad_values_of_a_link_are_left_out_and_said(link):
    link(explorer="serving", model="<script>", input="x", kv="int8", tpot_ms="0", against="dollars")
    explorer = serving_explorer()
    assert explorer.state == SERVING | {"kv": "int8"}
    assert {field for field, said in problems(explorer).items() if "left out" in said} == {"model", "input", "tpot_ms", "against"}
    link(explorer="speculation", draft="none", guesses="17", acceptance="0.81", batch="9")
    explorer = speculation_explorer()
    assert explorer.state == GUESSES | {"batch": 9}
    assert {field for field, said in problems(explorer).items() if "left out" in said} == {"draft", "guesses", "acceptance"}


def test_the_serving_code_to_copy_gives_the_same_best():
    for change in ({}, {"weights": "int8", "ttft_ms": 60.0, "usd_per_chip_hour": 2.5}):
        view = serving_view(**SERVING | change)
        _, names = printed(view)
        best = names["found"].best
        shown = float(re.search(r"\$([\d.]+) a million", words(view))[1])
        assert shown == pytest.approx(best.usd_per_million, rel=0.06)
        assert str(best.decode.slice) in words(view)


def test_the_speculation_code_to_copy_gives_the_same_numbers():
    out, _ = printed(speculation_view(**GUESSES))
    (k, chosen), (best, fastest) = (line.split() for line in out.splitlines())
    assert (k, f"{float(chosen):.2f} times") == ("4", rows(speculation_view(**GUESSES))["with k = 4"][:10])
    assert f"{best} guesses are best: {float(fastest):.2f} times" in words(speculation_view(**GUESSES))
    view = speculation_view(**GUESSES | {"draft": "5 %"})
    assert rows(view)["with k = 4"].startswith(f"{float(printed(view)[0]):.2f} times")


def test_wrong_arguments_are_errors():
    for make, wrong in (
        (serving_explorer, {"model": "llama9"}), (serving_explorer, {"chip": "v100"}), (serving_explorer, {"input": 0}),
        (serving_explorer, {"kv": "bf17"}), (serving_explorer, {"tpot_ms": -1}), (serving_explorer, {"usd_per_chip_hour": 0}),
        (serving_explorer, {"against": "dollars"}), (speculation_explorer, {"model": "llama9"}),
        (speculation_explorer, {"draft": "llama9"}), (speculation_explorer, {"slice": "v5e-8"}),
        (speculation_explorer, {"tensor": 3}), (speculation_explorer, {"acceptance": 1.5}),
        (speculation_explorer, {"guesses": 17}), (batch_explorer, {"slice": "v5e-8"}),
        (batch_explorer, {"weights": "bf17"}), (batch_explorer, {"S": 0}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=str(*wrong)):
            make(**wrong)
    with pytest.raises(ValueError, match="Llama-9"):
        batch_explorer(models="Llama-9")


def test_a_move_takes_no_longer_than_a_blink():
    """Half a second by the clock of the process, which a busy machine does not stretch."""
    moves = [
        (serving_explorer(), [{"tpot_ms": "10"}, {"model": "DeepSeek-V3"}, {"chip": "tpu7x"}, {"tpot_ms": "40"}]),
        (speculation_explorer(), [{"batch": "77"}, {"slice": "v6e:2x4"}, {"acceptance": 0.5}]),
        (batch_explorer(), [{"S": "9999"}, {"slice": "v5p:4x4x4"}, {"kv": "int8"}]),
    ]
    for explorer, changes in moves:
        for change in changes:
            began = time.process_time()
            move(explorer, **change)
            assert problems(explorer) == {}
            assert time.process_time() - began < 0.5, change


def test_every_target_of_the_catalog_can_be_asked_with_a_draft_of_a_cost():
    explorer = speculation_explorer(draft="5 %", slice="v5e:1x1", tensor=1, batch=1, context=100)
    for model in tf.MODELS:
        move(explorer, model=model)
        assert problems(explorer) == {}, model
