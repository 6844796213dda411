import functools
import itertools
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import crunode as cr
from crunode.core.execute import Processes
from crunode.core.result import Estimate
from crunode.curvature.traces import hessian_trace
from crunode.errors import DiagnosticWarning, EstimationError, InputError, StoreError, StoreMismatch
from crunode.store.documents import dumps
from crunode.training.checkpoints import save_checkpoint
from crunode.training.probes import held
from crunode.training.schedules import Every, Steps, every, log_spaced
from crunode.training.tracker import Tracker, track

X = torch.linspace(-1, 1, 24).reshape(-1, 2)
Y = X.sum(1, keepdim=True).tanh()


CALLS = []  # a global, as what a probe holds is part of what a store knows of it


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def landscape():
    return cr.Landscape(network(), (X, Y), "gaussian")


def loss(land):
    return Estimate("loss", float(land.loss()), se=0.0)


def noisy(land, seed):
    shift = float(np.random.default_rng(seed).normal())
    return Estimate("noisy", float(land.loss()) + 0.1 * shift, se=0.1, seed=seed)


def tuned(land, width=None):
    """Chooses its width by what it sees, unless one is given."""
    found = round(float(land.loss()), 6) if width is None else width
    return Estimate("tuned", float(land.center.norm()) * found, se=0.0, spec={"width": found})


HELD = held(tuned, lambda estimate: {"width": estimate.spec["width"]})


def steps_of(count, tracker, seed=0, start=0, net=None):
    """A plain loop."""
    net = network(seed) if net is None else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(1, count + 1):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(X), Y).backward()
        optimizer.step()
        if step > start:
            tracker.visit(step, net)
    return net


def text(trajectory):
    return dumps(trajectory.to_dict())


@pytest.mark.parametrize(
    ("count", "start", "stop"), [(2, 0, 1), (10, 1, 10), (40, 1, 50_000), (17, 0, 300), (3, 7, 90)]
)
def test_log_spaced_steps_are_different_and_end_where_asked(count, start, stop):
    found = log_spaced(count, start=start, stop=stop).steps
    assert len(set(found)) == count
    assert (found[0], found[-1]) == (start, stop)
    assert list(found) == sorted(found)
    late = [b / a for a, b in itertools.pairwise(found) if a > 100]
    assert not late or max(late) / min(late) < 1.02


@pytest.mark.parametrize("bad", [{"count": 1}, {"stop": 0}, {"count": 9, "stop": 7}, {"start": -1}, {"count": 2.5}])
def test_schedules_refuse_nonsense(bad):
    with pytest.raises(InputError, match="expected"):
        log_spaced(bad.pop("count", 3), **{"stop": 100} | bad)
    for wrong in ((), (3, 3), (2, 1), (-1, 2), (1.5,), (True, 2)):
        with pytest.raises(InputError, match="expected steps"):
            Steps(wrong)
    for stride in (0, 1.5, True):
        with pytest.raises(InputError, match="expected the steps between"):
            every(stride)


def test_a_step_is_due_when_a_scheduled_one_was_reached():
    seen = [step for last, step in zip([-1, 3, 6, 9], [3, 6, 9, 12], strict=True) if Steps((2, 7, 8)).due(last, step)]
    assert seen == [3, 9]
    assert [step for step in range(21) if Every(10).due(step - 1, step)] == [0, 10, 20]


def test_it_measures_at_the_steps_asked_for_and_at_the_weights_of_then():
    tracker = Tracker(landscape(), {"loss": loss, "noisy": noisy}, at=[1, 4, 9], seed=5)
    net = network()
    seen = {}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(12):
        seen[step] = float(cr.Landscape(net, (X, Y), "gaussian").loss())
        tracker.visit(step, net)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(X), Y).backward()
        optimizer.step()
    found = tracker.trajectory
    assert found.steps == (1, 4, 9)
    assert found.values("loss") == pytest.approx([seen[1], seen[4], seen[9]], rel=1e-6)
    assert found.loss == pytest.approx([seen[1], seen[4], seen[9]], rel=1e-6)
    seeds = [estimate.seed for estimate in found["noisy"]]
    assert len(set(seeds)) == 3
    assert seeds == [estimate.seed for estimate in again_with_seed(5)["noisy"]]
    assert seeds[0] != again_with_seed(6)["noisy"][0].seed


