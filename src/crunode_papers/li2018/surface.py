"""`li2018-surface`: what depth, skip connections and batch size do to pictures of the loss (Li et al. 2018)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from crunode import Landscape
from crunode.core import derived_seed, need, preserved_rng
from crunode.curvature import hessian, top_eigenvalues
from crunode.jobs import Cell, Expected, Recipe, Result, Row, place
from crunode.topology import Plane, nonconvex_share, profile, random_directions, surface
from crunode_papers.image_data.datasets import load_images
from crunode_papers.networks.models import FFNN, build

__all__ = ["RECIPE", "ResidualNet", "cells", "compute", "figures", "rows", "sharpness", "trained"]

_SIZES: Mapping[str, dict[str, Any]] = {
    "toy": {"blocks": (1, 7), "channels": 6, "pool": 4, "n": 100, "epochs": 60, "points": 9, "probed": 0, "seeds": 3},
    "paper": {
        "blocks": (1, 9, 27),
        "channels": 16,
        "pool": 2,
        "n": 1000,
        "epochs": 60,
        "points": 31,
        "probed": 5,
        "seeds": 5,
    },
}
_EXTENT, _BATCH, _DECAY = 0.5, 50, 5e-4
_KINDS = {"skip": "with skip connections", "plain": "without them"}
# Networks for the batch sizes: loss to stop at, weight decays, batches with their rates, directions and their steps.
_LEVEL, _DECAYS, _BATCHES, _MEASURED = 0.4, (0.0, 2e-3), {"small": (8, 0.02), "large": (256, 0.1)}, 8
_STEPS = {"filter": 0.1, "none": 0.01}
_FACTOR = 3.0
# One-sided 95 % points of Student's t by degrees of freedom.
_STUDENT = {1: 6.31, 2: 2.92, 4: 2.13, 8: 1.86}


class ResidualNet(nn.Module):
    """Convolutions in blocks of two, with or without a connection past each block, and no norm layers.

    The second convolution of a block starts smaller by the root of the number of blocks where there are skip
    connections, so that outputs are of the same size with any number of blocks. Weights are those of He et al.

    Args:
        blocks: Number of blocks; there are 2 · blocks + 2 layers.
        skip: Whether what goes into a block is added to what comes out.
        channels: Channels of all convolutions.
        side: Pixels of a side of the images, which come as rows.

    Example:
        >>> tuple(ResidualNet(1, True, 4, 7)(torch.zeros(3, 49)).shape)
        (3, 10)
    """

    def __init__(self, blocks: int, skip: bool, channels: int, side: int) -> None:
        super().__init__()
        self.skip, self.side = skip, side
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.first = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(blocks))
        self.second = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(blocks))
        self.output = nn.Linear(4 * channels, 10)
        for layer in (m for m in self.modules() if isinstance(m, nn.Conv2d)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        if skip:
            for weight in (p for p in self.second.parameters() if p.ndim > 1):
                weight.data /= math.sqrt(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for the classes."""
        h = torch.relu(self.stem(x.reshape(-1, 1, self.side, self.side)))
        for first, second in zip(self.first, self.second, strict=True):
            z = second(torch.relu(first(h)))
            h = torch.relu(h + z if self.skip else z)
        found: Tensor = self.output(functional.adaptive_avg_pool2d(h, 2).flatten(1))
        return found


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each network and seed, one for each decay and seed, and one for a network with rescaled layers."""
    plan = _SIZES[size]
    found = []
    for k in range(plan["seeds"]):
        for blocks in plan["blocks"]:
            for kind in _KINDS:
                rest = {name: plan[name] for name in ("channels", "pool", "n", "epochs", "points", "probed")}
                settings = {"blocks": blocks, "kind": kind, **rest, "seed": derived_seed(seed, 1, k), "index": k}
                found.append(Cell(f"{kind} {blocks} seed {k}", settings))
        for decay in _DECAYS:
            settings = {"decay": decay, "n": 256, "seed": derived_seed(seed, 2, k)}
            found.append(Cell(f"decay {decay:g} seed {k}", settings))
    found.append(Cell("rescaled", {"factor": _FACTOR, "n": 256, "seed": derived_seed(seed, 3)}))
    return found


def compute(cell: Cell) -> dict[str, Any]:
    """A trained network's surface, or sharpness of two trained networks, or of one before and after rescaling."""
    settings = cell.settings
    if "kind" in settings:
        return _surface(settings)
    return _rescaled(settings) if "factor" in settings else _batches(settings)


