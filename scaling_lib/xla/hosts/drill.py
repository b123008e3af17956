"""The drill that every pod needs: train, lose a process, go on from the checkpoint with fewer, and lose nothing else.

`python -m scaling_lib.xla.hosts.drill` does it on this machine, first with copies of the weights, then with shards, whose losses
must be those of the copies.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scaling_lib.xla.hosts import driver
from scaling_lib.xla.hosts.driver import Job


@dataclass(frozen=True)
class Drill:
    """What a drill found. Losses are in nats a token, by step.

    Args:
        whole: losses of the run that nothing befell.
        before: those of the run that lost a process, until then.
        after: those after it was started again.
        begun: the step it went on with, which is that of the checkpoint.
        processes: how many began.
        left: how many went on.
        seconds: of all runs.
    """

    whole: Mapping[int, float]
    before: Mapping[int, float]
    after: Mapping[int, float]
    begun: int
    processes: int
    left: int
    seconds: float

    @property
    def apart(self) -> float:
        """Largest difference of a loss, before or after, from that of the whole run, over the latter."""
        pairs = [(loss, self.whole[step]) for run in (self.before, self.after) for step, loss in run.items()]
        return max(abs(have - want) / abs(want) for have, want in pairs)

    @property
    def lost(self) -> int:
        """Steps that were done twice."""
        return max(self.before) + 1 - self.begun

    def __repr__(self) -> str:
        return (
            f"{self.processes} processes, one killed after step {max(self.before)}; {self.left} went on from step {self.begun} "
            f"to {max(self.after)} ({self.lost} steps done twice); losses equal to {self.apart:.0e}; {self.seconds:.0f} s"
        )


def drill(
    job: Job,
    *,
    whole: Mapping[int, float] | None = None,
    processes: int = 4,
    left: int = 2,
    kill_after: int = 9,
    timeout_s: float = 100,
) -> Drill:
    """Train without a fault; train again and kill the last process; go on with fewer.

    Args:
        job: what is trained. The two runs are in folders `whole` and `killed` of its folder, which must be new.
        whole: losses by step of a run without a fault, with copies or shards; if not given, one is made.
        processes: how many begin.
        left: how many go on.
        kill_after: the step whose loss is known when the last process is killed.
        timeout_s: of each run.

    Raises:
        ValueError: for a folder with an earlier drill, and a kill before the first checkpoint or after the last step.
        RuntimeError: for a process that dies unasked.
        TimeoutError: for a run that takes too long.
    """
    if not job.every <= kill_after < job.steps - 1:
        raise ValueError(f"kill_after={kill_after}: give {job.every}, the first checkpoint, to {job.steps - 2}")
    faultless, killed = (replace(job, folder=job.folder / name) for name in ("whole", "killed"))
    if found := [run.folder for run in (faultless, killed) if run.folder.exists()]:
        raise ValueError(f"folder={str(found[0])!r} has an earlier drill, which would be gone on with; give a new folder")
    began = time.monotonic()
    if whole is None:
        with driver.started(faultless, processes) as workers:
            workers.wait(timeout_s)
            whole = workers.losses()
    with driver.started(replace(killed, hold=kill_after), processes) as workers:
        workers.wait(timeout_s, step=kill_after)
        workers.kill(processes - 1)
        before = workers.losses()
    with driver.started(killed, left) as workers:
        workers.wait(timeout_s)
        after, begun = workers.losses(), workers.begun()
    return Drill(whole, before, after, begun or 0, processes, left, time.monotonic() - began)


def main(argv: Sequence[str] | None = None) -> None:
    """Drill as the command line says; see `--help`."""
    parser = argparse.ArgumentParser("python -m scaling_lib.xla.hosts.drill", description="Kill one of four processes, go on.")
    parser.add_argument("--folder", type=Path, help="keep checkpoints and logs there; else they are removed")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--left", type=int, default=2, help="processes that go on")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        whole = None
        for name, fsdp in (("copies", False), ("shards", True)):
            job = Job((given.folder or Path(scratch)) / name, fsdp=fsdp)
            found = drill(job, whole=whole, processes=given.processes, left=given.left)
            whole = found.whole
            print(f"{name}: {found}", flush=True)


if __name__ == "__main__":
    main()
