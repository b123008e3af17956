"""Sharded matmuls: the notation, and plans checked by running them and by a second search, under invented prices."""

import itertools
import math
import random
import time

import numpy as np
import pytest

from scaling_lib import collectives, hardware, roofline
from scaling_lib.sharding import Product, Sharding, cheapest, matmul_plan, parse_product, placed

MESH = {"X": 3, "Y": 5, "model": 2}


@pytest.mark.parametrize(
    ("text", "dims", "axes", "unreduced", "printed"),
    [
        ("A[I_X, J]", ("I", "J"), (("X",), ()), (), "A[I_X, J]"),
        ("[I,J_Y]", ("I", "J"), ((), ("Y",)), (), "[I, J_Y]"),
        (" W [ D_YX , F_model ] ", ("D", "F"), (("Y", "X"), ("model",)), (), "W[D_YX, F_model]"),
        ("W[D_X_model]{U_Y}", ("D",), (("X", "model"),), ("Y",), "W[D_X_model]{U_Y}"),
        ("W[D_Xmodel] { U_Y }", ("D",), (("X", "model"),), ("Y",), "W[D_X_model]{U_Y}"),
        ("tokens[batch, d2]{U_YX}", ("batch", "d2"), ((), ()), ("X", "Y"), "tokens[batch, d2]{U_XY}"),
        ("s[]", (), (), (), "s[]"),
    ],
)
def test_arrays_are_read_and_printed(text, dims, axes, unreduced, printed):
    read = Sharding.parse(text, MESH)
    assert (read.dims, read.axes, read.unreduced, str(read)) == (dims, axes, unreduced, printed)
    assert Sharding.parse(printed, list(MESH)) == read


def test_without_a_mesh_capital_letters_are_axes():
    assert Sharding.parse("A[I_XQ, J]{U_W}").axes == (("X", "Q"), ())
    with pytest.raises(ValueError, match=r"column 5: 'model' is no axis .*capital letters"):
        Sharding.parse("A[I_model]")


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("A[I_X, J", 9, "does not read as notation"),
        ("A I_X, J]", 3, "does not read as notation"),
        ("A[I_X, J] B", 11, "does not read as notation"),
        ("A[I_X, J{U_Y}]", 8, r"'J{U_Y}' is no dimension"),
        ("A[I_X, ]", 8, "'' is no dimension"),
        ("A[I, J_XZ]", 9, "'Z' is no axis of the mesh, which has X=3, Y=5, model=2"),
        ("A[I_X, J_YX]", 11, "mesh axis X twice"),
        ("A[I, J_X]{U_X}", 13, "mesh axis X twice"),
        ("A[I, J, I]", 9, "names dimension I twice"),
        ("A[I, J] · B[J, K]", 18, "one '->'"),
        ("A[I] -> A[I] -> A[I]", 14, "one '->'"),
        ("A[I, J] -> C[I, J]", 9, "two operands"),
        ("A[I, J] · B[J, K] * D[K, L] -> C[I, L]", 19, "two operands"),
        ("A[I, J] · B[J, K] -> C[I, L]", 27, "L is in no operand"),
        ("A[I, J_X] · B[J, K, KL] -> C[I, K]", 21, "KL is in one operand alone"),
        ("A[I, J] · B[J, K_Q] -> C[I, K]", 18, "'Q' is no axis"),
    ],
)
def test_errors_point_at_the_column(text, column, words):
    parse = parse_product if "·" in text or "->" in text else Sharding.parse
    with pytest.raises(ValueError, match=words) as raised:
        parse(text, MESH)
    first, shown, pointer = str(raised.value).split("\n")
    assert f", column {column}: " in first
    assert (shown.strip(), pointer.index("^")) == (text, 4 + column - 1)


def test_parts_made_by_hand_are_checked_too():
    with pytest.raises(ValueError, match="axis X twice"):
        Sharding("A", ("I", "J"), (("X",), ("X",)))
    with pytest.raises(ValueError, match="dimension I twice"):
        Sharding("A", ("I", "I"), ((), ()))
    with pytest.raises(ValueError, match="differ in length"):
        Sharding("A", ("I",), ())
    a = Sharding.parse("A[I, J]")
    with pytest.raises(ValueError, match="J is in one operand alone"):
        Product(a, Sharding.parse("B[I, K]"), Sharding.parse("C[I, K]"))


