"""What a compiled program does: its collectives, matmuls and memory, read off the compiler's own text.

One `Program` serves both worlds: simulated CPU devices (`simulate.compile`) and a real TPU slice (`tpu.compile`). Everything
is per JAX device: a TPU7x chip is two. Derived in chapters/02-tpus.md; docs/adr/0009 says how records are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Collective:
    """One collective operation of a program, and how often it runs.

    Args:
        kind: "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", "ragged-all-to-all",
            "collective-broadcast".
        axes: mesh axes along which its groups run, in mesh order; empty where the groups are not those of whole axes.
        group: devices in one group. For a permute, how many devices send.
        dtype: of the elements, by the library's names.
        elements: of the larger of the array that goes in and the one that comes out of a device: the gathered array of an
            all-gather, the unreduced one of a reduce-scatter; tuples summed.
        array_bytes: bytes of those elements.
        times: how often it runs, the trip counts of the loops around it multiplied.
        over: "ici", or "dcn" for the part of a collective between slices.
        asynchronous: whether it has a start and an end that other work can stand between.
        form: "plain"; "fused" where a fusion holds it; "collective matmul" where it belongs to a loop that multiplies
            pieces while it permutes others.
        name: the instruction's name.
        op_name: the operation of the source program that it serves, where the compiler says.
    """

    kind: str
    axes: tuple[str, ...]
    group: int
    dtype: str
    elements: int
    array_bytes: float
    times: int = 1
    over: str = "ici"
    asynchronous: bool = False
    form: str = "plain"
    name: str = ""
    op_name: str = ""

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends in one run, at the least any algorithm can.

        With V = `array_bytes` and n = `group`: V(n − 1)/n for an all-gather, reduce-scatter or all-to-all, twice that for
        an all-reduce, V for a permute. Over DCN, V.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Matmul:
    """One dot operation of a program (on TPUs the compiler writes it as a convolution), and how often it runs.

    Args:
        flops: of one run, 2 × the product of all distinct dimensions.
        times: how often it runs.
        cycles: the TPU compiler's estimate for the fusion that holds it; None where it gives none.
        dtype: of the operands.
        name: the instruction's name.
        op_name: the operation of the source program.
    """

    flops: int
    times: int = 1
    cycles: int | None = None
    dtype: str = "bf16"
    name: str = ""
    op_name: str = ""


@dataclass(frozen=True)
class Buffer:
    """One large array in memory: its bytes, its dtype and shape as text, and what it is, where the program says."""

    bytes: float
    shape: str
    name: str = ""


@dataclass(frozen=True)
class Memory:
    """Memory of one device, by part, in bytes.

    `peak_bytes` is what the compiler holds against `available_bytes`; arguments + outputs + temporaries counts too much,
    since buffers share space over time. A program that does not fit has only `peak_bytes` (what it would need),
    `available_bytes` and `largest`.
    """

    peak_bytes: float
    arguments_bytes: float = 0
    outputs_bytes: float = 0
    aliased_bytes: float = 0
    temporaries_bytes: float = 0
    code_bytes: float = 0
    host_bytes: float = 0
    available_bytes: float | None = None
    largest: tuple[Buffer, ...] = ()

    @property
    def fits(self) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Code:
    """What the compiler made of a program that fits."""

    collectives: tuple[Collective, ...] = ()
    matmuls: tuple[Matmul, ...] = ()
    text: str = field(default="", repr=False)


@dataclass(frozen=True)
class Program:
    """A JAX function compiled for a mesh: what it holds, computes and sends, per device.

    `code` is None for a program that does not fit; then `collectives`, `matmuls`, `flops` and `text` raise `ValueError` with
    what it needs and what there is, and `fits` is False.
    """

    name: str
    target: str  # "v5e:16x16", "2 × v5e:16x16" or "cpu:8"
    devices: int
    axes: Mapping[str, int]
    memory: Memory
    code: Code | None
    versions: Mapping[str, str]  # {"jax": ..., "libtpu": ...}
    date: str  # ISO day it was compiled
    recorded: bool = False  # read from a record: no text

    # properties: fits, collectives, matmuls, text, flops (sum of flops × times), cycles (sum over matmuls), sent_bytes(over="ici")
    # classmethod: Program.read(text=..., memory=..., ...) parses; to_json() -> dict; from_json(dict)