def trained(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, batch: int, rate: float, **rest: Any) -> int:
    """Train in place by SGD with momentum on cross-entropy, gradients clipped to norm 1; returns the steps.

    Deep networks without skip connections or norm layers do not survive their first steps unclipped.

    Args:
        model: The model.
        x: Inputs.
        y: Classes.
        epochs: Most epochs.
        batch: Examples of a step.
        rate: Learning rate.
        rest: `decay` of weights; `level`, a mean loss to stop at; `seed` of the order of examples.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=rest["decay"])
    generator, steps = torch.Generator().manual_seed(rest["seed"]), 0
    for _ in range(epochs):
        for index in torch.split(torch.randperm(len(x), generator=generator).to(x.device), batch):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(x[index]), y[index]))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
        with torch.no_grad():
            if float(functional.cross_entropy(model(x), y)) < rest.get("level", 0.0):
                break
    return steps


def sharpness(land: Landscape, normalize: str, seed: int) -> float:
    """Mean over random directions d of (L(w + hd) + L(w − hd) − 2L(w))/h²."""
    h, found = _STEPS[normalize], []
    for k in range(_MEASURED):
        line = random_directions(land, 1, normalize=normalize, seed=derived_seed(seed, k))
        low, middle, high = profile(land, line, points=3, extent=h).losses
        found.append(float(low + high - 2 * middle) / h**2)
    return statistics.fmean(found)


def _data(pool: int, n: int) -> tuple[Tensor, Tensor]:
    x, y = load_images("fashion-mnist").tensors("train", pool=pool)
    x = x[:n]
    return (x - x.mean()) / x.std(), y[:n]


def _surface(settings: Mapping[str, Any]) -> dict[str, Any]:
    x, y = (tensor.to(place()) for tensor in _data(settings["pool"], settings["n"]))
    with preserved_rng():
        torch.manual_seed(settings["seed"])
        net = ResidualNet(settings["blocks"], settings["kind"] == "skip", settings["channels"], math.isqrt(x.shape[1]))
    net.to(x.device)
    order = {"decay": _DECAY, "seed": derived_seed(settings["seed"], 1)}
    trained(net, x, y, epochs=settings["epochs"], batch=_BATCH, rate=0.05, **order)
    land = Landscape(net, (x, y), functional.cross_entropy)
    plane = random_directions(land, seed=derived_seed(settings["seed"], 2))
    seen = surface(land, plane, points=settings["points"], extent=_EXTENT)
    share = nonconvex_share(seen)
    low, high = (c[np.isfinite(c)] for c in seen.curvatures())
    ratios = np.where(low < 0, np.minimum(-low / np.maximum(np.abs(high), 1e-30), 1.0), 0.0)
    found = {
        "loss": float(land.loss()),
        "share": share.value,
        "share_error": share.systematic,
        "ratio": float(ratios.mean()),
        "highest": float(np.nanmax(seen.losses)),
        "evaluation": seen.spec["evaluation"]["name"],
        "losses": seen.losses.tolist() if settings["index"] == 0 else None,
    }
    if settings["probed"]:
        found["hessian_ratio"] = _hessian_ratio(land, plane, settings)
    return found


def _hessian_ratio(land: Landscape, plane: Plane, settings: Mapping[str, Any]) -> float:
    """Mean of −λ_min/λ_max of the whole Hessian at points of the plane, where λ_min is negative."""
    corners = [(0.0, 0.0), *((a * _EXTENT / 2, b * _EXTENT / 2) for a in (-1, 1) for b in (-1, 1))]
    found = []
    for corner in corners[: settings["probed"]]:
        operator = hessian(land.at(plane.at(corner)))
        high = top_eigenvalues(operator, seed=settings["seed"]).values[0]
        low = -top_eigenvalues(-operator, seed=settings["seed"]).values[0]
        found.append(max(0.0, -low / high))
    return statistics.fmean(found)


def _batches(settings: Mapping[str, Any]) -> dict[str, Any]:
    x, y = _data(4, settings["n"])
    found: dict[str, Any] = {}
    for name, (batch, rate) in _BATCHES.items():
        net = build(FFNN, layers=1, width=32, inputs=x.shape[1], seed=settings["seed"]).double()
        rest = {"decay": settings["decay"], "level": _LEVEL, "seed": derived_seed(settings["seed"], 1)}
        steps = trained(net, x.double(), y, epochs=3000, batch=batch, rate=rate, **rest)
        land = Landscape(net, (x.double(), y), functional.cross_entropy)
        measured = {way: sharpness(land, way, settings["seed"]) for way in _STEPS}
        found[name] = {**measured, "loss": float(land.loss()), "norm": float(land.center.norm()), "steps": steps}
    return found


def _rescaled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A ReLU network with one layer multiplied and the next divided by a factor, which is the same function."""
    x, y = _data(4, settings["n"])
    x = x.double()
    net = build(FFNN, layers=1, width=32, inputs=x.shape[1], seed=settings["seed"]).double()
    rest = {"decay": 0.0, "level": _LEVEL, "seed": derived_seed(settings["seed"], 1)}
    trained(net, x, y, epochs=3000, batch=32, rate=0.05, **rest)
    before = Landscape(net, (x, y), functional.cross_entropy)
    with torch.no_grad():
        for name, value in net.named_parameters():
            if name.startswith("hidden1"):
                value.mul_(settings["factor"])
            elif name == "output.weight":
                value.div_(settings["factor"])
    after = before.at(net)
    one, other = (surface(land, points=11, seed=settings["seed"]).losses for land in (before, after))
    plain = [sharpness(land, "none", settings["seed"]) for land in (before, after)]
    return {
        "change": float(np.abs(other / one - 1).max()),
        "plain_change": plain[1] / plain[0],
        "loss_change": abs(float(after.loss()) / float(before.loss()) - 1),
    }


