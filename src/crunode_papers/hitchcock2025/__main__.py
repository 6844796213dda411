"""`python -m crunode_papers.hitchcock2025`: methods held against exact values, with all settings of the benchmark."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from crunode.cli import print_json, run_words

__all__ = ["bench", "main"]

_MODULE = "crunode_papers.hitchcock2025"

bench = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@bench.command()
def benchmark(
    kinds: Annotated[
        list[str] | None, typer.Option("--class", help="1K, 10K, 100K, 1M, 10M, 100M, reference or families.")
    ] = None,
    count: Annotated[int | None, typer.Option(help="Networks in each class, or seeds of each case.")] = None,
    first_seed: Annotated[int, typer.Option(help="Seeds go on from it.")] = 5000,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="crunode, sgld, rmsprop-sgld or devinterp.")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="Gradients (steps times chains) that crunode may take.")] = None,
    target: Annotated[str | None, typer.Option(help="local or basin: what crunode is asked for.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Settings of crunode's estimates.")
    ] = None,
    examples: Annotated[int | None, typer.Option(help="Use at most as many examples.")] = None,
    workers: Annotated[int, typer.Option(help="Processes to run problems in.")] = 1,
    device: Annotated[str | None, typer.Option(help="Where to run, such as cuda; the CPU by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the record; an interrupted run goes on from it.")] = None,
    peer_python: Annotated[str | None, typer.Option(help="Python of the environment that has devinterp.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")] = False,
) -> None:
    """Estimates of the learning coefficient against exact values, e.g. --class 1K --count 8."""
    from crunode.jobs import options_from
    from crunode_papers.hitchcock2025.run import run_benchmark
    from crunode_papers.hitchcock2025.table import describe_benchmark

    asked: dict[str, Any] = options_from(settings or ())
    # What is left out is left to the estimator's own defaults.
    asked |= {name: value for name, value in (("budget", budget), ("target", target)) if value is not None}
    record = run_benchmark(
        kinds or ["1K"],
        methods or ["crunode"],
        count=count,
        first_seed=first_seed,
        target=target or "local",
        examples=examples,
        options={"crunode": asked},
        device=device,
        workers=workers,
        out=out,
        command=_command(locals()),
        **({} if peer_python is None else {"peer_python": peer_python}),
    )
    if as_json:
        print_json(record)
    else:
        print(describe_benchmark(record))
    # Baselines may fail: that is what a benchmark is there to show.
    failed = any(row["value"] is None for row in record["rows"] if row["method"] == "crunode")
    raise typer.Exit(1 if failed else 0)


def _command(given: dict[str, Any]) -> str:
    """The words that give the same rows."""
    flags = {"--class": "kinds", "--count": "count", "--first-seed": "first_seed", "--method": "methods"}
    flags |= {"--budget": "budget", "--target": "target", "--set": "settings", "--examples": "examples"}
    flags |= {"--device": "device"}
    words = ["python", "-m", _MODULE]
    for flag, name in flags.items():
        value = given[name]
        for each in value if isinstance(value, list) else [value]:
            words += [] if each is None else [flag, str(each)]
    return shlex.join(words)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and exit: 0 ok, 1 where an estimate of crunode failed, 2 wrong usage.

    Args:
        arguments: The words after the module's name; those of the process by default.
    """
    raise SystemExit(run_words(sys.argv[1:] if arguments is None else arguments, bench, f"python -m {_MODULE}"))


if __name__ == "__main__":
    main()
