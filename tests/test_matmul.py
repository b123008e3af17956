"""Plans against compiled programs: the collectives are exactly the plan's, and what runs gives what NumPy gives.

All of it runs in one other process with 16 simulated devices: JAX fixes their number at its first use.
"""

import collections
import dataclasses
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import jax
import numpy as np
import pytest

from scaling_lib.sharding import Product, Sharding, cheapest, matmul_plan, parse_product
from scaling_lib.xla import arrays, matmul, simulate, tpu
from scaling_lib.xla.program import Program, memory

DEVICES, CASES = 16, 52  # cases of a chunk
FORMS = [
    "IJ,JK->IK", "IJ,JK->KI", "JI,KJ->IK", "BIJ,BJK->BIK", "BIJ,JK->BIK", "IJL,JLK->IK", "IJ,J->I", "I,K->IK", "IJ,IJ->I",
    "BSD,DNH->BSNH",
]  # fmt: skip
CHUNKS = [
    [{"X": 2, "Y": 4}, {"X": 8}],
    [{"X": 3, "Y": 5}, {"X": 1, "Y": 8}],
    [{"X": 4, "Y": 4}, {"X": 5}],
    [{"X": 2, "Y": 2, "Z": 2}],
    [{"X": 2, "Y": 3, "Z": 2}],
    [{"X": 2, "Y": 2, "Z": 4}],
    [{"X": 2, "Y": 1, "Z": 4}, {"X": 16}],
    [{"X": 5, "Y": 3}, {"X": 3}],
    [{"data": 3, "model": 4}, {"X": 2, "Y": 8}],
    [{"X": 2, "Y": 2}, {"X": 3, "Y": 1, "Z": 2}],
]
MESH = {"X": 3, "Y": 5}
KINDS = {"all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute", "slice"}


def test_the_chunks_share_no_mesh():
    """So cases that differ within each chunk all differ."""
    meshes = [tuple(mesh.items()) for chunk in CHUNKS for mesh in chunk]
    assert len(set(meshes)) == len(meshes)
    assert max(math.prod(mesh.values()) for chunk in CHUNKS for mesh in chunk) == DEVICES
    assert len(CHUNKS) * CASES >= 500


