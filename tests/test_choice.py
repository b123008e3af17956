"""The compiler's choice against the plan: verdicts and reasons, from programs of simulated devices and from made ones.

JAX 0.10 and 0.12 chose alike in every program here. All of them are compiled in one other process with 16 simulated devices:
JAX fixes their number at its first use.
"""

import dataclasses
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from scaling_lib import sharding
from scaling_lib.sharding import matmul_plan
from scaling_lib.xla import arrays, choice, matmul, simulate
from scaling_lib.xla.program import Code, Collective, Matmul, Memory, Program
from scaling_lib.xla.tpu import fingerprint

SLICE, SQUARE, LINE = "v5e:4x4", {"X": 4, "Y": 4}, {"X": 16}
TRAINING = {"T": 8192, "D": 4096, "F": 14336}
DECODING = {**TRAINING, "T": 256}

# product, sizes, verdict, and a reason that a real program of simulated devices shows
CASES = [
    ("A[T_X, D] · B[D_X, F_Y] -> C[T_X, F_Y]", TRAINING, "same", "does what the plan does"),
    ("A[T, D] · B[D, F_X] -> C[T, F_X]", TRAINING, "same", "does what the plan does"),
    ("A[T_X, D] · B[D, F_Y] -> C[T_XY, F]", TRAINING, "dearer", "gathers where the plan moves an axis by all-to-all"),
    ("A[T_X, D] · B[D_X, F] -> C[T_X, F]", DECODING, "dearer", "gathers operands where the plan reduces partial sums"),
    ("A[T_X, D] · B[T_X, F] -> C[D_X, F]", TRAINING, "dearer", "reduces partial sums where the plan gathers operands"),
    ("A[T_X, D_Y] · B[D, F] -> C[T_X, F]", TRAINING, "dearer", "leaves an axis idle in the matmul, where the plan cuts by it"),
    ("A[T_X, D] · B[T_X, F] -> C[D, F]", DECODING, "dearer", "cuts the matmul by an axis that the plan leaves idle"),
    ("A[T, F_X] · B[F_X, D] -> C[T_X, D]", TRAINING, "dearer", "all-reduces where the plan reduce-scatters"),
    ("A[T_X, D] · B[D, F_X] -> C[T_X, F]", TRAINING, "dearer", "gathers a larger array than the plan does"),
    (
        "A[T_X, D] · B[D, F] -> C[T_X, F]", DECODING, "dearer",
        "reads larger arrays from HBM, where the plan moves parts of them first",
    ),
    ("A[T_X, D] · B[D, F_Y] -> C[T_Y, F_X]", TRAINING, "dearer", "permutes more than the plan"),
]  # fmt: skip


def axes_of(product):
    return SQUARE if "Y" in product else LINE


def plan_of(product, sizes, **how):
    return matmul_plan(product, sizes, axes_of(product), SLICE, **how)


def _start():
    simulate.mesh(X=16)


def _compiled(product, sizes, how):
    mesh = arrays.mesh(**axes_of(product))
    fn = matmul.automatic(product, mesh) if how == "automatic" else matmul.planned(plan_of(product, sizes), mesh)
    return simulate.compile(fn, *matmul.specs(product, mesh, **sizes))


@pytest.fixture(scope="module")
def compiled():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start) as process:
        yield lambda product, sizes, how="automatic": process.submit(_compiled, product, sizes, how).result(timeout=120)


@pytest.mark.parametrize(("product", "sizes", "verdict", "reason"), CASES)
def test_what_the_compiler_chose_and_why(compiled, product, sizes, verdict, reason):
    found = choice.compare(plan_of(product, sizes), compiled(product, sizes), SLICE)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert (found.program_s > 1.001 * found.plan_s) == (verdict == "dearer")


