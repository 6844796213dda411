"""Inputs, descents and the closest of draws of a model with a known truth."""

import math

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core.result import Draws

TRUTH = torch.tensor([[0.7], [-0.4]], dtype=torch.float64)


def linear(inputs="normal", **options):
    model = torch.nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
    return cr.Triple(model, lambda x: x @ TRUTH, inputs, features=2, **options)


def distance2(w):
    """K of a unit normal x, in closed form."""
    return 0.5 * float(((w - TRUTH[:, 0]) ** 2).sum())


def test_inputs_have_the_moments_of_their_names():
    normal, uniform = (linear(name).points(20_000, seed=2) for name in ("normal", "uniform"))
    assert normal.shape == uniform.shape == (20_000, 2)
    assert normal.mean(0).tolist() == pytest.approx([0, 0], abs=0.03)
    assert normal.std(0).tolist() == pytest.approx([1, 1], rel=0.03)
    assert (float(uniform.min()), float(uniform.max())) == (pytest.approx(-1, abs=1e-3), pytest.approx(1, abs=1e-3))
    assert uniform.mean(0).tolist() == pytest.approx([0, 0], abs=0.02)
    assert uniform.std(0).tolist() == pytest.approx([1 / math.sqrt(3)] * 2, rel=0.02)
    own = linear(lambda count, generator: torch.arange(2.0 * count).view(count, 2))
    assert own.points(3).tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert own.points(3).dtype == torch.float64
    triple = linear()
    assert not torch.equal(triple.points(5, seed=1), triple.data(5, seed=1)[0])
    assert not torch.equal(triple.points(5, seed=1), triple.points(5, seed=2))


@pytest.mark.parametrize("sd", [1.0, 0.5])
def test_divergences_are_means_over_inputs_with_their_error(sd):
    triple = linear(sd=sd)
    found = triple.divergence(torch.tensor([1.0, 1.0]), count=4000, seed=3)
    x = triple.points(4000, seed=3).numpy()
    values = (x @ (np.array([1.0, 1.0]) - TRUTH[:, 0].numpy())) ** 2 / (2 * sd**2)
    assert found.value == pytest.approx(values.mean())
    assert found.se == pytest.approx(values.std(ddof=1) / math.sqrt(4000))
    assert found.diagnostics["count"] == 4000
    assert found.seed == 3
    assert triple.divergence(count=4000, seed=3).value == pytest.approx(
        ((x @ (np.array([1.0, 2.0]) - TRUTH[:, 0].numpy())) ** 2).mean() / (2 * sd**2)
    )
    entropy = triple.entropy(count=10)
    assert (entropy.value, entropy.se) == (pytest.approx(0.5 * math.log(2 * math.pi * math.e * sd**2)), 0.0)


def test_the_entropy_of_data_is_that_of_their_noise():
    triple = linear(sd=0.5)
    x, y = triple.data(50, 4)
    losses = ((y - x @ TRUTH) ** 2 / 0.5 + math.log(0.5 * math.sqrt(2 * math.pi)))[:, 0]
    found = triple.empirical_entropy((x, y))
    assert found.value == pytest.approx(float(losses.mean()))
    assert found.diagnostics == {"data_se": pytest.approx(float(losses.std()) / math.sqrt(50)), "n": 50}
    assert found.se == 0


def draws_at(places, level=50.0, n=40):
    places = np.asarray(places)
    arrays = {"excess": places[..., 0], "distance2": places[..., 0], "positions": places}
    return Draws(arrays, {}, np.full(len(places), level), {"n": n, "asked": {"seed": 0}})


def test_distances_from_draws_begin_at_the_closest():
    triple = linear()
    places = np.random.default_rng(0).normal(size=(4, 30, 2)) * 3 + 5
    places[2, 17] = [0.8, -0.3]
    found = triple.distance(draws_at(places), steps=0, seed=1)
    assert found.diagnostics["weights"] == pytest.approx([0.8, -0.3])
    assert found.diagnostics["n"] == 40
    assert found.value == pytest.approx(distance2(torch.tensor([0.8, -0.3])), rel=0.2)
    assert triple.distance(draws_at(places), steps=0, n=7).diagnostics["n"] == 7
    # Of many draws at least 256 are looked at, wherever they are.
    many = np.full((4, 1000, 2), 9.0)
    many[:, 250:] = [0.8, -0.3]
    assert triple.distance(draws_at(many), steps=0).diagnostics["weights"] == pytest.approx([0.8, -0.3])


def test_descents_reach_the_truth_and_never_climb():
    triple = linear()
    found = triple.distance(torch.tensor([30.0, -20.0]))
    assert found.diagnostics["weights"] == pytest.approx([0.7, -0.4], abs=1e-6)
    assert found.diagnostics["n"] == 10_000
    assert triple.distance(TRUTH[:, 0]).diagnostics["weights"] == [0.7, -0.4]
    x = triple.points(100)
    near = triple._descended(torch.tensor([3.0, 3.0]).double(), x, 1)
    assert distance2(near) < distance2(torch.tensor([3.0, 3.0]))
    fresh = triple.distance(torch.tensor([3.0, 3.0]), steps=0)
    inputs = triple.points(2000)
    off = (inputs @ (torch.tensor([3.0, 3.0]).double() - TRUTH[:, 0])).square() / 2
    assert fresh.value != pytest.approx(float(off.mean()), rel=1e-6)  # confirmed on other inputs
    assert fresh.diagnostics["count"] == 2000


@pytest.mark.parametrize(("n", "told"), [(5, False), (2000, True)])
def test_a_truth_is_told_from_a_model_by_enough_examples(n, told):
    # K = 0.0002 in closed form: n K is to be above a tenth.
    triple = linear()
    found = triple.distance(torch.tensor([0.7, -0.38]), steps=0, n=n)
    assert found.value == pytest.approx(0.0002, rel=0.1)
    assert [f.code for f in found.findings] == (["CRIT705"] if told else [])
    many = triple.distance(torch.tensor([0.7, -0.38]), steps=0, n=450)
    assert not many.findings  # 0.09


def test_weights_come_in_any_form():
    triple = linear()
    plain = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        plain.weight.copy_(torch.tensor([[0.5, -1.5]]))
    for given in (plain, dict(plain.named_parameters()), torch.tensor([0.5, -1.5])):
        assert triple.vector(given).tolist() == [0.5, -1.5]
        assert triple.vector(given).dtype == torch.float64
    assert triple.vector().tolist() == [1.0, 2.0] == triple.center.tolist()
    x = triple.points(6)
    several = triple.outputs(torch.tensor([[0.5, -1.5], [1.0, 2.0]]).double(), x)
    assert several.shape == (2, 6, 1)
    assert torch.allclose(several[1], x @ torch.tensor([[1.0], [2.0]]).double())
    assert torch.equal(several[0], triple.outputs(torch.tensor([0.5, -1.5]).double(), x))
    assert triple.posterior(40, beta=0.25).levels == (10.0,)
    assert triple.posterior(40).levels == (40.0,)
    assert triple.landscape(40, 1, center=torch.tensor([3.0, 4.0])).center.tolist() == [3.0, 4.0]
    assert triple.landscape(40, 1).center.tolist() == [1.0, 2.0]
