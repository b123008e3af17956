"""Record a trace into a folder, and find the one that a folder holds."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax


@contextlib.contextmanager
def record(folder: str | Path | None = None, *, python: bool = False) -> Iterator[Path]:
    """Record what runs in a `with` block; an exception or an interrupt ends the trace, and what ran until then is kept.

    Args:
        folder: where the trace goes: one that holds no trace yet. Made where it is missing; a fresh temporary one if not given.
        python: record Python's function calls as well. Gaps then tell what Python did in them, and the program runs slower.

    Yields:
        The folder, which `read` takes once the block has ended.

    Raises:
        ValueError: for a folder that holds a trace, or a path that is no folder.
        RuntimeError: where a trace is being recorded already, as after a `jax.profiler.start_trace` that nobody stopped.

    NB: block inside the `with` until the results are there. Run the program once before: the first call compiles.
    """
    where = Path(tempfile.mkdtemp(prefix="profile-")) if folder is None else Path(folder)
    if where.exists() and not where.is_dir():
        raise ValueError(f"folder={str(where)!r} is a file; give a folder, or none for a temporary one")
    if old := traces(where):
        raise ValueError(f"folder={str(where)!r} holds a trace already, {old[0].name!r}; give a fresh folder for each recording")
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(python)
    try:
        jax.profiler.start_trace(where, profiler_options=options)
    except RuntimeError as error:
        remedy = "end it by jax.profiler.stop_trace(), and record in a `with` block, which always ends"
        raise RuntimeError(f"a trace is being recorded already: {remedy}") from error
    try:
        yield where
    finally:
        jax.profiler.stop_trace()  # type: ignore[no-untyped-call]


def traces(folder: Path) -> list[Path]:
    """The traces below a folder, oldest first."""
    return sorted(folder.rglob("*.xplane.pb"))


def only_trace(folder: str | Path) -> Path:
    """The trace that a folder holds.

    Raises:
        ValueError: for no trace, one that was interrupted before it was written, or more than one.
    """
    where = Path(folder)
    if where.name.endswith(".xplane.pb") and where.is_file():
        return where
    if not where.is_dir():
        raise ValueError(
            f"folder={str(where)!r} is no folder; give the one that `record` yields; a recording that was killed leaves none"
        )
    found = traces(where)
    if len(found) > 1:
        names = ", ".join(str(one.relative_to(where)) for one in found)
        raise ValueError(f"folder={str(where)!r} holds {len(found)} traces: {names}; give the path of one of them")
    if not found and any(where.rglob("plugins/profile")):
        raise ValueError(
            f"folder={str(where)!r} holds a trace that was interrupted: its .xplane.pb was never written; record it again"
        )
    if not found:
        raise ValueError(f"folder={str(where)!r} holds no trace, no .xplane.pb in it or below; record one by `record`")
    return found[0]
