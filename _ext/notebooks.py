"""The notebook beside each page: generated from the page by a real run, and compared with later runs.

    python _ext/notebooks.py write [PAGE.md ...]    generate; refuses to replace outputs that changed
    python _ext/notebooks.py accept [PAGE.md ...]   generate; shows what changed and takes it
    python _ext/notebooks.py check [PAGE.md ...]    compare sources without running anything

Without pages: all in chapters/ and labs/ that have code cells. A notebook in which nothing comparable changed keeps its
bytes, so timings alone never make a diff. Changed figures are taken, but are no reason to refuse.
"""

import argparse
import difflib
import hashlib
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import nbformat
from myst_nb.core.config import NbParserConfig
from myst_nb.core.execute.inline import ModifiedNotebookClient
from myst_nb.core.read import MystMetadataParsingError, read_myst_markdown_notebook
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_notebook
from plain import MYST, Book, PageError, PlainMarkdown, read_book

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 120
IGNORED = "nbval-ignore-output"
ANSWER = "answer"
_ANSWER_CELL = re.compile(rf"^```\{{code-cell\}}[^\n]*\n:tags: \[{ANSWER}\]\n.*?^```$", re.M | re.S)
_WIDGET = "application/vnd.jupyter.widget-view+json"
_WIDGET_STATE = "application/vnd.jupyter.widget-state+json"

Cells = Sequence[tuple[int, NotebookNode]]  # cells with their number in the notebook, from 1


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that have a notebook: those in chapters/ and labs/ with code cells."""
    candidates = [page for folder in ("chapters", "labs") for page in sorted((root / folder).glob("*.md"))]
    return [page for page in candidates if any(cell.cell_type == "code" for cell in read_page(page).cells)]


def orphans(root: Path = ROOT) -> list[Path]:
    """Notebooks whose page is gone."""
    expected = [page.with_suffix(".ipynb") for page in pages(root)]
    committed = [path for folder in ("chapters", "labs") for path in sorted((root / folder).glob("*.ipynb"))]
    return [path for path in committed if path not in expected]


def generate(
    md: Path,
    book: Book,
    evaluate: Callable[[str], str],
    execute: Callable[[NotebookNode], None],
) -> NotebookNode:
    """The notebook of a page, its cells made in order: `execute` fills a code cell, `evaluate` gives a value in prose.

    The metadata of a text cell records its values as `eval`. A cell's id is a hash of its source in the page, so that
    it stays when a value or another cell changes.
    """
    notebook = read_page(md)
    book = replace(book, substitutions={**book.substitutions, **_own(notebook)})
    page = PlainMarkdown(book, md, evaluate)
    lines = _page_text(md).split("\n")
    seen: Counter[str] = Counter()
    for cell, start in zip(notebook.cells, notebook.metadata.source_map, strict=True):
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        cell.id = f"{digest}-{seen[digest]}"
        seen[digest] += 1
        if cell.cell_type == "markdown":
            first = next(n for n, line in enumerate(lines[start:], start) if line.strip())
            page.values.clear()
            cell.source = page.cell(cell.source, first + 1)
            if page.values:
                cell.metadata["eval"] = list(page.values)
        elif cell.cell_type == "code":
            if page.solution:
                _fold(cell)
            try:
                execute(cell)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                raise PageError(f"{md}:{start}: {error}") from error
    page.finish()
    notebook.cells = [cell for cell in notebook.cells if cell.source]
    notebook.nbformat_minor = 5  # the first with cell ids
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},  # the book's highlighting knows `!` and `%`
        "course": dict(book.substitutions),  # minutes, and when it was run
    }
    return notebook


def _own(notebook: NotebookNode) -> dict[str, str]:
    """What the page's own front matter defines, such as its minutes."""
    own = notebook.metadata.get("myst", {}).get("substitutions", {})
    return {name: str(value) for name, value in own.items()}


