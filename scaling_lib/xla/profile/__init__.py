"""Profiles: where the time of a run went, from a trace that JAX recorded, read in process and without TensorBoard.

    with profile.record() as folder:
        f(x).block_until_ready()
    print(profile.read(folder, compiled.as_text()))

`record` and `read` work on any backend; traces of simulated and real CPU devices are tested. The parts of `read` for
accelerators follow the format that JAX's profiler writes, and were tried on made-up traces alone. `from_timeline` gives the
same tables of a program that was compiled for a TPU and never run.

The same folder is what xprof and TensorBoard take as their log directory: the one above `plugins`, not the one of the files.
For Perfetto there is a `.trace.json.gz` beside the `.xplane.pb`.
"""

from __future__ import annotations

from scaling_lib.xla.profile.expected import Row, compare
from scaling_lib.xla.profile.planned import from_timeline
from scaling_lib.xla.profile.recording import record
from scaling_lib.xla.profile.tables import Gap, Op, Profile, Share
from scaling_lib.xla.profile.trace import read

__all__ = ["Gap", "Op", "Profile", "Row", "Share", "compare", "from_timeline", "read", "record"]
