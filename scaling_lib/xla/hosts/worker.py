"""One process of a training run on many hosts: `python -m scaling_lib.xla.hosts.worker --folder checkpoints`.

The same command runs on every host. On TPU slices of Google Cloud and under SLURM the processes find one another; elsewhere
tell them by `--coordinator`, `--processes` and `--process`. A run that is started again goes on from its newest checkpoint,
also on another number of devices. Process 0 prints one line of JSON a step. Files for clusters are in `deploy/`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from scaling_lib import transformer as tf
from scaling_lib.transformer import Transformer
from scaling_lib.xla import llama
from scaling_lib.xla.training import text

Tree = Any  # of arrays

SMALL = Transformer(n_layers=2, d_model=64, n_heads=8, n_kv_heads=4, head_dim=8, d_ff=192, vocab_size=256)
COPIES: llama.Rules = {"B": "X"}
SHARDS: llama.Rules = {"B": "X", "D": "X"}


def main(argv: Sequence[str] | None = None) -> None:
    """Train as the command line says; see `--help`."""
    given = parser().parse_args(argv)
    if given.lifeline:
        threading.Thread(target=_end_with_the_driver, daemon=True).start()
    named = (given.coordinator, given.processes, given.process)
    jax.distributed.initialize(
        *named,
        cluster_detection_method=None if named == (None, None, None) else "deactivate",
        initialization_timeout=given.join_timeout,
        heartbeat_timeout_seconds=given.peer_timeout,
        shutdown_timeout_seconds=given.peer_timeout,
    )
    model = tf.model(given.model) if given.model else SMALL
    train(given.folder, model, given.steps, given.every, fsdp=given.fsdp, B=given.batch, T=given.tokens, hold=given.hold)
    jax.distributed.shutdown()  # type: ignore[no-untyped-call]


def parser() -> argparse.ArgumentParser:
    """The command line. Its defaults suit a cluster; `driver.command` gives what suits this machine."""
    made = argparse.ArgumentParser("python -m scaling_lib.xla.hosts.worker", description="One process of a training run.")
    add = made.add_argument
    add("--folder", required=True, help="checkpoints: a folder that every host sees, or a bucket such as gs://mine/run")
    add("--model", help="a name of the catalog; a Llama of 0.1M parameters if not given")
    add("--fsdp", action="store_true", help="weights and optimizer in shards, not in copies")
    add("--steps", type=int, default=12, help="steps of the whole run")
    add("--every", type=int, default=4, help="steps from one checkpoint to the next")
    add("--batch", type=int, default=16, help="sequences of a batch, all hosts together")
    add("--tokens", type=int, default=64, help="tokens of a sequence")
    add("--coordinator", help="host:port of process 0, where no cluster tells")
    add("--processes", type=int, help="how many there are, where no cluster tells")
    add("--process", type=int, help="which one this is, where no cluster tells")
    add("--join-timeout", type=int, default=300, help="seconds to wait for the others at the start")
    add("--peer-timeout", type=int, default=100, help="seconds after which a silent process counts as dead")
    add("--hold", type=int, help="for drills: train no further than this step, and wait to be killed")
    add("--lifeline", action="store_true", help="die when standard input ends, that is with the process that started this one")
    return made


def train(
    folder: str,
    model: Transformer,
    steps: int,
    every: int,
    *,
    fsdp: bool = False,
    B: int = 16,
    T: int = 64,
    hold: int | None = None,
) -> None:
    """Train from the newest checkpoint in a folder, or from the start, until so many steps are done.

    Every process calls it, after `jax.distributed.initialize`.

    Args:
        folder: of checkpoints; every process sees the same.
        model: a Llama of at least 256 words: tokens are bytes.
        steps: of the whole run.
        every: steps from one checkpoint to the next.
        fsdp: whether weights and optimizer are in shards.
        B: sequences of a batch, all processes together.
        T: tokens of a sequence.
        hold: a step after whose loss, and before a checkpoint, to wait without end; for drills.

    Raises:
        ValueError: for a batch or a weight that the devices do not divide.
    """
    import orbax.checkpoint as ocp

    mesh: Mesh = jax.make_mesh((jax.device_count(),), ("X",), axis_types=(AxisType.Auto,))
    rules = SHARDS if fsdp else COPIES
    optimizer = llama.optimizer(steps, peak=1e-2)
    batch = text.batches(text.alice(), B, T)

    def start(key: jax.Array) -> Tree:
        params = llama.init(model, key)
        return {"params": params, "state": optimizer.init(params)}

    if B % mesh.size:
        raise ValueError(f"B={B} sequences do not divide over {mesh.size} devices; give a multiple of {mesh.size}")
    like = llama.specs(mesh, jax.eval_shape(start, jax.random.key(0)), rules)
    where = jax.tree.map(lambda x: x.sharding, like)

    def step(tree: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        params, state, loss = llama.train_step(tree["params"], tree["state"], batch, optimizer=optimizer, rules=rules)
        return {"params": params, "state": state}, loss

    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    manager = ocp.CheckpointManager(folder if "://" in folder else Path(folder).resolve(), options=options)
    with jax.set_mesh(mesh):
        done = manager.latest_step()
        if done is None:
            done, tree = 0, jax.jit(start, out_shardings=where)(jax.random.key(0))
        else:
            tree = manager.restore(done, args=ocp.args.StandardRestore(like))
        run = jax.jit(step, donate_argnums=0, out_shardings=(where, None))
        tell(event="start", step=done, processes=jax.process_count(), devices=mesh.size)
        while done < steps:
            began, wrote = time.perf_counter(), written_bytes()
            tree, loss = run(tree, spread(mesh, batch(done), rules))
            value = float(loss)  # waits: no host runs ahead
            sent = None if wrote is None else (written_bytes() or wrote) - wrote
            tell(step=done, loss=value, seconds=round(time.perf_counter() - began, 4), sent_bytes=sent)
            if done == hold:
                threading.Event().wait()
            done += 1
            if done % every == 0 or done == steps:
                manager.save(done, args=ocp.args.StandardSave(tree))
                tell(event="saved", step=done)
    manager.close()


def spread(mesh: Mesh, batch: Tree, rules: llama.Rules) -> Tree:
    """A batch that every process holds whole, as arrays over all processes: each gives the part of its own devices."""

    def part(whole: np.ndarray[Any, Any]) -> Callable[..., Any]:
        return lambda index: whole[index]

    where = llama.shardings(mesh, batch, rules)
    return jax.tree.map(lambda x, to: jax.make_array_from_callback(x.shape, to, part(x)), batch, where)


def tell(**what: object) -> None:
    """Print a line of JSON, in process 0."""
    if jax.process_index() == 0:
        print(json.dumps(what), flush=True)


def written_bytes() -> int | None:
    """What this process has written so far, to files and to other processes, as Linux counts it; None elsewhere."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def _end_with_the_driver() -> None:
    """JAX swallows SIGTERM, and a process whose neighbor died may hang: only SIGKILL is sure."""
    while os.read(0, 1):  # not by sys.stdin, whose lock would stop Python from ending
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
