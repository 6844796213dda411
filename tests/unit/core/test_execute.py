import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from crunode.core.execute import Executor, Processes, Serial
from crunode.errors import EstimationError, InputError
from crunode.store.run_store import RunStore

JOBS = """
import os, signal, sys, time
from pathlib import Path
import numpy as np

class Touchy(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

def late_square(x):
    time.sleep(0.05 * (3 - x))
    return x * x

def fail(x):
    if x >= 2:
        if x == 2:
            time.sleep(0.3)
        raise KeyError(f"bad {x}")
    return x

def touchy(x):
    raise Touchy(1, 2)

def local_result(x):
    return lambda: x

def threads(x):
    import torch
    return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

def sums(seed):
    import torch
    x = torch.randn(200, 200, generator=torch.Generator().manual_seed(seed))
    return (x @ x).sum().item()

def die_once(job):
    marker, index = job
    path = Path(marker + str(index))
    if index % 2 and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return index

def die(x):
    if x == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x

def pid_then_sleep(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(60)

def pid(_):
    return os.getpid()

def child(_):
    import multiprocessing
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    return process.exitcode

def run_group(job):
    store, group = job
    chains = store.groups[group]
    found = store.resume(group)
    start = found[1]["step"] if found else 0
    for step in range(start, 4):
        if group == 1 and step == 2 and start == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        excess = np.array([[np.sin(c + step)] for c in chains])
        store.append(group, "draws", {"excess": excess}, {}, {"step": step + 1})
    store.close()
    return group
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "crunode_test_jobs.py").write_text(JOBS)
    sys.path.insert(0, str(folder))
    import crunode_test_jobs

    yield crunode_test_jobs
    sys.path.remove(str(folder))
    del sys.modules["crunode_test_jobs"]


@pytest.fixture(autouse=True)
def no_process_stays():
    yield
    assert multiprocessing.active_children() == []


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.heavy
@pytest.mark.parametrize("executor", [Serial(), Processes(workers=2)])
def test_contract(executor, jobs):
    assert isinstance(executor, Executor)
    assert list(executor.map(jobs.late_square, [0, 1, 2, 3])) == [0, 1, 4, 9]
    assert list(executor.map(jobs.late_square, [])) == []
    seen = []
    with pytest.raises(KeyError, match="bad 2"):
        seen.extend(executor.map(jobs.fail, range(8)))
    seen = executor.map(jobs.fail, range(8))
    assert [next(seen), next(seen)] == [0, 1]
    with pytest.raises(KeyError, match="bad 2"):
        next(seen)


def test_frozen_and_validated():
    assert dataclasses.replace(Processes(), workers=2) == Processes(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Processes().workers = 3
    for wrong in ({"workers": 0}, {"threads": 0}, {"retries": -1}, {"workers": 1.5}, {"workers": True}):
        with pytest.raises(InputError, match=f"expected {next(iter(wrong))} to be an integer"):
            Processes(**wrong)


def test_error_tells_where_in_the_worker(jobs):
    with pytest.raises(KeyError) as error:
        list(Processes(1).map(jobs.fail, [5]))
    (note,) = error.value.__notes__
    assert "In a worker process" in note
    assert "in fail" in note


def test_error_that_cannot_travel_is_told(jobs):
    with pytest.raises(EstimationError, match="Touchy: 1 and 2") as error:
        list(Processes(1).map(jobs.touchy, [5]))
    assert "in touchy" in error.value.__notes__[0]


def test_result_that_cannot_travel(jobs):
    with pytest.raises(InputError, match="result that can be pickled"):
        list(Processes(1).map(jobs.local_result, [5]))


def test_lambda_is_refused_before_anything_starts(jobs):
    with pytest.raises(InputError, match=r"function .*<lambda>.* top of a module"):
        Processes(1).map(lambda x: x, [1])
    with pytest.raises(InputError, match=r"job 0 .*cannot be pickled"):
        Processes(1).map(jobs.fail, [lambda x: x])
    with pytest.raises(InputError, match=r"job 1 .*cannot be pickled"):
        list(Processes(1).map(jobs.fail, [0, lambda x: x]))


def test_function_missing_in_the_worker(jobs, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "jobs" not in entry])
    with pytest.raises(InputError, match="module that can be imported"):
        list(Processes(1).map(jobs.fail, [0]))


@pytest.mark.heavy
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_of_a_worker(jobs, threads):
    assert list(Processes(1, threads=threads).map(jobs.threads, [0])) == [(threads, str(threads))]


@pytest.mark.heavy
def test_results_equal_serial_ones_bit_for_bit(jobs):
    assert list(Processes(2).map(jobs.sums, range(4))) == list(Serial().map(jobs.sums, range(4)))


@pytest.mark.heavy
def test_tensors_of_the_caller_stay_out_of_shared_memory():
    import torch

    x = torch.ones(3)
    (back,) = Processes(1).map(torch.neg, [x])
    assert torch.equal(back, -x)
    assert not x.is_shared()


def test_workers_are_used_again(jobs):
    assert len(set(Processes(1).map(jobs.pid, range(5)))) == 1


def test_job_may_have_processes(jobs):
    assert list(Processes(1).map(jobs.child, [0])) == [0]


@pytest.mark.heavy
def test_killed_workers_are_replaced(jobs, tmp_path):
    work = [(f"{tmp_path}/", index) for index in range(6)]
    assert list(Processes(2).map(jobs.die_once, work)) == list(range(6))


def test_job_that_always_kills_its_worker_is_named(jobs):
    results = Processes(2, retries=1).map(jobs.die, [0, 1, 2])
    assert next(results) == 0
    with pytest.raises(EstimationError, match=r"job 1 of 3 \(1\) .*ended 2 times \(signal 9\)"):
        next(results)


def test_unfinished_iterator_ends_its_workers(jobs):
    results = Processes(2).map(jobs.pid, range(6))
    pid = next(results)
    assert alive(pid)
    results.close()
    assert not alive(pid)


@pytest.mark.heavy
def test_group_of_a_killed_worker_is_continued(jobs, tmp_path):
    groups = [[0, 3], [1], [2]]
    stores = []
    for name, executor in (("serial", None), ("processes", Processes(2))):
        store = RunStore.create(tmp_path / name, spec={}, groups=groups, seed=0, provenance={})
        if executor is None:
            store.resume(1)  # past the step at which the job kills its process
            for step in range(1):
                store.append(1, "draws", {"excess": np.sin([[1.0 + step]])}, {}, {"step": step + 1})
            executor = Serial()
        assert list(executor.map(jobs.run_group, [(store, group) for group in range(3)])) == [0, 1, 2]
        store.finish("complete")
        stores.append(store)
    serial, parallel = (store.read()[0]["excess"] for store in stores)
    assert np.array_equal(serial, parallel)
    assert serial.shape == (4, 4)


SCRIPT = """
import sys
from crunode.core.execute import Processes
sys.path.insert(0, sys.argv[1])
import crunode_test_jobs as jobs
{guard}
    for _ in Processes(2).map({work}):
        pass
