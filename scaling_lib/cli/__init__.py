"""The command line, `scaling-lib`: the commands are in `app`, one module each; nothing else imports this package.

`--json` prints base units under the library's own field names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status, as `scaling-lib --help` lists them.

    Args:
        argv: what follows the program's name; the arguments of this process if not given.
    """
    try:
        from scaling_lib.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("scaling_lib"):
            raise
        print(
            f"scaling-lib: the command line needs {error.name.partition('.')[0]}: pip install 'scaling-lib[cli]'", file=sys.stderr
        )
        return 4
    return int(app(None if argv is None else list(argv), standalone_mode=False))
