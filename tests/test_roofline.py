import csv
import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scaling_lib import roofline as rl
from scaling_lib.hardware import CHIPS, Chip, chip
from scaling_lib.roofline import Cost

SIZES = st.integers(1, 50_000)
FLOATS = st.floats(1e-3, 1e30)
CHIP_WITH_HBM = st.sampled_from([c for c in CHIPS.values() if "bf16" in c.peak_flops_per_s and "hbm_bytes_per_s" in c.figures])

# The figures the worked problems were stated with. They are the problems' inputs, not the catalog's choice.
BOOK_V5E = chip("v5e").but(hbm_bytes_per_s=8.2e11)
BOOK_V5E_2025 = Chip(
    "v5e of 2025-02",
    {"bf16": 1.97e14, "int8": 3.94e14},
    {"hbm_bytes_per_s": 8.1e11, "ici_link_bytes_per_s": 4.5e10},
    kind="tpu",
)
BOOK_H100 = Chip("h100 of 2025-02", {"bf16": 1e15}, {"hbm_bytes_per_s": 3.35e12})
BIG = 10**9  # a dimension large enough for a limit

PROBLEMS = {
    "RF-01": lambda: 1e3 * rl.bound(Cost(flops={"bf16": 1e12}), Chip("h100", {"bf16": 9.89e14})).lower_s,
    "RF-03": lambda: rl.ridge(BOOK_V5E),
    "RF-04": lambda: rl.einsum("n,n->", {"n": BIG}).intensity(),
    "RF-05": lambda: _vpu_intensity_where_both_bind(Chip("v5p", {}, {"vpu_flops_per_s": 7e12, "hbm_bytes_per_s": 2.8e12})),
    "RF-07": lambda: rl.ridge(chip("v5e"), level="ici"),
    "RF-08": lambda: _smallest_contraction_for_two_chips(),
    "RF-09": lambda: rl.ridge(BOOK_V5E_2025, "int8"),
    "RF-10": lambda: rl.critical_batch(BOOK_V5E_2025, k=BIG, n=BIG, x="int8", w="int8").asymptotic,
    "RF-12": lambda: rl.einsum("bd,bdf->bf", {"b": 240, "d": 8192, "f": 8192}, dtypes="int8").intensity(),
    "RF-13": lambda: rl.critical_batch(BOOK_H100, k=BIG, n=BIG).asymptotic,
    "RF-15": lambda: rl.ridge(Chip("v5e", {"int8": 3.94e14}, {"hbm_bytes_per_s": 8.2e11}), "int8"),
    "RF-16": lambda: rl.critical_batch(BOOK_V5E, k=4096, n=4096).exact,
    "RF-17": lambda: rl.critical_batch(BOOK_V5E, k=1024, n=1024).exact,
}  # fmt: skip


def _vpu_intensity_where_both_bind(c):
    parts = rl.bound(Cost(vpu_flops=1, hbm_bytes=1), c).parts_s
    return parts["hbm"] / parts["vpu"]