def test_what_a_device_holds():
    read, sizes = Sharding.parse("A[I_XY, J_model]", MESH), {"I": 45, "J": 14, "K": 3}
    assert read.local_shape(sizes, MESH) == (3, 7)
    assert read.local_bytes(sizes, MESH, "f32") == 84
    assert read.padded({"I": 46, "J": 14, "K": 3}, MESH) == {"I": 60, "J": 14, "K": 3}
    with pytest.raises(ValueError, match=r"I=48 is no multiple of X·Y=15; 60 would do, with 25 % more elements"):
        read.local_shape({"I": 48, "J": 14}, MESH)
    with pytest.raises(ValueError, match="give a size for J"):
        read.local_shape({"I": 45}, MESH)
    with pytest.raises(ValueError, match=r"'model' is no axis of the mesh, which has X=3, Y=5"):
        read.local_shape(sizes, {"X": 3, "Y": 5})


def test_products_are_read_and_padded():
    read = parse_product("A[B, I_X, J, L_Y] * W[B, J_model, L, K] → C[K_XY, B, I]", MESH)
    assert str(read) == "A[B, I_X, J, L_Y] · W[B, J_model, L, K] -> C[K_XY, B, I]"
    assert (read.dims, read.contracted) == (("B", "I", "J", "L", "K"), ("J", "L"))
    assert read.padded({"B": 1, "I": 4, "J": 3, "L": 7, "K": 15}, MESH) == {"B": 1, "I": 6, "J": 4, "L": 10, "K": 15}


def test_what_is_printed_reads_back():
    for seed in range(100):
        product, _, mesh, _ = random_case(seed)
        assert parse_product(str(product), mesh) == product
        assert parse_product(str(product).replace("·", "*").replace("->", "→").replace(", ", ","), list(mesh)) == product


def test_the_backward_pass_is_two_products():
    da, db = parse_product("A[I_X, J]{U_Z} · B[J, K_Y] -> C[I_X, K_Y]").backward()
    assert str(da) == "dC[I_X, K_Y] · B[J, K_Y] -> dA[I_X, J]"
    assert str(db) == "A[I_X, J] · dC[I_X, K_Y] -> dB[J, K_Y]"
    sizes, mesh = {"I": 4096, "J": 4096, "K": 4096}, {"X": 4, "Y": 4}
    reduced = [matmul_plan(product, sizes, mesh, "v5e:4x4", kinds=TEXTBOOK).collectives for product in (da, db)]
    assert [[(step.kind, step.axes) for step in steps] for steps in reduced] == [
        [("all-reduce", ("Y",))],
        [("all-reduce", ("X",))],
    ]


TEXTBOOK = ["all-gather", "all-reduce", "reduce-scatter"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]", []),
        ("A[I, J_X] · B[J, K_Y] -> C[I, K_Y]", [("all-gather", "a", ("X",))]),
        ("A[I, J_X] · B[J_X, K] -> C[I, K]{U_X}", []),
        ("A[I, J_X] · B[J_X, K] -> C[I, K]", [("all-reduce", "c", ("X",))]),
        ("A[I, J_X] · B[J_X, K] -> C[I_X, K]", [("reduce-scatter", "c", ("X",))]),
        ("A[I_X, J] · B[J, K_X] -> C[I_X, K]", [("all-gather", "b", ("X",))]),
        ("A[I, J]{U_X} · B[J, K] -> C[I, K_X]", [("reduce-scatter", "c", ("X",))]),
    ],
)
def test_the_textbook_cases_in_their_vocabulary(text, want):
    """Case 1 to 4 of "How To Scale Your Model", chapter 3, with those steps alone that it names."""
    plan = matmul_plan(text, {"I": 1024, "J": 4096, "K": 512}, {"X": 4, "Y": 4}, "v5e:4x4", kinds=TEXTBOOK)
    assert [(step.kind, step.array, step.axes) for step in plan.collectives] == want