def again_with_seed(seed):
    tracker = Tracker(landscape(), {"noisy": noisy}, at=[1, 4, 9], seed=seed)
    steps_of(9, tracker)
    return tracker.trajectory


def test_a_seed_that_is_bound_stays():
    tracker = Tracker(landscape(), {"noisy": functools.partial(noisy, seed=3)}, at=[1, 2])
    steps_of(2, tracker)
    assert [estimate.seed for estimate in tracker.trajectory["noisy"]] == [3, 3]


def test_steps_that_are_not_due_cost_next_to_nothing():
    class Trap:
        def __getattr__(self, name):
            raise AssertionError(f"looked at {name}")

    tracker = Tracker(landscape(), {"loss": loss}, at=[1000])
    for step in range(1000):
        tracker.visit(step, Trap())
    assert len(tracker.trajectory) == 0


def test_modules_state_dicts_and_vectors_are_the_same():
    net, found = network(3), []
    vector = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    for weights in (net, net.state_dict(), vector):
        tracker = Tracker(landscape(), {"loss": loss})
        tracker.visit(7, weights)
        found.append(text(tracker.trajectory))
    assert found[0] == found[1] == found[2]


def test_nothing_of_the_callers_changes():
    def careless(land):
        torch.manual_seed(3)
        np.random.seed(4)  # noqa: NPY002
        return Estimate("careless", float(torch.randn(())), se=0.0)

    def run(visits):
        net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        torch.manual_seed(0)
        for p in net.parameters():
            nn.init.normal_(p)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        tracker = Tracker(cr.Landscape(net, (X, Y), "gaussian"), {"careless": careless})
        torch.manual_seed(1)
        for step in range(6):
            nn.functional.mse_loss(net(X), Y).backward()
            if visits:
                grads = [p.grad.clone() for p in net.parameters()]
                tracker.visit(step, net)
                assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), grads, strict=True))
                assert all(module.training for module in net.modules())
            optimizer.step()
        return net.state_dict()

    with_visits, without = run(True), run(False)
    assert all(torch.equal(value, without[name]) for name, value in with_visits.items())


@pytest.mark.parametrize("steps", [(3, 3), (5, 4)])
def test_steps_out_of_order_or_repeated_are_refused(steps):
    tracker = Tracker(landscape(), {"loss": loss}, at=every(10))
    tracker.visit(steps[0], network())
    with pytest.raises(InputError, match="ascending order"):
        tracker.visit(steps[1], network())


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", None])
def test_steps_are_whole_numbers(step):
    with pytest.raises(InputError, match="whole number from 0 up"):
        Tracker(landscape(), {"loss": loss}).visit(step, network())


@pytest.mark.parametrize("weights", [nn.Linear(2, 1), {"0.weight": torch.zeros(3, 2)}, torch.zeros(4), 3, None])
def test_weights_of_something_else_are_refused(weights):
    tracker = Tracker(landscape(), {"loss": loss})
    with pytest.raises(InputError, match="expected"):
        tracker.visit(0, weights)


@pytest.mark.parametrize(
    "bad",
    [
        {"probes": {}},
        {"probes": [loss]},
        {"probes": {"a": 3}},
        {"probes": {"": loss}},
        {"at": "often"},
        {"at": 10},
        {"seed": -1},
        {"seed": True},
        {"on_failure": "ignore"},
        {"executor": 3},
        {"landscape": network()},
        {"retune_at": 3.5},
        {"loggers": [print]},
    ],
)
def test_wrong_arguments_are_told(bad):
    given = {"landscape": landscape(), "probes": {"loss": loss}} | bad
    with pytest.raises(InputError, match="expected"):
        Tracker(**given)