@pytest.mark.parametrize("product", ["A[T, F_X] · B[F_X, D] -> C[T_X, D]", "A[T_X, D] · B[D, F_Y] -> C[T_XY, F]"])
def test_a_written_plan_is_the_plan(compiled, product):
    plan = plan_of(product, TRAINING)
    found = choice.compare(plan, compiled(product, TRAINING, "planned"), SLICE)
    assert (found.verdict, found.flops_ratio) == ("same", 1)
    assert found.program_s == pytest.approx(plan.seconds, rel=1e-9)
    assert found.planned == found.chosen


def test_a_program_costs_what_its_parts_cost(compiled):
    """Weights of 256 × 3584 numbers a chip are gathered to 4096 × 3584, then 2048 × 4096 by 4096 × 3584 is multiplied."""
    product = "A[T_X, D] · B[D_X, F_Y] -> C[T_X, F_Y]"
    found = choice.compare(plan_of(product, TRAINING), compiled(product, TRAINING), SLICE)
    gathered_s = 4096 * 3584 * 2 * 3 / 4 / 45e9  # a line of four: one link into its end. 45 GB/s: hardware.chip("v5e")
    assert found.program_s == pytest.approx(gathered_s + 2 * 2048 * 4096 * 3584 / 197e12, rel=1e-3)


# Made programs, for what a compiler does seldom.
PRODUCT = "A[T_X, F_Y] · B[F_Y, D_X] -> C[T_X, D_Y]"


def made(plan, collectives, *, flops=1.0, elements=1.0):
    """A program with the plan's local matmul, FLOPs and elements multiplied."""
    local = {"T": 2048, "F": 3584, "D": 4096}
    arrays_elements = 2048 * 3584 + 3584 * 4096 + 2048 * 4096
    multiply = Matmul(round(2 * math.prod(local.values()) * flops), elements=round(arrays_elements * elements))
    return Program("made", "v5e:4x4", 16, plan.mesh, Memory(0), Code(tuple(collectives), (multiply,)), {}, "2026-01-01")


def done(kind, axes, elements, group=4, **how):
    return Collective(kind, tuple(axes), group, "bf16", elements, 2.0 * elements, **how)


GATHER = done("all-gather", "X", 3584 * 4096)
SCATTER = done("reduce-scatter", "Y", 2048 * 4096, form="fused")


def test_the_order_of_collectives_and_a_fused_reduce_scatter_do_not_count():
    plan = plan_of(PRODUCT, TRAINING)
    assert [step.kind for step in plan.collectives] == ["all-gather", "reduce-scatter"]
    found = choice.compare(plan, made(plan, [SCATTER, GATHER]), SLICE)
    assert found.verdict == "same"
    assert found.program_s == pytest.approx(plan.seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("collectives", "verdict", "reason"),
    [
        (
            [GATHER, done("reduce-scatter", "Y", 2080 * 4096), done("collective-permute", "Y", 24 * 4096)],
            "dearer",
            "pads a reduce-scatter",
        ),
        ([GATHER, done("reduce-scatter", "Y", 2176 * 4096)], "dearer", "does the steps of the plan on other arrays or axes"),
        ([GATHER, done("reduce-scatter", "", 2048 * 4096, group=2)], "cheaper", "splits an axis, which no plan does"),
        ([GATHER, done("all-reduce", "", 2048 * 4096, group=8), SCATTER], "dearer", "splits an axis, which no plan does"),
        ([GATHER, done("all-to-all", "", 2048 * 4096, group=2), SCATTER], "dearer", "splits an axis, which no plan does"),
        ([done("all-gather", "Y", 3584 * 4096), SCATTER], "tie", "does the steps of the plan on other arrays or axes"),
        ([GATHER, SCATTER, done("collective-permute", "", 7, group=5)], "tie", "permutes more than the plan"),
        ([GATHER, SCATTER, done("collective-broadcast", "X", 2**20)], "dearer", "takes other steps"),
        ([GATHER, done("all-reduce", "Y", 2048 * 4096)], "dearer", "all-reduces where the plan reduce-scatters"),
        ([GATHER] * 2 + [SCATTER], "dearer", "takes other steps"),
        ([GATHER, SCATTER, done("all-gather", "X", 512, times=3)], "tie", "takes other steps"),
    ],
)
def test_made_programs(collectives, verdict, reason):
    plan = plan_of(PRODUCT, TRAINING)
    found = choice.compare(plan, made(plan, collectives), SLICE)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_a_loop_runs_its_collectives_as_often_as_it_runs():
    plan = plan_of(PRODUCT, TRAINING)
    times = [choice.compare(plan, made(plan, [dataclasses.replace(GATHER, times=n)]), SLICE).program_s for n in (1, 2, 5)]
    assert times[2] - times[1] == pytest.approx(3 * (times[1] - times[0]), rel=1e-9)
    assert times[1] - times[0] == pytest.approx(plan.collectives[0].seconds, rel=1e-9)
    once = made(plan, [])
    (multiply,) = once.matmuls
    twice = dataclasses.replace(once, code=Code((), (dataclasses.replace(multiply, times=2),)))
    assert choice.compare(plan, twice, SLICE).program_s == pytest.approx(2 * plan.compute_s, rel=1e-9)