FORMS = ["IJ,JK->IK", "IJ,JK->KI", "JI,KJ->IK", "BIJ,BJK->BIK", "BIJ,JK->BIK", "IJL,JLK->IK", "IJ,J->I", "I,K->IK", "IJ,IJ->I"]
MESHES = [{"X": 2, "Y": 3}, {"X": 2, "Y": 2}, {"X": 6}, {"X": 1, "Y": 4}, {"X": 2, "Y": 2, "Z": 2}, {"X": 2, "Y": 3, "Z": 2}]


def random_case(seed, meshes=MESHES):
    draw = random.Random(seed)
    mesh, form = draw.choice(meshes), draw.choice(FORMS)

    def array(name, dims, unreduced):
        cuts = [[] for _ in dims]
        sums = []
        for axis in draw.sample(list(mesh), len(mesh)):
            place = draw.randrange(-1, len(dims) + unreduced)
            (sums if place == len(dims) else cuts[place] if place >= 0 else []).append(axis)
        return Sharding(name, tuple(dims), tuple(map(tuple, cuts)), tuple(sums))

    left, result = form.split("->")
    arrays = [array(name, dims, draw.random() < 0.3) for name, dims in zip("AB", left.split(","), strict=True)]
    product = Product(*arrays, array("C", result, False))
    sizes = product.padded({dim: 1 for dim in product.dims}, mesh)
    sizes = {dim: n * draw.choice([1, 2, 3, 4]) for dim, n in sizes.items()}
    start, rate, macs = draw.choice([0, 1, 30]), {}, draw.choice([0.01, 1, 100])

    def price(kind, axes, array_bytes):
        key = kind, frozenset(axes)
        return start + array_bytes * rate.setdefault(key, random.Random(f"{seed}{kind}{sorted(axes)}").uniform(0.2, 2))

    return product, sizes, mesh, {"price": price, "compute": lambda local: math.prod(local.values()) / macs}


class Devices:
    """Real numbers on pretend devices: steps are run by their names, and end where they say or fail."""

    def __init__(self, mesh):
        self.mesh = mesh
        self.all = [dict(zip(mesh, at, strict=True)) for at in itertools.product(*map(range, mesh.values()))]

    def index(self, at, axes):
        return sum(at[axis] * math.prod(self.mesh[a] for a in axes[i + 1 :]) for i, axis in enumerate(axes))

    def parts(self, axes):
        return math.prod(self.mesh[axis] for axis in axes)

    def block(self, value, sharding, at):
        for dim, axes in enumerate(sharding.axes):
            value = np.split(value, self.parts(axes), dim)[self.index(at, axes)]
        return value

    def hold(self, value, sharding, rng):
        terms = [rng.integers(-9, 9, value.shape) for _ in range(self.parts(sharding.unreduced) - 1)]
        terms.append(value - sum(terms))
        return [self.block(terms[self.index(at, sharding.unreduced)], sharding, at) for at in self.all]

    def group(self, at, axes):
        """Numbers of the devices that differ from `at` along `axes` alone, in the order of `axes`."""
        return [
            self.all.index({**at, **dict(zip(axes, t, strict=True))})
            for t in itertools.product(*(range(self.mesh[a]) for a in axes))
        ]

    def run(self, step, held):
        (old,), new = step.before, step.after
        lost = [d for d, (was, now) in enumerate(zip(old.axes, new.axes, strict=True)) if len(now) < len(was)]
        gained = [d for d, (was, now) in enumerate(zip(old.axes, new.axes, strict=True)) if len(now) > len(was)]
        if step.kind == "permute":
            return self.permute(step, held)
        after = []
        for number, at in enumerate(self.all):
            group = self.group(at, step.axes)
            values, mine = [held[i] for i in group], group.index(number)
            if step.kind in ("all-reduce", "reduce-scatter"):
                value = sum(values)
            elif step.kind == "all-to-all":
                value = np.concatenate([np.split(v, len(group), gained[0])[mine] for v in values], lost[0])
            else:
                value = np.concatenate(values, lost[0]) if step.kind == "all-gather" else held[number]
            if step.kind in ("slice", "reduce-scatter"):
                value = np.split(value, len(group), gained[0])[mine]
            after.append(value)
        return after

    def permute(self, step, held):
        after = [None] * len(held)
        for at in self.all:
            group = self.group(at, step.axes)
            places = [
                [tuple(self.index(self.all[i], axes) for axes in s.axes) for i in group] for s in (*step.before, step.after)
            ]
            senders = sorted(range(len(group)), key=lambda i: places[0][i])
            takers = sorted(range(len(group)), key=lambda i: places[1][i])
            for sender, taker in zip(senders, takers, strict=True):  # each sends once and takes once
                assert places[0][sender] == places[1][taker]
                after[group[taker]] = held[group[sender]]
        return after


