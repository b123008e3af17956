"""`python -m scaling_lib.cli` is `scaling-lib`."""

import sys

from scaling_lib.cli import main

if __name__ == "__main__":
    sys.exit(main())
