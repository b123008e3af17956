"""The sharding explorer: a product in the notation, the steps that it takes on a slice, and who holds what before and after."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from typing import NamedTuple, get_args

import ipywidgets as widgets

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.sharding import MatmulPlan, Sharding, Step, matmul_plan, parse_product, placed
from scaling_lib.sharding.moves import KINDS, Kind
from scaling_lib.sharding.plan import Objective
from scaling_lib.show import holdings
from scaling_lib.show.explorers.base import OWN, Explorer, View, control, dropdown, link, python, read_size, words_and_table

SLICES = (
    "v5e:2x2", "v5e:4x4", "v5e:8x16", "v5e:16x16", "v6e:4x4", "v6e:16x16", "v4:4x4x4", "v5p:2x2x4", "v5p:4x4x4", "v5p:8x8x8",
    "tpu7x:4x4x4", "h100:8x4",
)  # fmt: skip


class Example(NamedTuple):
    """A product worth a look, and sizes for it."""

    name: str
    product: str
    sizes: str


_IJK = "I=8192, J=4096, K=16384"
EXAMPLES = (
    Example("case 1: J not cut", "A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]", _IJK),
    Example("case 2: J of A cut", "A[I, J_X] · B[J, K_Y] -> C[I, K_Y]", _IJK),
    Example("case 3: J of both cut", "A[I, J_X] · B[J_X, K_Y] -> C[I, K_Y]", _IJK),
    Example("case 3, sum left open", "A[I, J_X] · B[J_X, K_Y] -> C[I, K_Y]{U_X}", _IJK),
    Example("case 3, sum scattered", "A[I, J_X] · B[J_X, K_Y] -> C[I_X, K_Y]", _IJK),
    Example("case 4: X on I and on K", "A[I_X, J] · B[J, K_X] -> C[I_X, K]", _IJK),
    Example("an axis moves from I to K", "A[I_X, J] · B[J, K] -> C[I, K_X]", _IJK),
    Example("two axes change their order", "A[I_XY, J] · B[J, K] -> C[I_YX, K]", _IJK),
    Example("weights cut like the batch", "X[B_XY, D] · W[D_XY, F] -> Y[B_XY, F]", "B=16384, D=4096, F=16384"),
    Example("weights cut twice", "X[B_X, D] · W[D_X, F_Y] -> Y[B_X, F_Y]", "B=16384, D=4096, F=16384"),
    Example("a matmul for each sequence", "Q[B_X, T, H] · K[B, S_Y, H] -> P[B_X, T, S_Y]", "B=64, T=4096, S=4096, H=128"),
)
"""The textbook's four cases, and others."""

STEPS: Mapping[str, tuple[Kind, ...]] = {"all": KINDS, "textbook": ("all-gather", "all-reduce", "reduce-scatter")}
"""Kinds of steps to choose from: all of them, or those that the textbook's four cases know."""


def sharding_view(slice: str, mesh: str, product: str, sizes: str, dtype: str, objective: Objective, steps: str) -> View:
    """The sharding explorer for one state.

    Args:
        slice: the chips: "v5e:4x4".
        mesh: size of each mesh axis: "X=4, Y=4".
        product: the notation: "A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]".
        sizes: of each dimension: "I=8192, J=4096, K=16384".
        dtype: of all three arrays.
        objective: what to make small, "sum" or "max", as in `sharding.matmul_plan`.
        steps: "all" kinds, or those of the "textbook" alone.

    Raises:
        ValueError: for text that does not read, and for what `matmul_plan` refuses.
    """
    if steps not in STEPS:
        raise ValueError(f"steps={steps!r} is unknown; {units.near(steps, STEPS)}")
    axes, dims = read_named("mesh", mesh), read_named("sizes", sizes)
    plan = matmul_plan(product, dims, axes, slice, dtype=dtype, objective=objective, kinds=STEPS[steps])
    to_this = link(
        "sharding", slice=slice, mesh=mesh, product=product, sizes=sizes, dtype=dtype, objective=objective, steps=steps
    )
    return View(_numbers(plan, slice), holdings.draw_plan(plan).svg, python(_code(plan, slice, dtype, steps)), to_this)