def test_a_failure_is_kept_and_the_trajectory_goes_on(tmp_path):
    CALLS.clear()

    def fragile(land):
        CALLS.append(1)
        if len(CALLS) == 2:
            raise ArithmeticError("no good")
        return loss(land)

    tracker = Tracker(landscape(), {"loss": loss, "fragile": fragile}, at=[1, 2, 3], store=tmp_path / "a")
    with pytest.warns(DiagnosticWarning, match="'fragile' failed at step 2: ArithmeticError: no good"):
        steps_of(3, tracker)
    found = tracker.trajectory
    assert found.failures() == [(2, "fragile", "ArithmeticError: no good")]
    assert found.ok("fragile").tolist() == [True, False, True]
    assert found.ok("loss").all()
    assert np.isnan(found.values("fragile")[1])
    assert "failed at step 2: ArithmeticError: no good" in found.table()
    again = Tracker(landscape(), {"loss": loss, "fragile": fragile}, at=[1, 2, 3], store=tmp_path / "a")
    assert text(again.trajectory) == text(found)


def test_a_failure_keeps_what_was_computed_before():
    def half(land):
        raise EstimationError("chain 2 left", partial=Estimate("llc", 3.0, se=0.5))

    tracker = Tracker(landscape(), {"half": half})
    with pytest.warns(DiagnosticWarning, match="chain 2 left"):
        tracker.visit(0, network())
    (kept,) = tracker.trajectory["half"]
    assert (kept.value, kept.ok) == (3.0, False)
    with pytest.raises(InputError, match="at least 6"):
        tracker.trajectory.transitions("half", only_ok=False)


@pytest.mark.parametrize("wrong", [3.5, None, "text"])
def test_a_probe_that_returns_no_estimate_has_failed(wrong):
    tracker = Tracker(landscape(), {"odd": lambda land: wrong})
    with pytest.warns(DiagnosticWarning, match="expected an Estimate from a probe"):
        tracker.visit(0, network())
    assert not tracker.trajectory.is_ok


def test_failures_can_be_raised_and_weights_that_are_not_finite_are_failures(tmp_path):
    strict = Tracker(landscape(), {"bad": lambda land: 1 / 0}, on_failure="raise", store=tmp_path / "a")
    with pytest.raises(EstimationError, match="'bad' failed at step 0: ZeroDivisionError"):
        strict.visit(0, network())
    assert not list((tmp_path / "a" / "visits").glob("*.json"))
    broken = network()
    with torch.no_grad():
        broken[0].weight[0, 0] = torch.nan
    tracker = Tracker(landscape(), {"loss": loss})
    with pytest.warns(DiagnosticWarning, match="non-finite values"):
        tracker.visit(1, broken)
    tracker.visit(2, network())
    assert tracker.trajectory.ok("loss").tolist() == [False, True]


def test_settings_are_tuned_once_held_and_recorded():
    tracker = Tracker(landscape(), {"tuned": HELD}, at=[1, 2, 3, 4], retune_at=[3])
    net = steps_of(4, tracker)
    found = tracker.trajectory["tuned"]
    widths = [estimate.spec["width"] for estimate in found]
    assert widths[0] == widths[1] != widths[2] == widths[3]
    assert [estimate.spec["held"]["since"] for estimate in found] == [1, 1, 3, 3]
    assert all(estimate.spec["held"]["settings"] == {"width": estimate.spec["width"]} for estimate in found)
    free = Tracker(landscape(), {"tuned": tuned})
    free.visit(4, net)
    assert free.trajectory["tuned"][0].spec["width"] != widths[3]


def test_a_failed_first_visit_leaves_tuning_to_the_next():
    seen = []

    def late(land, width=None):
        seen.append(width)
        if len(seen) == 1:
            raise ArithmeticError
        return tuned(land, width)

    tracker = Tracker(landscape(), {"late": held(late, HELD.held_settings)})
    with pytest.warns(DiagnosticWarning, match="failed at step 1"):
        steps_of(3, tracker)
    first = tracker.trajectory["late"][1].spec["width"]
    assert seen == [None, None, first, first]  # the visit that tunes is made twice


