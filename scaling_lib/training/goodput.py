"""What failures cost a training run: how often to save a checkpoint, and the share of the time that is left for training.

All times are of the whole job: it stops when any of its chips fails. Derived in chapters/05-training.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scaling_lib import units
from scaling_lib.training import checks
from scaling_lib.training.either import Number

LLAMA_3_CHIP_MTBF_S = 54 * 86_400 * 16_384 / 419
"""Chip-seconds between unexpected interruptions of Llama 3 405B: 419 in 54 days on 16,384 H100, one every 3.1 hours.

They are of all kinds, about 78 % hardware; another 47 were planned. Source: Grattafiori et al. 2024, The Llama 3 Herd of Models,
table 5 and the text before it.
"""


def checkpoint_interval_s(checkpoint_s: Number, mtbf_s: Number, *, formula: Literal["young", "daly"] = "daly") -> Number:
    """How long to train between two checkpoints so that as little time as possible is lost.

    Args:
        checkpoint_s: how long training stands still for one; a number or an array, as all that follow. Arrays are not checked.
        mtbf_s: mean time between failures of the whole job: that of one chip divided by the chips.
        formula: "young" is the first order, √(2 c M), good while a checkpoint is short against the time between failures; "daly"
            adds two orders and comes within 0.2 % of the best goodput for any checkpoint.

    Raises:
        ValueError: for an unknown formula, or times that are not positive.

    Source: Young 1974, A First Order Approximation to the Optimum Checkpoint Interval; Daly 2006, A Higher Order Estimate of the
    Optimum Checkpoint Interval for Restart Dumps.
    NB: real jobs save in the background; then it is the pause that counts here, and saving must be over before the next one.
    """
    if formula not in ("young", "daly"):
        raise ValueError(f"formula={formula!r} is unknown; give 'young' or 'daly'")
    checks.positive(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    first = (2 * checkpoint_s * mtbf_s) ** 0.5
    if formula == "young":
        return first
    part = checkpoint_s / (2 * mtbf_s)
    return (part < 1) * (first * (1 + part**0.5 / 3 + part / 9) - checkpoint_s) + (part >= 1) * mtbf_s


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Where the time of a run goes, as shares that add up to 1.

    Args:
        interval_s: training between two checkpoints.
        mtbf_s: mean time between failures of the whole job.
        useful: steps that count; the goodput.
        checkpoints: standing still to save.
        lost: work that a failure undid, back to the last checkpoint.
        restarts: from a failure to the first step after it, repeated where it fails again.
    """

    interval_s: Number
    mtbf_s: Number
    useful: Number
    checkpoints: Number
    lost: Number
    restarts: Number


def goodput(
    *,
    chips: Number,
    chip_mtbf_s: Number,
    checkpoint_s: Number,
    restart_s: Number,
    interval_s: Number = None,
    formula: Literal["young", "daly"] = "daly",
) -> Goodput:
    """The share of a run's time that goes into steps that count, with failures at random, each stopping the whole job.

    Exact for failures without memory (exponential times between them), which may also strike during a checkpoint or a restart.

    Args:
        chips: of the job; a number or an array, as all that follow. Arrays are not checked.
        chip_mtbf_s: mean time between failures of one chip, with its share of hosts and network; `LLAMA_3_CHIP_MTBF_S` is one.
        checkpoint_s: how long training stands still for one checkpoint.
        restart_s: from a failure to the first new step: noticing, replacing, loading, compiling.
        interval_s: training between two checkpoints; `checkpoint_interval_s` if not given.
        formula: for that.

    Raises:
        ValueError: for times that are not positive (`restart_s` may be 0), or chips below 1.

    Source: the expected time of Daly 2006: M exp(R/M) (exp((τ + c)/M) - 1) for τ of work.
    """
    checks.positive(chips=chips, chip_mtbf_s=chip_mtbf_s, checkpoint_s=checkpoint_s)
    if not checks.has_array(chips):
        units.size("chips", chips)
    if not checks.has_array(restart_s):
        units.number("restart_s", restart_s, minimum=0)
    mtbf_s = chip_mtbf_s / chips
    if interval_s is None:
        interval_s = checkpoint_interval_s(checkpoint_s, mtbf_s, formula=formula)
    checks.positive(interval_s=interval_s)
    running = _exp(-restart_s / mtbf_s)  # share of the time that is not restarts
    segment_s = interval_s + checkpoint_s
    kept = running * _not_undone(segment_s / mtbf_s)
    return Goodput(
        interval_s=interval_s,
        mtbf_s=mtbf_s,
        useful=kept * interval_s / segment_s,
        checkpoints=kept * checkpoint_s / segment_s,
        lost=running - kept,
        restarts=1 - running,
    )


def _not_undone(segment: Number) -> Number:
    """x/(exp(x) - 1) for a segment between checkpoints of x mean times between failures; a series where digits would cancel."""
    short = segment < 1e-3
    decay = _exp(-(segment + short))
    return short * (1 - segment / 2 + segment**2 / 12) + (segment >= 1e-3) * segment * decay / (1 - decay)


def _exp(power: Number) -> Number:
    return math.e**power
