"""Sweeps on a quadratic, where what Langevin steps give is known in closed form, and what they survive."""

import json
import math
import pickle
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core import origin
from crunode.estimators import sweeps
from crunode.estimators.sweep_result import Cell
from crunode.examples.toys import quadratic
from crunode.store.catalog import Catalog
from crunode.store.documents import read_document, write_document

DIM, N = 4, 10_000
H = 2.0  # K(w) = ‖w‖² is h w²/2 in each direction
WBIC = N / math.log(N)
SHORT = {"chains": 2, "draws": 60, "warmup": 20}


def expected(step, precision, nbeta):
    """nβ E[K] of w ← (1 − εa/2) w + N(0, ε) with a = nβh + γ, which has variance 1/(a (1 − εa/4))."""
    a = nbeta * H + precision
    return DIM / 2 * (nbeta * H / a) / (1 - step * a / 4)


@pytest.fixture
def default(monkeypatch):
    """Counts what is estimated, with a short run in place of the default estimate, which takes seconds."""
    calls = []

    def short(landscape, **options):
        calls.append(options.get("nbeta"))
        if "nbeta" not in options:
            options |= {"nbeta": 50.0, "precision": 1.0, "kernel": cr.HMC(step=0.03, leaps=8)}
            options |= {"chains": 16, "draws": 200, "warmup": 30}
        return cr.llc(landscape, **options)

    monkeypatch.setattr(sweeps, "llc", short)
    return calls


def cell(value=2.0, *, point=(1e-4, 1.0, 50.0), se=0.1, systematic=0.0, ok=True, **rest):
    return Cell(*point, value=value, se=se, systematic=systematic, ok=ok, **rest)


def made(values, *, around=(2.0,) * 7, errors=None):
    """A sweep over three steps and as many precisions as there are rows of values."""
    steps, precisions = (1e-5, 1e-4, 1e-3), tuple(10.0**k for k in range(len(values)))
    cells = [
        v if isinstance(v, Cell) else cell(v, point=(step, precision, 50.0))
        for precision, row in zip(precisions, values, strict=True)
        for step, v in zip(steps, row, strict=True)
    ]
    scaled = [(1e-4, 1.0, 50.0)] * 7
    near = [cell(v, point=p) for v, p in zip(around, scaled, strict=True)]
    return cr.Sweep(steps, precisions, (50.0,), tuple(cells), tuple(near), cr.Estimate("llc", 2.0, se=0.1))


@pytest.mark.heavy
def test_step_bias_and_precision_are_those_of_the_closed_form(default):
    steps = [4 * share / (H * WBIC) for share in (0.02, 0.1, 0.3, 0.6)]
    precisions = [1.0, 0.5 * H * WBIC]
    options = {"chains": 24, "draws": 700, "warmup": 200, "seed": 3}
    found = cr.sweep(quadratic(DIM), steps=steps, precisions=precisions, nbetas=[WBIC / 2, WBIC], **options)
    exact = np.array([[[expected(e, g, b) for e in steps] for g in precisions] for b in (WBIC / 2, WBIC)])
    errors = np.array([c.se for c in found.cells]).reshape(exact.shape)
    assert found.values().shape == (2, 2, 4)
    np.testing.assert_array_less(abs(found.values() - exact), 4 * errors + 1e-3 * exact)
    assert (errors < 0.08 * exact).all()
    # The largest step raises the answer by a factor 1/(1 − 0.6), which nobody can take for noise.
    assert found.values()[1, 0, -1] / found.values()[1, 0, 0] == pytest.approx(0.98 / 0.4, rel=0.15)
    assert "MC302" in found.cells[7 + 4].findings


@pytest.mark.heavy
def test_steps_that_diverge_are_marked_and_end_nothing(default):
    with warnings.catch_warnings():
        warnings.simplefilter("error", cr.DiagnosticWarning)
        found = cr.sweep(quadratic(DIM), steps=[1e-5, 1.0], nbetas=[WBIC], **SHORT)
    good, bad = found.cells
    assert not good.diverged
    assert bad.diverged
    assert not bad.ok
    assert math.isnan(bad.value)
    assert "MC204" in bad.findings
    assert all(math.isfinite(y) for _, y in bad.trace)
    assert "diverged" in found.table()
    assert len(default) == 1 + len({c.point for c in (*found.cells, *found.around)})


