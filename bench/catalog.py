"""How quick the catalogue of run folders is at 10 000 runs; writes validation/catalog.json.

    python bench/catalog.py [--runs 10000] [--folder DIR]

The runs are copies of one real run of `llc`, with settings, seeds, estimates and tags of their own, so that each has
the manifest, journals, chunks and estimate that a run has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path

import torch

from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode.estimators.coefficient import llc
from crunode.sampling.metropolis import HMC
from crunode.store.catalog import Catalog
from crunode.store.catalog_index import INDEX
from crunode.store.documents import plain, read_document, write_document

ROOT = Path(__file__).resolve().parents[1]
WRITER = """
import sys
from crunode.store.catalog import Catalog

catalog = Catalog(sys.argv[1])
print("ready", flush=True)
while True:
    catalog.tag(sys.argv[2], "x")
    catalog.untag(sys.argv[2], "x")
"""


def real_run(folder: Path) -> None:
    land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(4), n=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        llc(
            land,
            nbeta="wbic",
            kernel=HMC(step=1e-3, leaps=4),
            precision=1.0,
            chains=4,
            draws=100,
            warmup=50,
            store=folder,
        )


def fill(root: Path, runs: int) -> None:
    """Copies of a run, in folders of a hundred."""
    template = root / "template"
    real_run(template)
    manifest = read_document(template / "manifest.json", "crunode-run", 1)
    estimate = read_document(template / "estimates" / "llc.json", "crunode-estimate", 1)["estimate"]
    for k in range(runs):
        home = root / f"batch{k // 100:03d}" / f"run{k:05d}"
        shutil.copytree(template, home)
        spec = {
            **manifest["spec"],
            "chains": 4 + k % 5,
            "kernel": {"name": ("HMC", "SGLD", "MALA")[k % 3], "step": 1e-3},
        }
        status = ("complete", "complete", "failed")[k % 3]
        write_document(
            home / "manifest.json", "crunode-run", 1, {**manifest, "seed": k, "spec": spec, "status": status}
        )
        own = {**estimate, "value": 2.0 + k % 7 * 0.01, "seed": k}
        write_document(home / "estimates" / "llc.json", "crunode-estimate", 1, {"estimate": plain(own)})
    shutil.rmtree(template)


def timed(work, repeats: int) -> dict:
    times, own = [], []
    for _ in range(repeats):
        start, busy = time.perf_counter(), time.process_time()
        found = work()
        times.append(time.perf_counter() - start)
        own.append(time.process_time() - busy)
    return {
        "median_ms": 1e3 * statistics.median(times),
        "worst_ms": 1e3 * max(times),
        "median_cpu_ms": 1e3 * statistics.median(own),
        "repeats": repeats,
        "found": len(found) if isinstance(found, list) else found,
    }


def killed_writers(root: Path, names: list[str], kills: int) -> dict:
    """Kill one of two writers over and over; the index must be whole and agree with the folders."""
    other = subprocess.Popen([sys.executable, "-c", WRITER, root, names[0]], stdout=subprocess.PIPE)
    other.stdout.readline()
    whole = 0
    for k in range(kills):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, root, names[1]], stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(0.02 + 0.013 * k)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        with sqlite3.connect(root / INDEX, timeout=30) as index:
            whole += index.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    alive = other.poll() is None
    other.send_signal(signal.SIGKILL)
    other.wait()
    catalog = Catalog(root)
    before = [run.to_dict() for run in catalog.list()]
    catalog.rebuild()
    same = before == [run.to_dict() for run in catalog.list()]
    return {"kills": kills, "index_whole": whole, "other_writer_went_on": alive, "same_as_rebuilt": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    os.fsync = lambda handle: None  # the copies need not survive a power cut
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder)
        fill(root, options.runs)
        first = timed(lambda: Catalog(root).count(), 1)
        catalog = Catalog(root)
        days = {"since": "2020-01-01", "until": "2099-01-01"}
        catalog.tag("batch000/run00007", "best")
        figures = {
            "build without an index": first,
            "rebuild": timed(lambda: str(catalog.rebuild()), 3),
            "refresh, nothing changed": timed(lambda: str(catalog.refresh()), 5),
            "list all": timed(lambda: catalog.list(), 20),
            "list 50, newest first": timed(lambda: catalog.list(order="updated", descending=True, limit=50), 20),
            "filter kind and ok": timed(lambda: catalog.list(kind="draws", ok=True), 20),
            "filter status": timed(lambda: catalog.list(status="failed"), 20),
            "filter name": timed(lambda: catalog.list(name="run0012*"), 20),
            "filter tag": timed(lambda: catalog.list(tag="best"), 20),
            "filter date": timed(lambda: catalog.list(**days), 20),
            "filter setting": timed(lambda: catalog.list(where={"kernel.name": "HMC", "chains": 6}), 20),
        }
        index_bytes = (root / INDEX).stat().st_size
        kills = killed_writers(root, ["batch000/run00001", "batch000/run00002"], options.kills)
    result = {
        "command": "python bench/catalog.py" + (f" --runs {options.runs}" if options.runs != 10_000 else ""),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": {**provenance(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0]},
        "runs": options.runs,
        "index_bytes": index_bytes,
        "figures": figures,
        "killed_writers": kills,
    }
    for name, row in figures.items():
        times = "  ".join(f"{key} {row[key]:.1f}" for key in ("median_ms", "worst_ms", "median_cpu_ms"))
        print(f"{name:<26} {times}  {row['found']}")
    print(kills, f"index {index_bytes / 1e6:.1f} MB")
    if options.runs == 10_000:
        (ROOT / "validation" / "catalog.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
