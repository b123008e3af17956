"""The notation: `A[I_X, J_YZ]{U_W}` for one array, `A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]` for a product of two.

A word names a dimension, the letters below it the mesh axes that cut it, the outermost first; `{U_W}` says that the devices
along W hold partial sums. A mesh axis that an array does not name holds copies. Derived in chapters/03-sharding.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scaling_lib import units

_ARRAY = re.compile(r"\s*([A-Za-z]\w*)?\s*\[([^\[\]]*)\]\s*(?:\{\s*U_(\w+)\s*\}\s*)?")
_HEAD = re.compile(r"\s*(?:[A-Za-z]\w*)?\s*(?:\[[^\[\]]*)?")
_DIM = re.compile(r"\s*([A-Za-z][A-Za-z0-9]*)(?:_(\w+))?\s*")
_ARROW = re.compile(r"->|→")
_TIMES = re.compile(r"[·*]")


@dataclass(frozen=True)
class Sharding:
    """One array over a device mesh: which axes cut each dimension, and along which axes it is a sum still to be done.

    Args:
        name: of the array; may be empty.
        dims: names of the dimensions, in order.
        axes: for each dimension the mesh axes that cut it, outermost first.
        unreduced: mesh axes along which the devices hold partial sums.

    Raises:
        ValueError: for a dimension or a mesh axis that is used twice.
    """

    name: str
    dims: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.axes):
            raise ValueError(f"dims={self.dims} and axes={self.axes} differ in length; give each dimension its axes, or ()")
        object.__setattr__(self, "unreduced", tuple(sorted(self.unreduced)))
        if again := _twice(self.dims):
            raise ValueError(f"{self} names dimension {again} twice")
        if again := _twice(self.used_axes):
            raise ValueError(f"{self} uses mesh axis {again} twice; an axis can cut one dimension once")

    @classmethod
    def parse(cls, text: str, mesh: Mapping[str, int] | Collection[str] | None = None) -> Sharding:
        """The sharding that `text` writes: `Sharding.parse("A[I_X, J_YZ]{U_W}")`.

        Args:
            text: the notation. The array's own name may be left out, and so may all dimensions: "[]" is a scalar.
            mesh: the names of the mesh's axes, with or without sizes. Without it, every capital letter is an axis. Names
                of several letters stand together or are parted by "_"; the longest that fits is taken.

        Raises:
            ValueError: for text that is not the notation, an axis that the mesh lacks, or one that is used twice; points
                at the column.
        """
        return _read(str(text), 0, len(str(text)), mesh)

    @property
    def used_axes(self) -> tuple[str, ...]:
        """Mesh axes that cut a dimension or are unreduced; along all others there are copies."""
        return (*(axis for axes in self.axes for axis in axes), *self.unreduced)

    def parts(self, mesh: Mapping[str, int]) -> dict[str, int]:
        """Into how many parts each dimension is cut.

        Raises:
            ValueError: for an axis that `mesh` lacks, or whose size is none.
        """
        if lacking := [axis for axis in self.used_axes if axis not in mesh]:
            raise ValueError(f"{self}: {lacking[0]!r} is no axis of the mesh, which has {_listed(mesh)}")
        return {
            dim: math.prod(units.size(axis, mesh[axis]) for axis in axes) for dim, axes in zip(self.dims, self.axes, strict=True)
        }

    def local_shape(self, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> tuple[int, ...]:
        """What one device holds, in elements along each dimension.

        Args:
            sizes: of each dimension, of the whole array; names of other dimensions are passed over.
            mesh: size of each mesh axis.

        Raises:
            ValueError: for a size that is missing, or that the axes do not divide: `padded` is the way on.
        """
        shape = []
        for dim, parts in self.parts(mesh).items():
            size = _size(dim, sizes, self)
            if size % parts:
                up = -(-size // parts) * parts
                by = "·".join(self.axes[self.dims.index(dim)])
                more = f"{100 * (up - size) / size:.3g} % more elements"
                raise ValueError(f"{self}: {dim}={size} is no multiple of {by}={parts}; {up} would do, with {more}")
            shape.append(size // parts)
        return tuple(shape)

    def local_bytes(self, sizes: Mapping[str, int], mesh: Mapping[str, int], dtype: object = "bf16") -> float:
        """Bytes that one device holds; arguments as in `local_shape`."""
        return math.prod(self.local_shape(sizes, mesh)) * units.itemsize(dtype)

    def padded(self, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> dict[str, int]:
        """The smallest sizes, none below `sizes`, that the axes divide; dimensions of other arrays stay as they are."""
        return {**sizes, **{dim: -(-_size(dim, sizes, self) // n) * n for dim, n in self.parts(mesh).items()}}

    def __str__(self) -> str:
        inside = ", ".join(f"{dim}_{_joined(axes)}" if axes else dim for dim, axes in zip(self.dims, self.axes, strict=True))
        return f"{self.name}[{inside}]" + (f"{{U_{_joined(self.unreduced)}}}" if self.unreduced else "")


@dataclass(frozen=True)
class Product:
    """Two arrays multiplied, and summed over the dimensions that the result lacks.

    Args:
        a: the left operand.
        b: the right operand.
        c: the result.

    Raises:
        ValueError: for a dimension of the result that no operand has, or one of a single operand that the result lacks.
    """

    a: Sharding
    b: Sharding
    c: Sharding

    def __post_init__(self) -> None:
        for array, dim, why in _misplaced(self.a, self.b, self.c):
            raise ValueError(f"{self}: {array}: {dim} {why}")

    @property
    def arrays(self) -> tuple[Sharding, Sharding, Sharding]:
        """Both operands and the result."""
        return self.a, self.b, self.c

    @property
    def dims(self) -> tuple[str, ...]:
        """All dimensions, each once."""
        return tuple(dict.fromkeys(self.a.dims + self.b.dims))

    @property
    def contracted(self) -> tuple[str, ...]:
        """Dimensions that are summed over."""
        return tuple(dim for dim in self.dims if dim not in self.c.dims)

    def padded(self, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> dict[str, int]:
        """The smallest sizes, none below `sizes`, that the axes of all three arrays divide."""
        parts = [array.parts(mesh) for array in self.arrays]
        whole = {dim: math.lcm(*(n.get(dim, 1) for n in parts)) for dim in self.dims}
        return {dim: -(-_size(dim, sizes, self) // n) * n for dim, n in whole.items()}

    def backward(self) -> tuple[Product, Product]:
        """The two products of the backward pass: of the result's gradient with B for A's, and of A with it for B's.

        Each gradient is wanted as its array is held. Partial sums have whole gradients, so `{U_X}` falls away.
        """
        a, b, c = (Sharding(array.name, array.dims, array.axes) for array in self.arrays)
        da, db, dc = (Sharding(f"d{array.name}", array.dims, array.axes) for array in (a, b, c))
        return Product(dc, b, da), Product(a, dc, db)

    def __str__(self) -> str:
        return f"{self.a} · {self.b} -> {self.c}"


def parse_product(text: str, mesh: Mapping[str, int] | Collection[str] | None = None) -> Product:
    """The product that `text` writes: `parse_product("A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]")`.

    Args:
        text: two arrays with "·" or "*" between them, "->" or "→", and the result.
        mesh: as in `Sharding.parse`.

    Raises:
        ValueError: as `Sharding.parse` and `Product` do; points at the column.
    """
    text = str(text)
    arrows = list(_ARROW.finditer(text))
    if len(arrows) != 1:
        at = arrows[1].start() if arrows else len(text)
        raise _error(text, at, "a product has one '->' before its result; write it like 'A[I, J] · B[J, K] -> C[I, K]'")
    signs = list(_TIMES.finditer(text, 0, arrows[0].start()))
    if len(signs) != 1:
        at = signs[1].start() if signs else arrows[0].start()
        raise _error(text, at, "a product has two operands with one '·' or '*' between them; chain more of them")
    ends = [(0, signs[0].start()), (signs[0].end(), arrows[0].start()), (arrows[0].end(), len(text))]
    a, b, c = (_read(text, start, stop, mesh) for start, stop in ends)
    for array, dim, why in _misplaced(a, b, c):
        start, stop = ends[[a, b, c].index(array)]
        here = re.compile(rf"(?<=[\[,\s]){dim}(?![A-Za-z0-9])").search(text, text.index("[", start), stop)
        raise _error(text, here.start() if here else start, f"{dim} {why}")
    return Product(a, b, c)


def dimensions(text: str) -> tuple[str, ...]:
    """The dimensions of one array, whatever its mesh axes are: `dimensions("A[I_X, J]")` is `("I", "J")`.

    Raises:
        ValueError: for text that is not the notation; points at the column.
    """
    return tuple(dim for dim, _ in _split(str(text), 0, len(str(text))).dims)


def _misplaced(a: Sharding, b: Sharding, c: Sharding) -> Iterable[tuple[Sharding, str, str]]:
    for dim in c.dims:
        if dim not in a.dims + b.dims:
            yield c, dim, "is in no operand; the result can only have dimensions that the operands have"
    for array, other in ((a, b), (b, a)):
        for dim in array.dims:
            if dim not in other.dims + c.dims:
                yield array, dim, "is in one operand alone and not in the result; sum over it first"


class _Word(NamedTuple):
    """A part of the text and where it begins."""

    text: str
    at: int


class _Words(NamedTuple):
    """An array taken apart: its name, each dimension with the letters below it, and the letters of its partial sums."""

    name: str
    dims: list[tuple[str, _Word]]
    unreduced: _Word


def _read(text: str, start: int, stop: int, mesh: Mapping[str, int] | Collection[str] | None) -> Sharding:
    """The array in text[start:stop]."""
    words = _split(text, start, stop)
    used: list[str] = []
    cuts = tuple([_axes(text, letters, mesh, used) for _, letters in words.dims])
    return Sharding(words.name, tuple(dim for dim, _ in words.dims), cuts, _axes(text, words.unreduced, mesh, used))


def _split(text: str, start: int, stop: int) -> _Words:
    match = _ARRAY.match(text, start, stop)
    if not match or match.end() < stop:
        at = match.end() if match else _fault(text, start, stop)
        raise _error(text, at, "this does not read as notation; write an array like 'A[I_X, J]'")
    dims: dict[str, _Word] = {}
    at = match.start(2)
    for part in match[2].split(",") if match[2].strip() else []:
        dim = _DIM.fullmatch(part)
        first = at + len(part) - len(part.lstrip())
        if not dim:
            raise _error(text, first, f"{part.strip()!r} is no dimension; write it like 'I', 'I_X' or 'I_XY'")
        if dim[1] in dims:
            raise _error(text, first, f"this array names dimension {dim[1]} twice")
        dims[dim[1]] = _Word(dim[2] or "", at + dim.start(2))
        at += len(part) + 1
    return _Words(match[1] or "", list(dims.items()), _Word(match[3] or "", match.start(3)))


def _axes(text: str, word: _Word, mesh: Mapping[str, int] | Collection[str] | None, used: list[str]) -> tuple[str, ...]:
    """A word split into names of mesh axes, the longest name first; adds them to `used`."""
    letters, at = word
    known = [chr(n) for n in range(ord("A"), ord("Z") + 1)] if mesh is None else list(mesh)
    found: list[str] = []
    while letters:
        axis = max((axis for axis in known if axis and letters.startswith(axis)), key=len, default=None)
        if axis is None:
            have = "takes capital letters; name its axes to use others" if mesh is None else f"has {_listed(mesh)}"
            raise _error(text, at, f"{letters!r} is no axis of the mesh, which {have}")
        if axis in used:
            raise _error(text, at, f"this array uses mesh axis {axis} twice; an axis can cut one dimension once")
        found.append(axis)
        used.append(axis)
        skip = len(axis) + (letters[len(axis) : len(axis) + 1] == "_" and len(letters) > len(axis) + 1)
        letters, at = letters[skip:], at + skip
    return tuple(found)


def _fault(text: str, start: int, stop: int) -> int:
    """Where an array stops being one: at the missing bracket."""
    head = _HEAD.match(text, start, stop)
    return head.end() if head else start


def _error(text: str, at: int, why: str) -> ValueError:
    return ValueError(f"{text!r}, column {at + 1}: {why}\n    {text}\n    {' ' * at}^")


def _size(dim: str, sizes: Mapping[str, int], where: object) -> int:
    if dim not in sizes:
        raise ValueError(f"{where}: give a size for {dim}")
    return units.size(dim, sizes[dim])


def _listed(mesh: Mapping[str, int] | Collection[str]) -> str:
    names = [f"{axis}={n}" for axis, n in mesh.items()] if isinstance(mesh, Mapping) else list(mesh)
    return ", ".join(names) or "none"


def _joined(axes: tuple[str, ...]) -> str:
    return ("" if all(len(axis) == 1 for axis in axes) else "_").join(axes)


def _twice(names: tuple[str, ...]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)
