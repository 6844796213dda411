"""Generalization errors of all methods on the data sets of several panels at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode import InputError
from crunode.core import derived_seed
from crunode.sampling import split_rhat
from crunode_papers.murfet2020.hamiltonian import Energy, Posterior, hamiltonian
from crunode_papers.murfet2020.maps import DECAY, train_map
from crunode_papers.murfet2020.networks import DIM, Data, Net, Panel, activate, draw_data
from crunode_papers.murfet2020.predictive import (
    energy_linear,
    energy_one,
    energy_two,
    hessian_two,
    kl_draws,
    kl_gaussian,
    last_layer,
    normal_draws,
)

__all__ = ["AS_PRINTED", "METHODS", "OURS", "measure"]

METHODS = ("two-layer Laplace", "last-layer Laplace", "MAP", "last-layer MCMC", "two-layer MCMC")
"""The five methods, in the order from worst to best that the paper expects."""

AS_PRINTED = {
    "last-layer MCMC": "last-layer MCMC as coded",
    "last-layer Laplace": "last-layer Laplace as coded",
    "two-layer Laplace": "two-layer Laplace as coded",
}
"""Methods that the authors' code computes in another way than the paper says; their names here."""

OURS = (*METHODS, "last layer in closed form", *AS_PRINTED.values())

_UNDERFLOW = -744.4
"""Log of the smallest positive double: the authors' code adds up densities, not their logarithms."""


def measure(settings: Mapping[str, Any], device: str | None = None, together: bool | None = None) -> dict[str, Any]:
    """Train, infer and predict on all data sets of a cell.

    A GPU is used where there is one, with all values of n side by side; a CPU goes through them one after another.
    Data sets and initial weights are the same on both; minibatch orders and Monte Carlo draws are not.

    Args:
        settings: "panels" (lists of layers, relu, realizable, minibatch, which agree in the first and the last),
            "sizes" (values of n), "sets" (first number and count), "tests", "epochs", "chains", "draws", "warmup",
            "leaps", "seed", "as_text".
        device: None for a GPU if there is one.
        together: Whether all values of n are in one batch; None for what suits the device.

    Returns:
        "device", and "panels": for each panel its errors, (n, data set) for each of `OURS`, and what the samplers
        and Hessians were like.

    Example:
        >>> small = dict(tests=20, epochs=2, chains=2, draws=4, warmup=20, leaps=2, seed=0, as_text=False)
        >>> found = measure({"panels": [[1, 0, 1, 0]], "sizes": [20], "sets": [0, 2], **small}, "cpu")
        >>> len(found["panels"][0]["errors"]["MAP"][0])
        2
    """
    panels = [Panel(layers, bool(a), bool(b), bool(c)) for layers, a, b, c in settings["panels"]]
    if len({(panel.layers, panel.minibatch) for panel in panels}) != 1:
        raise InputError("expected panels that agree in layers and in how MAP is trained, got others; make more cells")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    sizes = list(settings["sizes"])
    first, count = settings["sets"]
    together = torch.device(device).type != "cpu" if together is None else together
    blocks: list[dict[str, Any]] = []
    for part in [sizes] if together else [[n] for n in sizes]:
        data = draw_data(
            panels,
            part,
            range(first, first + count),
            tests=settings["tests"],
            seed=settings["seed"],
            as_text=settings["as_text"],
        ).to(device)
        key = (*panels[0].key, part[0], first)
        found = _errors(data, panels[0], settings, derived_seed(settings["seed"], *key))
        blocks.append({name: x.view(len(panels), len(part), count).cpu().numpy() for name, x in found.items()})
    arrays = {name: np.concatenate([block[name] for block in blocks], 1) for name in blocks[0]}
    shown = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else device
    return {"device": shown, "panels": [_panel(panel, k, arrays) for k, panel in enumerate(panels)]}