@pytest.mark.parametrize("chunk", range(6))
def test_plans_do_what_they_say(chunk):
    """Every step runs on real numbers, holds the bytes it says, and the result is the product, cut as wanted."""
    kinds = set()
    for seed in range(50 * chunk, 50 * chunk + 50):
        product, sizes, mesh, prices = random_case(seed)
        plan = cheapest(product, sizes, mesh, **prices, itemsize=8)
        devices, rng = Devices(mesh), np.random.default_rng(seed)
        whole = [rng.integers(-9, 9, [sizes[dim] for dim in array.dims]) for array in product.arrays[:2]]
        a, b, c = ("".join(array.dims) for array in product.arrays)
        at = dict(zip("ab", product.arrays, strict=False))
        held = {name: devices.hold(value, at[name], rng) for name, value in zip("ab", whole, strict=True)}
        at = {name: Sharding(s.name, s.dims, *dropped(s, mesh)) for name, s in at.items()}
        for step in plan.steps:
            if step.kind == "matmul":
                assert step.before == (at["a"], at["b"])
                assert sum(held[name][0].nbytes for name in "ab") == step.in_bytes
                held["c"] = [np.einsum(f"{a},{b}->{c}", x, y) for x, y in zip(held["a"], held["b"], strict=True)]
            else:
                assert step.before == (at[step.array],)
                assert held[step.array][0].nbytes == step.in_bytes
                held[step.array] = devices.run(step, held[step.array])
            at[step.array] = step.after
            assert {value.nbytes for value in held[step.array]} == {step.out_bytes}
            kinds.add(step.kind)
        want = np.einsum(f"{a},{b}->{c}", *whole)
        for value, device in zip(held["c"], devices.all, strict=True):
            np.testing.assert_array_equal(value, devices.block(want, product.c, device), err_msg=f"seed {seed}\n{plan}")
    assert len(kinds) == 7  # every kind of step has been run


def dropped(sharding, mesh):
    """Cuts and sums without axes of size 1."""
    cuts = tuple(tuple(axis for axis in axes if mesh[axis] > 1) for axes in sharding.axes)
    return cuts, tuple(axis for axis in sharding.unreduced if mesh[axis] > 1)


def all_layouts(array, sizes, mesh):
    """(cuts, sums), found by putting the axes in every order into every place."""
    found = set()
    for order in itertools.permutations(mesh):
        for places in itertools.product([None, "sum", *array.dims], repeat=len(order)):
            cuts = tuple(tuple(a for a, p in zip(order, places, strict=True) if p == dim) for dim in array.dims)
            sums = tuple(sorted(a for a, p in zip(order, places, strict=True) if p == "sum"))
            if all(sizes[dim] % math.prod(mesh[a] for a in cut) == 0 for dim, cut in zip(array.dims, cuts, strict=True)):
                found.add((cuts, sums))
    return sorted(found)


