"""Whole requests on three engines, paging, cached prefixes, speculation, disaggregation: by hand, by counting, and bad input."""

import json
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_lib import transformer as tf
from scaling_lib import units
from scaling_lib.hardware import Slice, chip, slice_of
from scaling_lib.inference import Layout, Speed, decode_step, max_batch, prefill, prefix, serve, speculate
from scaling_lib.inference.disaggregation import servers, transfer_s
from scaling_lib.inference.paging import Room, mean_room, padded, paged
from scaling_lib.inference.speculation import acceptance, expected_tokens, residual

V5E8 = slice_of("v5e:2x4")
INT8 = Layout(tensor=8, weights="int8", kv="int8")
ASK = {"input": 2048, "output": 256}
LLAMA_70B, LLAMA_8B = tf.model("Llama-3 70B"), tf.model("Llama-3 8B")


def served(**changes):
    return serve(LLAMA_70B, V5E8, INT8, **{**ASK, "batch": 40, **changes})


STEP_S = decode_step(LLAMA_70B, V5E8, INT8, 40, context=2048 + 128).seconds
READ_S = prefill(LLAMA_70B, V5E8, INT8, prompt=2048).seconds


# --- Engines. ---


def test_a_static_batch_reads_all_prompts_and_then_decodes():
    one, reads_s = served(engine="static"), prefill(LLAMA_70B, V5E8, INT8, prompt=2048, batch=40).seconds
    assert (one.ttft_s, one.tpot_s) == (reads_s, STEP_S)
    assert one.tokens_per_s == pytest.approx(40 * 256 / (reads_s + 256 * STEP_S), rel=1e-12)
    assert one.stall_s == 0


def test_a_continuous_batch_stops_for_the_prompts_of_others():
    one = served()
    assert one.ttft_s == one.stall_s == READ_S
    assert one.tpot_s == pytest.approx(STEP_S + 40 / 256 * READ_S, rel=1e-12)
    assert one.tokens_per_s == pytest.approx(40 / one.tpot_s, rel=1e-12)
    assert one.requests_per_s == pytest.approx(one.tokens_per_s / 256, rel=1e-12)
    assert one.request_s == pytest.approx(one.ttft_s + 255 * one.tpot_s, rel=1e-12)


def test_continuous_batches_by_counting_steps():
    """A full server, simulated: every step each sequence gains a token; a finished one is replaced after a prefill."""
    clock, left, finished = 0.0, [1 + 256 * i // 40 for i in range(40)], 0
    for _ in range(10 * 256):
        clock += STEP_S
        left = [n - 1 for n in left]
        done = left.count(0)
        clock += done * READ_S
        finished += done
        left = [n or 256 for n in left]
    assert finished / clock == pytest.approx(served().requests_per_s, rel=1e-9)


def test_apart_decode_never_stops_and_prefill_servers_count():
    one = served(engine="disaggregated")
    sent = tf.kv_cache_bytes(LLAMA_70B, S=2048, dtype="int8")
    assert one.transfer_s == sent / V5E8.dcn_bytes_per_s
    assert (one.ttft_s, one.tpot_s) == (READ_S + one.transfer_s, STEP_S)
    assert one.prefill_servers == pytest.approx(READ_S * 40 / (256 * STEP_S), rel=1e-12)
    assert one.chips == 8 * (1 + one.prefill_servers)
    together = served()
    assert one.tokens_per_s_per_chip == pytest.approx(together.tokens_per_s_per_chip, rel=1e-12)  # the same work is done


def test_chunks_ride_along_with_decode_steps():
    one, apart = served(chunk=1024), served()
    alone = prefill(LLAMA_70B, V5E8, INT8, prompt=2048, chunk=1024)
    mixed, decode = one.mixed.passes[0], one.decode.passes[0]
    assert mixed.weights_s == decode.weights_s
    assert mixed.math_s == pytest.approx(decode.math_s + alone.passes[0].math_s, rel=1e-3)  # the head apart
    assert one.ttft_s == 2 * one.mixed.seconds
    share = 40 * 2048 / (256 * 1024)
    assert one.tpot_s == pytest.approx(share * one.mixed.seconds + (1 - share) * STEP_S, rel=1e-12)
    assert STEP_S < one.tpot_s < apart.tpot_s
    assert one.stall_s < apart.stall_s
    assert one.prefill.memory.working < apart.prefill.memory.working


def test_chunks_too_small_for_the_prompts_say_what_would_do():
    with pytest.raises(ValueError, match=r"chunk=256 .* 40 sequences, 320 tokens a step; give chunk=320, or batch=32$"):
        served(chunk=256)
    assert served(chunk=320).mixed
    assert served(chunk=256, batch=32).mixed
    assert served(chunk=10_000).ttft_s == served(chunk=10_000).mixed.seconds  # a prompt is one chunk


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 4000), st.integers(2, 1000), st.sampled_from(["continuous", "static", "disaggregated"]),
    st.sampled_from(["full", "ops", "none"]),
)  # fmt: skip
def test_bounds_enclose_every_server(batch, input, output, engine, overlap):
    one = serve(LLAMA_70B, V5E8, INT8, input=input, output=output, batch=batch, engine=engine, speed=Speed(overlap=overlap))
    for value, (low, high) in ((one.ttft_s, one.ttft_bounds_s), (one.tpot_s, one.tpot_bounds_s)):
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    assert one.fits == (one.batch <= one.max_batch and one.prefill.fits)


