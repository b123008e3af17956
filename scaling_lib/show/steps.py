"""Training steps as bars: what takes how long, alone and together, and what fills the memory of a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.show.palette import COLORS, PARTS, STATES
from scaling_lib.show.svg import FONT, WIDTH, Drawing, Label, figure, shortened
from scaling_lib.training import StepEstimate
from scaling_lib.training.estimate import MEMORY
from scaling_lib.training.step import INSIDE, OUTSIDE

MOST = 8
"""Estimates of the largest comparison that is drawn."""

_NAMES = {
    "mxu": "matrix unit", "hbm": "memory", "ici": "links", "dcn": "data-center network", "pcie": "host", "idle": "bubble",
}  # fmt: skip
_HIDDEN, _SHOWN = "all hides", "nothing hides"
_BEGINS, _ENDS = "backward begins", "backward ends"
_LEFT, _RIGHT, _ROW, _BAR = 122, 326, 22, 15
_USABLE = f'fill="{COLORS["hbm"]}"'


@dataclass(frozen=True)
class _Segment:
    """A part of a bar: what it is, how long, and how it is filled."""

    name: str
    size: float
    fill: str

    @property
    def ink(self) -> str:
        """The color of text on it."""
        return "white" if COLORS["mxu"] in self.fill else "black"


def parts(estimate: StepEstimate) -> Drawing:
    """One step: the bars of both overlaps, each part alone below, and the memory at two moments against what is usable.

    Args:
        estimate: what `training.estimate` returned.

    Derived in chapters/05-training.md.
    """
    alone = _in_order(estimate)
    per_s = (_RIGHT - _LEFT) / estimate.upper_s
    drawn = [str(Label(f"time of a step: {_span(estimate)}", 2, 15))]
    rows = {
        _HIDDEN: _hidden(estimate),
        _SHOWN: _one_after_another(estimate),
        **{segment.name: [segment] for segment in alone},
    }
    top = 26.0
    drawn += _band(estimate, per_s, top, _ROW * len(rows))
    for at, (name, segments) in enumerate(rows.items()):
        drawn += _bar(name, segments, per_s, top + _ROW * at, "s", inside=at < 2)
    top += _ROW * len(rows) + 22
    return _with_memory(estimate, drawn, top)


def times(estimates: Mapping[str, StepEstimate]) -> Drawing:
    """Steps of several plans side by side, each where everything hides and where nothing does, by what is busy.

    Args:
        estimates: by their label, up to eight.

    Raises:
        ValueError: for none, or more.

    Derived in chapters/05-training.md.
    """
    _check(estimates)
    per_s = (_RIGHT - _LEFT) / max(each.upper_s for each in estimates.values())
    drawn, words, top = [], [], 4.0
    seen: dict[str, str] = {}
    for label, each in estimates.items():
        drawn += _heading(label, f"MFU {each.mfu:.0%}", top + 12)
        drawn += _band(each, per_s, top + 20, 2 * _ROW)
        for at, (name, segments) in enumerate({_HIDDEN: _hidden(each), _SHOWN: _one_after_another(each)}.items()):
            drawn += _bar(name, segments, per_s, top + 20 + _ROW * at, "s", inside=True)
            seen |= {_NAMES[_resource(segment.name)]: segment.fill for segment in segments}
        parts = ", ".join(f"{name} {units.human(seconds, 's')}" for name, seconds in each.parts_s.items())
        words.append(f"{label}: {_span(each)}, of {parts}")
        top += 20 + 2 * _ROW + 12
    legend, top = _legend({name: seen[name] for name in _NAMES.values() if name in seen}, top)
    description = "Seconds of a training step, if all parts hide behind the longest and if none does. " + "; ".join(words) + "."
    return Drawing(figure([*drawn, *legend], description, top), description)


def memory(estimates: Mapping[str, StepEstimate]) -> Drawing:
    """What fills a device under several plans at its peak, against what is usable.

    Args:
        estimates: by their label, up to eight.

    Raises:
        ValueError: for none, or more.

    Derived in chapters/05-training.md.
    """
    _check(estimates)
    per_byte = (WIDTH - 8) / max(max(float(each.memory.total), each.usable_bytes) for each in estimates.values())
    drawn, words, top = [], [], 4.0
    seen: dict[str, str] = {}
    for label, each in estimates.items():
        peak = max(_moments(each).values(), key=lambda segments: sum(segment.size for segment in segments))
        held = units.human(float(each.memory.total), "GiB").removesuffix(" GiB")
        drawn += _heading(label, f"{held} of {units.human(each.usable_bytes, 'GiB')}", top + 12)
        drawn += _stack(peak, 2, per_byte, top + 20)
        drawn.append(_limit(2 + per_byte * each.usable_bytes, top + 17, top + 22 + _BAR))
        seen |= {segment.name: segment.fill for segment in peak}
        of = ", ".join(f"{segment.name} {_size(segment.size)}" for segment in peak)
        words.append(f"{label}: {_held(each)}, of {of}")
        top += 20 + _BAR + 13
    legend, top = _legend({name: seen[name] for name in MEMORY if name in seen} | {"usable": _USABLE}, top)
    description = "Memory of a device at its peak in a training step. " + "; ".join(words) + "."
    return Drawing(figure([*drawn, *legend], description, top), description)


def _check(estimates: Mapping[str, StepEstimate]) -> None:
    if not 1 <= len(estimates) <= MOST:
        raise ValueError(f"estimates has {len(estimates)} of them; give 1 to {MOST}")


def _resource(part: str) -> str:
    """What is busy during a part of a step."""
    if part.endswith(".dcn"):
        return "dcn"
    return {"math": "mxu", "elementwise": "hbm", "optimizer": "hbm", "offload": "pcie", "bubble": "idle"}.get(part, "ici")


def _segment(part: str, seconds: float) -> _Segment:
    colors = {**COLORS, "idle": PARTS["idle"]}
    return _Segment(part, seconds, f'fill="{colors[_resource(part)]}"')


def _in_order(estimate: StepEstimate) -> list[_Segment]:
    """All parts that take time, those of one resource together, the optimizer last."""
    resources = [*_NAMES]
    found = [_segment(part, seconds) for part, seconds in estimate.parts_s.items()]
    return sorted(found, key=lambda one: (one.name == "optimizer", resources.index(_resource(one.name))))


def _hidden(estimate: StepEstimate) -> list[_Segment]:
    """The step where all but the longest part hides: their sizes add up to `lower_s`."""
    step = estimate.step
    inside = {"math": float(step.math_s), **{name: float(step.parts_s[name]) for name in INSIDE}}
    longest = max(inside, key=inside.__getitem__)
    busy, bubble = inside[longest], inside[longest] * float(step.bubble)
    outside = {name: float(step.parts_s[name]) for name in OUTSIDE} | {"all on one link": float(step.links_s)}
    other = max(outside, key=outside.__getitem__)
    found = {longest: busy, "bubble": bubble} if busy + bubble >= outside[other] else {other: outside[other]}
    found["optimizer"] = float(step.optimizer_s)
    return [_segment(name, size) for name, size in found.items() if size]


def _one_after_another(estimate: StepEstimate) -> list[_Segment]:
    """The step where nothing hides: their sizes add up to `upper_s`."""
    step = estimate.step
    inside = float(step.math_s) + sum(float(step.parts_s[name]) for name in INSIDE)
    bubble = _segment("bubble", inside * float(step.bubble))
    return [bubble if one.name == "bubble" else one for one in _in_order(estimate)]


def _span(estimate: StepEstimate) -> str:
    return f"{units.human(estimate.lower_s, 's')} to {units.human(estimate.upper_s, 's')}"


def _held(estimate: StepEstimate) -> str:
    held, usable = (units.human(float(size), "GiB") for size in (estimate.memory.total, estimate.usable_bytes))
    return f"{held} of {usable}, {'fits' if estimate.fits else 'does not fit'}"


def _heading(left: str, right: str, y: float) -> list[str]:
    """A plan's label, as much of it as has room beside the figure at the right."""
    return [str(Label(shortened(left, 49 - len(right)), 2, y)), str(Label(right, WIDTH - 2, y, "end"))]


