"""Posteriors with any prior, against quadrature and against the Gaussian one."""

import math

import numpy as np
import pytest
import torch
from torch import distributions as D

import crunode as cr
from crunode.sampling.diagnostics import mcse_mean

SAMPLES = {"chains": 16, "draws": 400, "warmup": 100, "seed": 0, "keep": ("positions",)}


def bowl(dim=1, at=0.1, n=100):
    return cr.Landscape.of_function(lambda w: 0.5 * (w - 1.0).square().sum(), torch.full((dim,), at).double(), n=n)


def box(w):
    """Near one in (−1, 1) and zero outside, with smooth edges."""
    return torch.nn.functional.logsigmoid(20 * (1 - w)).sum() + torch.nn.functional.logsigmoid(20 * (w + 1)).sum()


PRIORS = {
    "laplace": (lambda w: -3 * w.abs().sum(), lambda x: np.exp(-3 * np.abs(x))),
    "student": (D.StudentT(2.0, 0.0, 0.2), lambda x: (1 + (x / 0.2) ** 2 / 2) ** -1.5),
    "box": (box, lambda x: 1 / (1 + np.exp(-20 * (1 - x))) / (1 + np.exp(-20 * (1 + x)))),
    "hard box": (D.Uniform(-1.0, 1.0), lambda x: (np.abs(x) < 1).astype(float)),
}


def moments(prior, nbeta, dim):
    """E[w_1] and E[‖w − 1‖²/2] under exp(−nβ‖w − 1‖²/2) φ(w), a product over the entries."""
    x = np.linspace(-8, 8, 400_001)
    weight = np.exp(-0.5 * nbeta * (x - 1) ** 2) * prior(x)
    weight /= weight.sum()
    return float(weight @ x), dim * float(weight @ (0.5 * (x - 1) ** 2))


@pytest.mark.parametrize("layout", ["batched", "sequential"])
@pytest.mark.parametrize("name", PRIORS)
def test_moments_are_those_of_quadrature(name, layout):
    # Sixteen numbers at four standard errors: a false alarm in one of 1000 sets of seeds.
    given, phi = PRIORS[name]
    dim = 1 if layout == "sequential" else 2
    land = bowl(dim)
    size = SAMPLES | ({"chains": 2, "draws": 500} if layout == "sequential" else {})
    draws = cr.sample(cr.Posterior(land, 3.0, cr.Density(given)), cr.HMC(leaps=8), layout=layout, **size)
    first = draws.arrays["positions"][..., 0]
    loss = draws.arrays["excess"] + float(land.loss())
    mean, energy = moments(phi, 3.0, dim)
    assert abs(first.mean() - mean) < 4 * mcse_mean(first)
    assert abs(loss.mean() - energy) < 4 * mcse_mean(loss)
    assert mcse_mean(first) < 0.05


@pytest.mark.parametrize(("kernel", "levels"), [(cr.NUTS(), 3.0), (cr.Exchange(cr.HMC(leaps=8)), (0.5, 3.0))])
def test_other_samplers_take_a_density(kernel, levels):
    # Two numbers at four standard errors: a false alarm in one of 8000 sets of seeds.
    posterior = cr.Posterior(bowl(2), levels, cr.Density(lambda w: -3 * w.abs().sum()))
    draws = cr.sample(posterior, kernel, chains=8, draws=150, warmup=150, seed=0, keep=("positions",))
    first = draws.at(3.0)["positions"][..., 0]
    assert abs(first.mean() - moments(PRIORS["laplace"][1], 3.0, 2)[0]) < 4 * mcse_mean(first)
    assert mcse_mean(first) < 0.05


@pytest.mark.parametrize("kernel", [cr.HMC(step=0.1, leaps=4), cr.MALA(step=0.05), cr.SGLD(step=0.01, batch=1)])
@pytest.mark.parametrize("layout", ["batched", "sequential"])
def test_a_gaussian_as_a_density_gives_the_draws_of_the_gaussian(kernel, layout):
    land = bowl(3)
    options = {"chains": 3, "draws": 30, "warmup": 5, "seed": 4, "keep": ("positions",), "layout": layout}
    ours = cr.Density(lambda w: -0.5 * 7.0 * w.square().sum())
    one = cr.sample(cr.Posterior(land, 20.0, cr.Gaussian(7.0, mean="origin")), kernel, **options)
    two = cr.sample(cr.Posterior(land, 20.0, ours), kernel, **options)
    np.testing.assert_allclose(one.arrays["positions"], two.arrays["positions"], rtol=0, atol=1e-9)
    around = cr.Density(lambda w: -0.5 * 7.0 * (w - 0.1).square().sum())
    three = cr.sample(cr.Posterior(land, 20.0, around), kernel, **options)
    assert not np.allclose(one.arrays["positions"], three.arrays["positions"], atol=1e-3)


