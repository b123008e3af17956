"""The notebooks beside the pages: what a page becomes, what counts as changed, and when a file is written."""

import json
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import course
import nbformat
import notebooks
import plain
import pytest
from myst_nb.core.utils import coalesce_streams
from nbformat import NotebookNode
from nbformat.v4 import new_output

FRONT_MATTER = """\
---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {name: python3, display_name: Python 3}
---
"""
TERMS = """\
(ch-terms)=
# Terms

(sec-hbm)=

## What is HBM?

:::{figure} roof.png
:name: fig-roof

A roofline.
:::
"""
REFERENCES = r"""
@online{austin, title = {Scale}, author = {Austin, J. and Douglas, S. and Frostig, R.}, year = 2025, url = {https://a.b}}
@article{williams, title = {Roofline}, author = {Williams, S. and Pel\'e}, journal = {CACM}, year = 2009, doi = {10.1/2}}
@misc{jouppi, title = {TPU}, author = {Jouppi, N. and others}, year = 2017}
"""
PAGE = """\
# Title

```{code-cell} ipython3
import sys
x = round(8.125, 1)
name = "it's"
print("x is", x)
print("progress", file=sys.stderr)
```

Then {eval}`x` and {eval}`name`.

```{code-cell} ipython3
:tags: [nbval-ignore-output]
import os
print(os.getpid())
```

Last {{ checked }}.

```{code-cell} ipython3
2 * x
```
"""

WritePage = Callable[[str], Path]


@pytest.fixture
def write_page(tmp_path: Path) -> WritePage:
    """Puts a page into a small book and returns its path."""
    for folder in ("chapters", "labs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "references.bib").write_text(REFERENCES)
    (tmp_path / "labs" / "terms.md").write_text(TERMS)

    def write(body: str) -> Path:
        page = tmp_path / "chapters" / "page.md"
        page.write_text(FRONT_MATTER + body, encoding="utf-8")
        return page

    return write


def generate(page: Path) -> NotebookNode:
    """The notebook without running it: every value is `8.1`, but `dollars`."""
    book = plain.read_book(page.parents[1])
    return notebooks.generate(page, book, lambda name: "$8" if name == "dollars" else "8.1", lambda cell: None)


def markdown(page: Path) -> str:
    return "\n\n".join(cell.source for cell in generate(page).cells if cell.cell_type == "markdown")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """PAGE after a real run."""
    page = tmp_path_factory.mktemp("book") / "chapters" / "page.md"
    page.parent.mkdir()
    page.write_text(FRONT_MATTER + PAGE, encoding="utf-8")
    return notebooks.run(page)


@pytest.fixture
def run_is_known(executed: NotebookNode, monkeypatch: pytest.MonkeyPatch) -> NotebookNode:
    """Stands in for further runs of PAGE: the notebook that each of them gives, for the test to change."""
    outcome = deepcopy(executed)
    monkeypatch.setattr(notebooks, "run", lambda md: outcome)
    return outcome


@pytest.mark.parametrize(
    ("myst", "expected"),
    [
        ("A {eval}`x`.", "A 8.1."),
        ("For {eval}`dollars` or {eval}`dollars`", r"For \$8 or \$8"),
        ("On {{ checked }}.", f"On {plain.checked()}."),
        (":::{admonition} Takeaway\n:class: tip\nUse {eval}`x`.\n\nMore.\n:::", "> **Takeaway**\n>\n> Use 8.1.\n>\n> More."),
        (":::{note}\nText.\n:::", "> **Note**\n>\n> Text."),
        ("```{warning} First\nsecond.\n```", "> **Warning**\n>\n> First\n> second."),
        ("- item\n  :::{tip}\n  Text.\n  :::", "- item\n  > **Tip**\n  >\n  > Text."),
        (":::{dropdown} Why {eval}`x`?\nHidden.\n:::", "<details><summary>Why 8.1?</summary>\n\nHidden.\n\n</details>"),
        ("```{math}\n:label: eq\na = b\n```", "$$\na = b\n$$"),
        ("```{math}\na &= b \\\\\nc &= d\n```", "$$\n\\begin{aligned}\na &= b \\\\\nc &= d\n\\end{aligned}\n$$"),
        ("$$\na = b\n$$ (eq-a)", "$$\na = b\n$$"),
        (":::{figure} a.png\n:alt: Line\n\nRising.\n:::", "![Line](a.png)\n\n*Rising.*"),
        ("```{code-block} text\n:class: x\na\n```", "```text\na\n```"),
        ("```{nb-exec-table}\n```", "*Here the book shows how long each page took to run.*"),
        ("{ref}`sec-hbm`, {ref}`so <ch-terms>`", "[What is HBM?](../labs/terms.md), [so](../labs/terms.md)"),
        ("{numref}`fig-roof`, {numref}`Plot %s <fig-roof>`", "[Figure: A roofline](../labs/terms.md), [Plot](../labs/terms.md)"),
        ("{doc}`../labs/terms`, {doc}`so </labs/terms>`", "[Terms](../labs/terms.md), [so](../labs/terms.md)"),
        ("{cite:t}`austin`", "[Austin et al. (2025)](https://a.b)"),
        ("{cite:p}`williams,austin`", "([Williams and Pelé, 2009](https://doi.org/10.1/2); [Austin et al., 2025](https://a.b))"),
        ("{cite}`jouppi`", "(Jouppi et al., 2017)"),
        ("{func}`~a.b.c`, {py:class}`a.B`, {term}`HBM`", "`c()`, `a.B`, HBM"),
        ("{abbr}`ICI (interconnect)`, {math}`x^2`", "ICI (interconnect), $x^2$"),
        ("{download}`data <../a.csv>`", "[data](../a.csv)"),
        ("% comment\n\n(label)=\n## Heading\n\n+++\n\nNext", "## Heading\n\nNext"),
    ],
)
def test_each_construct_becomes_plain_markdown(write_page: WritePage, myst: str, expected: str) -> None:
    assert markdown(write_page(myst)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "```python\n{eval}`x` {{ checked }} # (a)=\n```",
        "    indented {eval}`x`",
        "Code ``{eval}`x` `` and `{{ checked }}`.",
        "Math $\\{x\\}_{{ a }} `$ and $$y {{ b }}$$ and \\$5 or \\{eval}.",
        "$$\n{{ checked }}\n$$",
    ],
)
def test_code_and_math_are_left_as_they_are(write_page: WritePage, text: str) -> None:
    assert markdown(write_page(f"Above.\n\n{text}\n\nBelow.")) == f"Above.\n\n{text}\n\nBelow."