"""


def start(jobs, tmp_path, work, guard="if __name__ == '__main__':"):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(work=work, guard=guard))
    command = [sys.executable, str(script), os.path.dirname(jobs.__file__), str(tmp_path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.heavy
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(jobs, tmp_path, ending):
    (tmp_path / "pids").mkdir()
    process = start(jobs, tmp_path, "jobs.pid_then_sleep, [sys.argv[2] + '/pids'] * 2")
    eventually(lambda: len(list((tmp_path / "pids").iterdir())) == 2, seconds=60)
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    process.send_signal(ending)
    _, errors = process.communicate(timeout=20)
    assert ("KeyboardInterrupt" in errors) == (ending == signal.SIGINT)
    eventually(lambda: not any(map(alive, pids)))


@pytest.mark.heavy
def test_script_without_guard_is_told(jobs, tmp_path):
    process = start(jobs, tmp_path, "abs, [1]", guard="if True:")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "start the work of a script under `if __name__ == '__main__':`" in errors


def test_iterator_left_open_does_not_hang_the_exit(jobs, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from crunode.core.execute import Processes\n"
        "if __name__ == '__main__':\n    results = Processes(1).map(abs, [-1, 2, -3])\n"
        "    print(next(results))\n    keep = [results]\n    keep.append(keep)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