@pytest.fixture(scope="module")
def devices():
    """Runs a function of this file in a process that has the devices."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start) as process:
        yield lambda function, *given: process.submit(function, *given).result(timeout=300)


def _start():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    simulate.mesh(X=DEVICES)


def draw(seed, mesh):
    """A product, its sizes and invented prices; in a third of the cases permutes are almost free."""
    rng = random.Random(seed)
    form = rng.choice(FORMS)

    def array(name, dims):
        cuts = [[] for _ in dims]
        for axis in rng.sample(list(mesh), len(mesh)):
            if rng.random() < 0.7:
                rng.choice(cuts).append(axis)
        return Sharding(name, tuple(dims), tuple(map(tuple, cuts)))

    operands, result = form.split("->")
    product = Product(*map(array, "ABC", [*operands.split(","), result]))
    sizes = product.padded(dict.fromkeys(product.dims, 1), mesh)
    sizes = {dim: n * rng.choice([1, 2, 3, 5, 7]) for dim, n in sizes.items()}
    start, macs = rng.choice([0, 100, 10_000]), rng.choice([0.01, 1, 100])
    rate = {kind: rng.uniform(0.2, 2) for kind in sorted(KINDS)}
    if seed % 3 == 0:
        rate["permute"] = 0.01

    def price(kind, axes, array_bytes):
        return (start + array_bytes) * rate[kind] * (2 if kind == "all-reduce" else 1)

    return product, sizes, {"price": price, "compute": lambda local: math.prod(local.values()) / macs}


def run(plan, mesh, seed=0):
    """The program of a plan, and whether it gives what NumPy gives."""
    product, sizes = plan.product, plan.sizes
    lowered = matmul.planned(plan, mesh).lower(*matmul.specs(product, mesh, **sizes))
    compiled = lowered.compile({"xla_backend_optimization_level": 0})  # the same collectives in a third of the time
    program = read(compiled, mesh)
    rng = np.random.default_rng(seed)
    whole = [rng.integers(-3, 4, [sizes[dim] for dim in array.dims]).astype(np.float32) for array in (product.a, product.b)]
    placed = [arrays.place(mesh, str(array), value) for array, value in zip(product.arrays, whole, strict=False)]
    a, b, c = ("".join(array.dims) for array in product.arrays)
    return program, np.array_equal(np.asarray(compiled(*placed)), np.einsum(f"{a},{b}->{c}", *whole))


def read(compiled, mesh):
    held = memory(compiled.memory_analysis())
    about = {"target": f"cpu:{mesh.size}", "axes": dict(mesh.shape), "memory": held, "versions": {}, "date": ""}
    return Program.read(compiled.as_text(), name="planned", **about)


def check_chunk(chunk):
    """Wrong cases in words, the cases, and how often each kind of step occurs."""
    wrong, cases, kinds = [], set(), collections.Counter()
    seed = 1000 * chunk
    while len(cases) < CASES:
        seed += 1
        axes = CHUNKS[chunk][seed % len(CHUNKS[chunk])]
        product, sizes, prices = draw(seed, axes)
        plan, mesh = cheapest(product, sizes, axes, **prices, itemsize=4), simulate.mesh(**axes)
        case = str(product), tuple(sizes.items()), tuple(axes.items())
        if case in cases:
            continue
        cases.add(case)
        kinds.update(step.kind for step in plan.steps)
        program, right = run(plan, mesh, seed)
        wrong += [f"{case}: {found}\n{plan}" for found in matmul.differences(plan, program)]
        wrong += [] if right else [f"{case}: wrong numbers\n{plan}"]
        if len(cases) % 20 == 0:  # at the optimization level that readers use
            program = simulate.compile(matmul.planned(plan, mesh), *matmul.specs(product, mesh, **sizes))
            wrong += [f"{case}: optimized: {found}\n{plan}" for found in matmul.differences(plan, program)]
    return wrong, cases, kinds


@pytest.mark.parametrize("chunk", range(len(CHUNKS)))
def test_plans_are_what_the_compiler_makes_of_them(devices, chunk):
    wrong, cases, kinds = devices(check_chunk, chunk)
    assert not wrong, "\n\n".join(wrong)
    assert len(cases) == CASES
    assert {kind for kind in KINDS if kinds[kind] >= 3} == KINDS


def plan_for(text, axes, kinds=KINDS, **sizes):
    """The cheapest plan under prices by which bytes alone count."""
    product = parse_product(text, axes)
    sizes = sizes or dict.fromkeys(product.dims, 30)
    return cheapest(
        product, sizes, axes, price=lambda kind, on, array_bytes: array_bytes, compute=lambda local: 0, itemsize=4, kinds=kinds
    )


def with_step(plan, kind, change):
    """A plan with its one step of a kind changed, or left out where the change gives None."""
    assert [step.kind for step in plan.steps].count(kind) == 1
    steps = [change(step) if step.kind == kind else step for step in plan.steps]
    return dataclasses.replace(plan, steps=tuple(step for step in steps if step))


def backwards(step):
    return dataclasses.replace(step, axes=step.axes[::-1])


def exchanged(step):
    return dataclasses.replace(step, before=(step.after,), after=step.before[0])


def along_the_first(step):
    return dataclasses.replace(step, axes=step.axes[:1])


def counted_by_shard(step):
    return dataclasses.replace(step, out_bytes=step.in_bytes)


MISTAKES = {
    "all-gather, axes reversed": ("A[I, J_XY] · B[J, K] -> C[I, K]", "all-gather", backwards),
    "reduce-scatter, axes reversed": ("A[I, J_XY] · B[J_XY, K] -> C[I_XY, K]", "reduce-scatter", backwards),
    "all-to-all, axes reversed": ("A[I_XY, J] · B[J, K] -> C[I, K_XY]", "all-to-all", backwards),
    "all-reduce forgotten": ("A[I, J_X] · B[J_X, K] -> C[I, K]", "all-reduce", lambda step: None),
    "all-reduce along one axis of two": ("A[I, J_XY] · B[J_XY, K] -> C[I, K]", "all-reduce", along_the_first),
    "permute, pairs reversed": ("A[I_XY, J] · B[J, K] -> C[I_YX, K]", "permute", exchanged),
    "all-gather, bytes of the shard": ("A[I, J_X] · B[J, K] -> C[I, K]", "all-gather", counted_by_shard),
}


def check_mistake(name):
    """Found between the right plan and the wrong program; between the wrong plan and that; whether the numbers are right."""
    text, kind, change = MISTAKES[name]
    mesh = simulate.mesh(**MESH)
    right = plan_for(text, mesh.shape, [kind])
    program, numbers = run(right, mesh)
    assert not matmul.differences(right, program)
    assert numbers
    wrong = with_step(right, kind, change)
    program, numbers = run(wrong, mesh)
    return matmul.differences(right, program), matmul.differences(wrong, program), numbers


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_plan_is_found_out(devices, name):
    """By its collectives or by its numbers; neither alone is enough."""
    from_right, from_itself, numbers = devices(check_mistake, name)
    if name == "all-gather, bytes of the shard":
        assert from_itself == (
            "only the plan has all-gather over X, 1.2 kB (1,200 bytes)",
            "only the program has all-gather over X, 3.6 kB (3,600 bytes)",
        )
        assert numbers
    else:
        assert not from_itself
        assert not numbers
        assert bool(from_right) == (name != "permute, pairs reversed")


def check_backward(text):
    """What is wrong with the plans of the backward pass, and with JAX's own gradient of the planned product."""
    mesh = simulate.mesh(**MESH)
    plan = plan_for(text, mesh.shape, I=15, J=30, K=45)
    wrong = []
    for product in plan.product.backward():
        back = plan_for(str(product), mesh.shape, I=15, J=30, K=45)
        program, right = run(back, mesh)
        wrong += [*matmul.differences(back, program), *([] if right else [f"wrong numbers: {back}"])]
    forward = matmul.planned(plan, mesh)
    rng = np.random.default_rng(0)
    a, b, dc = (rng.integers(-3, 4, [plan.sizes[dim] for dim in array.dims]).astype("f4") for array in plan.product.arrays)
    da, db = jax.grad(lambda a, b: (forward(a, b) * dc).sum(), argnums=(0, 1))(a, b)
    # Not exact: the gradient of a result with copies is divided by their number, and summed again.
    wrong += [] if np.allclose(da, dc @ b.T, atol=1e-3) and np.allclose(db, a.T @ dc, atol=1e-3) else [f"wrong gradient: {plan}"]
    return wrong


