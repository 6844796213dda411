"""`python -m crunode`: the command line."""

from __future__ import annotations

import sys

from crunode.errors import MissingExtra

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say which package it lacks."""
    try:
        from crunode.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "click"):
            raise
        # typer comes with crunode; it is absent only where crunode was installed without its requirements.
        lacking = MissingExtra(
            f"the command line needs the package {error.name!r}, which is not installed. "
            "Install it with: pip install typer"
        )
        print(f"error: {lacking}", file=sys.stderr)
        raise SystemExit(2) from None
    run()


if __name__ == "__main__":
    main()
