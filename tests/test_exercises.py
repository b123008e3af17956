"""Each exercise says what it takes, checks itself, and has a hint; no hint's wrong answer is taken for right."""

import ast
import math
import re
from pathlib import Path

import nbformat
import notebooks
import pytest

from scaling_lib.show import check

ROOT = Path(__file__).parents[1]
CHAPTERS = sorted((ROOT / "chapters").glob("[0-9]*.md"))
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
            question = asked.pop(name)
            assert judged(question, given) == 0, f"{label}: {given} is not taken; {question['verdicts'][0]} is right"
            hints = [verdict for verdict in question["verdicts"] if verdict[2].startswith("Not yet. ")]
            assert hints, f"{label}: {name} has no hint of its own"
            for value, _, words in hints:
                number = judged(question, value)
                assert number, f"{label}: {value} is taken for right, though a hint says {words}"
                assert question["verdicts"][number][2] == words, f"{label}: the hint for {value} is hidden by another"
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