def _panel(panel: Panel, k: int, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    errors = {name: arrays[name][k].tolist() for name in OURS}
    rest = {name: arrays[name][k].tolist() for name in arrays if name not in OURS}
    return {"panel": list(panel.key), "errors": errors, **rest}


def _errors(data: Data, panel: Panel, settings: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
    device = data.x.device
    net = Net(panel.layers + (not settings["as_text"]))
    order = torch.Generator(device=device).manual_seed(derived_seed(seed, 1))
    theta = train_map(net, data, epochs=settings["epochs"], minibatch=panel.minibatch, generator=order)
    # One network that was lost in training must not end the work on all others: its errors become nan below.
    lost = ~theta.isfinite().all(1)
    theta = torch.where(lost[:, None], data.start, theta)
    count = settings["chains"] * settings["draws"]
    # Padding becomes zero again, so that sums over examples need no mask.
    x, tests = net.features(theta, data.x) * data.mask, net.features(theta, data.test_x)
    w = theta[:, -2 * DIM * DIM :]
    a, b = w.reshape(-1, 2, DIM, DIM).unbind(1)
    h, test_h = activate(a @ x, data.slope), activate(a @ tests, data.slope)
    mean, cov = last_layer(h, data.y)
    variance = 1 + (test_h.double() * (cov @ test_h.double())).sum(1)

    def mixture(draws: Tensor) -> Tensor:
        return kl_draws(tests, data.test_truth, data.test_noise, data.slope, draws)

    hessian = hessian_two(x, data.y, data.slope, w)
    posterior = hessian + torch.eye(2 * DIM * DIM, dtype=hessian.dtype, device=device)
    eigenvalues = torch.linalg.eigvalsh(posterior)
    found = {
        "MAP": kl_gaussian(data.test_truth, b @ test_h),
        "last layer in closed form": kl_gaussian(data.test_truth, mean @ test_h.double(), variance),
        "last-layer Laplace": kl_gaussian(data.test_truth, b @ test_h, variance),
        "two-layer Laplace": mixture(normal_draws(w, posterior, count, derived_seed(seed, 2), floor=1.0)),
        "negative": (eigenvalues < 0).sum(1).double(),
        "floored": (eigenvalues < 1).sum(1).double(),
        "loss": ((b @ h - data.y).square().sum((1, 2)) / data.n).double(),
    }
    one = _sampled(energy_one(h, data.y), b.flatten(1), settings, derived_seed(seed, 3))
    frozen = a.flatten(1)[:, None].expand(-1, count, -1)
    found["last-layer MCMC"] = mixture(torch.cat([frozen, one.draws.flatten(1, 2)], -1))
    flat = data.slope.flatten() == 1
    two = _joined(
        [
            (flat, energy_linear(x[flat], data.y[flat])),
            (~flat, energy_two(x[~flat], data.y[~flat])),
        ],
        w,
        settings,
        derived_seed(seed, 4),
    )
    found["two-layer MCMC"] = mixture(two.draws.flatten(1, 2))
    for name, part in (("last", one), ("two", two)):
        found[f"{name} rhat"] = torch.tensor([split_rhat(chains) for chains in part.energy.cpu().numpy()])
        found[f"{name} divergent"] = part.divergent.double()
        found[f"{name} accepted"] = part.accepted.double()
    found |= _as_coded(data, x, tests, w, hessian, count, derived_seed(seed, 5))
    errors = {name: torch.where(lost, torch.nan, found[name]) for name in OURS}
    return {**found, **errors, "lost": lost.double()}


def _sampled(energy: Energy, center: Tensor, settings: Mapping[str, Any], seed: int) -> Posterior:
    """Half of the chains start at the MAP estimate and half at draws from the prior: R-hat then sees other modes."""
    chains = settings["chains"]
    start = center[:, None].repeat(1, chains, 1)
    other = chains // 2
    generator = torch.Generator().manual_seed(derived_seed(seed, 6))
    start[:, chains - other :] = torch.randn(len(start), other, start.shape[2], generator=generator).to(start.device)
    return hamiltonian(
        energy, start, draws=settings["draws"], warmup=settings["warmup"], leaps=settings["leaps"], seed=seed
    )


def _joined(
    parts: Sequence[tuple[Tensor, Energy]], center: Tensor, settings: Mapping[str, Any], seed: int
) -> Posterior:
    """Posteriors of data sets that need different energies, put together in the order of the data sets."""
    found = [
        (which, _sampled(energy, center[which], settings, derived_seed(seed, k)))
        for k, (which, energy) in enumerate(parts)
        if which.any()
    ]
    columns = []
    for k in range(len(Posterior._fields)):
        whole = found[0][1][k].new_empty(len(center), *found[0][1][k].shape[1:])
        for which, part in found:
            whole[which] = part[k]
        columns.append(whole)
    return Posterior(*columns)


def _as_coded(
    data: Data, x: Tensor, tests: Tensor, w: Tensor, hessian: Tensor, count: int, seed: int
) -> dict[str, Tensor]:
    """What the authors' published code computes for the last layers, from the same networks.

    It makes two pairs (A, B), one for each activation, and takes the pair with the ReLU whichever is in use: with the
    identity that pair was never trained, and the data say nothing about it. It takes the mean squared error for minus
    the log likelihood, which lacks a factor n/2, with the weight decay as precision of the prior. It predicts with the
    transposes of A and B, and for the Laplace approximations without the ReLU.
    """
    flat = (data.slope.flatten() == 1)[:, None]
    used = torch.where(flat, data.other, w)
    scale = torch.where(flat[:, 0], 0.0, 2.0 / data.n)[:, None, None]
    eye = torch.eye(2 * DIM * DIM, dtype=hessian.dtype, device=hessian.device)
    precision = scale * hessian + DECAY * eye
    a = used[:, : DIM * DIM].reshape(-1, DIM, DIM)
    wrong, wrong_tests = activate(a.mT @ x, data.slope), activate(a.mT @ tests, data.slope)
    mean, cov = last_layer(wrong, data.y)
    variance = 1 + (wrong_tests.double() * (cov @ wrong_tests.double())).sum(1)
    straight = torch.ones_like(data.slope)

    def mixture(draws: Tensor) -> Tensor:
        turned = torch.unflatten(draws, -1, (2, DIM, DIM)).mT.flatten(-3)
        return kl_draws(tests, data.test_truth, data.test_noise, straight, turned, floor=_UNDERFLOW)

    square = DIM * DIM
    drawn = normal_draws(used[:, square:], precision[:, square:, square:], count, seed)
    last = torch.cat([used[:, None, :square].expand(-1, count, -1), drawn], -1)
    both = normal_draws(used, precision, count, derived_seed(seed, 1))
    return {
        "last-layer MCMC as coded": kl_gaussian(data.test_truth, mean @ wrong_tests.double(), variance),
        "last-layer Laplace as coded": mixture(last),
        "two-layer Laplace as coded": mixture(both),
    }
