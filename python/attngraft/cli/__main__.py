"""`python -m attngraft.cli`."""

import sys

from attngraft.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
