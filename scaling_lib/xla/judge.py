"""A training plan judged by the compiler: the estimate beside what the real training step holds and sends.

The step is that of `xla.llama`; what its table cannot express is refused by name. Derived in chapters/05-training.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.training import Plan, StepEstimate, estimate
from scaling_lib.transformer import Transformer
from scaling_lib.transformer import model as model_of
from scaling_lib.xla import arrays, flash, ledger, llama, tpu
from scaling_lib.xla.ledger import Ledger
from scaling_lib.xla.program import Program

Step = tuple[partial[Any], tuple[Any, ...]]

AXES = ("data", "fsdp", "tensor")
"""Ways of a plan that `xla.llama` can express: mesh axes of the same names."""
LEAST_BYTES = 512
"""What an array takes on a TPU at least, such as each of the optimizer's two step counts."""
DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A number that the estimate predicts, and that of the compiled program; None where that does not say."""

    name: str
    predicted: float
    compiled: float | None

    @property
    def error(self) -> float | None:
        """Of the prediction, as a part of what was compiled."""
        return self.predicted / self.compiled - 1 if self.compiled else None


@dataclass(frozen=True, kw_only=True, repr=False)
class Judgement:
    """An estimate beside a compiled training step, all per device; prints as a table, and what the compiler does otherwise."""

    estimate: StepEstimate
    program: Program

    @property
    def memory(self) -> tuple[Row, ...]:
        """Bytes of the arguments, which are weights, optimizer state and tokens, and at the peak."""
        held, batch, plan = self.estimate.memory, self.estimate.batch, self.estimate.plan
        tokens = batch * self.estimate.T / plan.replicas / (plan.tensor if plan.sequence_parallel else 1)
        arguments = held.weights + held.optimizer + 2 * 4 * tokens + 2 * LEAST_BYTES
        compiled = self.program.memory
        return (
            Row(name="arguments", predicted=float(arguments), compiled=compiled.arguments_bytes or None),
            Row(name="peak", predicted=self.estimate.scheduled_bytes, compiled=compiled.peak_bytes),
        )

    @property
    def collectives(self) -> Ledger:
        """What the collectives send; a program that does not fit has none, and raises `ValueError`."""
        return ledger.read(self.estimate, self.program)

    @property
    def differences(self) -> tuple[str, ...]:
        """What the compiler does otherwise, in words."""
        peak = self.memory[1]
        found = [] if self.agree else [f"fits: {self.program.fits}, and was predicted: {self.estimate.fits}"]
        if peak.error is not None and abs(peak.error) > 0.1:
            found.append(f"peak: predicted {peak.error:+.1%}")
        return (*found, *(map(str, self.collectives.differences) if self.program.code else ()))

    @property
    def fits(self) -> bool:
        """Whether the compiled program fits; one that does not says what it would need all the same."""
        return self.program.fits

    @property
    def agree(self) -> bool:
        """Whether estimate and compiler say the same of that."""
        return self.estimate.fits == self.program.fits

    def __str__(self) -> str:
        e, (arguments, peak) = self.estimate, self.memory
        verdict = "fits" if self.fits else "does not fit"
        lines = [
            f"{e.model} on {e.slice}: {e.plan}, {e.batch} sequences of {e.T}",
            f"{verdict}, as was predicted" if self.agree else f"{verdict}, which was predicted otherwise",
            f"{'':28}{'predicted':>12}{'compiled':>12}{'error':>9}",
            *(
                _line(f"{row.name}, GiB", row.predicted / units.GIB, row.compiled and row.compiled / units.GIB)
                for row in (arguments, peak)
            ),
        ]
        if self.program.code:
            sent = self.collectives
            lines += [
                _line(f"{row.kind} {' '.join(row.axes)}, GB", row.predicted_bytes / 1e9, row.compiled_bytes / 1e9)
                for row in sent.rows
                if max(row.predicted_bytes, row.compiled_bytes) > ledger.LEAST * sent.predicted_bytes
            ]
            lines.append(_line("sent, GB", sent.predicted_bytes / 1e9, sent.compiled_bytes / 1e9))
            lines.append(_line("with these differences, GB", sent.reconciled_bytes / 1e9, sent.compiled_bytes / 1e9))
        return "\n".join([*lines, *(f"- {what}" for what in self.differences)])

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Everything that is shown, in base units, as JSON can hold it."""
        e = self.estimate
        found: dict[str, Any] = {
            "model": str(e.model),
            "slice": str(e.slice),
            "plan": str(e.plan),
            "batch": e.batch,
            "T": e.T,
            "fits": self.fits,
            "predicted_fits": e.fits,
            "memory_bytes": {row.name: {"predicted": row.predicted, "compiled": row.compiled} for row in self.memory},
            "differences": list(self.differences),
            "versions": dict(self.program.versions),
        }
        if self.program.code:
            sent = self.collectives
            found["collectives"] = [{**vars(row), "axes": list(row.axes)} for row in sent.rows]
            names = ("predicted_bytes", "compiled_bytes", "reconciled_bytes")
            found["sent_bytes"] = {name.removesuffix("_bytes"): getattr(sent, name) for name in names}
        return found


