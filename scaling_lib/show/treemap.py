"""Treemaps of a model: every weight, or every matmul of a forward pass, as a box whose area is its share of the whole.

The layout is squarified (Bruls, Huizing, van Wijk 2000), within a part as among the parts; written here, as a package for it
would be one more download for the reader's browser (docs/adr/0007).
Counts are those of `scaling_lib.transformer`. Derived in chapters/04-transformers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scaling_lib import transformer, units
from scaling_lib.show.palette import PARTS
from scaling_lib.show.svg import WIDTH, Drawing, Label, figure, shortened
from scaling_lib.transformer import Transformer

_TOP, _HEIGHT, _ROW, _LINE = 42, 250, 21, 16
_LEAST = 1e-9
"""The least share that has a box, which nobody sees."""
_LETTERS = {"query": "Q", "key": "K", "value": "V", "out": "O"}
_GROUPS = {"projections": "attention", "context": "scores", "positions": "rest", "router": "rest", "norms": "rest"}
_NAMES = {
    "attention": "attention matrices", "scores": "scores and context", "mlp": "MLP", "experts": "experts", "idle": "idle experts",
    "shared_experts": "shared experts", "embedding": "embedding", "head": "head",
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A rectangle, in units of the view box; y points down."""

    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        """Width times height."""
        return self.width * self.height


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """Boxes that together fill `box`, one a size, each with the area that is its share, and as near to squares as they come.

    Args:
        sizes: positive numbers, largest first for the best shapes; none so small beside the others that floats lose it.
        box: what is filled.
    """
    boxes: list[Box] = []
    rest = list(sizes)
    while rest:
        side, scale = min(box.width, box.height), box.area / sum(rest)
        count = 1
        while count < len(rest) and _worst(rest[: count + 1], scale, side) <= _worst(rest[:count], scale, side):
            count += 1
        row, rest = rest[:count], rest[count:]
        thick = scale * sum(row) / side  # a row lies along the shorter side
        at = 0.0
        for size in row:
            long = side * size / sum(row)
            boxes.append(Box(box.x, box.y + at, thick, long) if box.width > box.height else Box(box.x + at, box.y, long, thick))
            at += long
        box = (
            Box(box.x + thick, box.y, box.width - thick, box.height)
            if box.width > box.height
            else Box(box.x, box.y + thick, box.width, box.height - thick)
        )
    return boxes


def _worst(row: Sequence[float], scale: float, side: float) -> float:
    """The least square shape in a row along a side: its longer edge over its shorter."""
    thick = scale * sum(row) / side
    return max(max(thick * thick / (scale * size), scale * size / (thick * thick)) for size in row)


@dataclass(frozen=True)
class Tile:
    """One box to be: its part of the model, which gives its color, its own name, and how much it counts."""

    part: str
    name: str
    size: float


def parameters(model: Transformer) -> Drawing:
    """All parameters of a model, matrix by matrix; of experts, as many as a token goes through apart from the idle ones.

    A tied head is stored as the embedding, and has no box of its own.
    """
    tiles = []
    for weight in transformer.weights(model):
        used = weight.passed if weight.part == "experts" else weight.stored
        tiles += [_tile(weight.part, weight.name, used), _tile("idle", weight.name, weight.stored - used)]
    return _draw(model, tiles, "parameters", spell)


def flops(model: Transformer, *, T: int, causal: bool, S: int | None = None) -> Drawing:
    """The FLOPs of a forward pass over one sequence, matmul by matmul; a training step without remat has the same shares.

    Args:
        model: a mixture of experts does `top_k` experts' work a token.
        T: new tokens.
        causal: as of `transformer.forward_flops`.
        S: tokens of the sequence, T if not given; more in decode.

    Raises:
        ValueError: as `transformer.forward_flops`.
    """
    tiles = [_tile(row.part, row.name, row.flops) for row in transformer.matmuls(model, T=T, causal=causal, S=S)]
    new = f"{T:,} tokens" if T > 1 else "one token"
    return _draw(model, tiles, f"for {new}" + (f" of {S:,}" if S and S > T else ""), _flops)


def spell(count: float) -> str:
    """A count of parameters as people say it: "8.03 billion"."""
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if round(count / scale, 2) >= 1:
            return f"{units.human(count / scale)} {word}"
    return f"{count:,.0f}"