def one_step(old, new, mesh):
    """The kinds and axes of a single step from one layout to another, by looking at both."""
    (was, summed), (now, left) = old, new
    differ = [(w, n) for w, n in zip(was, now, strict=True) if w != n]
    added = [(n[len(w) :]) for w, n in differ if n[: len(w)] == w]
    removed = [(w[len(n) :]) for w, n in differ if w[: len(n)] == n]
    gone = tuple(axis for axis in summed if axis not in left)
    if gone and set(left) < set(summed):
        if not differ:
            yield "all-reduce", gone
        if len(differ) == 1 and added and sorted(added[0]) == sorted(gone):
            yield "reduce-scatter", added[0]
    if summed != left or not differ:
        return
    if len(differ) == 1 and removed:
        yield "all-gather", removed[0]
    if len(differ) == 1 and added and len(added[0]) == 1:
        yield "slice", added[0]
    if len(differ) == 2 and len(added) == len(removed) == 1 and added == removed:
        yield "all-to-all", added[0]
    local = [[math.prod(mesh[a] for a in cut) for cut in cuts] for cuts in (was, now)]
    if local[0] == local[1]:
        yield "permute", tuple({a: 0 for pair in differ for cut in pair for a in cut})


def all_distances(array, sizes, mesh, price):
    """Seconds between every two layouts, by Floyd and Warshall."""
    layouts = all_layouts(array, sizes, mesh)
    held = {s: 2 * math.prod(sizes[d] for d in array.dims) / math.prod(mesh[a] for cut in s[0] for a in cut) for s in layouts}
    seconds = {pair: 0.0 if pair[0] == pair[1] else math.inf for pair in itertools.product(layouts, repeat=2)}
    for old, new in seconds:
        for kind, axes in one_step(old, new, mesh):
            cost = 0.0 if kind == "slice" else price(kind, axes, max(held[old], held[new]))
            seconds[old, new] = min(seconds[old, new], cost)
    for middle, old, new in itertools.product(layouts, repeat=3):
        seconds[old, new] = min(seconds[old, new], seconds[old, middle] + seconds[middle, new])
    return layouts, seconds


@pytest.mark.parametrize("objective", ["sum", "max"])
def test_no_other_plan_is_cheaper(objective):
    """Against a second search that looks at all triples of layouts and knows nothing of the first."""
    checked = 0
    for seed in range(80):
        product, sizes, mesh, prices = random_case(seed, [{"X": 2, "Y": 3}, {"X": 2, "Y": 2}, {"X": 6}])
        if len(product.dims) > 3:
            continue
        (las, da), (lbs, db), (lcs, dc) = (all_distances(array, sizes, mesh, prices["price"]) for array in product.arrays)
        starts = [dropped(array, mesh) for array in product.arrays]
        best = math.inf
        for a, b, c in itertools.product(las, lbs, lcs):
            cuts = [dict(zip(array.dims, s[0], strict=True)) for array, s in zip(product.arrays, (a, b, c), strict=True)]
            at = {**cuts[0], **cuts[1]}
            if any(cut[dim] != at[dim] for cut in cuts for dim in cut):
                continue
            used = [axis for cut in at.values() for axis in cut] + [*a[1], *b[1]]
            made = {axis for dim in product.contracted for axis in at[dim]}
            if len(used) > len(set(used)) or set(c[1]) != made | set(a[1]) | set(b[1]):
                continue
            communication = da[starts[0], a] + db[starts[1], b] + dc[c, starts[2]]
            compute = prices["compute"]({dim: sizes[dim] / math.prod(mesh[x] for x in at[dim]) for dim in at})
            best = min(best, communication + compute if objective == "sum" else max(communication, compute))
        plan = cheapest(product, sizes, mesh, **prices, objective=objective)
        assert plan.seconds == pytest.approx(best, rel=1e-12), f"seed {seed}\n{plan}"
        checked += 1
    assert checked >= 50


SIZES = {"I": 8192, "J": 4096, "K": 2048}


