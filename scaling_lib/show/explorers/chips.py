"""What explorers of money share: the chips of which all figures are known, and a typed price."""

from __future__ import annotations

import re

from scaling_lib.hardware import Chip

LIST = "list"
"""What stands for the catalog's list price."""

_NEEDED = {"hbm_bytes", "hbm_bytes_per_s", "dcn_bytes_per_s"}
_LINKS = {"tpu": "ici_link_bytes_per_s", "gpu": "fabric_bytes_per_s"}


def has_all(chip: Chip) -> bool:
    """Whether all figures that a server or a training step is priced with are known; a price in dollars is not asked for."""
    return {*_NEEDED, _LINKS[chip.kind]} <= {*chip.figures} and "bf16" in chip.peak_flops_per_s and chip.name != "v100"


def read_price(text: str) -> float | str:
    """Dollars of a chip and hour in typed text, or `LIST`.

    Raises:
        ValueError: for anything else.
    """
    typed = text.strip().removeprefix("$").strip()
    if typed.lower() == LIST:
        return LIST
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", typed) or float(typed) == 0:
        raise ValueError(f"usd_per_chip_hour={text!r} is no price; write dollars like '2.50', or 'list' for the list price")
    return float(typed)
