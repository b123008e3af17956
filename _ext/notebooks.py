"""The notebook beside each page: generated from the page by a real run, and compared with later runs.

    python _ext/notebooks.py write [PAGE.md ...]    generate; refuses to replace outputs that changed
    python _ext/notebooks.py accept [PAGE.md ...]   generate; shows what changed and takes it
    python _ext/notebooks.py check [PAGE.md ...]    compare sources without running anything

Without pages: all in chapters/ and labs/ that have code cells. A notebook in which nothing comparable changed keeps its
bytes, so figures and timings alone never make a diff; to renew those, delete the notebook and write it.
"""

import argparse
import difflib
import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import nbformat
from myst_nb.core.config import NbParserConfig
from myst_nb.core.execute.inline import ModifiedNotebookClient
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from plain import MYST, Book, PageError, PlainMarkdown, read_book

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 120
IGNORED = "nbval-ignore-output"
_WIDGET_STATE = "application/vnd.jupyter.widget-state+json"

Cells = Sequence[tuple[int, NotebookNode]]  # cells with their number in the notebook, from 1


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that have a notebook: those in chapters/ and labs/ with code cells."""
    candidates = [page for folder in ("chapters", "labs") for page in sorted((root / folder).glob("*.md"))]
    return [page for page in candidates if any(cell.cell_type == "code" for cell in _read_page(page).cells)]


def generate(
    md: Path, book: Book, evaluate: Callable[[str], str], execute: Callable[[NotebookNode], None]
) -> NotebookNode:
    """The notebook of a page, its cells made in order: `execute` fills a code cell, `evaluate` gives a value in prose.

    The metadata of a text cell records its values as `eval`. A cell's id is a hash of its source in the page, so that
    it stays when a value or another cell changes.
    """
    source = _read_page(md)
    page = PlainMarkdown(book, md, evaluate)
    lines = md.read_text(encoding="utf-8").split("\n")
    notebook = new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "substitutions": dict(book.substitutions),
        }
    )
    seen: Counter[str] = Counter()
    for cell, start in zip(source.cells, source.metadata.source_map, strict=True):
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        cell_id = f"{digest}-{seen[digest]}"
        seen[digest] += 1
        metadata = dict(cell.metadata)
        if cell.cell_type == "markdown":
            blank = next(n for n, line in enumerate(lines[start:]) if line.strip())
            before = len(page.values)
            text = page.cell(cell.source, start + blank + 1)
            if page.values[before:]:
                metadata["eval"] = [list(value) for value in page.values[before:]]
            if text:
                notebook.cells.append(new_markdown_cell(text, id=cell_id, metadata=metadata))
        elif cell.cell_type == "code":
            if page.solution:
                metadata = _folded(metadata)
            notebook.cells.append(new_code_cell(cell.source, id=cell_id, metadata=metadata))
            try:
                execute(notebook.cells[-1])
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                raise PageError(f"{md}:{start}: {error}") from error
        else:
            notebook.cells.append(new_raw_cell(cell.source, id=cell_id, metadata=metadata))
    page.finish()
    return notebook


def run(md: Path, timeout_s: int = CELL_TIMEOUT_S) -> NotebookNode:
    """The notebook of a page, executed in one kernel in the page's folder.

    The client is the one with which MyST-NB builds the book, so that both see the same outputs and values. What goes to
    stderr is left out: progress bars and the platform's warnings differ from run to run and teach nothing.
    """
    client = ModifiedNotebookClient(
        new_notebook(),
        timeout=timeout_s,
        kernel_name="python3",
        resources={"metadata": {"path": str(md.parent)}},
        coalesce_streams=True,
        shutdown_kernel="immediate",
    )

    def execute(cell: NotebookNode) -> None:
        client.nb.cells.append(cell)
        client.execute_cell(cell, len(client.nb.cells) - 1)
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]

    def evaluate(name: str) -> str:
        if not re.match(NbParserConfig().eval_name_regex, name):
            raise ValueError("not a plain name")
        outputs = client.eval_expression(name)
        if outputs and outputs[0].output_type == "error":
            raise ValueError(f"{outputs[0].ename}: {outputs[0].evalue}")
        if len(outputs) != 1 or set(outputs[0].data) != {"text/plain"}:
            raise ValueError("not a value that prints as plain text")
        text: str = outputs[0].data["text/plain"]
        return text[1:-1] if re.match(r"""^(["']).*\1$""", text) else text  # strings without quotes, as in the book

    with client.setup_kernel():
        notebook = generate(md, read_book(md.parent.parent), evaluate, execute)
        client.set_widgets_metadata()
    return _with_numbered_widgets(notebook, client.nb.metadata.get("widgets"))


def drift(md: Path) -> list[str]:
    """Where the committed notebook is not what its page generates, given the values recorded in it."""
    path = md.with_suffix(".ipynb")
    if not path.exists():
        return ["there is no notebook"]
    committed = _read_notebook(path)
    recorded = defaultdict(list)
    for name, value in _values(committed):
        recorded[name].append(value)

    def evaluate(name: str) -> str:
        return recorded[name].pop(0) if recorded[name] else "(no value recorded)"

    book = read_book(md.parent.parent)
    book = replace(book, substitutions={**book.substitutions, **committed.metadata.get("substitutions", {})})
    generated = generate(md, book, evaluate, lambda cell: None)
    found = _source_differences(_numbered(committed), _numbered(generated))
    for number, cell in _numbered(committed, "code"):
        if cell.source.strip() and cell.execution_count is None:
            found.append(f"cell {number} was never executed")
        elif re.search(r"^print\(", cell.source, re.M) and not cell.outputs:
            found.append(f"cell {number} prints, but its outputs are missing")
    return found


def differences(committed: NotebookNode, fresh: NotebookNode) -> list[str]:
    """What a reader would see changed: code, what cells print, and values in prose."""
    return _source_differences(_numbered(committed, "code"), _numbered(fresh, "code")) + _output_differences(
        _numbered(committed), _numbered(fresh)
    )


def compare_built(md: Path, built_ipynb: Path, evals_json: Path) -> list[str]:
    """What differs between a page's committed notebook and the book: its executed notebook and recorded values."""
    committed, built = _read_notebook(md.with_suffix(".ipynb")), _read_notebook(built_ipynb)
    by_name = [
        [f"{name} = {value}" for name, value in sorted(values, key=lambda pair: pair[0])]
        for values in (_values(committed), json.loads(evals_json.read_text(encoding="utf-8")))
    ]
    ours, theirs = _numbered(committed, "code"), _numbered(built, "code")
    for cells in (ours, theirs):  # MyST-NB gives its cells random ids, and only our notebook folds solutions
        for position, (_, cell) in enumerate(cells):
            cell.id = f"{position}"
    return (
        _differ("code", [cell.source for _, cell in ours], [cell.source for _, cell in theirs])
        or _output_differences(ours, theirs)
    ) + _differ("values", *by_name)


def write(md: Path) -> bool:
    """Writes the page's notebook if the page changed; False if outputs changed too, which `accept` must take."""
    return _update(md, take_changes=False)


def accept(md: Path) -> bool:
    """Writes the page's notebook if anything changed, and shows what."""
    return _update(md, take_changes=True)


def _update(md: Path, *, take_changes: bool) -> bool:
    path = md.with_suffix(".ipynb")
    fresh = run(md)
    if path.exists():
        changed = _output_differences(_numbered(_read_notebook(path)), _numbered(fresh))
        _report(md, changed)
        if changed and not take_changes:
            print(f"{path} left as it is: `make accept` takes these outputs")
            return False
        if not changed and not drift(md):
            return True
    nbformat.write(fresh, path)
    print(f"{path} written")
    return True


def _check(md: Path) -> bool:
    found = drift(md)
    _report(md, found)
    return not found


def _report(md: Path, found: list[str]) -> None:
    for difference in found:
        print(f"{md}: {difference}")


def _read_page(md: Path) -> NotebookNode:
    return read_myst_markdown_notebook(md.read_text(encoding="utf-8"), MYST, add_source_map=True, path=md)


def _read_notebook(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def _folded(metadata: dict[str, object]) -> dict[str, object]:
    """Metadata that folds a solution's cell in Jupyter and Colab, and hides it behind a button in the book."""
    tags = metadata.get("tags", [])
    assert isinstance(tags, list)
    tags = tags if "hide-cell" in tags else [*tags, "hide-cell"]
    return {**metadata, "tags": tags, "jupyter": {"source_hidden": True}, "cellView": "form"}


def _with_numbered_widgets(notebook: NotebookNode, widgets: NotebookNode | None) -> NotebookNode:
    """Adds the state of widgets, their random ids replaced by numbers so that equal runs give equal files."""
    if widgets is None:
        return notebook
    notebook.metadata.widgets = widgets
    text = nbformat.writes(notebook)
    for number, model_id in enumerate(widgets[_WIDGET_STATE]["state"]):
        text = text.replace(model_id, f"{number:032x}")
    return nbformat.reads(text, as_version=4)


def _numbered(notebook: NotebookNode, cell_type: str = "") -> Cells:
    return [(n, cell) for n, cell in enumerate(notebook.cells, 1) if cell_type in ("", cell.cell_type)]


def _values(notebook: NotebookNode) -> list[tuple[str, str]]:
    return [(name, value) for cell in notebook.cells for name, value in cell.metadata.get("eval", [])]


def _aligned(old: Cells, new: Cells) -> Iterator[tuple[Cells, Cells]]:
    """Cells that belong together: one and one where the source is the same, else those that replace each other."""
    ids = [[cell.id for _, cell in cells] for cells in (old, new)]
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *ids, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from (([before], [after]) for before, after in zip(old[i1:i2], new[j1:j2], strict=True))
        else:
            yield old[i1:i2], new[j1:j2]


def _source_differences(old: Cells, new: Cells) -> list[str]:
    found = []
    for before, after in _aligned(old, new):
        number = (after or before)[0][0]
        found += _differ(f"cell {number}", *("\n".join(_source(cell) for _, cell in run) for run in (before, after)))
    return found


def _output_differences(old: Cells, new: Cells) -> list[str]:
    """Differences in what cells of the same source print, and in the values of text cells."""
    found = []
    for before, after in _aligned(old, new):
        if [cell.id for _, cell in before] != [cell.id for _, cell in after]:
            continue
        (_, was), (number, now) = before[0], after[0]
        values = [[f"{name} = {value}" for name, value in cell.metadata.get("eval", [])] for cell in (was, now)]
        found += _differ(f"values of cell {number}", *values)
        if now.cell_type == "code" and IGNORED not in was.metadata.get("tags", []):
            found += _differ(f"output of cell {number}", _printed(was), _printed(now))
    return found


def _source(cell: NotebookNode) -> str:
    metadata = {key: value for key, value in cell.metadata.items() if key != "eval"}
    return f"{cell.source}\n{json.dumps(metadata, sort_keys=True)}\n" if metadata else f"{cell.source}\n"


def _printed(cell: NotebookNode) -> str:
    """What a cell shows as text: stdout in one piece as a terminal shows it, then each rich output; no images."""
    stdout = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
    texts = [re.sub(r".*\r(?=[^\n])", "", stdout)]
    for output in cell.outputs:
        if output.output_type == "error":
            texts.append(f"{output.ename}: {output.evalue}")
        texts += [text for mime, text in sorted(output.get("data", {}).items()) if mime.startswith("text/")]
    return "\n".join(texts)
