"""The executor on Ray: its logic with a small fake of the calls it makes, and the real one where it is installed."""

import dataclasses
import importlib.util
import os
import sys
import types

import pytest

from crunode.core import execute_ray
from crunode.core.deadline import Deadline
from crunode.core.execute import Executor, Serial
from crunode.core.execute_ray import Ray
from crunode.errors import DeadlineReached, EstimationError, InputError, MissingExtra


class FakeRay(types.SimpleNamespace):
    """A cluster that runs a task when its result is waited for, and loses those it is told to."""

    def __init__(self, nodes=({"CPU": 2.0},), lose=(), order=min):
        errors = types.SimpleNamespace(RayError=type("RayError", (Exception,), {}))
        errors.RayTaskError = type("RayTaskError", (errors.RayError,), {})
        super().__init__(exceptions=errors, lost=list(lose), order=order, connected=False, most=0)
        self.listed = [{"Alive": True, "Resources": node} for node in nodes]
        self.tasks, self.cancelled, self.begun, self.asked = {}, [], 0, None

    def is_initialized(self):
        return self.connected

    def init(self, address=None, **_):
        if address == "nowhere:1":
            raise ConnectionError("no cluster there\nmore lines")
        self.connected = True

    def nodes(self):
        return self.listed

    def remote(self, fn):
        return types.SimpleNamespace(options=lambda **given: self._options(fn, given))

    def _options(self, fn, given):
        self.asked = given
        return types.SimpleNamespace(remote=lambda *arguments: self._submit(fn, arguments))

    def _submit(self, fn, arguments):
        self.begun += 1
        self.tasks[self.begun] = fn, arguments
        self.most = max(self.most, len(self.tasks))
        return self.begun

    def wait(self, refs, num_returns, timeout):
        assert refs, "Ray refuses to wait for nothing"
        return [self.order(refs)], []

    def get(self, ref):
        fn, arguments = self.tasks.pop(ref)
        if ref in self.lost:
            raise self.exceptions.RayError("The node died.\nDetails")
        return fn(*arguments)

    def cancel(self, ref):
        self.cancelled.append(ref)


@pytest.fixture
def cluster(monkeypatch):
    def made(**settings):
        fake = FakeRay(**settings)
        monkeypatch.setattr(execute_ray, "need", lambda module, extra: fake)
        return fake

    return made


def fail_at_two(x):
    if x == 2:
        raise KeyError("bad 2")
    return x


@pytest.mark.parametrize("order", [min, max])
def test_results_in_order_whatever_comes_first(cluster, order):
    fake = cluster(order=order)
    assert isinstance(Ray(), Executor)
    assert list(Ray().map(abs, range(-9, 0))) == list(range(9, 0, -1))
    assert list(Ray().map(abs, [])) == []
    assert fake.most == 4  # twice the slots
    assert fake.asked == {"num_cpus": 1.0, "num_gpus": 0.0, "max_retries": 0}


@pytest.mark.parametrize("order", [min, max])
def test_error_comes_after_the_results_before_it(cluster, order):
    fake = cluster(order=order)
    results = Ray().map(fail_at_two, range(50))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError, match="bad 2"):
        next(results)
    assert fake.begun < 10 or order is max
    assert set(fake.cancelled) == set(fake.tasks), "what still ran was told to end"


def test_lost_jobs_are_run_again_and_first(cluster):
    fake = cluster(lose=[1, 3, 5])
    assert list(Ray().map(abs, range(6))) == list(range(6))
    assert fake.begun == 9


def test_job_that_is_always_lost_is_named(cluster):
    cluster(lose=range(1, 100))
    with pytest.raises(EstimationError, match=r"job 0 of 1 \(7\) .*ended 3 times \(RayError: The node died.\)"):
        list(Ray(retries=2).map(abs, [7]))


def test_at_most_so_many_at_a_time(cluster):
    fake = cluster(nodes=[{"CPU": 64.0}])
    assert list(Ray(workers=3).map(abs, range(20))) == list(range(20))
    assert fake.most == 3


@pytest.mark.parametrize(
    ("share", "node", "slots"),
    [(0.25, 2.0, 8), (1 / 3, 1.0, 3), (1, 4.0, 4), (2, 3.0, 1), (0.0, 0.0, 6)],
)
def test_gpu_fractions(cluster, share, node, slots):
    fake = cluster(nodes=[{"CPU": 6.0 if not share else 100.0, "GPU": node}])
    list(Ray(gpus_per_job=share).map(abs, range(100)))
    assert fake.most == 2 * slots
    assert fake.asked["num_gpus"] == share


def test_jobs_that_fit_no_node_are_refused_at_once(cluster):
    cluster(nodes=[{"CPU": 2.0}, {"CPU": 4.0}])
    with pytest.raises(InputError, match=r"1 GPUs for a job, got 2 nodes \(2 cores and 0 GPUs"):
        list(Ray(gpus_per_job=1).map(abs, [1]))


def test_deadline_ends_what_has_begun_and_begins_no_more(cluster, monkeypatch):
    fake = cluster()
    until = Deadline(1000)
    results = Ray(until=until).map(abs, range(20))
    assert next(results) == 0
    object.__setattr__(until, "end", 0.0)
    rest = []
    with pytest.raises(DeadlineReached, match="the same command"):
        rest.extend(results)
    assert fake.begun < 8
    assert fake.tasks == {}


def test_no_cluster_and_no_crunode_are_told(cluster):
    fake = cluster()
    with pytest.raises(InputError, match=r"cluster at nowhere:1, got ConnectionError: no cluster there; start"):
        Ray("nowhere:1").map(abs, [1])

    def gone(ref):
        raise fake.exceptions.RayTaskError("Traceback\nModuleNotFoundError: No module named 'crunode'")

    fake.get = gone
    with pytest.raises(EstimationError, match="No module named 'crunode'"):
        list(Ray().map(abs, [1]))


def test_wrong_settings():
    assert dataclasses.replace(Ray(), retries=1).retries == 1
    for wrong in (
        {"retries": -1},
        {"workers": 0},
        {"threads": 1.5},
        {"gpus_per_job": -1},
        {"gpus_per_job": 1.5},
        {"gpus_per_job": float("nan")},
        {"cpus_per_job": 0},
        {"address": ""},
        {"address": 7},
        {"until": 3.0},
    ):
        with pytest.raises(InputError, match=f"expected.*{next(iter(wrong))}"):
            Ray(**wrong)


def test_function_that_cannot_travel_is_refused_before_ray_is_asked_for(monkeypatch):
    def never(module, extra):
        raise AssertionError

    monkeypatch.setattr(execute_ray, "need", never)
    with pytest.raises(InputError, match="top of a module"):
        Ray().map(lambda x: x, [1])


def test_without_ray():
    if "ray" in sys.modules:
        pytest.skip("ray is here")
    try:
        import ray  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match=r"crunode\[ray\]"):
            Ray().map(abs, [1])
    else:
        pytest.skip("ray is here")


@pytest.mark.heavy
def test_the_real_one():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is no part of the development install; bench/ray_cluster.py runs it")
    import ray

    try:
        executor = Ray(address="local", workers=2)
        assert list(executor.map(abs, range(-5, 0))) == list(Serial().map(abs, range(-5, 0)))
        with pytest.raises(TypeError):
            list(executor.map(abs, [1, "x", 2]))
        with pytest.raises(EstimationError, match="ended 2 times"):
            list(Ray(retries=1).map(os._exit, [3]))
    finally:
        ray.shutdown()
