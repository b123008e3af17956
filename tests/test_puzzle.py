"""The check of the labs' puzzles: what it takes, what it refuses, and the cost that it asks for."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from scaling_lib.xla import simulate
from scaling_lib.xla.puzzle import Puzzle

N, SIZES = 5, {"I": 15, "J": 7, "K": 20}
SMALL = 4 * SIZES["I"] * SIZES["J"] * (N - 1) / N  # bytes of a gather of A
SHARE = 2 * 15 * 7 * 20 / N  # FLOPs of a device
RING = [(i, (i + 1) % N) for i in range(N)]


@pytest.fixture(scope="module")
def devices():
    """Runs a function of this file in a process that has the devices."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start) as process:
        yield lambda function, *given: process.submit(function, *given).result(timeout=120)


def _start():
    simulate.mesh(X=6)


def product(**changes):
    asked = {"reference": np.matmul, "best_bytes": SMALL, "best_flops": SHARE, **changes}
    return Puzzle(simulate.mesh(X=N), ["A[I_X, J]", "B[J, K_X]"], "C[I, K_X]", SIZES, **asked)


def verdict(answer, changes=()):
    said = product(**dict(changes)).check(answer)
    return said.ok, repr(said)


def gathers_the_small_one(a, b):
    return lax.all_gather(a, "X", tiled=True) @ b


def passes_the_small_one_on(a, b):
    me, c = lax.axis_index("X"), jnp.zeros((15, 4))
    for hop in range(N):
        c = lax.dynamic_update_slice(c, a @ b, ((me - hop) % N * 3, 0))
        a = lax.ppermute(a, "X", RING) if hop < N - 1 else a
    return c


def gathers_both(a, b):
    c = lax.all_gather(a, "X", tiled=True) @ lax.all_gather(b, "X", axis=1, tiled=True)
    return lax.dynamic_slice_in_dim(c, lax.axis_index("X") * 4, 4, 1)


def multiplies_twice(a, b):
    whole = lax.all_gather(a, "X", tiled=True)
    return (whole @ b + (whole + 1) @ b - b.sum(0)) / 2


def does_nothing(a, b): ...


def takes_its_own_part_for_all(a, b):
    return jnp.tile(a @ b, (N, 1))


def forgets_to_gather(a, b):
    return a @ b


def turns_b_over(a, b):
    return a @ b.T


def returns_a_word(a, b):
    return "c"


@pytest.mark.parametrize("answer", [gathers_the_small_one, passes_the_small_one_on])
def test_the_best_known_cost_is_taken_by_whatever_collective(devices, answer):
    ok, words = devices(verdict, answer)
    assert ok
    assert words.startswith("Right: 336 B sent a device by ")
    assert words.endswith(", the best known.")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (..., "Not answered yet: replace the ... with your code."),
        (does_nothing, "Not answered yet: replace the ... with your code."),
        (takes_its_own_part_for_all, "Not yet: 5 of 5 devices end with wrong numbers."),
        (forgets_to_gather, "Not yet: a device is to end with an array of shape (15, 4), not (3, 4)."),
        (returns_a_word, "Not yet: a device is to end with an array of shape (15, 4), not None."),
        (turns_b_over, "Not yet, it does not run: dot_general requires contracting dimensions"),
        (gathers_both, "Right numbers, but 784 B sent a device by all-gather: 2.33 times the best known."),
        (multiplies_twice, "Right numbers, but a device multiplies 2 times the work of the best known."),
    ],
)
def test_what_is_missing_wrong_or_costlier_is_refused(devices, answer, words):
    ok, said = devices(verdict, answer)
    assert not ok
    assert said.startswith(words)


def test_other_collectives_than_the_ones_asked_for_are_refused(devices):
    only = {"kinds": ("collective-permute",)}
    assert devices(verdict, passes_the_small_one_on, only)[0]
    ok, words = devices(verdict, gathers_the_small_one, only)
    assert not ok
    assert words == "Right numbers, but by all-gather; use collective-permute alone."


def multiplies_at_the_end(a, b):
    return gathers_by_permutes(a) @ b


def multiplies_in_parts_at_the_end(a, b):
    whole = gathers_by_permutes(a)
    return jnp.concatenate([whole[i : i + 3] @ b for i in range(0, 15, 3)])


