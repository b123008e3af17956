"""Measure this machine: honest timings of JAX programs, and the three numbers of its roofline.

Timings block until the result is there, drop the call that compiles, take medians, and interleave all programs: machines
change speed within minutes, and what is measured together drifts together. Derived in labs/01-roofline.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from scaling_lib import roofline, units
from scaling_lib.hardware import Chip

Call = Callable[[], jax.Array]
Shape = tuple[int, int, int]

JAX_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "int32": "int32", "int8": "int8"}


def matmul(m: int, k: int, n: int, dtype: object = "f32") -> Call:
    """A call that multiplies X[m, k] · W[k, n] on the default device; integers are summed in int32, floats in their own dtype.

    float32 is multiplied as float32: left to itself, JAX does so in fewer bits on a TPU or GPU.

    Raises:
        ValueError: for a size that is no whole number of at least 1, or a dtype that JAX does not multiply everywhere.
    """
    m, k, n = units.size("m", m), units.size("k", k), units.size("n", n)
    name = units.dtype_name(dtype)
    if name not in JAX_DTYPES:
        raise ValueError(f"dtype={dtype!r} cannot be measured everywhere; give one of {', '.join(JAX_DTYPES)}")
    kind = jnp.dtype(JAX_DTYPES[name])
    out = jnp.int32 if name == "int8" else kind
    draw = np.random.default_rng(0)
    x, w = (jnp.asarray(draw.integers(-3, 4, shape), kind) for shape in ((m, k), (k, n)))
    precision = "highest" if name == "f32" else None
    product = jax.jit(lambda x, w: jnp.matmul(x, w, precision=precision, preferred_element_type=out))

    def call() -> jax.Array:
        y: jax.Array = product(x, w)
        return y

    return call


def stream(nbytes: int) -> Call:
    """A call that reads and writes a float32 buffer of `nbytes` once, in place: 2 · nbytes move.

    The buffer is donated to the call: a fresh result would measure the operating system handing out pages.

    Raises:
        ValueError: for a size that is no multiple of 4 bytes.
    """
    nbytes = units.size("nbytes", nbytes)
    if nbytes % 4:
        raise ValueError(f"nbytes={nbytes!r} is no multiple of 4, the size of a float32")
    buffer = jnp.ones(nbytes // 4, jnp.float32)
    step = jax.jit(lambda x: 0.5 * x + 1, donate_argnums=0)

    def call() -> jax.Array:
        nonlocal buffer
        done: jax.Array = step(buffer)
        buffer = done
        return done

    return call


def interleaved(
    calls: Mapping[str, Call], *, rounds: int = 30, sample_s: float = 4e-3, budget_s: float = 12.0
) -> dict[str, float]:
    """Median seconds of one call of each program.

    Every round takes one sample of every program, in a fresh order, so that all share the machine's ups and downs.

    Args:
        calls: programs by name; each returns the array it computes.
        rounds: samples a program, at most.
        sample_s: a short program is repeated until one sample takes at least this long.
        budget_s: no new round starts after this many seconds, but three rounds always run.

    Returns:
        Seconds by name.

    Raises:
        ValueError: for no calls, or a number that is not positive.
    """
    if not calls:
        raise ValueError("calls is empty; give at least one program to time")
    units.size("rounds", rounds)
    units.number("sample_s", sample_s, minimum=1e-9)
    units.number("budget_s", budget_s, minimum=0)
    for call in calls.values():
        call().block_until_ready()  # compiles
    start = time.perf_counter()
    repeats = {name: _repeats(call, sample_s) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names, draw = list(calls), np.random.default_rng(0)
    for done in tqdm(range(rounds), desc="rounds", leave=False):
        if done >= 3 and time.perf_counter() - start > budget_s:
            break
        for i in draw.permutation(len(names)):
            samples[names[i]].append(_seconds(calls[names[i]], repeats[names[i]]))
    return {name: float(np.median(taken)) for name, taken in samples.items()}


def _seconds(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call().block_until_ready()
    return (time.perf_counter() - start) / repeats


def _repeats(call: Call, sample_s: float) -> int:
    repeats = 1
    while _seconds(call, repeats) * repeats < sample_s:
        repeats *= 2
    return repeats


@dataclass(frozen=True)
class Machine:
    """A roofline with a start-up time: T = start_s + the lower bound of `roofline.bound` on `chip`."""

    chip: Chip
    start_s: float

    def seconds(self, cost: roofline.Cost) -> float:
        """Predicted seconds of one call of a program with this cost."""
        return self.start_s + roofline.bound(cost, self.chip).lower_s


def fit(times: Mapping[Shape, float], bytes_per_s: float, *, dtype: object = "f32", start: bool = True) -> Machine:
    """The machine whose predictions come closest to measured matmuls.

    Args:
        times: seconds by (m, k, n).
        bytes_per_s: memory bandwidth, measured by `stream`.
        dtype: dtype of all three arrays and of the arithmetic.
        start: fit a start-up time as well; without it, it is zero.

    Returns:
        A `Machine` named "this machine", with peak FLOP/s (and start-up time) from a grid search that minimizes the mean
        of the absolute log(predicted / measured). Absolute values and not squares: one odd shape must not bend the roof.

    Raises:
        ValueError: for no times, a shape that is not three sizes, or a time or bandwidth that is not positive.
    """
    if not times or not all(units.number(f"times[{shape}]", seconds) > 0 for shape, seconds in times.items()):
        raise ValueError(f"times must hold at least one shape, all with positive seconds; got {dict(times)!r}")
    if odd := [shape for shape in times if len(shape) != 3]:
        raise ValueError(f"times has the shape {odd[0]!r}; a matmul has three sizes (m, k, n)")
    out = "int32" if units.dtype_name(dtype) == "int8" else dtype  # as `matmul` sums them
    costs = [roofline.matmul(*shape, x=dtype, w=dtype, out=out) for shape in times]
    measured = np.array(list(times.values()))
    flops = np.array([cost.total_flops for cost in costs], float)
    moved_s = np.array([cost.hbm_bytes for cost in costs]) / units.number("bytes_per_s", bytes_per_s, minimum=1)
    peaks = (flops / measured).max() * np.geomspace(0.5, 2, 120)
    starts = measured.min() * np.geomspace(0.02, 2, 120) if start else np.zeros(1)
    predicted = starts[:, None, None] + np.maximum(flops / peaks[:, None], moved_s)
    best_start, best_peak = np.unravel_index(np.abs(np.log(predicted / measured)).mean(-1).argmin(), predicted.shape[:2])
    chip = Chip("this machine", {units.dtype_name(dtype): float(peaks[best_peak])}, {"hbm_bytes_per_s": bytes_per_s})
    return Machine(chip, float(starts[best_start]))