def test_the_bibliography_lists_what_the_page_cites(write_page: WritePage) -> None:
    text = markdown(write_page("{cite:t}`austin`\n\n:::{bibliography}\n:filter: docname in docnames\n:::"))
    assert text.count("\n- ") == 1
    assert "Austin, S. Douglas" in text.replace("\\", "")


def test_the_cells_of_a_solution_fold_and_its_text_hides(write_page: WritePage) -> None:
    page = write_page(
        "# Title\n\n## Exercises\n\n:::{exercise-start} int8\n:label: ex\n:::\nHow much?\n:::{exercise-end}\n:::\n\n"
        ":::{solution-start} ex\n:class: dropdown\n:::\nLess.\n\n```{code-cell}\n1 + 1\n```\n\nSo.\n:::{solution-end}\n:::\n"
        "After.\n\n```{code-cell}\n2\n```\n\nSee {ref}`ex`."
    )
    question, hidden, rest, shown, link = generate(page).cells
    assert "### Exercise: int8\n\nHow much?\n\n<details><summary>Solution</summary>\n\nLess.\n\n</details>" in question.source
    assert hidden.metadata == {"tags": ["hide-cell"], "jupyter": {"source_hidden": True}, "cellView": "form"}
    assert rest.source == "<details><summary>Solution</summary>\n\nSo.\n\n</details>\n\nAfter."
    assert shown.metadata == {}
    assert link.source == "See [Exercise: int8](page.md)."


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (":::{tab-set}\n:::", 7),
        ("Text\n{eq}`a`", 8),
        ("> :::{note}\n> {ref}`nowhere`\n> :::", 8),
        ("{{ unknown }}", 7),
        ("{cite:t}`nobody`", 7),
        (":::{solution-end}\n:::", 7),
    ],
)
def test_what_is_not_known_is_an_error_with_its_line(write_page: WritePage, bad: str, line: int) -> None:
    page = write_page(f"# Title\n\n{bad}\n")
    with pytest.raises(plain.PageError, match=rf"page\.md:{line}: "):
        generate(page)


def test_an_unclosed_solution_is_an_error(write_page: WritePage) -> None:
    with pytest.raises(plain.PageError, match="never closed"):
        generate(write_page(":::{solution-start} ex\n:::\nText"))


def test_a_cell_keeps_its_id_when_others_change(write_page: WritePage) -> None:
    cell = "```{code-cell}\nx\n```\n\n"
    before = [cell.id for cell in generate(write_page("One.\n\n" + cell + cell)).cells]
    after = [cell.id for cell in generate(write_page("Two.\n\n" + cell + cell)).cells]
    assert before[1:] == after[1:]
    assert len({*before, *after}) == 4