def multiplies_its_own_part_at_once_and_the_others_at_the_end(a, b):
    whole, me = gathers_by_permutes(a), lax.axis_index("X")
    others = lax.dynamic_slice_in_dim(jnp.roll(whole, -3 * me, 0), 3, 12) @ b
    return jnp.roll(jnp.concatenate([a @ b, others]), 3 * me, 0)


def gathers_by_permutes(a):
    me, whole = lax.axis_index("X"), jnp.zeros((15, 7))
    for hop in range(N):
        whole = lax.dynamic_update_slice(whole, a, ((me - hop) % N * 3, 0))
        a = lax.ppermute(a, "X", RING) if hop < N - 1 else a
    return whole


def passes_the_small_one_on_in_a_loop(a, b):
    def write(hop, a, c):
        return lax.dynamic_update_slice(c, a @ b, ((lax.axis_index("X") - hop) % N * 3, 0))

    def one_round(hop, held):
        return lax.ppermute(held[0], "X", RING), write(hop, *held)

    return write(N - 1, *lax.fori_loop(0, N - 1, one_round, (a, jnp.zeros((15, 4)))))


def permutes_in_a_loop_and_multiplies_what_comes(a, b):
    def one_round(hop, held):
        a, c = lax.ppermute(held[0], "X", RING), held[1]
        return a, lax.dynamic_update_slice(c, a @ b, ((lax.axis_index("X") - hop - 1) % N * 3, 0))

    return lax.fori_loop(0, N - 1, one_round, (a, places_its_own_part(a, b)))[1]


def places_its_own_part(a, b):
    return lax.dynamic_update_slice(jnp.zeros((15, 4)), a @ b, (lax.axis_index("X") * 3, 0))


@pytest.mark.parametrize("answer", [passes_the_small_one_on, passes_the_small_one_on_in_a_loop])
def test_matmuls_beside_permutes_are_taken_as_overlapped(devices, answer):
    assert devices(verdict, answer, {"overlapped": True}) == (
        True,
        "Right: 336 B sent a device by collective-permute, the best known.",
    )


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (multiplies_at_the_end, 100),
        (multiplies_in_parts_at_the_end, 100),
        (multiplies_its_own_part_at_once_and_the_others_at_the_end, 80),
        (permutes_in_a_loop_and_multiplies_what_comes, 100),
    ],
)
def test_matmuls_that_wait_for_all_permutes_are_refused_where_overlap_is_asked_for(devices, answer, part):
    assert devices(verdict, answer)[0]
    assert devices(verdict, answer, {"overlapped": True}) == (
        False,
        f"Right numbers, but {part}% of the matmul stands before all permutes or after them; multiply a part in every round.",
    )


def scattered(answer):
    asked = {"best_bytes": 4 * 15 * 7 * 4 / N, "best_flops": 2 * 15 * 20 * 7 / N, "overlapped": True}
    sizes = {"I": 15, "J": 20, "K": 7}
    puzzle = Puzzle(simulate.mesh(X=N), ["A[I, J_X]", "B[J_X, K]"], "C[I_X, K]", sizes, np.matmul, **asked)
    said = puzzle.check(answer)
    return said.ok, repr(said)


def multiplies_as_the_sum_comes_by(a, b):
    return scatters_by_permutes(lambda place: lax.dynamic_slice_in_dim(a, place * 3, 3) @ b)


def multiplies_at_the_start(a, b):
    whole = a @ b
    return scatters_by_permutes(lambda place: lax.dynamic_slice_in_dim(whole, place * 3, 3))


def scatters_by_permutes(part):
    me = lax.axis_index("X")
    total = part((me - 1) % N)
    for hop in range(1, N):
        total = lax.ppermute(total, "X", RING) + part((me - hop - 1) % N)
    return total


def test_matmuls_that_all_permutes_wait_for_are_refused_where_overlap_is_asked_for(devices):
    assert devices(scattered, multiplies_as_the_sum_comes_by)[0]
    ok, words = devices(scattered, multiplies_at_the_start)
    assert not ok
    assert words.startswith("Right numbers, but 100% of the matmul stands before all permutes")


def test_an_answer_below_the_best_known_cost_is_taken_and_says_so(devices):
    assert devices(verdict, gathers_the_small_one, {"best_bytes": 2 * SMALL}) == (
        True,
        "Right: 336 B sent a device by all-gather, below the best known, 672 B.",
    )


