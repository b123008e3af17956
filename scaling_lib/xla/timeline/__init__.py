"""The schedule of a compiled TPU program: what runs when, which communication hides behind compute, and which does not.

Two estimates, and how far they are apart:

- `of` replays the program's text in order. Matmuls take the compiler's own cycles, collectives bytes over link rates, all
  other work bytes over HBM bandwidth.
- `scheduled` reads what the compiler's scheduler believed when it chose that order.

Both are estimates from the compiler and the catalog. Neither was ever validated on hardware: read the structure off them
(what overlaps, what is exposed), ratios and order, and no milliseconds as truth. Derived in chapters/02-tpus.md.
"""

from __future__ import annotations

import math

from scaling_lib.xla.program import Program
from scaling_lib.xla.timeline import schedule
from scaling_lib.xla.timeline.replay import replay
from scaling_lib.xla.timeline.spans import Loop, Span, Timeline

__all__ = ["Loop", "Span", "Timeline", "disagreement", "of", "scheduled"]


def of(program: Program) -> Timeline:
    """The program's instructions in the order of its text, each as long as its own figures say.

    A matmul takes the compiler's estimate of its cycles ÷ `clock_hz`, or FLOPs ÷ peak where that is longer or there is no
    estimate. Other work on the compute units takes the bytes it reads and writes ÷ `hbm_bytes_per_s`, wherever they lie; the
    compiler's cycles for it are up to 8 times that, and nothing says that they are right. So do copies, and Pallas kernels,
    whose arithmetic the text does not show. An array that the program before has fetched into VMEM costs nothing.

    A collective takes its sent bytes ÷ (2 · axes · `ici_link_bytes_per_s`), with the torus axes that its group spans: both
    links of every axis at work. Where an axis does not wrap, it takes twice that. A permute uses one link; the part of a
    collective between slices, a chip's share of the network.

    Compute units do one thing at a time. So do copies, and each direction of the links along a mesh axis. Work with a start
    and an end goes on in between; at its end the compute units wait until it is done, and that wait is exposed.

    Raises:
        ValueError: for a program that does not fit or is not for a TPU, or one from a record that kept no timelines.

    NB: the first pass of a loop stands for all, and finds the links idle. Contention of a permute over several hops, latency
    and the work of conditionals are left out.
    """
    if program.target.startswith("cpu"):
        raise ValueError(f"program.target={program.target!r} is no TPU slice; compile it with tpu.compile")
    return _kept(program, "of") or replay(program, "cycles and link rates")


def scheduled(program: Program) -> Timeline:
    """The schedule as the compiler's latency-hiding scheduler saw it: loops with their true trip counts, nothing recalibrated.

    It charges a matmul 1 to 6 times what the compiler's own cycle estimate says, so it believes that more communication
    hides than will; a collective costs bytes ÷ (2 · link rate · axes), with no latency. For something with a start and an
    end, the dump does not say when it was done: `duration_s` is the time until the program asked for it.

    The compiler schedules only computations that hold something with a start and an end. The rest is timed as in `of`.

    Raises:
        ValueError: for a program without the scheduler's dump.
    """
    if kept := _kept(program, "scheduled"):
        return kept
    dump = program.code.schedule if program.code else ""
    if not dump:
        raise ValueError(
            f"program {program.name!r} carries no schedule: compile it with tpu.compile(..., schedule=True); where no "
            "communication can run beside other work, the compiler makes none"
        )
    return replay(program, "the compiler's scheduler", schedule.parse(dump))


def _kept(program: Program, way: str) -> Timeline | None:
    """The timeline that a record keeps."""
    kept = program.code.timelines if program.recorded and program.code else {}
    return Timeline.from_json(kept[way]) if way in kept else None


def disagreement(first: Timeline, second: Timeline) -> dict[str, float]:
    """How many times as long the second timeline is as the first: in all, in compute, and in exposed communication.

    1 is agreement; infinite where only the second has any.
    """
    pairs = {
        "total": (first.total_s, second.total_s),
        "compute": (first.compute_s, second.compute_s),
        "exposed": (first.exposed_s, second.exposed_s),
    }
    return {name: b / a if a else math.inf if b else 1.0 for name, (a, b) in pairs.items()}