def test_a_run_records_outputs_and_values(executed: NotebookNode) -> None:
    printing, text, _, _, last = executed.cells[1:]
    assert [output.text for output in printing.outputs] == ["x is 8.1\n"]  # and nothing from stderr
    assert text.source == "Then 8.1 and it's."
    assert text.metadata == {"eval": [("x", "8.1"), ("name", "it's")]}
    assert last.outputs[0].data == {"text/plain": "16.2"}
    assert [cell.execution_count for cell in executed.cells if cell.cell_type == "code"] == [1, 2, 3]


def test_a_changed_number_is_shown_with_old_and_new(executed: NotebookNode) -> None:
    fresh = deepcopy(executed)
    fresh.cells[1].outputs[0].text = "x is 9\n"
    (difference,) = notebooks.differences(executed, fresh)
    assert difference.splitlines()[0] == "output of cell 2"
    assert "-x is 8.1\n+x is 9" in difference


def test_a_changed_value_in_prose_is_reported(executed: NotebookNode) -> None:
    fresh = deepcopy(executed)
    fresh.cells[2].metadata["eval"][0] = ["x", "9"]
    (difference,) = notebooks.differences(executed, fresh)
    assert "-x = 8.1\n+x = 9" in difference


def test_ignored_cells_may_print_anything(executed: NotebookNode) -> None:
    fresh = deepcopy(executed)
    fresh.cells[3].outputs[0].text = "another process\n"
    assert notebooks.differences(executed, fresh) == []


def test_figures_are_not_compared_but_their_text_is(executed: NotebookNode) -> None:
    fresh = deepcopy(executed)
    fresh.cells[5].outputs[0].data["image/png"] = "iVBO"
    assert notebooks.differences(executed, fresh) == []
    fresh.cells[5].outputs[0].data["text/html"] = "<b>16.2</b>"
    assert len(notebooks.differences(executed, fresh)) == 1


def test_a_page_without_a_notebook_gets_one_that_does_not_drift(write_page: WritePage, run_is_known: NotebookNode) -> None:
    page = write_page(PAGE)
    assert notebooks.drift(page) == ["there is no notebook"]
    assert notebooks.write(page)
    assert notebooks.drift(page) == []


def test_nothing_is_written_when_only_timings_change(write_page: WritePage, run_is_known: NotebookNode) -> None:
    page = write_page(PAGE)
    notebooks.write(page)
    before = page.with_suffix(".ipynb").read_bytes()
    run_is_known.cells[3].outputs[0].text = "another process\n"
    assert notebooks.write(page)
    assert notebooks.accept(page)
    assert page.with_suffix(".ipynb").read_bytes() == before


def test_a_changed_figure_is_taken(write_page: WritePage, run_is_known: NotebookNode) -> None:
    page = write_page(PAGE)
    notebooks.write(page)
    run_is_known.cells[5].outputs[0].data["image/png"] = "iVBO"
    assert notebooks.write(page)
    assert b"iVBO" in page.with_suffix(".ipynb").read_bytes()


