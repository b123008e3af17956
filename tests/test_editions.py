"""Student editions hold no solutions and no answers; answer editions answer each question; neither is written by half."""

import dis
import re
import types
from pathlib import Path

import editions
import nbformat
import pytest

from scaling_lib.grading.notebook import Cell, answered, statements

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.with_suffix(".md") for folder in ("chapters", "labs") for path in (ROOT / folder).glob("*.ipynb"))
CHAPTERS = [page for page in PAGES if page.parent.name == "chapters"]
LABS = [page for page in PAGES if page.parent.name == "labs"]


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_editions_ask_the_same_and_only_one_answers(page):
    student, answers = editions.student(page), editions.answers(page)
    asked = {cell.id: Cell("", cell.source).asked for cell in code(student) if "# TODO" in cell.source}
    filled = {cell.id: cell.source for cell in code(answers)}
    for number, names in asked.items():
        assert names
        assert not Cell("", filled[number]).asked
    for notebook in (student, answers):
        assert not any("answer" in cell.metadata.get("tags", []) for cell in notebook.cells)
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
        nbformat.validate(notebook)


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_a_students_chapter_has_no_solutions_and_needs_none(page):
    student, answers = editions.student(page), editions.answers(page)
    assert not any("<summary>Solution" in cell.source for cell in student.cells)
    kept = {cell.id for cell in student.cells}
    solved = {name for cell in code(answers) if cell.id not in kept for name in bound(cell.source)}
    known, lacking = set(), set()
    for cell in code(student):
        known |= bound(cell.source)
        lacking |= loaded(compile(plain(cell.source), page.stem, "exec")) & solved - known
    assert not lacking, "cells need what a solution defines"


def plain(source):
    """A cell's code; the installation has a line that only IPython reads."""
    return re.sub(r"^( *)%pip .*", r"\1pass", source, flags=re.M)


def loaded(code):
    """Names that a cell takes from the cells above it."""
    own = {line.argval for line in dis.get_instructions(code) if line.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    return own.union(*(loaded(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def bound(source):
    """Names that a cell binds for the cells below it."""
    return {name for statement in statements(plain(source)) for name in statement.names}


def test_an_answer_takes_the_place_of_what_it_answers():
    source = "held = 3\nyour_x = ...  # TODO: bytes\nslips = {}\n\n\ndef your_f(x):\n    ...  # TODO\n\n\ncheck(your_x)"
    found = answered(source, "def your_f(x):\n    return x  # as it is\n\n\n# 2 of them\nyour_x = (\n    2 * held\n)")
    assert found == (
        "held = 3\nyour_x = (\n    2 * held\n)\nslips = {}\n\n\ndef your_f(x):\n    return x  # as it is\n\n\ncheck(your_x)"
    )


@pytest.mark.parametrize("answer", ["your_y = 1", "your_x = 1\nmore = 2", "", "your_x = = 1"])
def test_an_answer_that_does_not_fit_is_an_error(answer):
    with pytest.raises(ValueError, match=r"the answer binds|does not parse"):
        answered("your_x = ...  # TODO\ncheck(your_x)", answer)


def test_links_lead_to_the_other_notebooks_or_to_the_site():
    sources = "".join(cell.source for page in LABS for cell in editions.student(page).cells if cell.cell_type == "markdown")
    assert "](../chapters/01-roofline.ipynb)" in sources
    assert ".md)" not in sources
    sources = "".join(cell.source for page in CHAPTERS for cell in editions.student(page).cells if cell.cell_type == "markdown")
    assert "https://scaling-course.github.io/scaling-course/chapters/appendix-clusters.html" in sources


def test_where_one_edition_cannot_be_made_the_old_ones_stay(tmp_path, monkeypatch):
    folder = tmp_path / "editions"
    monkeypatch.setattr(editions, "pages", lambda root: LABS[:1])
    assert [path.name for path in editions.write(folder)] == ["01-roofline.ipynb"] * 2
    before = (folder / "answers/labs/01-roofline.ipynb").read_bytes()
    monkeypatch.setattr(editions, "_answers", lambda page: [])
    with pytest.raises(editions.EditionError, match=r"01-roofline.md: nothing answers your_flops"):
        editions.write(folder)
    assert (folder / "answers/labs/01-roofline.ipynb").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["editions"]
    assert editions.main([str(folder)]) == 1
