"""Lab 9 as a reader works in it: each fault's figure before and after, cures of other kinds, and wrong ones told by name."""

import functools
import importlib.util
import math
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from scaling_lib.xla import faults, timeline
from scaling_lib.xla.manual import collective_matmul
from tests import cells

needs_compiler = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no TPU compiler for this platform")

PAGE = Path(__file__).parents[1] / "labs/09-profiling.md"


@pytest.fixture(autouse=True)
def records_only(monkeypatch):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")


@functools.cache
def played():
    """What the lab's definitions leave: without its cures, checks, measurements and figures."""
    return cells.run(cells.code_cells(PAGE, r"taken\(\"|print\(big\)|faults\.run|timelines\.timeline|cures\.items|len\(cures\)"))


def says(cure, words):
    assert not cure.ok
    assert re.search(words, cure.words), cure.words


def test_what_is_not_answered_is_said_to_be_so():
    lab = played()
    for answer in (..., lambda *parts: None):
        says(faults.donation(answer, lab["slow_step"], lab["begin"], lab["x"]), "^Not answered yet")
        says(faults.gather(answer, lab["slow_loss"], lab["grid"], *lab["given"]), "^Not answered yet")
        says(faults.recompiling(answer, lab["slow_loop"]), "^Not answered yet")
        says(faults.waiting(answer, lab["slow_turns"]), "^Not answered yet")
        says(float32(answer), "^Not answered yet")
        says(exposed(answer), "^Not answered yet")


def test_an_answer_that_raises_is_told_what_it_raised():
    says(faults.gather(lambda h, head, y: h @ y, played()["slow_loss"], played()["grid"], *played()["given"]), "does not run: ")


# Donation


def donation(step):
    lab = played()
    return faults.donation(step, lab["slow_step"], lab["begin"], lab["x"])


def test_donated_weights_and_state_more_than_halve_the_room():
    cure = donation(jax.jit(played()["update"], donate_argnums=(0, 1)))
    assert cure.ok, cure
    assert cure.after < 0.5 * cure.before
    assert cure.before >= 3 * played()["weight"]


def no_momentum(weights, state, x):
    lab = played()
    loss, gradients = jax.value_and_grad(lab["loss_of"])(weights, x)
    return optax.apply_updates(weights, jax.tree.map(lambda g: -1e-3 * jnp.sign(g), gradients)), state, loss


def test_wrong_cures_of_a_missing_donation():
    update = played()["update"]
    says(donation(jax.jit(update)), r"still there\. Of 737 kB of old weights and state, 0 B are given")
    says(donation(jax.jit(update, donate_argnums=0)), r"still there\. Of 737 kB .*, 246 kB are given")
    says(donation(jax.jit(no_momentum, donate_argnums=(0, 1))), "other numbers")
    says(donation(jax.jit(lambda *parts: update(*parts)[:2], donate_argnums=(0, 1))), "7 arrays in place of 8")
    says(donation(jax.jit(lambda *parts: update(*parts)[::-1], donate_argnums=(0, 1))), "in another order or form")
    says(donation(lambda *parts: jax.jit(update, donate_argnums=(0, 1))(*parts)), "0 B are given to the new; only the outermost")


# An accidental gather


def gathered(loss):
    lab = played()
    return faults.gather(loss, lab["slow_loss"], lab["grid"], *lab["given"])


def test_a_loss_that_is_not_flattened_gathers_nothing():
    cure = gathered(lambda h, head, y: played()["cross_entropy"](h @ head, y))
    assert cure.ok, cure
    assert cure.after < cure.before / 1000
    lab = played()
    assert cure.before > lab["logits_bytes"] * 3 / 4


def test_a_mask_in_place_of_a_gathered_index_is_as_good():
    def masked(h, head, y):
        logits = h @ head
        chosen = jnp.sum(logits, -1, where=jnp.arange(logits.shape[-1]) == y[..., None])
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    assert gathered(masked).ok


def test_wrong_cures_of_an_accidental_gather():
    lab = played()
    V = lab["V"]

    def earlier(h, head, y):
        return lab["cross_entropy"](h.reshape(-1, h.shape[-1]) @ head, y.reshape(-1))

    def narrower(h, head, y):
        return lab["cross_entropy"]((h @ head).reshape(len(h), -1, V).reshape(-1, V), y.reshape(-1))

    def one_axis(h, head, y):
        return lab["cross_entropy"]((h @ head).swapaxes(0, 1).reshape(-1, V), y.T.reshape(-1))

    says(gathered(earlier), r"still there\. The largest .* of \d,\d+ f32, and each device multiplies 4\.0 times")
    says(gathered(one_axis), r"still there\. The largest collective is an all-gather")
    says(gathered(narrower), r"still there\. The largest collective is an all-gather of 9,216 f32")
    says(gathered(lambda h, head, y: lab["cross_entropy"]((h @ head)[:1], y[:1])), r"other numbers\. result is off by")
    says(gathered(lambda h, head, y: lab["cross_entropy"](h @ head, y)[None]), r"the shape \(1,\) in place of \(\)")


