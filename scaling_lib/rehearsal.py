"""Says whether this machine is ready for a workshop: what is installed, and whether each lab runs to its end.

`scaling-lib rehearse` is the way in. Standard library only; labs are run by nbclient, JAX in a process of its own.
"""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scaling_lib import units

EXTRAS = ("show", "jax", "labs", "serving")
"""Of the library's extras, those that labs need."""
MEMORY_BYTES, DISK_BYTES = 2 * 2**30, 2**30
"""What has to be free: of labs 1, 3, 5a and 6 the last takes most, 1.75 GiB where it compiles for TPUs itself."""
FOLDERS = ("labs", "notebooks/labs", "students/labs")
"""Where labs lie: beside the book, in the offline bundle, in the editions."""
_ALL = "pip install 'scaling-lib[{}]'".format(",".join(EXTRAS))
_START = "import json; from scaling_lib.xla import simulate; m = simulate.mesh(X=8); v = simulate.versions()"
_START += "; print(json.dumps([m.size, str(v)]))"


@dataclass(frozen=True)
class Check:
    """One line of a rehearsal. A `note` leaves the machine ready, `fix` does not; `do` says what then."""

    name: str
    state: Literal["ok", "note", "fix"]
    found: str
    do: str = ""


def machine() -> Iterator[Check]:
    """Checks of what stands here, without any lab."""
    yield _python()
    yield _memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slow = "labs take twice their time; those that measure are noisy"
    yield Check("cores", "ok", f"{cores}") if cores > 1 else Check("cores", "note", "1", slow)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    full = "" if free >= DISK_BYTES else f"make room in {tempfile.gettempdir()}"
    yield Check("disk", "fix" if full else "ok", f"{free / 2**30:.1f} GiB free", full)
    yield packages()
    yield devices()
    yield _compiler()
    yield _jupyter()
    yield _browser()