def test_dollars():
    one = served()
    price = chip("v5e").usd_per_hour
    assert one.usd_per_million == pytest.approx(price * 8 / 3600 / one.tokens_per_s * 1e6, rel=1e-12)
    assert served(usd_per_chip_hour=2 * price).usd_per_million == pytest.approx(2 * one.usd_per_million, rel=1e-12)
    assert serve(LLAMA_8B, "h200:1x1", Layout(), **ASK, batch=8).usd_per_million is None
    assert serve(LLAMA_8B, "h200:1x1", Layout(), **ASK, batch=8, usd_per_chip_hour=3).usd_per_million > 0


def test_without_a_batch_as_many_as_fit():
    one = served(batch=None)
    assert one.batch == one.max_batch <= max_batch(LLAMA_70B, V5E8, INT8, context=2048 + 256)
    assert one.fits
    over = served(batch=one.max_batch + 1)
    assert not over.fits
    assert f"give batch={one.max_batch}" in over.explain()
    assert over.why_not in over.explain()
    paged_ = served(batch=None, block=16)
    assert paged_.max_batch > one.max_batch
    assert served(batch=None, cache=4096).max_batch < one.max_batch


def test_a_server_too_small_for_one_sequence_says_so():
    with pytest.raises(ValueError, match=r"the weights alone take 16\.4 GiB"):
        serve(LLAMA_70B, V5E8, Layout(tensor=8), **ASK)
    assert not serve(LLAMA_70B, V5E8, Layout(tensor=8), **ASK, batch=1).fits


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"input": 0}, "input=0 is not a size"),
        ({"output": -5}, "output=-5 is not a size"),
        ({"batch": 0}, "batch=0 is not a size"),
        ({"engine": "dynamic"}, "engine='dynamic' is unknown; give 'continuous', 'static', 'disaggregated'"),
        ({"engine": "static", "chunk": 512}, "chunk=512 is for engine='continuous'"),
        ({"chunk": 0}, "chunk=0 is not a size"),
        ({"cache": 2303}, "cache=2303 has no room for input .* 2304 tokens; give cache=2304"),
        ({"cache": 4096, "block": 16}, "a cache is static or paged"),
        ({"cached": 2048}, "cached=2048 of prompt=2048 tokens leaves none"),
        ({"usd_per_chip_hour": 0}, "usd_per_chip_hour=0 must be positive"),
        ({"usd_per_chip_hour": -1.5}, "usd_per_chip_hour=-1.5 must be positive"),
    ],
)
def test_bad_requests_say_what_would_do(changes, says):
    with pytest.raises(ValueError, match=says):
        served(**changes)


def test_meeting_a_target():
    one = served()
    assert one.meets(ttft_s=one.ttft_s, tpot_s=one.tpot_s)
    assert not one.meets(ttft_s=one.ttft_s * 0.99)
    assert not one.meets(tpot_s=one.tpot_s * 0.99)
    assert not served(batch=1000).meets()


@pytest.mark.parametrize("changes", [{}, {"engine": "disaggregated"}, {"chunk": 512}], ids=str)
def test_text_and_json_say_the_same(changes):
    one = served(**changes)
    facts = json.loads(json.dumps(one.to_json()))
    assert facts["tpot_s"] == one.tpot_s
    assert facts["ttft_bounds_s"] == list(one.ttft_bounds_s)
    assert (facts["mixed"] is None) == ("chunk" not in changes)
    text = str(one)
    for word in (units.human(one.tpot_s, "s"), f"{one.usd_per_million:.2f} USD", "40 sequences", one.engine):
        assert word in text
    assert max(map(len, text.splitlines())) < 160


# --- Paging. ---


