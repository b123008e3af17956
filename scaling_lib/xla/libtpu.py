"""The file that is the TPU compiler: where it is, whether it is whole, and surroundings in which it is quiet.

Standard library only: this must run before JAX is imported, since JAX loads the file as soon as it is asked for any device.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from pathlib import Path

_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",  # ask no cloud metadata server
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",  # without these two it complains; what they say changes no result
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",  # else it leaves log files in the temporary folder
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
damaged: Path | None = None
"""The libtpu that `prepare` found damaged and kept from JAX."""

_HINTS = ("TPU_NAME", "TPU_WORKER_ID", "COLAB_TPU_ADDR", "JAX_FORCE_TPU_INIT")


def prepare(devices: Path = Path("/dev")) -> None:
    """Sets environment variables that keep libtpu quiet, on a machine without a TPU; what is set already stays.

    A damaged libtpu is kept from JAX, whose process it would end.
    """
    global damaged
    if has_tpu(devices):
        return
    if os.environ.get("TPU_LIBRARY_PATH") == __file__:  # left by a parent process
        del os.environ["TPU_LIBRARY_PATH"]
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    found = library()
    if found is not None and not is_whole(found):
        damaged = found
        os.environ["TPU_LIBRARY_PATH"] = __file__  # no library either, but one that JAX gets over


def has_tpu(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has, or reaches, a TPU. A false yes only leaves libtpu talkative."""
    passed_through = any(re.fullmatch(r"[0-9]+", node.name) for node in devices.glob("vfio/*"))
    return passed_through or any(devices.glob("accel*")) or any(hint in os.environ for hint in _HINTS)


def library() -> Path | None:
    """Where libtpu is, or should be, by the rules of JAX; None where it is not installed."""
    named = os.environ.get("TPU_LIBRARY_PATH", "")
    if Path(named).is_file():
        return Path(named)
    spec = importlib.util.find_spec("libtpu")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("libtpu.so")


def is_whole(library: Path) -> bool:
    """Whether a shared library is as long as its header says: loading one that was cut short kills the process."""
    try:
        with library.open("rb") as file:
            header = file.read(64)
        size = library.stat().st_size
    except OSError:
        return False
    if len(header) < 64 or not header.startswith(b"\x7fELF\x02"):
        return False
    table = int.from_bytes(header[40:48], "little")  # the section table, by custom at the file's end
    width, entries = int.from_bytes(header[58:60], "little"), int.from_bytes(header[60:62], "little")
    return size >= table + width * entries


def version() -> str:
    """The installed version; "unknown" for a libtpu that was put there by hand."""
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
