"""Student and answer editions of all labs and chapters, as notebooks without outputs.

    python _ext/editions.py [FOLDER]    FOLDER/students and FOLDER/answers, by default in _build/editions

Students get labs as they are handed out, and chapters without solutions. In the answer edition each question is answered,
and solutions stay. Both come from the committed notebooks; nothing is run.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode
from notebooks import ANSWER, ROOT, pages, read_page

from scaling_lib.grading.notebook import Cell, answered, statements

FOLDER = ROOT / "_build/editions"
_SOLUTION = re.compile(r"<details><summary>Solution</summary>\n\n.*?\n\n</details>\n*", re.S)
_LINK = re.compile(r"\]\(((?:\.\./)?(?:[\w-]+/)?[\w-]+)\.md\)")


class EditionError(Exception):
    """A page whose answers do not fit its questions; the message begins with the page."""


def student(page: Path) -> NotebookNode:
    """A page as it is handed out."""
    notebook = _bare(page)
    if page.parent.name == "chapters":
        notebook.cells = [cell for cell in notebook.cells if not _of_solution(cell)]
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = _SOLUTION.sub("", cell.source).rstrip("\n")
        notebook.cells = [cell for cell in notebook.cells if cell.source]
    return notebook


def answers(page: Path) -> NotebookNode:
    """A page with each question answered."""
    notebook = _bare(page)
    asking = [cell for cell in notebook.cells if cell.cell_type == "code" and not _is_answer(cell)]
    for at, answer in _answers(page):
        try:
            asking[at].source = answered(asking[at].source, answer)
        except ValueError as error:
            raise EditionError(f"{page}: {error}") from error
    notebook.cells = [cell for cell in notebook.cells if not _is_answer(cell)]
    for at, cell in enumerate(asking):
        if left := Cell(str(at), cell.source).asked:
            raise EditionError(f"{page}: nothing answers {', '.join(left)}")
    return notebook


def _answers(page: Path) -> Iterator[tuple[int, str]]:
    """Each answer, and which code cell it is for, answers not counted.

    In a lab that is the one above it; in a chapter the one that asks for its names.
    """
    cells = [cell for cell in read_page(page, answers=True).cells if cell.cell_type == "code"]
    asking = [Cell("", cell.source) for cell in cells if not _is_answer(cell)]
    above = -1
    for cell in cells:
        if not _is_answer(cell):
            above += 1
        elif page.parent.name == "labs":
            yield above, cell.source
        else:
            names = set(re.findall(r"^(\w+) = ", cell.source, re.M))
            yield from ((at, _of(cell.source, one.asked)) for at, one in enumerate(asking) if names & set(one.asked))


def _of(answer: str, names: Sequence[str]) -> str:
    """The part of a solution's answers that is for one cell."""
    return "\n".join(statement.text for statement in statements(answer) if statement.names & set(names))


def _bare(page: Path) -> NotebookNode:
    """The committed notebook without what its run left, and with links that lead somewhere from a student's folder."""
    notebook: NotebookNode = nbformat.read(page.with_suffix(".ipynb"), as_version=4)  # type: ignore[no-untyped-call]
    notebook.metadata.pop("widgets", None)

    def leads(match: re.Match[str]) -> str:
        target = os.path.normpath(f"{page.parent.name}/{match[1]}")
        here = page.parents[1] / f"{target}.ipynb"  # without cells there is none, and the site has the page
        return f"]({match[1]}.ipynb)" if here.exists() else f"]({_site()}{target}.html)"

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        else:
            cell.source = _LINK.sub(leads, cell.source)
            cell.metadata.pop("eval", None)
    return notebook


@cache
def _site() -> str:
    return str(yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["html"]["baseurl"])


def _is_answer(cell: NotebookNode) -> bool:
    return ANSWER in cell.metadata.get("tags", [])


def _of_solution(cell: NotebookNode) -> bool:
    """Code of a solution is folded in Colab: notebooks.py has done that."""
    return cell.cell_type == "code" and (_is_answer(cell) or cell.metadata.get("cellView") == "form")


def write(folder: Path = FOLDER, root: Path = ROOT) -> list[Path]:
    """Write both editions of all pages, or, where one cannot be made, nothing."""
    new = folder.with_name(f".{folder.name}-{os.getpid()}")
    written = []
    try:
        for page in pages(root):
            for name, make in (("students", student), ("answers", answers)):
                path = new / name / page.relative_to(root).with_suffix(".ipynb")
                path.parent.mkdir(parents=True, exist_ok=True)
                nbformat.write(make(page), path)  # type: ignore[no-untyped-call]
                written.append(folder / path.relative_to(new))
        shutil.rmtree(folder, ignore_errors=True)
        new.replace(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return written


def main(arguments: Sequence[str]) -> int:
    """The command line; 1 if a page's answers do not fit its questions."""
    folder = Path(arguments[0]) if arguments else FOLDER
    try:
        written = write(folder)
    except EditionError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(written)} notebooks in {folder}/students and {folder}/answers")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