def test_rooms():
    assert paged([1, 4, 5], block=4) == Room(used=10, reserved=16)
    assert padded([1, 4, 5], longest=7) == Room(used=10, reserved=21)
    assert paged([3, 9], block=1).waste == 0
    assert padded([5, 5], longest=10).waste == 0.5
    draw = random.Random(7)
    lengths = [draw.randrange(1, 3000) for _ in range(20_000)]
    room = paged(lengths, block=16)
    assert (room.reserved - room.used) / len(lengths) == pytest.approx(15 / 2, rel=0.02)


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 40))
def test_mean_room_is_that_of_every_length_of_a_life(input, output, block):
    whole = paged(range(input + 1, input + output + 1), block=block)
    assert mean_room(input, output, block) == -(-whole.reserved // output)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: paged([], block=4), "lengths is empty"),
        (lambda: paged([3, 0], block=4), "lengths=0 is not a size"),
        (lambda: paged([3], block=0), "block=0 is not a size"),
        (lambda: padded([3, 9], longest=8), "a sequence of 9 tokens is beyond longest=8; give longest=9"),
    ],
)
def test_bad_rooms(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# --- Prefixes. ---


def test_a_prefix_saves_its_share_and_is_loaded_over_pcie():
    one = prefix(LLAMA_70B, V5E8, INT8, prompt=4096, cached=3072, rate=0.75)
    assert one.miss.seconds == prefill(LLAMA_70B, V5E8, INT8, prompt=4096).seconds
    assert one.hit.seconds == prefill(LLAMA_70B, V5E8, INT8, prompt=4096, cached=3072).seconds
    assert one.mean_s == 0.75 * one.hit.seconds + 0.25 * one.miss.seconds
    assert one.speedup == one.miss.seconds / one.mean_s > 2
    assert one.prefix_bytes == tf.kv_cache_bytes(LLAMA_70B, S=3072, dtype="int8")
    assert one.load_s == one.prefix_bytes / (8 * chip("v5e").pcie_bytes_per_s)
    assert one.load_pays
    assert one.kept(10.5 * one.prefix_bytes) == 10
    assert prefix(LLAMA_70B, V5E8, INT8, prompt=4096, cached=3072, rate=0).speedup == 1
    slow = Slice(chip("v5e").but(pcie_bytes_per_s=1e8), (2, 4))
    assert not prefix(LLAMA_70B, slow, INT8, prompt=4096, cached=3072).load_pays


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rate": 1.5}, "rate=1.5 is a part of the prompts"),
        ({"rate": -0.1}, "rate=-0.1 is a part of the prompts"),
        ({"cached": 0}, "cached=0 is not a size"),
        ({"cached": 4096}, "leaves none to compute"),
    ],
)
def test_bad_prefixes(changes, says):
    with pytest.raises(ValueError, match=says):
        prefix(LLAMA_70B, V5E8, INT8, **{"prompt": 4096, "cached": 100, **changes})


# --- Speculation. ---


def test_expected_tokens_by_counting():
    draw = random.Random(3)
    counts = []
    for _ in range(40_000):
        kept = 0
        while kept < 4 and draw.random() < 0.8:
            kept += 1
        counts.append(kept + 1)
    assert np.mean(counts) == pytest.approx(expected_tokens(0.8, 4), abs=4 * np.std(counts) / 200)
    assert expected_tokens(0.8, 4) == pytest.approx(3.3616, rel=1e-12)
    assert (expected_tokens(0, 5), expected_tokens(1, 5), expected_tokens(0.5, 0)) == (1, 6, 1)
    assert expected_tokens(np.array([0.5, 0.25]), np.array([1, 2])).tolist() == [1.5, 1.3125]


distributions = st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(lambda ws: sum(ws) > 0.01).map(
    lambda ws: [w / sum(ws) for w in ws]
)  # fmt: skip


@given(distributions, distributions)
def test_what_comes_out_has_the_distribution_of_the_target(p, q):
    """Token x comes out where the draft guesses it and it is kept, or where a guess is refused and x is drawn."""
    kept, left = acceptance(p, q), residual(p, q)
    out = [b * min(1.0, a / b) if b else 0.0 for a, b in zip(p, q, strict=True)]
    out = [each + (1 - kept) * rest for each, rest in zip(out, left, strict=True)]
    assert out == pytest.approx(p, abs=1e-9)
    assert sum(left) == pytest.approx(1)


def test_a_guess_is_kept_as_often_as_the_two_agree():
    assert acceptance([0.5, 0.5, 0], [0.25, 0.25, 0.5]) == 0.5
    assert acceptance([1, 0], [0, 1]) == 0
    assert residual([0.5, 0.5], [0.5, 0.5]) == [0.5, 0.5]
    assert residual([0.6, 0.4], [0.2, 0.8]) == [1, 0]


