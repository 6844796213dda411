"""Run folders made by an enemy: each of many damaged ones is listed, read, compared, exported, tagged and deleted.

    python bench/fuzz_runs.py [--cases 1500] [--seed 0]

Every call has to return or to raise an error of crunode's own, in seconds, without opening, listing, renaming or
removing anything outside the folder of runs. Writes validation/fuzz_runs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import torch

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, provenance
from crunode.errors import CrunodeError
from crunode.estimators.coefficient import llc
from crunode.jobs.recipe import Cell, Expected, Recipe
from crunode.jobs.rerunning import plan_rerun, rerun
from crunode.reporting.text import describe_run, run_summary
from crunode.sampling.metropolis import HMC
from crunode.store.atomic import digest
from crunode.store.calls import write_call
from crunode.store.catalog import Catalog
from crunode.store.run_record import HEADERS
from crunode.store.run_store import RunStore, load_estimate
from crunode.training.tracker import Tracker
from crunode_papers.training.loop import train

ROOT = Path(__file__).resolve().parents[1]
DEEP: object = []
for _ in range(400):
    DEEP = [DEEP]
VALUES = [
    *(None, True, -1, 0, 1.5, 2**31, 2**63, 10**400, -(10**30), 1e308, {}, [], [[]], [None] * 2000),
    *("", "x" * 100_000, "../../outside/secret", "/etc/passwd", "..", "a/../../b", "\0", "\ud800", "\u202e", "C:\\x"),
    *("<script>alert(1)</script>", "\x1b[2J\x07", "=cmd|' /C calc'!A0", "complete", "os:getcwd", "é" * 300),
    *({"$float": "nan"}, {"$float": "inf"}, {"code": 3}, [{"code": "MC201"}], {"a": {"b": 1}}, DEEP),
    *(["../../outside/secret"], [10**9, 10**9], [0, 0], [[0], [0]], "draws", "float64", "object", "<U4", "g000.json"),
]
allowed: list[str] = []
outside: list[str] = []
watching = False
EVENTS = ("open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink")


def watch(event: str, arguments: tuple) -> None:
    """An audit hook: what Python opens, lists, renames, removes or starts."""
    if not watching:
        return
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class", "ctypes.dlopen"):
        outside.append(f"{event} {arguments!r}"[:200])
    if event in EVENTS or event in ("sqlite3.connect", "shutil.rmtree"):
        for path in arguments[: 2 if event == "os.rename" else 1]:
            if isinstance(path, str | bytes | os.PathLike):
                text = os.fsdecode(path)
                if os.path.isabs(text) and not any(text == a or text.startswith(a + os.sep) for a in allowed):
                    outside.append(f"{event} {text}"[:200])


def templates(home: Path) -> None:
    """One good run folder of each kind."""
    land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=100)
    options = {"nbeta": 10.0, "kernel": HMC(step=1e-2, leaps=2), "precision": 1.0, "chains": 2, "draws": 8, "warmup": 4}
    llc(land, **options, store=home / "draws")
    write_call(home / "draws", "llc", {"target": "os:getcwd", "settings": ["chains=2"], "seed": 0})
    recipe = Recipe(
        "tiny",
        "A title",
        "A paper",
        lambda size, seed: [Cell("a", {"x": seed})],
        lambda cell: {"y": 1.0},
        lambda results, size: [Expected(1.0, 0.1, "Table 1").row("y", r["y"]) for r in results],
    )
    recipe.run(store=home / "recipe")
    net = torch.nn.Linear(1, 1)
    x = torch.linspace(-1, 1, 8).reshape(-1, 1)
    train(net, (x, x), "gaussian", torch.optim.SGD(net.parameters(), lr=0.1), epochs=2, store=home / "training")
    data = Landscape(net, (x, x), "gaussian")
    probe = {"loss": lambda land: Estimate("loss", float(land.loss()), se=0.0)}
    Tracker(data, probe, store=home / "tracker").visit(3, net)
    shutil.rmtree(home / "training" / "checkpoints")


def places(value: object, path: tuple = ()) -> list[tuple]:
    found = [path] if path else []
    if len(path) > 50:
        return found
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def seal(content: dict) -> bytes:
    body = {k: v for k, v in content.items() if k != "sha256"}
    return json.dumps(
        {**body, "sha256": digest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())}
    ).encode()


def sealed(path: Path, draw: random.Random) -> str:
    """Wrong content under a right checksum, as an enemy would write it."""
    content = json.loads(path.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 5))):
        spot = draw.choice(places(content) or [("format",)])
        inner = content
        for key in spot[:-1]:
            inner = inner[key]
        if draw.random() < 0.2 and isinstance(inner, dict):
            inner.pop(spot[-1])
        else:
            inner[spot[-1]] = json.loads(json.dumps(draw.choice(VALUES)))  # a copy: the next change may be inside it
    path.write_bytes(seal(content))
    return "sealed"


def bytes_changed(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    kind = draw.choice(("flip", "cut", "insert", "repeat", "noise", "deep"))
    spot = draw.randrange(max(len(data), 1))
    if kind == "flip" and data:
        data[spot] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[spot:]
    elif kind == "insert":
        data[spot:spot] = draw.randbytes(draw.choice((1, 9, 500)))
    elif kind == "repeat":
        data *= 3
    elif kind == "noise":
        data[:] = draw.randbytes(200)
    else:
        data[:] = b'{"format": "crunode-run", "version": 1, "spec": ' + b"[" * 200_000
    path.write_bytes(data)
    return kind


def thing(path: Path, draw: random.Random) -> str:
    """Something else in the place of a file."""
    kind = draw.choice(("pipe", "link out", "link loop", "link to folder", "folder", "empty", "huge", "absent"))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    secret = path.parents[[p.name for p in path.parents].index("runs")].parent / "outside" / "secret"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("link out", "link to folder", "link loop"):
        path.symlink_to({"link out": secret, "link to folder": secret.parent, "link loop": path}[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)
    return kind


def uninventoried(home: Path) -> None:
    """Take the checksums of the journals out of the manifest, so that changed ones get further."""
    content = json.loads((home / "manifest.json").read_bytes())
    content["files"] = {}
    (home / "manifest.json").write_bytes(seal(content))


def calls(root: Path, home: Path, name: str):
    """All that can be asked of a run folder."""
    yield "refresh", lambda: Catalog(root)
    catalog = Catalog(root)
    yield "list", lambda: [run.to_dict() for run in catalog.list()]
    yield "get", lambda: catalog.get(name)
    yield "record", lambda: catalog.record(name)
    yield "compare", lambda: catalog.compare([name, "good"]).table()
    yield "diff", lambda: catalog.diff("good", name)
    yield "draws", lambda: catalog.draws(name)
    yield "store", lambda: RunStore.open(home).draws()
    yield "resume", lambda: RunStore(home).resume(0)
    yield "estimate", lambda: str(load_estimate(home))
    yield "summary", lambda: describe_run(run_summary(home))
    yield "plan", lambda: plan_rerun(home)
    yield "rerun", lambda: rerun(home, root / "again") if not (home / "recipe.json").is_file() else None
    yield "tag", lambda: catalog.tag(name, "a")
    yield "untag", lambda: catalog.untag(name, "a")
    yield "rebuild", lambda: catalog.rebuild()
    yield "delete", lambda: catalog.delete(name)


def late(*_: object) -> None:
    raise TimeoutError("longer than 20 s")


def main() -> None:
    global watching
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.fsync = lambda handle: None
    sys.addaudithook(watch)
    signal.signal(signal.SIGALRM, late)
    kinds: Counter = Counter()
    ended: Counter = Counter()
    failures: list[str] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as parent:
        base = Path(parent).resolve()
        templates(base / "templates")
        (base / "outside").mkdir()
        (base / "outside" / "secret").write_text("secret")
        root = base / "runs"
        allowed.extend(
            [
                str(root),
                "/dev/null",
                sys.prefix,
                sys.base_prefix,
                str(ROOT / "src"),
                str(ROOT / "bench"),
                str(base / "templates"),
            ]
        )
        root.mkdir()
        watching = True
        (base / "outside" / "secret").read_text()
        watching = False
        assert outside, "the watch does not see what is opened"
        shutil.copytree(base / "templates" / "draws", root / "good")
        for case in range(options.cases):
            draw = random.Random(f"{options.seed} {case}")
            kind = draw.choice(("draws", "draws", "draws", "recipe", "training", "tracker"))
            home = root / f"case{case}"
            shutil.copytree(base / "templates" / kind, home)
            files = sorted(p for p in home.rglob("*") if p.is_file() and p.suffix != ".lock")
            path = draw.choice([p for p in files if p.name in HEADERS] if draw.random() < 0.3 else files)
            if kind == "draws" and draw.random() < 0.7 and path.name != "manifest.json":
                uninventoried(home)
            ways = [bytes_changed, thing] + ([sealed] * 3 if path.suffix == ".json" else [])
            way = draw.choice(ways)
            spot = draw.choice([path, path.parent]) if way is thing and path.parent != home else path
            kinds[f"{path.relative_to(home).parts[0]}: {way(spot, draw)}"] += 1
            for label, call in calls(root, home, home.name):
                outside.clear()
                watching = True
                signal.alarm(20)
                try:
                    call()
                    ended[f"{label}: returned"] += 1
                except CrunodeError as error:
                    ended[f"{label}: {type(error).__name__}"] += 1
                    if not str(error):
                        failures.append(f"case {case} {label}: an error without words")
                except BaseException:
                    failures.append(f"case {case} {label}: {traceback.format_exc()[-1500:]}")
                finally:
                    signal.alarm(0)
                    watching = False
                failures += [f"case {case} {label}: {event}" for event in outside]
            if (base / "outside" / "secret").read_text() != "secret" or len(list((base / "outside").iterdir())) != 1:
                failures.append(f"case {case}: something outside was changed")
                break
            for leftover in (home, root / "again"):
                shutil.rmtree(leftover, ignore_errors=True)
            if len(failures) > 20:
                break
        done = case + 1
    result = {
        "command": f"python bench/fuzz_runs.py --cases {options.cases} --seed {options.seed}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "cases": done,
        "calls": sum(ended.values()),
        "seconds": time.perf_counter() - start,
        "failures": [failure.replace(str(ROOT), "") for failure in failures],
        "damage": dict(sorted(kinds.items())),
        "ended": dict(sorted(ended.items())),
    }
    print("\n".join(failures[:10]))
    print(f"{done} cases, {result['calls']} calls, {len(failures)} failures, {result['seconds']:.0f} s")
    print(json.dumps(result["ended"], indent=1))
    if options.cases >= 1000:
        (ROOT / "validation" / "fuzz_runs.json").write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
