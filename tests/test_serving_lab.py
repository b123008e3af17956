"""Lab 7b: its exercises answered rightly and wrongly, its cells run twice, and its predictions broken on purpose."""

import re
from functools import cache as cache_of_calls
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from scaling_lib.transformer import Transformer
from scaling_lib.xla import llama, simulate
from scaling_lib.xla.serving import checks
from scaling_lib.xla.serving.engine import Engine
from tests.cells import assert_checks_a_number, at, changed, code_cells, how_many_lack, run, shown

# Functions of the reader


def read(pool, table, length):
    return pool[table].reshape(-1, *pool.shape[2:])[:length]


READINGS = [
    (..., "Not answered yet"),
    (lambda pool, table, length: None, "Not answered yet"),
    (lambda pool, table, length: read(pool, np.arange(3), length), "these are the first places of the pool"),
    (lambda pool, table, length: read(pool, np.sort(table), length), "the blocks are in the pool's order"),
    (lambda pool, table, length: read(pool, table, 99), "the last block is full in part: the sequence has 7 tokens"),
    (lambda pool, table, length: pool.reshape(-1, 2, 3)[table], "a number in the table is that of a block"),
    (lambda pool, table, length: pool[table], r"an array of shape \(7, 2, 3\) is wanted, not \(2, 4, 2, 3\)"),
    (lambda pool, table, length: read(pool, table, length) + 1, "numbers are up to 1 off"),
    (lambda pool, table, length: pool[9], "it does not run: index 9 is out of bounds"),
]


@pytest.mark.parametrize(("answer", "words"), READINGS, ids=range(len(READINGS)))
def test_reading_by_a_table_is_checked(answer, words):
    found = checks.reading(answer)
    assert not found.ok
    assert re.search(words, str(found)), found


def test_reading_by_a_table_is_right():
    assert checks.reading(read).ok
    assert checks.reading(lambda pool, table, length: jnp.asarray(read(pool, table, length))).ok


@cache_of_calls
def small_engine():
    model = Transformer(n_layers=1, d_model=8, n_heads=2, n_kv_heads=1, head_dim=4, d_ff=12, vocab_size=16)
    return Engine(llama.init(model, jax.random.key(0)), 3, 32)


def serve(engine, requests, *, opens=lambda engine: engine.free, most=99, drop=0):
    """A loop that lets so many join whenever `opens` says so."""
    waiting, left, served = list(requests)[drop:], {}, []
    while waiting or left:
        if opens(engine):
            for _ in range(most):
                if waiting and engine.free:
                    request = waiting.pop(0)
                    left[engine.insert(request)] = request.new - 1
        if any(left.values()):
            for slot in engine.step():
                left[slot] -= 1
        for slot in [slot for slot, tokens in left.items() if not tokens]:
            served.append(engine.finish(slot))
            del left[slot]
    return served


def in_batches(engine, requests):
    return serve(engine, requests, opens=lambda engine: engine.free == engine.slots)


def too_early(engine, requests):
    return [engine.finish(engine.insert(request)) for request in requests]


def endless(engine, requests):
    while engine.free:
        pass


def left_alone(engine, requests):
    engine.insert(requests[0])
    engine.insert(requests[1])
    return []


LOOPS = [
    (..., "Not answered yet"),
    (lambda engine, requests: None, "Not answered yet"),
    (in_batches, r"nobody joins before all have left. It takes \d+ steps, and \d+ would do"),
    (lambda engine, requests: serve(engine, requests, opens=lambda engine: engine.free >= 2), "slots stand free while requests"),
    (lambda engine, requests: serve(engine, requests, drop=1), "1 of 16 requests do not come back"),
    (left_alone, "16 of 16 requests do not come back"),
    (too_early, "a request comes back with 1 of 25 tokens"),
    (endless, "it does not run: the loop has no end"),
    (lambda engine, requests: [engine.insert(one) for one in requests], "it does not run: no slot is free"),
]


@pytest.mark.parametrize(("answer", "words"), LOOPS, ids=range(len(LOOPS)))
def test_a_loop_that_serves_is_checked_and_leaves_the_engine_free(answer, words):
    found = checks.batching(answer, small_engine())
    assert not found.ok
    assert re.search(words, str(found)), found
    assert small_engine().free == 3


def test_a_loop_that_batches_continuously_is_right():
    assert checks.batching(serve, small_engine()).ok


def merge(result, top, total):
    powers = total * jnp.exp(top - lax.pmax(top, "X"))
    return lax.psum(result * powers[..., None], "X") / lax.psum(powers, "X")[..., None]


def gathered(result, top, total):
    """The same, sending more."""
    result, top, total = (lax.all_gather(part, "X") for part in (result, top, total))
    powers = total * jnp.exp(top - top.max(0))
    return (result * powers[..., None]).sum(0) / powers.sum(0)[..., None]


def undivided(result, top, total):
    return lax.psum(result * (total * jnp.exp(top - lax.pmax(top, "X")))[..., None], "X")


def without_highest(result, top, total):
    """Right on paper."""
    powers = total * jnp.exp(top)
    return lax.psum(result * powers[..., None], "X") / lax.psum(powers, "X")[..., None]


