"""Lab 8 played from records: right answers taken, the wrong ones that its hints name refused, verdicts broken on purpose."""

import ast
import itertools
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from scaling_lib.inference import Layout
from scaling_lib.inference.forward import Memory
from scaling_lib.search import serving_contest
from scaling_lib.search.fleet import Fleet
from scaling_lib.search.trial import Trial
from scaling_lib.xla.program import Program
from scaling_lib.xla.serving import judge, judged
from tests.cells import at, code_cells, how_many_lack, run, shown

LAB = Path(__file__).parents[1] / "labs/08-serving-llama.md"

pytestmark = pytest.mark.usefixtures("from_records")


@cache
def cells():
    return code_cells(LAB)


@cache
def played():
    """What all cells define."""
    return run(cells())


def play(first, last):
    """The cells from one to another, over what the whole lab has defined."""
    run(cells()[at(cells(), first) : at(cells(), last) + 1], played())


def said(name, given):
    """What the cell with a question says to an answer."""
    verdict, scope = shown(cells()[at(cells(), f"{name} = ...")], played(), **{name: given})
    return scope, str(verdict)


RIGHT = {
    "your_weights": lambda lab: lab["held"].weights,
    "your_cache": lambda lab: 2**33,
    "your_sent": lambda lab: 65 * 2 * 7 / 8 * 64 * 4096 * 2,
    "your_batch": lambda lab: 110,
    "your_large_batch": lambda lab: 23,
    "your_forgotten": lambda lab: 2**22,
    "your_v6e_batch": lambda lab: 108,
    "your_reason": lambda lab: 3,
    "your_servers": lambda lab: 7,
}
EDGE = "edge = ["
LIMITS = "limits = ["
AGREED = "*agreed, surprise, _ = limits"
FORGOTTEN = "copied = "
PROMPTS = "stream = 11"


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_taken_and_every_slip_gets_its_hint(name):
    scope, words = said(name, RIGHT[name](played()))
    assert words.startswith("Right"), words
    assert len(scope["slips"]) >= 2
    for wrong, hint in scope["slips"].items():
        _, words = said(name, wrong)
        assert words == f"Not yet. {hint}", (name, wrong, words)


@pytest.mark.parametrize("name", RIGHT)
def test_no_slip_is_taken_for_another_or_for_the_right_answer(name):
    scope, _ = said(name, ...)
    *statements, call = ast.parse(cells()[at(cells(), f"{name} = ...")]).body
    (slips,) = (node.value for node in statements if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "slips")
    numbers = [RIGHT[name](played())]
    for key, value in zip(slips.keys, slips.values, strict=True):
        numbers += eval(ast.unparse(value), scope) if key is None else [eval(ast.unparse(key), scope)]
    given = {keyword.arg: keyword.value for keyword in call.value.keywords}
    tolerance = ast.literal_eval(given["tolerance"]) if "tolerance" in given else 0.02
    for one, other in itertools.combinations(numbers, 2):
        assert abs(one - other) > tolerance * max(one, other), (one, other)


def test_no_answer_stands_above_its_question():
    lab = played()
    before = "\n".join(cells()[: at(cells(), "your_sent = ...")])
    assert 'print(recorded["8b-tensor"])' not in before
    compiled = lab["along"][0]
    assert compiled.dtype == "bf16"
    assert compiled.elements == 2 * 128 * 14336 // 8
    assert all(str(fleet.slice) != "v5e:2x2" for fleet in lab["fleets"].values())


def test_every_question_is_asked_here():
    asked = {name for source in cells() for name in re.findall(r"^(your_\w+) = \.\.\.", source, flags=re.MULTILINE)}
    assert asked == {*RIGHT, "your_fleet", "your_best_fleet"}
    for name in RIGHT:
        assert "Not answered yet" in said(name, ...)[1]


def test_cells_may_run_twice():
    again = run(cells()[: at(cells(), "small = [")], played())
    assert again["right"] == played()["right"]


def test_the_limits_are_those_of_the_text():
    lab = played()
    assert [one.estimate.batch for one in lab["limits"]] == [23, 24, 46, 48, 47, 48, 109, 110]
    assert [one.fits for one in lab["limits"]] == [True, False] * 3 + [False] * 2
    assert lab["fits"].estimate.batch == 108


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_a_predicted_peak_that_is_three_percent_off_turns_the_lab_red(monkeypatch, factor):
    was = judge.Judgement.memory.fget
    off = property(lambda self: tuple(replace(row, predicted=factor * row.predicted) for row in was(self)))
    play(AGREED, AGREED)
    monkeypatch.setattr(judge.Judgement, "memory", off)
    for cell in ("peak = recorded", AGREED, FORGOTTEN):
        with pytest.raises(AssertionError):
            play(cell, cell)


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_an_estimate_of_memory_that_is_off_names_batches_that_the_records_lack(monkeypatch, factor):
    was = Memory.total.fget
    monkeypatch.setattr(Memory, "total", property(lambda self: factor * was(self)))
    with pytest.raises((AssertionError, judge.tpu.TPUCompilerUnavailable)):
        play("most = max_batch", AGREED)