def test_prices_are_those_of_the_slice():
    """X is one axis of the slice, a line of 4; the local matmul is I × J/4 × K/4."""
    slice = hardware.slice_of("v5e:4x4")
    plan = matmul_plan("A[I, J_X] · B[J_X, K_Y] -> C[I, K_Y]", SIZES, {"X": 4, "Y": 4}, slice, kinds=["all-reduce"])
    (step,) = plan.collectives
    result = 8192 * 512 * 2
    assert (step.bytes, step.in_bytes, step.out_bytes) == (result, result, result)
    assert step.seconds == collectives.all_reduce(result, collectives.over(slice, 0)).seconds
    assert plan.compute_s == roofline.bound(roofline.matmul(8192, 1024, 512), slice.chip).lower_s
    assert plan.lower_s == max(step.seconds, plan.compute_s)
    assert plan.upper_s == plan.seconds == step.seconds + plan.compute_s


def test_several_networks_add_up():
    """Two slices over DCN: gathered over DCN first, a sixteenth at a time, then inside the slice."""
    slice = hardware.slice_of("v5e:4x4", count=2)
    texts, mesh = {"all-gather": "A[I_X, J] · B[J, K] -> C[I, K]", "all-to-all": "A[I_X, J] · B[J, K] -> C[I, K_X]"}, {"X": 32}
    inner, outer = collectives.over(slice, 0, 1), collectives.across(slice)
    want = {
        "all-gather": lambda v: (collectives.all_gather(v / 16, outer) + collectives.all_gather(v, inner)).seconds,
        "all-to-all": lambda v: (collectives.all_to_all(v, inner) + collectives.all_to_all(v, outer)).seconds,
    }
    for kind, text in texts.items():
        (step,) = matmul_plan(text, SIZES, mesh, slice, kinds=[kind]).collectives
        assert step.seconds == pytest.approx(want[kind](step.bytes), rel=1e-12)
    (step,) = matmul_plan("A[I, J_X] · B[J_X, K] -> C[I, K]", SIZES, mesh, slice, kinds=["all-reduce"]).collectives
    scatter, total = collectives.reduce_scatter(step.bytes, inner), collectives.all_reduce(step.bytes / 16, outer)
    assert step.seconds == pytest.approx((2 * scatter + total).seconds, rel=1e-12)


def test_permutes():
    text = "A[I_XY, J] · B[J, K] -> C[I_YX, K]"
    tpu = matmul_plan(text, SIZES, {"X": 4, "Y": 4}, "v5e:4x4", kinds=["permute"])
    (step,) = tpu.collectives
    assert (step.kind, step.axes) == ("permute", ("X", "Y"))
    assert step.seconds == 2 * collectives.all_to_all(step.bytes, collectives.over(hardware.slice_of("v5e:4x4"))).seconds
    text = "A[I_X, J] · B[J, K] -> C[I_Y, K]"
    (step,) = matmul_plan(text, SIZES, {"X": 8, "Y": 8}, "h100:8x8", kinds=["permute"]).collectives
    node, between = (collectives.over(hardware.slice_of("h100:8x8"), axis) for axis in (0, 1))
    assert step.seconds == sum(collectives.permute(step.bytes, group).seconds for group in (node, between))


