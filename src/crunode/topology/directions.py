"""Lines and planes in weight space: random, through solutions, along a training, of largest curvature."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from crunode.core.landscape import Landscape
from crunode.core.result import Finding
from crunode.core.rng import derived_seed
from crunode.curvature.lanczos import top_eigenvalues
from crunode.curvature.operators import hessian
from crunode.errors import InputError
from crunode.training.weight_files import WeightFile, find_weights

__all__ = ["Plane", "eigenvector_plane", "line_between", "plane_through", "random_directions", "trajectory_plane"]

_PARALLEL = 1e-6
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_STATISTICS = (nn.modules.batchnorm._NormBase,)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm, *_STATISTICS)
# What the two first components of a long random walk in many dimensions explain (Antognini & Sohl-Dickstein 2018).
_RANDOM_WALK = 6 / math.pi**2, 6 / math.pi**2 / 4


@dataclass(frozen=True)
class Plane:
    """A line or a plane in weight space: the points origin + Σ c_k d_k.

    Attributes:
        origin: A flat vector of weights.
        directions: One row for each of one or two directions d_k.
        recipe: How the directions were found, as JSON-able values.
        marks: Coordinates of points worth showing, by name; shape (points, directions).
        labels: What the axes are called.
        seed: The seed of random directions.
        findings: What was noticed.

    Raises:
        InputError: A direction is zero or not finite, or the two are parallel.

    Example:
        >>> Plane(torch.zeros(3), torch.eye(3)[:2]).at([1.0, 2.0])
        tensor([1., 2., 0.])
    """

    origin: Tensor = field(repr=False)
    directions: Tensor = field(repr=False)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    marks: Mapping[str, Tensor] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    seed: int | None = None
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        shape = tuple(self.directions.shape)
        if self.origin.ndim != 1 or len(shape) != 2 or shape[0] not in (1, 2) or shape[1] != len(self.origin):
            raise InputError(
                f"expected an origin of d numbers and one or two directions as rows of d, got shapes "
                f"{tuple(self.origin.shape)} and {shape}"
            )
        if not (torch.isfinite(self.origin).all() and torch.isfinite(self.directions).all()):
            raise InputError("expected a finite origin and finite directions, got values that are not")
        lengths = self.directions.double().norm(dim=1)
        if not bool((lengths > 0).all()):
            raise InputError(
                "expected directions with a length above 0, got one of zeros; are two of the points equal?"
            )
        if shape[0] == 2:
            one, other = (self.directions.double() / lengths[:, None]).unbind()
            apart = min(float((one - other).norm()), float((one + other).norm()))
            if apart < _PARALLEL:
                raise InputError(
                    f"expected two directions that span a plane, got parallel ones (unit vectors {apart:.1g} apart); "
                    "give another direction, or draw a profile along one of them"
                )
        if not self.labels:
            object.__setattr__(self, "labels", tuple(f"direction {k + 1}" for k in range(shape[0])))

    @property
    def count(self) -> int:
        """Number of directions."""
        return len(self.directions)

    def at(self, coordinates: Sequence[float] | Tensor) -> Tensor:
        """The weights at the given coordinates."""
        where = torch.as_tensor(coordinates, dtype=self.origin.dtype, device=self.origin.device)
        if where.shape != (self.count,):
            raise InputError(f"expected {self.count} coordinates, got shape {tuple(where.shape)}")
        return self.origin + where @ self.directions

    def place(self, points: Tensor) -> Tensor:
        """Coordinates of the points of the plane that are nearest to `points`, rows of weights."""
        basis = self.directions.double()
        away = points.double() - self.origin.double()
        return torch.t(torch.linalg.solve(basis @ basis.T, basis @ away.T))


def random_directions(land: Landscape, count: int = 2, *, normalize: str = "filter", seed: int = 0) -> Plane:
    """Random directions at the center, each filter scaled to the norm of the weights' filter.

    Directions have normal coordinates. With filter normalization the part d_ij of a direction that belongs to filter j
    of layer i becomes

        d_ij ‖w_ij‖ / ‖d_ij‖ ,

    so that a move along it changes filters by equal shares of their size, and pictures of networks whose layers are
    scaled differently can be compared. A filter is what makes one output: a row of a linear layer's weight, a kernel
    over all input channels of a convolution. As in the code of the paper, tensors with one axis (biases, scales and
    shifts of norm layers) are left where they are.

    Args:
        land: The landscape; the directions begin at its center.
        count: 1 or 2.
        normalize: "filter"; or "none" for normal coordinates as they are, in all tensors.
        seed: The directions come from it.

    Returns:
        The line or plane.

    Raises:
        InputError: There are batch statistics in the model, which normalize with what held at the center; there is no
            tensor with filters, or all of them are zero.

    Example:
        >>> land = Landscape(nn.Linear(3, 2), (torch.randn(9, 3), torch.zeros(9, 2)), "gaussian")
        >>> plane = random_directions(land, seed=1)
        >>> weight = land.packing.unravel(plane.directions[0])["weight"]
        >>> torch.allclose(weight.norm(dim=1), land.packing.unravel(land.center)["weight"].norm(dim=1))
        True

    References:
        Li, Xu, Taylor, Studer & Goldstein 2018, section 4.
    """
    if count not in (1, 2) or isinstance(count, bool):
        raise InputError(f"expected count as 1 or 2 directions, got {count!r}")
    if normalize not in ("filter", "none"):
        raise InputError(f"expected normalize as 'filter' or 'none', got {normalize!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
    findings = _norm_layers(land) if normalize == "filter" else ()
    drawn = []
    for k in range(count):
        generator = torch.Generator().manual_seed(derived_seed(seed, 8, k))
        drawn.append(torch.randn(land.dim, generator=generator, dtype=torch.float64).to(land.center))
    recipe: dict[str, Any] = {"kind": "random", "normalize": normalize}
    if normalize == "filter":
        axes = _filter_axes(land)
        scaled = {name for name, axis in axes.items() if axis is not None}
        recipe |= {"filters": "first axis, second for transposed convolutions", "at_zero": sorted(set(axes) - scaled)}
        if not scaled:
            raise InputError(
                f"expected parameters with two axes or more, whose rows are filters, got only {list(axes)}; give "
                "normalize='none', or a Plane of your own"
            )
        drawn = [_filter_scaled(land, direction, axes) for direction in drawn]
        if not bool(drawn[0].any()):
            raise InputError(f"expected weights that are not all zero, got zeros in {sorted(scaled)}")
    return Plane(land.center, torch.stack(drawn), recipe, _center(count), seed=seed, findings=findings)


def line_between(land: Landscape, a: Any, b: Any) -> Plane:
    """The straight line from one solution to another, at coordinates 0 and 1.

    Args:
        land: The landscape.
        a: Weights as `Landscape.at` takes them: a module, named tensors or a flat vector.
        b: Other weights of the same shapes.

    Raises:
        InputError: The networks have different shapes, are equal, or differ in what is not free.

    Example:
        >>> land = Landscape.of_function(lambda w: (w**2 - 1).square().sum(), torch.ones(2))
        >>> line_between(land, torch.ones(2), -torch.ones(2)).at([0.5])
        tensor([0., 0.])
    """
    start, end = (_flat(land, weights) for weights in (a, b))
    marks = {"a": torch.zeros(1, 1), "b": torch.ones(1, 1)}
    return Plane(start, (end - start)[None], {"kind": "line"}, marks, ("share of the way from a to b",))


def plane_through(land: Landscape, a: Any, b: Any, c: Any) -> Plane:
    """The plane through three solutions: a at (0, 0), b at (1, 0); the second axis is orthogonal and as long.

    Args:
        land: The landscape.
        a: Weights as `Landscape.at` takes them.
        b: Others.
        c: Others.

    Raises:
        InputError: The networks have different shapes, or lie on one line.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(3))
        >>> plane_through(land, torch.zeros(3), 2 * torch.eye(3)[0], torch.ones(3)).marks["c"][0].tolist()
        [0.5, 0.7071...]

    References:
        Garipov, Izmailov, Podoprikhin, Vetrov & Wilson 2018, appendix (their basis, here of equal lengths).
    """
    one, two, three = (_flat(land, weights) for weights in (a, b, c))
    across, up = (two - one).double(), (three - one).double()
    if not float(across.norm()) or not float(up.norm()):
        raise InputError("expected three different points, got two that are equal; draw a profile between the others")
    Plane(one, torch.stack([across, up]).to(one))  # says so when they are on a line
    up = up - (up @ across) / (across @ across) * across
    up = up * (across.norm() / up.norm())
    basis = torch.stack([across, up]).to(one)
    plane = Plane(one, basis)
    marks = {name: plane.place(point[None]).cpu() for name, point in (("a", one), ("b", two), ("c", three))}
    return Plane(one, basis, {"kind": "three points", "length": float(across.norm())}, marks, ("a to b", "towards c"))


def trajectory_plane(land: Landscape, checkpoints: Any) -> Plane:
    """The plane of the two first principal components of a training's weights, through the last of them.

    The weights w_1 … w_T, less their mean, have singular values s_k; the k-th component explains s_k² / Σ s². Two
    numbers help to read them: for a random walk in many dimensions, which goes nowhere, the two first components
    explain 61 % and 15 %, and a path that looks curved is what it gives, too.

    Args:
        land: The landscape; what is not free stays as it is there.
        checkpoints: Three or more weights as `Landscape.at` takes them, in the order of the training; or a folder of
            them (see `find_weights`).

    Returns:
        The plane; the path is `marks["path"]`, and `recipe` has the explained shares and how far each of the weights
        is from the plane.

    Raises:
        InputError: There are fewer than three, they have other shapes, or lie on one line.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(3))
        >>> path = [torch.tensor([4.0, 0, 0]), torch.tensor([1.0, 2, 0]), torch.zeros(3)]
        >>> round(sum(trajectory_plane(land, path).recipe["explained"]), 6)
        1.0

    References:
        Li et al. 2018, section 7; Antognini & Sohl-Dickstein 2018 (random walks).
    """
    given = find_weights(checkpoints).files if isinstance(checkpoints, str | os.PathLike) else checkpoints
    if isinstance(given, Tensor | nn.Module | Mapping) or not isinstance(given, Iterable):
        raise InputError(f"expected a sequence of weights, or a folder of checkpoints, got {type(given).__name__}")
    points = torch.stack([_flat(land, w.load() if isinstance(w, WeightFile) else w) for w in given]).double()
    if len(points) < 3:
        raise InputError(f"expected three checkpoints or more to span a plane, got {len(points)}")
    centered = points - points.mean(0)
    # T × T products: there are far fewer checkpoints than parameters.
    squares, axes = torch.linalg.eigh(centered @ centered.T)
    squares, axes = squares.flip(0).clamp(min=0), axes.flip(1)
    if float(squares[1]) <= 1e-12 * float(squares[0]):
        raise InputError("expected checkpoints that span a plane, got ones that lie on a line; draw a profile instead")
    basis = (centered.T @ axes[:, :2] / squares[:2].sqrt()).T
    # The sign of a component is free: the training begins on the positive side.
    basis = basis * torch.where(basis @ (points[0] - points[-1]) < 0, -1.0, 1.0)[:, None]
    last = points[-1]
    path = (points - last) @ basis.T
    explained = (squares[:2] / squares.sum()).tolist()
    off = ((points - last) - path @ basis).norm(dim=1)
    recipe = {
        "kind": "principal components",
        "checkpoints": len(points),
        "explained": explained,
        "random_walk": list(_RANDOM_WALK),
        "off_plane": off.tolist(),
    }
    findings: tuple[Finding, ...] = ()
    if sum(explained) <= sum(_RANDOM_WALK):
        findings = (Finding.of("TOPO1143", f"{sum(explained):.0%} of the variance"),)
    labels = tuple(f"component {k + 1} ({share:.1%})" for k, share in enumerate(explained))
    marks = {"path": path.cpu(), "end": torch.zeros(1, 2)}
    return Plane(last.to(land.center), basis.to(land.center), recipe, marks, labels, findings=findings)


def eigenvector_plane(land: Landscape, count: int = 2, *, seed: int = 0) -> Plane:
    """The line or plane of the Hessian's largest eigenvalues at the center, with unit vectors as directions.

    Args:
        land: The landscape.
        count: 1 or 2.
        seed: Lanczos steps begin from it.

    Returns:
        The plane, with eigenvalues and their residuals in `recipe`, and what was found about them.

    Raises:
        InputError: The Hessian cannot be had, or there are fewer parameters than directions.

    Example:
        >>> land = Landscape.of_function(lambda w: w[0] ** 2 + 3 * w[1] ** 2 + w[2] ** 2 / 8, torch.zeros(3))
        >>> eigenvector_plane(land).recipe["eigenvalues"]
        [6.0, 2.0]
    """
    if count not in (1, 2) or isinstance(count, bool):
        raise InputError(f"expected count as 1 or 2 directions, got {count!r}")
    found = top_eigenvalues(hessian(land), count, seed=seed)
    recipe = {
        "kind": "eigenvectors of the Hessian",
        "eigenvalues": found.values.tolist(),
        "residuals": found.errors.tolist(),
    }
    labels = tuple(f"eigenvector of {value:.3g}" for value in found.values)
    directions = found.vectors.T.to(land.center)
    # The sign of an eigenvector is free: its largest entry is positive.
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0).to(directions)
    return Plane(land.center, directions, recipe, _center(count), labels, seed, found.findings)


def _center(count: int) -> dict[str, Tensor]:
    return {"center": torch.zeros(1, count)}


def _flat(land: Landscape, weights: Any) -> Tensor:
    """The free parameters of `weights`, which may differ from the landscape in nothing else."""
    there = land.at(weights)
    if not there.same_model(land):
        raise InputError(
            "expected weights that differ in the free parameters only, got others in buffers or fixed parameters "
            "(batch statistics?); the points between would mix two models"
        )
    return there.center


def _norm_layers(land: Landscape) -> tuple[Finding, ...]:
    kinds = {type(m).__name__ for m in land.network.modules() if isinstance(m, _NORMS)}
    stored = {
        type(m).__name__ for m in land.network.modules() if isinstance(m, _STATISTICS) and m.running_mean is not None
    }
    if stored:
        raise InputError(
            f"expected a model without stored statistics under filter normalization, got {', '.join(sorted(stored))}: "
            "away from the center they are not those of the data, and what scaling a filter changes depends on them; "
            "fold them into the layers before (torch.nn.utils.fusion.fuse_conv_bn_eval), use GroupNorm, or give "
            "normalize='none'"
        )
    return (Finding.of("TOPO1142", ", ".join(sorted(kinds))),) if kinds else ()


def _filter_axes(land: Landscape) -> dict[str, int | None]:
    """For each free parameter the axis that counts its filters; None where it has no filters."""
    turned = {
        f"{name}.weight" if name else "weight"
        for name, module in land.network.named_modules()
        if isinstance(module, _TRANSPOSED)
    }
    return {
        name: None if len(shape) < 2 else 1 if name in turned else 0
        for name, shape in zip(land.packing.names, land.packing.shapes, strict=True)
    }


def _filter_scaled(land: Landscape, direction: Tensor, axes: Mapping[str, int | None]) -> Tensor:
    weights, parts = land.packing.unravel(land.center), land.packing.unravel(direction)
    scaled = {}
    for name, axis in axes.items():
        if axis is None:
            scaled[name] = torch.zeros_like(parts[name])
            continue
        others = tuple(k for k in range(parts[name].ndim) if k != axis)
        sizes = [t.double().square().sum(others, keepdim=True).sqrt() for t in (weights[name], parts[name])]
        scaled[name] = (parts[name].double() * sizes[0] / sizes[1].clamp(min=1e-300)).to(parts[name])
    return land.packing.ravel(scaled)