def test_work_counts_only_where_a_share_is_given(devices):
    assert devices(verdict, multiplies_twice, {"best_flops": None})[0]


def test_sending_anything_is_refused_where_nothing_need_be_sent(devices):
    ok, words = devices(verdict, gathers_the_small_one, {"best_bytes": 0})
    assert not ok
    assert words.endswith("336 B sent a device by all-gather: the best known sends nothing.")


def copies(answer):
    puzzle = Puzzle(simulate.mesh(X=N), ["x[I_X, J]"], "x[I, J]", SIZES, lambda x: x, best_bytes=SMALL)
    return repr(puzzle.check(answer))


def spoils_the_copy_of_one_device(x):
    return lax.all_gather(x, "X", tiled=True) + (lax.axis_index("X") == 3)


def test_a_copy_that_differs_on_one_device_is_seen(devices):
    assert devices(copies, spoils_the_copy_of_one_device) == "Not yet: 1 of 5 devices end with wrong numbers."


def transposed(answer):
    puzzle = Puzzle.of_product(simulate.mesh(X=N), "A[I, J_X] · B[J_X, K] -> C[K_X, I]", I=7, J=20, K=15)
    said = puzzle.check(answer)
    return said.ok, repr(said), said.program.text.count(" all-reduce(")


def scatters_the_sum(a, b):
    return lax.psum_scatter((a @ b).T, "X", tiled=True)


def sums_and_keeps_a_part(a, b):
    return lax.dynamic_slice_in_dim(lax.psum((a @ b).T, "X"), lax.axis_index("X") * 3, 3)


def test_a_product_with_its_result_turned_over(devices):
    assert devices(transposed, scatters_the_sum) == (True, "Right: 336 B sent a device by reduce-scatter, the best known.", 0)
    assert devices(transposed, sums_and_keeps_a_part) == (
        False,
        "Right numbers, but 672 B sent a device by all-reduce: 2 times the best known.",
        1,
    )


def target(text, sizes, axes):
    puzzle = Puzzle.of_product(simulate.mesh(**axes), text, **sizes)
    right = puzzle.reference(*(np.ones(tuple(sizes[dim] for dim in dims)) for dims in (puzzle_dims(a) for a in puzzle.operands)))
    return puzzle.best_bytes, puzzle.best_flops, right.shape


def puzzle_dims(text):
    return [entry.strip()[0] for entry in text[text.index("[") + 1 : text.index("]")].split(",")]


@pytest.mark.parametrize(
    ("text", "sizes", "axes", "best_bytes"),
    [
        ("A[I_X, J] · B[J, K_X] -> C[I, K_X]", SIZES, {"X": 5}, SMALL),
        ("A[I_X, J] · B[J, K] -> C[I_X, K]", SIZES, {"X": 5}, 0),
        ("A[I, J_X] · B[J_X, K] -> C[K_X, I]", {"I": 7, "J": 20, "K": 15}, {"X": 5}, 4 * 7 * 15 * 4 / 5),
        ("A[M, I_X, J] · B[M, I_X, K] -> C[J, K]", {"M": 3, "I": 50, "J": 7, "K": 5}, {"X": 5}, 2 * 4 * 7 * 5 * 4 / 5),
        ("A[I_X, J] · B[J, K_Y] -> C[I_Y, K_X]", {"I": 6, "J": 1, "K": 10}, {"X": 2, "Y": 2}, 4 * (6 + 10) / 2),
    ],
)
def test_the_target_of_a_product_is_the_cheapest_plan_at_an_even_share_of_the_work(devices, text, sizes, axes, best_bytes):
    sent, flops, shape = devices(target, text, sizes, axes)
    assert sent == pytest.approx(best_bytes)
    members = np.prod(list(axes.values()))
    assert flops == 2 * np.prod(list(sizes.values())) / members
    assert shape == tuple(sizes[dim] for dim in puzzle_dims(text.partition("->")[2]))


def test_a_function_that_fails_on_its_own_account_is_told_why(devices):
    assert devices(verdict, asks_for_what_is_not_there)[1].startswith("Not yet, it does not run: ")


def asks_for_what_is_not_there(a, b):
    return {}["c"]
