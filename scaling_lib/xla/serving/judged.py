"""Estimates of decode steps and prefills held against the TPU compiler: real models and slices, compiled once and recorded.

Derived in chapters/13-validation.md; docs/adr/0009 says how programs are recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling_lib import units
from scaling_lib.inference import Layout
from scaling_lib.xla import tpu
from scaling_lib.xla.judge import Row
from scaling_lib.xla.serving import judge
from scaling_lib.xla.serving.judge import Judgement, Phase
from scaling_lib.xla.tpu import records

RECORD = "serving"
"""The record that holds the programs."""


@dataclass(frozen=True)
class Case:
    """A step to judge; arguments as of `judge.judge`. `name` is that of its program."""

    name: str
    phase: Phase
    model: str
    slice: str
    batch: int
    context: int
    layout: Layout = field(default_factory=Layout)

    def judge(self, record: str | None = RECORD) -> Judgement:
        """By way of the record, as SCALING_LIB_RECORDS says."""
        return judge.judge(
            self.phase, self.model, self.slice, self.layout, self.batch, context=self.context, name=self.name, record=record
        )


def _case(name: str, slice: str, batch: int, context: int, layout: Layout) -> Case:
    phase: Phase = "prefill" if "prefill" in name else "decode"
    return Case(name, phase, "Llama-3 70B" if name.startswith("70b") else "Llama-3 8B", slice, batch, context, layout)


_INT8 = Layout(weights="int8")
_BOTH = Layout(weights="int8", kv="int8", kv_scale="bf16")

CASES = (
    _case("8b-one", "v5e:1x1", 1, 2048, Layout()),
    _case("8b-one-large", "v5e:1x1", 8, 2048, Layout()),
    _case("8b-one-int8", "v5e:1x1", 16, 2048, _INT8),
    _case("8b-one-int8-cache", "v5e:1x1", 32, 2048, _BOTH),
    _case("8b-tensor", "v5e:2x4", 64, 8192, Layout(tensor=8)),
    _case("8b-tensor-large", "v5e:2x4", 128, 8192, Layout(tensor=8)),
    _case("8b-tensor-110", "v5e:2x4", 110, 8192, Layout(tensor=8)),
    _case("8b-tensor-111", "v5e:2x4", 111, 8192, Layout(tensor=8)),
    _case("8b-copies", "v5e:4x4", 32, 8192, Layout(tensor=16)),
    _case("8b-batch", "v5e:4x4", 128, 8192, Layout(tensor=8, kv_batch=2)),
    _case("8b-sequence", "v5e:4x4", 32, 32768, Layout(tensor=8, sequence=2)),
    _case("8b-data", "v5e:4x4", 128, 8192, Layout(tensor=4, data=4)),
    _case("8b-width", "v5e:4x4", 128, 8192, Layout(tensor=8, width=2)),
    _case("8b-v6e", "v6e:2x2", 64, 8192, Layout(tensor=4)),
    _case("70b-copies", "v5e:4x4", 16, 8192, Layout(tensor=16)),
    _case("70b-copies-23", "v5e:4x4", 23, 8192, Layout(tensor=16)),
    _case("70b-copies-24", "v5e:4x4", 24, 8192, Layout(tensor=16)),
    _case("70b-batch-int8", "v5e:4x4", 32, 8192, _INT8.but(tensor=8, kv_batch=2)),
    _case("70b-batch-int8-cache", "v5e:4x4", 32, 8192, _BOTH.but(tensor=8, kv_batch=2)),
    _case("70b-tensor", "v5e:2x4", 1, 2048, Layout(tensor=8)),
    _case("70b-v6e-tensor", "v6e:2x4", 32, 8192, Layout(tensor=8)),
    _case("70b-v6e-int8", "v6e:2x4", 32, 8192, _INT8.but(tensor=8)),
    _case("70b-v6e-batch", "v6e:4x4", 64, 8192, Layout(tensor=8, kv_batch=2)),
    _case("8b-prefill-int8", "v5e:1x1", 1, 4096, _INT8),
    _case("8b-prefill", "v5e:2x4", 4, 8192, Layout(tensor=8)),
    _case("8b-prefill-int8-cache", "v5e:2x4", 2, 8192, _BOTH.but(tensor=8)),
    _case("8b-prefill-data", "v5e:4x4", 4, 8192, Layout(tensor=4, data=4)),
    _case("70b-prefill", "v5e:4x4", 4, 8192, Layout(tensor=16)),
    _case("70b-prefill-large", "v5e:4x4", 16, 8192, Layout(tensor=16)),
    _case("70b-prefill-v6e", "v6e:2x4", 1, 8192, Layout(tensor=8)),
)
"""8B and 70B; decode and prefill; v5e and v6e; every way to cut the cache; bf16 and int8.

Two pairs are of the largest batch that was predicted to fit, and of one sequence more. So close to the limit an estimate is not
always right, for the compiler's peak has up to 0.15 GiB beyond arguments, results and temporaries: of 8B with weights in int8
on one v5e, 33 sequences of 2,048 tokens were predicted to fit, and 32 do.
"""


def judged() -> tuple[Judgement, ...]:
    """Every case, from the record: nothing is compiled."""
    programs = {program.name: program for program in tpu.record(RECORD).programs}
    return tuple(
        Judgement(
            estimate=judge.estimate(case.phase, case.model, case.slice, case.layout, case.batch, context=case.context),
            program=programs[case.name],
        )
        for case in CASES
    )


def write() -> None:
    """Compiles every case and records it: three minutes on two cores. What did not change keeps its bytes."""
    records.renew(RECORD, lambda: [case.judge() for case in CASES])


def memory_table(judgements: tuple[Judgement, ...] | None = None) -> str:
    """Predicted and compiled memory of all cases in GiB, and what is sent in MB, a line each."""
    rows = judged() if judgements is None else judgements
    numbers = f"{'arguments':>17}{'peak':>17}{'error':>8}{'sent':>21}"
    lines = [f"{'':8}{'model':12}{'slice':9}{'layout':51}{'batch':>12}{numbers}  fits"]
    for one in rows:
        e, (arguments, peak) = one.estimate, one.memory
        fits = ("yes" if one.fits else "no") + ("" if one.agree else ", but was judged otherwise")
        sent = ""
        if one.fits:
            predicted = sum(row.predicted_bytes for row in one.collectives)
            compiled = sum(row.compiled_bytes for row in one.collectives)
            sent = f"{predicted / 1e6:.1f} | {compiled / 1e6:.1f}"
        lines.append(
            f"{e.phase:8}{e.model!s:12}{e.slice!s:9}{e.layout!s:51}{f'{e.batch} × {e.context}':>12}"
            f"{_pair(arguments):>17}{_pair(peak):>17}{peak.error or 0:>+8.1%}{sent:>21}  {fits}"
        )
    return "\n".join(lines)


def _pair(row: Row) -> str:
    compiled = "not said" if row.compiled is None else f"{row.compiled / units.GIB:.2f}"
    return f"{row.predicted / units.GIB:.2f} | {compiled}"