def run(md: Path, timeout_s: int = CELL_TIMEOUT_S) -> NotebookNode:
    """The notebook of a page, executed in one kernel in the page's folder.

    The client is the one with which MyST-NB builds the book, so that both see the same outputs and values. What goes to
    stderr is left out: progress bars and the platform's warnings differ from run to run and teach nothing.
    """
    client = ModifiedNotebookClient(
        new_notebook(),  # type: ignore[no-untyped-call]
        timeout=timeout_s,
        kernel_name="python3",
        resources={"metadata": {"path": str(md.parent)}},
        record_timing=False,
        coalesce_streams=True,
        shutdown_kernel="immediate",
        extra_arguments=["--log-level=ERROR"],
    )

    def execute(cell: NotebookNode) -> None:
        client.nb.cells.append(cell)
        client.execute_cell(cell, len(client.nb.cells) - 1)
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr" and not _is_progress_bar(output)]

    def evaluate(name: str) -> str:
        if not re.match(NbParserConfig().eval_name_regex, name):
            raise ValueError("not a plain name")
        outputs = client.eval_expression(name)
        if outputs and outputs[0].output_type == "error":
            raise ValueError(f"{outputs[0].ename}: {outputs[0].evalue}")
        if len(outputs) != 1 or set(outputs[0].get("data", {})) != {"text/plain"}:
            raise ValueError("not a value that prints as plain text")
        text: str = outputs[0].data["text/plain"]
        return text[1:-1] if re.match(r"""^(["']).*\1$""", text) else text  # strings without quotes, as in the book

    with client.setup_kernel():
        notebook = generate(md, read_book(md.parent.parent), evaluate, execute)
        client.set_widgets_metadata()
    if any(_WIDGET in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])):
        notebook.metadata.update(client.nb.metadata)
    return notebook


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
    recorded_too = {name: committed.metadata.get("course", {}).get(name, value) for name, value in book.substitutions.items()}
    book = replace(book, substitutions=recorded_too)
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
    ours, theirs = _numbered(committed, "code"), _numbered(built, "code")
    for _, cell in (*ours, *theirs):
        cell.id = cell.source  # the book's ids are random: align by source
    for _, cell in theirs:
        cell.outputs = _merged(cell.outputs)
    recorded = json.loads(evals_json.read_text(encoding="utf-8"))
    our_code, their_code = ([line for _, cell in cells for line in cell.source.splitlines()] for cells in (ours, theirs))
    # Sphinx reads some text, such as footnotes, out of order: compare the values name by name.
    our_values, their_values = (sorted(values, key=itemgetter(0)) for values in (_values(committed), recorded))
    return [
        *_differ("code", our_code, their_code),
        *_output_differences(ours, theirs),
        *_differ("values", _value_lines(our_values), _value_lines(their_values)),
    ]


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
        committed = _read_notebook(path)
        changed = _output_differences(_numbered(committed), _numbered(fresh))
        _report(md, changed)
        if changed and not take_changes:
            print(f"{path} left as it is: `make accept` takes these outputs")
            return False
        if not changed and not drift(md) and _figures(committed) == _figures(fresh):
            return True
    path.write_text(_text(fresh), encoding="utf-8")
    print(f"{path} written")
    return True


def _check(md: Path) -> bool:
    found = drift(md)
    _report(md, found)
    return not found


def _report(md: Path, found: list[str]) -> None:
    for difference in found:
        print(f"{md}: {difference}")


def read_page(md: Path, *, answers: bool = False) -> NotebookNode:
    """The cells of a page as written, not executed; MyST-NB reads them as for the book.

    A lab's answers, in cells tagged `answer`, are left out unless asked for: a lab is handed out without them.
    """
    try:
        text = _page_text(md, answers=answers)
        notebook: NotebookNode = read_myst_markdown_notebook(text, MYST, add_source_map=True, path=md)
    except MystMetadataParsingError as error:
        raise PageError(f"{md}: {error}") from error
    return notebook


def _page_text(md: Path, *, answers: bool = False) -> str:
    text = md.read_text(encoding="utf-8")
    return handed_out(text) if md.parent.name == "labs" and not answers else text


def handed_out(lab: str) -> str:
    """The text of a lab without the cells of its answers; the lines of all else keep their numbers."""
    return _ANSWER_CELL.sub(lambda cell: "\n" * cell[0].count("\n"), lab)


def _read_notebook(path: Path) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def _text(notebook: NotebookNode) -> str:
    """The file of a notebook; the random ids of widgets become numbers, so that equal runs give equal files."""
    text: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    for number, model_id in enumerate(notebook.metadata.get("widgets", {}).get(_WIDGET_STATE, {}).get("state", {})):
        text = text.replace(model_id, f"{number:032x}")
    return json.dumps(json.loads(text), ensure_ascii=False, indent=1, sort_keys=True) + "\n"  # as nbformat does it


def _is_progress_bar(output: NotebookNode) -> bool:
    """A bar of tqdm that has closed: its text is what it showed at the start."""
    return bool(re.search(r"\d+%\|.*\[\d+:\d+<", output.get("data", {}).get("text/plain", "")))


