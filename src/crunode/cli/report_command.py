"""`crunode report`: run folders as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crunode.cli.printing import print_json, printable

__all__ = ["report"]


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of run folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, ending in .html.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")] = False,
) -> None:
    """Run folders as one self-contained HTML file, e.g. crunode report runs/a runs/b -o out.html."""
    from crunode.reporting.html import checked_target, page_html, views_of
    from crunode.store.guarded import replace_file

    target = checked_target(output)
    views = views_of(folders)
    page = page_html(views).encode("utf-8")
    replace_file(target, page)
    if as_json:
        listed = [
            {"name": v.name, "kind": v.record.kind, "status": v.record.status, "ok": v.record.ok}
            | {"answer": f"{v.answer.name} {v.answer.number}".strip(), "problems": v.problems}
            for v in views
        ]
        print_json({"output": target, "bytes": len(page), "runs": listed})
    else:
        for view in views:
            said = f"{view.answer.name} {view.answer.number}".strip() or "-"
            print(printable(f"{view.name}  {said} | {view.answer.verdict}"))
        print(printable(f"{target}: {len(views)} run{'s' * (len(views) != 1)}, {len(page) / 1000:.0f} kB"))
    raise typer.Exit(1 if any(view.record.ok is False for view in views) else 0)
