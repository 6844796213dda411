"""Golden calls of sampling: every kernel, prior, layout and executor, and what is told about chains."""

from __future__ import annotations

import math

import torch
from torch.distributions import Laplace, StudentT

import crunode as cr
from crunode.testing import check_kernel
from golden_calls import call, landscapes, refused

KERNELS = {
    "HMC": cr.HMC(step=0.1, leaps=4),
    "HMC, own step": cr.HMC(leaps=4),
    "HMC, diagonal": cr.HMC(leaps=4, metric="diagonal"),
    "MALA": cr.MALA(),
    "NUTS": cr.NUTS(depth=4),
    "SGLD": cr.SGLD(batch=20),
    "SGLD, controlled": cr.SGLD(step=1e-3, batch=20, control=True),
    "PSGLD": cr.PSGLD(batch=20),
    "SGHMC": cr.SGHMC(batch=20),
    "SGNHT": cr.SGNHT(batch=20),
    "exchange": cr.Exchange(cr.HMC(leaps=2)),
}
SHORT = {"chains": 2, "draws": 12, "warmup": 8, "seed": 3}


def drawn(kernel: object, land: cr.Landscape, nbeta: object = (8.0, 20.0), **options: object) -> cr.Draws:
    posterior = cr.Posterior(land, nbeta, cr.Gaussian(1.0))
    return cr.sample(posterior, kernel, **{**SHORT, "keep": ("positions", "pointwise"), "layout": "batched", **options})


for _name in KERNELS:
    call(f"kernel {_name}")(lambda name=_name: drawn(KERNELS[name], landscapes.noisy()))
for _name in ("HMC", "SGLD"):
    call(f"kernel {_name}, one after the other")(
        lambda name=_name: drawn(KERNELS[name], landscapes.classes(), layout="sequential")
    )
    call(f"kernel {_name} on classes")(lambda name=_name: drawn(KERNELS[name], landscapes.classes()))


@call("sample: defaults")
def _() -> object:
    return cr.sample(cr.Posterior(landscapes.noisy(), 20.0), **SHORT, layout="batched")


@call("sample: a budget, observed")
def _() -> object:
    def first(land: cr.Landscape, w: torch.Tensor) -> torch.Tensor:
        return w[0]

    posterior = cr.Posterior(landscapes.noisy(), 20.0)
    return cr.sample(posterior, cr.MALA(), budget=400, chains=2, seed=1, observe={"first": first}, layout="batched")


@call("sample: checks beside the ladder")
def _() -> object:
    posterior = cr.Posterior(landscapes.bent(), 20.0, cr.Gaussian(10.0))
    return cr.sample(posterior, cr.HMC(leaps=2), **SHORT, checks=True, layout="batched")


@call("sample: images, own step")
def _() -> object:
    return drawn(cr.SGLD(batch=8), landscapes.images(), 5.0)


@call("priors")
def _() -> object:
    land = landscapes.bent()
    layers = {
        f"{k}.{name}": law for k in (0, 2) for name, law in (("weight", StudentT(3.0)), ("bias", Laplace(0.0, 2.0)))
    }
    priors = [
        cr.Flat(),
        cr.Gaussian(2.0, mean="origin"),
        cr.Gaussian(),
        cr.Density(Laplace(0.0, 0.5), name="laplace"),
        cr.Density(layers, name="layers"),
        cr.Density(lambda w: -10 * (w.norm() - 1) ** 2, name="ring"),
    ]
    options = {**SHORT, "draws": 6, "layout": "batched"}
    return [cr.sample(cr.Posterior(land, 30.0, prior), cr.HMC(leaps=2, step=0.02), **options) for prior in priors]


@call("tune")
def _() -> object:
    posterior = cr.Posterior(landscapes.bent())
    return [cr.tune(posterior, kernel, seed=1) for kernel in (None, cr.SGLD(), cr.NUTS(), cr.SGHMC(batch=10))]


@call("ladder")
def _() -> object:
    posterior = cr.Posterior(landscapes.wells(), prior=cr.Gaussian(0.2, mean="origin"))
    return cr.ladder(posterior, hottest=1.0, coldest=60.0, seed=1)


@call("exchange_report")
def _() -> object:
    return [cr.exchange_report(landscapes.rungs()), landscapes.rungs()]


@call("sample_each")
def _() -> object:
    x = torch.linspace(-1, 1, 20)[:, None]
    lands = [cr.Landscape(torch.nn.Linear(1, 1), (x, slope * x), "gaussian") for slope in (1.0, 2.0)]
    posteriors = [cr.Posterior(land, (5.0, 20.0), cr.Gaussian(0.1, mean="origin")) for land in lands]
    return cr.sample_each(posteriors, cr.HMC(leaps=2), **SHORT)


@call("posterior")
def _() -> object:
    posterior = cr.Posterior(landscapes.noisy(), (5.0, 20.0), cr.Gaussian(1.0))
    return [posterior.spec(), posterior.prior_spec(), cr.Posterior(landscapes.classes()).nbeta, math.log(2)]


@call("processes")
def _() -> object:
    return drawn(cr.HMC(step=0.1, leaps=2), landscapes.bent(), executor=cr.Processes(workers=2), layout=None)


@call("check_kernel")
def _() -> object:
    return check_kernel(cr.MALA())


@call("sample: wrong input")
def _() -> object:
    land = landscapes.noisy()
    return [
        refused(lambda: cr.sample(cr.Posterior(land, 20.0), cr.HMC(leaps=0))),
        refused(lambda: cr.sample(cr.Posterior(land, -1.0))),
        refused(lambda: cr.sample(cr.Posterior(land, 20.0), keep=("nothing",))),
        refused(lambda: cr.sample(cr.Posterior(land, 20.0, cr.Gaussian(-1.0)))),
        refused(lambda: cr.sample(cr.Posterior(land, 20.0), cr.HMC(step=1e9), chains=2, draws=5, warmup=2)),
    ]
