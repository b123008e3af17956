"""How long the steps of a server take: given as functions, or as tables of what `inference` predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a server's steps.

    Args:
        prefill_s: of the prefill of one prompt, by its tokens. Chunk by chunk, a chunk takes the difference between the prompt up
            to its end and up to its start.
        step_s: of a decode step, by the sequences in the batch and by the tokens of all their caches together, those of this
            step included.
        words: where the times come from.
    """

    prefill_s: Callable[[int], float] = field(repr=False)
    step_s: Callable[[int, int], float] = field(repr=False)
    words: str = "given times"
