"""The command line: `chips` shows the catalog, `matmul` plans a sharded product, `compile` compiles one, `count` counts a model.

`--json` prints base units under the library's own field names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scaling_lib import __version__
from scaling_lib.cli import chips, compile, count, matmul


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A mistake in the input is one line on stderr and status 2."""
    parser = argparse.ArgumentParser(
        prog="scaling-lib", description="Predict the time, memory and cost of language models on TPUs."
    )
    parser.add_argument("--version", action="version", version=f"scaling-lib {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (chips, matmul, compile, count):
        command.add(commands)
    arguments = parser.parse_args(argv)
    try:
        print(arguments.run(arguments))
    except BrokenPipeError:  # piped into head
        sys.stderr.close()
    except (ValueError, ModuleNotFoundError, RuntimeError) as error:
        print(f"scaling-lib: {str(error).splitlines()[0]}", file=sys.stderr)  # below it, some point at the column
        return 2
    return 0
