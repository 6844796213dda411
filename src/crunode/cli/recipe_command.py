"""`crunode recipe`: papers' experiments, run and held against what the papers print."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from crunode.cli.on_option import DeadlineOption, On, Workers, executor_from
from crunode.cli.printing import print_json

__all__ = ["recipe"]

recipe = typer.Typer(help="Papers' experiments, held against the papers.", rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A recipe; see: crunode recipe list")]


@recipe.callback()
def _root() -> None:
    pass


@recipe.command("list")
def list_recipes(as_json: Json = False) -> None:
    """All recipes, with their papers."""
    from crunode.errors import InputError
    from crunode.jobs.registry import recipe as recipe_named
    from crunode.jobs.registry import recipes

    found: list[dict[str, str | None]] = []
    for name in recipes():
        try:
            each = recipe_named(name)
        except InputError as error:  # one that cannot be had; the others are listed all the same
            found.append({"name": name, "title": f"cannot be loaded: {error}", "paper": None})
        else:
            found.append({"name": name, "title": each.title, "paper": each.paper})
    if as_json:
        print_json(found)
    elif not found:
        print("No installed package offers a recipe; those of crunode come with it, so install crunode once more.")
    else:
        width = max(len(str(row["name"])) for row in found)
        print("\n".join(f"{row['name']:<{width}}  {row['title']}" for row in found))


@recipe.command()
def show(name: Name, as_json: Json = False) -> None:
    """What a recipe computes, and what is known about its paper."""
    from crunode.jobs.registry import recipe as recipe_named

    found = recipe_named(name)
    cells = {size: len(found.cells(size, 0)) for size in found.sizes}
    if as_json:
        content = {"name": found.name, "title": found.title, "paper": found.paper, "version": found.version}
        print_json({**content, "cells": cells, "notes": found.notes})
        return
    print(f"{found.name}: {found.title}\n\n{textwrap.fill(found.paper, 100)}\n")
    print("cells  " + ", ".join(f"{count} at {size} size" for size, count in cells.items()))
    if found.notes:
        print("\n" + "\n\n".join(textwrap.fill(part, 100) for part in found.notes.split("\n\n")))


@recipe.command()
def run(
    name: Name,
    size: Annotated[str, typer.Option(help="toy for seconds, paper for the paper's own size.")] = "toy",
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 0,
    store: Annotated[Path | None, typer.Option(help="Folder to keep finished cells in, or to resume from.")] = None,
    on: On = None,
    workers: Workers = 1,
    deadline: DeadlineOption = None,
    as_json: Json = False,
) -> None:
    """Run a recipe and print its table, e.g. crunode recipe run toy-volumes --store runs/volume."""
    from crunode.jobs.registry import recipe as recipe_named

    executor = executor_from(on, workers, deadline)
    with contextlib.ExitStack() as stack:
        if as_json:  # nothing else may reach standard output
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        found = recipe_named(name).run(size, seed, store, executor)
    if as_json:
        print_json(found.to_dict())
    else:
        print(found.compare())
    raise typer.Exit(0 if found.ok else 1)
