"""What is measured at a point of a training: λ̂, WBIC, Tr H, the loss and its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from crunode import SGLD, EstimationError, Gaussian, Landscape, Posterior, sample
from crunode.core import derived_seed, leaves
from crunode.curvature import hessian_trace
from crunode.sampling import drift, mcse_mean, split_rhat, wbic_nbeta

__all__ = ["Probe", "gradient_norm", "local_coefficient", "measure_point"]


@dataclass(frozen=True)
class Probe:
    """Settings of the chains behind λ̂, the same for all optimizers and epochs, so that values can be compared.

    Step and precision are relative to nβ = n / log n. A direction in which the loss has curvature h is then sampled
    as one of curvature h with precision `resolution` and step `step`, whatever n is. Around a minimum that is quadratic

        λ̂ = ½ Σ h/(h + resolution),

    the number of directions that are stiffer than the resolution, by half. Chains are stable up to h = 4/step and
    forget in 2/(step · resolution) steps.

    Attributes:
        step: ε nβ.
        resolution: γ/(nβ).
        chains: Number of chains.
        warmup: Steps before draws are kept.
        draws: Kept steps of each chain.
        batch: Examples in a minibatch.

    Example:
        >>> Probe(step=0.02, resolution=0.3).memory
        333.3333333333333
    """

    step: float = 0.02
    resolution: float = 0.3
    chains: int = 4
    warmup: int = 700
    draws: int = 700
    batch: int = 256

    @property
    def memory(self) -> float:
        """Steps in which the flattest directions forget."""
        return 2 / (self.step * self.resolution)


def local_coefficient(land: Landscape, probe: Probe, seed: int) -> dict[str, float | None]:
    """λ̂ = nβ (E[L_n(w)] − L_n(w*)) at nβ = n / log n by SGLD chains, with its error, drift and R-hat.

    Args:
        land: The landscape at w*.
        probe: Settings of the chains.
        seed: All randomness comes from it.

    Returns:
        "value" and "se", and how the chains did: "drift" is a normal score of a trend that is left, "rhat" tells
        whether chains agree. All are None where a chain diverged.

    Example:
        >>> from crunode_papers.networks.models import build
        >>> net = build("ffnn", layers=0, width=1, inputs=3, classes=2)
        >>> x = torch.linspace(-1, 1, 300).view(100, 3)
        >>> land = Landscape(net, (x, torch.arange(100) % 2), "cross-entropy").self_labelled()
        >>> 0 < local_coefficient(land, Probe(warmup=200, draws=300, batch=100), seed=0)["value"] < 2
        True

    References:
        Lau et al. 2023; Saghir et al. 2024, eq. 19, whose β is 1/log n (the text has log n).
    """
    nbeta = wbic_nbeta(land.n)
    precision = probe.resolution * nbeta
    posterior = Posterior(land, nbeta, Gaussian(precision))
    kernel = SGLD(step=probe.step / nbeta, batch=min(probe.batch, land.data.rows), control=False)
    # Convolutions over weights of many chains at once are slow on CPUs.
    apart = land.device.type == "cpu" and any(len(shape) > 2 for shape in land.packing.shapes)
    layout = "sequential" if apart or probe.chains == 1 else "batched"
    chains, draws, warmup = probe.chains, probe.draws, probe.warmup
    try:
        drawn = sample(posterior, kernel, chains=chains, draws=draws, warmup=warmup, seed=seed, layout=layout)
    except EstimationError:
        return dict.fromkeys(("value", "se", "drift", "rhat"))
    excess = nbeta * np.asarray(drawn.arrays["excess"], dtype=np.float64)
    return {
        "value": float(excess.mean()),
        "se": mcse_mean(excess),
        "drift": drift(excess),
        "rhat": split_rhat(excess),
    }


def gradient_norm(land: Landscape) -> float:
    """‖∇L_n(w*)‖ on all data: zero at a minimum, which is where λ̂ is defined."""
    total = torch.zeros_like(land.center, dtype=torch.float64)
    for batch in land.passes():
        total += land.batch_gradient(land.center, batch).double() * leaves(batch)[0].shape[0]
    return float(total.norm()) / land.data.rows


def measure_point(land: Landscape, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """All that is measured at the weights of a landscape.

    Args:
        land: The training loss at these weights.
        settings: Fields of `Probe`.
        seed: All randomness comes from it; the same at all points of a training.

    Returns:
        "loss", "gradient" (its norm), "trace" of the Hessian, "llc" with the labels of the data, "own" with the
        model's own predictions for labels, of which the weights are an exact minimum, and "wbic" = E[n L_n(w)].
    """
    probe = Probe(**settings)
    own = land.self_labelled()
    assert own is not None  # classes always have predictions
    loss, trace = float(land.loss()), hessian_trace(land, seed=derived_seed(seed, 3))
    given = local_coefficient(land, probe, derived_seed(seed, 1))
    among = local_coefficient(own, probe, derived_seed(seed, 2))
    value, scale = given["value"], land.n / wbic_nbeta(land.n)
    return {
        "loss": loss,
        "gradient": gradient_norm(land),
        "trace": {"value": float(trace.value), "se": float(trace.se), "method": trace.diagnostics["method"]},
        "llc": given,
        "own": among,
        "wbic": {
            "value": None if value is None else land.n * loss + scale * value,
            "se": None if given["se"] is None or math.isnan(given["se"]) else scale * given["se"],
        },
    }