def _fold(cell: NotebookNode) -> None:
    """Folds the cell of a solution in Jupyter and Colab, and hides it behind a button in the book."""
    cell.metadata.setdefault("tags", [])
    if "hide-cell" not in cell.metadata.tags:
        cell.metadata.tags.append("hide-cell")
    cell.metadata["jupyter"] = {"source_hidden": True}
    cell.metadata["cellView"] = "form"


def _numbered(notebook: NotebookNode, cell_type: str = "") -> Cells:
    return [(n, cell) for n, cell in enumerate(notebook.cells, 1) if cell_type in ("", cell.cell_type)]


def _values(notebook: NotebookNode) -> list[tuple[str, str]]:
    return [(name, value) for cell in notebook.cells for name, value in cell.metadata.get("eval", [])]


def _aligned(old: Cells, new: Cells) -> Iterator[tuple[Cells, Cells]]:
    """Cells that belong together: one and one where the source is the same, else those that replace each other."""
    old_ids, new_ids = ([cell.id for _, cell in cells] for cells in (old, new))
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old_ids, new_ids, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from (([before], [after]) for before, after in zip(old[i1:i2], new[j1:j2], strict=True))
        else:
            yield old[i1:i2], new[j1:j2]


def _source_differences(old: Cells, new: Cells) -> list[str]:
    found = []
    for before, after in _aligned(old, new):
        number = (after or before)[0][0]
        old_lines, new_lines = ([line for _, cell in cells for line in _source(cell)] for cells in (before, after))
        found += _differ(f"cell {number}", old_lines, new_lines)
    return found


def _output_differences(old: Cells, new: Cells) -> list[str]:
    """Differences in what cells of the same source print, and in the values in text cells."""
    found = []
    for before, after in _aligned(old, new):
        if [cell.id for _, cell in before] != [cell.id for _, cell in after]:
            continue
        (_, was), (number, now) = before[0], after[0]
        old_values, new_values = (_value_lines(cell.metadata.get("eval", [])) for cell in (was, now))
        found += _differ(f"values in cell {number}", old_values, new_values)
        if now.cell_type == "code" and IGNORED not in now.metadata.get("tags", []):
            printed = _printed(was), _printed(now)
            if "".join("".join(printed[0]).split()) != "".join("".join(printed[1]).split()):  # not for a line end alone
                found += _differ(f"output of cell {number}", *printed)
    return found


def _source(cell: NotebookNode) -> list[str]:
    metadata = {key: value for key, value in cell.metadata.items() if key != "eval"}
    return [*cell.source.splitlines(), *([json.dumps(metadata, sort_keys=True)] if metadata else [])]


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Without the pieces of stdout that MyST-NB has joined to the first one and still left where they were.

    A kernel sends pieces when a cell takes long. MyST-NB puts an end of line between them, wherever they were cut.
    """
    pieces = [id(output) for output in outputs if output.get("name") == "stdout"]
    return [output for output in outputs if id(output) not in pieces[1:]]


def _printed(cell: NotebookNode) -> list[str]:
    """The text that a cell shows: stdout in one piece, as a terminal shows it, then each rich output; no images."""
    stdout = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
    texts = [re.sub(r".*\r(?=[^\n])", "", stdout)]
    for output in cell.outputs:
        if output.output_type == "error":
            texts.append(f"{output.ename}: {output.evalue}")
        texts += [text for mime, text in sorted(output.get("data", {}).items()) if mime.startswith("text/")]
    return "\n".join(texts).splitlines()


def _figures(notebook: NotebookNode) -> list[str]:
    """The images of cells whose output is compared; a figure of timings differs in every run."""
    cells = [cell for _, cell in _numbered(notebook, "code") if IGNORED not in cell.metadata.get("tags", [])]
    return [
        output.data["image/png"].strip() for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})
    ]


def _value_lines(values: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name} = {value}" for name, value in values]


def _differ(title: str, old: Sequence[str], new: Sequence[str]) -> list[str]:
    """At most one difference, as a short unified diff below its title."""
    diff = list(difflib.unified_diff(old, new, "committed", "now", lineterm="", n=1))
    return ["\n".join([title, *diff])] if diff else []


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if a page has errors or differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["write", "accept", "check"])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE.md")
    options = parser.parse_args(arguments)
    os.environ.setdefault("SCALING_LIB_RECORDS", "only")  # pages show records, so that they are the same everywhere
    action = {"write": write, "accept": accept, "check": _check}[options.command]
    lost = orphans() if options.command == "check" and not options.pages else []
    for path in lost:
        print(f"{path}: its page is gone, or has no code cells")
    good = not lost
    for md in [page.resolve() for page in options.pages] or pages():
        try:
            good &= action(md)
        except PageError as error:
            print(error)
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
