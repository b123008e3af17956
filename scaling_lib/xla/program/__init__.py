"""What a compiled program does: its collectives, matmuls and memory, read off the compiler's own text.

One `Program` serves both worlds: simulated CPU devices (`simulate.compile`) and a real TPU slice (`tpu.compile`). Everything
is per JAX device: a TPU7x chip is two. Derived in chapters/02-tpus.md; docs/adr/0009 says how records are kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaling_lib import units
from scaling_lib.xla.program import hlo, operations
from scaling_lib.xla.program.operations import Code, Collective, Matmul

__all__ = ["Buffer", "Code", "Collective", "Matmul", "Memory", "Program", "memory"]


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
        """Whether the device has the memory; always, where it is not known how much that is."""
        return self.available_bytes is None or self.peak_bytes <= self.available_bytes

    def __str__(self) -> str:
        have = "" if self.available_bytes is None else f" of {_size(self.available_bytes)}"
        parts = ("arguments", "outputs", "aliased", "temporaries", "host")
        sizes = ", ".join(f"{part} {_size(size)}" for part in parts if (size := getattr(self, f"{part}_bytes")))
        return f"peak {_size(self.peak_bytes)}{have}" + (f" ({sizes})" if sizes else "")


def _size(size_bytes: float) -> str:
    return units.human(size_bytes, "GiB" if size_bytes >= units.GIB / 100 else "B")


def memory(stats: Any, *, available_bytes: float | None = None, largest: tuple[Buffer, ...] = ()) -> Memory:
    """Memory by part from what JAX's `compiled.memory_analysis()` returns.

    Args:
        stats: the analysis of one device.
        available_bytes: memory of a TPU device that programs can use; None for a simulated device. The CPU compiler's own
            peak leaves most temporaries out, so there the peak is arguments + outputs − aliased + temporaries.
        largest: the largest buffers, where they are known.

    Raises:
        ValueError: where the backend gives no analysis.
    """
    if stats is None:
        raise ValueError("stats is None: this backend gives no memory analysis; compile for simulated CPU devices or a TPU")

    def part(name: str) -> float:
        return float(getattr(stats, f"{name}_size_in_bytes"))

    parts = {name: part(name) for name in ("argument", "output", "alias", "temp", "generated_code")}
    peak = parts["argument"] + parts["output"] - parts["alias"] + parts["temp"]
    return Memory(
        peak_bytes=peak if available_bytes is None else float(stats.peak_memory_in_bytes),
        arguments_bytes=parts["argument"],
        outputs_bytes=parts["output"],
        aliased_bytes=parts["alias"],
        temporaries_bytes=parts["temp"],
        code_bytes=parts["generated_code"],
        host_bytes=part("host_argument") + part("host_output") - part("host_alias") + part("host_temp"),
        available_bytes=available_bytes,
        largest=largest,
    )


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

    @classmethod
    def read(
        cls,
        text: str,
        *,
        name: str,
        target: str,
        axes: Mapping[str, int],
        memory: Memory,
        versions: Mapping[str, str],
        date: str,
    ) -> Program:
        """The program that the compiler printed as `text`.

        Args:
            text: optimized HLO, as `compiled.as_text()` returns it.
            name: what to call the program.
            target: what it is compiled for.
            axes: sizes of the mesh axes by name, in mesh order: partition ids count row by row. Where the text has fewer
                partitions than the mesh has devices, it is for one of several slices, and the first axes count slices.
            memory: its memory.
            versions: of what compiled it.
            date: the day.

        Raises:
            ValueError: for text that is no HLO module, or one for a number of devices that the axes do not multiply to.
        """
        module = hlo.parse(text)
        devices = math.prod(axes.values())
        if devices % module.partitions:
            raise ValueError(f"axes={dict(axes)!r} multiply to {devices}, but the text is for {module.partitions} partitions")
        code = operations.read(module, axes, text)
        return cls(name, target, devices, dict(axes), memory, code, dict(versions), date)

    @property
    def fits(self) -> bool:
        """Whether a device has the memory."""
        return self.code is not None and self.memory.fits

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Collective operations, in program order."""
        return self._compiled.collectives

    @property
    def matmuls(self) -> tuple[Matmul, ...]:
        """Dot operations, in program order."""
        return self._compiled.matmuls

    @property
    def text(self) -> str:
        """Optimized HLO text. A recorded program has none and raises `ValueError`."""
        if self.recorded:
            raise ValueError(f"program {self.name!r} was read from a record, which holds no text; compile it to read its text")
        return self._compiled.text

    @property
    def flops(self) -> int:
        """FLOPs of all dot operations of one device, loops multiplied."""
        return sum(one.flops * one.times for one in self.matmuls)

    @property
    def cycles(self) -> int | None:
        """Clock cycles that the TPU compiler estimates for all matmuls, loops multiplied; None where it gives none."""
        known = [one.cycles * one.times for one in self.matmuls if one.cycles is not None]
        return sum(known) if known else None

    def sent_bytes(self, over: str = "ici") -> float:
        """Bytes that a device sends over "ici" or "dcn", at the least that any algorithm can; loops multiplied.

        Raises:
            ValueError: for another network.
        """
        if over not in ("ici", "dcn"):
            raise ValueError(f"over={over!r} is no network; give 'ici' or 'dcn'")
        return sum(one.sent_bytes * one.times for one in self.collectives if one.over == over)

    @property
    def _compiled(self) -> Code:
        if self.code is None:
            have = self.memory.available_bytes
            raise ValueError(
                f"program {self.name!r} does not fit {self.target}: a device would need "
                f"{units.human(self.memory.peak_bytes, 'GiB')}" + (f" and has {units.human(have, 'GiB')}" if have else "")
            )
        return self.code

    def __str__(self) -> str:
        made_by = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        mesh = "".join(f", {name}={size}" for name, size in self.axes.items())
        lines = [f"{self.name} for {self.target}{mesh}; compiled {self.date} by {made_by}", f"memory: {self.memory}"]
        if self.code is None:
            return "\n".join([*lines, "does not fit"])
        cycles = "" if self.cycles is None else f", {self.cycles:,} cycles"
        runs = sum(one.times for one in self.matmuls)
        lines.append(f"matmuls: {runs:,}, {units.human(self.flops, 'FLOPs')}{cycles}")
        sent: dict[str, list[float]] = {}
        for one in self.collectives:
            words = [one.kind, "along " + ", ".join(one.axes)] if one.axes else [one.kind]
            words += [word for word in (one.form, one.over) if word not in ("plain", "ici")]
            words += ["asynchronous"] * one.asynchronous
            total = sent.setdefault(", ".join(words), [0, 0])
            total[0] += one.times
            total[1] += one.times * one.sent_bytes
        lines += [f"{int(runs):,} × {name}: {units.human(total, 'B')} sent" for name, (runs, total) in sent.items()]
        lines += [f"{runs:,} × kernel {name}" for name, runs in self.code.kernels.items()]
        lines += [f"loop {name}: length not known, counted once" for name in self.code.endless]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Everything but the text, as JSON can hold it; `from_json` reads it back. What has its default value is left out."""
        code = self.code and {
            "collectives": [_set_fields(one) for one in self.code.collectives],
            "matmuls": [_set_fields(one) for one in self.code.matmuls],
            "kernels": dict(self.code.kernels),
            "endless": list(self.code.endless),
            **({"timelines": dict(self.code.timelines)} if self.code.timelines else {}),
        }
        return {
            "name": self.name,
            "target": self.target,
            "devices": self.devices,
            "axes": dict(self.axes),
            "memory": {**_set_fields(self.memory), "largest": [_set_fields(one) for one in self.memory.largest]},
            "code": code,
            "versions": dict(self.versions),
            "date": self.date,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Program:
        """The program that `to_json` wrote, without its text: `recorded` is True."""
        largest = tuple(Buffer(**one) for one in data["memory"]["largest"])
        code = data["code"] and Code(
            collectives=tuple(Collective(**{**one, "axes": tuple(one["axes"])}) for one in data["code"]["collectives"]),
            matmuls=tuple(Matmul(**one) for one in data["code"]["matmuls"]),
            kernels=data["code"]["kernels"],
            endless=tuple(data["code"]["endless"]),
            timelines=data["code"].get("timelines", {}),
        )
        return cls(**{**data, "memory": Memory(**{**data["memory"], "largest": largest}), "code": code, "recorded": True})


def _set_fields(one: Any) -> dict[str, Any]:
    """Fields of a dataclass that differ from their defaults."""
    return {part.name: value for part in dataclasses.fields(one) if (value := getattr(one, part.name)) != part.default}
