"""The rows of the catalog's files, and rows of text read as those of a dataclass, each column as its type says."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, fields
from importlib import resources
from typing import Any, ClassVar, Protocol, TypeVar


class Run(Protocol):
    """A dataclass whose rows have an id each; its columns are str, or an int, a float or a bool, each `| None` or not."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> str:
        """The name of a row."""


R = TypeVar("R", bound=Run)


def in_file(file: str) -> list[dict[str, Any]]:
    """The rows of a file of this folder, all text."""
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def typed(
    kind: type[R],
    row: Mapping[str, str],
    *,
    required: Collection[str],
    words: Mapping[str, Collection[str]],
    defaults: Mapping[str, str],
) -> R:
    """One row of text; "" is None where the column may be None, and a bool is "yes", "no" or "".

    Args:
        kind: the dataclass.
        row: all its columns.
        required: columns of text that may not be empty, beside the numbers that may not be None.
        words: all that a column may say.
        defaults: what an empty column means.

    Raises:
        ValueError: for a column that is missing or unknown, a number that is none or not positive, a word that a column does
            not have, and an empty column that is required; the id and the column are named.
    """
    columns = {f.name: str(f.type) for f in fields(kind)}
    if wrong := sorted(set(columns) ^ set(row)):
        raise ValueError(f"column {wrong[0]!r} is {'missing' if wrong[0] in columns else 'unknown'}; give {', '.join(columns)}")
    found: dict[str, Any] = {}
    for name, type_ in columns.items():
        text, where = row[name] or defaults.get(name, ""), f"run {row['id']!r}: {name}={row[name]!r}"
        if name in words and text not in words[name]:
            raise ValueError(f"{where} is unknown; give one of {', '.join(map(repr, words[name]))}")
        if not text and (name in required or type_ in ("int", "float")):
            raise ValueError(f"{where} is empty")
        found[name] = _value(text, type_, where)
    return kind(**found)


def distinct(runs: Iterable[R]) -> tuple[R, ...]:
    """These rows.

    Raises:
        ValueError: for an id that comes twice.
    """
    found = tuple(runs)
    ids = [run.id for run in found]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise ValueError(f"id={twice[0]!r} comes twice; give each run its own")
    return found


def _value(text: str, type_: str, where: str) -> str | float | bool | None:
    if type_ == "str":
        return text
    if not text:
        return False if type_ == "bool" else None
    if "bool" in type_:
        return text == "yes"
    try:
        number = float(text) if "float" in type_ else int(text)
    except ValueError:
        raise ValueError(f"{where} is no number") from None
    if not 0 < number < float("inf"):
        raise ValueError(f"{where} must be positive and finite")
    return number
