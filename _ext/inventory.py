"""What the course consists of, read from its pages: sections, takeaways, exercises and labs, each with its minutes.

Nothing is run. The front matter of a chapter says how long it takes to read, that of a lab how long it takes in all, and
each exercise says its minutes and its level. A chapter's minutes of reading are shared out among its sections by their words.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import yaml
from nbformat import NotebookNode
from notebooks import ANSWER, read_page

ROOT = Path(__file__).resolve().parent.parent
_UNREAD = {"Problems", "Further reading"}  # sections that the minutes of reading do not count
_HEADING = re.compile(r"(?:^\((?P<label>[\w-]+)\)=\n)?^(?P<level>##?) (?P<title>.+)$", re.M)
_EXERCISE = re.compile(r"\{exercise-start\} (?P<title>.+)\n(?P<options>(?::\w+: .+\n)+)")
_TAKEAWAY = re.compile(r"^(?P<fence>:{3,})\{admonition\} Takeaway\n:class: [^\n]*\n(?P<text>.*?)\n(?P=fence)$", re.M | re.S)


@dataclass(frozen=True)
class Section:
    """A section of a chapter: what it is called, how long one reads it, and what to take away from it, in MyST."""

    label: str
    title: str
    minutes: int
    takeaways: tuple[str, ...]


@dataclass(frozen=True)
class Exercise:
    """An exercise: its title, and each wrong answer that has a hint, as code -> the hint.

    Where code is asked the check explains what is wrong; the one hint is the sentence above the cell, for no answer.
    """

    doc: str
    label: str
    title: str
    minutes: int
    level: int
    hints: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Page:
    """A chapter or a lab; `doc` is its name in the book, such as `labs/03-sharding`."""

    doc: str
    title: str
    minutes: int
    sections: tuple[Section, ...]
    exercises: tuple[Exercise, ...]

    @cached_property
    def is_lab(self) -> bool:
        """Whether it is a lab."""
        return self.doc.startswith("labs/")


@cache
def course(root: Path = ROOT) -> tuple[Page, ...]:
    """All chapters and labs, in the order in which the book has them."""
    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    return tuple(page(root / f"{doc}.md", root) for doc in _files(contents) if re.search(r"(^|/)\d\d\w?-", doc))


@cache
def takeaways(label: str, root: Path = ROOT) -> tuple[str, ...]:
    """The takeaways of a section, in MyST; ValueError if there is no such section, or it has none."""
    for section in (section for page in course(root) for section in page.sections):
        if section.label == label:
            if not section.takeaways:
                raise ValueError(f"section {label} has no takeaway")
            return section.takeaways
    raise ValueError(f"no section has the label {label}")


def _files(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        yield from [node["file"]] if "file" in node else []
        for value in node.values():
            yield from _files(value)
    elif isinstance(node, list):
        for value in node:
            yield from _files(value)


def page(md: Path, root: Path = ROOT) -> Page:
    """One chapter or lab."""
    notebook = read_page(md, answers=True)
    doc = md.relative_to(root).with_suffix("").as_posix()
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    given = notebook.metadata["myst"]["substitutions"]
    lab = doc.startswith("labs/")
    exercises = tuple(_of_lab(doc, notebook) if lab else _of_chapter(doc, notebook))
    minutes = given["minutes"] if lab else given["reading"] + sum(exercise.minutes for exercise in exercises)
    sections = () if lab else tuple(_sections(notebook, given["reading"]))
    (title, *_) = (heading["title"] for heading in _HEADING.finditer(text) if heading["level"] == "#")
    return Page(doc, title, minutes, sections, exercises)


def _sections(notebook: NotebookNode, reading: int) -> Iterator[Section]:
    """The opening and each section; their minutes add up to those of reading."""
    parts: list[list[str]] = []  # label, title, text
    words: list[float] = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            hidden = {"hide-input", "remove-cell", "hide-cell"} & {*cell.metadata.get("tags", [])}
            words[-1:] = [words[-1] + len(cell.source.split()) / 2 * (not hidden)] if words else []
            continue
        place = 0
        for heading in _HEADING.finditer(cell.source):
            _extend(parts, words, cell.source[place : heading.start()])
            parts.append([heading["label"] or "", heading["title"], ""])
            words.append(0)
            place = heading.end()
        _extend(parts, words, cell.source[place:])
    read = [(part, count) for part, count in zip(parts, words, strict=True) if part[1] not in _UNREAD]
    shares = _shared(reading, [count for _, count in read])
    for ((label, title, text), _), minutes in zip(read, shares, strict=True):
        takeaways = tuple(found["text"] for found in _TAKEAWAY.finditer(text))
        yield Section(label, title, minutes, takeaways)


def _extend(parts: list[list[str]], words: list[float], text: str) -> None:
    if parts:
        parts[-1][2] += f"\n\n{text}"
        words[-1] += len(text.split())


def _shared(total: int, weights: list[float]) -> list[int]:
    """Whole minutes in proportion to the weights; they add up to the total."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for i in by_rest[: total - sum(shares)]:
        shares[i] += 1
    return shares


def _of_chapter(doc: str, notebook: NotebookNode) -> Iterator[Exercise]:
    started: tuple[str, dict[str, str]] | None = None
    code = ""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            code += f"{cell.source}\n"
            continue
        for found in re.finditer(rf"{_EXERCISE.pattern}|\{{exercise-end\}}", cell.source):
            if found["title"]:
                started, code = (found["title"], dict(re.findall(r":(\w+): (.+)", found["options"]))), ""
            elif started:
                title, options = started
                yield Exercise(doc, options["label"], title, int(options["minutes"]), int(options["level"]), _hints(code))
                started = None


def _of_lab(doc: str, notebook: NotebookNode) -> Iterator[Exercise]:
    """The title of an exercise is its heading, and then its question if it asks for a number, its name if it asks for code."""
    asked = heading = ""
    found: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^#+ (.+)$", cell.source, re.M)
            heading = headings[-1] if headings else heading
            prose = cell.source.replace("{eval}`", "`")  # a page that lists this has not run it
            lines = [line for line in prose.splitlines() if re.search(r"^[^:`].*\w", line)]
            questions = [line for line in lines if re.search(r"(\S+ ){3}.*\?\W*$", line)] or lines
            lead = r"^\*?\(\d+ minutes\)\*? *|^[#*>\d. -]*(Predict[^:]*: )?|[*:]+$"
            asked = re.sub(lead, "", questions[-1]) if lines else asked
        elif "minutes" in cell.metadata and ANSWER not in cell.metadata.get("tags", []):
            hints = _hints(cell.source)
            (name, *_) = re.findall(r"^(?:def )?(your_\w+|\w+)\b", cell.source[cell.source.find("your_") :], re.M)
            title = f"{heading.rstrip('?:')}: {asked}" if hints else f"{heading.rstrip('?:')}: `{name}`"
            title, found = (f"{title} `{name}`" if title in found else title), {*found, title}
            yield Exercise(doc, "", title, cell.metadata["minutes"], cell.metadata["level"], hints or (("", asked),))


def _hints(code: str) -> tuple[tuple[str, str], ...]:
    """Wrong answers and their hints: what a cell's dicts map to sentences."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None and isinstance(value, ast.Constant | ast.JoinedStr) and " " in ast.unparse(value):
                    words = value.value if isinstance(value, ast.Constant) else ast.unparse(value)[2:-1]
                    found.append((ast.unparse(key), str(words)))
    return tuple(found)
