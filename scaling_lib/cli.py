"""The command line: `chips` shows the catalog, `matmul` plans a sharded product, `compile` compiles one, `count` counts a model.

`--json` prints base units under the library's own field names.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from scaling_lib import __version__, catalog, cli_count, hardware, sharding


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A mistake in the input is one line on stderr and status 2."""
    parser = argparse.ArgumentParser(
        prog="scaling-lib", description="Predict the time, memory and cost of language models on TPUs."
    )
    parser.add_argument("--version", action="version", version=f"scaling-lib {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    chips = commands.add_parser("chips", help="the chips of the catalog; with names, every figure with its source")
    chips.add_argument("name", nargs="*", help="v5e, tpu7x, Trillium, h100, ...")
    chips.add_argument("--json", action="store_true", help="base units, under the library's field names")
    chips.set_defaults(run=_chips)
    plan = commands.add_parser("matmul", help="the cheapest collectives for a sharded product, with reasons and seconds")
    plan.add_argument("product", help="in the course's notation: 'A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]'; * does for ·")
    plan.add_argument("--sizes", nargs="+", default=[], metavar="I=8192,J=4096", help="of every dimension")
    plan.add_argument("--mesh", nargs="+", default=[], metavar="X=4,Y=4", help="axes of the mesh; none for one chip")
    plan.add_argument("--slice", required=True, help="v5e:4x4, v5p:8x8x8, ...")
    plan.add_argument("--dtype", default="bf16", help="of the arrays; bf16 if not given")
    plan.add_argument("--objective", default="sum", help="what to make small, of communication and compute: sum (default) or max")
    plan.add_argument("--json", action="store_true", help="base units, under the library's field names")
    plan.set_defaults(run=_matmul)
    product = commands.add_parser("compile", help="a product of arrays, compiled for a TPU slice: memory, FLOPs, collectives")
    product.add_argument("slice", help="v5e:4x4, v5p:8x8x8, ...")
    product.add_argument("array", nargs="+", help="what is multiplied, in the course's notation: 'A[I_X, J]' 'B[J, K_Y]'")
    product.add_argument("--to", required=True, help="the result: 'C[I_X, K_Y]'; dimensions that it lacks are summed over")
    product.add_argument("--size", nargs="+", default=[], metavar="I=8192", help="of every dimension")
    product.add_argument("--mesh", nargs="+", default=[], metavar="X=4", help="axes of the mesh; none for one device")
    product.add_argument("--dtype", default="bf16", help="of the arrays; bf16 if not given")
    product.add_argument("--json", action="store_true", help="base units, under the library's field names")
    product.set_defaults(run=_compile)
    cli_count.add(commands)
    arguments = parser.parse_args(argv)
    try:
        print(arguments.run(arguments))
    except BrokenPipeError:  # piped into head
        sys.stderr.close()
    except (ValueError, ModuleNotFoundError, RuntimeError) as error:
        print(f"scaling-lib: {str(error).splitlines()[0]}", file=sys.stderr)  # below it, some point at the column
        return 2
    return 0


def _chips(arguments: argparse.Namespace) -> str:
    chosen = [hardware.chip(name) for name in arguments.name]
    if arguments.json:
        shown = [asdict(chip) for chip in chosen or hardware.CHIPS.values()]
        if chosen:
            for entry in shown:
                entry["sources"] = [asdict(row) for row in catalog.chip_figures() if row.chip == entry["name"]]
        return json.dumps(shown, indent=2)
    try:
        from scaling_lib.show import tables
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"tables need {error.name}: pip install 'scaling-lib[cli]', or use --json") from error
    return (
        "\n\n".join(f"{chip.name} ({chip.vendor})\n{tables.sources(chip)}" for chip in chosen) if chosen else str(tables.chips())
    )


def _matmul(arguments: argparse.Namespace) -> str:
    plan = sharding.matmul_plan(
        arguments.product,
        _pairs("--sizes", arguments.sizes),
        _pairs("--mesh", arguments.mesh),
        arguments.slice,
        dtype=arguments.dtype,
        objective=arguments.objective,
    )
    return json.dumps(plan.to_json(), indent=2, ensure_ascii=False) if arguments.json else plan.explain()


def _compile(arguments: argparse.Namespace) -> str:
    try:
        from scaling_lib.xla import arrays, tpu
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"compile needs {error.name}: pip install 'scaling-lib[tpu-compiler]'") from error
    axes, sizes = _pairs("--mesh", arguments.mesh), _pairs("--size", arguments.size)
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


def _pairs(option: str, given: Sequence[str]) -> dict[str, int]:
    """`["X=4,Y=2"]` or `["X=4", "Y=2"]` as a dictionary."""
    pairs: dict[str, int] = {}
    for part in " ".join(given).replace(",", " ").split():
        name, _, value = part.partition("=")
        if not name.isidentifier() or not value.isdecimal():
            raise ValueError(f"{option} {part} does not read as name=size; write it like X=4")
        if name in pairs:
            raise ValueError(f"{option} gives {name} twice")
        pairs[name] = int(value)
    return pairs