def _size(size_bytes: float) -> str:
    return units.human(size_bytes, "GiB" if size_bytes >= 0.01 * units.GIB else "B")


def _band(estimate: StepEstimate, per_s: float, top: float, height: float) -> list[str]:
    """Between the step where all hides and the one where nothing does, over some rows."""
    left, right = _LEFT + estimate.lower_s * per_s, _LEFT + estimate.upper_s * per_s
    return [
        f'<rect class="band" x="{left:.1f}" y="{top - 3:.1f}" width="{right - left:.1f}" height="{height:.1f}" '
        'fill="currentColor" fill-opacity="0.1"/>',
        f'<path d="M{left:.1f} {top - 3:.1f}V{top - 3 + height:.1f}" stroke="currentColor" stroke-dasharray="3 3"/>',
    ]


def _bar(name: str, segments: Iterable[_Segment], per: float, top: float, unit: str, *, inside: bool) -> Iterator[str]:
    """A row: its name, its bar and its value; with `inside`, what of the bar has room for it says what it is."""
    segments = list(segments)
    base = top + _BAR - 3
    yield str(Label(name, 2, base))
    yield from _stack(segments, _LEFT, per, top, inside=inside)
    total = sum(segment.size for segment in segments)
    yield str(Label(units.human(total, "s") if unit == "s" else _size(total), WIDTH - 2, base, "end"))


