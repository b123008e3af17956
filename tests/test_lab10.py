"""Lab 10a played: its solutions broken on purpose, one by one, and what the checks say of each."""

import ast
import re
from functools import cache
from pathlib import Path

import jax
import pytest
from jax import lax
from jax import numpy as jnp

from scaling_lib.xla.manual.collective_matmul import gather_matmul, matmul_scatter
from scaling_lib.xla.timeline import Timeline
from tests.cells import assert_checks_a_number, at, changed, code_cells, how_many_lack, run, shown

LAB = Path(__file__).parents[1] / "labs/10a-jax.md"
ON_TPUS = r"tpu\.compile\(|schedules\[|on_chip"

pytestmark = pytest.mark.usefixtures("compiles_quickly")


@cache
def cells():
    return code_cells(LAB)


@cache
def played():
    """What all cells define that are not for TPUs; solutions are defined, and not settled."""
    plain = [source for source in code_cells(LAB, ON_TPUS) if not source.startswith("loop, written_out")]
    return run(re.sub(r"(?ms)^settle\(.*", "", source) for source in plain)


def answer(solution, changes=()):
    """A solution of the lab, with other words in place of some."""
    (source,) = (source for source in cells() if re.search(rf"^(def )?{solution}\b", source, re.M) and "\nsettle(" in source)
    (node,) = (
        node
        for node in ast.parse(source).body
        if solution in (getattr(node, "name", ""), *(ast.unparse(target) for target in getattr(node, "targets", ())))
    )
    (text,) = changed([ast.get_source_segment(source, node)], dict(changes))
    return run([text], played())[solution]


def said(puzzle, given):
    verdict = played()[puzzle].check(given)
    return verdict.ok, verdict.words


SOLUTIONS = {
    "means": "block_means",
    "mending": "mended",
    "halo": "with_halo",
    "gradients": "of_the_mean",
    "adding": "ring_all_reduce",
    "gathering": "gather_matmul",
    "scattering": "matmul_scatter",
    "attending": "merge",
    "dispatching": "dispatch",
    "keeping": "write_in_place",
    "looping": "scanned",
    "fusing": "kernel",
}

