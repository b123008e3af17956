"""The command `scaling-lib matmul`: the plan of a sharded product."""

from __future__ import annotations

from typing import Annotated

import typer

from scaling_lib.cli import screen
from scaling_lib.cli.pairs import pairs

EXAMPLES = """
scaling-lib matmul "A[I, J_X] * B[J, K_Y] -> C[I_X, K_Y]" \\
    --sizes I=8192,J=4096,K=2048 --mesh X=4,Y=4 --slice v5e:4x4
"""


def run(
    product: Annotated[
        str,
        typer.Argument(metavar="PRODUCT", help="In the course's notation: 'A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]'; * does for ·"),
    ],
    slice: Annotated[str, typer.Option("--slice", metavar="SLICE", help="v5e:4x4, v5p:8x8x8, ...")],
    sizes: Annotated[list[str] | None, typer.Option("--sizes", metavar="I=8192,J=4096", help="Of every dimension.")] = None,
    mesh: Annotated[list[str] | None, typer.Option("--mesh", metavar="X=4,Y=4", help="Its axes; none for one chip.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of the arrays.")] = "bf16",
    objective: Annotated[
        str, typer.Option("--objective", metavar="sum|max", help="What to make small, of communication and compute.")
    ] = "sum",
    json: Annotated[bool, typer.Option("--json", help="Base units, under the library's field names.")] = False,
) -> None:
    """The cheapest collectives for a sharded product, with reasons and seconds."""
    from scaling_lib import sharding

    plan = sharding.matmul_plan(
        product,
        pairs("--sizes", sizes or ()),
        pairs("--mesh", mesh or ()),
        slice,
        dtype=dtype,
        objective=objective,  # type: ignore[arg-type]  # which it checks
    )
    print(screen.to_json(plan.to_json()) if json else plan.explain())