_DEPTH, _SHARP = "section 6, network depth and shortcut connections", "section 5, figures 3 and 4"


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """The paper's claims as lower 95 % limits of differences, which have to be above zero, and what they rest on."""
    by_net: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        if "kind" in result.settings:
            by_net.setdefault((result.settings["kind"], result.settings["blocks"]), []).append(result)
    table = _nets(by_net)
    for decay in _DECAYS:
        mine = [r for r in results if r.settings.get("decay") == decay]
        if len(mine) > 1:
            table += _batch_rows(decay, mine)
    for result in results:
        if "factor" in result.settings:
            same = Expected(0.0, 1e-9, "section 4: layers of ReLU networks can be rescaled", exact=True)
            table.append(same.row("rescaled layers: change of the filter-normalized surface", result["change"]))
            table.append(_shown("rescaled layers: factor of sharpness without normalization", result["plain_change"]))
    return table


def _nets(by_net: Mapping[tuple[str, int], list[Result]]) -> list[Row]:
    table = []
    for (kind, blocks), mine in by_net.items():
        for name, title in (("share", "nonconvex share"), ("ratio", "mean −λmin/λmax"), ("loss", "loss")):
            table.append(_shown(f"{2 * blocks + 2} layers {_KINDS[kind]}: {title}", *_mean([r[name] for r in mine])))
    depths = sorted({blocks for _, blocks in by_net})
    shallow, deep = depths[0], depths[-1]
    complete = len(depths) > 1 and all(
        len(by_net.get((kind, blocks), [])) > 1 for kind in _KINDS for blocks in (shallow, deep)
    )
    if not complete:
        return table

    def values(kind: str, blocks: int, name: str) -> list[float]:
        return [r[name] for r in by_net[kind, blocks]]

    layers = f"{2 * deep + 2} layers"
    measured = by_net["plain", deep][0].value or {}
    words = {
        "share": "nonconvex share",
        "hessian_ratio": "−λmin/λmax of the Hessian",
        "ratio": "−λmin/λmax in the plane",
    }
    for name in (name for name in words if name in measured):
        plain, skip, before = (values(*net, name) for net in (("plain", deep), ("skip", deep), ("plain", shallow)))
        for title, other in (
            (f"{layers}: {words[name]}, without less with skip connections", skip),
            (f"without skip connections: {words[name]}, {layers} less {2 * shallow + 2}", before),
        ):
            # Ratios in the plane are those of a few points near the border: too scattered to decide by.
            table.append(_difference(title, plain, other) if name == "ratio" else _above(title, plain, other))
    return table