def test_meshes_lie_on_whole_axes():
    v5p, two = hardware.slice_of("v5p:4x4x8"), hardware.slice_of("v5e:4x4", count=2)
    assert placed({"X": 8, "Y": 16}, v5p) == {"X": (2,), "Y": (0, 1)}
    assert placed({"X": 4, "one": 1, "Y": 32}, v5p) == {"X": (0,), "one": (), "Y": (1, 2)}
    assert placed({"data": 2, "model": 16}, two) == {"data": (-1,), "model": (0, 1)}
    assert placed({"X": 8, "Y": 4}, hardware.slice_of("h100:8x4")) == {"X": (0,), "Y": (1,)}
    with pytest.raises(ValueError, match=r"'X': 2, 'Y': 8.* does not lie on v5e:4x4, whose axes have 4 and 4 chips.*16 chips"):
        placed({"X": 2, "Y": 8}, hardware.slice_of("v5e:4x4"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes": {"I": 8192, "J": 4096}}, "give a size for K"),
        ({"sizes": {**SIZES, "L": 3}}, "sizes has 'L', which is no dimension"),
        ({"sizes": {**SIZES, "I": 8190}}, r"A\[I_X, J\]: I=8190 is no multiple of X=4; 8192 would do, with 0.0244 % more"),
        ({"sizes": {**SIZES, "J": 0}}, "J=0"),
        ({"mesh": {"X": 4, "Y": 0}}, "Y=0"),
        ({"mesh": {"X": 16}}, "'Y' is no axis of the mesh, which has X=16"),
        ({"product": "A[I, J] · B[J, K] -> C[I, K]{U_X}", "kinds": ["all-gather"]}, "no steps lead to the result"),
        ({"objective": "least"}, "objective='least'"),
        ({"kinds": ["gather"]}, "kinds has 'gather'; known: all-gather"),
        ({"dtype": "f8"}, "dtype='f8' is unknown"),
        ({"slice": "v5e"}, "does not read as chip:shape"),
        ({"slice": None}, "slice=None does not read as chip:shape"),
        ({"product": None}, "'None', column 5: a product has one"),
    ],
)
def test_bad_input_says_what_is_wrong(change, words):
    good = {"product": "A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]", "sizes": SIZES, "mesh": {"X": 4, "Y": 4}, "slice": "v5e:4x4"}
    with pytest.raises(ValueError, match=words):
        matmul_plan(**{**good, **change})


def test_a_product_without_a_sum_needs_the_rate_of_the_vector_unit():
    outer = "A[I_X] · B[K] -> C[I_X, K]", {"I": 64, "K": 32}
    with pytest.raises(ValueError, match=r"sums over nothing, so the vector unit multiplies: .* v5e; known for: v5p\. Take such"):
        matmul_plan(*outer, {"X": 16}, "v5e:4x4")
    plan = matmul_plan(*outer, {"X": 16}, "v5p:4x2x2")
    hbm_s = 2 * (4 + 32 + 4 * 32) / hardware.chip("v5p").hbm_bytes_per_s
    assert plan.seconds == pytest.approx(max(hbm_s, 4 * 32 / hardware.chip("v5p").vpu_flops_per_s))


@pytest.mark.parametrize(
    ("reduce_s", "gather_s", "words"),
    [(1, 2, "takes 4 s, 4 times as long."), (1, 0.5005, "takes 1 s, as long."), (0, 1, "takes 2 s."), (0, 0, "0 s, as long.")],
)
def test_the_runner_up_takes_so_many_times_as_long(reduce_s, gather_s, words):
    seconds = {"all-reduce": reduce_s, "all-gather": gather_s}  # one of the result, or two of the operands
    product, sizes = parse_product("A[I, J_X] · B[J_X, K] -> C[I, K]"), {"I": 6, "J": 10, "K": 14}
    plan = cheapest(product, sizes, {"X": 2}, price=lambda kind, *_: seconds[kind], compute=lambda _: 0.0, kinds=[*seconds])
    assert plan.explain().endswith(words)


def test_sums_of_both_operands_over_one_axis_are_not_multiplied():
    """The sum of products is not the product of sums."""
    plan = matmul_plan("A[I, J]{U_X} · B[J, K]{U_X} -> C[I, K]{U_X}", SIZES, {"X": 4, "Y": 4}, "v5e:4x4")
    a, b = plan.matmul.before
    assert not set(a.unreduced) & set(b.unreduced)
    assert {step.array for step in plan.collectives} & {"a", "b"}


def test_a_plan_explains_itself():
    plan = matmul_plan("A[I, J_X] · B[J, K_Y] -> C[I_X, K_Y]", SIZES, {"X": 4, "Y": 4}, "v5e:4x4")
    lines = plan.explain().splitlines()
    assert lines[0] == str(plan.product)
    assert len(lines) == 1 + len(plan.steps) + 2
    for line, step in zip(lines[1:], plan.steps, strict=False):
        assert str(step) in line
    assert plan.runner_up is not None
    assert plan.runner_up.seconds >= plan.seconds
    ratio = f"{plan.runner_up.seconds / plan.seconds:.3g} times as long"
    assert lines[-1].startswith("Runner-up: ")
    assert ratio in lines[-1]
    alone = matmul_plan("A[I] · B[I] -> C[]", {"I": 64}, {"X": 1}, "v5p:1x1x1")
    assert "No plan with other collectives" in alone.explain()
    assert "matmul: A[I] · B[I] -> C[]" in str(alone)


