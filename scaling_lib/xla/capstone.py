"""A design's training step and decode step before the TPU compiler, or the plain word that nobody has judged them.

Played in labs/11-capstone.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference import Layout
from scaling_lib.training import StepEstimate
from scaling_lib.transformer import Transformer
from scaling_lib.xla import judge
from scaling_lib.xla.judge import Row
from scaling_lib.xla.program import Program
from scaling_lib.xla.serving import judge as serving
from scaling_lib.xla.tpu import TPUCompilerUnavailable


@dataclass(frozen=True, kw_only=True, repr=False)
class Compiled:
    """What the compiler says of a step; prints in words.

    Args:
        what: "training step" or "decode step".
        judgement: the estimate beside the program; None where it was not judged.
        why: for which reason it was not.
    """

    what: str
    judgement: judge.Judgement | serving.Judgement | None
    why: str = ""

    @property
    def judged(self) -> bool:
        """Whether the compiler, or its record, has seen this step."""
        return self.judgement is not None

    @property
    def ok(self) -> bool:
        """Whether it was judged, and fits."""
        return self.judgement is not None and self.judgement.fits

    @property
    def program(self) -> Program | None:
        """What the compiler made; None where it was not judged."""
        return self.judgement.program if self.judgement else None

    @property
    def peak(self) -> Row | None:
        """Bytes of a device at the peak, predicted and compiled; None where it was not judged."""
        return next((row for row in self.judgement.memory if row.name == "peak"), None) if self.judgement else None

    def __str__(self) -> str:
        if self.judgement is None:
            return f"{self.what}: not judged here, since {self.why}"
        row, usable = self.peak, self.judgement.estimate.usable_bytes
        verdict = "fits" if self.ok else "does not fit"
        assert row is not None
        held = "not said" if row.compiled is None else units.human(row.compiled, "GiB")
        return (
            f"{self.what}: {verdict}; at the peak {held} of {units.human(usable, 'GiB')} a device, "
            f"predicted {units.human(row.predicted, 'GiB')}"
        )

    __repr__ = __str__


def training_step(step: StepEstimate, *, record: str | None = None) -> Compiled:
    """The training step of `xla.llama` under the plan of an estimate, compiled for its slice.

    Args:
        step: the estimate.
        record: as of `tpu.compile`.
    """
    plan = step.plan.but(placement=None)
    return _asked("training step", lambda: judge.judge(step.model, step.slice, plan, step.batch, T=step.T, record=record))


def decode_step(
    model: Transformer, slice: Slice, layout: Layout, batch: int, *, context: int, record: str | None = None
) -> Compiled:
    """A decode step of `xla.llama` with a static cache, compiled for a server's slice.

    Args:
        model: what is served.
        slice: of one server.
        layout: how.
        batch: sequences of one server.
        context: places in the cache of each.
        record: as of `tpu.compile`.
    """
    plain = layout.but(placement=None)
    return _asked("decode step", lambda: serving.judge("decode", model, slice, plain, batch, context=context, record=record))


def _asked(what: str, ask: Callable[[], judge.Judgement | serving.Judgement]) -> Compiled:
    """Nobody has judged a step that `xla.llama` cannot express, or for which there is neither compiler nor record."""
    try:
        return Compiled(what=what, judgement=ask())
    except (TPUCompilerUnavailable, ValueError) as why:
        return Compiled(what=what, judgement=None, why=str(why))
