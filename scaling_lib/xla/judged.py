"""Estimates of memory and collectives held against the TPU compiler: real models, slices and plans, compiled once and recorded.

Derived in chapters/13-validation.md; docs/adr/0009 says how programs are recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.training import Plan, estimate
from scaling_lib.xla import judge, tpu
from scaling_lib.xla.judge import Judgement
from scaling_lib.xla.tpu import records

RECORD = "training"
"""The record that holds the programs."""


@dataclass(frozen=True)
class Case:
    """A training step to judge; arguments as of `judge.judge`. `name` is that of its program."""

    name: str
    model: str
    slice: str
    plan: Plan
    batch: int
    T: int = 4096

    def judge(self, record: str | None = RECORD) -> Judgement:
        """By way of the record, as SCALING_LIB_RECORDS says."""
        return judge.judge(self.model, self.slice, self.plan, self.batch, T=self.T, name=self.name, record=record)


def _plan(remat: tuple[str, ...] = (), **ways: int) -> Plan:
    return judge.in_jax(Plan(remat=remat, **ways))  # type: ignore[arg-type]


MLP = ("mlp.gate", "mlp.up")
ATTENTION = ("attention.query", "attention.key", "attention.value", "attention.context")
_8B, _70B, _405B = "Llama-3 8B", "Llama-3 70B", "Llama-3.1 405B"

CASES = (
    Case("8b-fsdp", _8B, "v5e:4x4", _plan(fsdp=16), 16),
    Case("8b-fsdp-chunks", _8B, "v5e:4x4", _plan(fsdp=16, loss_chunks=8), 16),
    Case("8b-fsdp-2", _8B, "v5e:4x4", _plan(fsdp=16), 32),
    Case("8b-fsdp-2-chunks", _8B, "v5e:4x4", _plan(fsdp=16, loss_chunks=8), 32),
    Case("8b-fsdp-mlp", _8B, "v5e:4x4", _plan(MLP, fsdp=16), 16),
    Case("8b-data", _8B, "v5e:4x4", _plan(data=2, fsdp=8), 16),
    Case("8b-tensor", _8B, "v5e:4x4", _plan(fsdp=4, tensor=4), 16),
    Case("8b-v6e-mlp", _8B, "v6e:4x4", _plan(MLP, fsdp=16), 32),
    Case("8b-v6e-chunks", _8B, "v6e:2x4", _plan(fsdp=8, loss_chunks=8), 8),
    Case("8b-v6e-attention", _8B, "v6e:4x4", _plan(ATTENTION, fsdp=16), 32),
    Case("8b-v5p-attention", _8B, "v5p:2x2x2", _plan(ATTENTION, fsdp=8), 32),
    Case("8b-v5p-mlp", _8B, "v5p:4x4x4", _plan(MLP, fsdp=64), 64, 8192),
    Case("8b-v5p-mixed", _8B, "v5p:4x4x4", _plan(data=4, fsdp=4, tensor=4), 64),
    Case("70b-tensor", _70B, "v5e:16x16", _plan(fsdp=64, tensor=4), 256),
    Case("70b-v5p", _70B, "v5p:4x4x4", _plan(fsdp=64), 64),
    Case("70b-v5p-tensor", _70B, "v5p:8x8x8", _plan(fsdp=128, tensor=4), 512),
    Case("70b-v5p-tensor-mlp", _70B, "v5p:4x4x4", _plan(MLP, fsdp=8, tensor=8), 32, 8192),
    Case("70b-v6e", _70B, "v6e:16x16", _plan(fsdp=256), 256),
    Case("70b-v6e-chunks", _70B, "v6e:8x8", _plan(fsdp=64, loss_chunks=8), 64),
    Case("70b-v6e-tensor", _70B, "v6e:16x16", _plan(ATTENTION, fsdp=32, tensor=8, loss_chunks=4), 256),
    Case("70b-v6e-small", _70B, "v6e:4x4", _plan(fsdp=16), 16),
    Case("405b-v6e-tensor", _405B, "v6e:16x16", _plan(fsdp=32, tensor=8, loss_chunks=8), 32),
)
"""8B, 70B, 405B; v5e, v5p, v6e; data, FSDP, and tensor with sequence parallel; three remat policies; whole and chunked loss."""


def judged() -> tuple[Judgement, ...]:
    """Every case, from the record: nothing is compiled."""
    programs = {program.name: program for program in tpu.record(RECORD).programs}
    return tuple(
        Judgement(estimate=estimate(case.model, case.slice, case.plan, case.batch, T=case.T), program=programs[case.name])
        for case in CASES
    )


def write() -> None:
    """Compiles every case and records it: twenty minutes on two cores. What did not change keeps its bytes."""
    records.renew(RECORD, lambda: [case.judge() for case in CASES])


def memory_table(judgements: tuple[Judgement, ...] | None = None) -> str:
    """Predicted and compiled memory of all cases in GiB, and bytes sent with what the differences leave, a line each."""
    rows = judged() if judgements is None else judgements
    numbers = f"{'arguments':>22}{'peak':>22}{'error':>8}{'sent':>8}{'left':>8}  fits"
    lines = [f"{'model':12}{'slice':11}{'plan, and what a layer keeps':64}{numbers}"]
    for one in rows:
        arguments, peak = one.memory
        fits = ("yes" if one.fits else "no") + ("" if one.agree else ", but was judged otherwise")
        e = one.estimate
        kept = " ".join(name.partition(".")[2] for name in e.plan.remat) or "input"
        parts = f", loss in {e.plan.loss_chunks}" if e.plan.loss_chunks > 1 else ""
        shown = f"{e.plan.but(remat='none')}, {e.batch} × {e.T}{parts}; {kept}"
        sent = [f"{part:+.1%}" for part in (one.collectives.error, one.collectives.error_left)] if one.fits else ["", ""]
        lines.append(
            f"{e.model!s:12}{e.slice!s:11}{shown:64}{_pair(arguments):>22}{_pair(peak):>22}{peak.error or 0:>+8.1%}"
            f"{sent[0]:>8}{sent[1]:>8}  {fits}"
        )
    return "\n".join(lines)


def _pair(row: judge.Row) -> str:
    compiled = "not said" if row.compiled is None else f"{row.compiled / units.GIB:.3f}"
    return f"{row.predicted / units.GIB:.3f} | {compiled}"
