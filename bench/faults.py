"""Faults injected into small runs: what is lost, what is wrong, and whether the message is clear.

    python bench/faults.py [--rounds 20] [--seed 0] [--only "killed driver"]

Each fault meets a run of `sample` with a store, and a recipe, at random moments. Then the same call is made again,
after the remedy that the message names where it names one, and everything is held against the undisturbed run, bit
for bit. The disk is a small tmpfs where that can be mounted, else its calls fail as on a full one. Runs are forks of
this process. Writes validation/faults.json.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from crunode.core import workers
from crunode.core.deadline import Deadline
from crunode.core.execute import Processes, Serial
from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode.errors import EstimationError, StoreError
from crunode.jobs.recipe import Cell, Expected, Recipe
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.run import sample
from crunode.sampling.stochastic import SGNHT
from crunode.store.run_store import RunStore

ROOT = Path(__file__).resolve().parents[1]
DRAWS, WARMUP, CELLS = 400, 100, 12
clock = random.Random(0)


class Split(Serial):
    """Two groups, as for two workers, in this process."""

    workers = 2


def compute(cell: Cell) -> dict[str, Any]:
    generator = np.random.default_rng(cell.settings["seed"])
    time.sleep(0.004)
    if os.environ.get("BAD_CELL") == cell.name:
        raise FloatingPointError("the loss is not finite")
    return {"value": generator.standard_normal(50).cumsum().tolist()}


def cells(size: str, seed: int) -> list[Cell]:
    return [Cell(f"cell {k}", {"seed": seed + k}) for k in range(CELLS)]


def rows(results: Any, size: str) -> list[Any]:
    return [Expected(0.0, 1e9, "any").row(result.cell.name, result["value"][-1]) for result in results]


RECIPE = Recipe("faults", "random walks", "nobody", cells, compute, rows)


def draw(store: Path | None, executor: Any, step: float = 1e-3) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(80, 3)
    land = Landscape(model, (x, x.sin().sum(1, keepdim=True)), "gaussian")
    posterior = Posterior(land, (10.0, 30.0), Gaussian(1.0))
    options: dict[str, Any] = {"chains": 2, "draws": DRAWS, "warmup": WARMUP, "seed": 3, "keep": ["positions"]}
    return sample(posterior, SGNHT(step=step, batch=8), store=store, executor=executor, layout="batched", **options)


def walk(store: Path | None, executor: Any) -> Any:
    return RECIPE.run("toy", 0, store, executor)


class Kind:
    """A kind of run: how to make it, and how to hold it against the undisturbed one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.make = {"draws": draw, "recipe": walk}[name]
        self.whole = self.content(self.make(None, Split()))

    def content(self, found: Any) -> dict[str, np.ndarray]:
        if self.name == "recipe":
            return {r.cell.name: np.array(r.value["value"]) for r in found.results if r.value is not None}
        return {**found.arrays, **{f"warmup {name}": array for name, array in found.warmup.items()}}

    def check(self, found: Any) -> tuple[int, int]:
        """Numbers that are lost, and numbers that are wrong."""
        seen = self.content(found)
        lost = wrong = 0
        for name, right in self.whole.items():
            have = seen.get(name, np.empty(0))
            lost += max(right.size - have.size, 0)
            wrong += int((have != right).sum()) if have.shape == right.shape else have.size
        return lost, wrong + sum(array.size for name, array in seen.items() if name not in self.whole)

    def progress(self, folder: Path) -> int:
        part = "cells" if self.name == "recipe" else "chunks"
        return len([p for p in (folder / part).glob("*") if p.suffix in (".json", ".safetensors")])