def _flops(count: float) -> str:
    return units.human(count, "FLOPs")


def _tile(part: str, name: str, size: float) -> Tile:
    group = _GROUPS.get(part, part)
    return Tile(group, part if group == "rest" else name.partition(".")[2].replace("_", " "), size)


def _draw(model: Transformer, tiles: Sequence[Tile], of: str, said: Callable[[float], str]) -> Drawing:
    """The boxes, part beside part, over a line for each part with what it counts and its share."""
    parts = {part: sorted((t for t in tiles if t.part == part and t.size), key=lambda t: -t.size) for part in PARTS}
    sums = {part: sum(tile.size for tile in inside) for part, inside in parts.items() if inside}
    total = sum(sums.values())
    visible = {part: boxes for part, inside in parts.items() if (boxes := [t for t in inside if t.size > _LEAST * total])}
    largest_first = sorted(visible, key=lambda part: -sums[part])
    drawn = [str(Label(shortened(str(model), 50), 4, 15)), str(Label(f"{said(total)} {of}", 4, 33))]
    places = squarify([sums[part] for part in largest_first], Box(0, _TOP, WIDTH, _HEIGHT))
    for part, place in zip(largest_first, places, strict=True):
        inside = visible[part]
        if len(inside) == 1:
            inside = [replace(inside[0], name=_NAMES.get(part, inside[0].name))]
        for tile, box in zip(inside, squarify([tile.size for tile in inside], place), strict=True):
            drawn += _box(tile, box, share(tile.size / total))
    words = []
    for row, (part, size) in enumerate(sums.items()):
        name = ", ".join(dict.fromkeys(tile.name for tile in parts[part])) if part == "rest" else _name(part, model)
        y = _TOP + _HEIGHT + 22 + _ROW * row
        drawn.append(
            f'<rect x="4" y="{y - 11}" width="12" height="12" fill="{PARTS[part]}" stroke="currentColor" stroke-width="0.5"/>'
        )
        drawn += [str(Label(name, 22, y)), str(Label(said(size), 332, y, "end")), str(Label(share(size / total), 398, y, "end"))]
        words.append(f"{name} {share(size / total)}")
    description = f"Treemap of {model}: {said(total)} {of}. " + ", ".join(words) + "."
    return Drawing(figure(drawn, description, _TOP + _HEIGHT + 14 + _ROW * len(sums)), description)


def share(of_one: float) -> str:
    """A share in percent that never rounds what is there to nothing, nor what is not all to all."""
    return "< 0.1 %" if 0 < of_one < 0.0005 else "> 99.9 %" if 0.9995 <= of_one < 1 else f"{100 * of_one:.1f} %"


def _box(tile: Tile, box: Box, part_of_all: str) -> list[str]:
    """A rectangle, and as much text in it as fits."""
    line = ' stroke="white"' if min(box.width, box.height) > 3 else ""
    at = f'x="{box.x:.2f}" y="{box.y:.2f}" width="{box.width:.2f}" height="{box.height:.2f}"'
    drawn = [f'<rect class="{tile.part}" {at} fill="{PARTS[tile.part]}"{line}/>']
    texts = [tile.name, part_of_all] if box.height > 2 * _LINE + 4 else [tile.name] if box.height > _LINE + 2 else []
    top = box.y + (box.height - _LINE * len(texts)) / 2 + 0.8 * _LINE
    lines = [Label(text, box.x + box.width / 2, top + _LINE * row, "middle") for row, text in enumerate(texts)]
    if any(line.width > box.width - 4 for line in lines):
        lines = [replace(line, text=_LETTERS.get(line.text, "")) for line in lines[:1]]
    fits = [line for line in lines if line.text and line.width <= box.width - 4]
    return [*drawn, f'<g fill="{_ink(PARTS[tile.part])}">{"".join(map(str, fits))}</g>'] if fits else drawn


def _ink(fill: str) -> str:
    """Black or white, whichever stands out more on a color, by the contrast of WCAG."""
    red, green, blue = (int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def _name(part: str, model: Transformer) -> str:
    moe = model.experts
    return f"experts, {moe.top_k} of {moe.n_experts} a token" if moe and part == "experts" else _NAMES[part]