def _line(name: str, predicted: float, compiled: float | None) -> str:
    if not compiled:
        return f"{name:28}{predicted:>12.3f}{'none' if compiled == 0 else 'not said':>12}"
    return f"{name:28}{predicted:>12.3f}{compiled:>12.3f}{predicted / compiled - 1:>+9.1%}"


def in_jax(plan: Plan) -> Plan:
    """The same split, with what the training step of `xla.llama` has of dtypes and remat policies.

    Weights, gradients and moments are kept in float32 and there is no master copy; gradients travel in the dtype of activations.
    "full" becomes `()`, which leaves out the one matmul of a layer that need not run again.
    """
    remat = {"full": (), "selective": "none"}.get(plan.remat, plan.remat) if isinstance(plan.remat, str) else plan.remat
    return plan.but(
        weights="f32", gradients="f32", moments="f32", master=None, reduced=plan.activations, math=plan.activations, remat=remat
    )


def judge(
    model: Transformer | str,
    slice: Slice | str,
    plan: Plan,
    batch: int,
    *,
    T: int,
    options: Mapping[str, Any] | None = None,
    name: str = "train_step",
    record: str | None = None,
) -> Judgement:
    """Compiles the training step of `xla.llama` for a TPU slice under a plan, and puts the estimate beside it.

    >>> judge("Llama-3 8B", "v5e:4x4", in_jax(Plan(fsdp=16, remat=())), 16, T=4096).agree
    True

    Args:
        model: or its name in the catalog.
        slice: of TPUs, or its name.
        plan: as of `training.estimate`; see `in_jax`. Attention is `xla.flash` where it says `flash`, else the dense one.
        batch: sequences of a step, all devices together.
        T: tokens in a sequence.
        options: as of `tpu.compile`.
        name: of the program.
        record: as of `tpu.compile`.

    Raises:
        ValueError: for a plan that `training.estimate` refuses, or that `xla.llama` cannot express: says which part.
        TPUCompilerUnavailable: as `tpu.compile`.
    """
    priced = estimate(model, slice, plan, batch, T=T)
    function, specs = step(priced.model, plan, batch, T=T)
    program = tpu.compile(function, *specs, slice=slice, donate=(0, 1), options=options, name=name, record=record)
    return Judgement(estimate=priced, program=program)


def step(model: Transformer | str, plan: Plan, batch: int, *, T: int) -> Step:
    """The training step of `xla.llama` under a plan: a function, and the shapes of its arguments, cut over an abstract mesh.

    `tpu.compile(function, *specs, slice=..., donate=(0, 1))` compiles it, and so does `simulate.compile`. Arguments and errors
    as of `judge`.
    """
    model = model_of(model) if isinstance(model, str) else model
    _check(plan, model)
    mesh = arrays.mesh(**{axis: getattr(plan, axis) for axis in AXES if getattr(plan, axis) > 1 or axis == "fsdp"})
    rules = rules_of(plan)
    optimizer, params = llama.optimizer(1000), llama.shapes(model, DTYPES[plan.weights])
    tokens = jax.ShapeDtypeStruct((batch, T), jnp.int32)  # type: ignore[no-untyped-call]
    tree = params, jax.eval_shape(optimizer.init, params), {"tokens": tokens, "targets": tokens}
    function = partial(
        llama.train_step,
        optimizer=optimizer,
        rules=rules,
        dtype=DTYPES[plan.activations],
        remat=plan.remat,
        loss_chunks=plan.loss_chunks,
        attention=flash.attention(rules) if plan.flash else llama.dense_attention,
    )
    return function, tuple(llama.specs(mesh, tree, rules))


def rules_of(plan: Plan) -> llama.Rules:
    """The rules by which `xla.llama` cuts its arrays as a plan says."""
    heads = dict.fromkeys("NKFV", "tensor") | ({"T": "tensor"} if plan.sequence_parallel else {})
    return {"B": ("data", "fsdp"), **heads, "D": "fsdp"}


def _check(plan: Plan, model: Transformer) -> None:
    def refuse(name: str, give: str) -> None:
        raise ValueError(f"{name}={getattr(plan, name)!r} is not in xla.llama's training step; give {give}")

    for name in ("context", "pipeline", "expert", "microbatches"):
        if getattr(plan, name) > 1:
            refuse(name, f"{name}=1")
    if plan.fsdp > 1 and plan.zero != 3:
        refuse("zero", "zero=3, or call these ways data")
    if plan.offload:
        refuse("offload", "offload=()")
    if plan.dropout:
        refuse("dropout", "dropout=False")
    if plan.remat in ("full", "selective"):
        refuse("remat", "'none', or names of what is kept, () for least; see judge.in_jax")
    for name in ("weights", "activations"):
        if getattr(plan, name) not in DTYPES:
            refuse(name, "'f32' or 'bf16'")
    for name in ("gradients", "moments"):
        if getattr(plan, name) != plan.weights:
            refuse(name, f"{plan.weights!r} as weights has; see judge.in_jax")
    if plan.math not in ("bf16", plan.activations):
        refuse("math", f"{plan.activations!r} as activations has")
    if plan.master is not None:
        refuse("master", "master=None; see judge.in_jax")
    if plan.tensor > model.K:
        refuse("tensor", f"at most {model.K}, the key heads of {model}")