def sharding_explorer(
    *,
    slice: str = "v5e:4x4",
    mesh: str | None = None,
    product: str = EXAMPLES[1].product,
    sizes: str = EXAMPLES[1].sizes,
    dtype: str = "bf16",
    objective: Objective = "sum",
    steps: str = "all",
) -> Explorer:
    """A product of sharded arrays: type it or pick one, and see the steps, their bytes and seconds, and who holds what.

    Args:
        slice: the chips, among usual ones.
        mesh: size of each mesh axis; if not given, and where the slice becomes one that it does not lie on, axes X and Y.
        product: the notation.
        sizes: of each dimension.
        dtype: of all three arrays, among those that the chip has a peak for.
        objective: what to make small, "sum" or "max".
        steps: "all" kinds, or those of the "textbook" alone.

    Raises:
        ValueError: for a value that the control cannot hold, and values that do not go together.
    """
    picked, on = OWN, ""  # the example and the slice of the last picture

    def axes() -> dict[str, int] | None:
        """The mesh as it stands; None where it does not read, which is said beside it."""
        with suppress(ValueError):
            return read_named("mesh", of_mesh.value)
        return None

    def read_mesh(text: str) -> str:
        mesh = read_named("mesh", text)
        placed(mesh, slice_of(of_slice.value))
        return _spell(mesh)

    def read_sizes(text: str) -> str:
        dims = read_named("sizes", text)
        arrays: tuple[Sharding, ...] = ()
        with suppress(ValueError):  # what is wrong with mesh or product is said beside them
            mesh = read_named("mesh", read_mesh(of_mesh.value))
            arrays = parse_product(of_product.value, mesh).arrays
        for array in arrays:
            array.local_shape(dims, mesh)  # divides, or says what would
        return _spell(dims)

    example = control(widgets.Dropdown, "example", options=(OWN, *(each.name for each in EXAMPLES)), value=OWN).widget
    controls = {
        "slice": dropdown("slice", SLICES),
        "mesh": control(widgets.Text, "mesh", read_mesh, value=""),
        "product": control(widgets.Text, "product", lambda text: str(parse_product(text, axes())), value=""),
        "sizes": control(widgets.Text, "sizes", read_sizes, value=""),
        "dtype": dropdown("number format", tuple(slice_of(SLICES[0]).chip.peak_flops_per_s)),
        "objective": dropdown("make small", get_args(Objective)),
        "steps": dropdown("kinds of steps", tuple(STEPS)),
    }
    for each in (example, *(each.widget for each in controls.values())):  # room for a product on a phone
        each.style.description_width, each.layout.width = "105px", "520px"
    of_slice, of_mesh, of_product, of_sizes, of_dtype, *_ = (each.widget for each in controls.values())

    def follow() -> None:
        """Take the example that was picked, or name the one that stands there; give a new slice a mesh and dtypes of its own."""
        nonlocal picked, on
        for each in EXAMPLES:
            if each.name == example.value != picked:
                of_product.value, of_sizes.value = each.product, each.sizes
        here = (of_product.value, of_sizes.value)
        example.value = picked = next((each.name for each in EXAMPLES if (each.product, each.sizes) == here), OWN)
        if of_slice.value != on:
            on = of_slice.value
            chips = slice_of(on)
            of_mesh.value = _mesh(chips, axes())
            offered, chosen = tuple(chips.chip.peak_flops_per_s), of_dtype.value
            of_dtype.options = offered
            of_dtype.value = chosen if chosen in offered else offered[0]

    start = {"slice": slice, "mesh": mesh, "product": product, "sizes": sizes, "dtype": units.dtype_name(dtype)}
    for field, value in {**start, "objective": objective, "steps": steps}.items():
        if value is not None:
            controls[field].fill(field, value)
        follow()
    sharding_view(**{field: each.read(each.widget.value) for field, each in controls.items()})  # refuses what it must
    return Explorer("sharding", controls, sharding_view, follow, joint="product", helpers=(example,))


