import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.jobs import registry
from crunode.jobs.registry import recipe
from crunode.jobs.rerunning import plan_rerun, record_call, rerun
from crunode.sampling.metropolis import HMC, MALA
from crunode.sampling.posterior import Flat, Gaussian, Posterior
from crunode.sampling.run import sample
from crunode.sampling.stochastic import SGLD
from crunode.store.atomic import digest
from crunode.store.calls import read_call, write_call
from crunode.store.run_store import RunStore


def bowl(scale=1.0):
    return Landscape.of_function(lambda w: scale * w.square().sum(), torch.zeros(2), n=100)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    points = [metadata.EntryPoint("tiny", "tiny_recipe:RECIPE", registry.GROUP)]
    monkeypatch.setattr(registry, "_points", lambda: points)


def test_a_recipe_is_run_again_by_name_size_and_seed(tiny, tmp_path):
    first = recipe("tiny").run(seed=5, store=tmp_path / "a")
    again = rerun(tmp_path / "a", tmp_path / "b")
    assert again.rows == first.rows
    assert plan_rerun(tmp_path / "a").words == "crunode recipe run tiny --size toy --seed 5"


def test_a_recipe_of_another_version_is_refused(tiny, tmp_path):
    recipe("tiny").run(store=tmp_path / "a")
    path = tmp_path / "a" / "recipe.json"
    body = json.loads(path.read_bytes())
    del body["sha256"]
    body["run"]["recipe_version"] = 99
    body["sha256"] = digest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps(body))
    with pytest.raises(InputError, match="version 99"):
        rerun(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("prior", "kernel"),
    [(Gaussian(2.0), HMC(step=1e-2, leaps=2)), (Flat(), MALA(step=1e-3)), (Gaussian(1.0), SGLD(step=1e-3))],
)
def test_draws_are_drawn_again_on_their_landscape(tmp_path, prior, kernel):
    options = {"chains": 2, "draws": 6, "warmup": 3, "seed": 8, "keep": ["positions"]}
    first = sample(Posterior(bowl(), (5.0, 10.0), prior), kernel, store=tmp_path / "a", **options)
    again = rerun(tmp_path / "a", tmp_path / "b", landscape=bowl())
    assert all(np.array_equal(value, again.arrays[name]) for name, value in first.arrays.items())
    assert "positions" in again.arrays
    with pytest.raises(InputError, match="got another"):
        rerun(tmp_path / "a", tmp_path / "c", landscape=bowl(3.0))


def test_what_is_missing_is_said(tmp_path):
    kernel = HMC(step=1e-2, leaps=2)
    look = {"norm": lambda land, w: w.norm()}
    options = {"chains": 1, "draws": 2, "warmup": 1}
    sample(Posterior(bowl(), 5.0, Gaussian(1.0)), kernel, store=tmp_path / "a", observe=look, **options)
    with pytest.raises(InputError, match="landscape is missing"):
        rerun(tmp_path / "a", tmp_path / "b")
    with pytest.raises(InputError, match="observed \\(norm\\)"):
        rerun(tmp_path / "a", tmp_path / "b", landscape=bowl())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    write_call(tmp_path / "a", "llc", {"target": "os:getcwd", "settings": [], "seed": 0})
    with pytest.raises(InputError, match="new folder"):
        rerun(tmp_path / "a", tmp_path / "full", trust=True)


def test_code_is_run_only_with_trust(tmp_path, monkeypatch):
    module = tmp_path / "enemy_module.py"
    module.write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    RunStore.create(tmp_path / "a", spec={}, groups=[[0]], seed=0, provenance={})
    write_call(tmp_path / "a", "llc", {"target": "enemy_module:f", "settings": [], "seed": 0})
    assert plan_rerun(tmp_path / "a").imports == "enemy_module:f"
    with pytest.raises(InputError, match="runs the code of enemy_module:f"):
        rerun(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("demo", {"target": "a:b"}),
        ("llc", []),
        ("llc", {"target": 3}),
        ("llc", {"target": "a:b", "settings": "chains=3"}),
        ("llc", {"target": "a:b", "weights": ["x"]}),
        ("sweep", {"target": "a:b", "steps": "x"}),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(tmp_path, command, arguments):
    RunStore.create(tmp_path / "a", spec={}, groups=[[0]], seed=0, provenance={})
    write_call(tmp_path / "a", command, arguments)
    with pytest.raises(InputError, match="expected"):
        rerun(tmp_path / "a", tmp_path / "b", trust=True)


def test_weights_that_changed_are_refused(tmp_path):
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"one")
    RunStore.create(tmp_path / "a", spec={}, groups=[[0]], seed=0, provenance={})
    record_call(tmp_path / "a", "llc", "os:getcwd", ["chains=2"], 3, weights)
    assert read_call(tmp_path / "a")["arguments"]["seed"] == 3
    weights.write_bytes(b"two")
    with pytest.raises(InputError, match="have changed"):
        rerun(tmp_path / "a", tmp_path / "b", trust=True)
    weights.unlink()
    with pytest.raises(InputError, match="not there"):
        rerun(tmp_path / "a", tmp_path / "b", trust=True)
