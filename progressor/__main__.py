"""``python -m progressor``: the same as the command ``progressor``."""

import sys

from progressor.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