def test_changed_outputs_wait_for_accept(
    write_page: WritePage, run_is_known: NotebookNode, capsys: pytest.CaptureFixture[str]
) -> None:
    page = write_page(PAGE)
    notebooks.write(page)
    before = page.with_suffix(".ipynb").read_bytes()
    run_is_known.cells[5].outputs[0].data["text/plain"] = "17"
    assert notebooks.main(["write", str(page)]) == 1
    assert page.with_suffix(".ipynb").read_bytes() == before
    assert "-16.2\n+17" in capsys.readouterr().out
    assert notebooks.main(["accept", str(page)]) == 0
    assert b"17" in page.with_suffix(".ipynb").read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * x", "3 * x"),
        ("Then {eval}", "So {eval}"),
        ("Last", "Last {eval}`x`"),
        (":tags: [nbval-ignore-output]\n", ""),
        ("# Title", "# Other"),
    ],
)
def test_an_edited_page_drifts(
    write_page: WritePage, run_is_known: NotebookNode, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    notebooks.write(write_page(PAGE))
    page = write_page(PAGE.replace(old, new))
    assert notebooks.main(["check", str(page)]) == 1
    assert "page.md: cell " in capsys.readouterr().out


def test_a_notebook_edited_by_hand_or_never_run_drifts(write_page: WritePage, run_is_known: NotebookNode) -> None:
    page = write_page(PAGE)
    run_is_known.cells[5].source = "5 * x"
    run_is_known.cells[3].execution_count = None
    run_is_known.cells[1].outputs = []
    notebooks.write(page)
    edited, silent, never_run = notebooks.drift(page)
    assert "-5 * x\n+2 * x" in edited
    assert silent == "cell 2 prints, but its outputs are missing"
    assert never_run == "cell 4 was never executed"


def test_another_month_or_version_is_no_drift(
    write_page: WritePage, run_is_known: NotebookNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = write_page(PAGE)
    notebooks.write(page)
    monkeypatch.setattr(plain, "checked", lambda: "2031-01 with Python 4")
    assert notebooks.drift(page) == []


def test_the_book_must_show_what_the_notebook_shows(write_page: WritePage, run_is_known: NotebookNode) -> None:
    page = write_page(PAGE)
    notebooks.write(page)
    built, evals = page.with_name("built.ipynb"), page.with_name("evals.json")
    built.write_bytes(page.with_suffix(".ipynb").read_bytes())
    evals.write_text('[["name", "it\'s"], ["x", "8.1"]]')
    assert notebooks.compare_built(page, built, evals) == []

    notebook = json.loads(built.read_text())
    notebook["cells"][5]["outputs"][0]["data"]["text/plain"] = "17"
    built.write_text(json.dumps(notebook))
    evals.write_text('[["name", "it\'s"], ["x", "9"]]')
    output, values = notebooks.compare_built(page, built, evals)
    assert "-16.2\n+17" in output
    assert "-x = 8.1\n+x = 9" in values


def test_pieces_of_one_stream_are_no_change(write_page: WritePage, run_is_known: NotebookNode) -> None:
    """A slow cell's text comes in pieces, cut anywhere; MyST-NB's own merging leaves its traces in the built notebook."""
    page = write_page(PAGE)
    run_is_known.cells[1].outputs = [new_output("stream", name="stdout", text="one\ntwo\ntwo\n")]
    notebooks.write(page)
    built, evals = page.with_name("built.ipynb"), page.with_name("evals.json")
    evals.write_text('[["name", "it\'s"], ["x", "8.1"]]')
    notebook = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    for pieces, same in (("one", "\ntwo\n", "two\n"), True), (("one\n", "two\n", "six\n"), False):
        notebook.cells[1].outputs = [new_output("stream", name="stdout", text=piece) for piece in pieces]
        coalesce_streams(notebook.cells[1].outputs)
        nbformat.write(notebook, built)
        assert (notebooks.compare_built(page, built, evals) == []) == same


def test_pages_are_those_with_code_and_other_notebooks_are_orphans(write_page: WritePage) -> None:
    page = write_page(PAGE)
    stray = page.with_name("stray.ipynb")
    stray.write_text("{}")
    assert notebooks.pages(page.parents[1]) == [page]
    assert notebooks.orphans(page.parents[1]) == [stray]


def test_equal_runs_give_equal_files_though_widget_ids_are_random(executed: NotebookNode) -> None:
    def with_widgets(*model_ids: str) -> NotebookNode:
        notebook = deepcopy(executed)
        notebook.metadata["widgets"] = {notebooks._WIDGET_STATE: {"state": {model_id: {} for model_id in model_ids}}}
        return notebook

    assert notebooks._text(with_widgets("beef", "cafe")) == notebooks._text(with_widgets("feed", "babe"))


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("import time; time.sleep(60)", "timed out"),
        ("os._exit(1)", "died"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_failing_cell_is_an_error_and_leaves_no_process(write_page: WritePage, cell: str, reason: str) -> None:
    page = write_page(
        f"```{{code-cell}}\nimport os\nopen('pid', 'w').write(str(os.getpid()))\n```\n\n```{{code-cell}}\n{cell}\n```"
    )
    with pytest.raises(plain.PageError, match=rf"(?s)page\.md:10: .*{reason}"):
        notebooks.run(page, timeout_s=3)
    with pytest.raises(ProcessLookupError):
        os.kill(int(page.with_name("pid").read_text()), 0)


def test_a_value_that_does_not_exist_is_an_error(write_page: WritePage) -> None:
    with pytest.raises(plain.PageError, match=r"page\.md:5: \{eval\}`missing`: NameError"):
        notebooks.run(write_page("A {eval}`missing`."))


def test_the_extension_keeps_other_substitutions() -> None:
    config = SimpleNamespace(myst_substitutions={"other": "stays", "checked": "mine"})
    course._define_checked(SimpleNamespace(), config)  # type: ignore[arg-type]
    assert config.myst_substitutions == {"other": "stays", "checked": "mine"}