BROKEN = [
    ("means", {".mean((1, 3))": ".sum((1, 3))"}, "Not yet: those are sums."),
    ("means", {"(X, i, Y, j)": "(i, X, j, Y)", "(1, 3)": "(0, 2)"}, "Not yet: this takes every X-th row"),
    ("means", {"(X, i, Y, j).mean((1, 3))": "(X, Y, -1).mean(2)"}, "Not yet: each of those is the mean of a run of numbers"),
    ("means", {".mean((1, 3))": ".mean((1, 3)).T"},
     "Not yet: the whole result is to have shape (2, 4), and this is an array of shape (4, 2)."),
    ("means", {"(1, 3)": "1"}, "Not yet: the whole result is to have shape (2, 4), and this is an array of shape (2, 4, 5)."),
    ("mending", {'P(("X", "Y"), None)': 'P(("Y", "X"), None)'}, "Not yet: the numbers are right, but devices hold P(('Y', 'X')"),
    ("mending", {', out_sharding=P(("X", "Y"), None)': ""}, "Not yet, it does not run: Contracting dimensions are sharded"),
    ("mending", {"jax.nn.relu(x @ w)": "x @ w"},
     "Not yet: device 0 of 8 has wrong numbers in all rows, where sizes are I 24, J 10, K 12."),
    ("halo", {"[-1:], \"X\", ahead(n))": "[-1:], \"X\", ahead(n, -1))", "[:1], \"X\", ahead(n, -1))": "[:1], \"X\", ahead(n))"},
     "Not yet: the edges come from the other neighbor."),
    ("halo", {"[-1:], \"X\", ahead(n))": "[-1:], \"X\", ahead(n)[:-1])", "ahead(n, -1)": "ahead(n, -1)[1:]"},
     "Not yet: the first and the last device are neighbors too."),
    ("halo", {"x[-1:]": "x[:1]", 'x[:1], "X", ahead(n, -1)': 'x[-1:], "X", ahead(n, -1)'},
     "Not yet: a neighbor's row that is not next to the part came"),
    ("halo", {"2 * padded[:-2] - 3 * padded[2:]": "2 * padded[2:] - 3 * padded[:-2]"},
     "Not yet: the row before and the row after are exchanged."),
    ("halo", {"- 3 * padded": "+ 3 * padded"},
     "Not yet: device 0 of 8 has wrong numbers in all rows, where sizes are I 32, J 7."),
    ("halo", {'lax.ppermute(x[-1:], "X", ahead(n))': 'lax.all_gather(x[-1], "X")[lax.axis_index("X") - 1][None]'},
     "Right numbers, but 1 all-gather: a device needs one row of each neighbor."),
    ("halo", {'n = lax.axis_size("X")': "n = 8"}, "Not yet, it does not run: "),
    ("gradients", {'lax.pmean(own_loss(w, x, y), "X")': "own_loss(w, x, y)"},
     "Not yet: that is the sum of all devices' gradients"),
    ("gradients", {"return jax.grad(": 'return lax.psum(jax.grad(',
                   'lax.pmean(own_loss(w, x, y), "X"))(w)': 'own_loss(w, x, y))(w), "X")'},
     "Not yet: summed over devices twice"),
    ("gradients", {'"X"))(w)': '"X"))(w) / lax.axis_size("X")'}, "Not yet: all numbers are 8 times too small."),
    ("gradients", {"return jax.grad(": 'return lax.pmean(jax.grad(', '"X"))(w)': '"X"))(w), "X")'},
     "Right numbers, but 2 all-reduces: the gradient of w is a sum over devices before you touch it"),
    ("gradients", {'lax.pmean(own_loss(w, x, y), "X"))(w)': "own_loss(w, x, y))(w) / 8"},
     "Not yet: device 0 of 5 has wrong numbers in all rows, where sizes are I 35, J 6."),
    ("adding", {"range(2, n + 1)": "range(2, n)"}, "Not yet: "),
    ("adding", {"for turn in range(n):": "for turn in range(n - 1):"},
     "Not yet: device 0 of 8 has zeros in rows 6 to 11 of 48, where sizes are N 8, I 48, J 5."),
    ("adding", {"own(me - 1)": "own(me)", "own(me - turn)": "own(me - turn + 1)"},
     "Not yet: each part of the sum stands one place too early."),
    ("adding", {"own(me - 1)": "own(me - 2)", "own(me - turn)": "own(me - turn - 1)"},
     "Not yet: each part of the sum stands one place too far."),
    ("adding", {"((me - turn)": "((me + turn)"}, "Not yet: in the second round parts come from the device before"),
    ("gathering", {"me - turn": "me * turn", "me + turn": "me - turn", "me * turn": "me + turn"},
     "Not yet: parts that come from one side stand where"),
    ("gathering", {"(n - 1) // 2": "n // 2"}, "Right numbers, but 8 collective-permutes: 7 will do."),
    ("gathering", {"put(y, before, me - turn)": "put(y, before, me - turn) if 2 * turn < n else y"},
     "Not yet: device 0 of 8 has zeros in rows 24 to 29 of 48, "),
    ("gathering", {"lax.ppermute(before, \"X\", ahead(n))": "lax.ppermute(x, \"X\", ahead(n, turn))"},
     "Right numbers, but a permute goes over 4 links, and loads each"),
    ("scattering", {"    return total": "    return product(me)"}, "Not yet: that is the device's own product"),
    ("scattering", {"total = product(me - 1)": "total = product(me)", "me - turn)": "me - turn + 1)"},
     "Not yet: each sum ends one device too early: where must it start?"),
    ("scattering", {"total = product(me - 1)": "total = product(me - 2)", "me - turn)": "me - turn - 1)"},
     "Not yet: each sum ends one device too far: where must it start?"),
    ("scattering", {"+ product(me - turn)": "+ product(me - turn) * (turn < n)"},
     "Not yet: the device that keeps a sum has not added"),
    ("attending", {"total * shrink": "total"}, "Not yet: the sum of weights is not rescaled"),
    ("attending", {"context * shrink[:, None]": "context"}, "Not yet: the sum of values is not rescaled"),
    ("attending", {"total * shrink": "total", "context * shrink[:, None]": "context"}, "Not yet: neither sum is rescaled"),
    ("attending", {"jnp.maximum(most, scores.max(-1))": "scores.max(-1)"}, "Not yet: "),
    ("attending", {"scores - larger[:, None]": "scores - larger"}, "Not yet: infinite or undefined numbers: no exponent may be"),
    ("attending", {"context * shrink[:, None]": "context * shrink"},
     "Not yet, it does not run: Incompatible shapes for broadcasting"),
    ("attending", {"return larger": "return most"}, "Not yet: only the last block counts"),
    ("attending", {"jnp.exp(scores - larger[:, None])": "jnp.exp(scores - scores.max(-1)[:, None])"},
     "Not yet: the sums of this block are relative to its own"),
    ("attending", {"context * shrink[:, None] + weights @ values":
                   "((context * (total - weights.sum(-1))[:, None] + weights @ values) / total[:, None])"},
     "Not yet: the values are divided by the weights in each turn"),
    ("attending", {"return larger, total": "return larger, context"},
     "Not yet, it does not run: Incompatible shapes for broadcasting"),
    ("dispatching", {"expert(arrived)": "arrived"}, "Not yet: tokens came back as they went."),
    ("dispatching", {"expert(arrived)": "arrived", "set(tokens)": "set(expert(tokens))"},
     "Not yet: every token met the expert of its"),
    ("dispatching", {"tokens.shape)": "tokens[:3].shape)"}, "Not yet: "),
    ("dispatching", {'lax.all_to_all(expert(arrived), "X", 0, 0)': "expert(arrived)"},
     "Not yet: results stay where their expert is: send them back."),
    ("dispatching", {"*tokens.shape)": "tokens.shape[1])", ".at[chosen, rows]": ".at[chosen]",
                     "returned[chosen, rows]": "returned[chosen]"},
     "Not yet: tokens of a device that want one expert have one place"),
    ("dispatching", {'lax.all_to_all(boxes, "X", 0, 0)':
                     'lax.all_gather(boxes, "X")[:, lax.axis_index("X")]'}, "Right numbers, but 1 all-gather: every device gets"),
    ("keeping", {"donate_argnums=0": "donate_argnums=()"}, "Right numbers, but a device allocates 768 B anew"),
    ("keeping", {"(write,": "(lambda cache, row, at: cache.at[at].add(row),"}, "Not yet: the row is added to the old one."),
    ("keeping", {"(write,": "(lambda cache, row, at: cache,"}, "Not yet: that is the old cache"),
    ("looping", {"(layer(x, w), None), x, weights)[0]": "(layer(x, w),) * 2, x, weights)[1][-1]"},
     "Right numbers, but the results of all layers are kept"),
    ("looping", {"x, weights)[0]": "x, weights)[1]", "(layer(x, w), None)": "(layer(x, w),) * 2"},
     "Not yet: the whole result is to have shape (16, 6), and this is an array of shape (12, 16, 6)."),
    ("looping", {"x, weights)[0]": "x, weights, reverse=True)[0]"}, "Not yet: the last layer comes first."),
    ("looping", {"x, weights)[0]": "x, weights[:-1])[0]"}, "Not yet: the last layer is missing."),
    ("looping", {"x, weights)[0]": "x, weights[1:])[0]"}, "Not yet: the first layer is missing."),
    ("looping", {"layer(x, w), None": "layer(x, weights[0]), None"}, "Not yet: every layer has the weights of the first."),
    ("looping", {"x, weights)[0]": "x, weights, unroll=True)[0]"}, "Right numbers, but the program has 12 matmuls"),
    ("looping", {"x, weights)[0]": "x, weights)"},
     "Not yet: the whole result is to have shape (16, 6), and this is a tuple."),
    ("fusing", {"a[...] @ b[...]": "a[...] @ b[...] + bias[...]", "total[...] + bias[...]": "total[...]"},
     "Not yet: the bias is added in every step."),
    ("fusing", {"jax.nn.silu(total[...] + bias[...])": "jax.nn.silu(total[...]) + bias[...]"}, "Not yet: the bias comes after"),
    ("fusing", {"step == 0": "step < 0"}, "Not yet: infinite or undefined numbers: what nobody has written is NaN."),
    ("fusing", {"pl.num_programs(2) - 1": "pl.num_programs(2) - 2"}, "Not yet: the last tile of the sum is missing."),
    ("fusing", {"total[...] += a[...] @ b[...]": "total[...] += jnp.where(step > 0, a[...] @ b[...], 0)"},
     "Not yet: the first tile of the sum is missing."),
    ("fusing", {"total[...] += a": "total[...] = a"}, "Not yet: only the last tile of the sum is there."),
    ("fusing", {"a[...] @ b[...]": "jax.nn.silu(a[...] @ b[...] + bias[...])",
                "jax.nn.silu(total[...] + bias[...])": "total[...]"},
     "Not yet: the activation is taken of each summand."),
]  # fmt: skip