@pytest.mark.heavy
def test_llc_keeps_step_precision_and_nbeta_of_the_first_visit(tmp_path):
    probe = functools.partial(cr.llc, nbeta=20.0, kernel=cr.SGLD(), chains=2, draws=20, warmup=10, labels="given")
    tracker = Tracker(landscape(), {"llc": probe}, at=[1, 9, 18], store=tmp_path / "a", seed=2)
    steps_of(18, tracker)
    specs = [estimate.spec for estimate in tracker.trajectory["llc"]]
    assert [spec["kernel"] for spec in specs] == [specs[0]["kernel"]] * 3
    assert len({spec["precision"] for spec in specs}) == 1
    assert all(spec["held"]["since"] == 1 for spec in specs)
    # Tuning anew would have given another step.
    assert llc_alone(probe, 18)["kernel"]["step"] != specs[0]["kernel"]["step"]
    # A tracker that goes on from the folder uses the same settings.
    (tmp_path / "a" / "visits" / "step-00000018.json").unlink()
    again = Tracker(landscape(), {"llc": probe}, at=[1, 9, 18], store=tmp_path / "a", seed=2)
    steps_of(18, again)
    assert again.trajectory.values("llc").tolist() == tracker.trajectory.values("llc").tolist()


def llc_alone(probe, step):
    tracker = Tracker(landscape(), {"llc": probe}, at=[step], seed=2)
    steps_of(step, tracker)
    return tracker.trajectory["llc"][0].spec


def test_a_store_resumes_and_replayed_steps_are_not_measured_again(tmp_path):
    whole = Tracker(landscape(), {"noisy": noisy, "tuned": HELD}, at=every(3), seed=1)
    steps_of(20, whole)
    part = Tracker(landscape(), {"noisy": noisy, "tuned": HELD}, at=every(3), seed=1, store=tmp_path / "a")
    steps_of(11, part)
    rest = Tracker(landscape(), {"noisy": noisy, "tuned": HELD}, at=every(3), seed=1, store=tmp_path / "a")
    steps_of(20, rest, start=4)  # the training went on from an earlier checkpoint
    assert text(rest.trajectory) == text(whole.trajectory)
    done = Tracker(landscape(), {"noisy": noisy, "tuned": HELD}, at=every(3), seed=1, store=tmp_path / "a")
    assert text(done.trajectory) == text(whole.trajectory)


def test_a_store_of_another_tracker_is_refused(tmp_path):
    steps_of(4, Tracker(landscape(), {"noisy": noisy}, at=every(2), seed=1, store=tmp_path / "a"))
    for other, words in (
        ({"seed": 2}, "seed: stored 1, asked 2"),
        ({"at": every(3)}, "at.stride: stored 2, asked 3"),
        ({"probes": {"loss": loss}}, "probes.noisy: stored"),
        ({"probes": {"noisy": functools.partial(noisy, seed=1)}}, "probes.noisy.settings: stored nothing"),
        ({"landscape": cr.Landscape(network(), (X, 2 * Y), "gaussian")}, "landscape.data: stored"),
        ({"retune_at": [1]}, "retune_at"),
    ):
        given = {"landscape": landscape(), "probes": {"noisy": noisy}, "at": every(2), "seed": 1} | other
        with pytest.raises(StoreMismatch, match="settings differ") as caught:
            Tracker(**given, store=tmp_path / "a")
        assert words in str(caught.value)
    other = Tracker(landscape(), {"noisy": noisy}, at=every(2), seed=1, store=tmp_path / "a")
    with pytest.raises(StoreMismatch, match=r"step 2 .* other weights"):
        steps_of(4, other, seed=9)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("x")
    with pytest.raises(StoreError, match="holds other files"):
        Tracker(landscape(), {"noisy": noisy}, store=tmp_path / "b")


def test_corrupt_visits_are_named(tmp_path):
    steps_of(4, Tracker(landscape(), {"noisy": noisy}, at=every(2), store=tmp_path / "a"))
    path = tmp_path / "a" / "visits" / "step-00000002.json"
    path.write_text(path.read_text().replace('"value": ', '"value": 1'))
    with pytest.raises(StoreError, match=r"step-00000002.json is corrupt"):
        Tracker(landscape(), {"noisy": noisy}, at=every(2), store=tmp_path / "a")


