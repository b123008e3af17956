"""Lab 6 played from records: its predictions and verdicts broken on purpose, its cells run twice and out of order."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from scaling_lib.search.contest import Score
from scaling_lib.training.memory import Memory
from scaling_lib.xla import judge, judged
from scaling_lib.xla.ledger import Ledger
from scaling_lib.xla.program import Program
from tests.cells import at, code_cells, how_many_lack, run, shown

LAB = Path(__file__).parents[1] / "labs/06-training-llama.md"

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


PEAKS = "peaks of what does not fit are within"
REFUSED = "refused = {"
TAKEN = 'taken = {("70B", "v5p")'
FITS = "assert found.agree, found"
ARGUMENTS = "arguments agree, and what comes on top"


@pytest.mark.weekly
def test_every_cell_may_run_twice():
    twice = run(source for source in cells() for _ in range(2))
    assert len(twice["refused"]) == len(twice["taken"]) == 6
    assert all(found.agree for found in (*twice["refused"].values(), *twice["taken"].values()))


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_a_predicted_peak_that_is_a_fifth_off_turns_the_lab_red(monkeypatch, factor):
    play(REFUSED, PEAKS)
    was = judge.Judgement.memory.fget
    off = property(lambda self: tuple(replace(row, predicted=factor * row.predicted) for row in was(self)))
    monkeypatch.setattr(judge.Judgement, "memory", off)
    with pytest.raises(AssertionError):
        play(REFUSED, PEAKS)
    with pytest.raises(AssertionError):
        play(TAKEN, FITS)


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_memory_that_is_estimated_a_fifth_off_names_other_slices_or_other_peaks(monkeypatch, factor):
    assert played()["recorded"]  # estimates are cached nowhere: these are made before
    was = Memory._peak
    monkeypatch.setattr(Memory, "_peak", lambda self, waiting: factor * was(self, waiting))
    with pytest.raises((AssertionError, judge.tpu.TPUCompilerUnavailable)):
        play("PAIRS = [", FITS)


def test_an_inverted_verdict_of_the_compiler_turns_the_lab_red(monkeypatch):
    was = Program.fits.fget
    monkeypatch.setattr(Program, "fits", property(lambda self: not was(self)))
    with pytest.raises(AssertionError, match="which was predicted otherwise"):
        play(REFUSED, REFUSED)
    with pytest.raises(AssertionError):
        play(TAKEN, FITS)


def test_an_optimizer_that_is_forgotten_turns_the_lab_red(monkeypatch):
    was = judge.Judgement.memory.fget

    def without(self):
        arguments, peak = was(self)
        return replace(arguments, predicted=arguments.predicted - self.estimate.memory.optimizer / 3), peak

    monkeypatch.setattr(judge.Judgement, "memory", property(without))
    with pytest.raises(AssertionError):
        play(ARGUMENTS, ARGUMENTS)


def test_bytes_that_no_reason_explains_turn_the_lab_red(monkeypatch):
    monkeypatch.setattr(Ledger, "reconciled_bytes", property(lambda self: self.predicted_bytes))
    with pytest.raises(AssertionError):
        play("whole = ", "that is most of it")


def test_a_contest_that_says_less_than_the_best_turns_the_lab_red(monkeypatch):
    monkeypatch.setattr(Score, "ratio", property(lambda self: 1.0))
    with pytest.raises(AssertionError):
        play("opponents = ", '"pure FSDP" not in opponents')


def test_answers_that_are_right_are_taken_and_slips_are_named():
    lab = played()
    questions = {
        "your_bytes": (18, 12, "Gradients are there too"),
        "your_chips": (128, 71, "Which slice of the ladder|Is there room"),
        "your_reason": (3, 1, "the all-gather row grew by little"),
    }
    for name, (right, wrong, hint) in questions.items():
        source = cells()[at(cells(), f"{name} = ...")]
        for given, words in ((right, "Right"), (wrong, hint)):
            verdict, _ = shown(source, lab, **{name: given})
            assert re.search(words, str(verdict)), (name, given)


def test_a_readers_plan_gets_its_line_on_the_board():
    lab = dict(played())
    lab["your_plan"] = lab["base"].but(fsdp=1024, tensor=8, microbatches=2)
    assert lab["entry"](lab["your_plan"], lab["large"]).medal == "gold"
    board, _ = shown(cells()[at(cells(), "mine = {}")], lab)
    first = str(board).splitlines()[2]
    assert first.startswith("yours")
    assert "gold" in first


def test_a_plan_that_cannot_run_says_why():
    lab = played()
    with pytest.raises(ValueError, match=r"fsdp|devices"):
        lab["entry"](lab["base"].but(fsdp=64), lab["large"])
    unanswered = lab["first"](lab["entry"](..., lab["middle"]))
    assert not unanswered.ok
    assert unanswered.words.startswith("Not answered yet")


def test_a_cell_out_of_order_names_what_it_lacks():
    assert how_many_lack(cells()) > 15


def test_the_cases_that_are_not_compiled_here_are_among_those_judged():
    names = {case.name for case in judged.CASES}
    assert set(played()["of_case"].values()) <= names
