"""Programs that were compiled for TPUs once and written down: what pages show where the compiler cannot be had.

A record is one JSON file in `recorded/`, with the numbers of a page's programs and not their text. A program is found by
what was compiled: slice, shapes, dtypes, layouts, options and the function's own operations. The variable
SCALING_LIB_RECORDS says what `tpu.compile(..., record=...)` does: "only" reads, "write" compiles and writes, "check" reads,
but compiles a sample and compares; unset, it compiles and falls back to reading. Why: docs/adr/0009.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling_lib.xla.program import Program
from scaling_lib.xla.tpu.topology import TPUCompilerUnavailable

FOLDER = Path(str(importlib.resources.files("scaling_lib.xla.tpu"))) / "recorded"
MODES = ("", "only", "write", "check")
SAMPLED = 4
"""One program in so many of a record is compiled by "check"."""


@dataclass(frozen=True)
class Record:
    """The programs of one record.

    Args:
        name: of the record.
        date: ISO day on which the newest of its programs was compiled.
        versions: of the JAX and libtpu that compiled that one.
        programs: by name, then by slice.
    """

    name: str
    date: str
    versions: Mapping[str, str]
    programs: tuple[Program, ...]

    @property
    def program(self) -> Program:
        """The program of a record that holds exactly one; `ValueError` where it holds several."""
        if len(self.programs) != 1:
            names = ", ".join(f"{program.name} on {program.target}" for program in self.programs)
            raise ValueError(f"record {self.name!r} holds {len(self.programs)} programs: take one of .programs ({names})")
        return self.programs[0]


def record(name: str) -> Record:
    """The record called `name`.

    Raises:
        ValueError: where there is none; the names that exist are given.
    """
    programs = [Program.from_json(entry) for entry in read(name).values()]
    if not programs:
        have = ", ".join(sorted(path.stem for path in FOLDER.glob("*.json"))) or "none"
        raise ValueError(f"record={name!r} does not exist; there are: {have}")
    newest = max(programs, key=lambda program: program.date)
    ordered = sorted(programs, key=lambda program: (program.name, program.target))
    return Record(name, newest.date, newest.versions, tuple(ordered))


def mode() -> str:
    """What SCALING_LIB_RECORDS asks for; "" where it is unset.

    Raises:
        ValueError: for a word that is none of the modes.
    """
    word = os.environ.get("SCALING_LIB_RECORDS", "")
    if word not in MODES:
        raise ValueError(f"SCALING_LIB_RECORDS={word!r} is none of {', '.join(MODES[1:])}; or unset it")
    return word


def check_name(name: str) -> str:
    """`name` where it can name a record, which is a file.

    Raises:
        ValueError: for anything but small letters, digits and dashes.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"record={name!r} cannot name a record; use small letters, digits and dashes, like 'ch02-knee'")
    return name


def key(signature: Mapping[str, Any]) -> str:
    """What a program is found by: name, arguments and slice for people, a hash of the whole signature for certainty."""
    digest = hashlib.sha256(json.dumps(signature, sort_keys=True).encode()).hexdigest()[:16]
    shapes = [re.sub(r"\(.*", "", spec) for spec in signature["specs"]]
    arguments = ", ".join([*shapes[:3], *(["..."] if len(shapes) > 3 else [])])
    return f"{signature['name']}({arguments}) on {signature['slice']} {digest}"


def through(name: str, key: Callable[[], str], compile: Callable[[], Program]) -> Program:
    """A program by way of a record, as SCALING_LIB_RECORDS says.

    Args:
        name: of the record.
        key: gives the program's key; called where it is needed.
        compile: compiles the program.

    Raises:
        TPUCompilerUnavailable: where it can be neither compiled nor found.
        ValueError: in mode "check", where the record and the compiler differ.
    """
    how = mode()
    check_name(name)
    if how == "only":
        return _find(name, key())
    if how == "check":
        return _checked(name, key(), compile)
    try:
        live = compile()
    except TPUCompilerUnavailable as missing:
        if how == "write":
            raise
        recorded = _find(name, key(), str(missing))
        _tell(name, recorded, str(missing))
        return recorded
    if how == "write":
        _write(name, key(), live)
    return live


def _checked(name: str, key: str, compile: Callable[[], Program]) -> Program:
    """The recorded program, compared with the compiler where it is one of the sample: the first of a record always is."""
    recorded = _find(name, key)
    if sorted(read(name)).index(key) % SAMPLED == 0 and (found := differences(recorded, compile())):
        program = key.rpartition(" ")[0]
        raise ValueError(f"record={name!r} is out of date for {program}: {'; '.join(found)}; run make records")
    return recorded


def _find(name: str, key: str, missing: str = "") -> Program:
    entries = read(name)
    if key in entries:
        return Program.from_json(entries[key])
    program = key.rpartition(" ")[0]
    why = (
        f"record {name!r} holds no {program} with these arguments, options and operations: the program is not what was recorded"
        if entries
        else f"there is no record {name!r} of {program}"
    )
    raise TPUCompilerUnavailable(f"{why}; {missing or 'where the TPU compiler can be had, run make records'}")