@pytest.mark.heavy
def test_axes_left_out_stay_at_the_tuners_choice(default):
    land = quadratic(DIM)
    plan = cr.tune(cr.Posterior(land, "wbic"), cr.SGLD(), seed=5)
    found = cr.sweep(land, precisions=[3.0, 0.5], seed=5, **SHORT)
    assert found.precisions == (0.5, 3.0)
    assert (found.steps, found.nbetas) == ((plan.kernel.step,), (pytest.approx(WBIC),))
    assert found.choice.point == (plan.kernel.step, plan.precision, plan.nbeta[0])
    assert found.nearest.precision == 0.5  # nearer to 1 by its logarithm
    for k, axis in enumerate(("step", "precision", "nbeta")):
        seen = [getattr(c, axis) / getattr(found.choice, axis) for c in found.around[1 + 2 * k : 3 + 2 * k]]
        assert seen == pytest.approx([0.5, 2.0])


@pytest.mark.heavy
def test_without_axes_there_is_a_grid_around_the_choice(default):
    found = cr.sweep(quadratic(1), chains=1, draws=8, warmup=2)
    assert [len(axis) for axis in (found.steps, found.precisions, found.nbetas)] == [7, 5, 3]
    assert found.nearest.point == pytest.approx(found.choice.point)
    assert found.steps[0] / found.choice.step == pytest.approx(0.01)
    assert found.steps[-1] / found.choice.step == pytest.approx(10)


@pytest.mark.heavy
def test_kernels_with_a_metropolis_test_tell_their_acceptance(default):
    found = cr.sweep(quadratic(DIM), kernel=cr.MALA(step=1e-4), steps=[1e-5, 3e-3], nbetas=[WBIC], **SHORT)
    easy, hard = (c.accept for c in found.cells)
    assert 0 <= hard < easy <= 1
    assert easy > 0.9
    assert found.choice.step == 1e-4
    assert cr.sweep(quadratic(DIM), steps=[1e-5], **SHORT).cells[0].accept is None


@pytest.mark.heavy
def test_trace_follows_warmup_and_draws(default):
    found = cr.sweep(quadratic(DIM), steps=[1e-5], chains=3, draws=700, warmup=200)
    trace = np.array(found.cells[0].trace)
    assert 100 < len(trace) <= 202
    assert trace[0, 0] < -195
    assert trace[-1, 0] > 690
    assert (np.diff(trace[:, 0]) > 0).all()
    assert trace[trace[:, 0] >= 0, 1].mean() == pytest.approx(found.cells[0].value, rel=1e-3)
    # Chains start at the minimum and have to spread.
    assert trace[0, 1] < 0.2 * found.cells[0].value


class Sent:
    """Sends function and jobs through pickles, as other processes would, and stops after some."""

    def __init__(self, most=None):
        self.most = most

    def map(self, fn, jobs):
        for number, job in enumerate(jobs):
            if number == self.most:
                raise KeyboardInterrupt
            yield pickle.loads(pickle.dumps(fn))(pickle.loads(pickle.dumps(job)))


def content(found):
    """All of a sweep but the seconds that a trial of layouts took, as text, since NaN is not equal to itself."""
    known = found.to_dict()
    del known["estimate"]["spec"]["layout"]
    return json.dumps(known)


@pytest.mark.heavy
def test_interrupted_sweep_goes_on_to_the_same_result(default, tmp_path):
    options = {"steps": [1e-5, 1e-4, 1.0], "nbetas": [WBIC], **SHORT}
    whole = cr.sweep(quadratic(DIM), executor=Sent(), **options)
    computed = len(default)
    assert computed == 11
    with pytest.raises(KeyboardInterrupt):
        cr.sweep(quadratic(DIM), store=tmp_path / "s", executor=Sent(4), **options)
    assert len(list((tmp_path / "s" / "cells").glob("*/manifest.json"))) == 3
    catalog = Catalog(tmp_path)
    assert (catalog.get("s").kind, catalog.get("s").status) == ("sweep", "running")
    again = cr.sweep(quadratic(DIM), store=tmp_path / "s", **options)
    assert len(default) == 2 * computed  # what was finished was not estimated again
    assert content(again) == content(whole)
    assert catalog.get("s").status == "complete"
    third = cr.sweep(quadratic(DIM), store=tmp_path / "s", **options)
    assert len(default) == 2 * computed
    assert json.dumps(third.to_dict()) == json.dumps(again.to_dict())
    more = cr.sweep(quadratic(DIM), store=tmp_path / "s", **options | {"steps": [1e-5, 1e-4, 3e-4, 1.0]})
    assert len(default) == 2 * computed + 1
    assert more.cells[0] == whole.cells[0]


