"""Lab 10b without its processes: right answers taken, the wrong ones that its hints name refused.

What the processes do is tested in test_hosts.py; the lab's own assertions hold where its pages run.
"""

from functools import cache
from pathlib import Path

import pytest

from tests.cells import assert_checks_a_number, at, code_cells, run, shown

LAB = Path(__file__).parents[1] / "labs/10b-many-hosts.md"
PROCESSES = r"driver\.started|workers|whole|typical|compiled\(|total\["


@cache
def cells():
    return code_cells(LAB, PROCESSES)


@cache
def played():
    return run(cells())


def cell(words):
    return cells()[at(cells(), words)]


@pytest.mark.parametrize("name", ["your_copies", "your_shards", "your_copies_send", "your_shards_send", "your_steps"])
def test_the_right_number_is_taken_and_each_slip_gets_its_hint(name):
    assert_checks_a_number(cell(f"{name} = ..."), played())


ANSWERS = {
    "rows": [
        (lambda step, i, n: [16 * step + i + n * j for j in range(16 // n)], "reads all, but not in blocks"),
        (lambda step, i, n: range(16 // n * i, 16 // n * (i + 1)), "reads 16, not those of this step"),
        (lambda step, i, n: range(16 * step, 16 * step + 16), "reads a sequence twice"),
        (lambda step, i, n: range(16 * step + 4 * i, 16 * step + 4 * i + 4), "step 0 on 2 processes reads 8, not those"),
        (lambda step, i, n: None, "Not answered yet"),
    ],
    "lost": [
        (lambda k, m: (k + 1) % m, "k=4, m=5 gives 0; its checkpoint is not there yet"),
        (lambda k, m: k % m, "k=9, m=4 gives 1; step 0 is done when k is 0"),
        (lambda k, m: 7, "k=9, m=4 gives 7."),
        (lambda k, m: None, "Not answered yet"),
    ],
    "counts": [
        ({1, 2, 4, 8, 16, 32}, "16 sequences over 32"),
        ({1, 2, 3, 4}, "64 over 3 leaves a rest"),
        ({1, 2, 4}, "2 more can"),
        (..., "Not answered yet"),
    ],
}  # fmt: skip


def only_the_first(run, counts):
    run(counts[0])
    return counts[0]


def all_of_them(run, counts):
    for n in counts:
        try:
            run(n)
            done = n
        except RuntimeError as error:
            done = error
    return done


def none_is_told(run, counts):
    for n in counts:
        try:
            run(n)
            return n
        except RuntimeError:
            pass


def catches_all(run, counts):
    for n in counts:
        try:
            run(n)
            return n
        except Exception as error:
            last = error
    raise RuntimeError from last


ANSWERS["loop"] = [
    (only_the_first, "one died on 4, and no one tried 2"),
    (all_of_them, "4 came to the end; why go on?"),
    (none_is_told, "all failed, and no one is told"),
    (catches_all, "a wrong size is no dead host"),
    (lambda run, counts: counts[-1], "of 4 and 2, 4 failed; you gave 2"),
    (lambda run, counts: None, "Not answered yet"),
]


@pytest.mark.parametrize(("exercise", "given", "words"), [(name, *each) for name, found in ANSWERS.items() for each in found])
def test_a_wrong_answer_is_told_what_is_wrong(exercise, given, words):
    verdict = played()[f"{exercise}_check"](given)
    assert not verdict.ok
    assert words in verdict.words


def test_right_answers_are_taken():
    scope = played()
    right = {name: scope[name] for name in ("rows", "lost", "loop")} | {"counts": {1, 2, 4, 8, 16}}
    assert [str(scope[f"{name}_check"](answer)) for name, answer in right.items()] == ["Right."] * 4
    assert scope["right"] == right["counts"]


def test_unanswered_cells_say_so():
    for name in ("your_rows", "your_lost", "your_loop", "your_counts"):
        [source] = [source for source in cells() if f"{name} = ..." in source or f"def {name}(" in source]
        verdict, _ = shown(source, played())
        assert verdict.words.startswith("Not answered yet"), name
