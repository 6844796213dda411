"""What is left out of a call is what the list of signatures says: settings that results show are compared with it."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import crunode as cr
from crunode import curvature
from crunode.estimators import multitemperature, polish, richardson
from crunode.estimators import triples as triples_module

LISTED = (Path(__file__).parents[2] / "docs" / "reference" / "signatures.txt").read_text().splitlines()


def documented(name):
    """Defaults of a public function, as the list has them."""
    (line,) = [line for line in LISTED if line.startswith(f"crunode.{name}(")]
    arguments = ast.parse(f"def f{line[line.index('(') :]}: ...").body[0].args
    named = [*arguments.args[len(arguments.args) - len(arguments.defaults) :], *arguments.kwonlyargs]
    values = [*arguments.defaults, *arguments.kw_defaults]
    return {arg.arg: ast.literal_eval(value) for arg, value in zip(named, values, strict=True) if value is not None}


MATRIX = torch.diag(torch.linspace(0.5, 2, 6, dtype=torch.float64))
OF_A_MATRIX = {
    "trace": lambda: curvature.trace(MATRIX),
    "diagonal": lambda: curvature.diagonal(MATRIX),
    "participation_ratio": lambda: curvature.participation_ratio(MATRIX),
    "effective_dimension": lambda: curvature.effective_dimension(MATRIX, 1.0),
    "sharpness": lambda: curvature.sharpness(MATRIX),
    "matrix_rank": lambda: curvature.matrix_rank(MATRIX),
    "top_eigenvalues": lambda: curvature.top_eigenvalues(MATRIX),
    "spectral_density": lambda: curvature.spectral_density(MATRIX),
    "function_trace": lambda: curvature.function_trace(MATRIX, np.exp),
    "log_determinant": lambda: curvature.log_determinant(MATRIX),
}


@pytest.mark.parametrize("name", OF_A_MATRIX)
def test_settings_of_numbers_of_a_matrix(name):
    found, wanted = OF_A_MATRIX[name](), documented(f"curvature.{name}")
    spec = {**found.spec, "points": len(getattr(found, "grid", ()))}
    shared = {"steps", "tolerance", "probes", "products", "k", "points", "shift"} & set(wanted)
    assert {key: spec[key] for key in shared} == {key: wanted[key] for key in shared}


def line(noise=0.0):
    x = torch.linspace(-1, 1, 12, dtype=torch.float64)[:, None]
    model = torch.nn.Linear(1, 1).double()
    return cr.Landscape(model, (x, model(x).detach() + noise), "gaussian")


@pytest.mark.parametrize("name", ["hessian_trace", "ggn_trace"])
def test_settings_of_traces_of_a_landscape(name):
    spec, wanted = getattr(curvature, name)(line()).spec, documented(f"curvature.{name}")
    assert (spec["tolerance"], spec["probes"]) == (wanted["tolerance"], wanted["probes"])


def test_a_step_without_damping_is_the_plain_one():
    land = line(0.3)
    plain, left_out = (curvature.gauss_newton_step(land, *given) for given in ((0.0,), ()))
    assert torch.equal(torch.as_tensor(plain.step), torch.as_tensor(left_out.step))
    assert documented("curvature.gauss_newton_step") == {"damping": 0.0}


def test_settings_of_the_natural_gradient():
    model = torch.nn.Linear(2, 1)
    wanted = documented("curvature.NaturalGradient")
    group = curvature.NaturalGradient(model, "gaussian").param_groups[0]
    shared = set(wanted) & set(group) - {"params"}
    assert shared >= {"lr", "momentum", "weight_decay"}
    assert {key: group[key] for key in shared} == {key: wanted[key] for key in shared}


def crossing(w):
    return (w[:, 0] * w[:, 1]) ** 2


@pytest.mark.parametrize("left_out", ["levels", "particles", "replicas", "moves", "radius"])
@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
def test_settings_of_volumes(left_out):
    wanted = documented("volume_scaling")
    small = {"levels": 16, "particles": 40, "replicas": 4, "moves": 1, "radius": 0.5}
    spec = cr.volume_scaling(crossing, torch.zeros(2), **{k: v for k, v in small.items() if k != left_out}).spec
    assert {key: spec[key] for key in small} == {**small, left_out: wanted[left_out]}


def triple():
    model = torch.nn.Linear(1, 1, bias=False).double()
    return cr.Triple(model, lambda x: 0.5 * x, "normal", features=1)


def test_settings_of_a_triple(monkeypatch):
    one = triple()
    assert one.divergence().diagnostics["count"] == documented("Triple.divergence")["count"]
    assert one.entropy().diagnostics["count"] == documented("Triple.entropy")["count"]
    assert one.posterior(40).levels == (40 * documented("Triple.posterior")["beta"],)
    seen = []
    monkeypatch.setattr(triples_module.Triple, "_descended", lambda self, w, x, steps: seen.append(steps) or w)
    one.distance()
    assert seen == [documented("Triple.distance")["steps"]]


def test_data_sets_are_drawn_at_the_documented_temperature():
    wanted = documented("simulate")["beta"]
    kernel = cr.HMC(step=0.01, leaps=2)
    runs = cr.simulate(triple(), 30, 3, kernel=kernel, chains=2, draws=12, warmup=4)
    assert {float(t) for draws, _ in runs for t in draws.nbeta} == {30 * wanted}


def test_examples_of_a_normalization_are_looked_at_twice():
    found = cr.normalization(line())
    assert len(found.diagnostics["log"]) == 2 * documented("normalization")["examples"]
    assert found.diagnostics["log"] == pytest.approx([0.5 * math.log(2 * math.pi)] * 8, abs=1e-6)
    assert found.diagnostics["spread"] < 1e-6


def test_settings_that_are_not_listed_have_the_meaning_that_they_say():
    x = np.array([0.1, 0.2, 0.4, 0.5])
    straight, _ = multitemperature.intercept_weights(x, np.eye(4))
    assert straight @ x == pytest.approx(0)  # of a line
    assert abs(straight @ x**2) > 1e-3
    # Nothing measured: what theory predicts is taken away once.
    silent = richardson.Stepped(100.0, 9.0, 1e3, 9.0, 1e3, 1.0, 0.0, 0.0)
    assert richardson.solve([silent]).measured[0] == pytest.approx(1, abs=0.01)
    assert richardson.solve([silent], expected=0.0).measured[0] == pytest.approx(0, abs=0.01)


def test_a_polish_stops_after_a_thousand_gradients(monkeypatch):
    begun, seen = polish._Descent.__init__, []

    def counted(self, land, steps):
        seen.append(steps)
        begun(self, land, steps)

    monkeypatch.setattr(polish._Descent, "__init__", counted)
    polish.polished(line(0.1))
    assert seen == [1000]
