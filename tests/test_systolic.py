import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import hardware, systolic
from scaling_lib.hardware import chip
from scaling_lib.systolic import cycles, padded, simulate, utilization

NUMBERS = st.integers(-9, 9)


@st.composite
def matmuls(draw, largest=9):
    m, k, n = (draw(st.integers(1, largest)) for _ in range(3))
    matrix = lambda rows, columns: [[draw(NUMBERS) for _ in range(columns)] for _ in range(rows)]  # noqa: E731
    return matrix(m, k), matrix(k, n)


def product(x, w):
    return tuple(tuple(sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*w, strict=True)) for row in x)


@given(matmuls(), st.integers(1, 5), st.booleans())
def test_the_array_computes_the_product(matrices, side, double_buffered):
    assert simulate(*matrices, side, double_buffered=double_buffered).product == product(*matrices)


@pytest.mark.parametrize("double_buffered", [True, False])
@pytest.mark.parametrize("side", [1, 2, 3, 4, 7])
def test_the_formula_counts_the_cycles_of_the_simulation(side, double_buffered):
    for m, k, n in itertools.product((1, 3, 5, 11), (1, 3, 5, 8), (1, 2, 7)):
        run = simulate([[1] * k] * m, [[1] * n] * k, side, double_buffered=double_buffered)
        assert len(run.cycles) == cycles(m, k, n, side, double_buffered=double_buffered)
        assert run.utilization == pytest.approx(utilization(m, k, n, side, double_buffered=double_buffered))


@given(matmuls(), st.integers(1, 4), st.booleans())
def test_every_multiply_add_is_done_once_and_no_cell_is_in_two_states(matrices, side, double_buffered):
    x, w = matrices
    run = simulate(x, w, side, double_buffered=double_buffered)
    assert sum(len(cycle.busy) for cycle in run.cycles) == len(x) * len(w) * len(w[0])
    for cycle in run.cycles:
        assert not cycle.busy & cycle.padding
        assert not cycle.holding & (cycle.busy | cycle.padding)
        assert set(cycle.activations) == cycle.busy | cycle.padding
        if not double_buffered:
            assert not cycle.loading & set(cycle.activations)


def test_work_crosses_the_array_as_a_diagonal_wave():
    # One row of X: cell (i, j) is busy in one cycle only, i + j cycles after the corner, when `side` cycles have loaded it.
    run = simulate([[2, 3, 5]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]], 3)
    for i, j in itertools.product(range(3), repeat=2):
        assert [number for number, cycle in enumerate(run.cycles) if (i, j) in cycle.busy] == [3 + i + j]
        assert run.cycles[3 + i + j].activations[i, j] == (2, 3, 5)[i]


@given(matmuls(), st.integers(1, 4), st.booleans())
def test_a_run_begins_with_a_weight_and_ends_at_the_far_corner(matrices, side, double_buffered):
    run = simulate(*matrices, side, double_buffered=double_buffered)
    assert run.cycles[0].loading == {(0, 0)}
    assert set(run.cycles[-1].activations) == {(side - 1, side - 1)}


def test_weights_come_in_a_diagonal_too_and_one_row_a_cycle():
    run = simulate([[1] * 3], [[1] * 3] * 3, 3)
    assert run.cycles[0].loading == {(0, 0)}
    assert run.cycles[1].loading == {(0, 0), (1, 0), (0, 1)}
    assert run.cycles[2].loading == {(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2)}
    assert run.cycles[2].holding == run.cycles[2].loading
    assert run.cycles[3].loading == {(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)}  # the first column has its weights
    assert run.cycles[3].busy == {(0, 0)}


def test_cycles_by_hand():
    # Side 4, X[3, 8] · W[8, 4]: two tiles. Load 4; the second tile 4 later, which its load takes; 3 rows; 6 to drain.
    assert cycles(3, 8, 4, 4) == 4 + 4 + 3 + 6
    assert cycles(3, 8, 4, 4, double_buffered=False) == 4 + (3 + 4) + 3 + 6


def test_many_rows_hide_the_loads_and_fill_the_array():
    assert utilization(128, 4096, 4096, 128) == pytest.approx(1024 * 128 / (1024 * 128 + 3 * 128 - 2))
    assert utilization(64, 4096, 4096, 128) == pytest.approx(0.5, rel=0.01)  # each tile waits for its weights
    assert utilization(128, 4096, 4096, 128, double_buffered=False) == pytest.approx(0.5, rel=0.01)


def test_eight_rows_take_eight_cycles_while_the_weights_stay():
    for side in (128, 256):
        assert cycles(1008, side, side, side) - cycles(1000, side, side, side) == 8


@given(*(st.integers(1, 5000) for _ in range(3)), st.sampled_from([128, 256]))
def test_utilization_is_a_share_and_two_buffers_never_hurt(m, k, n, side):
    one, two = (utilization(m, k, n, side, double_buffered=double) for double in (False, True))
    assert 0 < one <= two <= 1


# Padding.


def test_one_column_too_many_costs_a_whole_tile():
    assert padded(8, 128, 129, chip("v5e")) == systolic.Padded(8, 128, 256, useful=129 / 256)
    assert padded(8, 128, 128, chip("v5e")).useful == 1
    assert padded(8, 256, 129, chip("v6e")) == systolic.Padded(8, 256, 256, useful=129 / 256)
    assert padded(3, 100, 300, chip("v6e")) == systolic.Padded(8, 256, 512, useful=90_000 / (8 * 256 * 512))


@given(*(st.integers(1, 5000) for _ in range(3)), st.sampled_from(["v4", "v5e", "v6e"]))
def test_padding_rounds_up_to_the_next_multiple_and_no_further(m, k, n, name):
    side, to = chip(name).mxu_dim, padded(m, k, n, chip(name))
    for size, padded_size, unit in ((m, to.m, systolic.SUBLANES), (k, to.k, side), (n, to.n, side)):
        assert padded_size % unit == 0
        assert 0 <= padded_size - size < unit
    assert to.useful == pytest.approx(m * k * n / (to.m * to.k * to.n))


@given(*(st.integers(1, 600) for _ in range(3)))
def test_the_array_is_never_busier_than_padding_allows(m, k, n):
    to = padded(m, k, n, chip("v5e"))
    assert utilization(to.m, k, n, 128) <= to.useful * to.m / m + 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cycles(0, 3, 5, 4), "m=0 is not a size"),
        (lambda: cycles(3, 3, 5, 0), "side=0 is not a size"),
        (lambda: utilization(3, 1.5, 5, 4), "k=1.5 is not a size"),
        (lambda: padded(3, 5, 0, chip("v5e")), "n=0 is not a size"),
        (lambda: padded(3, 5, 7, hardware.Chip("mine", {})), "no sourced figure for mxu_dim of mine"),
        (lambda: simulate([[1, 2]], [[1]], 2), "x has 2 columns and w has 1 rows"),
        (lambda: simulate([[1, 2], [3]], [[1], [2]], 2), "x is no matrix"),
        (lambda: simulate([[1]], [], 2), "w is no matrix"),
        (lambda: simulate([[1]], [[1]], -1), "side=-1"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
