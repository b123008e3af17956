"""Rules for the text of chapters and labs that a machine can hold."""

import ast
import re
import shutil
from pathlib import Path

import notebooks
import pytest

from scaling_lib import catalog, roofline

ROOT = Path(__file__).parents[1]

PAGES = sorted([*(ROOT / "chapters").glob("*.md"), *(ROOT / "labs").glob("*.md")])
WITH_CODE = [page for page in PAGES if "{code-cell}" in page.read_text(encoding="utf-8")]
INSTALL = """\
# Colab only: install the library without touching Colab's own JAX. Elsewhere `make book` has installed it.
import os
import sys

if "google.colab" in sys.modules:
    source = os.environ.get("SCALING_LIB", "git+{repository}")
    %pip install --quiet --no-deps $source"""


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


def cells(page, kind):
    return [cell for cell in notebooks.read_page(page).cells if cell.cell_type == kind]


def repository():
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


@pytest.mark.parametrize("page", WITH_CODE, ids=names(WITH_CODE))
def test_every_notebook_begins_with_the_one_install_cell(page):
    first, *others = cells(page, "code")
    simulates = any("scaling_lib.serving" in cell.source for cell in others)
    assert first.source == INSTALL.format(repository=repository()) + " simpy" * simulates  # Colab has none
    assert first.metadata["tags"] == ["remove-cell", "nbval-ignore-output"]


@pytest.mark.parametrize("page", WITH_CODE, ids=names(WITH_CODE))
def test_no_other_cell_is_removed_for_what_it_defines_would_be_lost_to_eval(page):
    assert [cell.source for cell in cells(page, "code")[1:] if "remove-cell" in cell.metadata.get("tags", [])] == []


def test_an_edited_source_cell_turns_the_drift_check_red(tmp_path, capsys):
    """Proof on the real chapter, in a copy of the book."""
    for name in ("chapters", "labs", "references.bib"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    page = tmp_path / "chapters/01-roofline.md"
    assert notebooks.main(["check", str(page)]) == 0
    edited = page.read_text(encoding="utf-8").replace("matmul(m=32, k=8192", "matmul(m=33, k=8192")
    page.write_text(edited, encoding="utf-8")
    assert notebooks.main(["check", str(page)]) == 1
    assert "m=33" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["_config.yml", "CITATION.cff", "README.md", "CONTRIBUTING.md", "chapters/api.md"])
def test_the_address_of_the_repository_is_the_same_everywhere(path):
    assert repository() in (ROOT / path).read_text(encoding="utf-8")


def test_the_install_command_of_the_readme_names_the_distribution():
    assert f"git+{repository()}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", WITH_CODE, ids=names(WITH_CODE))
def test_no_catalog_figure_is_typed_into_a_cell(page):
    figures = {float(row.value) for row in catalog.chip_figures() if row.unit not in ("text", "count", "chips", "USD/hour")}
    typed = set()
    for cell in cells(page, "code"):
        source = re.sub(r"^\s*%.*$", "pass", cell.source, flags=re.M)
        typed |= {n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and type(n.value) in (int, float)}
    assert {n for n in typed if n > 1e6} & figures == set()


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_prices_are_not_read_as_math(page):
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    assert not re.search(r"(?<!\\)\$\d", re.sub(r"\$[^$\n]*\$", "", prose))


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_one_sentence_a_line(page):
    text = re.sub(r"```.*?```|---\n.*?\n---\n", "", page.read_text(encoding="utf-8"), count=0, flags=re.S)
    lists_and_tables = ("|", "-", "1.", "2.", "3.", "4.", ":", "#")
    lines = [line for line in text.splitlines() if not line.startswith(lists_and_tables)]
    assert [line for line in lines if re.search(r"[a-z0-9)$`][.?!]\** [A-Z$*]", line)] == []


@pytest.mark.parametrize("page", WITH_CODE, ids=names(WITH_CODE))
def test_old_jax_idioms_do_not_come_back(page):
    text = page.read_text(encoding="utf-8").partition("(sec-drift)=")[0]  # from there chapter 10 shows what became of them
    for old in ("jax.experimental.shard_map", "axis_shapes=", "check_rep", "xla_force_host_platform_device_count"):
        assert old not in text


def notation():
    table = (ROOT / "chapters/appendix-notation.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return {letter for row in rows for math in re.findall(r"\$([^$]*)\$", row) for letter in re.findall(r"\b[A-Za-z]\b", math)}


@pytest.mark.parametrize("path", sorted((ROOT / "scaling_lib").rglob("*.py")), ids=lambda p: p.name)
def test_every_one_letter_parameter_is_in_the_notation_table(path):
    functions = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)]
    public = [f for f in functions if not f.name.startswith("_")]
    letters = {a.arg for f in public for a in [*f.args.args, *f.args.kwonlyargs] if len(a.arg) == 1}
    assert letters <= notation()


def test_the_notation_table_is_read():
    assert {"B", "T", "m", "k", "n"} <= notation()
    assert "z" not in notation()


def test_public_functions_name_the_chapter_that_derives_them():
    for name in ("bound", "matmul", "einsum", "ridge", "critical_batch"):
        assert "chapters/01-roofline.md" in getattr(roofline, name).__doc__


def examples_of_the_readme():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)


def test_the_first_example_of_the_readme_shows_what_it_says():
    *setup, call, comment = examples_of_the_readme()[0].strip().splitlines()
    names = {}
    exec("\n".join(setup), names)
    assert comment == f"# {eval(call, names)}"


def test_the_second_example_of_the_readme_prints_what_it_says(capsys):
    *code, dots, comment = examples_of_the_readme()[1].strip().splitlines()
    exec("\n".join(code), {})
    assert dots == "# ..."
    assert f"# {capsys.readouterr().out.splitlines()[-1]}" == comment


CHAPTERS = [page for page in PAGES if re.fullmatch(r"\d\d-.*", page.stem) and page.parent.name == "chapters"]


@pytest.mark.parametrize("page", CHAPTERS, ids=names(CHAPTERS))
def test_the_problems_take_no_longer_than_the_chapter_says(page):
    problems = [int(minutes) for minutes in re.findall(r"^:minutes: (\d+)$", page.read_text(encoding="utf-8"), flags=re.M)]
    promised = notebooks.read_page(page).metadata["myst"]["substitutions"]["problems"]
    assert promised - 5 <= sum(problems) <= promised
