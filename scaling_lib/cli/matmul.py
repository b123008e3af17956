"""The command `scaling-lib matmul`: the plan of a sharded product."""

from __future__ import annotations

import argparse
import json
from typing import Any

from scaling_lib import sharding
from scaling_lib.cli.pairs import pairs


def add(commands: Any) -> None:
    """Add the command to the parsers of `scaling_lib.cli`."""
    plan = commands.add_parser("matmul", help="the cheapest collectives for a sharded product, with reasons and seconds")
    plan.add_argument("product", help="in the course's notation: 'A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]'; * does for ·")
    plan.add_argument("--sizes", nargs="+", default=[], metavar="I=8192,J=4096", help="of every dimension")
    plan.add_argument("--mesh", nargs="+", default=[], metavar="X=4,Y=4", help="axes of the mesh; none for one chip")
    plan.add_argument("--slice", required=True, help="v5e:4x4, v5p:8x8x8, ...")
    plan.add_argument("--dtype", default="bf16", help="of the arrays; bf16 if not given")
    plan.add_argument("--objective", default="sum", help="what to make small, of communication and compute: sum (default) or max")
    plan.add_argument("--json", action="store_true", help="base units, under the library's field names")
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> str:
    """What `scaling-lib matmul` prints."""
    plan = sharding.matmul_plan(
        arguments.product,
        pairs("--sizes", arguments.sizes),
        pairs("--mesh", arguments.mesh),
        arguments.slice,
        dtype=arguments.dtype,
        objective=arguments.objective,
    )
    return json.dumps(plan.to_json(), indent=2, ensure_ascii=False) if arguments.json else plan.explain()
