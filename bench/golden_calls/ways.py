"""Golden calls by every other way in: the command line, job files, folders of runs, reports and the dashboard."""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from golden_lines import Text
from safetensors.torch import save_file

import crunode as cr
from crunode.cli import main
from crunode.findings import FINDINGS
from golden_calls import call, landscapes, refused

NOISY = "golden_calls.landscapes:noisy"
SHORT = ["--set", "chains=2", "--set", "draws=10", "--set", "warmup=5"]
QUICK = {"nbeta": 20.0, "chains": 2, "draws": 10, "warmup": 5, "on_failure": "return", "layout": "batched"}


def printed(text: str) -> Text:
    """Words without the line on versions and the state of the sources."""
    return Text("\n".join(line for line in text.splitlines() if not line.strip().startswith("made with")))


def command(line: str, *more: str, run: Callable[[list[str]], None] = main) -> dict[str, object]:
    """A command run in this process: its exit code, and what it printed, as JSON or as words."""
    out, err = io.StringIO(), io.StringIO()
    words, code = [*line.split(), *more], 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run(words)
        except SystemExit as end:
            code = int(end.code or 0)
    said = {"error": printed(err.getvalue())} if code == 2 else {}
    try:
        return {"code": code, "json": json.loads(out.getvalue()), **said}
    except ValueError:
        return {"code": code, "words": printed(out.getvalue()), **said}


COMMANDS: dict[str, tuple[str, ...]] = {
    "exact": (
        "exact reduced-rank 6 4 6 --rank 2",
        "exact dln 2 2 2 2 --rank 1 --json",
        "exact normal_crossing k=[1,2] h=[0,1]",
        "exact toy_function K=(x**2-y**3)**2 --json",
        "exact tanh_zero_truth --help",
        "exact list --json",
    ),
    "exact: wrong input": (
        "exact",
        "exact regular",
        "exact regular -3",
        "exact nothing 3 --json",
        "exact dln 2 2 --rank 5",
    ),
    "explain": ("explain", "explain LLC102", "explain --json", "explain XYZ"),
    "recipe": ("recipe list", "recipe show murfet2020-volume", "recipe run murfet2020-volume --json"),
    "recipe in words": (
        "recipe run lazy-training --seed 1",
        "recipe run nothing",
        "recipe run lazy-training --size big",
    ),
    "sweep": (
        f"sweep {NOISY} --nbeta 10 --nbeta 20 --set kernel=HMC --set chains=1 --set draws=8 --set warmup=4 --json",
    ),
    "wrong usage": (
        "nothing",
        "llc",
        f"llc {NOISY}x",
        f"llc {NOISY} --set chain=2",
        "runs list --root nowhere",
        "show nowhere",
    ),
}
for _name in COMMANDS:
    call(f"command {_name}")(lambda name=_name: [command(line) for line in COMMANDS[name]])


@call("command llc")
def _() -> object:
    weights = landscapes.noisy().center.reshape(1, 3) + 0.1
    save_file({"weight": weights.contiguous()}, "there.safetensors")
    settings = [*SHORT, "--set", "nbeta=20.0", "--set", "layout=batched", "--json"]
    return [
        command(f"llc {NOISY} --seed 1", *settings),
        command(f"llc {NOISY} --seed 1 --weights there.safetensors", *settings),
        command("llc golden_calls.landscapes:smooth"),
        command(
            f"llc {NOISY} --seed 1 --on serial --deadline 10m", *SHORT, "--set", "kernel=SGLD", "--set", "batch=20"
        ),
    ]


@call("command in a process of its own")
def _() -> object:
    words = ["llc", NOISY, "--seed", "1", *SHORT, "--json"]
    ended = subprocess.run([sys.executable, "-m", "crunode", *words], capture_output=True, text=True, check=False)
    return [ended.returncode, json.loads(ended.stdout)]


@call("command track")
def _() -> object:
    Path("kept").mkdir()
    for step in (0, 10, 20):
        save_file({"weight": landscapes.noisy().center.reshape(1, 3) + 0.01 * step}, f"kept/model-{step}.safetensors")
    line = f"track {NOISY} kept --probe llc --probe trace --store visits"
    return [command(line, *SHORT), command(line, *SHORT, "--json"), command("show visits --json")]


@call("command bench")
def _() -> object:
    from crunode_papers.hitchcock2025.__main__ import main as benchmark  # the papers can be missing

    line = "--class 1K --count 1 --budget 3000 --examples 200 --set chains=2 --set nbeta=50.0 --json"
    found = command(line, run=benchmark)
    return found["code"], found.get("json")


def two_runs() -> None:
    for name, seed in (("a", 1), ("b", 2)):
        command(f"llc {NOISY} --seed {seed} --store runs/{name} --set nbeta=20.0 --set layout=batched", *SHORT)


@call("runs and reports")
def _() -> object:
    two_runs()
    lines = (
        "runs list --root runs",
        "runs list --root runs --finding MC201 --json",
        "runs list --root runs --where kernel.name=SGLD --json",
        "runs compare a b --root runs --json",
        "runs compare a b --root runs",
        "runs diff a b --root runs",
        "runs tag a paper --root runs",
        "runs show a --root runs --json",
        "show runs/a",
        "show runs/a --json",
        "report runs -o all.html --json",
        "runs rebuild --root runs",
        "runs delete b --root runs --yes",
    )
    found = [command(line) for line in lines]
    return [*found, page(Path("all.html").read_text(encoding="utf-8"))]


