"""A decode step or a prefill judged by the compiler: the estimate beside what the real program holds and sends.

The program is that of `xla.llama` under a layout of `scaling_lib.inference`. Derived in chapters/08-serving-llama.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from scaling_lib import inference, units
from scaling_lib.hardware import Slice
from scaling_lib.inference import Layout, Step
from scaling_lib.inference.layout import GROUPS
from scaling_lib.transformer import Transformer
from scaling_lib.transformer import model as model_of
from scaling_lib.xla import flash, llama, tpu
from scaling_lib.xla.judge import DTYPES, Row
from scaling_lib.xla.ledger import Moved
from scaling_lib.xla.program import Program
from scaling_lib.xla.serving import int8
from scaling_lib.xla.serving.sharding import AXES, COPIES, cuts

Phase = Literal["decode", "prefill"]
Compilable = tuple[partial[Any], tuple[Any, ...], Any]
SEEN = 1e-3
"""Collectives that send less than this part of the most are left out of the table."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Judgement:
    """An estimate beside a compiled decode step or prefill, all per device; prints as a table."""

    estimate: Step
    program: Program

    @property
    def memory(self) -> tuple[Row, ...]:
        """Bytes of the arguments, which are weights and in decode the cache, and at the peak."""
        held, compiled = self.estimate.memory, self.program.memory
        arguments = float(held.weights) + (float(held.cache) if self.estimate.phase == "decode" else 0.0)
        return (
            Row(name="arguments", predicted=arguments, compiled=compiled.arguments_bytes or None),
            Row(name="peak", predicted=float(held.total), compiled=compiled.peak_bytes),
        )

    @property
    def collectives(self) -> tuple[Moved, ...]:
        """What collectives send, by mesh axes and kind; see `collectives`."""
        return collectives(self.estimate, self.program)

    @property
    def fits(self) -> bool:
        """Whether the compiled program fits; one that does not says what it would need all the same."""
        return self.program.fits

    @property
    def agree(self) -> bool:
        """Whether estimate and compiler say the same of that."""
        return self.estimate.fits == self.program.fits

    def __str__(self) -> str:
        e = self.estimate
        verdict = "fits" if self.fits else "does not fit"
        lines = [
            f"{e.phase} of {e.model} on {e.slice}: {e.layout}; {e.batch} sequences, {e.new} new of {e.context} tokens",
            f"{verdict}, as was predicted" if self.agree else f"{verdict}, which was predicted otherwise",
            f"{'':36}{'predicted':>12}{'compiled':>12}{'error':>9}",
            *(
                _line(f"{row.name}, GiB", row.predicted / units.GIB, row.compiled and row.compiled / units.GIB)
                for row in self.memory
            ),
        ]
        if self.program.code:
            rows = self.collectives
            most = max((max(row.predicted_bytes, row.compiled_bytes) for row in rows), default=0)
            lines += [
                _line(f"{row.kind} {' '.join(row.axes)}, MB", row.predicted_bytes / 1e6, row.compiled_bytes / 1e6)
                for row in rows
                if max(row.predicted_bytes, row.compiled_bytes) > SEEN * most
            ]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Everything that is shown, in base units, as JSON can hold it."""
        found: dict[str, Any] = {
            "estimate": self.estimate.to_json(),
            "fits": self.fits,
            "predicted_fits": self.estimate.fits,
            "memory_bytes": {row.name: {"predicted": row.predicted, "compiled": row.compiled} for row in self.memory},
            "versions": dict(self.program.versions),
        }
        if self.program.code:
            found["collectives"] = [{**vars(row), "axes": list(row.axes)} for row in self.collectives]
        return found


def _line(name: str, predicted: float, compiled: float | None) -> str:
    if not compiled:
        return f"{name:36}{predicted:>12.3f}{'none' if compiled == 0 else 'not said':>12}"
    return f"{name:36}{predicted:>12.3f}{compiled:>12.3f}{predicted / compiled - 1:>+9.1%}"


def collectives(estimate: Step, program: Program) -> tuple[Moved, ...]:
    """What a compiled step's collectives send beside what its estimate says, in bytes of one device.

    Args:
        estimate: of the layout.
        program: which fits. One for simulated devices, which know no bf16, has twice the bytes: the prediction is doubled.

    Raises:
        ValueError: for a program that does not fit, and so sends nothing.
    """
    scale = 2.0 if program.target.startswith("cpu") and estimate.layout.activations == "bf16" else 1.0
    predicted: dict[tuple[tuple[str, ...], str], float] = {}
    key: tuple[tuple[str, ...], str]
    for row in estimate.collectives:
        names = tuple(name for axis in GROUPS[row.group] for name in ((axis, COPIES) if axis == "tensor" else (axis,)))
        key = tuple(name for name in AXES if name in names and name in program.axes), row.kind
        predicted[key] = predicted.get(key, 0.0) + scale * float(row.sent_bytes)
    compiled: dict[tuple[tuple[str, ...], str], float] = {}
    for one in program.collectives:
        axes = tuple(sorted(one.axes, key=AXES.index))
        key = axes, "permute" if one.kind == "collective-permute" else one.kind
        compiled[key] = compiled.get(key, 0.0) + one.sent_bytes * one.times
    return tuple(
        Moved(
            axes=axes, kind=kind, predicted_bytes=predicted.get((axes, kind), 0.0), compiled_bytes=compiled.get((axes, kind), 0.0)
        )
        for axes, kind in sorted(predicted.keys() | compiled.keys())
    )


def judge(
    phase: Phase,
    model: Transformer | str,
    slice: Slice | str,
    layout: Layout,
    batch: int,
    *,
    context: int,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    record: str | None = None,
) -> Judgement:
    """Compiles a decode step or a prefill of `xla.llama` for a TPU slice under a layout, and puts the estimate beside it.

    >>> judge("decode", "Llama-3 8B", "v5e:2x4", Layout(tensor=8), 64, context=8192).agree
    True

    Args:
        phase: "decode" for one more token of each sequence over a cache of `context` places, "prefill" for whole prompts.
        model: or its name in the catalog.
        slice: of TPUs, or its name.
        layout: as of `inference.decode_step`.
        batch: sequences, all devices together.
        context: places in the cache of each sequence, or tokens of each prompt.
        options: as of `tpu.compile`.
        name: of the program; the phase if not given.
        record: as of `tpu.compile`.

    Raises:
        ValueError: for a layout that `inference` refuses, or that `xla.llama` cannot express: says which part.
        TPUCompilerUnavailable: as `tpu.compile`.
    """
    priced = estimate(phase, model, slice, layout, batch, context=context)
    function, specs, out = step(phase, priced.model, layout, batch, context=context)
    donate = 1 if phase == "decode" else ()
    program = tpu.compile(
        function, *specs, slice=slice, out=out, donate=donate, options=options, name=name or phase, record=record
    )
    return Judgement(estimate=priced, program=program)


def estimate(phase: Phase, model: Transformer | str, slice: Slice | str, layout: Layout, batch: int, *, context: int) -> Step:
    """The estimate of a step; arguments and errors as of `judge`."""
    if phase == "decode":
        return inference.decode_step(model, slice, layout, batch, context=context, reads="all")
    if phase == "prefill":
        return inference.prefill(model, slice, layout, prompt=context, batch=batch)
    raise ValueError(f"phase={phase!r} is neither 'decode' nor 'prefill'")


def step(phase: Phase, model: Transformer | str, layout: Layout, batch: int, *, context: int) -> Compilable:
    """The program of a step: a function, the shapes of its arguments cut over an abstract mesh, and how results are laid out.

    `simulate.compile(function, *specs, out=out)` compiles it, and so does `tpu.compile`. Decode takes weights, cache, and a
    dictionary of tokens [B, 1] and positions [B], and its cache, the second argument, is to be donated. Prefill takes weights
    and a dictionary of tokens [B, T] and lengths [B]. Both return logits and the cache. Arguments and errors as of `judge`.

    NB: float32 is for simulated devices, where attention of prefill is dense; on TPUs it is `xla.flash`.
    """
    model = model_of(model) if isinstance(model, str) else model
    _check(layout)
    how = cuts(layout, model)
    dtype = DTYPES[layout.activations]
    params = llama.shapes(model, DTYPES.get(layout.weights, dtype))
    cache = jax.eval_shape(partial(llama.empty_cache, model, batch, context, dtype))
    if layout.weights == "int8":
        params = jax.eval_shape(int8.weights, params)
    memory, keep = (int8.memory, int8.cache) if layout.kv == "int8" else (llama.static_memory, dict)
    cache = jax.eval_shape(keep, cache)
    spec: Any = jax.ShapeDtypeStruct
    tokens = {"tokens": spec((batch, 1 if phase == "decode" else context), jnp.int32)}
    tokens["positions" if phase == "decode" else "lengths"] = spec((batch,), jnp.int32)
    params, cache, tokens = how.specs(how.mesh, params, cache, tokens)
    logits: Any = jax.NamedSharding(how.mesh, llama.layout("BV", how.mesh, how.rules))
    out = logits, jax.tree.map(lambda leaf: leaf.sharding, cache)
    if phase == "decode":
        return partial(_decode, rules=how.rules, dtype=dtype, memory=how.memory(memory)), (params, cache, tokens), out
    attention = flash.attention(how.cache_rules) if layout.activations == "bf16" else llama.dense_attention
    return partial(_prefill, S=context, rules=how.rules, dtype=dtype, attention=attention, keep=keep), (params, tokens), out


def _decode(params: Any, cache: Any, batch: Any, **how: Any) -> tuple[jax.Array, Any]:
    logits, cache = llama.decode(params, cache, batch["tokens"], batch["positions"], **how)
    return logits[:, 0], cache


def _prefill(params: Any, batch: Any, **how: Any) -> tuple[jax.Array, Any]:
    return llama.prefill(params, batch["tokens"], batch["lengths"], **how)


def _check(layout: Layout) -> None:
    def refuse(name: str, give: str) -> None:
        raise ValueError(f"{name}={getattr(layout, name)!r} is not in xla.llama's serving; give {give}")

    if layout.activations not in DTYPES:
        refuse("activations", "'bf16', or 'f32' for simulated devices")
    for name in ("weights", "kv"):
        if getattr(layout, name) not in ("int8", layout.activations):
            refuse(name, f"'int8', or {layout.activations!r} as activations has")
    if layout.quantization is not None:
        refuse("quantization", "weights='int8'")
    if layout.math not in ("bf16", layout.activations):
        refuse("math", f"{layout.activations!r} as activations has")
    if (layout.kv_scale is not None) != (layout.kv == "int8"):
        refuse("kv_scale", "'bf16' with kv='int8', None without")
    if layout.kv_scale not in (None, "bf16"):
        refuse("kv_scale", "'bf16'")
