"""Days and dollars for a budget of tokens. Derived in chapters/05-training.md."""

from __future__ import annotations

from dataclasses import dataclass

from scaling_lib.hardware import Chip
from scaling_lib.training import checks
from scaling_lib.training.either import Number

DAY_S = 86_400
HOUR_S = 3_600


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a training run takes.

    Args:
        tokens: trained on.
        chips: rented for all of it.
        seconds: from the first step to the last, failures and restarts included.
        usd_per_chip_hour: what a chip costs.
    """

    tokens: Number
    chips: Number
    seconds: Number
    usd_per_chip_hour: Number

    @property
    def days(self) -> Number:
        """The same in days of 24 hours."""
        return self.seconds / DAY_S

    @property
    def chip_hours(self) -> Number:
        """Hours of one chip, all chips added up."""
        return self.chips * self.seconds / HOUR_S

    @property
    def usd(self) -> Number:
        """Dollars for the chips alone, all the time, whether they train or restart."""
        return self.chip_hours * self.usd_per_chip_hour

    @property
    def usd_per_million_tokens(self) -> Number:
        """Dollars for a million trained tokens."""
        return self.usd / self.tokens * 1e6


def bill(
    chip: Chip,
    *,
    chips: Number,
    tokens: Number,
    tokens_per_s: Number,
    goodput: Number = 1.0,
    usd_per_chip_hour: Number = None,
) -> Bill:
    """Days and dollars to train on some tokens, at the on-demand list price of the chips.

    Args:
        chip: of which kind they are.
        chips: of the job; a number or an array, as all that follow. Arrays are not checked.
        tokens: the budget; repeated ones count each time.
        tokens_per_s: of all chips together, while steps run.
        goodput: share of the time in which steps run that count, as `goodput.goodput` finds it; 1 for a run without failures.
        usd_per_chip_hour: your own price; the catalog's on-demand price if not given, which chapters/appendix-chips.md shows with
            its source. A chip's share of its host is in it, storage and traffic are not.

    Raises:
        ValueError: for figures that are not positive, a goodput above 1, or a chip for which no source states a price.

    NB: real contracts give large discounts on list prices.
    """
    price = chip.usd_per_hour if usd_per_chip_hour is None else usd_per_chip_hour
    checks.positive(chips=chips, tokens=tokens, tokens_per_s=tokens_per_s, goodput=goodput, usd_per_chip_hour=price)
    if not checks.has_array(goodput) and goodput > 1:
        raise ValueError(f"goodput={goodput!r} is a share of the time; give at most 1")
    return Bill(tokens=tokens, chips=chips, seconds=tokens / (tokens_per_s * goodput), usd_per_chip_hour=price)
