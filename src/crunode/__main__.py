"""`python -m crunode`: the command line."""

from __future__ import annotations

from crunode.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
