"""Labs 3 and 4: what their checks say of functions and choices that are wrong."""

import re
from functools import cache
from pathlib import Path

import pytest
from jax import lax
from jax import numpy as jnp

from tests.cells import at, code_cells, run

ROOT = Path(__file__).parents[1]


@cache
def rings():
    """What lab 3 defines before its exercises by permutes."""
    cells = code_cells(ROOT / "labs/03-sharding.md")
    wanted = [
        at(cells, words) for words in ("def ahead(n)", "gathering = Puzzle(", "scattering = Puzzle(", "ahead_of_time = Puzzle(")
    ]
    return run([cells[0], *(cells[i] for i in wanted)])


def gathers_by_one_collective(x):
    return lax.all_gather(x, "X", tiled=True)


def takes_the_next_for_the_one_before(x):
    n, me = lax.axis_size("X"), lax.axis_index("X")
    whole = jnp.zeros((n * x.shape[0], x.shape[1]), x.dtype)
    for hop in range(n):
        whole = lax.dynamic_update_slice(whole, x, ((me + hop) % n * x.shape[0], 0))
        x = lax.ppermute(x, "X", rings()["ahead"](n)) if hop < n - 1 else x
    return whole


def sends_once_too_often(x):
    n, me = lax.axis_size("X"), lax.axis_index("X")
    whole = jnp.zeros((n * x.shape[0], x.shape[1]), x.dtype)
    for hop in range(1, n + 1):
        x = lax.ppermute(x, "X", rings()["ahead"](n))
        whole = lax.dynamic_update_slice(whole, x, ((me - hop) % n * x.shape[0], 0))
    return whole


def starts_with_its_own_sum(x):
    n, me = lax.axis_size("X"), lax.axis_index("X")
    rows, total = x.shape[1] // n, 0.0
    for hop in range(n):
        total = lax.ppermute(total, "X", rings()["ahead"](n)) if hop else total
        total += lax.dynamic_slice_in_dim(x[0], (me - hop) % n * rows, rows)
    return total


def sums_by_one_collective(x):
    return lax.psum_scatter(x[0], "X", tiled=True)


def gathers_all_before_it_multiplies(x, w):
    n, me = lax.axis_size("X"), lax.axis_index("X")
    whole = jnp.zeros((n * x.shape[0], x.shape[1]), x.dtype)
    for hop in range(n):
        whole = lax.dynamic_update_slice(whole, x, ((me - hop) % n * x.shape[0], 0))
        x = lax.ppermute(x, "X", rings()["ahead"](n)) if hop < n - 1 else x
    return whole @ w


@pytest.mark.parametrize(
    ("puzzle", "answer", "words"),
    [
        ("gathering", gathers_by_one_collective, "Right numbers, but by all-gather; use collective-permute alone."),
        ("gathering", takes_the_next_for_the_one_before, "Not yet: 8 of 8 devices end with wrong numbers."),
        ("gathering", sends_once_too_often, r"Right numbers, but .* sent a device .*: 1\.14 times the best known\."),
        ("scattering", starts_with_its_own_sum, "Not yet: 8 of 8 devices end with wrong numbers."),
        ("scattering", sums_by_one_collective, "Right numbers, but by .*; use collective-permute alone."),
        ("ahead_of_time", gathers_all_before_it_multiplies, "Right numbers, but 100% of the matmul stands before all permutes"),
    ],
)
def test_a_wrong_ring_is_told_what_is_wrong_with_it(puzzle, answer, words):
    said = rings()[puzzle].check(answer)
    assert not said.ok
    assert re.match(words, repr(said)), said


# Up to these words of lab 4's cells; what comes after them there compiles more than is asked here.
REMAT = {
    "B, T = 16, 64": None,
    "def specs(model": "assert compiled(",
    "def with_remat(kept)": "policies = {",
    "def remat_check(kept)": None,
}


@pytest.mark.slow
def test_names_that_cost_too_many_flops_or_too_much_memory_are_refused():
    cells = code_cells(ROOT / "labs/04-transformers.md")
    counted = cells[at(cells, "counted = tf.parameters(small)")]
    lab = run([cells[0], cells[at(cells, "small = Transformer(")], counted])
    for words, end in REMAT.items():
        if words == "def remat_check(kept)":
            lab["most"] = lab["with_remat"]("none")
        source = cells[at(cells, words)]
        lab = run([source.partition(end)[0] if end else source], lab)
    assert re.match(r"Not yet: 2\d\.\d% more FLOPs\.", lab["remat_check"](()))
    assert re.match(r"Not yet: \d\d% of the temporaries\.", lab["remat_check"](lab["tf"].names(lab["small"])))