@pytest.mark.parametrize(
    "text",
    [
        "A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]",
        "A[I_X, J_Y] · B[J, K_Y] -> C[I_X, K_Y]",
        "A[I, J_XY] · B[J_XY, K] -> C[I, K]",
        "A[I_X, J_Y] · B[J_X, K_Y] -> C[I_X, K_Y]",
    ],
)
def test_the_backward_pass_too(devices, text):
    assert not devices(check_backward, text)


def check_automatic(text):
    mesh = simulate.mesh(X=2, Y=4)
    a, b = np.arange(8 * 16, dtype="f4").reshape(8, 16) % 7, np.arange(16 * 24, dtype="f4").reshape(16, 24) % 5
    product = parse_product(text, mesh.shape)
    result = matmul.automatic(text, mesh)(arrays.place(mesh, str(product.a), a), arrays.place(mesh, str(product.b), b))
    assert result.sharding.is_equivalent_to(arrays.sharding(mesh, str(product.c)), 2)
    np.testing.assert_array_equal(result, a @ b)
    bare = arrays.mesh(X=2, Y=4)  # an abstract mesh compiles to the same program
    sizes = {"I": 8, "J": 16, "K": 24}
    made = [
        [simulate.compile(function, *matmul.specs(product, on, **sizes)).collectives for on in (mesh, bare)]
        for function in (matmul.automatic(product, mesh), matmul.automatic(product, bare))
    ]
    plan = matmul_plan(product, sizes, mesh.shape, "v5e:2x4", kinds=["all-reduce", "all-gather"])
    planned = simulate.compile(matmul.planned(plan, bare), *matmul.specs(product, bare, **sizes))
    return [programs == made[0] for programs in made], matmul.differences(plan, planned, dtype="f32"), made[0][0]


