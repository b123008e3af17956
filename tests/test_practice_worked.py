"""The worked problems of the field on profiling and on JAX, computed by the library, and the measurements that cannot be."""

import csv
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from scaling_lib import roofline
from scaling_lib.hardware import chip
from scaling_lib.xla import arrays, simulate

ROWS = list(csv.DictReader((Path(__file__).parent / "data/practice_problems.csv").read_text(encoding="utf-8").splitlines()))


def _feed_forward_ms():
    """X[32 · 1024, 8192] · W[8192, 32768] on the 8 cores of the problem, with the peak of a core that it states."""
    core = dataclasses.replace(chip("v5e"), peak_flops_per_s={"bf16": 23e12})
    return 1e3 * roofline.bound(roofline.matmul(32 * 1024, 8192, 32768) * (1 / 8), core).math_s


def _true_size():
    """F, from what a compiled program shows: rows of W on a device, times the devices of the groups that sum over F."""
    mesh = simulate.mesh(X=8)
    x = arrays.spec(mesh, "A[B, F_X]", B=16, F=32768, dtype="bf16")
    w = arrays.spec(mesh, "W[F_X, D]", F=32768, D=8192, dtype="bf16")
    program = simulate.compile(lambda x, w: x @ w, x, w, out=arrays.sharding(mesh, "C[B, D]"))
    assert "bf16[4096,8192]" in program.code.text
    (summed,) = program.collectives
    assert summed.kind == "all-reduce"
    return 4096 * summed.group


def _mean_of_first_numbers():
    mesh = simulate.mesh(X=2, Y=4)
    mean = jax.shard_map(lambda x: jax.lax.pmean(x[:4], ("X", "Y")), mesh=mesh, in_specs=P(("X", "Y")), out_specs=P())
    found = mean(jnp.arange(512.0))
    assert found.tolist() == [224, 225, 226, 227]
    return float(found[0])


PROBLEMS = {"PR-02": _feed_forward_ms, "PR-08": _true_size, "JX-02": _mean_of_first_numbers}
EXEMPT = {
    "PR-03": "read off a trace of eight TPU v2 cores; PR-02 is the bound that it is held against",
    "PR-06": "read off the same trace; the links and their use are not stated",
    "PR-09": "184 ms over 67 ms, both read off traces; chip and mesh are not stated, so there is no bound to compute",
    "JX-03": "measured on a TPU that is not named, in whatever dtype arange gives",
    "JX-04": "measured on that TPU",
    "JX-05": "measured on that TPU",
    "JX-06": "311 µs over 244 µs, two of those measurements",
}


@pytest.mark.parametrize("row", [row for row in ROWS if row["id"] in PROBLEMS], ids=lambda row: row["id"])
def test_worked_problems_of_the_field(row):
    found = PROBLEMS[row["id"]]()
    assert row["checked"] == "yes"
    assert found == pytest.approx(float(row["expected_value"]), rel=max(float(row["tolerance"]), 1e-9))
    assert found == pytest.approx(float(row["computed_value"]), rel=1e-5)


def test_every_row_is_a_test_or_exempt_and_what_is_exempt_was_measured():
    assert {row["id"] for row in ROWS} == {*PROBLEMS, *EXEMPT}
    assert not set(PROBLEMS) & set(EXEMPT)
    for row in ROWS:
        if row["id"] in EXEMPT:
            assert "measure" in row["note"]


def test_what_was_read_off_the_trace_is_the_bound_to_half_a_percent():
    (measured,) = (float(row["expected_value"]) for row in ROWS if row["id"] == "PR-03")
    assert 1 <= measured / _feed_forward_ms() < 1.005
