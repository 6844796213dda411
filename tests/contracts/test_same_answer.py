"""The same question has the same answer, to the last bit, whatever stands around it.

Each route to a coefficient is taken by a plain call first, and then by each way in. Another layout of chains may change
rounding only: the route and the findings stay, and values differ by no more than chains do.
"""

import contextlib
import functools
import json
import warnings
from pathlib import Path

import pytest

import crunode as cr
from crunode.app.jobs import Jobs
from crunode.cli import main
from crunode.core.deadline import Deadline
from crunode.core.execute import Processes, Serial
from crunode.core.result import Estimate
from crunode.errors import DeadlineReached, DiagnosticWarning, StoreMismatch
from crunode.estimators import coefficient
from crunode.jobs.job_file import read_jobs
from crunode.jobs.job_running import run_jobs
from crunode.jobs.loading import landscape_from, options_of
from crunode.jobs.rerunning import record_call, rerun
from crunode.reporting.text import run_summary
from crunode.store.documents import plain as plain_values
from crunode.store.run_store import RunStore, load_estimate
from crunode.training.probes import held, step_seed

HERE = Path(__file__).parent
STEP = 3
SEED = step_seed(5, STEP)  # of a tracker with seed 5 at this step

# The name of a route: its landscape, and settings as words of a command line have them.
ROUTES = {
    "rank": ("smooth", {}),
    "zero set beside chains": ("singular", {"target": "basin", "chains": 2, "draws": 20, "warmup": 10}),
    "ladder of HMC": ("noisy", {"labels": "given", "chains": 2, "draws": 20, "warmup": 10}),
    "own labels": ("noisy", {"chains": 2, "draws": 20, "warmup": 10}),
    "one level": ("noisy", {"nbeta": "wbic", "chains": 2, "draws": 40, "warmup": 30}),
    "SGHMC": ("noisy", {"kernel": "SGHMC", "nbeta": 15.0, "chains": 2, "draws": 60, "warmup": 30}),
    "annealed": ("large", {"target": "basin", "budget": 1500}),
    "kernel asked for": ("singular", {"kernel": "SGLD", "batch": 20, "chains": 2, "draws": 60, "warmup": 30}),
    "budget given": ("noisy", {"nbeta": "wbic", "budget": 8000}),
    "polish": ("bent", {"polish": 60, "nbeta": 20.0, "precision": 10.0, "chains": 2, "draws": 20, "warmup": 10}),
}
ALONE = ("rank", "annealed")


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)
    # Of so many parameters on a network is annealed; a test has no time for as many as that are.
    monkeypatch.setattr(coefficient, "_HUGE", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        yield


def question(route):
    """Landscape and options of a route."""
    name, settings = ROUTES[route]
    return landscape_from(f"answer_landscapes:{name}"), options_of(settings)


def pairs(route):
    """Its settings as words of a command line."""
    return [f"{key}={json.dumps(value)}" for key, value in ROUTES[route][1].items()]


def ask(route, **around):
    land, options = question(route)
    return cr.llc(land, seed=SEED, on_failure="return", **options, **around)


@functools.cache
def plain(route):
    """The answer of a plain call."""
    return ask(route)


def numbers(found):
    """What may not differ."""
    found = found if isinstance(found, Estimate) else Estimate.from_dict(found)
    codes = sorted(finding.code for finding in found.findings)
    return *(float(x).hex() for x in (found.value, found.se, found.systematic)), codes, found.ok


def run_folder(route, folder):
    """Written, read from the disk, resumed, shown and made again."""
    found = ask(route, store=folder / "run")
    yield found
    yield load_estimate(folder / "run")
    files = {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*.safetensors")}
    yield ask(route, store=folder / "run")
    assert files == {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*.safetensors")}
    (shown,) = run_summary(folder / "run")["estimates"]
    assert (shown["value"], shown["se"]) == (found.value, found.se)
    assert RunStore.open(folder / "run").status == "complete"
    record_call(folder / "run", "llc", f"answer_landscapes:{ROUTES[route][0]}", pairs(route), SEED)
    yield rerun(folder / "run", folder / "other", trust=True)


def executor(route, folder):
    """One that says it has two workers, which must be no reason to group chains otherwise."""

    class Two:
        workers, until = 2, None
        map = Serial().map

    yield ask(route, executor=Two())


def deadline(route, folder):
    """Ended by one that has passed, then gone on with."""
    with contextlib.suppress(DeadlineReached):
        ask(route, store=folder / "run", executor=Serial(until=Deadline(0)))
    yield ask(route, store=folder / "run", executor=Serial(until=Deadline(600)))


def tracker(route, folder):
    """With nothing held from visit to visit, a visit is one call."""
    land, options = question(route)
    probe = held(functools.partial(cr.llc, on_failure="return", **options), lambda estimate: {})
    tracked = cr.Tracker(land, {"llc": probe}, seed=5, store=folder / "visits", executor=Serial())
    tracked.visit(STEP, land.center)
    yield tracked.trajectory.visits[0].estimates["llc"]


def job_file(route, folder):
    settings = ", ".join(pairs(route))
    target = f"answer_landscapes:{ROUTES[route][0]}"
    text = f'[[job]]\nname = "one"\ntarget = "{target}"\nseed = {SEED}\nsettings = {{ {settings} }}\n'
    (folder / "study.toml").write_text(text)
    (outcome,) = run_jobs(read_jobs(folder / "study.toml"), folder / "out").outcomes
    assert outcome.error is None, outcome.error
    yield outcome.result


@pytest.mark.heavy
@pytest.mark.parametrize("way", [run_folder, executor, deadline, tracker, job_file], ids=lambda way: way.__name__)
@pytest.mark.parametrize("route", ROUTES)
def test_of_a_call(route, way, tmp_path):
    for found in way(route, tmp_path):
        assert numbers(found) == numbers(plain(route))


AROUND = ("", "--store run --deadline 10m", "--on serial --store run")


@pytest.mark.heavy
@pytest.mark.parametrize(("route", "around"), [(route, AROUND[k % 3]) for k, route in enumerate(ROUTES)])
def test_of_a_command(route, around, capsys):
    settings = [word for pair in pairs(route) for word in ("--set", pair)]
    with pytest.raises(SystemExit):
        main(
            ["llc", f"answer_landscapes:{ROUTES[route][0]}", "--seed", str(SEED), "--json", *settings, *around.split()]
        )
    assert numbers(json.loads(capsys.readouterr().out)) == numbers(plain(route))


@pytest.mark.heavy
def test_of_workers(tmp_path):
    """In processes of their own, which start slowly: once with chains that go to them, once without."""
    for route in ("zero set beside chains", "rank"):
        found = ask(route, store=tmp_path / route, executor=Processes(workers=2))
        assert numbers(found) == numbers(plain(route))


@pytest.mark.heavy
def test_of_a_sweep(tmp_path):
    """Its default estimate and its cells, in memory and in a folder."""
    land, _ = question("one level")
    options = {"nbetas": [20.0], "kernel": cr.HMC(leaps=2), "chains": 1, "draws": 10, "warmup": 5, "seed": SEED}
    free, kept = cr.sweep(land, **options), cr.sweep(land, **options, store=tmp_path / "sweep", executor=Serial())
    assert numbers(free.estimate) == numbers(kept.estimate) == numbers(cr.llc(land, seed=SEED, on_failure="return"))
    assert [cell.value.hex() for cell in free.cells] == [cell.value.hex() for cell in kept.cells]


@pytest.mark.heavy
def test_of_the_dashboard(tmp_path):
    """A job that it starts is a recipe in a process of its own."""
    jobs = Jobs(tmp_path)
    job = jobs.start("toy-volumes", 1)
    assert job.process.wait(120) in (0, 1), job.tail()
    kept = json.loads((job.home / "result.json").read_text())
    jobs.close()
    free = plain_values(cr.recipe("toy-volumes").run("toy", 1).to_dict())
    rows = kept.get("rows") or kept["run"]["rows"]
    assert [(row["name"], row["ours"], row["verdict"]) for row in rows] == [
        (row["name"], row["ours"], row["verdict"]) for row in free["rows"]
    ]


@pytest.mark.heavy
@pytest.mark.parametrize("route", [name for name in ROUTES if name not in ALONE])
def test_of_another_layout(route):
    """Rounding differs, and with it chains: what is asked, what is found and the route do not."""
    land, options = question(route)
    longer = {} if "budget" in options else {"chains": 8, "draws": 40, "warmup": 20}
    options |= {**longer, "seed": SEED, "on_failure": "return"}
    one, other = (cr.llc(land, **options, layout=layout) for layout in ("batched", "sequential"))
    assert [one.spec["layout"]["layout"], other.spec["layout"]["layout"]] == ["batched", "sequential"]
    assert one.spec["kernel"] == other.spec["kernel"]
    assert one.spec.get("limit") == other.spec.get("limit")
    assert numbers(one)[3:] == numbers(other)[3:]
    assert abs(one.value - other.value) <= 3 * (one.se**2 + other.se**2) ** 0.5


@pytest.mark.parametrize("route", ALONE)
def test_a_folder_of_chains_is_no_place_for_an_answer_without(route, tmp_path):
    land, _ = question(route)
    cr.sample(cr.Posterior(land, 10.0), cr.HMC(step=1e-3, leaps=2), chains=1, draws=5, warmup=2, store=tmp_path / "run")
    with pytest.raises(StoreMismatch, match=r"without chains.*1 chains"):
        ask(route, store=tmp_path / "run")


def test_an_answer_without_chains_is_no_place_for_chains(tmp_path):
    land, _ = question("rank")
    ask("rank", store=tmp_path / "run")
    with pytest.raises(StoreMismatch, match="took no chains"):
        cr.llc(land, seed=SEED, chains=2, store=tmp_path / "run")
    with pytest.raises(StoreMismatch, match="differ"):
        cr.sample(cr.Posterior(land, 10.0), cr.HMC(step=1e-3, leaps=2), chains=1, draws=5, store=tmp_path / "run")
