"""The programs whose schedules stand in the catalog: small ones, each with something to see in its timeline.

Derived in chapters/09-profiling.md; `scaling_lib.catalog.schedules` reads what `write` wrote.
"""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from scaling_lib.catalog import schedules as catalog
from scaling_lib.xla import arrays, timeline, tpu
from scaling_lib.xla.manual.collective_matmul import gather_matmul
from scaling_lib.xla.program import Program
from scaling_lib.xla.timeline.work import work

lax: Any = jax.lax  # JAX is typed in part

SLICE, DEVICES = "v5e:4x4", 16
BLOCKS = 3
NO_LOOPS = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
"""Keeps the compiler from making loops of matmuls, of which a timeline would draw one pass."""


@dataclass(frozen=True)
class Case:
    """A program of the catalog; `compile` makes it, with the rest of the arguments of `tpu.compile`."""

    title: str
    words: str
    made: Callable[[], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]

    def compile(self, name: str) -> Program:
        """Compiles the program, with its schedule."""
        function, specs, how = self.made()
        return tpu.compile(function, *specs, slice=SLICE, name=name, schedule=True, **how)


def schedule(name: str) -> catalog.Schedule:
    """Compiles one of `CASES` and reads its schedule, in the nanoseconds of the catalog.

    Raises:
        TPUCompilerUnavailable: as `tpu.compile`.
    """
    case, program = CASES[name], CASES[name].compile(name)
    line, does = timeline.of(program), work(program)
    assert not line.loops, f"{name} has loops, which the catalog's schedules have no room for"
    operations = tuple(
        catalog.Operation(
            name=span.name,
            kind=span.kind,
            resource=span.resource,
            start_s=_whole(span.start_s),
            duration_s=_whole(span.duration_s),
            exposed_s=_whole(span.exposed_s),
            flops=does[span.name].flops,
            bytes=round(does[span.name].bytes),
            op_name=span.op_name,
        )
        for span in line.spans
    )
    return catalog.Schedule(
        name=name,
        title=case.title,
        words=case.words,
        slice=line.target,
        total_s=_whole(line.total_s),
        source=f"libtpu {program.versions['libtpu']}, timeline by {line.how}",
        date=program.date,
        operations=operations,
    )


def write(folder: Path | None = None) -> None:
    """Compiles every case and writes the catalog's files: half a minute."""
    folder = folder or Path(str(importlib.resources.files("scaling_lib.catalog")))
    found = [schedule(name) for name in CASES]
    programs = [
        {
            **{name: getattr(one, name) for name in ("name", "title", "words", "slice", "source", "date")},
            "total_ns": _ns(one.total_s),
        }
        for one in found
    ]
    operations = [
        {
            "program": one.name,
            **{name: getattr(op, name) for name in ("name", "kind", "resource")},
            **{f"{name}_ns": _ns(getattr(op, f"{name}_s")) for name in ("start", "duration", "exposed")},
            **{name: getattr(op, name) for name in ("flops", "bytes", "op_name")},
        }
        for one in found
        for op in one.operations
    ]
    for file, rows in ((catalog.PROGRAMS, programs), (catalog.OPERATIONS, operations)):
        with (folder / file).open("w", encoding="utf-8", newline="") as to:
            writer = csv.DictWriter(to, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _ns(seconds: float) -> int:
    return round(seconds / catalog.NS)


def _whole(seconds: float) -> float:
    return _ns(seconds) * catalog.NS


def _product(function: Callable[..., jax.Array]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A[I_X, J] · B[J, K_X] -> C[I, K_X], with the collectives that `function` has."""
    line = arrays.mesh(X=DEVICES)
    rows, columns = PartitionSpec("X"), PartitionSpec(None, "X")  # type: ignore[no-untyped-call]
    local = jax.shard_map(function, in_specs=(rows, columns), out_specs=columns, check_vma=False)
    a = arrays.spec(line, "A[I_X, J]", I=DEVICES * 512, J=4096)
    b = arrays.spec(line, "B[J, K_X]", J=4096, K=DEVICES * 2048)
    return local, (a, b), {}


def _gathered(a: jax.Array, b: jax.Array) -> jax.Array:
    product: jax.Array = lax.all_gather(a, "X", axis=0, tiled=True) @ b
    return product


def _training(weights: tuple[str, str]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A step of plain gradient descent for blocks of an MLP with residuals, its batch cut over all devices."""
    line = arrays.mesh(X=DEVICES)
    x = arrays.spec(line, "x[B_X, D]", B=DEVICES * 2048, D=4096)
    block = tuple(arrays.spec(line, name, D=4096, F=8192) for name in weights)
    blocks = (block,) * BLOCKS
    out = jax.tree.map(lambda leaf: leaf.sharding, blocks)
    return _step, (blocks, x, x), {"donate": 0, "out": out, "options": NO_LOOPS}


def _step(blocks: Any, x: jax.Array, target: jax.Array) -> Any:
    def loss(blocks: Any) -> jax.Array:
        y = x
        for into, out in blocks:
            y = y + jax.nn.relu(y @ into) @ out
        return jnp.mean(jnp.square((y - target).astype(jnp.float32)))

    return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, blocks, jax.grad(loss)(blocks))


CASES: Mapping[str, Case] = {
    "gather": Case(
        "gather, then multiply",
        "A[I_X, J] · B[J, K_X] on 16 chips: all of A is gathered, then multiplied",
        lambda: _product(_gathered),
    ),
    "ring": Case(
        "multiply while gathering",
        "A[I_X, J] · B[J, K_X] on 16 chips: pieces of A go round a ring both ways, each multiplied while others travel",
        lambda: _product(partial(gather_matmul, axis="X", ways=2)),
    ),
    "data": Case(
        "training, data-parallel",
        "Three blocks of an MLP, with copies of the weights on 16 chips: their gradients are summed",
        lambda: _training(("W[D, F]", "V[F, D]")),
    ),
    "fsdp": Case(
        "training, FSDP",
        "Three blocks of an MLP, with weights cut over 16 chips: they are gathered before use",
        lambda: _training(("W[D_X, F]", "V[F, D_X]")),
    ),
}
"""By name, as in the catalog."""