def _batch_rows(decay: float, mine: Sequence[Result]) -> list[Row]:
    title = f"weight decay {decay:g}"
    logs = {way: [math.log(r["large"][way] / r["small"][way]) for r in mine] for way in _STEPS}
    mean, se = _mean(logs["filter"])
    limit = mean - _STUDENT[len(mine) - 1] * se
    claim = Expected(0.0, 0.0, _SHARP, side="at least")
    name = f"{title}: log sharpness, large less small batches, filter-normalized (lower 95 % limit)"
    table = [claim.row(name, limit, note=f"mean {mean:.3g} ± {se:.2g}")]
    table.append(_shown(f"{title}: log sharpness, large less small batches, not normalized", *_mean(logs["none"])))
    norms = [math.log(r["large"]["norm"] / r["small"]["norm"]) for r in mine]
    table.append(_shown(f"{title}: log norm of weights, large less small batches", *_mean(norms)))
    return table


def _mean(values: Sequence[float]) -> tuple[float, float]:
    se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), se


def _shown(name: str, value: float, se: float | None = None) -> Row:
    return Row(name, None, value, se, None, "shown")


def _above(name: str, large: Sequence[float], small: Sequence[float]) -> Row:
    """Whether one mean is above the other, with 5 % false alarms."""
    (a, one), (b, other) = _mean(large), _mean(small)
    se = math.hypot(one, other)
    limit = a - b - _STUDENT[len(large) + len(small) - 2] * se
    claim = Expected(0.0, 0.0, _DEPTH, side="at least")
    return claim.row(f"{name} (lower 95 % limit)", limit, note=f"difference {a - b:.3g} ± {se:.2g}")


def _difference(name: str, large: Sequence[float], small: Sequence[float]) -> Row:
    (a, one), (b, other) = _mean(large), _mean(small)
    return _shown(name, a - b, math.hypot(one, other))


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Contours of the first seed's surfaces, one panel for each network, on one logarithmic scale."""
    drawn = [r for r in results if r.settings.get("index") == 0]
    if not drawn:
        return []
    figure = need("matplotlib.figure", extra="plot").Figure(
        figsize=(3.2 * len(drawn), 3.2), dpi=100, layout="constrained"
    )
    logs = [np.log10(np.asarray(r["losses"], dtype=float)).T for r in drawn]
    finite = np.concatenate([part[np.isfinite(part)] for part in logs])
    levels = np.linspace(finite.min(), np.quantile(finite, 0.98), 25)
    panels = np.atleast_1d(figure.subplots(1, len(drawn), sharey=True))
    for axes, result, values in zip(panels, drawn, logs, strict=True):
        grid = np.linspace(-_EXTENT, _EXTENT, len(values))
        areas = axes.contourf(grid, grid, np.ma.masked_invalid(values), levels=levels, cmap="viridis", extend="max")
        layers = 2 * result.settings["blocks"] + 2
        axes.set_title(f"{layers} layers {_KINDS[result.settings['kind']]}", fontsize=9)
        axes.set_aspect("equal")
    figure.colorbar(areas, ax=list(panels), label="log₁₀ loss", shrink=0.8)
    path = folder / "surfaces.png"
    figure.savefig(path)
    return [path]


RECIPE = Recipe(
    name="li2018-surface",
    title="depth without skip connections makes surfaces nonconvex; filter normalization makes sharpness comparable",
    paper="Li, Xu, Taylor, Studer & Goldstein 2018, Visualizing the Loss Landscape of Neural Nets, NeurIPS 31; "
    "arXiv:1712.09913",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Small convolutional networks on images of Fashion-MNIST stand for the ResNets on CIFAR-10 of the paper, and "
    "have no norm layers: batch statistics hold at the center only. Surfaces are of the training loss over two random "
    "filter-normalized directions, half a filter's norm to each side. The paper compares pictures by eye; here the "
    "share of points with a direction of negative curvature in the plane, and the mean of −λmin/λmax, are compared, "
    "over trainings from several seeds. A claim counts as agreeing when the lower 95 % limit of the difference is "
    "above zero. Deep networks without skip connections also end at a higher loss, as in the paper, so that what is "
    "compared are ends of trainings and not minima of equal depth.\n\n"
    "Networks of small and large batches are trained to the same loss, since the curvature of cross-entropy goes to "
    "zero with the loss. In the paper, where all are trained for the same time, weight decay turns the comparison "
    "around when directions are not normalized, since small batches then end with smaller weights; at equal loss the "
    "norms are nearly the same, and it does not. That sharpness without normalization can be given any value is "
    "shown by layers that are multiplied and divided by a factor: the filter-normalized surface does not change.",
)
