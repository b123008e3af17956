"""What commands print: tables and text as wide as the terminal, whole lines where the output goes to a file or a pipe."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_NO_LIMIT = 10_000
_ROOM = 24  # narrower than this, a value no longer stands beside its name


class Progress(Protocol):
    """What a long computation calls as it goes on."""

    def __call__(self, done: int, total: int) -> None:
        """So much is done of so much."""


def width() -> int:
    """Columns there are: those of the terminal or of the variable COLUMNS; as good as unlimited in a file or a pipe."""
    limited = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return max(20, shutil.get_terminal_size().columns) if limited else _NO_LIMIT


def table(rows: Sequence[Mapping[str, str]], *, numbers: Collection[str] = ()) -> str:
    """Rows under headings; where the terminal is too narrow for them, one row after the other as a list of names and values.

    Args:
        rows: all with the same keys; the values of the first name the rows of the list.
        numbers: columns that are aligned on the right.
    """
    if not rows:
        return ""
    from rich.box import Box
    from rich.cells import cell_len
    from rich.table import Table

    needed = sum(max(cell_len(name), *(cell_len(row[name]) for row in rows)) + 2 for name in rows[0]) - 2
    if needed > width():
        return "\n\n".join(_record(row) for row in rows)
    ruled = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    drawn = Table(box=ruled, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in rows[0]:
        drawn.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*row.values())
    return _rendered(drawn)


def text(paragraphs: str) -> str:
    """Text, broken between words where a line is wider than the terminal."""
    return _rendered(paragraphs)


def heading(words: str) -> str:
    """A line that stands out where the terminal can do so."""
    from rich.text import Text

    return _rendered(Text(words, style="bold"))


def to_json(value: Any) -> str:
    """JSON as all commands write it."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


@contextmanager
def progress(doing: str) -> Iterator[Progress | None]:
    """A bar on stderr while something long goes on; None where stderr is no terminal.

    >>> with progress("trying plans") as report:
    ...     ...
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars

    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _console(file: Any, columns: int | None = None) -> Console:
    from rich.console import Console

    return Console(file=file, width=columns, markup=False, emoji=False, highlight=False)


def _rendered(what: RenderableType) -> str:
    console = _console(sys.stdout, width())
    with console.capture() as captured:
        console.print(what, soft_wrap=isinstance(what, str) and width() == _NO_LIMIT)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def _record(row: Mapping[str, str]) -> str:
    (_, title), *rest = row.items()
    indent = max(len(name) for name, _ in rest) + 4
    if width() - indent < _ROOM:
        return "\n".join([heading(title), *(text(f"  {name}: {value}") for name, value in rest)])
    return "\n".join([heading(title), *(_hanging(name, value, indent) for name, value in rest if value)])


def _hanging(name: str, value: str, indent: int) -> str:
    from rich.padding import Padding

    body = _rendered(Padding(value, (0, 0, 0, indent))).lstrip()
    return f"  {name}".ljust(indent) + body
