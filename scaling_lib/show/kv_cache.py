"""The KV cache against the length of the context, for several models, with the memory of a chip as a line across."""

from __future__ import annotations

from collections.abc import Sequence

from scaling_lib import transformer, units
from scaling_lib.hardware import Chip
from scaling_lib.show.hierarchy import capacity
from scaling_lib.show.palette import COLORS, MODELS
from scaling_lib.show.svg import HEIGHT, Drawing, Label, LogAxes, decades_around, figure, shortened
from scaling_lib.transformer import Transformer

LENGTHS = (1e3, 1e6)
"""Tokens at the ends of the horizontal axis."""
_DASHES = ("", "9 3", "3 3", "12 3 3 3", "6 2", "2 2")
_POINTS, _ROW = 120, 21


def curves(models: Sequence[Transformer], *, B: int = 1, dtype: str = "bf16", chip: Chip | None = None) -> Drawing:
    """Bytes of the KV cache against tokens of context, both logarithmic, a line for each model; windows bend a line.

    Args:
        models: up to six.
        B: sequences, all of that length.
        dtype: of keys and values.
        chip: whose HBM is drawn across, all of it: weights need their share as well.

    Raises:
        ValueError: for no models, or more than there are colors.

    Derived in chapters/04-transformers.md.
    """
    if not 1 <= len(models) <= len(MODELS):
        raise ValueError(f"models has {len(models)} of them; give 1 to {len(MODELS)}")
    low, high = LENGTHS
    lengths = [round(low * (high / low) ** (i / _POINTS)) for i in range(_POINTS + 1)]
    rows = [[transformer.kv_cache_bytes(model, S=S, B=B, dtype=dtype) for S in lengths] for model in models]
    across = [] if chip is None else [chip.hbm_bytes]
    axes = LogAxes(LENGTHS, decades_around(min([*across, *map(min, rows)]) / 2, max([*across, *map(max, rows)])))
    of = "a sequence" if B == 1 else f"{B:,} sequences"
    drawn = axes.draw("tokens of context", f"KV cache of {of} (bytes, {dtype})")
    lines = [
        (shortened(str(model), 21), _each(model, dtype), values, f'class="model" stroke="{color}" stroke-dasharray="{dash}"')
        for model, values, color, dash in zip(models, rows, MODELS, _DASHES, strict=False)
    ]
    if chip is not None:
        hbm = [chip.hbm_bytes] * len(lengths)
        lines.append((f"HBM of {chip}", capacity(chip.hbm_bytes), hbm, f'class="hbm" stroke="{COLORS["hbm"]}"'))
    words = []
    for row, (name, each, values, look) in enumerate(lines):
        points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in zip(lengths, values, strict=True))
        y = HEIGHT + 8 + _ROW * row
        drawn += [
            f'<polyline points="{where}" fill="none" stroke-width="3" {look}/>' for where in (points, f"6,{y - 5} 36,{y - 5}")
        ]
        drawn += [str(Label(name, 44, y)), str(Label(each, 397, y, "end"))]
        words.append(f"{name}: {each}")
    description = f"KV cache of {of} in {dtype} against tokens of context, both axes logarithmic. " + "; ".join(words) + "."
    return Drawing(figure(drawn, description, HEIGHT + _ROW * len(lines)), description)


def _each(model: Transformer, dtype: str) -> str:
    """Bytes of one more token: at the start, and once every window is full."""
    last = round(LENGTHS[1])
    first, later = (
        transformer.kv_cache_bytes(model, S=S, dtype=dtype) - before
        for S, before in ((1, 0), (last + 1, transformer.kv_cache_bytes(model, S=last, dtype=dtype)))
    )
    said = [units.human(each, "B") for each in ((first,) if first == later else (first, later))]
    return f"{' → '.join(said)} a token"