def test_distributions_by_name_and_functions_of_named_parameters_agree():
    net = torch.nn.Linear(2, 1).double()
    x = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    land = cr.Landscape(net, (x, x[:, :1]), "gaussian")
    by_name = cr.Density({"weight": D.Normal(0.0, 0.5), "*": D.Laplace(0.0, 2.0)})

    def written(p):
        weight, bias = p["weight"], p["bias"]
        constants = -2 * math.log(0.5 * math.sqrt(2 * math.pi)) - math.log(4.0)
        return -2 * weight.square().sum() - 0.5 * bias.abs().sum() + constants

    terms = [by_name.on(land), cr.Density(written, named=True).on(land)]
    points = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(terms[0].energy(points), terms[1].energy(points))
    torch.testing.assert_close(terms[0].gradient(points), terms[1].gradient(points))
    torch.testing.assert_close(terms[0].gradient(points[:1]), terms[0].gradient(points)[:1])
    assert terms[0].spec()["values"] == terms[1].spec()["values"]


def test_a_function_that_does_not_batch_is_called_row_by_row():
    land = bowl(2)
    term = cr.Density(lambda w: -w.square().sum() if float(w.detach()[0]) < 9 else -w.abs().sum()).on(land)
    points = torch.tensor([[1.0, 2.0], [10.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(term.gradient(points), torch.tensor([[2.0, 4.0], [1.0, 1.0]], dtype=torch.float64))


def test_the_free_energy_of_a_density_is_that_of_quadrature():
    land = bowl(1)
    levels = tuple(2.0**k for k in range(-6, 6))
    prior = cr.Density(D.Laplace(0.0, 0.5))
    draws = cr.sample(cr.Posterior(land, levels, prior), cr.HMC(leaps=8), chains=4, draws=300, warmup=100, seed=1)
    est = cr.free_energy(draws)
    x = np.linspace(-20, 20, 800_001)
    density = np.exp(-np.abs(x) / 0.5)
    center = 0.5 * (0.1 - 1) ** 2
    exact = -math.log((np.exp(-levels[-1] * (0.5 * (x - 1) ** 2 - center)) * density).sum() / density.sum())
    assert est.ok
    assert abs(est.value - exact) < 4 * est.se
    bare = cr.sample(cr.Posterior(land, levels[:2], cr.Density(lambda w: -w.abs().sum())), cr.HMC(), chains=2, draws=20)
    with pytest.raises(cr.InputError, match="normalized=True"):
        cr.free_energy(bare)


def test_a_stored_run_goes_on_and_tells_priors_apart(tmp_path):
    land = bowl(2)
    options = {"chains": 2, "draws": 120, "warmup": 10, "seed": 0, "keep": ("positions",)}
    kernel = cr.HMC(step=0.1, leaps=4)
    whole = cr.sample(cr.Posterior(land, 5.0, cr.Density(lambda w: -w.abs().sum())), kernel, **options)

    class Stop(Exception):
        pass

    seen = []

    def halt(landscape, w):
        seen.append(1)
        if len(seen) > 160:
            raise Stop
        return w[0]

    posterior = cr.Posterior(land, 5.0, cr.Density(lambda w: -w.abs().sum()))
    with pytest.raises(Stop):
        cr.sample(posterior, kernel, store=tmp_path / "run", observe={"w0": halt}, **options)
    again = cr.sample(posterior, kernel, store=tmp_path / "run", observe={"w0": lambda _, w: w[0]}, **options)
    np.testing.assert_array_equal(whole.arrays["positions"], again.arrays["positions"])
    other = cr.Posterior(land, 5.0, cr.Density(lambda w: -1.01 * w.abs().sum()))
    with pytest.raises(cr.StoreMismatch, match="prior"):
        cr.sample(other, kernel, store=tmp_path / "run", observe={"w0": lambda _, w: w[0]}, **options)
    assert again.prior["density"] == "density"


def test_criteria_take_a_density_and_llc_does_not():
    x = torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    land = cr.Landscape(torch.nn.Linear(1, 1), (x, x), "gaussian")
    posterior = cr.Posterior(land, 40.0, cr.Density(D.Laplace(0.0, 1.0), name="laplace"))
    draws = cr.sample(posterior, cr.HMC(), chains=4, draws=200, warmup=50, keep=("pointwise",))
    assert cr.waic(draws).ok
    with pytest.raises(cr.InputError, match="laplace"):
        cr.llc(draws)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda w: torch.log(w[0] - 5), "finite"),
        (D.Uniform(2.0, 3.0), "positive density at the center"),
        (lambda w: -w.square(), "one number"),
        (lambda w: -w.square().sum().item(), "one number"),
        (lambda w: -w.detach().square().sum(), "differentiable"),
        (lambda w: -(w - torch.tensor(0.1)).float().abs().sqrt().sum(), "gradient at the center"),
        (lambda w: -torch.rand(()) * w.square().sum(), "same number"),
        (lambda w: -w["weight"].sum(), "named=True"),
        (D.Normal(torch.zeros(3), 1.0), "shape"),
        ({"weight": D.Normal(0.0, 1.0)}, "every parameter"),
    ],
)
def test_what_is_no_prior_is_refused(given, message):
    with pytest.raises(cr.InputError, match=message):
        cr.Posterior(bowl(2), 5.0, cr.Density(given))


@pytest.mark.parametrize("options", [{"log_density": 3}, {"log_density": {}}, {"name": ""}, {"normalized": 1}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(cr.InputError, match="expected"):
        cr.Density(**{"log_density": box, **options})