MERGES = [
    (..., "Not answered yet"),
    (lambda result, top, total: None, "Not answered yet"),
    (lambda result, top, total: result, "this is what a device has of its own tokens"),
    (lambda result, top, total: result + lax.axis_index("X"), "devices end with different results"),
    (lambda result, top, total: lax.pmean(result, "X"), "all devices count the same here"),
    (lambda result, top, total: merge(result, 0 * top, total), "each sum of powers is relative to its device's own"),
    (lambda result, top, total: merge(result, top, 1.0), "not by its highest score alone"),
    (lambda result, top, total: merge(result, top, jnp.exp(2 * (lax.pmax(top, "X") - top)) * total), "the sign .* is reversed"),
    (without_highest, "e to that power is beyond float32"),
    (undivided, "the shares of all devices must sum to 1\\."),
    (lambda result, top, total: lax.psum(result * total[..., None], "X"), "must sum to 1, and be relative to one score"),
    (lambda result, top, total: merge(result, top, total)[0], r"an array of shape \(3, 5, 7\) is wanted, not \(5, 7\)"),
    (lambda result, top, total: lax.psum(result, "Y"), "it does not run: .*Y"),
]


@pytest.mark.parametrize(("answer", "words"), MERGES, ids=range(len(MERGES)))
def test_merging_parts_of_attention_is_checked(answer, words):
    found = checks.merging(answer, simulate.mesh(X=8))
    assert not found.ok
    assert re.search(words, str(found)), found


@pytest.mark.parametrize("answer", [merge, gathered])
def test_merging_parts_of_attention_is_right(answer):
    assert checks.merging(answer, simulate.mesh(X=8)).ok


# The lab itself, with fewer requests and a smaller model, and without figures. A step of it is as short as what else a machine
# does in between, so that bounds on times are wider.

LAB = Path(__file__).parents[1] / "labs/07b-serving.md"
SMALLER = {
    "[300:365]": "[300:333]",
    "d_model=256": "d_model=64",
    "head_dim=32": "head_dim=8",
    "d_ff=704": "d_ff=192",
    '(("ttft_s", 4), ("tpot_s", 2))': '(("ttft_s", 12), ("tpot_s", 4))',
    '> 2 * firsts["continuous"]': '> firsts["continuous"]',
    '> 2 * goodput("static")': '> goodput("static")',
    'names = ("copies", "batch", "tokens", "attention")': 'names = ("batch", "tokens")',
}


@pytest.fixture(scope="module", autouse=True)
def default_device():
    """The lab sets it, and other tests shall not have it set."""
    before = jax.config.jax_default_device
    yield
    jax.config.update("jax_default_device", before)


@cache_of_calls
def sources():
    """The sources of the code cells but for figures, smaller."""
    return changed(code_cells(LAB, "new_axes"), SMALLER)


@cache_of_calls
def played():
    """What all cells define."""
    return run(sources())


on_one_process = pytest.mark.xdist_group("lab 7b")


@pytest.mark.weekly
@on_one_process
def test_every_cell_may_run_twice():
    twice = run(source for source in sources() for _ in range(2))
    assert [sum(one.tokens == two.tokens for one, two in zip(*twice["served"].values(), strict=True))] == [32]


@pytest.mark.weekly
@on_one_process
def test_a_cell_out_of_order_names_what_it_lacks():
    assert how_many_lack(sources()) > 15


BROKEN = [
    ("for block in (", "(block - 1) / 2", "block"),
    ("by_table = partial", "owner.reserve(sequence, at + 1)", "owner.reserve(sequence, max(1, at))"),
    ("chosen(server, asked)", "chosen(server, asked)", "in_batches(server, asked)"),
    ("as while_serving", "server.forget()", "server = Noting(params, SLOTS, S); server.forget()"),
    ("firsts = {", 'np.median(measured(how, "ttft_s")) for', "1.0 for"),
    ("firsts = {", "< said / real <", "< 30 * said / real <"),
    ("best = {", "good = (", "good = False & ("),
    ("in four of the layouts", "== results_bytes", "== results_bytes / 2"),
    ("def cache_of", '("copies", 4)', '("copies", 8)'),
    ('print(f"all-to-all:', "keys = model.L * 2", "keys = model.L"),
    ('print(f"all-reduce:', "parts = model.L * 2 / 2", "parts = model.L * 2"),
    ("logits of one device", "memory=how.memory()", "memory=how.memory(), dtype=jnp.bfloat16"),
]
"""A cell, and what is broken in it."""


@pytest.mark.weekly
@on_one_process
@pytest.mark.parametrize(("words", "old", "new"), BROKEN, ids=range(len(BROKEN)))
def test_a_cell_that_is_broken_turns_the_lab_red(words, old, new):
    broken = changed([sources()[at(sources(), words)]], {old: new})
    with pytest.raises(AssertionError):
        run(broken, played())


# Numbers


@pytest.mark.slow
@on_one_process
def test_a_number_is_checked_and_each_wrong_one_that_a_hint_is_for_gets_it():
    cells = [source for source in sources() if "check.answer(" in source]
    assert len(cells) == 8
    for source in cells:
        assert_checks_a_number(source, played())


@pytest.mark.slow
@on_one_process
def test_a_function_of_the_lab_is_checked_and_its_solution_is_right():
    lab = played()
    for name, given in {"read": (), "loop": (lab["server"],), "merge": (lab["ring"],)}.items():
        unanswered, _ = shown(sources()[at(sources(), f"def your_{name}(")], lab)
        assert unanswered.words.startswith("Not answered yet")
        check = {"read": checks.reading, "loop": checks.batching, "merge": checks.merging}[name]
        assert check(lab[name], *given).ok