def _python() -> Check:
    tested = [
        line.rpartition(" ")[2]
        for line in metadata.metadata("scaling-lib").get_all("Classifier") or []
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    found, here = platform.python_version(), f"{sys.version_info[0]}.{sys.version_info[1]}"
    if here in tested:
        return Check("Python", "ok", found)
    return Check("Python", "note", found, f"tested with {', '.join(tested)}: take one of them if a lab fails")


def _memory() -> Check:
    free = _free_bytes()
    if free is None:
        return Check("memory", "note", "not known", f"labs need {MEMORY_BYTES / 2**30:.0f} GiB")
    found = f"{free / 2**30:.1f} GiB free"
    if free >= MEMORY_BYTES:
        return Check("memory", "ok", found)
    return Check("memory", "fix", found, f"close other programs: labs need {MEMORY_BYTES / 2**30:.0f} GiB")


def _free_bytes() -> int | None:
    """Memory that may be taken: of the machine, and of the container where there is one."""
    free = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        free.append(limit - used)
    with suppress(ImportError):
        import psutil  # comes with ipykernel

        free.append(psutil.virtual_memory().available)
    return min(free, default=None)


def packages() -> Check:
    """Whether what labs need is installed, in versions that the library asks for."""
    wrong = []
    for line in metadata.requires("scaling-lib") or []:
        needed = re.match(r"([\w.-]+)>=([\d.]+).*extra == ['\"](\w+)['\"]", line)
        if needed and needed[3] in EXTRAS:
            try:
                have = metadata.version(needed[1])
            except metadata.PackageNotFoundError:
                wrong.append(f"no {needed[1]}")
                continue
            if _numbers(have) < _numbers(needed[2]):
                wrong.append(f"{needed[1]} {have} is older than {needed[2]}")
    if wrong:
        return Check("packages", "fix", "; ".join(dict.fromkeys(wrong)), _ALL)
    return Check("packages", "ok", f"those of {', '.join(EXTRAS)}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def devices() -> Check:
    """Whether JAX starts as a lab starts it, in a process of its own."""
    name = "8 devices"
    try:
        done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return Check(name, "fix", "JAX has not started after 120 s", "end what else computes, and try again")
    if done.returncode:
        return Check(name, "fix", _last(done.stderr) or f"JAX ended with status {done.returncode}", _ALL)
    newer = re.search(r"UserWarning: (JAX .* is newer than .*?)(;|$)", done.stderr, re.M)
    _, words = json.loads(done.stdout.splitlines()[-1])
    return Check(name, "note", newer[1], "take a tested one if a lab fails") if newer else Check(name, "ok", words)


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _compiler() -> Check:
    if importlib.util.find_spec("libtpu"):
        return Check("TPU compiler", "ok", f"libtpu {metadata.version('libtpu')}")
    found = "none: labs show records"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return Check("TPU compiler", "note", found, "nothing; it is for Linux on x86-64 alone")
    return Check("TPU compiler", "note", found, "nothing, or pip install 'scaling-lib[tpu-compiler]'")


def _jupyter() -> Check:
    if "google.colab" in sys.modules or "COLAB_RELEASE_TAG" in os.environ:
        return Check("Jupyter", "ok", "Colab")
    if not importlib.util.find_spec("ipykernel"):
        return Check("Jupyter", "fix", "no kernel", "pip install jupyterlab")
    for name in ("jupyterlab", "notebook"):
        if importlib.util.find_spec(name):
            return Check("Jupyter", "ok", f"{name} {metadata.version(name)}")
    return Check("Jupyter", "note", "a kernel, no editor", "pip install jupyterlab; VS Code does without")


def _browser() -> Check:
    try:
        webbrowser.get()
    except webbrowser.Error:
        return Check("browser", "note", "none here", "nothing, where students read the site elsewhere")
    return Check("browser", "ok", "one starts from here")


def offline(folders: Sequence[Path]) -> Check:
    """Whether the offline bundle's own script serves its pages, where one of these folders is a bundle."""
    name = "offline bundle"
    found = next((folder for folder in folders if (folder / "serve.py").is_file()), None)
    if found is None:
        return Check(name, "note", "none here", "nothing, where the room has internet")
    serve = [sys.executable, str(found / "serve.py"), "--no-browser"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            address = re.search(r"http://\S+", server.stdout.readline())
            if not address:
                return Check(name, "fix", _last(server.stderr.read()), "unpack the whole archive again")
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address[0], timeout=10) as page:
                page.read()
                return Check(name, "ok", "served, and its first page can be read")
        except OSError as error:
            return Check(name, "fix", f"cannot be read at its own address: {error}", "let a firewall allow 127.0.0.1")
        finally:
            server.terminate()


def labs_in(folder: Path | None) -> tuple[Path, list[Path]]:
    """The folder of labs, and the notebooks in it."""
    places = [folder] if folder else [Path(name) for name in FOLDERS]
    found = next((place for place in places if any(place.glob("*.ipynb"))), places[0])
    return found, sorted(found.glob("*.ipynb"))


def chosen(labs: Sequence[Path], names: Sequence[str]) -> list[Path]:
    """Labs by name; all of them where no name is given.

    Raises:
        ValueError: none is called so, with near names.
    """
    known = {lab.stem: lab for lab in labs}
    for name in names:
        if name not in known:
            raise ValueError(f"no lab is called {name!r}; {units.near(name, list(known))}")
    return [known[name] for name in names] or list(labs)


def lab(path: Path, seconds: float) -> Check:
    """Run a lab once as handed out, in an empty folder: whether it comes to its end, and in what time."""
    name = f"lab {path.stem}"
    try:
        import nbclient
        import nbformat
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ModuleNotFoundError as error:
        return Check(name, "fix", f"not run: there is no {error.name}", "pip install jupyterlab, or rehearse with --quick")
    try:
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except (ValueError, OSError) as error:
        return Check(name, "fix", f"cannot be read: {_last(str(error))}", "fetch the notebook again")
    began, at = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        client: Any = nbclient.NotebookClient(notebook, resources=place, kernel_name="python3", shutdown_kernel="immediate")
        try:
            with client.setup_kernel(stderr=subprocess.DEVNULL):
                for index, cell in enumerate(notebook.cells):
                    if cell.cell_type == "code":
                        at += 1
                        client.timeout = max(1, round(seconds - (time.monotonic() - began)))
                        client.execute_cell(cell, index)
        except CellTimeoutError:
            slow = f"too slow: code cell {at} had not ended after {seconds:.0f} s"
            return Check(name, "fix", slow, "end what else computes; or allow more: --timeout")
        except CellExecutionError as error:
            return Check(
                name, "fix", f"code cell {at} ends in {error.ename}: {_last(str(error.evalue))}", "see the lines above it"
            )
        except (DeadKernelError, RuntimeError) as error:
            return Check(name, "fix", f"the kernel died in code cell {at}: {_last(str(error))}", "look at the memory")
    return Check(name, "ok", f"{time.monotonic() - began:.0f} s")
