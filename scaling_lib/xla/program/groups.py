"""Which devices a collective joins: the groups in a compiled program's text, and the mesh axes that they follow."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from scaling_lib.xla.program.hlo import Instruction

Groups = tuple[tuple[int, ...], ...]
"""Partition ids, group by group."""

_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")


def replica_groups(instruction: Instruction, partitions: int) -> Groups:
    """The groups of a collective, however the text abbreviates them: {{0,1},{2,3}}, [2,2]<=[4] or mesh['x'=2,'y'=2] {'y'}.

    Raises:
        ValueError: for a form that this parser does not know.
    """
    text = instruction.attributes.get("replica_groups", "{}")
    if text == "{}":
        return (tuple(range(partitions)),)
    if text.startswith("mesh["):
        return _along_axes(text, instruction.attributes.get("device_ids", ""))
    if found := _IOTA.fullmatch(text):
        return _rows(_iota(found), _numbers(found[1])[-1])
    if re.fullmatch(r"\{(\{[\d,]+\},?)+\}", text):
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,]+)\}", text))
    raise ValueError(f"replica_groups={text!r} of {instruction.name!r} is a form that this parser does not know")


def pairs(instruction: Instruction) -> Groups:
    """Sender and receiver of every transfer of a collective permute; who sends to itself is left out."""
    text = instruction.attributes.get("source_target_pairs", "")
    found = [_numbers(pair) for pair in re.findall(r"\{(\d+,\d+)\}", text)]
    return tuple(pair for pair in found if pair[0] != pair[1])


def axes_of(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Mesh axes, in mesh order, whose groups these are; empty where no choice of whole axes gives them.

    Args:
        groups: partition ids, group by group.
        mesh: axis sizes by name; partition ids count its places row by row.
    """
    axes = moving(groups, mesh)
    names, sizes = tuple(mesh), tuple(mesh.values())
    order = [i for i, name in enumerate(names) if name not in axes] + [names.index(name) for name in axes]
    along = _rows(_transposed(range(math.prod(sizes)), sizes, order), math.prod(mesh[name] for name in axes))
    return axes if {frozenset(group) for group in groups} == {frozenset(group) for group in along} else ()


def moving(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Mesh axes, in mesh order, along which any two members of a group differ."""
    axes, stride = [], math.prod(mesh.values())
    for name, size in mesh.items():
        stride //= size
        if any(len({place // stride % size for place in group}) > 1 for group in groups):
            axes.append(name)
    return tuple(axes)


def _along_axes(text: str, device_ids: str) -> Groups:
    """Groups along named axes of a mesh, or along parts of axes: 'x':(2)4 is the part of size 4 behind a part of size 2."""
    shape = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", text)}
    along = [
        (name, int(before or 1), int(part or shape[name]))
        for name, before, part in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", (device_ids or text).rpartition("{")[2])
    ]
    ids: Sequence[int] = range(math.prod(shape.values()))
    if listed := device_ids.rpartition("{")[0].strip().removeprefix("(").removesuffix(")"):
        found = _IOTA.fullmatch(listed)
        ids = _iota(found) if found else _numbers(listed)
    sizes: list[int] = []
    parts: list[tuple[str, int]] = []  # an axis, and the product of its parts in front of this one
    for name, size in shape.items():
        cuts = sorted({1, size} | {cut for axis, before, part in along if axis == name for cut in (before, before * part)})
        sizes += [high // low for low, high in itertools.pairwise(cuts)]
        parts += [(name, low) for low in cuts[:-1]]
    chosen = [
        i for name, before, part in along for i, (axis, low) in enumerate(parts) if axis == name and before <= low < before * part
    ]
    order = [i for i in range(len(sizes)) if i not in chosen] + chosen
    return _rows(_transposed(ids, sizes, order), math.prod(sizes[i] for i in chosen))


def _iota(found: re.Match[str]) -> tuple[int, ...]:
    """[4,2]<=[2,4]T(1,0): count, shape as on the right, transpose, read off row by row."""
    shape = _numbers(found[2] or found[1])
    return _transposed(range(math.prod(shape)), shape, _numbers(found[3] or "") or range(len(shape)))


def _transposed(flat: Sequence[int], shape: Sequence[int], order: Iterable[int]) -> tuple[int, ...]:
    positions = [0]
    for axis in order:
        stride = math.prod(shape[axis + 1 :])
        positions = [start + i * stride for start in positions for i in range(shape[axis])]
    return tuple(flat[i] for i in positions)


def _rows(flat: Sequence[int], length: int) -> Groups:
    return tuple(tuple(flat[i : i + length]) for i in range(0, len(flat), length))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))
