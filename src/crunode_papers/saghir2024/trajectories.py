"""Trainings of Saghir et al. 2024: a network, an optimizer, and what is measured on the way."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from crunode import EstimationError, InputError, Landscape
from crunode.core import derived_seed
from crunode.curvature import NaturalGradient
from crunode.jobs import place
from crunode_papers.image_data.datasets import load_images
from crunode_papers.networks.models import build
from crunode_papers.saghir2024.measure import measure_point
from crunode_papers.training.loop import train

__all__ = ["AS_RUN", "OPTIMIZERS", "load_tensors", "make_optimizer", "trajectory"]

MOMENTUM = 0.9
_COLUMNS = ("loss", "validation_loss", "validation_accuracy", "update_norm", "gradient_norm", "rate")
OPTIMIZERS = {
    "sgd": "SGD with Nesterov momentum",
    "kaldi": "online NGD with Nesterov momentum",
    "plain": "SGD of eq. 4",
    "empirical": "NGD of eq. 5-7, empirical Fisher matrix",
    "true": "NGD of eq. 5-7, true Fisher matrix",
}
"""Optimizers by name: the first two are what the paper ran, the others what its text describes."""

AS_RUN = (("kaldi", "sgd"), ("empirical", "plain"), ("true", "plain"))
"""NGD and the SGD that it is held against."""


@functools.lru_cache(maxsize=2)
def load_tensors(name: str, size: str, examples: int, pool: int, device: torch.device) -> tuple[Tensor, ...]:
    """Training images and classes, the first `examples` of them, and all test images and classes, on the device.

    Example:
        >>> x, y, test, _ = load_tensors("fashion-mnist", "small", 100, 4, torch.device("cpu"))
        >>> tuple(x.shape), len(y), tuple(test.shape)
        ((100, 49), 100, (1000, 49))
    """
    images = load_images(name, size)
    (x, y), (test_x, test_y) = images.tensors("train", pool), images.tensors("test", pool)
    if len(x) < examples:
        raise InputError(f"expected at least {examples} examples of {name}, got {len(x)}")
    return tuple(t.to(device) for t in (x[:examples].clone(), y[:examples].clone(), test_x, test_y))


def make_optimizer(model: nn.Module, settings: Mapping[str, Any], seed: int) -> torch.optim.Optimizer:
    """One of `OPTIMIZERS` for a model.

    Args:
        model: The model.
        settings: "optimizer" and "lr", and for NGD "alpha" and "epsilon" of eq. 7.
        seed: For what an optimizer draws.
    """
    name, lr = settings["optimizer"], settings["lr"]
    if name not in OPTIMIZERS:
        raise InputError(f"expected an optimizer among {list(OPTIMIZERS)}, got {name!r}")
    fast: dict[str, Any] = {"momentum": MOMENTUM, "nesterov": True} if name in ("sgd", "kaldi") else {}
    if name in ("sgd", "plain"):
        return torch.optim.SGD(model.parameters(), lr=lr, **fast)
    smoothing: dict[str, Any] = {"alpha": settings["alpha"], "epsilon": settings["epsilon"]}
    return NaturalGradient(model, "cross-entropy", lr=lr, fisher=name, seed=seed, **smoothing, **fast)


def trajectory(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train a network, first by a trunk if there is one, and measure at the epochs asked for.

    Args:
        settings: "data", "source", "examples", "pool" as in `load_tensors`; "net", the settings of `build`;
            "optimizer", "lr", "alpha", "epsilon" as in `make_optimizer`; "batch", "epochs", "measure" (epochs to
            measure at); "probe" as in `measure_point`; "seed"; and "trunk", with an optimizer, its lr, epochs and
            measure, for what comes before: its epochs are counted down to 0.

    Returns:
        "curve", the history by epoch; "points", what was measured; "diverged", the epoch in which the loss or the
        weights turned non-finite, or None; "dim", the number of parameters; and "device".
    """
    device, seed = place(), settings["seed"]
    x, y, *validation = load_tensors(
        settings["data"], settings["source"], settings["examples"], settings["pool"], device
    )
    inputs: dict[str, Any] = {} if settings["net"]["model"] == "lenet5" else {"inputs": x.shape[1]}
    model = build(seed=derived_seed(seed, 1), **settings["net"], **inputs).to(device)
    run = _Trajectory(settings, Landscape(model, (x, y), "cross-entropy"), model, (x, y), tuple(validation))
    trunk = settings.get("trunk")
    if trunk is not None:
        run.go(trunk, derived_seed(seed, 4), first=-trunk["epochs"])
    if run.diverged is None:
        run.go(settings, derived_seed(seed, 5), first=0)
    return {
        "curve": run.curve,
        "points": run.points,
        "diverged": run.diverged,
        "dim": run.land.dim,
        "device": device.type,
    }


class _Trajectory:
    """A training as far as it got."""

    def __init__(self, settings: Mapping[str, Any], land: Landscape, model: nn.Module, data: Any, test: Any) -> None:
        self.settings, self.land, self.model, self.data, self.test = settings, land, model, data, test
        self.curve: list[dict[str, Any]] = []
        self.points: list[dict[str, Any]] = []
        self.diverged: int | None = None

    def go(self, part: Mapping[str, Any], seed: int, first: int) -> None:
        """Train on by the settings of a part; epochs are counted from `first`."""
        wanted = {epoch - first for epoch in part["measure"]}

        def look(epoch: int, model: nn.Module, row: dict[str, Any]) -> None:
            self.curve.append({"epoch": epoch + first, **{name: row.get(name) for name in _COLUMNS}})
            if epoch in wanted:
                found = measure_point(
                    self.land.at(model), self.settings["probe"], derived_seed(self.settings["seed"], 6)
                )
                self.points.append({"epoch": epoch + first, "validation_loss": row["validation_loss"], **found})

        optimizer = make_optimizer(self.model, {**self.settings, **part}, derived_seed(seed, 1))
        options = {"epochs": part["epochs"], "batch": self.settings["batch"], "seed": seed, "validation": self.test}
        try:
            train(self.model, self.data, "cross-entropy", optimizer, on_epoch=look, **options)
        except EstimationError:  # the loss, the gradient or the weights are not finite
            self.diverged = self.curve[-1]["epoch"] + 1 if self.curve else first + 1