# float32


def float32(layer):
    lab = played()
    answer = layer if layer is ... else lab["on_eight"](layer)
    return lab["judge"](answer, lab["on_eight"](lab["slow_layer"]))


def test_a_python_number_halves_what_is_sent():
    lab = played()
    cure = float32(lambda x, w, v: stream(x * x.shape[-1] ** 0.5, w, v))
    assert cure.ok, cure
    assert cure.after == cure.before / 2 == 2 * lab["reduced"] * 7 / 8


def stream(x, w, v):
    lab = played()
    return x + lax.psum(jax.nn.silu(lab["norm"](x) @ w) @ v, "X")


def test_a_result_in_float32_is_told_where_there_is_no_compiler():
    lab = played()

    def only_before_the_sum(x, w, v):
        x = x * np.sqrt(x.shape[-1])
        return x + lax.psum((jax.nn.silu(lab["norm"](x) @ w) @ v).astype(jnp.bfloat16), "X")

    says(float32(only_before_the_sum), "the result is in float32, and the next layer")
    says(float32(lambda x, w, v: stream(x * np.sqrt(x.shape[-1]), w, v)), "the result is in float32")
    says(float32(stream), "other numbers")


@needs_compiler
@pytest.mark.slow
def test_wrong_cures_of_float32(monkeypatch):
    monkeypatch.delenv("SCALING_LIB_RECORDS")
    lab = played()

    def at_the_end(x, w, v):
        return stream(x * np.sqrt(x.shape[-1]), w, v).astype(jnp.bfloat16)

    def half(x, w, v):
        x = (x * x.shape[-1] ** 0.5).astype(jnp.float16)
        summed = lax.psum(jax.nn.silu(lab["norm"](x) @ w.astype(x.dtype)) @ v.astype(x.dtype), "X")
        return (x + summed).astype(jnp.bfloat16)

    says(float32(at_the_end), r"still there\. The largest collective is an all-reduce of 4,194,304 f32")
    says(float32(half), r"another fault in its place\. Something is in f16 now")


# A recompilation per step


def recompiling(loop):
    """Of a loop over numbers, which compiles in no time."""
    return faults.recompiling(loop, looped(lambda *parts: jax.jit(lambda *same: fallen(*same))(*parts)), steps=5)


def fallen(weight, x, rate):
    loss = x * weight**2
    return weight - rate * loss, loss


def looped(step, rates=lambda i: 0.3 * 0.9**i):
    def loop(steps):
        weight, losses = np.float32(2), []
        for i in range(steps):
            weight, loss = step(weight, np.float32(1 + i), rates(i))
            losses.append(loss)
        return losses

    return loop


@functools.cache
def of_rate(rate):
    return jax.jit(functools.partial(fallen, rate=rate))


def test_a_rate_that_is_an_argument_compiles_nothing_in_a_second_run():
    cure = recompiling(looped(jax.jit(fallen)))
    assert cure.ok, cure
    assert (cure.before, cure.after) == (5, 0)


def test_a_loop_inside_the_program_gives_its_losses_as_one_array():
    @functools.partial(jax.jit, static_argnums=0)
    def scanned(steps):
        return lax.scan(lambda w, i: fallen(w, 1 + i, 0.3 * 0.9**i), 2.0, jnp.arange(steps, dtype=jnp.float32))[1]

    cure = recompiling(scanned)
    assert cure.ok, cure
    assert (cure.before, cure.after) == (5, 1)


def test_wrong_cures_of_recompilation():
    fresh = looped(lambda *parts: jax.jit(lambda *same: fallen(*same))(*parts))
    says(recompiling(fresh), r"still there\. 5 programs are compiled in 5 steps")
    static = looped(jax.jit(fallen, static_argnums=2))
    kept = looped(lambda weight, x, rate: of_rate(rate)(weight, x))
    for loop in (static, kept, kept):  # a check that is run again says the same
        says(recompiling(loop), r"still there\. 3 programs are compiled in 5 steps")
    says(recompiling(looped(jax.jit(fallen), lambda i: 0.3)), r"other numbers\. \[2\] is off")
    says(recompiling(lambda steps: looped(jax.jit(fallen))(1)), "1 arrays in place of 5")