def test_the_plans_collectives_around_a_slower_matmul_are_not_the_same():
    plan = plan_of(PRODUCT, TRAINING)
    found = choice.compare(plan, made(plan, [GATHER, SCATTER], elements=50), SLICE)
    assert (found.verdict, found.reason) == ("dearer", "reads larger arrays from HBM, where the plan moves parts of them first")


def test_less_than_a_microsecond_is_a_tie_and_a_group_of_one_is_nothing():
    plan = plan_of(PRODUCT, TRAINING)
    small = plan_of(PRODUCT, {"T": 128, "D": 128, "F": 128})
    assert small.seconds < choice.TIE_S < plan.seconds
    multiply = Matmul(2 * 32**3, elements=3 * 32**2)
    program = Program("made", "v5e:4x4", 16, small.mesh, Memory(0), Code((), (multiply,)), {}, "2026-01-01")
    found = choice.compare(small, program, SLICE)
    assert found.verdict == "tie"
    assert found.program_s < small.seconds
    alone = choice.compare(plan, made(plan, [GATHER, SCATTER, done("all-gather", "", 2**20, group=1)]), SLICE)
    assert alone.program_s == pytest.approx(plan.seconds, rel=1e-9)
    assert alone.reason == "takes other steps"


def test_an_all_to_all_in_a_part_of_an_axis_moves_less_than_a_gather():
    plan = plan_of(PRODUCT, TRAINING)
    moved_s = choice.compare(plan, made(plan, [done("all-to-all", "", 2**24, group=2)]), SLICE).program_s - plan.compute_s
    assert moved_s == pytest.approx(2**25 / 2 / 45e9, rel=1e-6)  # half of it, over one link of 45 GB/s
    moved_s = choice.compare(plan, made(plan, [done("all-to-all", "", 2**24, group=8)]), SLICE).program_s - plan.compute_s
    assert moved_s == pytest.approx(2**25 / 8 * 16 / 45e9, rel=1e-6)  # a line: 4 · 4 messages over the middle link


def test_a_part_of_an_axis_is_a_ring_only_where_the_torus_has_one_of_its_size():
    mesh, sizes = {"X": 16, "Y": 4}, {"T": 65536, "D": 8192, "F": 28672}
    plan = matmul_plan("A[T_X, D] · B[D, F_Y] -> C[T_X, F_Y]", sizes, mesh, "v5p:4x4x4")
    matmul_ = Matmul(2 * 4096 * 8192 * 7168, elements=4096 * 8192 + 8192 * 7168 + 4096 * 7168)

    def seconds(group):
        code = Code((done("all-gather", "", 2**24, group=group),), (matmul_,))
        program = Program("made", "v5p:4x4x4", 64, mesh, Memory(0), code, {}, "2026-01-01")
        return choice.compare(plan, program, "v5p:4x4x4").program_s - plan.compute_s

    moved = 2**25 / 90e9  # two bytes a number; 90 GB/s a link one way: hardware.chip("v5p")
    assert seconds(4) == pytest.approx(moved * 3 / 4 / 2, rel=1e-6)  # a ring: two links
    assert seconds(8) == pytest.approx(moved * 7 / 8, rel=1e-6)  # no axis of 8: a line