@pytest.mark.parametrize(("puzzle", "changes", "words"), BROKEN, ids=[f"{puzzle}-{i}" for i, (puzzle, *_) in enumerate(BROKEN)])
def test_a_broken_solution_is_told_what_is_wrong_with_it(puzzle, changes, words):
    ok, told = said(puzzle, answer(SOLUTIONS[puzzle], changes))
    assert not ok
    assert told.startswith(words), told


def test_each_puzzle_has_answers_that_are_refused():
    broken = [puzzle for puzzle, *_ in BROKEN]
    assert {puzzle: broken.count(puzzle) for puzzle in SOLUTIONS if broken.count(puzzle) < 2} == {}
    settled = [re.search(r"^settle\((\w+), (\w+)", source, re.M) for source in cells()]
    assert [found.groups() for found in settled if found] == list(SOLUTIONS.items())


def test_no_body_is_no_answer_and_nothing_returned_is_a_wrong_one():
    def nothing(x):
        """Not yet."""
        ...

    def returns_nothing(x):
        jnp.roll(x, 1)

    halo = played()["halo"]
    for empty in (..., nothing):
        assert halo.check(empty).words == "Not answered yet: replace the ... with your code."
    assert halo.check(returns_nothing).words == "Not yet: the whole result is to have shape (32, 7), and this is nothing."