@pytest.mark.parametrize(
    ("text", "kinds", "number", "reason"),
    [
        ("A[I, J_X] · B[J, K_Y] -> C[I, K_Y]", TEXTBOOK, 1, "J is summed over, and B is not cut alike: B[J, K_Y]."),
        (
            "A[I, J_X] · B[J_X, K] -> C[I, K]",
            TEXTBOOK,
            1,
            "Each device multiplies what it holds; along X it has a part of the sum.",
        ),
        (
            "A[I, J_X] · B[J_X, K] -> C[I_X, K]",
            TEXTBOOK,
            2,
            "The parts of the sum over X are added, and each device gets a part of I.",
        ),
        ("A[I, J_X] · B[J_X, K] -> C[I, K]", TEXTBOOK, 2, "and each device gets the sum of what it holds."),
        ("A[I_X, J] · B[J, K_X] -> C[I_X, K]", TEXTBOOK, 1, "K is not cut by X in the matmul; I of A is."),
        ("A[I_X, J]{U_Y} · B[J, K_Y] -> C[I_X, K_Y]", TEXTBOOK, 1, "A arrives as partial sums over Y, and K of B is cut by Y."),
        ("A[I, J] · B[J, K_X] -> C[I_X, K]", ["all-to-all"], 2, "C is wanted with X on I, not on K."),
        ("A[I, J] · B[J, K] -> C[I_X, K]", ["slice"], 1, "Copies along X would do the same work; each device keeps a part of I."),
        (
            "A[I, J] · B[J, K] -> C[I, K]{U_X}",
            ["slice"],
            1,
            "Copies along X would do the same work; each device keeps a part of J.",
        ),
        ("A[I, J] · B[J_X, K] -> C[I, K]", [*TEXTBOOK, "slice"], 1, "J of B is cut by X; each device keeps the part that goes"),
        ("A[I_X, J] · B[J, K_XY] -> C[I_X, K]", TEXTBOOK, 1, "K is not cut by X and Y in the matmul; I of A is cut by X."),
        ("A[I_X, J] · B[J, K] -> C[I, K_X]", ["all-to-all"], 2, "C is wanted with X on K, not on I."),
        ("A[I_XY, J] · B[J, K] -> C[I_YX, K]", ["permute"], 2, "The parts have the right size for C[I_YX, K]"),
    ],
)
def test_reasons(text, kinds, number, reason):
    plan = matmul_plan(text, {"I": 512, "J": 8192, "K": 256}, {"X": 4, "Y": 4}, "v5e:4x4", kinds=kinds)
    assert reason in plan.explain().splitlines()[number]


def test_every_step_is_explained():
    """Random plans use all kinds of step on operands and results; each has a reason that ends as a sentence."""
    told = set()
    for seed in range(300):
        product, sizes, mesh, prices = random_case(seed)
        plan = cheapest(product, sizes, mesh, **prices)
        for number, (step, line) in enumerate(zip(plan.steps, plan.explain().splitlines()[1:], strict=False), 1):
            reason = line.removeprefix(f"{number}. {step}. ")
            assert reason != line
            assert reason.endswith(".")
            assert "  " not in reason
            told.add((step.kind, step.array == "c"))
    assert len(told) == 2 * 6 + 1


def test_a_plan_with_four_dimensions_on_three_axes_does_not_hang():
    """A guard; `make bench` has the speeds."""
    text = "A[B_X, S, D_Y] · T[D_X, H_Z, K] -> C[B, S_X, H_YZ, K]"
    start = time.process_time()
    matmul_plan(text, dict.fromkeys(parse_product(text).dims, 1024), {"X": 4, "Y": 4, "Z": 4}, "v5p:4x4x4")
    assert time.process_time() - start < 5