def forked(work: Any, folder: Path) -> int:
    """Run `work` in a fork; its error goes to a file."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            (folder / "error").write_text(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def message(folder: Path) -> str:
    file = folder / "error"
    text = file.read_text().splitlines()[0] if file.exists() else ""
    return text.replace(str(folder), "DIR")


def wait_for(kind: Kind, store: Path, pid: int, count: int) -> bool:
    """Wait until so much is stored; False when the run ended first."""
    while kind.progress(store) < count:
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            return False
        time.sleep(0.0005)
    return True


def executor_for(kind: Kind, chance: random.Random) -> Any:
    return Processes(2) if chance.random() < 0.5 else Split()


def fault_nan(kind: Kind, folder: Path, chance: random.Random) -> dict[str, Any]:
    """A job among others gives no number: it is told apart, and the others stay."""
    store = folder / "run"
    executor = executor_for(kind, chance)
    if kind.name == "draws":
        try:
            draw(folder / "bad", executor, step=1e3)
        except EstimationError as error:
            said = str(error)
        assert RunStore.open(folder / "bad").status == "failed"
        return {"said": said.splitlines()[0], "found": draw(store, executor)}
    os.environ["BAD_CELL"] = f"cell {chance.randrange(CELLS)}"
    try:
        first = walk(store, executor)
    finally:
        del os.environ["BAD_CELL"]
    assert not first.ok
    assert sum(r.error is None for r in first.results) == CELLS - 1
    return {"said": next(r.error for r in first.results if r.error), "found": walk(store, executor)}


def fault_disk(kind: Kind, folder: Path, chance: random.Random) -> dict[str, Any]:
    """The disk is full after so many bytes; then there is room again."""
    store = folder / "run"
    executor = Split()
    need = {"draws": 90_000, "recipe": 60_000}[kind.name]
    kilobytes = max(int(chance.uniform(0.1, 0.9) * need) // 4096 * 4, 16)
    if mounted(folder, f"size={kilobytes}k"):
        try:
            store = folder / "disk" / "run"
            code = ended(forked(lambda: kind.make(store, executor), folder))
            subprocess.run(["mount", "-o", "remount,size=16m", str(folder / "disk")], check=True)
            return {"said": message(folder), "hit": code != 0, "found": kind.make(store, executor)}
        finally:
            subprocess.run(["umount", str(folder / "disk")], check=False)
    left = [kilobytes * 1024]
    write = os.write

    def full(handle: int, data: Any) -> int:
        part = bytes(data)[: left[0]]
        left[0] -= len(part)
        if not part and len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, part)

    def work() -> None:
        os.write = full
        kind.make(store, executor)

    code = ended(forked(work, folder))
    return {"said": message(folder), "hit": code != 0, "found": kind.make(store, executor)}


def mounted(folder: Path, options: str) -> bool:
    place = folder / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
    )
    return done.returncode == 0


def fault_worker(kind: Kind, folder: Path, chance: random.Random) -> dict[str, Any]:
    """A worker process is killed while it works; another takes its job."""
    store = folder / "run"
    pid = forked(lambda: kind.make(store, Processes(2)), folder)
    killed = 0
    for count in sorted(chance.sample(range(1, 6), 2)):
        if not wait_for(kind, store, pid, count):
            break
        time.sleep(0.01 * chance.random())
        with contextlib.suppress(OSError, IndexError, ValueError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            os.kill(int(chance.choice(children)), signal.SIGKILL)
            killed += 1
    with contextlib.suppress(ChildProcessError):
        code = ended(pid)
        assert code == 0, message(folder)
    return {"said": f"{killed} killed, the run went on", "hit": killed > 0, "found": kind.make(store, Split())}


def fault_driver(kind: Kind, folder: Path, chance: random.Random) -> dict[str, Any]:
    """The driver is killed, three times; the same call goes on each time."""
    store = folder / "run"
    killed = 0
    for _ in range(3):
        before = kind.progress(store)
        pid = forked(lambda: kind.make(store, executor_for(kind, chance)), folder)
        if wait_for(kind, store, pid, before + chance.randint(0, 2)):
            time.sleep(0.02 * chance.random())
            os.kill(pid, signal.SIGKILL)
            killed += ended(pid) == -signal.SIGKILL
    return {"said": f"killed {killed} times", "hit": killed > 0, "found": kind.make(store, Split())}


def fault_corrupt(kind: Kind, folder: Path, chance: random.Random) -> dict[str, Any]:
    """A file of the run is changed: flipped bit, cut off, emptied, or gone. The same call must not give a number."""
    store = folder / "run"
    if chance.random() < 0.5:
        kind.make(store, Split())
    else:  # of a run in the middle
        pid = forked(lambda: kind.make(store, Split()), folder)
        wait_for(kind, store, pid, 4)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            ended(pid)
    parts = {"draws": ("chunks", "groups", "state"), "recipe": ("cells",)}[kind.name]
    names = [p for part in parts for p in (store / part).glob("*") if p.suffix in (".json", ".safetensors")]
    names = [p for p in names if not p.name.startswith(".")]
    listed = set(names) if kind.name == "recipe" else named_files(store)
    victim = chance.choice(sorted(p for p in names if p in listed))
    good = victim.read_bytes()
    how = chance.choice(["flip", "cut", "empty", "gone"] if kind.name == "draws" else ["flip", "cut", "empty"])
    if how == "gone":
        victim.unlink()
    else:
        place = chance.randrange(len(good))
        bad = {
            "flip": good[:place] + bytes([good[place] ^ 1 << chance.randrange(8)]) + good[place + 1 :],
            "cut": good[:place],
            "empty": b"",
        }[how]
        victim.write_bytes(bad)
    try:
        found = kind.make(store, Split())
    except StoreError as error:
        said = str(error).replace(str(folder), "DIR")
        assert victim.name in said or "corrupt" in said, said
    else:  # a change that means nothing, such as a space; or one that was not seen
        return {"said": f"{how} of {victim.suffix} made no difference", "hit": False, "found": found}
    if kind.name == "recipe":
        victim.unlink()  # what the message says: it is computed again
    else:
        shutil.rmtree(store)  # what the message says: it is run again in a new folder
    return {"said": said.splitlines()[0], "found": kind.make(store, Split())}


def named_files(store: Path) -> set[Path]:
    found = set()
    for journal in (store / "groups").glob("g*.json"):
        content = json.loads(journal.read_text())
        entries = [*content["chunks"], *([content["state"]] if content["state"] else [])]
        found |= {journal, *(store / entry["file"] for entry in entries)}
    return found


def fault_writers(kind: Kind, folder: Path, chance: random.Random) -> dict[str, Any]:
    """Two drivers, and a moment later a third, make the same call on one folder."""
    store = folder / "run"
    homes = [folder / str(k) for k in range(3)]
    pids = []
    for home in homes:
        home.mkdir()
        pids.append(forked(lambda: kind.make(store, Split()), home))
        time.sleep(0.02 * chance.random())
    codes = [ended(pid) for pid in pids]
    said = [message(home) for home, code in zip(homes, codes, strict=True) if code]
    assert all("another process" in text for text in said), said
    text = f"{codes.count(0)} ran, {len(said)} refused" + (f": {said[0]}" if said else "")
    return {"said": text.replace(str(folder), "DIR"), "found": kind.make(store, Split())}


def fault_clock(kind: Kind, folder: Path, chance: random.Random) -> dict[str, Any]:
    """The wall clock jumps by years at every look, the times of files are wrong, and the driver is killed meanwhile."""
    store = folder / "run"
    real = time.time

    def work() -> None:
        time.time = lambda: real() + clock.uniform(-1e9, 1e9)
        kind.make(store, type(Split())(until=Deadline(3600)))

    pid = forked(work, folder)
    reached = wait_for(kind, store, pid, 3)
    if reached:
        os.kill(pid, signal.SIGKILL)
        ended(pid)
    for path in [p for p in store.rglob("*") if p.is_file()]:
        then = chance.uniform(0, 4e9)
        os.utime(path, (then, then))
    code = ended(forked(work, folder))
    assert code == 0, message(folder)
    return {"said": "went on", "found": kind.make(store, Split())}


FAULTS = {
    "NaN in a job": fault_nan,
    "disk full": fault_disk,
    "killed worker": fault_worker,
    "killed driver": fault_driver,
    "corrupted file": fault_corrupt,
    "several writers on one folder": fault_writers,
    "clock jumps": fault_clock,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="times that each fault meets each kind of run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(FAULTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Workers are forks of this process, which has everything loaded: a start costs milliseconds.
    end = workers.Worker.end
    workers.get_context = lambda _: multiprocessing.get_context("fork")
    workers.Worker.end = lambda self, *, grace: end(self, grace=0)
    kinds = [Kind("draws"), Kind("recipe")]
    table: dict[str, Any] = {}
    for name, inject in FAULTS.items():
        if options.only not in (None, name):
            continue
        row: dict[str, Any] = {"injected": 0, "without effect": 0, "lost draws": 0, "wrong results": 0, "said": []}
        for kind in kinds:
            chance = random.Random(f"{options.seed} {name} {kind.name}")
            done = tries = 0
            while done < options.rounds and tries < 5 * options.rounds:
                tries += 1
                folder = Path(tempfile.mkdtemp(prefix="faults-"))
                try:
                    outcome = inject(kind, folder, chance)
                    lost, wrong = kind.check(outcome["found"])
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                hit = outcome.get("hit", True)
                done += hit
                row["injected" if hit else "without effect"] += 1
                row["lost draws"] += lost
                row["wrong results"] += wrong
                if hit and len(row["said"]) < 40:
                    row["said"].append(f"{kind.name}: {outcome['said']}")
        row["said"] = sorted({text[:200] for text in row["said"]})[:6]
        table[name] = row
        print(f"{name:<30} { ({k: v for k, v in row.items() if k != 'said'}) }")
        for text in row["said"]:
            print(f"    {text}")
    total = {key: sum(row[key] for row in table.values()) for key in ("injected", "lost draws", "wrong results")}
    print(total)
    if options.only is None:
        record = {
            "command": f"python bench/faults.py --rounds {options.rounds} --seed {options.seed}",
            "date": datetime.now(UTC).date().isoformat(),
            "provenance": provenance(),
            "faults": table,
            "total": total,
        }
        (ROOT / "validation" / "faults.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    sys.exit(0 if not total["lost draws"] and not total["wrong results"] else 1)


if __name__ == "__main__":
    main()
