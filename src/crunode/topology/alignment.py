"""Symmetries of layered networks taken out: one network's units brought into the order, signs and scales of another's.

Which symmetries there are is tried out on the data, unit layer by unit layer, and not read off the activations.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.params import Packing
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs
from crunode.errors import InputError
from crunode.topology.assignment import least_assignment
from crunode.topology.heights import end_point

__all__ = ["Alignment", "align"]

_SAME, _SAME_SINGLE = 1e-6, 1e-4
_EXAMPLES, _ORDERS, _SWEEPS, _BALANCING = 256, 4, 50, 20


@dataclass(frozen=True)
class Alignment:
    """A network brought next to another one, as the same function.

    Attributes:
        weights: Its weights after alignment, a flat vector.
        permutations: For each layer of hidden units: which unit of the given network is in each place.
        factors: What the inputs of each were multiplied by; its outputs were divided by it.
        symmetries: Which symmetries each layer of units has: "permutation", "sign", "scale".
        change: Largest change of an output on the data, relative to the largest output.
        before: Distance of the two networks in parameter space as given.
        after: Distance after alignment.
    """

    weights: Tensor
    permutations: tuple[np.ndarray, ...]
    factors: tuple[np.ndarray, ...]
    symmetries: tuple[tuple[str, ...], ...]
    change: float
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"distance {self.before:.4g} before alignment, {self.after:.4g} after; outputs changed by {self.change:.1g}"
        )


@dataclass
class _Stack:
    """Weights and biases of consecutive layers, in double precision."""

    weights: list[np.ndarray]
    biases: list[np.ndarray | None]
    order: list[np.ndarray] = field(default_factory=list)
    factors: list[np.ndarray] = field(default_factory=list)

    @property
    def hidden(self) -> int:
        return len(self.weights) - 1

    def copy(self) -> _Stack:
        return _Stack(list(self.weights), list(self.biases), list(self.order), list(self.factors))

    def units(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Incoming and outgoing weights of the units of a hidden layer, one row for each unit."""
        w, bias = self.weights[k], self.biases[k]
        rows = w.reshape(len(w), -1)
        into = rows if bias is None else np.concatenate([rows, bias[:, None]], axis=1)
        out = self.weights[k + 1].reshape(len(self.weights[k + 1]), len(w), -1)
        return into, out.transpose(1, 0, 2).reshape(len(w), -1)

    def change(self, k: int, order: np.ndarray, factor: np.ndarray) -> None:
        """Put units in another order, multiply what goes into them and divide what comes out."""
        w, bias, following = self.weights[k], self.biases[k], self.weights[k + 1]
        self.weights[k] = w[order] * factor.reshape(-1, *[1] * (w.ndim - 1))
        if bias is not None:
            self.biases[k] = bias[order] * factor
        split = following.reshape(len(following), len(w), -1)[:, order] / factor[None, :, None]
        self.weights[k + 1] = split.reshape(following.shape)
        self.order[k], self.factors[k] = self.order[k][order], factor * self.factors[k][order]

    def distance(self, other: _Stack) -> float:
        pairs = zip([*self.weights, *self.biases], [*other.weights, *other.biases], strict=True)
        return float(np.sqrt(sum(np.square(x - y).sum() for x, y in pairs if x is not None and y is not None)))


