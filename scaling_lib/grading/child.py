"""Runs one submission's cells, in a process of its own: `python child.py PLAN REPORT`, PLAN a file, REPORT a descriptor.

It writes a JSON line before and after each cell. It shares its process with the submission, so nothing that it says can be
relied on: `grade` judges numbers by itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, NoReturn

LONGEST = 2000  # characters of what a check says
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate", "os.utime",
}  # fmt: skip


class TooLong(BaseException):
    """A cell ran longer than it may; not an Exception, so that few cells catch it."""


class Watch:
    """An audit hook: says what the submission tried and must not, and ends the process.

    Python code can get around it, by way of ctypes, say. It names what Landlock only refuses, and is all there is where
    Landlock is not.
    """

    def __init__(self, read: list[str], folder: str, report: int) -> None:
        self.read = tuple(os.path.realpath(path) for path in (*read, folder))
        self.folder, self.report = os.path.realpath(folder), report
        self.real, self.send, self.leave, self.me = os.path.realpath, os.write, os._exit, os.getpid()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """What `sys.addaudithook` calls."""
        if event == "open":
            path, _, flags = args
            if not isinstance(path, int):
                self._file(path, writes=bool(flags & _WRITING))
        elif event in _CHANGES or event == "shutil.rmtree":
            for path in args[: 2 if event in ("os.rename", "os.link") else 1]:
                self._file(path, writes=True)
        elif event in ("os.listdir", "os.scandir") and args[0] != "/dev":
            self._file(args[0], writes=False)
        elif event in ("socket.connect", "socket.sendto"):
            address = args[1]
            if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost", "0.0.0.0"):
                self._stop(f"reach {address[0]} over the network")
        elif event in ("os.kill", "os.killpg") and args[1] and not self._mine(args[0]):
            self._stop(f"send a signal to process {args[0]}")
        elif event in ("os.fork", "os.forkpty"):
            self._stop("fork")

    def _file(self, path: Any, *, writes: bool) -> None:
        if path is None or isinstance(path, int):
            return
        name = os.fsdecode(path)
        real = self.real(name)
        if writes:
            if real != "/dev/null" and not self._below(real, (self.folder,)):
                self._stop(f"write or remove {name}")
        elif not self._below(real, self.read) and os.path.lexists(real):
            self._stop(f"open {name}")

    def _below(self, path: str, roots: tuple[str, ...]) -> bool:
        return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)

    def _mine(self, pid: int) -> bool:
        """Whether a process is this one or a child of it."""
        if pid in (self.me, -self.me):
            return True
        try:
            with open(f"/proc/{abs(pid)}/stat") as file:
                return int(file.read().rpartition(")")[2].split()[1]) == self.me
        except (OSError, ValueError, IndexError):
            return True  # it is gone

    def _stop(self, what: str) -> NoReturn:
        self.send(self.report, (json.dumps({"tried": what[:300]}) + "\n").encode())
        self.leave(3)


def described(value: Any) -> dict[str, Any]:
    """An answer, as what a check can judge: a number or a word; else how it looks."""
    from scaling_lib import units

    if value is ...:
        return {"unanswered": True}
    if isinstance(value, str):
        return {"word": value[:LONGEST]}
    try:
        return {"number": units.number("answer", value)}
    except Exception as error:
        return {"other": f"{error}"[:LONGEST]}


def verdict(value: Any, printed: str) -> dict[str, Any]:
    """What a check says: its words, whether they are good, and the question while there is no answer."""
    words = (repr(value) if not isinstance(value, str) else value) if value is not None else printed
    ok = getattr(value, "ok", None)
    question = getattr(value, "question", None)
    asked = asdict(question) if is_dataclass(question) and not isinstance(question, type) else None
    good = bool(ok) if ok is not None else words.startswith(("Right", "First place"))
    return {"ok": good, "words": words.strip()[:LONGEST], "question": asked}


def run(plan: dict[str, Any], report: int) -> None:
    """All cells, one after the other, whether or not one fails."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    def send(**line: Any) -> None:
        os.write(report, (json.dumps(line) + "\n").encode())

    def too_long(number: int, frame: Any) -> None:
        raise TooLong(f"ran longer than {plan['cell_s']:.0f} s")

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "NoColor"
    shell = InteractiveShell.instance(config=settings)
    signal.signal(signal.SIGALRM, too_long)
    sys.addaudithook(Watch(plan["read"], plan["folder"], report))
    for number, step in enumerate(plan["steps"]):
        send(begin=number)
        printed, line = io.StringIO(), dict[str, Any]()
        signal.setitimer(signal.ITIMER_REAL, plan["cell_s"])
        try:
            done = shell.run_cell(step["source"])  # type: ignore[no-untyped-call]
            error = done.error_before_exec or done.error_in_exec
            if not error and step["check"]:
                with contextlib.redirect_stdout(printed):
                    value = eval(step["check"], shell.user_ns)
                    line = verdict(value, printed.getvalue())
                line["values"] = {name: described(shell.user_ns.get(name, ...)) for name in step["names"]}
        except BaseException as raised:
            error = raised
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        words = f"{type(error).__name__}: {error}".strip(": ")[:LONGEST] if error else ""
        send(end=number, error=words, **line)


def main() -> None:
    """Read the plan, and run it."""
    report = int(sys.argv[2])
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    roots = [os.path.realpath(path) for path in (*plan["read"], plan["folder"])]
    seen = [os.path.realpath(path) for path in sys.path]
    sys.path[:] = [path for path in seen if any(path == root or path.startswith(root + "/") for root in roots)]
    run(plan, report)
    os._exit(0)  # threads that a cell has left do not hold it up


if __name__ == "__main__":
    main()
