"""The commands that typer parses: all but `exact`, which has a parser of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from crunode import __version__
from crunode.cli.jobs_command import plan, run
from crunode.cli.on_option import DeadlineOption, On, Workers, executor_from
from crunode.cli.printing import fail, print_json, printable, quiet
from crunode.cli.recipe_command import recipe
from crunode.cli.report_command import report
from crunode.cli.runs_command import rerun, runs
from crunode.cli.serve_command import serve
from crunode.cli.track_command import track
from crunode.errors import FINDINGS, CrunodeError, DeadlineReached, EstimationError, InputError

__all__ = ["app", "run_words"]

app = typer.Typer(
    help="Learning coefficients of PyTorch models, with error bars.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(recipe, name="recipe")
app.add_typer(runs, name="runs")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")]


def run_words(words: Sequence[str], command: typer.Typer = app, name: str = "crunode") -> int:
    """Parse the words, run the command, print its errors; returns the exit code."""
    # The parser's own class, whichever copy of it this version of typer carries.
    usage_error = cast("type[Exception]", typer.BadParameter.__base__)
    try:
        code = command(list(words), prog_name=name, standalone_mode=False)
    except CrunodeError as error:
        fail(type(error).__name__, str(error), words)
        code = 1 if isinstance(error, EstimationError | DeadlineReached) else 2
    except usage_error as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        fail("UsageError", f"{message} Try: {name} --help", words)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        fail("Interrupted", "stopped; with --store the same command goes on where it stopped", words)
        code = 130
    return code if isinstance(code, int) else 0


def _version(asked: bool) -> None:
    if asked:
        print(f"crunode {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Version.")] = False,
) -> None:
    pass


@app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
def exact(
    words: Annotated[list[str] | None, typer.Argument(metavar="FAMILY ...", help="See: crunode exact --help")] = None,
) -> None:
    """Exact coefficient of a model family, with its theorem, e.g. crunode exact reduced-rank 6 4 6 --rank 2."""
    from crunode.cli.exact_command import run_exact

    raise typer.Exit(run_exact(words or []))


@app.command()
def llc(
    target: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="A function that returns a Landscape.")],
    weights: Annotated[Path | None, typer.Option(help="Weights to look at: .safetensors, or .pt with tensors.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="chains, draws, warmup, nbeta, precision, kernel, step, ..."),
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Run folder to write to, or to resume.")] = None,
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 0,
    on: On = None,
    workers: Workers = 1,
    deadline: DeadlineOption = None,
    as_json: Json = False,
) -> None:
    """Estimate the local learning coefficient, e.g. crunode llc mypkg.exp:landscape --set chains=8."""
    from crunode.jobs.call import Call
    from crunode.jobs.loading import settings_from
    from crunode.jobs.rerunning import record_call
    from crunode.reporting.text import describe_estimate

    with quiet(as_json):
        call = Call("llc", target, seed, settings_from(settings or ()), weights)
        estimate = call.estimate(store, executor_from(on, workers, deadline))
        record_call(store, "llc", target, settings or (), seed, weights)
    if as_json:
        print_json(estimate.to_dict())
    else:
        print(describe_estimate(estimate))
    raise typer.Exit(0 if estimate.ok else 1)


@app.command()
def sweep(
    target: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="A function that returns a Landscape.")],
    step: Annotated[list[float] | None, typer.Option(help="A step ε of the grid; repeat it for more.")] = None,
    precision: Annotated[list[float] | None, typer.Option(help="A precision γ of the grid; repeat it.")] = None,
    nbeta: Annotated[list[float] | None, typer.Option(help="An nβ of the grid; repeat it.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="chains, draws, warmup, kernel, batch, ..."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights to look at: .safetensors, or .pt with tensors.")] = None,
    store: Annotated[Path | None, typer.Option(help="Folder to keep finished cells in, or to resume from.")] = None,
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 0,
    on: On = None,
    workers: Workers = 1,
    deadline: DeadlineOption = None,
    plot: Annotated[Path | None, typer.Option(help="Picture to draw: .png, .pdf or .svg.")] = None,
    as_json: Json = False,
) -> None:
    """How the estimate depends on step, precision and nbeta, e.g. crunode sweep mypkg.exp:landscape --plot s.png."""
    from crunode.cli.sweep_command import run_sweep

    axes = {"steps": step, "precisions": precision, "nbetas": nbeta}
    with quiet(as_json):
        executor = executor_from(on, workers, deadline)
        found = run_sweep(target, axes, settings or (), weights, store=store, seed=seed, executor=executor, plot=plot)
    if as_json:
        print_json(found.to_dict())
    else:
        print(found.table())
    raise typer.Exit(0 if found.ok else 1)


app.command()(track)
app.command()(run)
app.command()(plan)
app.command()(rerun)
app.command()(report)
app.command()(serve)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, complete or not.")],
    as_json: Json = False,
) -> None:
    """Summary, settings with their reasons, findings and status of a run folder."""
    from crunode.reporting.text import describe_run, run_summary

    summary = run_summary(folder)
    if as_json:
        print_json(summary)
    else:
        print(printable(describe_run(summary)))


@app.command()
def explain(
    code: Annotated[str | None, typer.Argument(help="A finding, such as LLC102; all of them when left out.")] = None,
    as_json: Json = False,
) -> None:
    """What a finding means and what to do about it."""
    if code is not None and code.upper() not in FINDINGS:
        import difflib

        near = difflib.get_close_matches(code.upper(), FINDINGS, n=3, cutoff=0.3) or list(FINDINGS)
        raise InputError(f"expected the code of a finding, got {code!r}; nearest: {', '.join(near)}")
    kinds = list(FINDINGS.values()) if code is None else [FINDINGS[code.upper()]]
    if as_json:
        told = ("code", "title", "severity", "meaning")
        found = [{**{k: getattr(kind, k) for k in told}, "remedy": kind.remedy.on_command_line} for kind in kinds]
        print_json(found if code is None else found[0])
    elif code is None:
        print("\n".join(f"{kind.code:<9} {kind.severity:<8} {kind.title}" for kind in kinds))
    else:
        (kind,) = kinds
        print(
            f"{kind.code} {kind.title} ({kind.severity})\n\n{kind.meaning}\n\nWhat to do: {kind.remedy.on_command_line}"
        )


@app.command()
def doctor(as_json: Json = False) -> None:
    """Versions, devices, threads, extras and data of this installation."""
    from crunode.examples.images import PACKAGED
    from crunode.reporting.environment import environment

    found: dict[str, Any] = environment()
    found["data"] = {"fashion-mnist small": str(PACKAGED) if PACKAGED.is_file() else None}
    if as_json:
        print_json(found)
        return
    print(f"crunode {found['crunode']}, Python {found['python']}, {found['platform']}")
    print("packages  " + ", ".join(f"{k} {v or 'MISSING'}" for k, v in found["packages"].items()))
    print("devices   " + ", ".join(found["devices"]))
    print("threads   " + ", ".join(f"{k} {v}" for k, v in found["threads"].items()))
    for name, extra in found["extras"].items():
        state = "present" if extra["present"] else f"missing {', '.join(extra['missing'])}"
        hint = "" if extra["present"] else f"; pip install 'crunode[{name}]'"
        print(f"extra     {name}: {state} ({extra['purpose']}{hint})")
    for name, where in found["data"].items():
        print(f"data      {name}: {where or 'not found'}")


@app.command()
def demo(
    store: Annotated[Path, typer.Option(help="Folder for run folders and pictures.")],
    as_json: Json = False,
) -> None:
    """Train a small network, estimate its coefficient and three known ones, draw pictures."""
    from crunode import Processes
    from crunode.examples.demo import run_demo

    with quiet(as_json):
        result = run_demo(store, Processes())
    if as_json:
        print_json(result)
    raise typer.Exit(0 if result["ok"] else 1)
