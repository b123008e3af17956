"""Each exercise says what it takes, checks itself, and has a hint; no hint's wrong answer is taken for right."""

import ast
import math
import re
from pathlib import Path

import nbformat
import notebooks
import pytest
from plain import LEVELS

from scaling_lib.grading.notebook import TODO, Cell, statements
from scaling_lib.show import check

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "chapters").glob("[0-9]*.md"))
LABS = sorted((ROOT / "labs").glob("[0-9]*.md"))
START = re.compile(r"^:::\{exercise-start\} (.+)\n((?::\w+: .+\n)*):::$", re.M)


def exercises(page):
    """The exercises of a chapter: label -> the code cells inside, and those of its solution."""
    found, where = {}, None
    for cell in notebooks.read_page(page).cells:
        if cell.cell_type == "markdown":
            for kind, given, label in re.findall(r"\{(exercise|solution)-start\}(.*)\n(?::label: (\S+))?", cell.source):
                name = label or given.strip()
                where = found.setdefault(name, ([], []))[kind == "solution"]
            last = re.findall(r"\{(exercise|solution)-(start|end)\}", cell.source)
            if last and last[-1][1] == "end":
                where = None
        elif where is not None:
            where.append(cell)
    return found


def questions(page):
    """What the committed notebook's unanswered checks ask: the name to be answered -> the question."""
    found = {}
    for cell in nbformat.read(page.with_suffix(".ipynb"), as_version=4).cells:
        for output in cell.get("outputs", []):
            if asked := output.get("metadata", {}).get("question"):
                (name,) = re.findall(r"^(\w+) = \.\.\.", cell.source, re.M)
                assert name not in found, f"{name} is asked twice"
                found[name] = asked
    return found


def judged(asked, given):
    """Number of the verdict that an answer gets; 0 is right."""
    for number, (value, within, _) in enumerate(asked["verdicts"]):
        if given == value if asked["options"] else abs(given - value) <= within * abs(value):
            return number
    return None


def typed(cells):
    """What the answer cells say, read without running the page: words, numbers, and arithmetic of numbers."""
    answers = {}
    for cell in cells:
        if "answer" in cell.metadata.get("tags", []):
            for line in ast.parse(cell.source).body:
                answers[line.targets[0].id] = eval(ast.unparse(line.value), {"__builtins__": {}, "math": math})
    return answers


def assert_judges(asked, given):
    """A question takes this answer, and refuses what its own hints are for, each with its hint."""
    assert judged(asked, given) == 0, f"{given} is not taken; {asked['verdicts'][0]} is right"
    hints = [verdict for verdict in asked["verdicts"] if verdict[2].startswith("Not yet. ")]
    assert hints, "there is no hint of its own"
    for value, _, words in hints:
        number = judged(asked, value)
        assert number, f"{value} is taken for right, though a hint says {words}"
        assert asked["verdicts"][number][2] == words, f"the hint for {value} is hidden by another"


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_each_exercise_of_a_chapter_says_what_it_takes(page):
    options = [dict(re.findall(r":(\w+): (.+)", given)) for _, given in START.findall(page.read_text(encoding="utf-8"))]
    assert len(options) == len(exercises(page)) > 0
    for given in options:
        assert {"label", "minutes", "level"} == set(given)


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_each_exercise_of_a_chapter_checks_its_typed_answer_and_refuses_what_its_hints_name(page):
    asked = questions(page)
    for label, (cells, solution) in exercises(page).items():
        names = [name for cell in cells for name in re.findall(r"^(\w+) = \.\.\.  # TODO", cell.source, re.M)]
        answers = typed(solution)
        assert names, f"{label} asks for no answer"
        assert sorted(answers) == sorted(names), label
        for name, given in answers.items():
            assert_judges(asked.pop(name), given)
    assert not asked, "checks outside of exercises"


# Labs