def test_the_compiler_alone_and_meshes_without_devices(devices):
    same, different, collectives = devices(check_automatic, "A[I, J_Y] · B[J_Y, K_X] -> C[I, K_X]")
    assert same == [True, True]
    assert not different
    assert [(one.kind, one.axes, one.array_bytes) for one in collectives] == [("all-reduce", ("Y",), 4 * 8 * 12)]


def test_a_plan_in_bf16_and_a_program_in_float32(devices):
    plan = plan_for("A[I, J_X] · B[J, K] -> C[I, K]", MESH, ["all-gather"])
    program, _ = devices(run_on, plan, MESH)
    halved = dataclasses.replace(plan, steps=tuple(map(in_bf16, plan.steps)))
    assert not matmul.differences(halved, program, dtype="f32")
    assert len(matmul.differences(halved, program)) == 2
    record = Program.from_json(program.to_json())
    assert not matmul.differences(plan, record)
    assert len(matmul.differences(halved, record)) == 2


def in_bf16(step):
    return dataclasses.replace(step, in_bytes=step.in_bytes / 2, out_bytes=step.out_bytes / 2)


def run_on(plan, axes):
    return run(plan, simulate.mesh(**axes))


def test_the_order_of_axes_counts_where_it_means_something(devices):
    """A record does not tell it; an all-reduce has none."""
    plan = plan_for("A[I, J_XY] · B[J, K] -> C[I, K]", MESH, ["all-gather"])
    program, _ = devices(run_on, plan, MESH)
    turned = with_step(plan, "all-gather", backwards)
    assert matmul.differences(turned, program) == (
        "only the plan has all-gather over Y, X, 3.6 kB (3,600 bytes)",
        "only the program has all-gather over X, Y, 3.6 kB (3,600 bytes)",
    )
    assert not matmul.differences(turned, Program.from_json(program.to_json()))
    plan = plan_for("A[I, J_XY] · B[J_XY, K] -> C[I, K]", MESH, ["all-reduce"])
    program, _ = devices(run_on, plan, MESH)
    assert not matmul.differences(with_step(plan, "all-reduce", backwards), program)


def several():
    """A plan with one all-reduce; programs with five in a loop, and with two that are combined."""
    mesh = simulate.mesh(**MESH)
    plan = plan_for("A[I, J_X] · B[J_X, K] -> C[I, K]", MESH, ["all-reduce"])
    once, given = matmul.planned(plan, mesh), matmul.specs(plan.product, mesh, I=30, J=30, K=30)
    looped = simulate.compile(lambda a, b: jax.lax.fori_loop(0, 5, lambda _, c: once(c, b), a), *given)
    both = jax.shard_map(
        lambda a, b: jax.lax.psum((a @ b, (a - 1) @ b), "X"),
        mesh=mesh, in_specs=tuple(one.sharding.spec for one in given), out_specs=jax.P(), check_vma=False,
    )  # fmt: skip
    return plan, looped, simulate.compile(both, *given)


def test_each_run_and_each_part_of_a_combined_all_reduce_counts(devices):
    plan, looped, combined = devices(several)
    assert [one.times for one in looped.collectives] == [5]
    assert [(one.kind, one.array_bytes) for one in combined.collectives] == [("all-reduce", 2 * 4 * 30 * 30)]
    for program, times in ((looped, 5), (combined, 2)):
        many = dataclasses.replace(plan, steps=(*plan.steps[:-1], *plan.steps[-1:] * times))
        assert not matmul.differences(many, program)
        assert matmul.differences(plan, program) == ("only the program has all-reduce over X, 3.6 kB (3,600 bytes)",) * (
            times - 1
        )