def test_an_all_reduce_of_whole_arrays_is_seen_to_count_one_summand_twice_or_to_lack_one():
    whole = "whole_arrays_around"
    for turns, words in (("n", "a device's own summand is counted twice."), ("n - 2", "one summand is missing")):
        ok, told = said("adding", answer(whole, {"n - 1": turns}))
        assert not ok
        assert told.startswith(f"Not yet: {words}")
    ok, told = said("adding", lambda x: lax.psum(x[0], "X"))
    assert not ok
    assert told == "Right numbers, but 1 all-reduce: that is what you are to build."


def gathers_by_permutes_then_multiplies(x, w):
    n, me, whole = lax.axis_size("X"), lax.axis_index("X"), []
    for turn in range(n):
        whole.append(x)
        x = lax.ppermute(x, "X", [(i, (i - 1) % n) for i in range(n)]) if turn < n - 1 else x
    return jnp.roll(jnp.concatenate(whole), me * len(x), 0) @ w


def loops(x, w):
    n, me = lax.axis_size("X"), lax.axis_index("X")

    def write(turn, x, y):
        return lax.dynamic_update_slice(y, x @ w, ((me - turn) % n * len(x), 0))

    def one_turn(turn, held):
        return lax.ppermute(held[0], "X", [(i, (i + 1) % n) for i in range(n)]), write(turn, *held)

    return write(n - 1, *lax.fori_loop(0, n - 1, one_turn, (x, jnp.zeros((n * len(x), w.shape[1])))))


def test_a_collective_matmul_in_a_loop_or_at_the_end_is_seen_for_what_it_is():
    assert said("gathering", gathers_by_permutes_then_multiplies)[1].startswith("Right numbers, but 100% of the matmul stands")
    assert said("gathering", loops) == (False, "Right numbers, but 7 permutes run one after the other; 4 turns will do.")


def test_the_blocks_of_a_softmax_may_not_simply_be_averaged():
    def merge(most, total, context, scores, values):
        return most, total + 1, context + jax.nn.softmax(scores) @ values

    assert said("attending", merge)[1].startswith("Not yet: that is the mean of a softmax in each block")


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_another_argument_given_away_is_no_donation_of_the_cache():
    given = jax.jit(played()["write"], donate_argnums=1)
    assert said("keeping", given)[1].startswith("Right numbers, but a device allocates 768 B anew")


def test_the_librarys_own_rings_are_taken():
    assert said("gathering", lambda x, w: gather_matmul(x, w, "X", ways=2))[0]
    assert "4 turns will do" in said("gathering", lambda x, w: gather_matmul(x, w, "X"))[1]
    assert said("scattering", lambda x, w: matmul_scatter(x, w, "X"))[0]


def test_numbers_that_are_right_are_taken_and_slips_are_named():
    lab = played()
    for name in ("your_first", "your_columns"):
        assert_checks_a_number(cells()[at(cells(), f"{name} = ...")], lab)


def on_tpus(monkeypatch):
    """The cells that compile for TPUs, played from records."""
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")
    return [source for source in cells() if re.search(ON_TPUS, source) and "timelines.timeline" not in source]


def test_an_answer_of_the_readers_own_is_compiled_where_the_compiler_is(monkeypatch, capsys):
    yours = {**played(), "your_gather_matmul": played()["gather_matmul"]}
    assert set(run(on_tpus(monkeypatch), yours)["schedules"]) == {"gather_then_multiply", "one_way", "gather_matmul"}
    assert "Yours is not compiled: record 'lab10a-overlap' holds no yours" in capsys.readouterr().out


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_a_schedule_that_hides_another_part_turns_the_lab_red(monkeypatch, factor):
    was = Timeline.hidden_s.fget
    monkeypatch.setattr(Timeline, "hidden_s", property(lambda self: factor * was(self)))
    with pytest.raises(AssertionError):
        run(on_tpus(monkeypatch), played())


def test_the_table_of_schedules_names_what_hides(monkeypatch):
    table, _ = shown(on_tpus(monkeypatch)[0], played())
    assert re.search(r"gather_then_multiply .* 0% ", str(table))


def test_a_cell_out_of_order_names_what_it_lacks():
    assert how_many_lack(cells()) > 30
