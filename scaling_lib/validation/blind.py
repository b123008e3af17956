"""The severest test: the assumptions, too, are chosen on the half that is fitted, and know nothing of the other."""

from __future__ import annotations

import statistics
from random import Random

from scaling_lib import units
from scaling_lib.validation.fits import NEAR, Assumptions, Errors, Figures, halves, in_sample
from scaling_lib.validation.report import model_fits

EXPOSED = (1 / 3, 2 / 3, 1.0)
PASSES = (1.0, 2.0, 2.5, 3.0, 4.0)


def blind(splits: int = 20, *, seed: int = 0, by_model: bool = False) -> Figures:
    """Held-out figures where `Assumptions.exposed` and `.passes` are the best, of 15 pairs, for the fitted half of all runs.

    Best is the largest share of errors within 10 % less the median error, both in sample.

    Args:
        splits: random halves.
        seed: of these.
        by_model: whether all runs of a model are fitted, or all tested.

    Raises:
        ValueError: for splits that are no whole number of at least 1.
    """
    splits, random = units.size("splits", splits), Random(seed)
    choices = [model_fits(Assumptions(exposed=exposed, passes=passes)) for exposed in EXPOSED for passes in PASSES]
    found: dict[str, list[float | None]] = {fit.id: [None] * splits for fit in choices[0]}
    for split in range(splits):
        train, test = halves(choices[0], random, by_model=by_model)
        best: tuple[float, dict[str, float]] | None = None
        for fits in choices:
            errors = [abs(error) for error in in_sample(fit for fit in fits if fit.id in train).values()]
            score = sum(error <= NEAR for error in errors) / len(errors) - statistics.median(errors)
            if best is None or score > best[0]:
                constants = in_sample(fits, on=train)
                best = score, {name: constants[name] for name in test}
        assert best
        for name, error in best[1].items():
            found[name][split] = error
    tested: Errors = {name: row for name, row in found.items() if any(error is not None for error in row)}
    return Figures.of(tested)