@pytest.mark.slow
def test_a_step_of_the_lab_that_is_not_jitted_is_told_so():
    lab = played()

    def eager(steps):
        weights, losses = lab["start"], []
        for i in range(steps):
            weights, loss = lab["descend"](weights, lab["batch"](i), 0.3 * 0.9**i)
            losses.append(loss)
        return losses

    says(faults.recompiling(eager, lab["slow_loop"]), r"another fault in its place\. \d+ programs are started a step, and it was")


# A host that waits


def waiting(loop):
    return faults.waiting(loop, played()["slow_turns"], steps=4)


def turned(after_step, at_end):
    def loop(steps):
        lab = played()
        at, losses = lab["w"], []
        for i in range(steps):
            at, loss = lab["heavy"](at, lab["read"](i))
            losses.append(after_step(loss, losses))
        return at_end(losses)

    return loop


def test_losses_read_later_leave_the_device_at_work():
    for loop in (turned(lambda loss, _: loss, jnp.stack), turned(late, list)):
        cure = waiting(loop)
        assert cure.ok, cure
        assert cure.after < cure.before / 2


def late(loss, losses):
    """Reads the loss of the step before, which is done by then or soon."""
    if losses:
        losses[-1] = float(losses[-1])
    return loss


def all_read_first(steps):
    lab = played()
    batches = [lab["read"](i) for i in range(steps)]
    at, losses = lab["w"], []
    for x in batches:
        at, loss = lab["heavy"](at, x)
        losses.append(loss)
    return losses


@pytest.mark.slow
def test_wrong_cures_of_a_host_sync(monkeypatch):
    monkeypatch.setattr(faults, "_TRIES", 1)
    says(waiting(turned(lambda loss, _: np.asarray(loss), list)), r"still there\. The device .* \d+% .* waits for a result")
    says(waiting(all_read_first), "still there.* before its first operation")
    says(waiting(turned(lambda loss, _: loss, lambda losses: losses[-1:])), "1 arrays in place of 4")
    says(waiting(turned(lambda loss, _: 0.0, list)), "other numbers")


def test_idle_time_counts_from_the_start_of_a_loop():
    lab = played()
    step = jax.jit(lambda x: jnp.tanh(x @ lab["w"]).sum())

    def loop(steps):
        time.sleep(0.2)
        return [step(lab["ready"](0)) for _ in range(steps)]

    jax.block_until_ready(loop(1))
    found = faults.run(loop, 2)
    assert 0.2 <= found.idle_s <= found.seconds
    assert len(found.losses) == 2


# An exposed collective


def exposed(product):
    lab = played()
    answer = product if product is ... else lab["of_parts"](product)
    return lab["wait"](answer, lab["of_parts"](lab["slow_product"]))


def test_a_product_in_pieces_both_ways_round_hides_the_gather():
    cure = exposed(lambda x, w: collective_matmul.gather_matmul(x, w, "X", ways=2))
    assert cure.ok, cure
    assert cure.after < cure.before / 2
    assert cure.before == timeline.of(played()["gathering"]).exposed_s


def test_wrong_cures_of_an_exposed_collective():
    says(exposed(lambda x, w: collective_matmul.gather_matmul(x, w, "X")), r"still there\. 7 collectives take")
    says(exposed(lambda x, w: jnp.tile(x, (8, 1)) @ w), "other numbers")


def in_two(x, w):
    whole = lax.all_gather(x, "X", axis=0, tiled=True)
    return jnp.concatenate([whole @ w[:, :2], whole @ w[:, 2:]], axis=1)


def test_a_program_on_no_record_is_not_judged_where_there_is_no_compiler():
    says(exposed(in_two), "^Not judged: .* pip install")


@needs_compiler
@pytest.mark.slow
def test_other_ways_to_wait_for_the_links(monkeypatch):
    monkeypatch.delenv("SCALING_LIB_RECORDS")
    assert played()["wait"](jnp.matmul, played()["of_parts"](played()["slow_product"])).ok  # left to the compiler
    says(exposed(in_two), "still there")


def test_a_cure_without_a_measurement_has_none():
    cure = faults.donation(..., None, None, None)
    assert math.isnan(cure.before)
    assert math.isnan(cure.after)


def test_each_hint_for_a_number_is_given():
    sources = [s for s in cells.code_cells(PAGE) if "check.answer" in s]
    assert len(sources) == 6
    for source in sources:
        cells.assert_checks_a_number(source, played())
