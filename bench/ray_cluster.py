"""Jobs on a Ray cluster of several nodes on this machine, with a node killed in the middle.

    python bench/ray_cluster.py [--jobs 200] [--nodes 3]     needs the extra `ray`

1. The jobs run one after the other in this process: the truth.
2. The same jobs on a fresh cluster of `--nodes` nodes beside the head, one of which is killed (SIGKILL) once a third is
   stored. All results have to be there, and the same bit by bit.
3. A driver process is killed once a third is stored, and started again: finished jobs are read, not computed.
4. Jobs that do nothing, for the overhead of each; and jobs of fixed length on one and on all slots, for the efficiency.

Each job is a short chain on a small network, kept in a file as soon as it is done. Writes validation/ray_cluster.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))


def compute(cell: Any) -> dict[str, Any]:
    import torch
    from torch import nn

    from crunode.core.landscape import Landscape
    from crunode.sampling.posterior import Gaussian, Posterior
    from crunode.sampling.run import sample
    from crunode.sampling.stochastic import SGLD

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(100, 3)
    land = Landscape(model, (x, x.sin().sum(1, keepdim=True)), "gaussian")
    posterior = Posterior(land, cell.settings["nbeta"], Gaussian(1.0))
    options: dict[str, Any] = {"chains": 2, "draws": 300, "warmup": 100, "seed": cell.settings["seed"]}
    drawn = sample(posterior, SGLD(step=1e-3, batch=16), layout="batched", **options)
    where = os.environ.get("COMPUTED")
    if where:  # one line for each time that a job is computed
        with open(where, "a") as file:
            file.write(f"{cell.name}\n")
    return {"excess": drawn.arrays["excess"].tolist()}


def cells(size: str, seed: int) -> list[Any]:
    from crunode.jobs.recipe import Cell

    count = int(os.environ.get("JOBS", "200"))
    return [Cell(f"{k:04d}", {"nbeta": [10.0, 30.0, 100.0][k % 3], "seed": seed + k // 3}) for k in range(count)]


def rows(results: Any, size: str) -> list[Any]:
    return []


def made(store: Path | None, executor: Any) -> list[Any]:
    import ray_cluster  # by its name, so that workers find it

    from crunode.jobs.recipe import Recipe

    recipe = Recipe("ray-cluster", "short chains", "nobody", cells, ray_cluster.compute, rows)
    run = recipe.run("toy", 0, store, executor)
    assert all(result.error is None for result in run.results), [r.error for r in run.results if r.error][:2]
    return [result.value for result in run.results]


def nothing(_: int) -> None:
    pass


def busy(seconds: float) -> float:
    end = time.thread_time() + seconds
    count = 0
    while time.thread_time() < end:
        count += 1
    return seconds


def stored(folder: Path) -> int:
    return len(list((folder / "cells").glob("[0-9a-f]*.json")))


def cluster_of(nodes: int) -> Any:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    added = [cluster.add_node(num_cpus=1) for _ in range(nodes)]
    cluster.wait_for_nodes()
    return cluster, added


def killed_node(options: argparse.Namespace, folder: Path) -> tuple[list[Any], dict[str, Any]]:
    import ray

    from crunode.core.execute_ray import Ray

    start = time.monotonic()
    cluster, added = cluster_of(options.nodes)
    began = time.monotonic() - start
    found: dict[str, Any] = {}

    def kill() -> None:
        while stored(folder) < options.jobs // 3:
            time.sleep(0.01)
        found["at"] = stored(folder)
        cluster.remove_node(added[0], allow_graceful=False)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        start = time.monotonic()
        values = made(folder, Ray(cluster.address, retries=5))
        seconds = time.monotonic() - start
        thread.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    lost = [row for row in log if row["event"] == "worker lost"]
    said = sorted({row["reason"].split(".")[0] for row in lost})
    return values, {
        "cluster_start_s": began,
        "seconds": seconds,
        "stored_when_killed": found["at"],
        "jobs_lost_and_run_again": len(lost),
        "reasons": said,
    }


def killed_driver(options: argparse.Namespace, folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """The driver and its local cluster are killed; the same command goes on."""
    counts = folder.parent / "computed"
    environment = {**os.environ, "JOBS": str(options.jobs), "COMPUTED": str(counts)}
    words = [sys.executable, __file__, "--drive", str(folder)]
    driver = subprocess.Popen(words, env=environment, start_new_session=True)
    while stored(folder) < options.jobs // 3:
        if driver.poll() is not None:
            raise SystemExit("the driver ended by itself")
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = stored(folder)
    time.sleep(5)  # workers of the dead driver may end what they had begun
    after = stored(folder)
    done = subprocess.run(words, env=environment, check=False)
    if done.returncode:
        raise SystemExit("the second driver failed")
    values = json.loads((folder.parent / "values.json").read_text())
    return values, {
        "stored_when_killed": before,
        "stored_after_5s": after,
        "computed_in_all": len(counts.read_text().split()),
    }


def drive(folder: Path) -> None:
    from crunode.core.execute_ray import Ray

    values = made(folder, Ray(address="local", workers=2))
    (folder.parent / "values.json").write_text(json.dumps(values))


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Overhead of a job that does nothing, and efficiency of jobs that take a tenth of a second of a core."""
    import ray
    import ray_cluster

    from crunode.core.execute import Processes, Serial
    from crunode.core.execute_ray import Ray

    cores = len(os.sched_getaffinity(0))
    ray.init(address="local", num_cpus=cores, log_to_driver=False, logging_level="ERROR")
    found: dict[str, Any] = {"cores": cores, "load_average": os.getloadavg()[0]}
    try:
        for name, executor in (("ray", Ray()), ("processes", Processes(cores))):
            list(executor.map(ray_cluster.nothing, range(20)))  # workers are there
            start = time.monotonic()
            list(executor.map(ray_cluster.nothing, range(options.jobs)))
            found[f"{name}_ms_per_empty_job"] = 1000 * (time.monotonic() - start) / options.jobs
        walls: dict[str, list[float]] = {"serial": [], "one": [], "all": []}
        for _ in range(3):
            for name, each in (("serial", Serial()), ("one", Ray(workers=1)), ("all", Ray())):
                start = time.monotonic()
                list(each.map(ray_cluster.busy, [0.1] * 40))
                walls[name].append(time.monotonic() - start)
        best = {name: min(seconds) for name, seconds in walls.items()}
        found |= {"seconds_40_jobs": best, "medians": {n: statistics.median(s) for n, s in walls.items()}}
        found["efficiency_against_serial"] = best["serial"] / (cores * best["all"])
        found["overhead_ms_per_job_one_slot"] = 1000 * (best["one"] - best["serial"]) / 40
    finally:
        ray.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("JOBS", str(options.jobs))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the workers of every node
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    if options.drive is not None:
        drive(options.drive)
        return
    import ray
    import torch

    from crunode.core.execute import Serial
    from crunode.core.result import provenance

    torch.set_num_threads(1)
    start = time.monotonic()
    truth = made(None, Serial())
    serial = time.monotonic() - start
    print(f"serial: {serial:.1f} s")
    record: dict[str, Any] = {
        "command": f"python bench/ray_cluster.py --jobs {options.jobs} --nodes {options.nodes}",
        "date": datetime.now(UTC).date().isoformat(),
        "note": f"all nodes share the {len(os.sched_getaffinity(0))} cores of one machine, which others use too",
        "ray": ray.__version__,
        "jobs": options.jobs,
        "nodes": options.nodes + 1,
        "serial_s": serial,
        "provenance": provenance(),
    }
    with tempfile.TemporaryDirectory() as parent:
        for name, run in (("node killed", killed_node), ("driver killed", killed_driver)):
            folder = Path(parent, name.replace(" ", "-"), "run")
            folder.parent.mkdir()
            values, seen = run(options, folder)
            wrong = sum(a != b for a, b in zip(values, truth, strict=True))
            record[name] = {**seen, "results": len(values), "results_that_differ_from_serial": wrong}
            print(name, json.dumps(record[name], indent=1))
    record["speed"] = speed(options)
    print(json.dumps(record["speed"], indent=1))
    (ROOT / "validation" / "ray_cluster.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
