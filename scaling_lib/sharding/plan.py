"""The cheapest plan for a sharded matmul: which steps bring the operands into a form that multiplies, and the result home.

A local matmul needs operands whose contracted and shared dimensions are cut alike, and no axis that cuts two dimensions. All
such forms are tried, each with the cheapest steps before and after, so the plan found is the cheapest in this vocabulary.
Derived in chapters/03-sharding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from scaling_lib import units
from scaling_lib.sharding.moves import KINDS, Axes, Distance, Kind, Layout, Move, Moves, Price, cuts_of, subsets
from scaling_lib.sharding.notation import Product, Sharding

Objective = Literal["sum", "max"]
Array = Literal["a", "b", "c"]
_ARRAYS: tuple[Array, ...] = ("a", "b", "c")


@dataclass(frozen=True)
class Step:
    """One step of a plan.

    Args:
        kind: "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute", "slice" or "matmul".
        array: which array of the product it changes or makes: "a", "b" or "c".
        axes: mesh axes that take part, in the order of the devices in the group, outermost first; none for a matmul.
        before: what it reads: one array, two for a matmul.
        after: what it makes.
        in_bytes: that a device holds of what it reads.
        out_bytes: that a device holds of what it makes.
        seconds: it takes; 0 for a slice, which moves nothing between devices.
    """

    kind: str
    array: Array
    axes: tuple[str, ...]
    before: tuple[Sharding, ...]
    after: Sharding
    in_bytes: float
    out_bytes: float
    seconds: float

    @property
    def communicates(self) -> bool:
        """Whether bytes move between devices."""
        return self.kind not in ("matmul", "slice")

    @property
    def bytes(self) -> float:
        """The larger array that a device holds before or after; what a collective's price is reckoned from."""
        return max(self.in_bytes, self.out_bytes)

    def __str__(self) -> str:
        over = f" over {', '.join(self.axes)}" if self.axes else ""
        return f"{self.kind}{over}: {' · '.join(map(str, self.before))} -> {self.after}"


@dataclass(frozen=True)
class MatmulPlan:
    """Steps of a sharded matmul, with what they move and take.

    Args:
        product: what was asked for.
        sizes: of each dimension, of the whole arrays.
        mesh: size of each mesh axis.
        objective: what was made small: "sum" is communication and compute one after the other, "max" the longer of them.
        steps: in order; those of A, those of B, the matmul, those of the result. Axes of size 1 are left out.
        runner_up: the cheapest plan with other collectives, or another amount of local arithmetic; None where there is none.
    """

    product: Product
    sizes: Mapping[str, int] = field(hash=False)
    mesh: Mapping[str, int] = field(hash=False)
    objective: Objective
    steps: tuple[Step, ...]
    runner_up: MatmulPlan | None = None

    @property
    def collectives(self) -> tuple[Step, ...]:
        """The steps that move bytes between devices."""
        return tuple(step for step in self.steps if step.communicates)

    @property
    def matmul(self) -> Step:
        """The local matmul."""
        return next(step for step in self.steps if step.kind == "matmul")

    @property
    def communication_s(self) -> float:
        """Seconds of all collectives, one after the other."""
        return sum(step.seconds for step in self.collectives)

    @property
    def compute_s(self) -> float:
        """Seconds of the local matmul."""
        return self.matmul.seconds

    @property
    def lower_s(self) -> float:
        """Seconds if communication and compute overlap fully, the longer of the two."""
        return max(self.communication_s, self.compute_s)

    @property
    def upper_s(self) -> float:
        """Seconds if they do not overlap, the sum."""
        return self.communication_s + self.compute_s

    @property
    def seconds(self) -> float:
        """What the objective counts: `upper_s` for "sum", `lower_s` for "max"."""
        return self.upper_s if self.objective == "sum" else self.lower_s

    def explain(self) -> str:
        """The plan in words: why each step is needed, what it costs, and what the runner-up would have cost."""
        from scaling_lib.sharding.words import explain  # words reads plans

        return explain(self)

    def to_json(self) -> dict[str, Any]:
        """Fields and totals as JSON can hold them, arrays in the notation; the runner-up is without one of its own."""
        steps = [
            {**vars(step), "axes": list(step.axes), "before": [str(array) for array in step.before], "after": str(step.after)}
            for step in self.steps
        ]
        totals = ("communication_s", "compute_s", "lower_s", "upper_s", "seconds")
        return {
            "product": str(self.product),
            "sizes": dict(self.sizes),
            "mesh": dict(self.mesh),
            "objective": self.objective,
            **{name: getattr(self, name) for name in totals},
            "steps": steps,
            "runner_up": self.runner_up and self.runner_up.to_json(),
        }

    def __str__(self) -> str:
        bounds = f"{units.human(self.lower_s, 's')} to {units.human(self.upper_s, 's')}"
        return "\n".join([f"{self.product}: {bounds}", *(f"  {step}, {units.human(step.seconds, 's')}" for step in self.steps)])


