"""Timing with a fake clock and fitting with made-up machines: no test here depends on how fast this machine is."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_lib import roofline
from scaling_lib.hardware import Chip
from scaling_lib.xla import measure
from scaling_lib.xla.measure import Machine

SHAPES = [(64, 64, 64), (128, 512, 128), (512, 128, 512), (1024, 1024, 1024), (1, 2048, 1024), (3, 512, 4096), (2048, 64, 64)]


def machine(peak=1e11, bandwidth=5e10, start_s=4e-5, dtype="f32"):
    return Machine(Chip("made up", {dtype: peak}, {"hbm_bytes_per_s": bandwidth}), start_s)


def times_on(made_up, dtype="f32"):
    return {s: made_up.seconds(roofline.matmul(*s, x=dtype, w=dtype)) for s in SHAPES}


def test_a_machine_takes_its_start_up_time_and_then_the_lower_bound():
    cost = roofline.matmul(3, 5, 7, x="f32", w="f32")
    assert machine(peak=210.0, bandwidth=1e9, start_s=2.0).seconds(cost) == pytest.approx(3.0)
    assert machine(peak=1e9, bandwidth=4 * 71 / 5, start_s=2.0).seconds(cost) == pytest.approx(7.0)


@settings(max_examples=25, deadline=None)
@given(st.floats(5e9, 1e13), st.floats(0.1, 2), st.floats(1e-6, 1e-4), st.sampled_from(["f32", "bf16"]))
def test_the_fit_finds_the_machine_that_made_the_times(peak, ratio, start_s, dtype):
    true = machine(peak, peak * ratio / 4, start_s, dtype)
    times = times_on(true, dtype)
    found = measure.fit(times, true.chip.hbm_bytes_per_s, dtype=dtype)
    for shape, seconds in times.items():
        assert found.seconds(roofline.matmul(*shape, x=dtype, w=dtype)) == pytest.approx(seconds, rel=0.06)
    assert found.chip.hbm_bytes_per_s == true.chip.hbm_bytes_per_s


def test_one_odd_shape_does_not_bend_the_roof():
    true = machine()
    times = times_on(true)
    times[1024, 1024, 1024] *= 5
    found = measure.fit(times, true.chip.hbm_bytes_per_s)
    others = [s for s in SHAPES if s != (1024, 1024, 1024)]
    for shape in others:
        assert found.seconds(roofline.matmul(*shape, x="f32", w="f32")) == pytest.approx(times[shape], rel=0.1)


def test_without_start_up_the_machine_starts_at_once():
    found = measure.fit(times_on(machine(start_s=0)), 5e10, start=False)
    assert found.start_s == 0
    assert found.chip.flops_per_s("f32") == pytest.approx(1e11, rel=0.01)


@pytest.mark.parametrize(
    ("times", "bandwidth", "words"),
    [({}, 1e9, "at least one shape"), ({(3, 5, 7): 0.0}, 1e9, "positive seconds"), ({(3, 5, 7): 1.0}, 0, "bytes_per_s=0"),
     ({(3, 5, 7): float("nan")}, 1e9, "times"), ({(3, 5): 1.0}, 1e9, "three")],
)  # fmt: skip
def test_bad_measurements_are_refused(times, bandwidth, words):
    with pytest.raises(ValueError, match=words):
        measure.fit(times, bandwidth)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_matmul_multiplies_what_it_says(dtype):
    y = measure.matmul(3, 5, 7, dtype)()
    draw = np.random.default_rng(0)
    x, w = (draw.integers(-3, 4, shape) for shape in ((3, 5), (5, 7)))
    assert y.shape == (3, 7)
    assert y.dtype == (jnp.int32 if dtype == "int8" else measure.JAX_DTYPES[dtype])
    np.testing.assert_array_equal(np.asarray(y, float), x @ w)


def test_stream_reads_and_writes_its_buffer_in_place():
    call = measure.stream(4096)
    first = call()
    assert first.nbytes == 4096
    np.testing.assert_allclose(first, 1.5)
    np.testing.assert_allclose(call(), 1.75)
    assert first.is_deleted()  # donated: the second call wrote into the same memory


@pytest.mark.parametrize("call", [lambda: measure.stream(3), lambda: measure.stream(0), lambda: measure.matmul(0, 5, 7)])
def test_sizes_that_cannot_be_measured_are_refused(call):
    with pytest.raises(ValueError, match=r"nbytes=|m=0"):
        call()


def test_a_dtype_that_jax_cannot_multiply_here_is_refused():
    with pytest.raises(ValueError, match="dtype='fp4'"):
        measure.matmul(3, 5, 7, "fp4")


class Clock:
    """A clock that only moves when a fake program blocks; it notes the order of the programs."""

    def __init__(self, monkeypatch):
        self.now, self.order = 0.0, []
        monkeypatch.setattr(measure.time, "perf_counter", lambda: self.now)

    def program(self, name, durations):
        """A call whose runs take the given seconds, the last one for ever after."""
        remaining = list(durations)

        def call():
            outer = self

            class Result:
                def block_until_ready(self):
                    outer.now += remaining.pop(0) if len(remaining) > 1 else remaining[0]
                    outer.order.append(name)
                    return self

            return Result()

        return call


def test_the_compiling_call_is_dropped_and_the_median_taken(monkeypatch):
    clock = Clock(monkeypatch)
    #            compile, sizing, then seven rounds of one sample
    calls = {"a": clock.program("a", [100, 1, 2, 9, 3, 3, 50, 3, 2, 3])}
    assert measure.interleaved(calls, rounds=7, sample_s=0.5, budget_s=1e9) == {"a": 3}


def test_a_sample_is_the_mean_of_enough_repeats(monkeypatch):
    clock = Clock(monkeypatch)
    calls = {"short": clock.program("short", [1e-3])}
    assert measure.interleaved(calls, rounds=3, sample_s=4e-3, budget_s=1e9)["short"] == pytest.approx(1e-3)
    # one to compile, 1 + 2 + 4 to find that four calls fill a sample, three rounds of four
    assert len(clock.order) == 1 + 7 + 12


def test_every_round_takes_every_program_once_in_a_fresh_order(monkeypatch):
    clock = Clock(monkeypatch)
    names = list("abcdef")
    measure.interleaved({n: clock.program(n, [1.0]) for n in names}, rounds=5, sample_s=0.5, budget_s=1e9)
    rounds = [clock.order[i : i + 6] for i in range(12, len(clock.order), 6)]
    assert len(rounds) == 5
    assert all(sorted(r) == names for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1


def test_the_budget_stops_new_rounds_but_three_always_run(monkeypatch):
    clock = Clock(monkeypatch)
    measure.interleaved({"slow": clock.program("slow", [10.0])}, rounds=30, sample_s=0.5, budget_s=1.0)
    assert len(clock.order) == 2 + 3


@pytest.mark.parametrize(("name", "bad"), [("rounds", 0), ("sample_s", 0), ("budget_s", float("nan"))])
def test_bad_timing_arguments_are_refused(name, bad):
    with pytest.raises(ValueError, match=f"{name}="):
        measure.interleaved({"a": measure.matmul(3, 5, 7)}, **{name: bad})
    with pytest.raises(ValueError, match="calls is empty"):
        measure.interleaved({})


def test_the_bytes_of_an_int8_matmul_are_those_of_its_int32_result():
    machine = measure.Machine(Chip("known", {"int8": 4e5}, {"hbm_bytes_per_s": 1e4}), 0.0)
    shapes = [(64, 64, 64), (65, 64, 64), (66, 64, 64), (64, 4096, 64)]  # three memory-bound, one compute-bound
    times = {s: machine.seconds(roofline.matmul(*s, x="int8", w="int8", out="int32")) for s in shapes}
    assert measure.fit(times, 1e4, dtype="int8", start=False).chip.flops_per_s("int8") == pytest.approx(4e5, rel=0.02)


def test_by_default_a_median_has_thirty_samples_of_four_milliseconds():
    import inspect

    defaults = {name: p.default for name, p in inspect.signature(measure.interleaved).parameters.items()}
    assert (defaults["rounds"], defaults["sample_s"], defaults["budget_s"]) == (30, 4e-3, 12.0)
