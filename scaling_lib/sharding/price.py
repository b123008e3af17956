"""Plans priced on a slice: the mesh laid on its wires, collectives by their costs there, the local matmul by its roofline.

Derived in chapters/03-sharding.md.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Callable, Collection, Mapping, Sequence

from scaling_lib import collectives, roofline, units
from scaling_lib.collectives import Group
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.sharding.moves import KINDS, Kind, Price
from scaling_lib.sharding.notation import Product, parse_product
from scaling_lib.sharding.plan import MatmulPlan, Objective, cheapest

_DCN = -1


def matmul_plan(
    product: str | Product,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
    slice: Slice | str,
    *,
    dtype: object = "bf16",
    objective: Objective = "sum",
    kinds: Collection[Kind] = KINDS,
    hop_s: float = 0.0,
    start_s: float = 0.0,
    efficiency: float = 1.0,
) -> MatmulPlan:
    """The cheapest steps of a sharded matmul: `matmul_plan("A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]", sizes, mesh, "v5e:4x4")`.

    Args:
        product: the notation, or what `parse_product` made of it.
        sizes: of each dimension, of the whole arrays.
        mesh: size of each mesh axis, in chips. Each axis lies on whole axes of the slice; where several ways fit, the first
            axis takes the first. Axes of size 1 are free.
        slice: the chips, or their name.
        dtype: of all three arrays, and of the arithmetic.
        objective: what to make small: "sum", communication and compute one after the other, or "max", the longer of them.
        kinds: the steps to use. The textbook's four cases know all-gather, all-reduce and reduce-scatter alone.
        hop_s: latency of a hop, as in `collectives.over`.
        start_s: start-up of a collective.
        efficiency: fraction of the links' bandwidth that is reached.

    Raises:
        ValueError: for text that is not the notation, sizes that do not divide (the message says what padding costs), a mesh
            that does not lie on the slice, and a product without a sum on a chip whose vector unit has no sourced rate.

    NB: a permute over torus axes is priced as two all-to-alls, enough for any exchange; a lucky one takes less. Steps that
    pass through several networks add their times. The local matmul moves each of its arrays through HBM once.
    """
    slice = slice if isinstance(slice, Slice) else slice_of(slice)
    product = product if isinstance(product, Product) else parse_product(product, mesh)
    return cheapest(
        product,
        sizes,
        mesh,
        price=prices(mesh, slice, hop_s=hop_s, start_s=start_s, efficiency=efficiency),
        compute=_matmul_s(product, slice, dtype),
        itemsize=units.itemsize(dtype),
        objective=objective,
        kinds=kinds,
    )


def placed(mesh: Mapping[str, int], slice: Slice) -> dict[str, tuple[int, ...]]:
    """Which axes of the slice each mesh axis lies on; -1 is the network between several slices.

    Raises:
        ValueError: where the mesh axes are no products of whole axes of the slice, or a size is none.
    """
    wires = [(_DCN, slice.count), *enumerate(slice.shape)]
    wires = [(wire, n) for wire, n in wires if n > 1]
    names = [axis for axis, n in mesh.items() if units.size(axis, n) > 1]
    for owners in itertools.product(names, repeat=len(wires)):
        lies: dict[str, list[tuple[int, int]]] = {axis: [] for axis in mesh}
        for owner, wire in zip(owners, wires, strict=True):
            lies[owner].append(wire)
        if all(math.prod(n for _, n in lies[axis]) == size for axis, size in mesh.items()):
            return {axis: tuple(wire for wire, _ in on) for axis, on in lies.items()}
    lengths = " and ".join(str(n) for _, n in wires) or "1"
    raise ValueError(
        f"mesh={dict(mesh)} does not lie on {slice}, whose axes have {lengths} chips; give each mesh axis one of these, or a "
        f"product of some, {slice.chips} chips in all"
    )


def prices(
    mesh: Mapping[str, int], slice: Slice | str, *, hop_s: float = 0.0, start_s: float = 0.0, efficiency: float = 1.0
) -> Price:
    """What collectives take on a slice, as `matmul_plan` prices them: `prices(mesh, "v5e:4x4")("all-gather", ("X",), 1e6)`.

    Args:
        mesh: as in `matmul_plan`, and so are the other arguments.
        slice: the chips, or their name.
        hop_s: latency of a hop.
        start_s: start-up of a collective.
        efficiency: fraction of the links' bandwidth that is reached.

    Returns:
        A function of the kind of a step, its mesh axes, and the bytes of the larger array that a device holds before or
        after; it gives seconds.

    Raises:
        ValueError: for a mesh that does not lie on the slice.
    """
    slice = slice if isinstance(slice, Slice) else slice_of(slice)
    wires = {"hop_s": hop_s, "start_s": start_s, "efficiency": efficiency}
    lies = placed(mesh, slice)
    groups: dict[frozenset[str], list[Group]] = {}

    def seconds(kind: str, axes: tuple[str, ...], array_bytes: float) -> float:
        if (key := frozenset(axes)) not in groups:
            groups[key] = _groups([wire for axis in axes for wire in lies[axis]], slice, wires)
        return _staged_s(kind, array_bytes, groups[key])

    return seconds


def _groups(on: Sequence[int], slice: Slice, wires: Mapping[str, float]) -> list[Group]:
    """The networks that a collective goes through, innermost first."""
    inside = sorted(wire for wire in on if wire != _DCN)
    each = [inside] if slice.chip.kind == "tpu" else [[wire] for wire in inside]
    groups = [collectives.over(slice, *axes, per="chip", **wires) for axes in each if axes]  # type: ignore[arg-type]
    return groups + ([collectives.across(slice, per="chip", **wires)] if _DCN in on else [])


def _staged_s(kind: str, array_bytes: float, groups: Sequence[Group]) -> float:
    """Seconds of a collective that goes through one network after the other; the outer ones see a part of the array."""
    total, part = 0.0, array_bytes
    for number, group in enumerate(groups, 1):
        if kind == "all-to-all":
            total += collectives.all_to_all(array_bytes, group).seconds
        elif kind == "permute":
            if group.wraps:
                total += 2 * collectives.all_to_all(array_bytes, group).seconds
            else:
                total += collectives.permute(array_bytes, group).seconds
        elif kind == "all-reduce" and number == len(groups):
            total += collectives.all_reduce(part, group).seconds
        else:
            total += collectives.all_gather(part, group).seconds * (2 if kind == "all-reduce" else 1)
        part /= group.members
    return total


def _matmul_s(product: Product, slice: Slice, dtype: object) -> Callable[[Mapping[str, int]], float]:
    if not product.contracted:
        try:
            slice.chip.vpu_flops_per_s  # noqa: B018  # raises where no source states it
        except ValueError as error:
            raise ValueError(
                f"{product} sums over nothing, so the vector unit multiplies: {error}. Take such a chip, or `cheapest` with a "
                "`compute` of your own"
            ) from None
    letters = dict(zip(product.dims, string.ascii_letters, strict=False))
    a, b, c = ("".join(letters[dim] for dim in array.dims) for array in product.arrays)

    def seconds(local: Mapping[str, int]) -> float:
        cost = roofline.einsum(f"{a},{b}->{c}", {letters[dim]: n for dim, n in local.items()}, dtypes=dtype)
        return roofline.bound(cost, slice.chip).lower_s

    return seconds
