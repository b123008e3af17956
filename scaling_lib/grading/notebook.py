"""Notebooks as a grader reads them: what the handed-out edition asks, and what a submission puts in its place.

Nothing here runs a cell. Submissions are not trusted: what does not parse is told, and never raises anything but ValueError.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TODO = "# TODO"
MOST_BYTES = 50_000_000
_EFFORT = re.compile(r"\*\d+ minutes, level (\d) of \d\*")
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Statement:
    """One statement of a cell, with the comment behind it; `form` is the same for those that differ in spaces alone."""

    names: frozenset[str]
    text: str
    form: str
    start: int
    end: int
    bare: bool

    @property
    def asked(self) -> bool:
        """Whether it is to be replaced by an answer."""
        return TODO in self.text and bool(self.names)


@dataclass(frozen=True)
class Cell:
    """A code cell; `level` is its exercise's."""

    id: str
    source: str
    level: int = 1

    @property
    def asked(self) -> tuple[str, ...]:
        """Names that an answer binds; none where the cell is no exercise."""
        if TODO not in self.source:
            return ()
        return tuple(dict.fromkeys(name for s in statements(self.source) if s.asked for name in sorted(s.names)))


@dataclass(frozen=True)
class Step:
    """One thing to run: a `source`, then for an exercise its `check`, an expression. `cell` counts handed-out code cells."""

    source: str
    cell: int | None
    check: str = ""
    names: tuple[str, ...] = ()


@dataclass
class Filled:
    """A submission, laid over the handed-out edition: what to run, and what is to be said of it."""

    steps: list[Step] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def statements(source: str) -> list[Statement]:
    """The statements of a cell.

    Raises:
        ValueError: it does not parse.
    """
    try:
        body = ast.parse(source).body
        forms = [ast.dump(node) for node in body]
    except _UNREADABLE as error:
        raise ValueError(f"does not parse: {_words(error)}") from error
    lines = source.splitlines(keepends=True)
    found = []
    for node, form in zip(body, forms, strict=True):
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        last = node.end_lineno or node.lineno
        text = "".join(lines[first - 1 : last]).rstrip("\n")
        found.append(Statement(frozenset(_bound(node)), text, form, first - 1, last, isinstance(node, ast.Expr)))
    return found


def _words(error: BaseException) -> str:
    where = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
    return f"{getattr(error, 'msg', None) or error or type(error).__name__}{where}"


def _bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement binds where it stands; not those inside a function or a comprehension."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    targets = [*getattr(node, "targets", []), getattr(node, "target", None)]
    targets += [item.optional_vars for item in getattr(node, "items", []) if isinstance(item, ast.withitem)]
    for target in filter(None, targets):
        yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    for block in ("body", "orelse", "finalbody", "handlers"):
        for inner in getattr(node, block, []):
            yield from _bound(inner)


def read(path: Path) -> dict[str, Any]:
    """A notebook's JSON.

    Raises:
        ValueError: it is none.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES / 1e6:.0f} MB")
    try:
        notebook: dict[str, Any] = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON, so no notebook: {error}") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ValueError("JSON, but no notebook of format 4: it has no list of cells")
    return notebook


def title(notebook: Mapping[str, Any]) -> str:
    """The first heading."""
    for cell in notebook["cells"]:
        if cell.get("cell_type") == "markdown" and (found := re.search(r"^# +(.+)$", text_of(cell), re.M)):
            return found[1].strip()
    return ""


def text_of(cell: Mapping[str, Any]) -> str:
    """A cell's source; notebooks hold it as one string or as lines."""
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def code(notebook: Mapping[str, Any]) -> list[Cell]:
    """The code cells. An exercise's level stands in its cell's metadata, or in the text above it; 1 where nothing says so."""
    found, above = [], 1
    for cell in notebook["cells"]:
        metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
        if cell.get("cell_type") == "markdown":
            above = int(said[-1]) if (said := _EFFORT.findall(text_of(cell))) else above
        elif cell.get("cell_type") == "code":
            number = str(metadata.get("level", above))
            name = cell.get("id") or metadata.get("id") or ""  # Colab writes it into the metadata
            found.append(Cell(str(name), text_of(cell), int(number) if number.isdecimal() else 1))
            above = 1 if TODO in text_of(cell) else above
    return found


def answered(source: str, answer: str) -> str:
    """A cell in which the statements of an answer stand in place of those that bind the same names.

    Raises:
        ValueError: the answer has a statement that replaces none, or leaves one out.
    """
    asked = [s for s in statements(source) if s.asked]
    given = {s.names: s for s in statements(answer)}
    if set(given) != {s.names for s in asked}:
        raise ValueError(f"the answer binds {_listed(given)}; the cell asks for {_listed(s.names for s in asked)}")
    lines = source.splitlines()
    for statement in reversed(asked):
        lines[statement.start : statement.end] = given[statement.names].text.splitlines()
    return "\n".join(lines)


def _listed(names: Any) -> str:
    return ", ".join(sorted(name for some in names for name in some)) or "nothing"


def unanswered(cells: Sequence[Cell]) -> Filled:
    """The handed-out edition itself, as a submission."""
    return Filled([_step(number, cell, statements(cell.source) if cell.asked else []) for number, cell in enumerate(cells)])


