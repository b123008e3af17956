"""What a step on simulated devices should send and hold, and what its compiled program does: bytes of one device.

Used in labs/05a to 05e.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from scaling_lib import training, units
from scaling_lib.hardware import Slice, chip
from scaling_lib.training import Plan, StepEstimate
from scaling_lib.transformer import Transformer
from scaling_lib.xla.program import Program

_FLOAT32 = dict.fromkeys(("weights", "gradients", "moments", "activations", "math"), "f32") | {"master": None, "flash": False}


def estimate(model: Transformer, B: int, T: int, **plan: Any) -> StepEstimate:
    """`training.estimate` for eight simulated devices, where all is float32 and attention stores its scores.

    Its bytes count; its times are of no machine: a v5e has no float32 peak, and is given that of bf16.

    Args:
        model: the model.
        B: sequences of a step, all devices together.
        T: tokens of a sequence.
        plan: as of `training.Plan`; whatever is given there wins.

    Raises:
        ValueError: as `training.estimate`.
    """
    real = chip("v5e")
    eight = Slice(dataclasses.replace(real, name="simulated", peak_flops_per_s={"f32": real.flops_per_s("bf16")}), (2, 4))
    return training.estimate(model, eight, Plan(**(_FLOAT32 | plan)), B, T=T, causal=False)


def sent(program: Program, *, least: int = 2) -> dict[str, float]:
    """Bytes that a device sends in one run of a program, by kind of collective, the most first.

    Args:
        program: from `simulate.compile`.
        least: arrays of fewer numbers do not count, such as the loss on its way.
    """
    found: dict[str, float] = {}
    for one in program.collectives:
        if one.elements >= least:
            found[one.kind] = found.get(one.kind, 0) + one.sent_bytes * one.times
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def row(name: str, step: StepEstimate, program: Program) -> dict[str, str]:
    """Prediction and program side by side, for a table.

    Weights and optimizer are what the program's arguments are, but for the batch.
    """
    memory = step.memory
    kept = float(memory.weights) + float(memory.optimizer)
    return {
        "technique": name,
        "to send": units.human(sum(float(one.sent_bytes) for one in step.collectives), "B"),
        "sends": units.human(sum(sent(program).values()), "B"),
        "to keep": units.human(kept, "B"),
        "keeps": units.human(program.memory.arguments_bytes, "B"),
        "while it works": units.human(program.memory.temporaries_bytes, "B"),
    }