@pytest.mark.heavy
def test_cells_and_table_say_what_they_were_made_by(default, tmp_path, monkeypatch):
    options = {"steps": [1e-5, 1e-4], "store": tmp_path / "s", **SHORT}
    settled = origin._settled()
    monkeypatch.setattr(origin, "_settled", lambda: {**settled, "git": "new"})
    now = cr.sweep(quadratic(DIM), **options)
    assert now.cells[0].provenance["git"] == now.spec["provenance"]["git"] == "new"
    kept = next((tmp_path / "s" / "cells").glob("*.json"))
    content = read_document(kept, "crunode-sweep-record", 1)["record"]
    content["provenance"] |= {"git": "old"}
    write_document(kept, "crunode-sweep-record", 1, {"record": content})
    later = cr.sweep(quadratic(DIM), **options)
    assert set(later.spec["provenance"]["git"]) == {"old", "new"}
    del content["provenance"]  # as older versions wrote it
    write_document(kept, "crunode-sweep-record", 1, {"record": content})
    assert None in cr.sweep(quadratic(DIM), **options).spec["provenance"]["git"]


@pytest.mark.heavy
def test_folder_of_something_else_is_refused(default, tmp_path):
    cr.sweep(quadratic(DIM), steps=[1e-5], store=tmp_path / "s", **SHORT)
    with pytest.raises(cr.StoreMismatch, match="seed: stored 0, asked 1"):
        cr.sweep(quadratic(DIM), steps=[1e-5], store=tmp_path / "s", seed=1, **SHORT)
    with pytest.raises(cr.StoreMismatch, match="landscape"):
        cr.sweep(quadratic(DIM + 1), steps=[1e-5], store=tmp_path / "s", **SHORT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(cr.StoreError, match="expected a new folder"):
        cr.sweep(quadratic(DIM), steps=[1e-5], store=tmp_path / "other", **SHORT)


def test_default_estimate_that_fails_is_not_ok(monkeypatch):
    def fail(landscape, **options):
        if "nbeta" not in options:
            raise cr.EstimationError("no acceptable step")
        return cr.llc(landscape, **options)

    monkeypatch.setattr(sweeps, "llc", fail)
    found = cr.sweep(quadratic(DIM), steps=[1e-5], **SHORT)
    assert not found.ok
    assert found.estimate.diagnostics["error"] == "no acceptable step"
    assert math.isfinite(found.cells[0].value)


def test_plateau_is_the_connected_region_of_the_same_answer():
    far = cell(2.0, point=(1e-5, 100.0, 50.0))
    bad = cell(2.0, point=(1e-3, 1.0, 50.0), ok=False)
    found = made([[2.1, 2.0, bad], [5.0, 2.2, 5.0], [far, 9.0, cell(9.0, systematic=50.0, point=(1e-3, 100.0, 50.0))]])
    # Same answer but cut off; right value but not ok; far off but with a large stated error: all three stay out.
    assert found.plateau().tolist() == [[[True, True, False], [False, True, False], [False, False, False]]]
    assert "plateau           3 of 9 cells: step 1e-05 to 0.0001, precision 1 to 10, nbeta 50" in found.table()
    assert not made([[9.0, 9.0, 9.0]]).plateau().any()
    assert "none" in made([[9.0, 9.0, 9.0]]).table()


def test_sensitivity_is_the_range_over_a_factor_two():
    found = made([[2.0, 2.0, 2.0]], around=(2.0, 1.8, 2.5, 2.0, 2.1, math.nan, 1.5)).sensitivity()
    assert found["step"]["range"] == pytest.approx(0.7)
    assert found["step"]["share"] == pytest.approx(0.35)
    assert found["step"]["se"] == pytest.approx(0.1 * 2**0.5)
    assert found["precision"]["range"] == pytest.approx(0.1)
    assert found["nbeta"]["range"] == pytest.approx(0.5)


def test_content_survives_json():
    bad = cell(math.nan, point=(1e-3, 1.0, 50.0), se=math.nan, ok=False, findings=("MC204",), trace=((-1.5, 3.0),))
    found = made([[2.0, 2.1, bad]])
    known = found.to_dict()
    text = json.dumps(known)
    assert json.dumps(cr.Sweep.from_dict(json.loads(text)).to_dict()) == text
    nulls = json.loads(text.replace("NaN", "null"))
    assert math.isnan(cr.Sweep.from_dict(nulls).cells[2].value)
    with pytest.raises(cr.InputError, match="as to_dict gives it"):
        cr.Sweep.from_dict({"steps": [1.0]})
    with pytest.raises(cr.InputError, match="expected 3 cells"):
        cr.Sweep.from_dict({**known, "cells": known["cells"][:2]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": []}, "expected steps as one or more"),
        ({"steps": [1e-4, -1e-4]}, "expected steps"),
        ({"steps": 1e-4}, "expected steps"),
        ({"steps": [1e-4, 1e-4]}, "expected steps as one or more different"),
        ({"steps": [True]}, "expected steps"),
        ({"steps": "1e-4"}, "expected steps"),
        ({"precisions": [0.0]}, "expected precisions"),
        ({"precisions": [math.nan]}, "expected precisions"),
        ({"nbetas": [math.inf]}, "expected nbetas"),
        ({"nbetas": ["wbic"]}, "expected nbetas"),
        ({"chains": 0}, "expected chains as a whole number from 1 up"),
        ({"draws": 2.5}, "expected draws"),
        ({"warmup": -1}, "expected warmup as a whole number from 0 up"),
        ({"seed": True}, "expected seed"),
        ({"seed": None}, "expected seed"),
        ({"kernel": cr.SGLD}, "expected a kernel such as SGLD"),
        ({"kernel": "SGLD"}, "expected a kernel such as SGLD"),
        ({"kernel": cr.SGLD(step=(1e-4, 1e-5))}, "one step or none"),
        ({"store": 3}, "expected store as the path"),
        ({"executor": "ray"}, "expected an executor"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(monkeypatch, options, message):
    monkeypatch.setattr(sweeps, "tune", lambda *_, **__: pytest.fail("began to work"))
    with pytest.raises(cr.InputError, match=message):
        cr.sweep(quadratic(DIM), **options)


@pytest.mark.parametrize("thing", [None, torch.nn.Linear(2, 1), "model", lambda w: w.sum()])
def test_what_is_no_landscape_is_refused(thing):
    with pytest.raises(cr.InputError, match="expected a Landscape"):
        cr.sweep(thing)


def test_arrays_and_ranges_are_axes_too():
    assert sweeps._axis("steps", np.array([2, 1], dtype=np.float32)) == (1.0, 2.0)
    assert sweeps._axis("steps", range(1, 3)) == (1.0, 2.0)


KILLED = """
import sys, crunode as cr
from crunode.examples.toys import quadratic
found = cr.sweep(quadratic(4), steps=[1e-5, 3e-5, 1e-4], chains=2, draws=4000, warmup=100, store=sys.argv[1])
print([cell.value for cell in found.cells], found.estimate.value)
"""


@pytest.mark.slow
def test_killed_sweep_goes_on_to_the_same_result(tmp_path):
    def start(name):
        words = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path / name)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    whole = start("whole").communicate()[0]
    for count in (1, 2, 4):
        process = start("killed")
        deadline = time.monotonic() + 120
        # In the middle of a cell: its folder is there, its record is not.
        while len(list((tmp_path / "killed" / "cells").glob("*/chunks/*"))) < 30 * count:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert start("killed").communicate()[0] == whole
    assert whole.startswith("[")
