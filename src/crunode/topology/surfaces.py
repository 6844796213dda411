"""The loss over a line or a plane in weight space, as data: evaluated in batches, stored, measured, drawn."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crunode.core.fingerprints import tensor_bytes
from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding, provenance
from crunode.errors import InputError, StoreError
from crunode.reporting.surface_plots import plot_profile, plot_surface
from crunode.store.atomic import digest, read_bytes, write_bytes
from crunode.store.chunks import pack, unpack
from crunode.store.documents import plain, read_document, write_document
from crunode.topology.directions import Plane, random_directions
from crunode.topology.plane_grids import Probe, counts_of, ends_of, probed
from crunode.topology.plane_losses import plane_losses

__all__ = ["Surface", "nonconvex_share", "profile", "surface"]

_FORMAT, _VERSION = "crunode-surface", 1
# Roundings of the three or four losses that make a second difference.
_ROUNDINGS = 8


@dataclass(frozen=True)
class Surface:
    """Losses on a grid of a line or a plane, and what else was measured there.

    Attributes:
        coordinates: Grid of each axis.
        losses: L_n, shape (points of the first axis, points of the second) or (points,); NaN where it is not finite.
        values: What probes gave at the same points, by name; NaN where there is no value.
        errors: Their stated errors.
        marks: Coordinates of points worth showing, by name; shape (points, axes).
        labels: What the axes are called.
        recipe: How the directions were found.
        spec: Resolved settings: how points were evaluated among them.
        seed: The seed all randomness came from.
        findings: What was noticed.
        diagnostics: Errors of probes.
        provenance: Versions and source state.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2))
        >>> seen = surface(land, Plane(land.center, torch.eye(2)), points=3)
        >>> seen.losses[0].tolist()
        [2.0, 1.0, 2.0]
        >>> print(seen)
        surface of 3 × 3 points, loss from 0 to 2 | ok
    """

    coordinates: tuple[np.ndarray, ...]
    losses: np.ndarray
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    errors: Mapping[str, np.ndarray] = field(default_factory=dict)
    marks: Mapping[str, np.ndarray] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    findings: tuple[Finding, ...] = ()
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def axes(self) -> int:
        """1 for a profile, 2 for a surface."""
        return len(self.coordinates)

    @property
    def ok(self) -> bool:
        """True when some losses are finite and no finding of severity "error" stands against it."""
        return bool(np.isfinite(self.losses).any()) and all(f.severity != "error" for f in self.findings)

    def __str__(self) -> str:
        kind, size = ("profile", "surface")[self.axes - 1], " × ".join(str(len(c)) for c in self.coordinates)
        codes = ", ".join(f.code for f in self.findings if f.severity != "info")
        verdict = ("ok" if self.ok else "not ok") + f" ({codes})" * bool(codes)
        if not np.isfinite(self.losses).any():
            return f"{kind} of {size} points, no finite loss | {verdict}"
        low, high = np.nanmin(self.losses), np.nanmax(self.losses)
        return f"{kind} of {size} points, loss from {low:.4g} to {high:.4g} | {verdict}"

    def plot(self, kind: str = "filled", *, color: str | None = None, log: bool = False) -> Any:
        """A matplotlib figure (extra `plot`): see `plot_surface` and `plot_profile`.

        Args:
            kind: "filled", "contour" or "3d" for a surface.
            color: Name of a probe whose values color it; None takes the loss.
            log: Whether losses are drawn on a logarithmic scale.
        """
        return plot_profile(self, color=color, log=log) if self.axes == 1 else plot_surface(self, kind, color, log)

    def curvatures(self, stride: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest eigenvalue of the 2 × 2 Hessian in the coordinates, by central second differences.

        Args:
            stride: Grid steps of a difference.

        Returns:
            Two arrays over the points that have neighbors on all sides; for a profile both are its second derivative.

        Raises:
            InputError: There are fewer than 2 · stride + 1 points along an axis.
        """
        if min(self.losses.shape) < 2 * stride + 1:
            raise InputError(f"expected {2 * stride + 1} points or more along each axis, got {self.losses.shape}")
        steps = [stride * float(c[1] - c[0]) for c in self.coordinates]
        if self.axes == 1:
            second = _shifted(self.losses, stride, 1) + _shifted(self.losses, stride, -1)
            second = (second - 2 * _shifted(self.losses, stride, 0)) / steps[0] ** 2
            return second, second

        def at(i: int, j: int) -> np.ndarray:
            return _shifted(self.losses, stride, i, j)

        xx = (at(1, 0) + at(-1, 0) - 2 * at(0, 0)) / steps[0] ** 2
        yy = (at(0, 1) + at(0, -1) - 2 * at(0, 0)) / steps[1] ** 2
        xy = (at(1, 1) + at(-1, -1) - at(1, -1) - at(-1, 1)) / (4 * steps[0] * steps[1])
        middle, half = (xx + yy) / 2, np.hypot((xx - yy) / 2, xy)
        return middle - half, middle + half

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as PATH.json, a document with a checksum, and PATH.safetensors, the arrays.

        Returns:
            Path of the document.
        """
        home = Path(path).absolute().with_suffix(".json")
        arrays = {f"axis {k}": c for k, c in enumerate(self.coordinates)} | {"losses": self.losses}
        for group in ("values", "errors", "marks"):
            arrays |= {f"{group}/{name}": value for name, value in getattr(self, group).items()}
        file = home.with_suffix(".safetensors")
        content: dict[str, Any] = {"axes": self.axes, "arrays": {"file": file.name, **write_bytes(file, pack(arrays))}}
        for name in ("labels", "recipe", "spec", "seed", "diagnostics", "provenance"):
            content[name] = plain(getattr(self, name), name)
        content["findings"] = [asdict(finding) for finding in self.findings]
        write_document(home, _FORMAT, _VERSION, content)
        return home

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Surface:
        """Inverse of `save`.

        Raises:
            StoreError: A file is missing, corrupt or something else.

        Example:
            >>> import tempfile
            >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2))
            >>> seen = profile(land, Plane(land.center, torch.ones(1, 2)), points=5)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     back = Surface.load(seen.save(Path(folder, "a")))
            >>> np.array_equal(back.losses, seen.losses), back.spec == seen.spec
            (True, True)
        """
        home = Path(path).absolute().with_suffix(".json")
        content = read_document(home, _FORMAT, _VERSION)
        try:
            stated = content.pop("arrays")
            arrays, _ = unpack(read_bytes(home.with_name(stated["file"]), stated))
            coordinates = tuple(arrays.pop(f"axis {k}") for k in range(content.pop("axes")))
            losses = arrays.pop("losses")
            groups: list[dict[str, np.ndarray]] = [
                {k.partition("/")[2]: value for k, value in arrays.items() if k.startswith(f"{group}/")}
                for group in ("values", "errors", "marks")
            ]
            findings = tuple(Finding(**finding) for finding in content.pop("findings"))
            labels = tuple(content.pop("labels"))
            values, errors, marks = groups
            return cls(coordinates, losses, values, errors, marks, labels=labels, findings=findings, **content)
        except (KeyError, TypeError) as error:
            raise StoreError(f"{home} is corrupt: it lacks what a surface has ({error}). Restore it.") from error


def surface(
    land: Landscape,
    plane: Plane | None = None,
    *,
    extent: float | Sequence[Sequence[float]] | None = None,
    points: int | tuple[int, int] = 41,
    probes: Mapping[str, Probe] | None = None,
    seed: int = 0,
) -> Surface:
    """The loss L_n(w₀ + a d₁ + b d₂) on a grid of a plane in weight space.

    All points are evaluated in batches whose size memory bounds. For a chain of layers that begins with a linear one
    its values along the plane are computed once for all points (see `plane_losses`).

    Args:
        land: The landscape.
        plane: The plane; None takes two random directions at the center with filter normalization.
        extent: Half the side of the square around the origin, or ((low, high), (low, high)). None takes 1, or what
            shows all marked points with a margin.
        points: Grid points of an axis, or of each. An odd number has the origin among them.
        probes: Further measurements by name: functions of the landscape at each point that return an `Estimate` or a
            number, such as `functools.partial(cr.llc, ...)` or an accuracy. They are called point by point.
        seed: Random directions come from it.

    Returns:
        The surface. Losses that are not finite are NaN, with the finding TOPO1141.

    Raises:
        InputError: The directions are parallel or of another length; or there is no direction to be had
            (`random_directions`).

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> land = Landscape(net, (torch.randn(32, 2), torch.randn(32, 1)), "gaussian")
        >>> seen = surface(land, points=11)
        >>> seen.losses.shape, bool(abs(seen.losses[5, 5] - float(land.loss())) < 1e-6)
        ((11, 11), True)

    References:
        Li, Xu, Taylor, Studer & Goldstein 2018, Visualizing the loss landscape of neural nets.
    """
    chosen = random_directions(land, 2, seed=seed) if plane is None else plane
    return _evaluated(land, chosen, 2, extent, points, probes, seed)


def profile(
    land: Landscape,
    line: Plane | None = None,
    *,
    extent: float | Sequence[float] | None = None,
    points: int = 101,
    probes: Mapping[str, Probe] | None = None,
    seed: int = 0,
) -> Surface:
    """The loss L_n(w₀ + a d) on a grid of a line in weight space.

    Args:
        land: The landscape.
        line: The line; None takes a random direction at the center with filter normalization.
        extent: Half the length, or (low, high); None takes 1, or what shows all marked points with a margin.
        points: Grid points.
        probes: As for `surface`.
        seed: A random direction comes from it.

    Raises:
        InputError: As for `surface`.

    Example:
        >>> land = Landscape.of_function(lambda w: (w**2 - 1).square().sum(), torch.ones(1))
        >>> from crunode.topology.directions import line_between
        >>> seen = profile(land, line_between(land, torch.ones(1), -torch.ones(1)), points=5, extent=(0, 1))
        >>> seen.losses.tolist()
        [0.0, 0.5625, 1.0, 0.5625, 0.0]
    """
    chosen = random_directions(land, 1, seed=seed) if line is None else line
    return _evaluated(land, chosen, 1, None if extent is None else [extent], points, probes, seed)


def nonconvex_share(seen: Surface) -> Estimate:
    """The share of grid points at which the loss, seen on the plane, has a negative second derivative somewhere.

    Second derivatives are central differences of the grid. A direction of negative curvature in the plane is one of the
    whole landscape; the converse does not hold: curvatures in a random plane are means of those in all directions.

    Args:
        seen: A surface or profile.

    Returns:
        The share; its systematic error is what differences over twice the distance would change, and half of the points
        that rounding leaves open (finding TOPO1145).

    Raises:
        InputError: There are fewer than five points along an axis, or no point with all its neighbors.

    Example:
        >>> land = Landscape.of_function(lambda w: w[0].cos() + w[1] ** 2, torch.zeros(2))
        >>> seen = surface(land, Plane(land.center, torch.eye(2)), extent=math.pi, points=41)
        >>> share = nonconvex_share(seen)
        >>> abs(share.value - 0.5) < share.systematic < 0.05
        True

    References:
        Li et al. 2018, section 6.
    """
    shares = []
    unsure = 0.0
    for stride in (2, 1):
        low, _ = seen.curvatures(stride)
        known = np.isfinite(low)
        if not known.any():
            raise InputError("expected points with finite losses around them, got none; draw a smaller extent")
        step = stride * min(float(c[1] - c[0]) for c in seen.coordinates)
        unit = float(torch.finfo(getattr(torch, str(seen.spec.get("dtype", "float64")))).eps)
        noise = _ROUNDINGS * unit * np.abs(_shifted(seen.losses, stride, *[0] * seen.axes))[known] / step**2
        shares.append(float((low[known] < -noise).mean()))
        unsure = float((np.abs(low[known]) <= noise).mean())
    findings = seen.findings
    if unsure > 0.1:
        findings = (*findings, Finding.of("TOPO1145", f"at {unsure:.0%} of the points"))
    terms = {"differences": abs(shares[1] - shares[0]), "rounding": unsure / 2}
    rest = math.hypot(*terms.values()), findings, dict(seen.spec), seen.seed
    return Estimate("nonconvex share", shares[1], 0.0, *rest, terms=terms, provenance=provenance())


def _evaluated(
    land: Landscape,
    plane: Plane,
    axes: int,
    extent: Any,
    points: Any,
    probes: Mapping[str, Probe] | None,
    seed: int,
) -> Surface:
    if not isinstance(plane, Plane) or plane.count != axes:
        got = f"{plane.count} of them" if isinstance(plane, Plane) else type(plane).__name__
        raise InputError(f"expected a Plane with {axes} direction{'s' * (axes - 1)}, got {got}")
    if len(plane.origin) != land.dim:
        raise InputError(
            f"expected a plane in the {land.dim} free parameters of the landscape, got one in {len(plane.origin)}"
        )
    ends, counts = ends_of(plane, extent), counts_of(points, axes)
    grids = [np.linspace(low, high, count) for (low, high), count in zip(ends, counts, strict=True)]
    # Through an odd number of points around it the origin goes exactly.
    grids = [np.where(np.abs(g) < 1e-12 * np.abs(g).max(), 0.0, g) for g in grids]
    at = torch.from_numpy(np.stack(np.meshgrid(*grids, indexing="ij"), -1).reshape(-1, axes))
    losses, evaluation = plane_losses(land, plane.origin, plane.directions, at)
    findings = [*land.findings, *plane.findings]
    holes = ~np.isfinite(losses)
    if holes.any():
        findings.append(Finding.of("TOPO1141", f"{int(holes.sum())} of {losses.size} points"))
    losses = np.where(holes, np.nan, losses)
    spec = {
        "dim": land.dim,
        "n": land.n,
        "loss": land.loss_name,
        "dtype": str(land.center.dtype).removeprefix("torch."),
        "device": land.device.type,
        "landscape": land.fingerprint(),
        "directions": digest(b"".join(tensor_bytes(t) for t in (plane.origin, plane.directions))),
        "extent": [list(pair) for pair in ends],
        "points": list(counts),
        "probes": list(probes or ()),
        "evaluation": evaluation,
    }
    found = Surface(
        tuple(grids),
        losses.reshape(counts),
        marks={name: np.asarray(where.cpu(), dtype=np.float64) for name, where in plane.marks.items()},
        labels=plane.labels,
        recipe=dict(plane.recipe),
        spec=spec,
        seed=seed if plane.seed is None else plane.seed,
        findings=tuple(findings),
        provenance=provenance(),
    )
    return _probed(found, land, plane, at, probes) if probes else found


def _probed(seen: Surface, land: Landscape, plane: Plane, at: torch.Tensor, probes: Mapping[str, Probe]) -> Surface:
    """The surface with what the probes say at each of its points."""
    columns, troubles = probed(land, plane, at, probes)
    bad = {name: told for name, told in troubles.items() if told}
    findings = [Finding.of("TOPO1144", f"{name} at {len(told)} of {len(at)}") for name, told in bad.items()]
    shape = seen.losses.shape
    return replace(
        seen,
        values={name: column[0].reshape(shape) for name, column in columns.items()},
        errors={name: column[1].reshape(shape) for name, column in columns.items()},
        findings=(*seen.findings, *findings),
        diagnostics={"probe_errors": bad} if bad else {},
    )


def _shifted(losses: np.ndarray, stride: int, *shifts: int) -> np.ndarray:
    """The inner part of the grid, moved by so many strides."""
    parts = (slice(stride * (1 + s), n - stride * (1 - s)) for s, n in zip(shifts, losses.shape, strict=True))
    return losses[tuple(parts)]