@call("rerun")
def _() -> object:
    two_runs()
    return [
        command("rerun runs/a --store runs/c --yes --json"),
        cr.load_estimate("runs/c"),
        refused(lambda: cr.rerun("runs/b", "d")),
    ]


@call("store and resume")
def _() -> object:
    land = landscapes.noisy()
    first = cr.llc(land, seed=1, store="run", **QUICK)
    again, kept = cr.llc(land, seed=1, store="run", **QUICK), cr.load_estimate("run")
    same = [first.value == other.value and first.se == other.se for other in (again, kept)]
    other = refused(lambda: cr.llc(land, seed=2, store="run", **QUICK))
    damaged = next(Path("run").rglob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-3])
    return [first, same, other, refused(lambda: cr.load_estimate("run")), refused(lambda: cr.load_estimate("nowhere"))]


@call("deadline, then resumed")
def _() -> object:
    land = landscapes.bent()
    ended = refused(lambda: cr.llc(land, seed=1, store="run", executor=cr.Serial(until=cr.Deadline(0)), **QUICK))
    return [ended, cr.llc(land, seed=1, store="run", executor=cr.Serial(until=cr.Deadline(600)), **QUICK)]


@call("catalog")
def _() -> object:
    two_runs()
    catalog = cr.Catalog("runs")
    catalog.tag("a", "paper")
    return [
        [[run.name, run.value, run.se, run.findings, run.ok] for run in catalog.list(kind="draws")],
        catalog.count(ok=False),
        [run.name for run in catalog.list(tag="paper")],
        catalog.numbers("a"),
        catalog.draws("b"),
        catalog.diff("a", "b"),
        catalog.compare(["a", "b"]).table(),
    ]


@call("report")
def _() -> object:
    found = cr.llc(landscapes.noisy(), seed=1, **QUICK)
    cr.report({"one": found}, "one.html")
    kernel = cr.HMC(leaps=2)
    cells = cr.sweep(landscapes.noisy(), nbetas=[10.0, 20.0], kernel=kernel, chains=1, draws=8, warmup=4, store="sweep")
    cr.report("sweep", "sweep.html")
    text = [page(Path(name).read_text(encoding="utf-8")) for name in ("one.html", "sweep.html")]
    return [*text, printed(str(found)), printed(cells.table()), cr.Estimate.from_dict(found.to_dict()) == found]


JOBS = f"""
store = "out"
seed = 3
[settings]
chains = 2
[[job]]
name = "noisy"
target = "{NOISY}"
settings = {{ draws = 10, warmup = 5, nbeta = 20.0, kernel = "HMC", step = 0.05, leaps = 2 }}
matrix = {{ seed = [0, 1] }}
[[job]]
kind = "sweep"
name = "grid"
target = "{NOISY}"
nbetas = [10.0, 20.0]
settings = {{ draws = 8, warmup = 4, kernel = "HMC" }}
[[job]]
recipe = "murfet2020-volume"
"""


@call("job file")
def _() -> object:
    Path("study.toml").write_text(JOBS, encoding="utf-8")
    Path("wrong.toml").write_text(JOBS.replace("draws", "drawn"), encoding="utf-8")
    return [
        command("run study.toml --json"),
        command("run study.toml --json"),
        [cr.load_estimate(path.parent) for path in sorted(Path("out").rglob("noisy*/estimate*.json"))],
        command("run wrong.toml"),
        command("run study.toml --deadline 0s --store other"),
        command("plan study.toml --trial 0 --json"),
    ]


def page(text: str) -> Text:
    """The words of a page, one piece a line, without scripts, styles and pictures."""
    text = re.sub(r"(?s)<(script|style|svg)\b.*?</\1>", " ", text)
    pieces = [" ".join(html.unescape(piece).split()) for piece in re.split(r"<[^>]*>", text)]
    kept = "\n".join(piece for piece in pieces if piece)
    return printed(re.sub(r"\bchanged\n(true|false)\b", "changed", kept))


@call("dashboard")
def _() -> object:
    two_runs()
    words = [sys.executable, "-m", "crunode", "serve", "runs", "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "CRUNODE_TOKEN": ""})
    try:
        assert server.stdout is not None
        address = re.search(r"http://[\d.:]+", server.stdout.readline())
        assert address is not None

        def shown(path: str, **fields: str) -> Text:
            query = urllib.parse.urlencode(fields)
            with urllib.request.urlopen(f"{address.group()}{path}?{query}", timeout=60) as answer:
                return page(answer.read().decode())

        return [
            shown("/"),
            shown("/recipes"),
            shown("/running"),
            shown("/exact", family="tanh_zero_truth"),
            refused(lambda: shown("/run/nothing")),
        ]
    finally:
        server.terminate()
        server.wait()


@call("findings")
def _() -> object:
    return [FINDINGS[code].severity for code in FINDINGS], {code: cr.Finding.of(code, "") for code in FINDINGS}