KILLED = """
    import os, signal
    import numpy as np
    import torch
    from torch import nn
    import crunode as cr
    from crunode.training.schedules import every
    from crunode.training.tracker import Tracker

    CALLS = []
    X = torch.linspace(-1, 1, 24).reshape(-1, 2)
    Y = X.sum(1, keepdim=True).tanh()

    def noisy(land, seed):
        CALLS.append(1)
        if len(CALLS) == 5 and "CRUNODE_TEST_KILL" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return cr.Estimate("noisy", float(land.loss()) + float(np.random.default_rng(seed).normal()), se=1.0)

    def run(home):
        torch.manual_seed(0)
        net = nn.Linear(2, 1)
        tracker = Tracker(cr.Landscape(net, (X, Y), "gaussian"), {"noisy": noisy}, at=every(4), store=home + "/visits")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(1, 37):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(X), Y).backward()
            optimizer.step()
            tracker.visit(step, net)
        return tracker.trajectory

    """


@pytest.mark.heavy
def test_a_training_killed_and_made_again_gives_the_same_trajectory(tmp_path, monkeypatch):
    (tmp_path / "killed_loop.py").write_text(textwrap.dedent(KILLED))
    monkeypatch.syspath_prepend(tmp_path)
    import killed_loop

    command = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from killed_loop import run; run(sys.argv[1])"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CRUNODE_TEST_KILL": "1"}
    words = [sys.executable, "-c", command, str(tmp_path / "killed")]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    kept = sorted(path.name for path in (tmp_path / "killed" / "visits" / "visits").glob("*.json"))
    assert kept == [f"step-{step:08d}.json" for step in (4, 8, 12, 16)]  # all but the one in progress
    resumed = killed_loop.run(str(tmp_path / "killed"))
    whole = killed_loop.run(str(tmp_path / "whole"))
    assert text(resumed) == text(whole)
    assert whole.steps == tuple(range(4, 37, 4))


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of steps 0, 3, ..., 18 of a training."""
    home = tmp_path / "training"

    class Keeper:
        def visit(self, step, net):
            if step % 3 == 0:
                save_checkpoint(home / "checkpoints", step, net)

    save_checkpoint(home / "checkpoints", 0, network())
    steps_of(18, Keeper())
    (home / "training.json").write_text("{}")  # tells that it is the folder of a training
    return home


def test_afterwards_from_checkpoints_is_the_same_as_along_the_way(tmp_path, folder):
    probes = {"noisy": noisy, "tuned": HELD}
    tracker = Tracker(landscape(), probes, at=[3, 9, 12], seed=4, retune_at=[12])
    steps_of(18, tracker)
    along = tracker.trajectory
    assert along.steps == (3, 9, 12)
    settings = {"at": [3, 9, 12], "seed": 4, "retune_at": [12]}
    assert text(track(landscape(), folder, probes, **settings)) == text(along)
    assert text(track(landscape(), folder / "checkpoints", probes, **settings)) == text(along)
    # Interrupted after the first visit, and resumed.
    CALLS.clear()

    def interrupted(land, seed):
        CALLS.append(1)
        if len(CALLS) == 2:
            raise KeyboardInterrupt
        return noisy(land, seed)

    store = tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        track(landscape(), folder, {"noisy": interrupted}, **settings, store=store)
    assert len(list((store / "visits").glob("*.json"))) == 1
    found = track(landscape(), folder, {"noisy": interrupted}, **settings, store=store)
    assert found.values("noisy").tolist() == along.values("noisy").tolist()


@pytest.mark.heavy
def test_all_checkpoints_in_other_processes(folder):
    assert track(landscape(), folder, {"loss": loss}).steps == (0, 3, 6, 9, 12, 15, 18)
    probe = functools.partial(hessian_trace, tolerance=0.5)  # functions of this file are not found there
    serial, spread = (
        track(landscape(), folder, {"trace": probe}, at=[3, 9, 15], executor=executor)
        for executor in (None, Processes(workers=1))
    )
    assert text(spread) == text(serial)
    with pytest.raises(InputError, match="cannot be pickled"):
        track(landscape(), folder, {"loss": lambda land: loss(land)}, executor=Processes(workers=1))


def test_a_lost_worker_is_a_failure_of_its_probe(folder):
    class Losing:
        def map(self, fn, jobs):
            for job in jobs:
                if job.step == 6 and job.name == "noisy":
                    raise EstimationError("its worker process ended 3 times")
                yield fn(job)

    with pytest.warns(DiagnosticWarning, match="'noisy' failed at step 6"):
        found = track(landscape(), folder, {"noisy": noisy, "loss": loss}, executor=Losing())
    assert found.steps == (0, 3, 6, 9, 12, 15, 18)
    assert [failure[:2] for failure in found.failures()] == [(6, "noisy")]
    assert found.ok("loss").all()


def test_damaged_folders_are_told_and_the_rest_is_used_when_asked(folder):
    home = folder / "checkpoints"
    (home / "notes.txt").write_text("mine")
    broken = home / "step-00000006.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1] + b"\x00")  # a flipped byte, which sizes do not tell
    for path in home.glob("step-00000012*"):
        path.unlink()
    (home / "step-000000015.json").write_bytes((home / "step-00000015.json").read_bytes())
    save_checkpoint(home, 21, nn.Linear(5, 5))
    with pytest.raises(StoreError) as caught:
        track(landscape(), folder, {"loss": loss})
    for words in (
        "notes.txt is no file of a checkpoint",
        "step 6 does not count",
        "step 12 is gone",
        "step-000000015.json repeats step 15",
        "step 21 does not count: expected weights of the landscape's model",
        "damaged='skip'",
    ):
        assert words in str(caught.value)
    with pytest.warns(DiagnosticWarning, match="left out"):
        found = track(landscape(), folder, {"loss": loss}, damaged="skip")
    assert found.steps == (0, 3, 9, 15, 18)
    assert [finding.code for finding in found.findings] == ["TRACK902"]


def test_what_a_running_or_killed_training_leaves_is_no_damage(folder):
    home = folder / "checkpoints"
    (home / "step-00000021.safetensors.tmp").write_bytes(b"")
    (home / "step-00000021.state.safetensors").write_bytes(b"")
    assert track(landscape(), folder, {"loss": loss}).steps[-1] == 18


def test_files_of_other_libraries(tmp_path):
    save_file(network(1).state_dict(), tmp_path / "model-5.safetensors")
    torch.save(network(2).state_dict(), tmp_path / "model-20.pt")
    (tmp_path / "checkpoint-100").mkdir()
    save_file(network(3).state_dict(), tmp_path / "checkpoint-100" / "model.safetensors")
    found = track(landscape(), tmp_path, {"loss": loss})
    expected = [float(cr.Landscape(network(k), (X, Y), "gaussian").loss()) for k in (1, 2, 3)]
    assert found.steps == (5, 20, 100)
    assert found.values("loss") == pytest.approx(expected, rel=1e-6)
    torch.save(network(4).state_dict(), tmp_path / "other_005.pt")
    (tmp_path / "last-300.pt").write_bytes(b"nothing")
    torch.save({"net": network(1)}, tmp_path / "whole-400.pt")
    with pytest.raises(StoreError, match="step 5 does not count: it is there more than once"):
        track(landscape(), tmp_path, {"loss": loss})
    with pytest.warns(DiagnosticWarning, match=r"last-300.pt could not be read") as seen:
        assert track(landscape(), tmp_path, {"loss": loss}, damaged="skip").steps == (20, 100)
    assert "whole-400.pt" in str(seen[0].message)


def test_folders_without_anything_to_use(tmp_path, folder):
    with pytest.raises(InputError, match="which is none"):
        track(landscape(), tmp_path / "nowhere", {"loss": loss})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="got none"):
        track(landscape(), tmp_path / "empty", {"loss": loss})
    with pytest.raises(InputError, match="that are due, got none of 7"):
        track(landscape(), folder, {"loss": loss}, at=[1000])
    with pytest.raises(InputError, match="damaged as"):
        track(landscape(), folder, {"loss": loss}, damaged="maybe")