class _Form(NamedTuple):
    """A way to multiply: how operands and result are held while it happens, and what the plan around it takes."""

    order: tuple[float, ...]
    a: Layout
    b: Layout
    c: Layout
    compute_s: float


def cheapest(
    product: Product,
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
    *,
    price: Price,
    compute: Callable[[Mapping[str, int]], float],
    itemsize: float = 2,
    objective: Objective = "sum",
    kinds: Collection[Kind] = KINDS,
) -> MatmulPlan:
    """The cheapest plan under prices of your own; `matmul_plan` takes those of a slice.

    Args:
        product: what is wanted.
        sizes: of each dimension, of the whole arrays.
        mesh: size of each mesh axis.
        price: seconds of a collective, from its kind, its axes, and the bytes of the larger array on a device.
        compute: seconds of a local matmul, from the local size of each dimension.
        itemsize: bytes of an element, of all three arrays.
        objective: "sum" or "max", see `MatmulPlan`.
        kinds: the steps to use. The textbook's four cases know all-gather, all-reduce and reduce-scatter alone.

    Raises:
        ValueError: for sizes that are missing, left over or do not divide, an axis that the mesh lacks, or a result with
            partial sums, or of a layout, that no step makes.
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"kinds has {unknown[0]!r}; known: {', '.join(KINDS)}")
    if objective not in get_args(Objective):
        raise ValueError(f"objective={objective!r} is neither 'sum' nor 'max'")
    mesh = {axis: units.size(axis, n) for axis, n in mesh.items()}
    if extra := [dim for dim in sizes if dim not in product.dims]:
        raise ValueError(f"sizes has {extra[0]!r}, which is no dimension of {product}")
    for array in product.arrays:
        array.local_shape(sizes, mesh)  # divides, or says what would
    sizes = {dim: int(sizes[dim]) for dim in product.dims}
    return _Search(product, sizes, mesh, price, compute, itemsize, objective, kinds).plan()


class _Search:
    def __init__(
        self,
        product: Product,
        sizes: dict[str, int],
        mesh: dict[str, int],
        price: Price,
        compute: Callable[[Mapping[str, int]], float],
        itemsize: float,
        objective: Objective,
        kinds: Collection[Kind],
    ) -> None:
        self.product, self.sizes, self.all_axes, self.objective = product, sizes, mesh, objective
        self.mesh = {axis: n for axis, n in mesh.items() if n > 1}
        self.kinds = kinds
        self.compute, self.computed = compute, dict[tuple[int, ...], float]()
        held = [self._layout(array) for array in product.arrays]
        summable = [held[0].unreduced, held[1].unreduced, self.mesh]
        self.moves = [
            Moves(tuple(sizes[dim] for dim in array.dims), self.mesh, sums, itemsize, price, kinds)
            for array, sums in zip(product.arrays, summable, strict=True)
        ]
        self.held = held
        self.from_a = self.moves[0].distances(held[0])
        self.from_b = self.moves[1].distances(held[1])
        self.to_c = self.moves[2].distances(held[2], backwards=True)

    def plan(self) -> MatmulPlan:
        forms = sorted(self._forms(), key=lambda form: form.order)
        if not forms:
            raise ValueError(
                f"{self.product}: no steps lead to the result. Partial sums come from a contracted dimension that its axes "
                f"divide; ask for the result without {{U_...}}, for other sizes, or for more kinds than {', '.join(self.kinds)}"
            )
        best, *others = forms
        steps = self._steps(best)
        runner_up = None
        for form in others:
            other = self._steps(form)
            if _gist(other) != _gist(steps):
                runner_up = MatmulPlan(self.product, self.sizes, self.all_axes, self.objective, other)
                break
        return MatmulPlan(self.product, self.sizes, self.all_axes, self.objective, steps, runner_up)

    def _forms(self) -> Iterator[_Form]:
        """Every way to multiply that can be reached from the operands and leads to the result."""
        product, dims = self.product, self.product.dims
        shape = tuple(self.sizes[dim] for dim in dims)
        for a_sums in subsets(sorted(self.held[0].unreduced)):
            for b_sums in subsets(sorted(self.held[1].unreduced.difference(a_sums))):
                # A sum over X times an array that is the same along X is a sum over X: X may cut nothing.
                free = tuple(axis for axis in self.mesh if axis not in a_sums + b_sums)
                for cuts in cuts_of(shape, free, self.mesh):
                    at = dict(zip(dims, cuts, strict=True))
                    a, b = (
                        Layout(tuple([at[dim] for dim in array.dims]), frozenset(sums))
                        for array, sums in ((product.a, a_sums), (product.b, b_sums))
                    )
                    sums = frozenset([*a_sums, *b_sums, *(axis for dim in product.contracted for axis in at[dim])])
                    c = Layout(tuple([at[dim] for dim in product.c.dims]), sums)
                    if a in self.from_a and b in self.from_b and c in self.to_c:
                        yield self._form(at, a, b, c)

    def _form(self, at: dict[str, Axes], a: Layout, b: Layout, c: Layout) -> _Form:
        ways: list[Distance] = [self.from_a[a][0], self.from_b[b][0], self.to_c[c][0]]
        communication_s, compute_s = sum(way.seconds for way in ways), self._compute_s(at)
        total = communication_s + compute_s
        first = total if self.objective == "sum" else max(communication_s, compute_s)
        return _Form((first, total, sum(way.steps for way in ways)), a, b, c, compute_s)

    def _compute_s(self, at: dict[str, Axes]) -> float:
        local = {dim: self.sizes[dim] // math.prod([self.mesh[axis] for axis in cut]) for dim, cut in at.items()}
        key = tuple(local.values())
        if key not in self.computed:
            self.computed[key] = self.compute(local)
        return self.computed[key]

    def _steps(self, form: _Form) -> tuple[Step, ...]:
        before: list[Step] = []
        for which, reached, layout in ((0, self.from_a, form.a), (1, self.from_b, form.b)):
            way: list[Step] = []
            while move := reached[layout][1]:
                way.append(self._step(which, move))
                layout = move.before
            before += reversed(way)
        a, b, c = (self._sharding(which, layout) for which, layout in enumerate((form.a, form.b, form.c)))
        read = self.moves[0].local_bytes(form.a) + self.moves[1].local_bytes(form.b)
        matmul = Step("matmul", "c", (), (a, b), c, read, self.moves[2].local_bytes(form.c), form.compute_s)
        after: list[Step] = []
        layout = form.c
        while move := self.to_c[layout][1]:
            after.append(self._step(2, move))
            layout = move.after
        return (*before, matmul, *after)

    def _step(self, which: int, move: Move) -> Step:
        moves = self.moves[which]
        return Step(
            move.kind, _ARRAYS[which], move.axes,
            (self._sharding(which, move.before),), self._sharding(which, move.after),
            moves.local_bytes(move.before), moves.local_bytes(move.after), moves.seconds(move),
        )  # fmt: skip

    def _layout(self, array: Sharding) -> Layout:
        cuts = tuple(tuple(axis for axis in axes if axis in self.mesh) for axes in array.axes)
        return Layout(cuts, frozenset(axis for axis in array.unreduced if axis in self.mesh))

    def _sharding(self, which: int, layout: Layout) -> Sharding:
        array = self.product.arrays[which]
        return Sharding(array.name, array.dims, layout.cuts, tuple(layout.unreduced))


def _gist(steps: tuple[Step, ...]) -> tuple[object, ...]:
    """What makes two plans differ for a reader: their collectives, and how much each device multiplies."""
    return (
        sorted((step.kind, step.array, step.axes, step.bytes) for step in steps if step.communicates),
        next(step.seconds for step in steps if step.kind == "matmul"),
    )
