"""Grades submissions for one notebook: points for the checks they pass, hints for those they do not.

Numbers and choices are judged here, by the questions that the handed-out edition asks when nobody has answered. Functions
are judged where they run. An exercise counts as many points as its level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from scaling_lib.grading import notebook, sandbox
from scaling_lib.grading.notebook import Cell, Step
from scaling_lib.show import check

MEASURED = "asks for what this machine measures: not counted"


@dataclass(frozen=True)
class Exercise:
    """What one exercise is worth, and its question where it has one; `measured`: its answer differs from run to run."""

    names: tuple[str, ...]
    points: int
    question: check.Question | None
    measured: bool = False


@dataclass(frozen=True)
class Lab:
    """A handed-out notebook, and what it asks: number of the code cell -> exercise."""

    path: Path
    title: str
    cells: Sequence[Cell]
    exercises: Mapping[int, Exercise]
    guards: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mark:
    """One exercise of a submission; `words` are what its check says: a hint, where it is not passed."""

    names: tuple[str, ...]
    passed: bool
    points: int
    of: int
    words: str


@dataclass(frozen=True)
class Report:
    """What became of a submission. `refused`: why it was not run; `stopped`: why it did not come to its end."""

    submission: str
    marks: tuple[Mark, ...] = ()
    remarks: tuple[str, ...] = ()
    refused: str = ""
    stopped: str = ""
    guards: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def points(self) -> int:
        """Points reached."""
        return sum(mark.points for mark in self.marks)

    @property
    def of(self) -> int:
        """Points that can be reached."""
        return sum(mark.of for mark in self.marks)

    def json(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return {**asdict(self), "points": self.points, "of": self.of, "passed": sum(mark.passed for mark in self.marks)}

    def text(self) -> str:
        """All of it, as lines to read."""
        if self.refused:
            return f"{self.submission}: not graded, {self.refused}"
        passed = sum(mark.passed for mark in self.marks)
        lines = [
            f"{self.submission}: {self.points} of {self.of} points, {passed} of {len(self.marks)} checks, {self.seconds:.0f} s"
        ]
        lines += [f"  stopped: it {self.stopped}"] * bool(self.stopped)
        lines += [f"  {'+' if m.passed else '-'} {', '.join(m.names)} ({m.points} of {m.of}): {m.words}" for m in self.marks]
        lines += [f"  note: {remark}" for remark in self.remarks]
        lines += [f"  note: {what} guarded by {how}" for what, how in self.guards.items() if "audit hook" in how]
        return "\n".join(lines)


def open_lab(path: Path, limits: sandbox.Limits, jobs: int = 2) -> Lab:
    """Read a handed-out notebook, and run it unanswered to learn what it asks; twice, where it holds no outputs.

    Where the right value is another each time, it is this machine's own, and no answer from elsewhere can be judged by it.

    Raises:
        ValueError: it is not there, is no notebook, asks for nothing, or does not run here.
    """
    if not path.is_file():
        raise ValueError(f"there is no {path}; `make editions` writes the notebooks to hand out into _build/editions")
    read = notebook.read(path)
    cells = notebook.code(read)
    if not any(cell.asked for cell in cells):
        raise ValueError(f"{path} has no exercise: no code cell with a {notebook.TODO}")
    steps = notebook.unanswered(cells).steps
    kept = recorded(read)
    with ThreadPoolExecutor(jobs) as pool:
        runs = list(pool.map(lambda _: sandbox.run(steps, limits), range(1 if kept else 2)))
    for one in runs:
        if one.stopped:
            raise ValueError(f"{path} does not run here: it {one.stopped}{_last(one.tail)}")
    exercises = {}
    for number, cell in enumerate(cells):
        if cell.asked:
            if error := runs[0].lines.get(number, {}).get("error"):
                raise ValueError(f"{path} does not run here: the cell of {', '.join(cell.asked)} ends in {error}")
            asked, *others = [_question(one.lines.get(number, {}).get("question")) for one in runs]
            again = others[0] if others else kept.get(number)
            exercises[number] = Exercise(cell.asked, cell.level, asked, not _same(asked, again))
    return Lab(path, notebook.title(read), cells, exercises, runs[0].guards)


def recorded(read: Mapping[str, Any]) -> dict[int, check.Question]:
    """The questions in a notebook's outputs, where it has been run: number of the code cell -> question."""
    found = {}
    for number, cell in enumerate(cell for cell in read["cells"] if cell.get("cell_type") == "code"):
        for output in cell.get("outputs", []):
            if asked := _question(output.get("metadata", {}).get("question")):
                found[number] = asked
    return found


