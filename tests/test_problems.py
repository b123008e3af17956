"""No row is forgotten: each problem of the chapters on training, and each bug report, is in one test."""

import csv
import importlib.util
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

from scaling_lib.xla import tpu
from tests import test_goodput, test_pipeline, test_sharding_worked, test_training_worked, test_transformer_cases

DATA = Path(__file__).parent / "data"
CHAPTERS = {"5 training": 47, "6 applied-training": 21}
REPORTS = {"P": 7, "F": 16, "U": 5, "M": 18, "K": 11, "C": 7, "B": 3, "T": 1}
"""Of parameters, FLOPs, utilization, memory, KV caches, communication, bubbles, and time and cost."""

GIB = 2**30
PADDED = {
    "M25": ((2048, 1, 128, 128, 4), jnp.int32, (0, 1, 2, 3, 4), ((8, 128),)),
    "M26": ((12_582_912, 1), jnp.uint32, (0, 1), ((8, 128),)),
    "M27": ((2048, 1, 2048, 128), jnp.bfloat16, (2, 3, 1, 0), ((2, 128), (2, 1))),
}
TILED_SINCE = {"M27": 4 / 2}
"""The report's compiler had tiles of 4 rows where today's has 2, and one row fills a tile."""

needs_compiler = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no TPU compiler for this platform")


def rows(*files):
    return [row for file in files for row in csv.DictReader((DATA / file).read_text(encoding="utf-8").splitlines())]


def test_every_problem_of_the_chapters_on_training_is_computed():
    own = [row for row in rows("training_problems.csv", "cost_problems.csv") if row["chapter"] in CHAPTERS]
    assert Counter(row["chapter"] for row in own) == CHAPTERS
    tests = [*test_training_worked.TR, *test_goodput.PROBLEMS]
    assert len(tests) == len(set(tests))
    assert {row["id"] for row in own} <= set(tests)


def test_no_bug_report_is_forgotten():
    reports = [row["id"] for row in rows("cases_numeric.csv", "pipeline_cases.csv")]
    assert Counter(name[0] for name in reports) == REPORTS
    of_money = ["T01"]  # test_goodput.test_a_bug_report_about_training_time
    of_wires = [*test_sharding_worked.REPORTS, *test_sharding_worked.NO_COMPUTATION]
    tests = [*test_transformer_cases.CASES, *PADDED, *test_pipeline.REPORTS, *of_wires, *of_money]
    assert sorted(tests) == sorted(reports)


@needs_compiler
@pytest.mark.parametrize("id", PADDED)
def test_the_compiler_pads_the_layouts_of_bug_reports(id):
    """Dimensions are filled up to whole tiles, so that an array can take 128 times its elements."""
    (right,) = [float(row["right_value"]) for row in rows("cases_numeric.csv") if row["id"] == id]
    shape, dtype, order, tiles = PADDED[id]
    replicated = NamedSharding(tpu.mesh("v5p:2x2x1", X=4), PartitionSpec())
    layout = Format(Layout(major_to_minor=order, tiling=tiles), replicated)
    program = jax.jit(lambda x: x.ravel()[:4], in_shardings=layout).lower(jax.ShapeDtypeStruct(shape, dtype)).compile()
    found = program.memory_analysis().argument_size_in_bytes / GIB
    assert found * TILED_SINCE.get(id, 1) == right