def read_named(name: str, text: str) -> dict[str, int]:
    """The sizes by name that text spells: "X=4, Y=4", or "I=8,192 J=4e3".

    Raises:
        ValueError: for anything else.
    """
    named: dict[str, int] = {}
    for piece in re.split(r"[,;\s]+(?=[A-Za-z])", str(text).strip()):
        match = re.fullmatch(r"([A-Za-z]\w*)\s*=\s*(\S+?)[,;]?", piece)
        if not match or match[1] in named:
            why = f"names {match[1]} twice" if match else "does not read"
            like = "X=4, Y=4" if name == "mesh" else "I=8192, J=4096"
            raise ValueError(f"{name}={text!r} {why}; write it like {like!r}")
        named[match[1]] = read_size(match[1], match[2])
    return named


def _spell(named: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in named.items())


def _mesh(chips: Slice, before: Mapping[str, int] | None) -> str:
    """The mesh that was there if it lies on the slice; otherwise one with its axes, or with X and Y."""
    with suppress(ValueError):
        if before:
            placed(before, chips)
            return _spell(before)
    lengths = [n for n in chips.shape if n > 1]
    names = [*before] if before and len(before) <= len(lengths) else ["X", "Y"]
    last = len(names) - 1
    return _spell(dict(zip(names, [*lengths[:last], math.prod(lengths[last:])], strict=True)))


def _numbers(plan: MatmulPlan, slice: str) -> str:
    """One sentence, a table of steps and times, and the library's words on why."""
    moved = "; ".join(_named(step) for step in plan.collectives) or "No bytes move between chips"
    longer, shorter = ("communication", "the local matmul")[:: 1 if plan.communication_s > plan.compute_s else -1]
    words = f"<b>{escape(moved[0].upper() + moved[1:])}</b> on {escape(slice)}"
    words += f"; {longer} takes longer than {shorter}." if plan.collectives else "."
    rows = {f"{number}. {_named(step)}": _cost(step) for number, step in enumerate(plan.steps, 1)}
    rows["communication"] = units.human(plan.communication_s, "s")
    rows["local matmul"] = units.human(plan.compute_s, "s")
    rows["maximum, all overlaps"] = units.human(plan.lower_s, "s")
    rows["sum, nothing overlaps"] = units.human(plan.upper_s, "s")
    rows["runner-up"] = units.human(plan.runner_up.seconds, "s") if plan.runner_up else "none with other collectives"
    why = plan.explain().removeprefix(f"{plan.product}\n")
    return f'{words_and_table(words, rows)}<div class="explorer-why" style="white-space:pre-line">{escape(why)}</div>'


def _named(step: Step) -> str:
    over = f" over {', '.join(step.axes)}" if step.axes else ""
    array = step.after.name or step.array.upper()
    return step.kind if step.kind == "matmul" else f"{step.kind}{over} of {array}"


def _cost(step: Step) -> str:
    if step.kind == "slice":
        return "no bytes move"
    seconds = units.human(step.seconds, "s")
    return f"{units.human(step.bytes, 'B')}, {seconds}" if step.communicates else seconds


def _code(plan: MatmulPlan, slice: str, dtype: str, steps: str) -> str:
    a, b, c = plan.product.arrays
    kinds = "" if steps == "all" else f"\n    kinds={STEPS[steps]},"
    return f"""\
from scaling_lib.sharding import matmul_plan
from scaling_lib.show import holdings

plan = matmul_plan(
    "{a} · "
    "{b} -> "
    "{c}",
    {json.dumps(plan.sizes)},
    {json.dumps(plan.mesh)},
    "{slice}",
    dtype="{dtype}",
    objective="{plan.objective}",{kinds}
)
print(plan.explain())
holdings.draw_plan(plan)"""