def _last(tail: str) -> str:
    return f"; it said: {tail.splitlines()[-1]}" if tail else ""


def _question(asked: Any) -> check.Question | None:
    if not asked:
        return None
    verdicts = tuple((value, within, words) for value, within, words in asked["verdicts"])
    return check.Question(asked["unit"], verdicts, tuple(asked["options"]))


def _same(first: check.Question | None, second: check.Question | None) -> bool:
    """Whether both ask for the same value."""
    if first is None or second is None:
        return first is second
    a, b = first.verdicts[0][0], second.verdicts[0][0]
    return a == b if isinstance(a, str) or isinstance(b, str) else math.isclose(a, b, rel_tol=1e-9)


def grade(lab: Lab, path: Path, limits: sandbox.Limits, name: str = "", end: Event | None = None) -> Report:
    """Grade one submission; whatever is wrong with it stands in the report."""
    name = name or path.name
    try:
        read = notebook.read(path)
        filled = notebook.fill(lab.cells, notebook.code(read))
    except (ValueError, OSError) as error:
        words = str(error)
        if "another notebook" in words and (other := notebook.title(read)):
            words += f"; its title is “{other}”, this one's “{lab.title}”"
        return Report(name, refused=words)
    done = sandbox.run(filled.steps, limits, end=end)
    stopped = done.stopped
    if stopped and 0 <= done.begun < len(filled.steps):
        stopped += f", in {_where(filled.steps[done.begun])}"
    lines = {step.cell: done.lines.get(i) for i, step in enumerate(filled.steps) if step.cell is not None}
    marks = tuple(_mark(lab.cells[number], one, lines.get(number)) for number, one in lab.exercises.items())
    remarks = [*filled.remarks, *_errors(filled.steps, done)]
    return Report(name, marks, tuple(remarks), "", stopped, done.guards, done.seconds)


def _where(step: Step) -> str:
    if step.names:
        return f"the cell of {', '.join(step.names)}"
    return "a cell added" if step.cell is None else f"code cell {step.cell + 1} of the notebook"


def _errors(steps: Sequence[Step], done: sandbox.Run) -> Iterable[str]:
    """Cells beside the exercises that end in an error."""
    for number, line in sorted(done.lines.items()):
        if line.get("error") and 0 <= number < len(steps) and not steps[number].names:
            yield f"{_where(steps[number])} ends in {str(line['error']).splitlines()[0][:300]}"


def _mark(cell: Cell, asked: Exercise, line: Mapping[str, Any] | None) -> Mark:
    """The mark of one exercise, from what its cell has said."""
    if line is None:
        words, passed = "not run", False
    elif line.get("error"):
        words, passed = str(line["error"]), False
    elif asked.question is None or asked.measured:
        words, passed = str(line.get("words", "")), line.get("ok") is True
    else:
        verdict = check.judge(asked.question, _given(cell, line))
        words, passed = verdict.words, verdict.ok
    if asked.measured:
        return Mark(asked.names, passed, 0, 0, f"{words} ({MEASURED})")
    return Mark(asked.names, passed, asked.points if passed else 0, asked.points, words)


def _given(cell: Cell, line: Mapping[str, Any]) -> object:
    """The answer that a cell has reported."""
    values = line.get("values")
    given = values.get(cell.asked[0]) if isinstance(values, dict) else None
    if not isinstance(given, dict):
        return None
    return given.get("number", given.get("word", given.get("other", ...)))


def found(places: Sequence[Path]) -> list[tuple[str, Path]]:
    """The notebooks in files and folders, each with the name to report it by.

    Raises:
        ValueError: there is none.
    """
    named = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
            if not inside:
                raise ValueError(f"{place} has no notebook: nothing to grade")
            named += [(str(path.relative_to(place)), path) for path in inside]
        elif place.exists():
            named.append((place.name, place))
        else:
            raise ValueError(f"there is no {place}")
    return named


def grade_all(
    lab: Lab,
    submissions: Sequence[tuple[str, Path]],
    limits: sandbox.Limits,
    jobs: int = 2,
    each: Callable[[Report], None] = lambda report: None,
) -> list[Report]:
    """Grade several at a time, each apart from the others; `each` gets a report as soon as it is its turn."""
    reports, end = [], Event()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for report in pool.map(lambda one: grade(lab, one[1], limits, one[0], end), submissions):
                each(report)
                reports.append(report)
        except BaseException:  # Control-C: those that run are ended, others never begin
            end.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return reports
