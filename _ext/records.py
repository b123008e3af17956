"""The recorded programs in scaling_lib/xla/tpu/recorded: renewed by the pages that show them, and held to the compiler of today.

    python _ext/records.py write [PAGE.md ...]    runs the pages, which write their records, and says what changed
    python _ext/records.py check [PAGE.md ...]    runs the pages, which compare their records with the live compiler

Without pages: all that compile with `record=`; then `write` also drops what no page records any more, and compiles the training
steps of `scaling_lib.xla.judged` and the serving steps of `scaling_lib.xla.serving.judged`, which takes half an hour, and the
schedules of the catalog.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import notebooks
from plain import PageError

from scaling_lib.xla import judged, schedules
from scaling_lib.xla.program import Program
from scaling_lib.xla.serving import judged as serving
from scaling_lib.xla.tpu import records

PAGE_TIMEOUT_S = 600

Entries = Mapping[str, Mapping[str, Any]]  # by record, then by key


def pages(root: Path = notebooks.ROOT) -> list[Path]:
    """The pages that compile with a record."""
    return [page for page in notebooks.pages(root) if any("record=" in cell.source for cell in notebooks.read_page(page).cells)]


def run(mode: str, mds: Sequence[Path]) -> bool:
    """Runs pages with SCALING_LIB_RECORDS set to `mode`; False where one failed."""
    good = True
    before = os.environ.get("SCALING_LIB_RECORDS")
    os.environ["SCALING_LIB_RECORDS"] = mode
    try:
        for md in mds:
            try:
                notebooks.run(md, timeout_s=PAGE_TIMEOUT_S)
            except PageError as error:
                lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
                print(f"{lines[0].removesuffix(' An error occurred while executing the following cell:')} {lines[-1]}")
                good = False
    finally:
        os.environ.pop("SCALING_LIB_RECORDS")
        if before is not None:
            os.environ["SCALING_LIB_RECORDS"] = before
    return good


def renew(mds: Sequence[Path], *, everything: bool) -> bool:
    """Has pages write their records and says what changed. What did not change keeps its bytes.

    Args:
        mds: the pages.
        everything: they are all there are: what they do not record is dropped.
    """
    old = _all()
    if everything:
        for name in old.keys() - {judged.RECORD, serving.RECORD}:
            (records.FOLDER / f"{name}.json").unlink()
    good = run("write", mds)
    for name in old.keys() | _all().keys():
        entries = dict(records.read(name))
        for key, was in old.get(name, {}).items():
            if (not good and key not in entries) or (key in entries and records.numbers(entries[key]) == records.numbers(was)):
                entries[key] = was
        if entries:
            records.save(name, entries)
    for line in changes(old, _all()):
        print(line)
    return good


def changes(old: Entries, new: Entries) -> list[str]:
    """What a renewal changed, a line each."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, {}), new.get(name, {})
        for key in sorted(before.keys() | after.keys()):
            if key not in after:
                found.append(f"{name}: {key} is gone")
            elif key not in before:
                found.append(f"{name}: {key} is new")
            elif before[key] != after[key]:
                was, now = Program.from_json(before[key]), Program.from_json(after[key])
                found.append(f"{name}: {key}: {'; '.join(records.differences(was, now)) or 'changed within what is allowed'}")
    return found or ["the records are as they were"]


def _all() -> dict[str, dict[str, Any]]:
    return {path.stem: records.read(path.stem) for path in sorted(records.FOLDER.glob("*.json"))}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if a page failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["write", "check"])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE.md")
    options = parser.parse_args(arguments)
    mds = [page.resolve() for page in options.pages] or pages()
    good = renew(mds, everything=not options.pages) if options.command == "write" else run("check", mds)
    if options.command == "write" and not options.pages:
        judged.write()
        serving.write()
        schedules.write()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