def _stack(segments: Iterable[_Segment], left: float, per: float, top: float, *, inside: bool = True) -> Iterator[str]:
    for one in segments:
        width = one.size * per
        gap = 1.0 if width > 3 else 0.0
        wide = max(width - gap, 0.6)
        yield f'<rect class="{one.name}" x="{left:.2f}" y="{top:.1f}" width="{wide:.2f}" height="{_BAR}" {one.fill}/>'
        label = Label(one.name, left + 4, top + _BAR - 3)
        if inside and label.width < width - 8:
            yield f'<g fill="{one.ink}">{label}</g>'
        left += width


def _moments(estimate: StepEstimate) -> dict[str, list[_Segment]]:
    """What is there as the backward pass begins, and as it ends: see `Memory.total`."""
    held = estimate.memory
    sizes = {name: float(getattr(held, name)) for name in MEMORY}
    begins = sizes | {"gradients": sizes["gradients"] * float(held.accumulates), "working": 0.0, "buffers": 0.0}
    ends = sizes | {"logits": 0.0, "head": 0.0}
    return {
        name: [_Segment(part, size, f'fill="{STATES[part]}"') for part, size in those.items() if size]
        for name, those in ((_BEGINS, begins), (_ENDS, ends))
    }


def _with_memory(estimate: StepEstimate, drawn: list[str], top: float) -> Drawing:
    moments = _moments(estimate)
    usable = estimate.usable_bytes
    per_byte = (_RIGHT - _LEFT) / max(float(estimate.memory.total), usable)
    drawn.append(str(Label(f"memory: {_held(estimate)}", 2, top)))
    top += 12
    for at, (name, segments) in enumerate(moments.items()):
        drawn += _bar(name, segments, per_byte, top + _ROW * at, "GiB", inside=False)
    drawn.append(_limit(_LEFT + per_byte * usable, top - 3, top + 2 * _ROW - 3))
    sizes = {name: float(getattr(estimate.memory, name)) for name in MEMORY}
    entries = {f"{name} {_size(sizes[name])}": f'fill="{STATES[name]}"' for name in MEMORY if sizes[name]}
    entries[f"usable {units.human(usable, 'GiB')}"] = _USABLE
    legend, top = _legend(entries, top + 2 * _ROW + 4, columns=2)
    times = ", ".join(f"{name} {units.human(seconds, 's')}" for name, seconds in estimate.parts_s.items())
    held = ", ".join(entries)
    description = (
        f"A training step of {estimate.model} on {estimate.slice} takes {_span(estimate)}, from all parts hidden behind the "
        f"longest to none: {times}. Memory of a device: {_held(estimate)}: {held}."
    )
    return Drawing(figure([*drawn, *legend], description, top), description)


def _limit(x: float, top: float, low: float) -> str:
    """The line of what is usable."""
    return (
        f'<path class="usable" d="M{min(x, WIDTH - 1.5):.1f} {top:.1f}V{low:.1f}" stroke="{COLORS["hbm"]}" stroke-width="2.5"/>'
    )


def _legend(entries: Mapping[str, str], top: float, columns: int = 0) -> tuple[list[str], float]:
    """Squares with their names, in columns or one after the other, and where they end."""
    drawn, x = [], 2.0
    for at, (text, fill) in enumerate(entries.items()):
        label = Label(text, x + FONT + 5, top + FONT - 2)
        if columns:
            label = Label(text, 2 + (at % columns) * WIDTH / columns + FONT + 5, top + at // columns * 19 + FONT - 2)
        elif label.x + label.width > WIDTH:
            top += 19
            label = Label(text, 2 + FONT + 5, top + FONT - 2)
        drawn += [
            f'<rect x="{label.x - FONT - 5:.1f}" y="{label.y - FONT + 2:.1f}" width="{FONT}" height="{FONT}" {fill}/>',
            str(label),
        ]
        x = label.x + label.width + 12
    rows = -(-len(entries) // columns) if columns else 1
    return drawn, top + 19 * rows + 4
