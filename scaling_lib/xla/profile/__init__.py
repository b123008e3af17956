"""Profiles: where the time of a run went, from a trace that JAX recorded, read in process and without TensorBoard.

Call the program once before, which compiles it; then record and read::

    with profile.record() as folder:
        f(x).block_until_ready()
    print(profile.read(folder, compiled.as_text()))

`record` and `read` work on any backend; traces of simulated and real CPU devices are tested. The parts of `read` for TPUs and
GPUs follow the format that JAX's profiler writes, and were tried on made-up traces alone, of which xprof finds the same times.
`from_timeline` gives the same tables of a program that was compiled for a TPU and never run. Times are in seconds.

The same folder opens in xprof as it is: `xprof --logdir=FOLDER`, where FOLDER is what `record` yields, the one above `plugins`.
Of a CPU's trace xprof shows events, graphs and memory, but no tables of operations. Perfetto takes the `.trace.json.gz` beside
the `.xplane.pb`. Derived in chapters/09-profiling.md.
"""

from __future__ import annotations

from scaling_lib.xla.profile.expected import Row, compare
from scaling_lib.xla.profile.operations import Op
from scaling_lib.xla.profile.planned import from_timeline
from scaling_lib.xla.profile.recording import record
from scaling_lib.xla.profile.tables import Gap, Profile, Share
from scaling_lib.xla.profile.trace import read

__all__ = ["Gap", "Op", "Profile", "Row", "Share", "compare", "from_timeline", "read", "record"]
