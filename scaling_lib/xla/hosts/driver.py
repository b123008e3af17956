"""Starts the worker's processes on this machine, watches them, and leaves none behind.

Every process has a CPU device, and gloo carries what they send. Each is the head of a process group of its own, which is
killed at the end whatever happens: when a neighbor dies, one peer raises and the others hang, and none heeds SIGTERM. If the
driver itself is killed, its workers see their standard input end, and die.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scaling_lib
from scaling_lib import units

PEER_TIMEOUT_S = 10  # JAX's own 100 leave the peers of a dead process hanging for that long
JOIN_TIMEOUT_S = 60
LOOK_S = 0.05
SETTLE_S = 0.5  # a dead process and peers that have lost it are seen to end in any order
CAUSES = (-signal.SIGKILL, -signal.SIGSEGV)  # peers raise, or abort


@dataclass(frozen=True)
class Job:
    """What the processes train together.

    Args:
        folder: for checkpoints and logs.
        fsdp: whether weights and optimizer are in shards; else every process has copies.
        steps: of the whole run.
        every: steps from one checkpoint to the next.
        batch: sequences, all processes together.
        hold: a step after which all wait, to be killed; for drills.
    """

    folder: Path
    fsdp: bool = False
    steps: int = 12
    every: int = 4
    batch: int = 16
    hold: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "every", "batch"):
            units.size(name, getattr(self, name))
        object.__setattr__(self, "folder", Path(self.folder).resolve())


def command(job: Job, processes: int, process: int, port: int) -> list[str]:
    """The command line of one process of a job on this machine."""
    return [
        sys.executable, "-m", "scaling_lib.xla.hosts.worker", "--folder", str(job.folder / "checkpoints"),
        *(["--fsdp"] if job.fsdp else []),
        "--steps", str(job.steps), "--every", str(job.every), "--batch", str(job.batch),
        *([] if job.hold is None else ["--hold", str(job.hold)]),
        "--coordinator", f"localhost:{port}", "--processes", str(processes), "--process", str(process),
        "--join-timeout", str(JOIN_TIMEOUT_S), "--peer-timeout", str(PEER_TIMEOUT_S), "--lifeline",
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """The surroundings of a process: JAX on one CPU device and one thread, with gloo, and this library."""
    own = {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # every process compiles, for longer than its few small steps take
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",  # the processes share the cores; a parent's flags may simulate devices
        "PYTHONPATH": os.pathsep.join([str(Path(scaling_lib.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | own


def free_port(port: int | None = None) -> int:
    """A port that process 0 can listen on: the given one if it is free, or any.

    A port in use would end process 0 by a segmentation fault, with no word about the port.

    Raises:
        ValueError: for a port in use, or none.
    """
    if port is not None and not 0 < port < 2**16:
        raise ValueError(f"port={port} is none; give one from 1024 to 65535, or None for any that is free")
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that a finished run has left is free
        try:
            trial.bind(("", port or 0))
            trial.listen()
        except OSError as error:
            raise ValueError(f"port={port} cannot be used ({error.strerror}); give another, or None for any free one") from None
        return int(trial.getsockname()[1])


@contextlib.contextmanager
def started(job: Job, processes: int, *, port: int | None = None) -> Iterator[Workers]:
    """A job on so many processes of this machine, which are all killed at the end, also after an error or an interrupt.

    Args:
        job: what they train. It goes on from the newest checkpoint in its folder.
        processes: how many.
        port: for process 0, where the others meet it; any free one if not given.

    Raises:
        ValueError: for a port in use, and a batch that the processes do not divide.
    """
    if job.batch % units.size("processes", processes):
        raise ValueError(f"batch={job.batch} does not divide over processes={processes}; give a multiple of {processes}")
    port = free_port(port)
    job.folder.mkdir(parents=True, exist_ok=True)
    workers = Workers([], [])
    try:
        for process in range(processes):
            workers.start(command(job, processes, process, port), job.folder / f"{processes}-{process}")
        yield workers
    finally:
        workers.stop()


@dataclass
class Workers:
    """The processes of a job that runs; from `started`. What each prints goes to files beside the checkpoints.

    Args:
        running: the processes.
        logs: for each, the name of its files, which end in `.out` and `.err`.
    """

    running: list[subprocess.Popen[bytes]]
    logs: list[Path]

    def start(self, command: list[str], log: Path) -> None:
        """Start one more, at the head of a process group of its own."""
        with open(f"{log}.out", "wb") as out, open(f"{log}.err", "wb") as err:
            self.logs.append(log)
            self.running.append(
                subprocess.Popen(
                    command, env=environment(), stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
                )
            )

    def said(self) -> list[dict[str, Any]]:
        """What process 0 has told, a dictionary a line."""
        text = Path(f"{self.logs[0]}.out").read_text(encoding="utf-8", errors="replace")
        return [json.loads(line) for line in text.split("\n")[:-1] if line.startswith("{")]

    def losses(self) -> dict[int, float]:
        """In nats a token, by step."""
        return {line["step"]: line["loss"] for line in self.said() if "loss" in line}

    def sent_bytes(self) -> dict[int, int]:
        """What process 0 sent in each step, as Linux counted it, with a few hundred bytes of its own; empty elsewhere."""
        return {line["step"]: line["sent_bytes"] for line in self.said() if line.get("sent_bytes") is not None}

    def begun(self) -> int | None:
        """The step that the run began with, which is not 0 where it has read a checkpoint; None before that."""
        return next((line["step"] for line in self.said() if line.get("event") == "start"), None)

    def wait(self, timeout_s: float, *, step: int | None = None) -> None:
        """Wait until the loss of a step is known; without one, until all processes have ended well.

        Raises:
            RuntimeError: for a process that died, with its last words.
            TimeoutError: when the time is over.
        """
        until = time.monotonic() + timeout_s
        while True:
            ended = [process.poll() for process in self.running]
            if died := [i for i, status in enumerate(ended) if status]:
                time.sleep(SETTLE_S)
                ended = [process.poll() for process in self.running]
                first = next((i for i, status in enumerate(ended) if status in CAUSES), died[0])
                raise RuntimeError(self._death(first, ended[first] or 0))
            if step is not None and step in self.losses():
                return
            if None not in ended:
                if step is None:
                    return
                raise RuntimeError(f"the run ended before step={step}; give one that is below the job's steps")
            if time.monotonic() > until:
                alive = ", ".join(str(i) for i, status in enumerate(ended) if status is None)
                raise TimeoutError(f"processes {alive} still run after {timeout_s:g} s; {self._last_words(0)}")
            time.sleep(LOOK_S)

    def kill(self, process: int) -> None:
        """Kill one, as a machine that fails: no warning, nothing saved."""
        self._kill([self.running[process]])

    def stop(self) -> None:
        """Kill all that still run, with whatever they have started."""
        self._kill(self.running)

    @staticmethod
    def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
        for process in processes:  # all, before anything waits and could be interrupted
            with contextlib.suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _death(self, process: int, status: int) -> str:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        more = "; the run goes on from its newest checkpoint when it is started again" if status == -signal.SIGKILL else ""
        return f"process {process} of {len(self.running)} {how}{more}; {self._last_words(process)}"

    def _last_words(self, process: int) -> str:
        path = Path(f"{self.logs[process]}.err")
        lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f"its last words are in {path}" + "".join(f"\n    {line[:300]}" for line in lines[-3:])
