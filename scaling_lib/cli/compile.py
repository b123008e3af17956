"""The command `scaling-lib compile`: a product of arrays, compiled for a TPU slice."""

from __future__ import annotations

import argparse
import json
from typing import Any

from scaling_lib.cli.pairs import pairs


def add(commands: Any) -> None:
    """Add the command to the parsers of `scaling_lib.cli`."""
    product = commands.add_parser("compile", help="a product of arrays, compiled for a TPU slice: memory, FLOPs, collectives")
    product.add_argument("slice", help="v5e:4x4, v5p:8x8x8, ...")
    product.add_argument("array", nargs="+", help="what is multiplied, in the course's notation: 'A[I_X, J]' 'B[J, K_Y]'")
    product.add_argument("--to", required=True, help="the result: 'C[I_X, K_Y]'; dimensions that it lacks are summed over")
    product.add_argument("--size", nargs="+", default=[], metavar="I=8192", help="of every dimension")
    product.add_argument("--mesh", nargs="+", default=[], metavar="X=4", help="axes of the mesh; none for one device")
    product.add_argument("--dtype", default="bf16", help="of the arrays; bf16 if not given")
    product.add_argument("--json", action="store_true", help="base units, under the library's field names")
    product.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """What `scaling-lib compile` prints."""
    try:
        from scaling_lib.xla import arrays, tpu
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"compile needs {error.name}: pip install 'scaling-lib[tpu-compiler]'") from error
    axes, sizes = pairs("--mesh", arguments.mesh), pairs("--size", arguments.size)
    mesh = arrays.mesh(**axes) if axes else None
    inside = [arrays.dimensions(array) for array in arguments.array]
    specs = [
        arrays.spec(mesh, array, arguments.dtype, **{name: sizes[name] for name in names if name in sizes})
        for array, names in zip(arguments.array, inside, strict=True)
    ]
    kept = arrays.dimensions(arguments.to)
    if strange := [name for name in kept if not any(name in names for names in inside)]:
        raise ValueError(f"--to {arguments.to!r} has dimension {strange[0]}, which no array has")
    program = tpu.compile(
        arrays.product(inside, kept),
        *specs,
        slice=arguments.slice,
        out=None if mesh is None else arrays.sharding(mesh, arguments.to),
        name="product",
    )
    return json.dumps(program.to_json(), indent=2) if arguments.json else str(program)