def _smallest_contraction_for_two_chips():
    """X[m, k] · W[k, n] with k split over two chips; each sends its bf16 partial sum [m, n] to the other over one link."""

    def needs_math(k):
        half = rl.matmul(1_000_000, k // 2, 1_000_000, level="vmem")
        half = Cost(flops=half.flops, ici_bytes=2 * 10**12)
        return rl.bound(half, chip("v5e")).binds == "mxu"

    low, high = 2, 2**20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if needs_math(middle) else (middle, high)
    return high


ROWS = list(csv.DictReader((Path(__file__).parent / "data/worked_problems.csv").read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("row", [row for row in ROWS if row["chapter"] == "1 roofline"], ids=lambda row: row["id"])
def test_worked_problems_of_the_field(row):
    expected = float(row["computed_value"] if row["checked"] == "disagrees" else row["expected_value"])
    assert PROBLEMS[row["id"]]() == pytest.approx(expected, rel=float(row["tolerance"]))


def test_matmul_counts_by_hand():
    # X[3, 5] · W[5, 7]: 3·5·7 multiply-adds; 15 + 35 + 21 elements of 2 bytes.
    assert rl.matmul(3, 5, 7) == Cost(flops={"bf16": 210}, hbm_bytes=142)


def test_each_array_has_its_own_dtype():
    assert rl.matmul(3, 5, 7, x="bf16", w="int8", out="f32") == Cost(flops={"bf16": 210}, hbm_bytes=15 * 2 + 35 + 21 * 4)
    assert rl.matmul(3, 5, 7, x="int8", w="int8").flops == {"int8": 210}
    assert rl.matmul(3, 5, 7, x="int8", w="int4").flops == {"int8": 210}
    assert rl.matmul(3, 5, 7, w="int4", math="int8") == Cost(flops={"int8": 210}, hbm_bytes=15 * 2 + 35 / 2 + 21 * 2)


@given(SIZES, SIZES, SIZES, SIZES)
def test_a_batch_of_matmuls_is_that_many_matmuls(m, k, n, batch):
    assert rl.matmul(m, k, n, batch=batch) == batch * rl.matmul(m, k, n)


@given(SIZES, SIZES, SIZES)
def test_einsum_and_matmul_agree(m, k, n):
    assert rl.einsum("mk,kn->mn", {"m": m, "k": k, "n": n}, dtypes=("bf16", "int8", "f32")) == rl.matmul(
        m, k, n, w="int8", out="f32"
    )


def test_einsum_counts_contractions_outer_products_and_sums():
    assert rl.einsum("i,j->ij", {"i": 3, "j": 5}) == Cost(vpu_flops=15, hbm_bytes=2 * (3 + 5 + 15))
    assert rl.einsum("ij->i", {"i": 3, "j": 5}) == Cost(vpu_flops=12, hbm_bytes=2 * (15 + 3))
    assert rl.einsum("ij->ji", {"i": 3, "j": 5}) == Cost(hbm_bytes=60)
    assert rl.einsum("bij,bjk->bik", {"b": 2, "i": 3, "j": 5, "k": 7}) == rl.matmul(3, 5, 7, batch=2)


@pytest.mark.parametrize(
    ("spec", "sizes", "words"),
    [
        ("ab,bc", {"a": 1, "b": 1, "c": 1}, "no output"),
        ("ab,bc,cd->ad", {"a": 1, "b": 1, "c": 1, "d": 1}, "3 operands"),
        ("aa->a", {"a": 3}, "repeats a letter"),
        ("ab->c", {"a": 1, "b": 1, "c": 1}, "output letter 'c'"),
        ("a...,b->a", {"a": 1, "b": 1}, "letters"),
        ("ab->a", {"a": 1}, "sizes lacks 'b'"),
        ("ab->a", {"a": 1, "b": 1, "c": 1}, "sizes has 'c'"),
        ("ab->a", {"a": 1, "b": 0}, r"sizes\['b'\]=0"),
        ("abcdefghijklmnopqrstuvwxyz->a", dict.fromkeys("abcdefghijklmnopqrstuvwxyz", 10**15), "too large"),
    ],
)
def test_bad_einsums_are_refused(spec, sizes, words):
    with pytest.raises(ValueError, match=words):
        rl.einsum(spec, sizes)
    with pytest.raises(ValueError, match="dtypes has 2 entries"):
        rl.einsum("mk,kn->mn", {"m": 3, "k": 5, "n": 7}, dtypes=("bf16", "f32"))


@pytest.mark.parametrize("bad", [0, -1, 2.5, math.nan, math.inf, 10**18, "8", None])
@pytest.mark.parametrize("name", ["m", "k", "n", "batch"])
def test_bad_sizes_name_the_argument(name, bad):
    with pytest.raises(ValueError, match=f"^{name}"):
        rl.matmul(**{"m": 3, "k": 5, "n": 7, name: bad})


@pytest.mark.parametrize("argument", ["x", "w", "out", "math"])
def test_bad_dtypes_are_refused(argument):
    with pytest.raises(ValueError, match="dtype='bf61' is unknown"):
        rl.matmul(3, 5, 7, **{argument: "bf61"})


@given(SIZES, SIZES, SIZES, st.integers(1, 60_000), st.integers(1, 60_000))
def test_tiles_move_at_least_what_one_read_moves(m, k, n, rows, columns):
    tiled, whole = rl.matmul(m, k, n, tile=(rows, columns)), rl.matmul(m, k, n)
    assert tiled.flops == whole.flops
    assert tiled.hbm_bytes >= whole.hbm_bytes
    assert rl.matmul(m, k, n, tile=(m, n)) == whole


def test_tile_intensity_tends_to_the_harmonic_rule():
    # Large matrices in tiles of b_m x b_n: each X element is read n/b_n times, each W element m/b_m times.
    rows, columns = 256, 512
    cost = rl.matmul(2**15, 2**20, 2**15, tile=(rows, columns))
    assert cost.intensity() == pytest.approx(rows * columns / (rows + columns), rel=1e-3)


def costs():
    return st.builds(
        Cost,
        flops=st.dictionaries(st.sampled_from(["bf16"]), FLOATS, min_size=1),
        hbm_bytes=FLOATS,
    )


@given(costs(), CHIP_WITH_HBM)
def test_bounds_are_ordered(cost, c):
    b = rl.bound(cost, c)
    assert max(b.parts_s.values()) == b.lower_s <= b.upper_s <= 2 * b.lower_s
    assert b.parts_s[b.binds] == b.lower_s
    assert b.flops_per_s <= c.flops_per_s() * (1 + 1e-9)


@given(costs(), costs(), CHIP_WITH_HBM)
def test_more_work_never_takes_less_time(a, b, c):
    both, one = rl.bound(a + b, c), rl.bound(a, c)
    assert both.lower_s >= one.lower_s
    assert both.upper_s >= one.upper_s
    assert both.upper_s == pytest.approx(one.upper_s + rl.bound(b, c).upper_s)
    assert both.lower_s <= (one.lower_s + rl.bound(b, c).lower_s) * (1 + 1e-9)


@given(costs(), CHIP_WITH_HBM, st.floats(1e-3, 1e3))
def test_time_is_scale_free(cost, c, scale):
    before, after = rl.bound(cost, c), rl.bound(scale * cost, c)
    assert after.lower_s == pytest.approx(scale * before.lower_s)
    faster = c.but(hbm_bytes_per_s=scale * c.hbm_bytes_per_s)
    assert rl.bound(cost, faster).parts_s["hbm"] == pytest.approx(before.parts_s["hbm"] / scale)


@given(costs(), CHIP_WITH_HBM)
def test_the_plot_and_the_bound_agree(cost, c):
    assume(1e-6 < cost.intensity() < 1e9)
    assert rl.attainable_flops_per_s(cost.intensity(), c) == pytest.approx(rl.bound(cost, c).flops_per_s)


@given(costs(), costs())
def test_costs_form_an_algebra(a, b):
    assert a + b == b + a
    assert sum([a, b]) == a + b
    assert 2 * a == a + a
    assert (0 * a).total_flops == 0


def test_every_resource_is_divided_by_its_own_rate():
    mine = Chip(
        "mine",
        {"bf16": 100.0, "int8": 200.0},
        {"vpu_flops_per_s": 7, "vmem_bytes_per_s": 11, "hbm_bytes_per_s": 13, "ici_link_bytes_per_s": 17,
         "ici_link_peak_bytes_per_s": 19, "dcn_bytes_per_s": 23, "pcie_bytes_per_s": 29},
        kind="tpu",
    )  # fmt: skip
    cost = Cost(
        flops={"bf16": 100, "int8": 400},
        vpu_flops=14,
        vmem_bytes=33,
        hbm_bytes=52,
        ici_bytes=85,
        dcn_bytes=138,
        pcie_bytes=203,
    )
    expected = {"mxu": 3, "vpu": 2, "vmem": 3, "hbm": 4, "ici": 5, "dcn": 6, "pcie": 7}
    b = rl.bound(cost, mine)
    assert b.parts_s == pytest.approx(expected)
    assert (b.lower_s, b.upper_s, b.binds, b.math_s) == (7, 30, "pcie", 5)
    assert rl.bound(cost, mine, ici="peak").parts_s["ici"] == pytest.approx(85 / 19)
    assert str(b) == "7 s to 30 s, pcie binds (mxu 3 s, vpu 2 s, vmem 3 s, hbm 4 s, ici 5 s, dcn 6 s, pcie 7 s)"


@given(CHIP_WITH_HBM, st.integers(64, 10**6), st.integers(64, 10**6))
def test_the_critical_batch_is_where_math_and_bytes_take_the_same_time(c, k, n):
    critical = rl.critical_batch(c, k=k, n=n)
    if critical.exact is None:
        assert rl.bound(rl.matmul(10**12, k, n), c).binds == "hbm"
    else:
        assert critical.exact > critical.asymptotic
        assume(critical.exact > 2)
        assert rl.bound(rl.matmul(math.ceil(critical.exact * 1.001), k, n), c).binds == "mxu"
        assert rl.bound(rl.matmul(math.floor(critical.exact * 0.999), k, n), c).binds == "hbm"


def test_int8_weights_halve_the_critical_batch_and_int8_math_restores_it():
    v5e = chip("v5e").but(hbm_bytes_per_s=8e11)
    bf16, weights, both = (
        rl.critical_batch(v5e, k=BIG, n=BIG, **kinds).asymptotic
        for kinds in ({}, {"w": "int8"}, {"x": "int8", "w": "int8", "math": "int8"})
    )
    assert weights == bf16 / 2
    assert both == pytest.approx(bf16, rel=0.01)


def test_a_small_matrix_is_never_compute_bound():
    assert rl.critical_batch(chip("v5e"), k=64, n=64).exact is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rl.bound(Cost(), chip("v5e")), "cost is empty"),
        (
            lambda: rl.bound(rl.matmul(3, 5, 7, w="int8", x="int8"), chip("tpu7x")),
            "dtype='int8' has no sourced peak on tpu7x",
        ),
        (lambda: rl.bound(Cost(vmem_bytes=1), chip("v100")), "no sourced figure for vmem_bytes_per_s"),
        (lambda: rl.bound(rl.matmul(3, 5, 7), chip("v5e"), ici="both"), "ici='both'"),  # type: ignore[arg-type]
        (lambda: Cost(hbm_bytes=-1), "hbm_bytes=-1"),
        (lambda: Cost(flops={"bf16": math.nan}), r"flops\['bf16'\]=nan"),
        (lambda: Cost(flops={"bf61": 1}), "dtype='bf61'"),
        (lambda: Cost(hbm_bytes=10**400), "hbm_bytes is an integer too large"),
        (lambda: Cost(hbm_bytes=1) * -1, "times=-1"),
        (lambda: Cost(hbm_bytes=1).intensity("hmb"), "level='hmb' is unknown; did you mean 'hbm'"),  # type: ignore[arg-type]
        (lambda: Cost(hbm_bytes=1).intensity("ici"), "moves no bytes"),
        (lambda: rl.ridge(chip("v5e"), "int3"), "dtype='int3' is unknown"),
        (lambda: rl.attainable_flops_per_s(-1, chip("v5e")), "intensity=-1"),
        (lambda: rl.matmul(3, 5, 7, tile=(0, 4)), "tile=0"),
        (lambda: rl.matmul(3, 5, 7, level="l2"), "level='l2'"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_a_clear_error(call, words):
    with pytest.raises(ValueError, match=words):
        call()


DTYPES = st.sampled_from(["f32", "bf16", "int8", "int4", "fp8"])
EVERY_DTYPE = Chip(
    "every dtype",
    {"f32": 3e13, "bf16": 2e14, "fp8": 4e14, "int8": 4.1e14, "int4": 8e14},
    {"hbm_bytes_per_s": 8e11, "vmem_bytes_per_s": 2e13},
)


@given(st.integers(900, 10**5), st.integers(900, 10**5), DTYPES, DTYPES, DTYPES, st.sampled_from(["hbm", "vmem"]))
def test_the_critical_batch_holds_for_any_dtypes_and_levels(k, n, x, w, out, level):
    kinds = {"x": x, "w": w, "out": out, "level": level}
    exact = rl.critical_batch(EVERY_DTYPE, k=k, n=n, **kinds).exact

    def binds(m):
        return rl.bound(rl.matmul(m, k, n, **kinds), EVERY_DTYPE).binds

    if exact is None:
        assert binds(10**12) == level
    else:
        assume(2 < exact < 1e12)
        assert binds(math.ceil(exact * 1.0001)) == "mxu"
        assert binds(math.floor(exact * 0.9999)) == level


def test_the_rule_of_thumb_counts_the_bytes_of_the_weights():
    by_weights = [rl.critical_batch(EVERY_DTYPE, k=BIG, n=BIG, x="bf16", w=w).asymptotic for w in ("f32", "bf16", "int8", "int4")]
    assert by_weights == [4 / 2 * 3e13 / 8e11, 2e14 / 8e11, 1e14 / 8e11, 5e13 / 8e11]


def test_exactly_no_spare_bytes_is_never_compute_bound():
    # 2kn/C·W = k·2 + n·2 at k = n = 2·ridge: arithmetic and activations tie, the weights tip the scale.
    c = Chip("round numbers", {"bf16": 256.0}, {"hbm_bytes_per_s": 1.0})
    assert rl.critical_batch(c, k=512, n=512).exact is None
    assert rl.critical_batch(c, k=513, n=512).exact is not None


@pytest.mark.parametrize(
    ("x", "w", "expected"),
    [("bf16", "int8", "bf16"), ("int8", "bf16", "bf16"), ("bf16", "f32", "f32"), ("f32", "bf16", "f32"), ("int8", "int4", "int8"),
     ("int32", "bf16", "bf16"), ("int32", "int8", "int32"), ("fp8", "int32", "fp8"), ("fp8", "bf16", "bf16")],
)  # fmt: skip
def test_arithmetic_is_done_in_the_wider_float(x, w, expected):
    assert list(rl.matmul(3, 5, 7, x=x, w=w).flops) == [expected]
    assert list(rl.einsum("mk,kn->mn", {"m": 3, "k": 5, "n": 7}, dtypes=(x, w, "f32")).flops) == [expected]


def test_einsum_takes_its_arithmetic_and_ignores_spaces():
    sizes = {"m": 3, "k": 5, "n": 7}
    assert rl.einsum("mk, kn -> mn", sizes, math="int8", dtypes="bf16").flops == {"int8": 210}


def test_tiles_that_do_not_divide_are_rounded_up_and_not_swapped():
    # X[5, 3] · W[3, 7] in tiles of 2 x 4: two columns of tiles read X twice, three rows of tiles read W three times.
    assert rl.matmul(5, 3, 7, tile=(2, 4)) == Cost(flops={"bf16": 210}, hbm_bytes=2 * (2 * 15 + 3 * 21 + 35))


def test_the_level_decides_where_the_bytes_go():
    for level in rl.LEVELS:
        cost = rl.matmul(3, 5, 7, level=level)
        assert cost == Cost(flops={"bf16": 210}, **{f"{level}_bytes": 142})
        assert (cost.bytes(level), cost.intensity(level)) == (142, 210 / 142)


def test_flops_of_one_dtype_add_up_under_all_its_names():
    assert Cost(flops={"bf16": 3, "bfloat16": 5, "f32": 7}).flops == {"bf16": 8, "f32": 7}


def test_vector_and_matrix_flops_are_counted_together():
    cost = Cost(flops={"bf16": 30}, vpu_flops=12, hbm_bytes=7)
    assert (cost.total_flops, cost.intensity()) == (42, 6)
    mine = Chip("mine", {"bf16": 10.0}, {"vpu_flops_per_s": 4.0, "hbm_bytes_per_s": 1.0})
    b = rl.bound(cost, mine)
    assert (b.math_s, b.flops_per_s) == (6, 42 / 7)


def test_a_cost_without_flops_is_bound_by_its_bytes_alone():
    assert rl.bound(Cost(flops={"bf16": 0}, hbm_bytes=819), chip("v5e")).parts_s == {"hbm": 819 / chip("v5e").hbm_bytes_per_s}


def test_costs_add_to_costs_only():
    with pytest.raises(TypeError):
        _ = 1 + Cost(hbm_bytes=1)
    with pytest.raises(TypeError):
        _ = Cost(hbm_bytes=1) + 1  # type: ignore[operator]


def test_costs_and_bounds_print_what_they_use():
    assert repr(Cost(flops={"bf16": 2}, hbm_bytes=3)) == "Cost(flops={'bf16': 2}, hbm_bytes=3)"
    assert eval(repr(Cost(vpu_flops=2.5, ici_bytes=3))) == Cost(vpu_flops=2.5, ici_bytes=3)


def test_ridges_and_roofs_take_dtype_level_and_convention():
    v5p = chip("v5p")
    assert rl.ridge(v5p, "int8", level="dcn") == v5p.flops_per_s("int8") / v5p.dcn_bytes_per_s
    assert rl.ridge(v5p, level="ici", ici="peak") == v5p.flops_per_s() / v5p.ici_link_peak_bytes_per_s
    assert rl.attainable_flops_per_s(1e9, v5p, "int8") == v5p.flops_per_s("int8")
    assert rl.attainable_flops_per_s(2.0, v5p, level="ici") == 2 * v5p.ici_link_bytes_per_s
    with pytest.raises(ValueError, match="ici='boht'"):
        rl.ridge(v5p, level="ici", ici="boht")  # type: ignore[arg-type]


def test_the_fabric_of_a_gpu_stands_in_for_its_links():
    h100 = chip("h100")
    assert rl.bound(Cost(ici_bytes=450), h100).lower_s == 450 / h100.fabric_bytes_per_s
    assert rl.ridge(h100, level="ici") == h100.flops_per_s() / h100.fabric_bytes_per_s


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rl.ridge("v5e"), "chip='v5e' is not a Chip"),
        (lambda: rl.bound(rl.matmul(3, 5, 7), "v5e"), "chip='v5e' is not a Chip"),
        (lambda: rl.bound(1e12, chip("v5e")), "is not a Cost"),
        (lambda: rl.attainable_flops_per_s(1, "v5e"), "chip='v5e'"),
        (lambda: rl.critical_batch("v5e", k=8, n=8), "chip='v5e'"),
        (lambda: Cost(flops=1e12), "does not say the dtype"),
        (lambda: rl.matmul(3, 5, 7, tile=4), "tile=4 is not a pair"),
        (lambda: rl.matmul(3, 5, 7, tile=(4, 4, 4)), "is not a pair"),
        (lambda: rl.einsum("ab,cd->ad", {"a": 2, "b": 3, "c": 5, "d": 7}), "sums over 'b', which one operand alone has"),
        (lambda: rl.einsum("bd->b", {"b": 3, "d": 5}, math="bf61"), "dtype='bf61'"),
        (lambda: rl.einsum("bd,df->bf", [1, 2, 3]), "sizes="),
    ],
)
def test_arguments_of_another_kind_are_a_clear_error(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_output_takes_the_dtype_of_the_activations_unless_told():
    kinds = {"x": "bf16", "w": "int8"}
    told = rl.critical_batch(EVERY_DTYPE, k=2048, n=4096, out="bf16", **kinds)
    assert rl.critical_batch(EVERY_DTYPE, k=2048, n=4096, **kinds) == told
    assert rl.matmul(3, 5, 7, **kinds) == rl.matmul(3, 5, 7, out="bf16", **kinds)