def test_a_plan_compiled_for_a_tpu():
    """What a mesh without devices specifies compiles for a slice; here the compiler keeps all that the plan has."""
    text, sizes, mesh = "A[I, J_X] · B[J_X, K_Y] -> C[I_X, K]", {"I": 4096, "J": 8192, "K": 2048}, arrays.mesh(X=4, Y=4)
    plan = matmul_plan(text, sizes, mesh.shape, "v5e:4x4")
    assert [step.kind for step in plan.collectives] == ["reduce-scatter", "all-gather"]
    program = tpu.compile(matmul.planned(plan, mesh), *matmul.specs(text, mesh, "bf16", **sizes), slice="v5e:4x4")
    assert not matmul.differences(plan, program)


def test_operands_without_values():
    mesh = arrays.mesh(X=3, Y=5)
    a, b = matmul.specs("A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]", mesh, I=12, J=7, K=35)
    assert (a.shape, b.shape, a.dtype) == ((12, 7), (7, 35), np.float32)
    assert (a.sharding.shard_shape(a.shape), b.sharding.shard_shape(b.shape)) == ((4, 7), (7, 7))
    assert matmul.specs("A[I] · B[I] -> C[]", mesh, "bf16", I=3)[0].dtype == "bfloat16"


PRODUCT = "A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda mesh: matmul.specs(PRODUCT, mesh, I=12, J=7), r"give a size for K"),
        (lambda mesh: matmul.specs(PRODUCT, mesh, I=12, J=7, K=35, L=3), r"'L', which is no dimension"),
        (lambda mesh: matmul.specs(PRODUCT, mesh, I=11, J=7, K=35), r"I=11 is no multiple of X=3; 12 would do"),
        (lambda mesh: matmul.specs("A[I_Z] · B[I] -> C[]", mesh, I=3), r"'Z' is no axis of the mesh, which has X=3, Y=5"),
        (lambda mesh: matmul.automatic("A[I, J] · B[J_X, K] -> C[I, K]{U_X}", mesh), r"holds partial sums"),
        (lambda mesh: matmul.planned(plan_for("A[I]{U_X} · B[I] -> C[I]", MESH), mesh), r"A\[I\]{U_X}' holds partial sums"),
        (lambda mesh: matmul.planned(plan_for(PRODUCT, {"X": 5, "Y": 3}), mesh), r"{'X': 3, 'Y': 5}, the plan {'X': 5, 'Y': 3}"),
    ],
)
def test_bad_input_says_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(arrays.mesh(**MESH))


def test_a_program_for_other_axes_is_refused(devices):
    program, _ = devices(run_on, plan_for(PRODUCT, MESH), MESH)
    with pytest.raises(ValueError, match=r"is for the axes {'X': 3, 'Y': 5}, the plan for {'X': 5, 'Y': 3}"):
        matmul.differences(plan_for(PRODUCT, {"X": 5, "Y": 3}), program)


SIXTY_FOUR = """
import numpy as np
from scaling_lib.sharding import matmul_plan
from scaling_lib.xla import arrays, matmul, simulate

mesh = simulate.mesh(X=8, Y=8)
text, sizes = "A[I_X, J_Y] · B[J_X, K_Y] -> C[I_X, K_Y]", dict(I=512, J=256, K=1024)
plan = matmul_plan(text, sizes, mesh.shape, "v5e:8x8")
assert len(plan.collectives) > 1
rng = np.random.default_rng(0)
a, b = rng.integers(-3, 4, (512, 256)).astype("f4"), rng.integers(-3, 4, (256, 1024)).astype("f4")
placed = arrays.place(mesh, "A[I_X, J_Y]", a), arrays.place(mesh, "B[J_X, K_Y]", b)
for function in (matmul.planned(plan, mesh), matmul.automatic(text, mesh)):
    for result in [function(*placed) for _ in range(10)]:
        np.testing.assert_array_equal(result, a @ b)
print("done")
"""


def test_64_devices_on_two_cores_do_not_wait_for_each_other():
    """Ten runs in flight at once; XLA warns about a rendezvous where some devices do not come to a collective."""
    done = subprocess.run([*two_cores(), sys.executable, "-c", SIXTY_FOUR], capture_output=True, text=True, timeout=240)
    assert done.stdout == "done\n", done.stderr
    assert "rendezvous" not in done.stderr.lower()


def two_cores():
    """A command in front that leaves a process two cores, where the system has it."""
    return ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))] if shutil.which("taskset") else []
