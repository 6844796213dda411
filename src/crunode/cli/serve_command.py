"""`crunode serve`: the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crunode.cli.printing import printable

__all__ = ["serve"]

Token = Annotated[
    str | None,
    typer.Option(envvar="CRUNODE_TOKEN", help="What visitors have to show; made up where others can reach the host."),
]


def serve(
    root: Annotated[Path, typer.Argument(metavar="[ROOT]", help="The folder that run folders lie below.")] = Path(
        "runs"
    ),
    host: Annotated[str, typer.Option(help="Address to listen at; only this machine by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any that is free.")] = 8765,
    token: Token = None,
) -> None:
    """Show runs, progress, recipes and exact values in a browser, e.g. crunode serve runs."""
    from crunode.app.server import serve as run_server

    run_server(root, host, port, token, say=lambda line: print(printable(line), flush=True))