told = False
"""Whether this process has said that records stand in."""


def _tell(name: str, program: Program, missing: str) -> None:
    """Says once that records stand in, and how old the first is."""
    global told
    if not told:
        told = True
        versions = ", ".join(f"{part} {version}" for part, version in program.versions.items())
        warnings.warn(f"showing record {name!r}, compiled on {program.date} with {versions}, since {missing}", stacklevel=4)


def _write(name: str, key: str, program: Program) -> None:
    """Puts a program into a record. One with the same numbers as before keeps its date, so that nothing changes."""
    entries, fresh = read(name), program.to_json()
    if key not in entries or numbers(entries[key]) != numbers(fresh):
        save(name, {**entries, key: fresh})


def renew(name: str, compile: Callable[[], object]) -> None:
    """Writes a record anew: `compile` compiles all its programs, and what it no longer compiles goes.

    Equal numbers keep their bytes. Where `compile` fails, everything stays that it did not write.
    """
    old, before = read(name), os.environ.get("SCALING_LIB_RECORDS")
    (FOLDER / f"{name}.json").unlink(missing_ok=True)
    os.environ["SCALING_LIB_RECORDS"] = "write"
    kept = old
    try:
        compile()
        kept = {}
    finally:
        os.environ.pop("SCALING_LIB_RECORDS")
        if before is not None:
            os.environ["SCALING_LIB_RECORDS"] = before
        fresh = read(name)
        same = {key: old[key] for key in fresh.keys() & old.keys() if numbers(fresh[key]) == numbers(old[key])}
        save(name, {**kept, **fresh, **same})


def numbers(entry: Mapping[str, Any]) -> Any:
    """An entry without its date and versions, as JSON reads it back."""
    return json.loads(json.dumps({part: value for part, value in entry.items() if part not in ("date", "versions")}))


def save(name: str, entries: Mapping[str, Any]) -> None:
    """Replaces a record in one step, so that a reader at the same time sees the old one or the new one."""
    FOLDER.mkdir(exist_ok=True)
    lines = [f"{json.dumps(key)}: {_line(entries[key])}" for key in sorted(entries)]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=FOLDER, suffix=".part", delete=False) as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, FOLDER / f"{name}.json")


def _line(entry: Any, indent: str = " ") -> str:
    """JSON with one line a part and one a collective or matmul: small, and readable as a diff."""
    if not isinstance(entry, dict | list) or not any(isinstance(value, dict | list) for value in _values(entry)):
        return json.dumps(entry, sort_keys=True, ensure_ascii=False)
    deeper = indent + " "
    if isinstance(entry, dict):
        parts = [f"{json.dumps(key)}: {_line(entry[key], deeper)}" for key in sorted(entry)]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + json.dumps(part, sort_keys=True, ensure_ascii=False) for part in entry) + f"\n{indent}]"


def _values(entry: Any) -> list[Any]:
    return list(entry.values()) if isinstance(entry, dict) else list(entry)


def read(name: str) -> dict[str, Any]:
    """The entries of a record by key; none where the record does not exist."""
    path = FOLDER / f"{check_name(name)}.json"
    entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return entries


def differences(recorded: Program, live: Program) -> list[str]:
    """Where a recorded program is not what the compiler makes today, beyond what differs between its versions.

    Arguments and a collective that is the only one are exact; total bytes sent are within 10 %. The same libtpu must also come
    within 15 % of the peak and 5 % of the cycles. Another one lays out temporaries anew: one matmul went from 0.33 to 0.55 GiB
    between 0.0.42 and 0.0.50, so its peak is not compared, and cycles, which moved by up to 16 % on TPU7x, are held to 20 %.
    """
    same = recorded.versions.get("libtpu") == live.versions.get("libtpu")
    found = []

    def compare(what: str, was: float | None, now: float | None, within: float) -> None:
        if was != now and (was is None or now is None or abs(now - was) > within * abs(was)):
            found.append(f"{what} was {was}, is {now}")

    if recorded.fits != live.fits:
        return [f"fits was {recorded.fits}, is {live.fits}"]
    if same:
        compare("peak_bytes", recorded.memory.peak_bytes, live.memory.peak_bytes, 0.15)
    if not recorded.fits:
        return found
    compare("arguments_bytes", recorded.memory.arguments_bytes, live.memory.arguments_bytes, 0)
    compare("flops", recorded.flops, live.flops, 0.05)
    compare("cycles", recorded.cycles, live.cycles, 0.05 if same else 0.2)
    single = len(recorded.collectives) == len(live.collectives) == 1
    for over in ("ici", "dcn"):
        compare(f"bytes sent over {over}", recorded.sent_bytes(over), live.sent_bytes(over), 0 if single else 0.1)
    return found
