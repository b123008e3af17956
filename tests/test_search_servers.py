"""The search for servers: held to `serve`, layout by layout and batch by batch; its front, and what it says where none do."""

import json
import random
import re

import numpy as np
import pytest

from scaling_lib import transformer as tf
from scaling_lib.hardware import Slice, chip, slice_of
from scaling_lib.inference import Layout, Speed, serve, why_not
from scaling_lib.inference.sizing import slices_of
from scaling_lib.search import serving_pareto
from scaling_lib.search.servers import Question, batches, candidates, layouts
from scaling_lib.transformer import Experts, Transformer

ASK = {"input": 1000, "output": 200}
INT8 = Layout(weights="int8", kv="int8")
LLAMA_8B = tf.model("Llama-3 8B")
SPARSE = Transformer(
    n_layers=4, d_model=2048, n_heads=16, n_kv_heads=4, vocab_size=32000, name="sparse",
    experts=Experts(n_experts=8, top_k=2, d_ff=4096),
)  # fmt: skip


def question(model, engine="continuous", speed=None):
    return Question(model=model, **ASK, engine=engine, base=INT8, speed=speed or Speed())


@pytest.mark.parametrize(
    ("model", "slice", "engine", "speed"),
    [
        (LLAMA_8B, "v5e:4x4", "continuous", Speed()),
        (LLAMA_8B, "tpu7x:2x2x1", "disaggregated", Speed(overlap="full")),
        (SPARSE, "v5p:2x2x2", "continuous", Speed(hop_s=0, efficiency=0.6)),
        (SPARSE, "h100:4x1", "continuous", Speed(overlap={"tensor": 0.5})),
    ],
)
def test_every_server_is_priced_as_serve_prices_it(model, slice, engine, speed):
    slice, draw, seen = slice_of(slice), random.Random(5), 0
    for layout in layouts(question(model), slice, {}):
        assert why_not(layout, model, slice) is None
        found = candidates(question(model, engine, speed), slice, layout)
        if not len(found.batch):
            assert found.lacks_bytes > 0
            with pytest.raises(ValueError, match="lacking"):
                serve(model, slice, layout, **ASK, engine=engine, speed=speed)
            continue
        for at in {0, len(found.batch) - 1, draw.randrange(len(found.batch))}:
            one = serve(model, slice, found.layout, **ASK, batch=int(found.batch[at]), engine=engine, speed=speed)
            assert one.fits
            assert found.tpot_s[at] == pytest.approx(one.tpot_s, rel=1e-9)
            assert found.ttft_s == pytest.approx(one.ttft_s, rel=1e-9)
            assert found.chip_s[at] == pytest.approx(1 / one.tokens_per_s_per_chip, rel=1e-9)
            seen += 1
        assert not serve(model, slice, found.layout, **ASK, batch=int(found.batch[-1]) + 1, engine=engine, speed=speed).fits
    assert seen >= 6


def test_no_server_is_faster_and_cheaper_than_one_on_the_front():
    found = serving_pareto(LLAMA_8B, "v5e", **ASK, base=INT8, most_chips=8)
    assert [str(slice) for slice in found.slices] == ["v5e:1x1", "v5e:2x2", "v5e:2x4"]
    speeds, costs = ([getattr(one, name) for one in found.front] for name in ("tpot_s", "usd_per_million"))
    assert speeds == sorted(speeds)
    assert costs == sorted(costs, reverse=True)
    every = [
        serve(LLAMA_8B, slice, layout, **ASK, batch=batch)
        for slice in found.slices
        for layout in layouts(question(LLAMA_8B), slice, {})
        for batch in (1, 2, 7, 40, 64)
    ]
    for one in every:
        if one.fits:
            at = int(np.searchsorted(speeds, one.tpot_s * (1 + 1e-9))) - 1
            assert at < 0 or costs[at] <= one.usd_per_million * 1.02


def test_the_best_is_the_cheapest_that_is_fast_enough():
    free = serving_pareto(LLAMA_8B, "v5e", **ASK, base=INT8, most_chips=8)
    assert free.best.usd_per_million == free.front[-1].usd_per_million
    quick = serving_pareto(LLAMA_8B, "v5e", **ASK, base=INT8, most_chips=8, tpot_s=0.01, ttft_s=0.05)
    assert quick.best.meets(tpot_s=0.01, ttft_s=0.05)
    assert quick.best.usd_per_million > free.best.usd_per_million
    assert all(one.ttft_s <= 0.05 for one in quick.front)
    cheaper = [one for one in quick.front if one.usd_per_million < quick.best.usd_per_million * 0.99]
    assert not any(one.tpot_s <= 0.01 for one in cheaper)


def test_dearer_chips_lose_where_they_do_the_same():
    both = [slice_of("v5e:2x4"), Slice(chip("v5e").but(usd_per_hour=9), (2, 2))]
    found = serving_pareto(LLAMA_8B, both, **ASK, base=INT8)
    assert found.best.decode.slice == both[0]
    assert found.best.usd_per_chip_hour == chip("v5e").usd_per_hour