def _step(number: int, cell: Cell, parts: list[Statement]) -> Step:
    """A cell, and for an exercise its last expression apart, as its check; it stands in `parts`, whatever is added."""
    if not parts:
        return Step(cell.source, number)
    last = statements(cell.source)[-1]
    if not last.bare:
        return Step("\n".join(s.text for s in parts), number, "", cell.asked)
    at = max(i for i, s in enumerate(parts) if s.form == last.form)
    return Step("\n".join(s.text for s in [*parts[:at], *parts[at + 1 :]]), number, last.text, cell.asked)


def fill(cells: Sequence[Cell], submitted: Sequence[Cell]) -> Filled:
    """Lay a submission over the handed-out edition.

    Answers, and cells that were added, are the submission's. All else is the handed-out edition's.

    Raises:
        ValueError: it is a submission for another notebook.
    """
    place = _places(cells, submitted)
    if 2 * len(place) < len(cells):
        raise ValueError(f"for another notebook: {len(place)} of {len(cells)} code cells are this one's")
    theirs = {number: submitted[at] for at, number in place.items()}
    added: dict[int, list[Cell]] = {}  # below which handed-out cell
    last = -1
    for at, cell in enumerate(submitted):
        last = place.get(at, last)
        if at not in place and cell.source.strip():
            added.setdefault(last, []).append(cell)
    filled, changed = Filled(), 0
    for number in range(-1, len(cells)):
        if number >= 0:
            cell = cells[number]
            filled.steps.append(_step(number, cell, _answer(filled, cell, theirs.get(number)) if cell.asked else []))
            changed += number in theirs and not cell.asked and cell.source.strip() != theirs[number].source.strip()
        filled.steps += [Step(cell.source, None) for cell in added.get(number, [])]
    count = sum(map(len, added.values()))
    filled.remarks += [f"{changed} cell(s) changed; those handed out were run"] * bool(changed)
    filled.remarks += [f"{count} cell(s) added, and run in place"] * bool(count)
    bound = {name for cell in cells for s in _parts(cell.source) if not s.asked for name in s.names}
    names = {name for some in added.values() for cell in some for s in _parts(cell.source) for name in s.names}
    if again := names & bound:
        filled.remarks.append(f"added cells bind names of the notebook again: {', '.join(sorted(again))}")
    if misplaced := names & {name for cell in cells for name in cell.asked}:
        filled.remarks.append(f"answers count in their own cells alone, not in added ones: {', '.join(sorted(misplaced))}")
    return filled


def _parts(source: str) -> list[Statement]:
    try:
        return statements(source)
    except ValueError:
        return []


def _places(cells: Sequence[Cell], submitted: Sequence[Cell]) -> dict[int, int]:
    """Place in the submission -> number of the handed-out cell: by id, else by source, else by the names it answers."""
    place: dict[int, int] = {}

    def take(same: Any) -> None:
        for number, cell in enumerate(cells):
            if number not in place.values():
                free = (at for at, theirs in enumerate(submitted) if at not in place and same(cell, theirs))
                if (found := next(free, None)) is not None:
                    place[found] = number

    take(lambda cell, theirs: bool(cell.id) and cell.id == theirs.id)
    take(lambda cell, theirs: cell.source.strip() == theirs.source.strip())
    take(lambda cell, theirs: cell.asked and _answers(theirs.source, cell.asked))
    return place


def _answers(source: str, names: Sequence[str]) -> bool:
    return all(re.search(rf"^(def )?{name}\b", source, re.M) for name in names)


def _answer(filled: Filled, cell: Cell, theirs: Cell | None) -> list[Statement]:
    """The statements to run for an exercise: the submission's answers and additions, the handed-out edition's check."""
    own, asked = statements(cell.source), set(cell.asked)
    named = ", ".join(cell.asked)
    if theirs is None:
        filled.remarks.append(f"missing: the cell of {named}")
        return own
    try:
        given = statements(_plain(theirs.source))
    except ValueError as error:
        filled.remarks.append(f"the cell of {named} {error}")
        return own
    forms = [s.form for s in own if not s.asked]
    ours = {name for s in own if not s.asked for name in s.names}
    strange = [s for s in given if s.form not in forms]
    mine = [s for s in strange if not s.names & ours]
    intact = len(mine) == len(strange) and [s.form for s in given if s.form in forms] == forms
    if intact and asked <= {name for s in mine for name in s.names}:
        return given
    if not intact:
        filled.remarks.append(f"edited check cell: that of {named}; the handed-out check was run")
    first = next(i for i, s in enumerate(own) if s.asked)
    unanswered = [s for s in own if s.asked and not any(s.names & one.names for one in mine)]
    return [*own[:first], *unanswered, *(s for s in mine if not s.bare), *(s for s in own[first:] if not s.asked)]


def _plain(source: str) -> str:
    """Without what only IPython reads: `%` and `!` become calls."""
    try:
        ast.parse(source)
    except _UNREADABLE:
        from IPython.core.inputtransformer2 import TransformerManager

        try:
            return str(TransformerManager().transform_cell(source))  # type: ignore[no-untyped-call]
        except _UNREADABLE:
            return source
    return source
