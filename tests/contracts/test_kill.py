"""A run killed at any moment, or interrupted, and started again ends with the draws of a run that never was.

The runs live in forks of one process that has everything loaded, so that a start costs milliseconds. A run that waits
for a signal does not go on for ever: a few commits after those that the signal is sent behind it stands still. Without
that, where other processes take the processor, it could be over before the signal was sent, and end with code 0.
"""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.heavy

WARM = """
import json, os, random, signal, sys, time, traceback
import multiprocessing
from pathlib import Path

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
from crunode.core import workers
from crunode.core.execute import Processes, Serial
from crunode.core.landscape import Landscape
from crunode.store.run_store import RunStore
from crunode.sampling import layout as layouts
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.run import sample
from crunode.sampling.stochastic import SGNHT

DRAWS, WARMUP = 2100, 300
AHEAD = 2  # commits after which a run stands still


def fork_workers():
    "Fork the workers from this process. They hold each other's channels, and so do not see theirs close."
    end = workers.Worker.end
    workers.get_context = lambda _: multiprocessing.get_context("fork")
    workers.Worker.end = lambda self, *, grace: end(self, grace=0)


def run(executor, layout, store=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(80, 3)
    land = Landscape(model, (x, x.sin().sum(1, keepdim=True)), "gaussian")
    kernel = SGNHT(step=1e-3, batch=8)
    layouts._WORTH_A_WORKER = 2 * 8 * land.activations  # two groups of two chains
    return sample(Posterior(land, (10.0, 30.0), Gaussian(1.0)), kernel, chains=2, draws=DRAWS, warmup=WARMUP, seed=3,
                  store=store, executor=executor, layout=layout, keep=["positions"])


def standing_still(most):
    "Let no commit after the first `most` return; workers are forks, and do the same."
    append = RunStore.append

    def held(self, *arguments):
        append(self, *arguments)
        while commits(self.folder) >= most:
            time.sleep(0.001)

    RunStore.append = held


def forked(executor, layout, store, most=None):
    "Start the run in a fork, and return once a signal would find it there."
    ready, there = os.pipe()
    pid = os.fork()
    if pid:
        os.close(there)
        os.read(ready, 1)
        os.close(ready)
        return pid
    code = 1
    try:
        if most is not None:
            standing_still(most)
        os.write(there, b".")
        run(executor, layout, store)
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(pid):
    "The exit code; a signal that was lost leaves a process that does not end."
    deadline = time.monotonic() + 60
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise SystemExit("the signal was lost: the process went on for a minute after it")
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(found[1])


def commits(store):
    return len(list((Path(store) / "chunks").glob("*.safetensors"))) if (Path(store) / "chunks").exists() else 0


def stopped_by(number, executor, layout, store, more, delay):
    "Start the run and send a signal some time after it has committed `more` chunks."
    before = commits(store)
    pid = forked(executor, layout, store, before + more + AHEAD)
    deadline = time.monotonic() + 60
    while commits(store) < before + more:
        if time.monotonic() > deadline or os.waitpid(pid, os.WNOHANG) != (0, 0):
            raise SystemExit(f"the run ended or stood still by itself after {commits(store) - before} commits")
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(pid, number)
    return ended(pid)


def equal(one, other):
    for arrays, others in ((one.arrays, other.arrays), (one.warmup, other.warmup)):
        assert arrays.keys() == others.keys()
        for name in arrays:
            np.testing.assert_array_equal(arrays[name], others[name], err_msg=name)
    np.testing.assert_array_equal(one.nbeta, other.nbeta)
"""

SCENARIO = """
parent, kind, layout, kills, interrupts = Path(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, sys.argv[4:])
executor, twin = Serial() if kind == "serial" else Processes(workers=2), Serial()
if kind == "forked":
    fork_workers()
whole = run(twin, layout)
chance = random.Random(20)
report = {}
for number, rounds in ((signal.SIGKILL, kills), (signal.SIGINT, interrupts)):
    folder = parent / str(int(number))
    codes, seen = [], []
    for _ in range(rounds):
        codes.append(stopped_by(number, executor, layout, folder, chance.randint(0, 3), 0.02 * chance.random()))
        seen.append(commits(folder))
    if not rounds:
        continue
    code = ended(forked(executor, layout, folder))
    assert code == 0, code
    assert RunStore.open(folder).status == "complete"
    equal(whole, RunStore.open(folder).draws())
    files = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    equal(whole, run(executor, layout, folder))
    assert files == {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}, "sampled again"
    report[int(number)] = {"codes": codes, "seen": seen, "end": commits(folder)}
if kind == "forked":
    pid = forked(executor, layout, parent / "lost")
    while commits(parent / "lost") < 4:
        time.sleep(0.001)
    os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]), signal.SIGKILL)
    assert ended(pid) == 0
    equal(whole, RunStore.open(parent / "lost").draws())
print(json.dumps(report))
"""


def play(scenario, *arguments, timeout=300):
    done = subprocess.run(
        [sys.executable, "-c", WARM + scenario, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("kind", "layout"), [("serial", "sequential"), ("forked", "batched")])
def test_killed_ten_times_and_interrupted_three_times(tmp_path, kind, layout):
    """With workers, one of them is killed too: another takes its place, and the run goes through."""
    if kind == "forked" and sys.platform != "linux":
        pytest.skip("finds the workers in /proc")
    report = play(SCENARIO, tmp_path, kind, layout, 10, 3)
    assert report["9"]["codes"] == [-9] * 10
    assert report["2"]["codes"] == [130] * 3
    for seen in report.values():
        assert 0 < seen["seen"][-1] < seen["end"], "signals have to come while there is work left"


@pytest.mark.slow
def test_killed_with_workers_of_their_own_start(tmp_path):
    report = play(SCENARIO, tmp_path, "spawned", "batched", 1, 0)
    assert report["9"]["codes"] == [-9]
