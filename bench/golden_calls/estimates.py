"""Golden calls of the learning coefficient, by every route, and of what is told about a landscape without chains."""

from __future__ import annotations

from collections.abc import Callable

import torch

import crunode as cr
from crunode.estimators.cooling import cooled_estimate
from golden_calls import call, landscapes, refused

ROUTES: dict[str, tuple[Callable[[], cr.Landscape], dict[str, object]]] = {
    "rank": (landscapes.smooth, {}),
    "zero set beside chains": (landscapes.singular, {"target": "basin", "chains": 2, "draws": 16, "warmup": 8}),
    "ladder of HMC": (landscapes.noisy, {"labels": "given", "chains": 2, "draws": 16, "warmup": 8}),
    "own labels": (landscapes.noisy, {"chains": 2, "draws": 16, "warmup": 8}),
    "one level": (landscapes.noisy, {"nbeta": "wbic", "chains": 2, "draws": 24, "warmup": 16}),
    "SGHMC": (landscapes.noisy, {"kernel": cr.SGHMC(), "nbeta": 15.0, "chains": 2, "draws": 40, "warmup": 20}),
    "annealed": (landscapes.large, {"target": "basin", "budget": 300}),
    "kernel asked for": (
        landscapes.singular,
        {"kernel": cr.SGLD(batch=20), "chains": 2, "draws": 40, "warmup": 20},
    ),
    "budget given": (landscapes.noisy, {"nbeta": "wbic", "budget": 4000}),
    "polish": (
        landscapes.bent,
        {"polish": 60, "nbeta": 20.0, "precision": 10.0, "chains": 2, "draws": 16, "warmup": 8},
    ),
    "classes": (landscapes.classes, {"chains": 2, "draws": 16, "warmup": 8, "nbeta": "wbic"}),
    "part of the parameters": (lambda: landscapes.smooth().restrict("0.*"), {}),
    "function": (landscapes.crossing, {"chains": 2, "draws": 16, "warmup": 8}),
    "rectified": (landscapes.rectified, {}),
}


def routed(route: str, layout: str) -> cr.Estimate:
    make, options = ROUTES[route]
    return cr.llc(make(), seed=7, on_failure="return", layout=layout, **options)


for _route in ROUTES:
    call(f"llc: {_route}")(lambda route=_route: routed(route, "batched"))
for _route in ("ladder of HMC", "SGHMC"):
    call(f"llc: {_route}, one after the other")(lambda route=_route: routed(route, "sequential"))


@call("annealed chain with levels")
def _() -> object:
    """Of a size that has time for them: `llc` takes this route for networks that are far larger only."""
    found = [cooled_estimate(landscapes.products(20, 10, 20, rank=2, n=200), seed=3, budget=4000)]
    return [*found, cooled_estimate(landscapes.products(12, 5, 12, rank=2, n=30), "basin", seed=4, budget=3000)]


@call("llc: wrong input")
def _() -> object:
    land = landscapes.noisy()
    wrong = ({"chains": 0}, {"nbeta": -1.0}, {"layout": "heap"}, {"target": "moon"}, {"draws": "many"}, {"seed": 0.5})
    return [refused(lambda options=options: cr.llc(land, **options)) for options in wrong]


@call("multi_temperature")
def _() -> object:
    return cr.multi_temperature(landscapes.noisy(), levels=(10.0, 40.0, 160.0), chains=2, draws=16, warmup=8, seed=2)


@call("sweep")
def _() -> object:
    kernel = cr.HMC(leaps=2)
    return cr.sweep(landscapes.noisy(), nbetas=[10.0, 20.0], kernel=kernel, chains=1, draws=10, warmup=5, seed=1)


@call("bounds")
def _() -> object:
    return [cr.bounds(make()) for make in (landscapes.smooth, landscapes.rectified, landscapes.classes)]


@call("singularity")
def _() -> object:
    return [cr.singularity(make()) for make in (landscapes.rectified, landscapes.noisy, landscapes.smooth)]


@call("volume_scaling")
def _() -> object:
    def quartic(w: torch.Tensor) -> torch.Tensor:
        return w[..., 0] ** 2 * w[..., 1] ** 4

    return cr.volume_scaling(quartic, torch.zeros(2), levels=30, particles=64, replicas=6, moves=6, seed=1)


@call("normalization")
def _() -> object:
    return [cr.normalization(make()) for make in (landscapes.noisy, landscapes.classes)]


@call("landscape")
def _() -> object:
    land = landscapes.classes()
    part = land.restrict("2.*")
    (batch,) = land.passes()
    shifted = land.center + 0.1
    return {
        "loss": [land.loss(), land.loss(shifted), land.losses(shifted)],
        "gradient": land.batch_gradient(shifted, batch),
        "outputs": land.batch_outputs(shifted, batch),
        "part": [part.dim, part.loss(part.center + 0.1)],
        "batches": [len(list(land.passes(size))) for size in (7, 20)],
        "own": land.self_labelled().loss(),
        "images": landscapes.images().losses(),
    }
