"""The worked problems of the field on TPUs, recomputed through the library, and the assumptions that they leave unchecked."""

import csv
import dataclasses
from pathlib import Path

import pytest

from scaling_lib import roofline as rl
from scaling_lib import systolic, units
from scaling_lib.hardware import Slice, chip, slice_of
from scaling_lib.roofline import Cost
from scaling_lib.torus import Torus

V5E, V5P = chip("v5e"), chip("v5p")
REGISTER = 8 * 128  # numbers in a vector register, one lane of arithmetic for each
BIG = 10**9  # a dimension large enough for a limit
SQUARE = 131_072

# Where a problem states figures of its own, they are its inputs, not the catalog's choice.
PROBLEMS = {
    "TPU-01": lambda: _mxu_flops_per_s(V5E),
    "TPU-02": lambda: V5E.mxus * _mxu_flops_per_s(V5E),
    "TPU-03": lambda: _pod(V5P).chips * V5P.flops_per_s(),
    "TPU-05": lambda: 200e9 * units.itemsize("bf16") / slice_of("v4:2x4x4").chips,
    "TPU-06": lambda: 1e3 * rl.bound(Cost(hbm_bytes=12.5e9), chip("v4").but(hbm_bytes_per_s=1.23e12)).lower_s,
    "TPU-08": lambda: _pod(V5E).chips * V5E.cores,
    "TPU-09": lambda: _pod(V5E).chips * V5E.flops_per_s(),
    "TPU-12": lambda: _pod(V5P).chips * V5P.cores,
    "TPU-13": lambda: _pod(V5P).chips * _stated("v5p", 4.5e14).flops_per_s(),
    "TPU-14": lambda: _pod(V5P).chips * V5P.but(hbm_bytes=9.6e10).hbm_bytes,
    "TPU-16": lambda: rl.critical_batch(_stated("v6e", 9.2e14, pcie_bytes_per_s=1.6e10), k=BIG, n=BIG, level="pcie").asymptotic,
    "TPU-17": lambda: rl.matmul(1, 4096, 16384, x="int8", w="int8").total_flops,
    "TPU-20": lambda: _critical_from_vmem(),
    "TPU-21": lambda: 1e6 * _corner_to_corner()[0],
    "TPU-22": lambda: 1e6 * _corner_to_corner()[1],
    "TPU-23": lambda: 1e6 * sum(_corner_to_corner()),
    "TPU-24": lambda: SQUARE**2 * units.itemsize("int8") / units.GIB,
    "TPU-28": lambda: rl.matmul(8, SQUARE, SQUARE).total_flops,
    "TPU-29": lambda: 1e3 * rl.bound(rl.matmul(8, SQUARE, SQUARE), V5E).math_s,
    "TPU-30": lambda: _hbm_over_link(V5P.but(hbm_bytes_per_s=2.8e12)),
    "TPU-32": lambda: REGISTER * 2,
    "TPU-33": lambda: V5E.flops_per_s() / rl.FLOPS_PER_MAC,
    "TPU-34": lambda: REGISTER * 4 * V5P.clock_hz,
    "TPU-35": lambda: slice_of("tpu7x:4x4x576").chips,
    "TPU-36": lambda: rl.ridge(_stated("tpu7x", 2.30e15, hbm_bytes_per_s=7.4e12)),
    "TPU-37": lambda: rl.ridge(_stated("v6e", 9.2e14, hbm_bytes_per_s=1.6e12)),
    "TPU-39": lambda: rl.ridge(_stated("v4", 2.75e14, hbm_bytes_per_s=1.2e12)),
}


def _pod(c):
    return Slice(c, c.pod_shape)


def _stated(name, bf16, **figures):
    """A chip with the figures a problem states."""
    return dataclasses.replace(chip(name).but(**figures), peak_flops_per_s={"bf16": bf16})


def _mxu_flops_per_s(c):
    """8 more rows through weights that stay in the array."""
    side = c.mxu_dim
    cycles = systolic.cycles(1008, side, side, side) - systolic.cycles(1000, side, side, side)
    return rl.matmul(8, side, side).total_flops / (cycles / c.clock_hz)


def _critical_from_vmem():
    stated = dataclasses.replace(V5E.but(vmem_bytes_per_s=22 * 8.1e11), peak_flops_per_s={"int8": 3.94e14})
    return rl.critical_batch(stated, k=4096, n=16384, x="int8", w="int8", level="vmem").exact


def _corner_to_corner():
    """Seconds until the first byte of bf16[8, 128, 8192], and seconds of the transfer, on the v5e slice of the problem."""
    torus, ends = Torus(slice_of("v5e:4x4")), ((0, 0), (3, 3))
    return torus.first_byte_s(*ends, hop_s=1e-6), torus.transfer_s(*ends, 8 * 128 * 8192 * units.itemsize("bf16"))


def _hbm_over_link(c):
    parts = rl.bound(Cost(hbm_bytes=1, ici_bytes=1), c).parts_s
    return parts["ici"] / parts["hbm"]


ROWS = list(csv.DictReader((Path(__file__).parent / "data/worked_problems.csv").read_text(encoding="utf-8").splitlines()))
OURS = [row for row in ROWS if row["chapter"] == "2 tpus"]


@pytest.mark.parametrize("row", OURS, ids=lambda row: row["id"])
def test_worked_problems_of_the_field(row):
    expected = float(row["computed_value"] if row["checked"] == "disagrees" else row["expected_value"])
    assert PROBLEMS[row["id"]]() == pytest.approx(expected, rel=float(row["tolerance"]))


@pytest.mark.parametrize("row", OURS, ids=lambda row: row["id"])
def test_our_own_answers_are_the_exact_ones(row):
    assert PROBLEMS[row["id"]]() == pytest.approx(float(row["computed_value"]), rel=5e-3)


def test_every_problem_has_a_row():
    assert {row["id"] for row in OURS} == set(PROBLEMS)


def test_where_the_field_disagrees_with_itself_its_answer_is_out_of_tolerance():
    disagree = [row for row in OURS if row["checked"] == "disagrees"]
    assert {row["id"] for row in disagree} == {"TPU-29", "TPU-30", "TPU-33"}
    for row in disagree:
        assert PROBLEMS[row["id"]]() != pytest.approx(float(row["expected_value"]), rel=float(row["tolerance"]))


def test_the_array_of_the_question_on_a_4x4_slice_fits_no_chip_of_it():
    # int8[131072, 131072]: as many bytes as the whole HBM of a v5e chip, and more than a program may have.
    array = SQUARE**2 * units.itemsize("int8")
    assert array == V5E.hbm_bytes
    assert array > V5E.usable_hbm_bytes


def test_the_weights_of_the_vmem_question_do_fit():
    assert 16384 * 4096 * units.itemsize("int8") == V5E.vmem_bytes / 2


def test_the_vector_unit_counted_by_its_lanes_is_the_catalogs():
    assert V5P.cores * PROBLEMS["TPU-34"]() == pytest.approx(V5P.vpu_flops_per_s, rel=0.03)