def test_the_objective_of_the_plan_counts():
    both = [plan_of(PRODUCT, TRAINING, objective=objective) for objective in ("sum", "max")]
    sums, longest = (choice.compare(plan, made(plan, [GATHER, SCATTER]), SLICE) for plan in both)
    assert (sums.plan_s, longest.plan_s) == (both[0].upper_s, both[1].lower_s)
    assert longest.program_s < sums.program_s


def test_latencies_are_those_of_the_plan():
    plan = plan_of(PRODUCT, TRAINING, start_s=1e-3)
    found = choice.compare(plan, made(plan, [GATHER, SCATTER]), SLICE, start_s=1e-3)
    assert found.verdict == "same"
    assert found.program_s == pytest.approx(plan.seconds, rel=1e-9)
    with pytest.raises(ValueError, match="the plan's collectives take"):
        choice.compare(plan, made(plan, [GATHER, SCATTER]), SLICE)


def test_it_refuses_other_prices_and_other_meshes():
    plan = plan_of(PRODUCT, TRAINING)
    program = made(plan, [GATHER, SCATTER])
    with pytest.raises(ValueError, match="give the slice, dtype and latencies"):
        choice.compare(plan, program, SLICE, dtype="int8")
    with pytest.raises(ValueError, match="give the slice, dtype and latencies"):
        choice.compare(plan, program, "v6e:4x4")
    with pytest.raises(ValueError, match=r"is for the axes \{'X': 2, 'Y': 8\}, the plan for \{'X': 4, 'Y': 4\}"):
        choice.compare(plan, dataclasses.replace(program, axes={"X": 2, "Y": 8}), SLICE)


def test_it_refuses_a_product_that_compilers_write_no_matmul_for():
    plan = matmul_plan("A[T_X] · B[D] -> C[T_X, D]", {"T": 64, "D": 64}, {"X": 16}, "v5p:4x2x2")
    with pytest.raises(ValueError, match=r"C\[T_X, D\] sums over nothing: a compiler writes no matmul"):
        choice.compare(plan, made(plan, []), "v5p:4x2x2")


def test_it_prints_both():
    plan = plan_of(PRODUCT, TRAINING)
    found = choice.compare(plan, made(plan, [GATHER, done("all-reduce", "", 2048 * 4096, group=2)]), SLICE)
    first, second, third = str(found).splitlines()
    assert first.startswith(f"{found.verdict}, ")
    assert first.endswith("splits an axis, which no plan does")
    assert second == "  plan: AG X 29.4 MB + RS Y 16.8 MB"
    assert third == "  program: AG X 29.4 MB + AR ?2 16.8 MB"


def test_prices_are_those_of_a_plan():
    plan = plan_of(PRODUCT, TRAINING)
    price = sharding.prices(SQUARE, SLICE)
    assert [price(step.kind, step.axes, step.bytes) for step in plan.collectives] == [s.seconds for s in plan.collectives]


def test_records_tell_programs_apart_that_differ_in_the_layout_of_the_result():
    """JAX folds a constraint on a result into the jit around it."""
    mesh = arrays.mesh(**SQUARE)
    found = []
    for result in ("C[T_X, D]", "C[T_XY, D]", "C[T_X, D_Y]"):
        product = f"A[T_X, F_Y] · B[F_Y, D_X] -> {result}"
        fn, specs = matmul.automatic(product, mesh), matmul.specs(product, mesh, "bf16", **TRAINING)
        found.append(str(fingerprint.signature("automatic", SLICE, mesh, fn, specs, None, (), {})))
    assert len(set(found)) == 3
