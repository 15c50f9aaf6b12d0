"""`python -m taskrunner` is the command `taskrunner`."""

import sys

from taskrunner.cli import main

if __name__ == "__main__":
    sys.exit(main())