def test_an_inverted_verdict_of_the_compiler_turns_the_lab_red(monkeypatch):
    was = Program.fits.fget
    monkeypatch.setattr(Program, "fits", property(lambda self: not was(self)))
    for cell in ("== [most, most + 1]", AGREED, FORGOTTEN, PROMPTS):
        with pytest.raises(AssertionError):
            play(cell, cell)


def test_bytes_that_are_sent_twice_turn_the_lab_red(monkeypatch):
    was = judge.Judgement.collectives.fget
    off = property(lambda self: tuple(replace(row, predicted_bytes=2 * row.predicted_bytes) for row in was(self)))
    monkeypatch.setattr(judge.Judgement, "collectives", off)
    with pytest.raises(AssertionError):
        play("peak = recorded", "peak = recorded")
    with pytest.raises(AssertionError):
        play('ways = ("8b-copies"', "three agree within")


def test_a_copy_that_is_not_forgotten_turns_the_lab_red():
    namespace = dict(played())
    namespace["forgotten"] *= 2
    with pytest.raises(AssertionError):
        run([cells()[at(cells(), FORGOTTEN)]], namespace)


def test_a_contest_in_which_all_keep_their_promises_turns_the_lab_red(monkeypatch):
    monkeypatch.setattr(Trial, "meets", property(lambda self: True))
    with pytest.raises(AssertionError):
        play("kept = [name", "kept = [name")
    with pytest.raises(AssertionError):
        play("score.medal != ", "score.medal != ")


@pytest.mark.parametrize(
    ("question", "fleet", "medal"),
    [
        ("your_fleet", Fleet(slice="v6e:1x1", layout=Layout(), batch=150, servers=11), "gold"),
        ("your_fleet", Fleet(slice="v5e:2x2", layout=Layout(tensor=4), batch=256, servers=7), "silver"),
        ("your_fleet", Fleet(slice="v5e:2x2", layout=Layout(tensor=4), batch=9999, servers=6), None),
        (
            "your_best_fleet",
            Fleet(
                slice="v6e:2x2",
                layout=Layout(tensor=4, weights="int8"),
                batch=48,
                servers=2,
                engine="disaggregated",
                prefill_servers=3,
            ),
            "gold",
        ),
        (
            "your_best_fleet",
            Fleet(slice="v6e:2x2", layout=Layout(tensor=4, weights="int8"), batch=64, servers=5, chunk=512),
            None,
        ),
    ],
)
def test_a_readers_fleet_is_scored(question, fleet, medal):
    lab = played()
    score = lab["entry"](fleet, lab["chat" if question == "your_fleet" else "documents"])
    assert score.medal == medal, score
    assert (medal or "no medal") in str(score)
    if medal is None:
        assert re.search("does not fit.*give batch=|too slow", str(score))


def test_a_readers_fleet_gets_its_line_on_the_board():
    lab = dict(played())
    lab["your_best_fleet"] = lab["winner"]
    board, _ = shown(cells()[at(cells(), "mine = {}")], lab)
    first = str(board).splitlines()[2]
    assert first.startswith("yours")
    assert "gold" in first


def test_a_fleet_that_cannot_run_says_why():
    lab = played()
    refused = {
        "Not answered yet": lab["entry"](..., lab["chat"]),
        "against the rules": lab["entry"](Fleet(slice="v6e:2x2", layout=Layout(tensor=4), batch=64), lab["documents"]),
        "devices": lab["entry"](Fleet(slice="v6e:2x2", layout=Layout(tensor=8), batch=64), lab["chat"]),
    }
    for words, verdict in refused.items():
        assert not verdict.ok
        assert words in verdict.words


def test_no_other_fleet_that_the_lab_names_is_cheaper_and_keeps_its_promises():
    lab = played()
    for board in ("opponents", "contenders"):
        assert all(score.ratio >= 1 or not score.meets for score in lab[board].values())


def test_a_cell_out_of_order_names_what_it_lacks():
    assert how_many_lack(cells()) > 20


def test_the_cases_that_are_not_compiled_here_are_among_those_judged():
    names = {case.name for case in judged.CASES}
    named = {name for source in cells() for name in re.findall(r'recorded\["([\w-]+)"\]', source)}
    assert {"8b-tensor", "70b-copies-23", "8b-width"} <= named <= names
    assert set(played()["ways"]) <= names


def test_the_contest_is_the_librarys():
    assert played()["contest"] is serving_contest
