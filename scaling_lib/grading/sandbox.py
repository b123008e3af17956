"""Runs one plan of cells in a guarded process, and collects what it says while it is within its limits."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from scaling_lib.grading import child, guard
from scaling_lib.grading.notebook import Step

_MOST_REPORTED = 8_000_000
_KEPT = 2000  # last characters of what was printed
_FIRST_USER, _USERS = 61_184, 4_000  # numbers that systems leave to users that come and go
_users = itertools.count(os.getpid() * 31)


@dataclass(frozen=True)
class Limits:
    """What one submission may take. Memory and processes are those of all its processes together."""

    seconds: float = 300
    cell_s: float = 60
    output_bytes: int = 20_000_000
    memory_bytes: int = 6 * 2**30
    file_bytes: int = 256_000_000
    processes: int = 64
    threads: int = 2000


@dataclass
class Run:
    """What happened: a line for each cell that ended, why it stopped before its end, and what guarded it."""

    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: int = -1
    stopped: str = ""
    guards: dict[str, str] = field(default_factory=dict)
    tail: str = ""
    seconds: float = 0.0


def run(steps: Sequence[Step], limits: Limits, *, landlock: bool = True, end: Event | None = None) -> Run:
    """Run these cells in a process of its own, in an empty folder of its own, until their end or `end`."""
    folder = tempfile.mkdtemp(prefix="scaling-lib-grade-")
    try:
        return _run(steps, limits, Path(folder).resolve(), landlock, end or Event())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(steps: Sequence[Step], limits: Limits, folder: Path, landlock: bool, end: Event) -> Run:
    library = Path(guard.__file__).resolve().parents[1]
    for name in ("work", "library", "tmp"):
        (folder / name).mkdir()
    (folder / "library" / library.name).symlink_to(library)  # and not what lies beside it
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix, site.getuserbase()]
    read = [path for path in (*guard.SYSTEM, *dict.fromkeys(python), str(library)) if os.path.exists(path)]
    plan = {"steps": [asdict(step) for step in steps], "cell_s": limits.cell_s, "read": read, "folder": str(folder)}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (report, report_end), (output, output_end) = os.pipe(), os.pipe()
    config = asdict(limits) | {
        "folder": str(folder),
        "read": read,
        "needs": [str(library)],
        "landlock": landlock,
        "user": _FIRST_USER + next(_users) % _USERS,
        "output": output_end,
        "report": report_end,
        "argv": [sys.executable, "-P", child.__file__, str(folder / "plan.json"), str(report_end)],
        "environment": environment(folder),
    }
    began = time.monotonic()
    warden = subprocess.Popen(
        [sys.executable, "-I", guard.__file__, json.dumps(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=(report_end, output_end),
        cwd=folder / "work",
        start_new_session=True,
    )
    assert warden.stdout is not None
    os.close(report_end)
    os.close(output_end)
    ends = {"report": report, "output": output, "warden": warden.stdout.fileno()}
    try:
        return _collected(ends, limits, began, end)
    finally:
        with suppress(subprocess.TimeoutExpired):
            warden.terminate()
            warden.wait(10)
        warden.kill()
        warden.wait()
        warden.stdout.close()
        os.close(report)
        os.close(output)


def environment(folder: Path) -> dict[str, str]:
    """The variables of the submission's process: none of the grader's own but those that say where programs lie."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
        "PYTHONPATH": str(folder / "library"),
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "MPLBACKEND": "agg",
        "JAX_PLATFORMS": "cpu",
        "SCALING_LIB_RECORDS": "only",
    }


def _collected(ends: dict[str, int], limits: Limits, began: float, end: Event) -> Run:
    """Read all three pipes until they end, time is up, or one says too much."""
    done = Run()
    held = dict.fromkeys(ends, b"")
    total = dict.fromkeys(ends, 0)
    with selectors.DefaultSelector() as ready:
        for name, descriptor in ends.items():
            ready.register(descriptor, selectors.EVENT_READ, name)
        while ready.get_map() and not done.stopped:
            left = limits.seconds - (time.monotonic() - began)
            if left <= 0:
                done.stopped = f"ran longer than {limits.seconds:.0f} s in all"
            elif end.is_set():
                done.stopped = "was told to end"
            for key, _ in ready.select(min(max(left, 0), 0.5)):
                data, name = os.read(key.fd, 65_536), key.data
                if not data:
                    ready.unregister(key.fd)
                    continue
                total[name] += len(data)
                held[name] += data
                if name == "output":
                    held[name] = held[name][-_KEPT:]
                else:
                    *whole, held[name] = held[name].split(b"\n")
                    for line in whole:
                        _note(done, name, line)
                if total["output"] > limits.output_bytes:
                    done.stopped = f"printed more than {limits.output_bytes / 1e6:.0f} MB"
                elif total["report"] > _MOST_REPORTED:
                    done.stopped = "wrote too much where its results are read"
    done.seconds = time.monotonic() - began
    done.tail = held["output"].decode(errors="replace").strip()
    return done


def _note(done: Run, name: str, text: bytes) -> None:
    """Take one line of JSON; what is none comes from a submission that meddles, and is left out."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(line, dict):
        return
    if name == "warden":
        done.guards |= line.get("guards", {})
        done.stopped = done.stopped or line.get("stopped", "")
    elif isinstance(line.get("begin"), int):
        done.begun = line["begin"]
    elif isinstance(line.get("end"), int):
        done.lines.setdefault(line["end"], line)
    elif isinstance(line.get("tried"), str):
        done.stopped = done.stopped or f"tried to {line['tried'][:300]}"