def test_without_a_price_seconds_of_chips_are_compared():
    found = serving_pareto(LLAMA_8B, "h200", **ASK, base=INT8, most_chips=2)
    assert found.best.usd_per_million is None
    assert found.best.tokens_per_s_per_chip == max(one.tokens_per_s_per_chip for one in found.front)
    priced = serving_pareto(LLAMA_8B, "h200", **ASK, base=INT8, most_chips=2, usd_per_chip_hour=3.5)
    assert priced.best.usd_per_million > 0
    assert priced.best.decode.layout == found.best.decode.layout


def test_all_slices_of_a_generation_in_a_moment():
    """Two seconds on a core that is free, by the clock of the process elsewhere; here a guard."""
    found = serving_pareto("Llama-3 70B", "v5e", input=2048, output=256, base=INT8)
    assert found.slices[-1].chips == 256
    assert found.seconds < 15
    assert found.servers > 5000


def test_slices_of_a_generation():
    assert [slice.name for slice in slices_of(chip("v5p"), 128)] == [
        "v5p:1x1x1", "v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4", "v5p:2x4x4", "v5p:4x4x4", "v5p:4x4x8",
    ]  # fmt: skip
    nodes = [slice.name for slice in slices_of(chip("h100"), 32)]
    assert nodes == ["h100:1x1", "h100:2x1", "h100:4x1", "h100:8x1", "h100:8x2", "h100:8x4"]


def test_batches():
    assert batches(1).tolist() == [1]
    assert batches(7).tolist() == [1, 2, 3, 4, 5, 6, 7]
    many = batches(1000)
    assert (many[0], many[-1]) == (1, 1000)
    assert max(many[1:] / many[:-1]) <= 2
    assert all(many[many > 30][1:] / many[many > 30][:-1] < 1.13)


# --- Where none will do, and bad input. ---


@pytest.mark.parametrize(
    ("model", "where", "changes", "says"),
    [
        ("Llama-3 70B", "v5e:2x2", {}, "one sequence does not fit; tensor .* on v5e:2x2 comes nearest, .* lacks .* GiB"),
        ("Llama-3 8B", "v5e:2x2", {"tpot_s": 1e-4}, "a token takes at least .* ms, and may take 100 µs"),
        ("Llama-3 8B", "v5e:2x2", {"ttft_s": 1e-3}, "the first token takes at least .* ms, and may take 1 ms"),
        (LLAMA_8B.but(n_heads=7, n_kv_heads=7, d_ff=7001, d_model=4095), "v5e:2x2", {}, "no layout divides the model"),
    ],
)
def test_where_none_will_do_the_search_says_why(model, where, changes, says):
    found = serving_pareto(model, where, **ASK, base=INT8, **changes)
    assert found.best is None
    assert found.why_none in found.explain()
    assert re.search(says, found.why_none)


@pytest.mark.parametrize(
    ("where", "changes", "says"),
    [
        ("v5f", {}, "did you mean"),
        ("v5e:3x3", {}, "cannot be built from v5e"),
        ("v5e", {"tpot_s": 0}, "tpot_s=0 must be positive"),
        ("v5e", {"ttft_s": -1}, "ttft_s=-1 must be positive"),
        ("v5e", {"engine": "static"}, "engine='static' is no engine to search for"),
        ("v5e", {"input": 0}, "input=0 is not a size"),
        ("v5e", {"usd_per_chip_hour": 0}, "usd_per_chip_hour=0 must be positive"),
        ([], {}, "give a chip, a slice, or a list of slices"),
        ([slice_of("h200:1x1"), slice_of("v5e:1x1")], {}, "no sourced figure for usd_per_hour of h200"),
        ("v5e", {"base": Layout(math="fp8")}, "dtype='fp8' has no sourced peak on v5e"),
    ],
)
def test_bad_questions(where, changes, says):
    with pytest.raises(ValueError, match=says):
        serving_pareto(LLAMA_8B, where, **{**ASK, "most_chips": 4, **changes})


def test_text_and_json_say_the_same():
    found = serving_pareto(LLAMA_8B, "v5e", **ASK, base=INT8, most_chips=4, tpot_s=0.05)
    facts = json.loads(json.dumps(found.to_json()))
    assert len(facts["front"]) == len(found.front)
    assert facts["best"]["tpot_s"] == found.best.tpot_s
    assert facts["slices"] == ["v5e:1x1", "v5e:2x2"]
    assert (found.refused, facts["refused"]) == ({}, {})
    text = str(found)
    for word in (f"{found.servers:,} servers", f"{found.best.usd_per_million:.2f} USD", "fastest", "cheapest"):
        assert word in text
    odd = serving_pareto(LLAMA_8B.but(n_heads=6, n_kv_heads=6, head_dim=128), "v5e:2x2", **ASK, base=INT8)
    assert odd.refused["heads"] > 0
    assert "layouts refused: heads" in str(odd)