def test_speculation_is_as_fast_as_its_steps():
    layout = Layout(tensor=8, weights="int8", kv="int8")
    one = speculate(LLAMA_70B, LLAMA_8B, V5E8, layout, 4, context=2048, acceptance=0.8, guesses=3)
    draft = decode_step(LLAMA_8B, V5E8, layout, 4, context=2048).seconds
    check = decode_step(LLAMA_70B, V5E8, layout, 4, context=2048, new=4)
    plain = decode_step(LLAMA_70B, V5E8, layout, 4, context=2048)
    assert check.facts[0].math_flops == 4 * plain.facts[0].math_flops
    assert one.seconds == pytest.approx(3 * draft + check.seconds, rel=1e-12)
    assert one.tokens == pytest.approx(1 + 0.8 + 0.64 + 0.512, rel=1e-12)
    assert one.speedup == pytest.approx(plain.seconds * one.tokens / one.seconds, rel=1e-12)
    assert one.speedup > 1
    assert one.fits


def test_the_best_number_of_guesses_grows_with_acceptance_and_is_the_best():
    def at(acceptance, guesses=None, batch=4):
        return speculate(LLAMA_70B, LLAMA_8B, V5E8, INT8, batch, context=2048, acceptance=acceptance, guesses=guesses)

    best = [at(a) for a in (0.3, 0.6, 0.9)]
    assert all(a.guesses <= b.guesses and a.speedup < b.speedup for a, b in pairwise(best))
    assert best[1].speedup == max(at(0.6, k).speedup for k in range(1, 12))
    assert at(0.6, 4, batch=120).speedup < at(0.6, 4).speedup  # the math of checks is no longer hidden
    assert at(0.0).speedup < 1


@pytest.mark.parametrize(
    ("model", "draft", "changes", "says"),
    [
        (
            "Llama-3 8B",
            "Llama-3 70B",
            {},
            "draft=Llama-3 70B has .* parameters, and its target Llama-3 8B .*; give a smaller",
        ),
        ("Llama-3 8B", "Llama-3 8B", {}, "give a smaller one"),
        ("Llama-3 70B", "Llama-2 7B", {}, "draft=Llama-2 7B has 32000 tokens, and Llama-3 70B 128256; .* same vocabulary"),
        ("Llama-3 70B", "Llama-3 8B", {"acceptance": 1.2}, "acceptance=1.2 is a probability"),
        ("Llama-3 70B", "Llama-3 8B", {"acceptance": -0.1}, "acceptance=-0.1 is a probability"),
        ("Llama-3 70B", "Llama-3 8B", {"guesses": 0}, "guesses=0 is not a size"),
    ],
)
def test_bad_speculation(model, draft, changes, says):
    with pytest.raises(ValueError, match=says):
        speculate(model, draft, V5E8, INT8, 4, context=2048, **{"acceptance": 0.8, **changes})


@pytest.mark.parametrize(
    ("p", "q", "says"),
    [
        ([0.5, 0.4], [0.5, 0.5], "target sums to 0.9"),
        ([0.5, 0.5], [1.5, -0.5], "draft=-0.5 is too small"),
        ([1.0], [0.5, 0.5], "target has 1 tokens and draft 2"),
    ],
)
def test_what_is_no_distribution(p, q, says):
    with pytest.raises(ValueError, match=says):
        acceptance(p, q)


# --- Disaggregation. ---


def test_servers_that_keep_each_other_busy():
    assert servers(prefill_s=0.9, step_s=0.02, batch=32, output=480) == pytest.approx(3)
    assert servers(prefill_s=np.array([0.9, 1.8]), step_s=0.02, batch=32, output=480).tolist() == pytest.approx([3, 6])
    with pytest.raises(ValueError, match="step_s=0 must be positive"):
        servers(prefill_s=0.9, step_s=0, batch=32, output=480)
    with pytest.raises(ValueError, match="batch=-1 must be positive"):
        servers(prefill_s=0.9, step_s=1, batch=-1, output=480)


def test_a_cache_is_sent_by_all_hosts():
    all_of_it = transfer_s(LLAMA_70B, V5E8, tokens=8192)
    assert all_of_it == tf.kv_cache_bytes(LLAMA_70B, S=8192) / (8 * chip("v5e").dcn_bytes_per_s)
    assert transfer_s(LLAMA_70B, V5E8, tokens=8192, kv="int8", share=0.25) == 2 * all_of_it
    scaled = transfer_s(LLAMA_70B, V5E8, tokens=8192, kv="int8", kv_scale="bf16")
    assert scaled == pytest.approx(all_of_it / 2 * (1 + 2 / 128))  # two bytes beside each head's 128
    with pytest.raises(ValueError, match="share=0 is a part of the network"):
        transfer_s(LLAMA_70B, V5E8, tokens=8192, share=0)
