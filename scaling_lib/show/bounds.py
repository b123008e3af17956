"""When links bind: communication over math against the tokens a chip has, for FSDP, tensor parallelism, and both together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scaling_lib import units
from scaling_lib.hardware import Chip
from scaling_lib.show.palette import COLORS
from scaling_lib.show.svg import HEIGHT, Drawing, Label, LogAxes, decades_around, figure
from scaling_lib.training import bounds

_ROW = 21
_DASHES = {"FSDP": "", "tensor": "3 3", "mixed, all hides": "9 3", "mixed, nothing hides": "9 3 3 3"}


def ratios(
    chip: Chip,
    d_ff: int,
    *,
    chips: int,
    fsdp_axes: int = 2,
    tensor_axes: int = 1,
    tokens: tuple[float, float] = (10.0, 1e4),
) -> Drawing:
    """Seconds of collectives over those of math, against tokens a chip, as `training.bounds` has it; below 1 math can bind.

    FSDP alone and tensor parallelism alone have all axes. Of both together, split at best, there is a band: from the longer
    technique alone, where the two hide behind one another, to their sum. It ends where the best split is FSDP alone.

    Args:
        chip: supplies dense peak and link of a torus.
        d_ff: F of plain feed-forward layers.
        chips: ways of tensor parallelism alone, and ways that both share.
        fsdp_axes: axes of the torus for FSDP, where both are used.
        tensor_axes: other axes, for tensor parallelism.
        tokens: the ends of the horizontal axis.

    Raises:
        ValueError: for ends out of order, and for a figure that no source states for the chip.

    Derived in chapters/05-training.md.
    """
    low, high = (units.number("tokens", end) for end in tokens)
    if not 0 < low < high:
        raise ValueError(f"tokens={tokens}: give fewer and more tokens a chip, both positive")
    chips = units.size("chips", chips)
    axes_of = fsdp_axes + tensor_axes
    alone, ways = bounds.data_tokens(chip, axes_of), bounds.tensor_ways(chip, d_ff, axes_of)
    full, none = (
        bounds.mixed_tokens(chip, d_ff, fsdp_axes=fsdp_axes, tensor_axes=tensor_axes, overlap=overlap)
        for overlap in ("full", "none")
    )
    ends = min(high, d_ff * tensor_axes / fsdp_axes)  # from there on, `bounds.best_fsdp` is more than the chips
    lines: dict[str, tuple[Callable[[float], float], float, str]] = {
        "FSDP": (lambda t: alone / t, high, f"from {units.human(alone)} tokens a chip"),
        "tensor": (lambda _: chips / ways, high, f"{chips:,} ways; up to {units.human(ways)} would do"),
        "mixed, all hides": (lambda t: float((full / t) ** 0.5), ends, f"from {units.human(full)} tokens a chip"),
        "mixed, nothing hides": (lambda t: float((none / t) ** 0.5), ends, f"from {units.human(none)} tokens a chip"),
    }
    shown = {name: of for name, of in lines.items() if of[1] > low}
    values = [of(t) for of, end, _ in shown.values() for t in (low, end)]
    axes = LogAxes((low, high), decades_around(min(*values, 0.5), max(*values, 2.0)))
    drawn = axes.draw("tokens a chip", "links over math")
    drawn.append(
        f'<rect class="mxu" x="{axes.x(low):.1f}" y="{axes.y(1):.1f}" width="{axes.x(high) - axes.x(low):.1f}" '
        f'height="{axes.bottom - axes.y(1):.1f}" fill="{COLORS["mxu"]}" fill-opacity="0.18"/>'
    )
    drawn.append(axes.line([(low, 1), (high, 1)], "mxu"))
    drawn.append(str(Label("math binds", axes.x(low) + 6, axes.bottom - 6)))
    if ends > low:
        band = [
            (low, (full / low) ** 0.5),
            (ends, (full / ends) ** 0.5),
            (ends, (none / ends) ** 0.5),
            (low, (none / low) ** 0.5),
        ]
        points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in band)
        drawn.append(f'<polygon class="band" points="{points}" fill="{COLORS["ici"]}" fill-opacity="0.25"/>')
    for row, (name, (of, end, said)) in enumerate(shown.items()):
        drawn += _drawn(axes, name, [(low, of(low)), (end, of(end))], said, HEIGHT + 8 + _ROW * row)
    description = (
        f"Seconds of collectives over seconds of math on {chip}, against tokens a chip, both axes logarithmic; F = {d_ff:,}. "
        "Math binds below 1: " + "; ".join(f"{name} {said}" for name, (_, _, said) in shown.items()) + "."
    )
    return Drawing(figure(drawn, description, HEIGHT + _ROW * len(shown) + _ROW), description)


def _drawn(axes: LogAxes, name: str, ends: list[tuple[float, float]], said: str, y: float) -> Iterator[str]:
    """A line, and its row in the legend; powers are straight on these axes."""
    look = f'class="{name}" fill="none" stroke="{COLORS["ici"]}" stroke-width="3" stroke-dasharray="{_DASHES[name]}"'
    points = " ".join(f"{axes.x(t):.1f},{axes.y(ratio):.1f}" for t, ratio in ends)
    for where in (points, f"6,{y - 5} 40,{y - 5}"):
        yield f'<polyline points="{where}" {look}/>'
    yield str(Label(name, 48, y))
    yield str(Label(said, 397, y, "end"))