def align(landscape: Landscape, a: Any, b: Any, *, seed: int = 0) -> Alignment:
    """Bring the network b next to a by the symmetries of hidden units, without changing what it computes.

    Units are matched to maximize the sum of the inner products of their incoming and outgoing weights (weight
    matching), exactly for one hidden layer and layer by layer in turn for more, of which the best of four runs with
    the layers in other orders is taken. Where signs of units can be turned
    (odd activations), the better sign counts. Where units can be scaled (ReLU), both networks are compared in balanced
    form, with equal norms of incoming and outgoing weights, and scales are then chosen to minimize the distance.

    Args:
        landscape: A landscape of a network of linear or convolutional layers one after the other, with parameters
            named "weight" and "bias"; all of them free.
        a: The network to come near to: a flat vector, named tensors or a module of the same kind.
        b: The network to align.
        seed: Of the orders in which layers are visited.

    Returns:
        The aligned network; its outputs on the first 256 examples are those of b to 1e-6 (1e-4 where
            the model insists on single precision).

    Raises:
        InputError: The parameters are not those of consecutive layers, or units cannot be exchanged (skip
            connections, normalization).

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> land = Landscape(net, (torch.randn(8, 2), torch.randn(8, 1)), "gaussian")
        >>> turned = {k: v.detach().clone() for k, v in net.named_parameters()}
        >>> turned["0.weight"], turned["0.bias"] = -turned["0.weight"].flip(0), -turned["0.bias"].flip(0)
        >>> turned["2.weight"] = -turned["2.weight"].flip(1)
        >>> found = align(land, net, turned)
        >>> found.after < 1e-5, found.permutations[0].tolist()
        (True, [2, 1, 0])

    References:
        Ainsworth, Hayase & Srinivasa 2023, "Git Re-Basin", section 3.2; Entezari et al. 2022.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
    one, other = (end_point(landscape, weights, name) for weights, name in ((a, "a"), (b, "b")))
    packing = replace(landscape.packing, dtypes=(torch.float64,) * len(landscape.packing.names), dtype=torch.float64)
    names = _layer_names(packing)
    target, given = (_stacked(packing, names, point) for point in (one, other))
    seen = _Seen(landscape, packing, names)
    generator = np.random.default_rng(derived_seed(seed, 3))
    kinds = [_symmetries(seen, given, k, generator) for k in range(given.hidden)]
    scaled = [k for k, kind in enumerate(kinds) if "scale" in kind]
    model, start = target.copy(), given.copy()
    _balance(model, scaled)
    _balance(start, scaled)
    best = given
    for _ in range(_ORDERS if given.hidden > 1 else 1):
        tried = start.copy()
        _match(model, tried, kinds, generator)
        _fit_scales(target, tried, scaled)
        if tried.distance(target) < best.distance(target):
            best = tried
    change = seen.difference(given, best)
    if change > seen.same:
        raise InputError(f"expected an aligned network with the same outputs, got a change of {change:.2g}")
    return Alignment(
        seen.flat(best).to(landscape.center),
        tuple(best.order),
        tuple(best.factors),
        tuple(kinds),
        change,
        given.distance(target),
        best.distance(target),
    )


class _Seen:
    """What a network gives on the data."""

    def __init__(self, land: Landscape, packing: Packing, names: Sequence[tuple[str, str | None]]) -> None:
        self._evaluation, self._packing, self._names = Evaluation(land), packing, names
        self._device = land.device
        self._batch = next(iter(land.passes(_EXAMPLES)))
        self.same = _SAME if self._evaluation.dtype == torch.float64 else _SAME_SINGLE

    def flat(self, stack: _Stack) -> Tensor:
        named = {}
        for (weight, bias), w, b in zip(self._names, stack.weights, stack.biases, strict=True):
            named[weight] = torch.from_numpy(np.ascontiguousarray(w))
            if bias is not None and b is not None:
                named[bias] = torch.from_numpy(np.ascontiguousarray(b))
        return self._packing.ravel(named).to(self._device)

    def _given(self, stack: _Stack) -> Tensor:
        w = self.flat(stack).to(self._evaluation.dtype)
        with torch.no_grad(), preserved_rng():
            try:
                return self._evaluation.outputs(w, self._batch)
            except NoOutputs:
                return self._evaluation.losses(w, self._batch)

    def difference(self, one: _Stack, other: _Stack) -> float:
        """The largest change of an output, relative to the largest one."""
        first, second = self._given(one), self._given(other)
        return float((first - second).abs().max() / first.abs().max().clamp_min(1e-300))


def _layer_names(packing: Packing) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    shapes = dict(zip(packing.names, packing.shapes, strict=True))
    for name, shape in shapes.items():
        stem, _, last = name.rpartition(".")
        bias = f"{stem}.bias" if stem else "bias"
        if last == "weight" and len(shape) >= 2:
            found.append((name, bias if bias in shapes else None))
    known = {name for pair in found for name in pair}
    odd = [name for name in shapes if name not in known]
    if len(found) < 2 or odd:
        raise InputError(
            f"expected weights and biases of two or more linear or convolutional layers, got {odd or list(shapes)}; "
            "align networks of such layers one after the other, with all parameters free"
        )
    for (first, _), (second, _) in itertools.pairwise(found):
        if shapes[second][1] % shapes[first][0]:
            raise InputError(
                f"expected {second} to take the {shapes[first][0]} outputs of {first}, got a shape {shapes[second]}; "
                "layers have to come one after the other"
            )
    return found


def _stacked(packing: Packing, names: Sequence[tuple[str, str | None]], point: Tensor) -> _Stack:
    tensors = {name: value.cpu().numpy() for name, value in packing.unravel(point).items()}
    weights = [tensors[weight].copy() for weight, _ in names]
    widths = [len(w) for w in weights[:-1]]
    return _Stack(
        weights,
        [None if bias is None else tensors[bias].copy() for _, bias in names],
        [np.arange(n) for n in widths],
        [np.ones(n) for n in widths],
    )


def _symmetries(seen: _Seen, given: _Stack, k: int, generator: np.random.Generator) -> tuple[str, ...]:
    width = len(given.weights[k])
    ones, still = np.ones(width), np.arange(width)
    tries = {
        "permutation": (generator.permutation(width), ones),
        "sign": (still, np.where(np.arange(width) % 2 == generator.integers(2), -1.0, 1.0) if width > 1 else -ones),
        "scale": (still, generator.uniform(0.5, 2.0, width)),
    }
    found = []
    for name, (order, factor) in tries.items():
        moved = given.copy()
        moved.change(k, order, factor)
        if seen.difference(given, moved) <= seen.same:
            found.append(name)
    if "permutation" not in found:
        raise InputError(
            f"expected hidden units that can be exchanged, got other outputs when those of layer {k} were; networks "
            "with skip connections, normalization or shared weights cannot be aligned"
        )
    return tuple(found)


def _balance(stack: _Stack, layers: Sequence[int]) -> None:
    for _ in range(_BALANCING if layers else 0):
        for k in layers:
            into, out = (np.linalg.norm(part, axis=1) for part in stack.units(k))
            alive = (into > 0) & (out > 0)
            factor = np.where(alive, np.sqrt(np.where(alive, out, 1.0) / np.where(alive, into, 1.0)), 1.0)
            stack.change(k, np.arange(len(factor)), factor)


def _match(model: _Stack, stack: _Stack, kinds: Sequence[tuple[str, ...]], generator: np.random.Generator) -> None:
    for _ in range(_SWEEPS):
        moved = False
        for k in generator.permutation(stack.hidden):
            into, out = model.units(k)
            mine, mine_out = stack.units(k)
            gain = into @ mine.T + out @ mine_out.T
            order = least_assignment(-np.abs(gain) if "sign" in kinds[k] else -gain)
            chosen = gain[np.arange(len(order)), order]
            signs = np.where((chosen < 0) & ("sign" in kinds[k]), -1.0, 1.0)
            if (order != np.arange(len(order))).any() or (signs < 0).any():
                moved = True
                stack.change(k, order, signs)
        if not moved:
            return


def _fit_scales(target: _Stack, stack: _Stack, layers: Sequence[int]) -> None:
    for _ in range(_BALANCING if layers else 0):
        for k in layers:
            pairs = zip(*target.units(k), *stack.units(k), strict=True)
            factor = np.array([_nearest_scale(u, v, u0, v0) for u0, v0, u, v in pairs])
            stack.change(k, np.arange(len(factor)), factor)


def _nearest_scale(u: np.ndarray, v: np.ndarray, u0: np.ndarray, v0: np.ndarray) -> float:
    """The s > 0 with least ‖su − u0‖² + ‖v/s − v0‖²: a root of s⁴‖u‖² − s³u·u0 + s v·v0 − ‖v‖²."""
    uu, vv, uu0, vv0 = u @ u, v @ v, u @ u0, v @ v0
    if uu == 0 or vv == 0:
        return 1.0
    roots = np.roots([uu, -uu0, 0.0, vv0, -vv])
    real = roots.real[(np.abs(roots.imag) < 1e-9 * np.abs(roots)) & (roots.real > 0)]
    if not len(real):
        return 1.0
    cost = uu * real**2 - 2 * uu0 * real + vv / real**2 - 2 * vv0 / real
    return float(real[np.argmin(cost)])
