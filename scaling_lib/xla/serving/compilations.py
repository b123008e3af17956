"""How many programs JAX compiles: a loop that serves must compile none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclass
class Compilations:
    """Programs compiled so far, and the seconds that took."""

    programs: int = 0
    seconds: float = 0.0


@contextmanager
def counted() -> Iterator[Compilations]:
    """Counts what JAX compiles inside a `with` block: the result grows as programs are compiled.

    Small operations outside `jax.jit` compile too, each at its first use.
    """
    found = Compilations()

    def heard(event: str, duration_secs: float, **_: Any) -> None:
        if event == _EVENT:
            found.programs += 1
            found.seconds += duration_secs

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