def lab_exercises(page):
    """The exercises of a lab: each cell that asks, and the one right below it."""
    cells = notebooks.read_page(page, answers=True).cells
    asking = [i for i, cell in enumerate(cells) if cell.cell_type == "code" and TODO in cell.source]
    return [(cells[i], cells[i + 1]) for i in asking]


def is_answer(cell):
    return "answer" in cell.metadata.get("tags", [])


@pytest.mark.parametrize("page", LABS, ids=lambda page: page.stem)
def test_each_exercise_of_a_lab_says_what_it_takes_and_has_its_answer_right_below(page):
    for cell, below in lab_exercises(page):
        asked = Cell("", cell.source).asked
        assert asked, cell.source
        assert isinstance(cell.metadata.get("minutes"), int), asked
        assert cell.metadata.get("level") in LEVELS, asked
        assert is_answer(below), f"{asked} have no answer right below"
        assert sorted(name for one in statements(below.source) for name in one.names) == sorted(asked)
        assert TODO not in below.source


@pytest.mark.parametrize("page", LABS, ids=lambda page: page.stem)
def test_the_exercises_of_a_lab_fit_its_minutes(page):
    minutes = notebooks.read_page(page).metadata["myst"]["substitutions"]["minutes"]
    assert 0 < sum(cell.metadata["minutes"] for cell, _ in lab_exercises(page)) <= minutes


@pytest.mark.parametrize("page", LABS, ids=lambda page: page.stem)
def test_a_lab_is_handed_out_without_its_answers(page):
    whole, bare = notebooks.read_page(page, answers=True).cells, notebooks.read_page(page).cells
    assert [cell.source for cell in whole if not is_answer(cell)] == [cell.source for cell in bare]
    assert sum(map(is_answer, whole)) == len(lab_exercises(page)) > 0
    committed = nbformat.read(page.with_suffix(".ipynb"), as_version=4).cells
    assert not any(map(is_answer, [*bare, *committed]))
    text = page.read_text(encoding="utf-8")
    assert notebooks.handed_out(text).count("\n") == text.count("\n")  # so that messages name the right line


@pytest.mark.parametrize("page", LABS, ids=lambda page: page.stem)
def test_each_number_that_a_lab_asks_for_has_hints_of_its_own(page):
    for cell, _ in lab_exercises(page):
        if "check.answer(" in cell.source:
            (given,) = (one.text for one in statements(cell.source) if "slips" in one.names)
            assert given != "slips = {}", cell.source


MEASURED = {"your_ridge", "your_rows"}
"""What this machine does: their answers are made of what the lab has measured."""


@pytest.mark.parametrize("page", LABS[:4], ids=lambda page: page.stem)  # others are played by tests of their own
def test_a_number_of_the_first_labs_is_checked_and_refused_where_a_hint_says_so(page):
    asked, answers = questions(page), {}
    for cell, below in lab_exercises(page):
        if "check.answer(" in cell.source:
            (name,) = Cell("", cell.source).asked
            question = asked.pop(name)
            if name in MEASURED:
                answers[name] = question["verdicts"][0][0]
            else:
                exec(below.source, {"__builtins__": {}}, answers)
            assert_judges(question, answers[name])
    assert not asked, "checks outside of exercises"


def test_a_choice_is_judged_and_each_wrong_one_has_its_hint():
    wrong = {"memory": "It moves 2 bytes for 2 operations.", "links": "Nothing is sent."}
    assert check.choice("compute", "compute", wrong).ok
    for given, hint in wrong.items():
        verdict = check.choice(given, "compute", wrong)
        assert not verdict.ok
        assert verdict.words == f"Not yet. {hint}"
    for given in ("Compute", 3, None):
        assert "none of the choices: 'compute', 'links', 'memory'" in check.choice(given, "compute", wrong).words
    assert check.choice(..., "compute", wrong).question.options == ("compute", "links", "memory")
    with pytest.raises(ValueError, match="beside 'memory'"):
        check.choice(..., "memory", wrong)
