"""Golden calls of criteria, free energies, generalization and phases, from draws that are the same for all."""

from __future__ import annotations

from collections.abc import Callable

import torch

import crunode as cr
from golden_calls import call, landscapes, refused

CRITERIA: dict[str, Callable[..., object]] = {
    "waic": cr.waic,
    "loo": cr.loo,
    "loo, not smoothed": lambda draws: cr.loo(draws, smooth=False),
    "functional_variance": cr.functional_variance,
    "singular_fluctuation": cr.singular_fluctuation,
    "bayes_training_loss": cr.bayes_training_loss,
    "gibbs_training_loss": cr.gibbs_training_loss,
}


def fitted(model: torch.nn.Module, nbeta: float | None = None) -> tuple[cr.Draws, cr.Landscape]:
    x = torch.linspace(-2, 2, 30)[:, None]
    y = torch.tanh(x) + 0.3 * torch.randn(30, 1, generator=torch.Generator().manual_seed(0))
    land = cr.Landscape(model, (x, y), "gaussian")
    posterior = cr.Posterior(land, nbeta or land.n, cr.Gaussian(1.0, mean="origin"))
    options = {"chains": 2, "draws": 30, "warmup": 20, "keep": ("pointwise", "positions"), "layout": "batched"}
    return cr.sample(posterior, cr.HMC(leaps=4), **options), land


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))


for _name in CRITERIA:
    call(_name)(lambda name=_name: CRITERIA[name](fitted(net())[0]))


@call("wbic")
def _() -> object:
    return cr.wbic(fitted(net(), nbeta=30 / 3.4011973816621555)[0])


@call("aic, bic")
def _() -> object:
    land = fitted(net())[1]
    return [cr.aic(land), cr.bic(land)]


@call("compare")
def _() -> object:
    torch.manual_seed(1)
    models = {"line": fitted(torch.nn.Linear(1, 1))[0], "net": fitted(net())[0]}
    return [cr.compare(models), cr.compare(models, "waic")]


@call("free_energy")
def _() -> object:
    return cr.free_energy(landscapes.rungs())


@call("coefficient_from_energy")
def _() -> object:
    return [
        cr.coefficient_from_energy(landscapes.rungs()),
        cr.coefficient_from_energy(landscapes.rungs(), multiplicity=2),
    ]


@call("rlct")
def _() -> object:
    return [cr.rlct(landscapes.rungs()), cr.rlct(landscapes.rungs(), multiplicity=2)]


@call("phases")
def _() -> object:
    def side(land: cr.Landscape, w: torch.Tensor) -> torch.Tensor:
        return (w[0] > 0.92).to(w.dtype)

    levels = tuple(4.0**k for k in range(-1, 6))
    posterior = cr.Posterior(landscapes.wells(), levels, cr.Gaussian(1.0, mean="origin"))
    kernel = cr.Exchange(cr.HMC(leaps=4))
    draws = cr.sample(posterior, kernel, chains=2, draws=120, warmup=40, observe={"deep": side}, layout="batched")
    diagram = cr.phases(draws, "deep", names={0: "wide", 1: "deep"})
    return [diagram, diagram.table()]


@call("triple")
def _() -> object:
    triple = landscapes.triple()
    return [
        triple.divergence(count=400),
        triple.entropy(count=400),
        triple.distance(n=200, steps=30),
        triple.empirical_entropy(triple.data(20)),
        triple.landscape(20).losses(),
    ]


@call("generalization")
def _() -> object:
    triple = landscapes.triple()
    options = {"chains": 2, "draws": 20, "warmup": 10, "keep": ("positions", "pointwise"), "layout": "batched"}
    draws = cr.sample(triple.posterior(40), cr.HMC(leaps=4), **options)
    return [f(draws, triple, test=100) for f in (cr.bayes_generalization_loss, cr.gibbs_generalization_loss)]


@call("equations_of_state")
def _() -> object:
    triple = landscapes.triple()
    runs = cr.simulate(triple, 40, 4, kernel=cr.HMC(leaps=4), chains=2, draws=30, warmup=20)
    return [cr.equations_of_state(runs, triple, test=50), runs[0][0]]


@call("criteria: wrong input")
def _() -> object:
    draws = landscapes.rungs()
    return [refused(lambda f=f: f(draws)) for f in (cr.waic, cr.loo, cr.wbic, cr.functional_variance)]
