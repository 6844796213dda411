"""Parts of traces: exact sums over layers, and random ones whose mean is a trace.

Random terms give values whose average over independent signs is the trace of a block. Where each example has signs of
its own (`columns` examples), errors of examples average out, and a few probes tell the variance.

References:
    Hutchinson 1990; Dangel, Kunstner & Hennig 2020 (Gauss-Newton factors back-propagated by class).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.curvature.activations import Layer, Record, free_tensors, recorded
from crunode.curvature.loss_factors import loss_factors, loss_slope
from crunode.curvature.piecewise import operations
from crunode.curvature.sign_probes import given_with, layer_probe, probe_shape, random_signs, seeded, signed_rows
from crunode.errors import InputError

__all__ = [
    "ClassProbes",
    "GaussNewton",
    "GaussNewtonProducts",
    "HessianProducts",
    "LayerProbes",
    "Term",
    "exact_gauss_newton",
    "factor_count",
    "model_outputs",
]

# Numbers that are held at once, and that backward passes made at once go through: beyond the processor's cache these
# gain nothing. An accelerator takes more of both, as an operation costs much there beside its arithmetic.
_HELD = 1 << 24
_BATCHED = 1 << 20
_ON_ACCELERATOR = 1 << 27
_HALF = (torch.float16, torch.bfloat16)


class Term(Protocol):
    """A random number for each column and probe; the term is the mean over columns of their expectation.

    Attributes:
        name: What it is a part of.
        columns: Numbers for each probe.
        size: How many products `exact` takes.
    """

    name: str
    columns: int
    size: float

    def sample(self, first: int, count: int) -> Tensor:
        """Values of the probes `first`, `first + 1`, ..., shape (count, columns), in float64."""

    def exact(self) -> float:
        """The term itself, from one product for each coordinate."""


def model_outputs(land: Landscape, free: Mapping[str, Tensor], batch: Any) -> Tensor:
    """Outputs of the model, with the examples as leading axis, in single precision at least.

    Raises:
        InputError: They are no such tensor.
    """
    found = land.functional_outputs(free, batch)
    rows = leaves(batch)[0].shape[0]
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim == 0 or found.shape[0] != rows:
        raise InputError(f"expected outputs as one tensor with a row for each example, got {type(found).__name__}")
    return found.float() if found.dtype in _HALF else found


def factor_count(factors: Tensor, outputs: Tensor) -> int:
    """How many rows an example has in what `loss_factors` gives."""
    return outputs[0].numel() if factors.ndim == 0 else factors.shape[1]


@dataclass(frozen=True)
class GaussNewton:
    """What one pass over the data finds.

    Attributes:
        trace: Trace of the Gauss-Newton matrix.
        zeros: Share of what layers give that is exactly 0.
        curved: Operations that are not piecewise linear.
        kinked: Operations with kinks.
    """

    trace: float
    zeros: float
    curved: tuple[str, ...]
    kinked: tuple[str, ...]


def exact_gauss_newton(land: Landscape, layers: tuple[Layer, ...], signals: int) -> GaussNewton:
    """Trace of the Gauss-Newton matrix over the layers' parameters.

    Tr = (1/n) Σ_i Σ_k ‖J_iᵀ r_ik‖² with J_i the derivatives of an example's outputs in the parameters and r_ik from
    `loss_factors`: one backward pass for each of the `signals` values of k, without gradients in weights.
    """
    free, total = free_tensors(land), torch.zeros((), dtype=torch.float64, device=land.device)
    zeros, values = torch.zeros((), dtype=torch.float64, device=land.device), 0
    curved: set[str] = set()
    kinked: set[str] = set()
    for batch in land.passes(_rows_at_once(land, layers, signals)):
        outputs, records = recorded(layers, lambda b=batch: model_outputs(land, free, b))  # type: ignore[misc]
        factors, seen = loss_factors(land, outputs, batch), operations(outputs)
        curved |= set(seen.curved)
        kinked |= set(seen.kinked)
        sums = [_Squares(record) for record in records]
        for found in _signals(land, outputs, _all_rows(factors, outputs), [record.shift for record in records]):
            for part, signal in zip(sums, found, strict=True):
                if signal is not None:
                    part.add(signal)
        parts = [value for part in sums if (value := part.value()) is not None]
        if parts:
            total += torch.cat(parts).sum(dtype=torch.float64)
        for record in records[:-1]:  # the last one feeds the loss, which has no kinks
            if not isinstance(record.layer.module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                continue  # zeros before a normalization layer come out of it as others
            zeros += (record.given == 0).sum()
            values += record.given.numel()
    trace, share = torch.stack([total, zeros]).tolist()  # the host waits for the device once
    return GaussNewton(trace / land.data.rows, share / max(values, 1), tuple(sorted(curved)), tuple(sorted(kinked)))


def _signals(
    land: Landscape, outputs: Tensor, rows: Tensor, shifts: list[Tensor]
) -> Iterator[tuple[Tensor | None, ...]]:
    """What comes back to the shifts for the rows, shape (rows, *shape of the outputs): several at once, as fits.

    Batched backward passes take as many operations as one. Where some operation cannot be batched, it is one by one.
    """
    fits = max(1, _room(land, _BATCHED) // (land.activations * len(outputs)))
    options = {"retain_graph": True, "allow_unused": True}
    while len(rows):
        several = min(fits, len(rows)) > 1
        try:
            given = rows[:fits] if several else rows[0]
            found = torch.autograd.grad(outputs, shifts, given, is_grads_batched=several, **options)
        except Exception:  # whatever the code of an operation raises on batches of what it expects
            if not several:
                raise
            fits = 1
            continue
        rows = rows[fits:]
        yield found if several else tuple(None if signal is None else signal[None] for signal in found)


class _Squares:
    """Σ_k ‖Σ_t δ_kt (a_t, 1)ᵀ‖² over signals δ_k, by that sum or by inner products of positions, which ever is less."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._sum: Tensor | None = None
        self._kept: list[Tensor] = []

    def add(self, signals: Tensor) -> None:
        """Take in signals with a leading axis k."""
        parts = torch.unflatten(self._record.layer.grouped(signals.flatten(0, 1)), 0, signals.shape[:2])
        if self._record.root.shape[2] > 1:
            # One large product in the end takes less time than many small ones.
            self._kept.append(parts.movedim(0, 2).flatten(2, 3))
        else:
            squares = parts.square().sum((0, 3, 4))
            self._sum = squares if self._sum is None else self._sum.add_(squares)

    def value(self) -> Tensor | None:
        """The sum for each example; None where there were no signals."""
        root = self._record.root
        if self._sum is not None:
            found = self._sum * root.square()[..., 0, 0]
        elif self._kept:
            signals = self._kept[0] if len(self._kept) == 1 else torch.cat(self._kept, 2)
            _, _, positions, inputs = root.shape
            if signals.shape[2] * (inputs - positions) > positions * inputs:
                found = (signals.transpose(2, 3) @ signals) * (root @ root.transpose(2, 3))
            else:
                found = (signals @ root).square()
        else:
            return None
        return found.flatten(1).sum(1)


class LayerProbes:
    """uᵀ H_i u for u with E uuᵀ = G ⊗ 1 in what the layers give, other signs for each example.

    H_i is the second derivative of an example's loss in what all layers give; its mean over signs is the trace of the
    Hessian over the layers' parameters. With `residual`, the loss is replaced by the linear function of the outputs
    that touches it, whose second derivative is the Hessian less the Gauss-Newton matrix.
    """

    def __init__(self, land: Landscape, layers: tuple[Layer, ...], seed: int, *, residual: bool) -> None:
        self.name = "residual" if residual else "layers"
        self.columns = land.data.rows
        self._land, self._layers, self._seed, self._residual = land, layers, seed, residual
        self._free, self._size = free_tensors(land), _rows_at_once(land, layers)
        self.size: float = math.inf

    def sample(self, first: int, count: int) -> Tensor:
        """Values for each example."""
        found = []
        for part, batch in enumerate(self._land.passes(self._size)):
            slopes, records = self._slopes(batch)
            self.size = sum(math.prod(probe_shape(record)[1:]) for record in records)
            rows = leaves(batch)[0].shape[0]
            values = torch.zeros(count, rows, dtype=torch.float64, device=self._land.device)
            for k in range(count if slopes else 0):
                generator = seeded(self._land, self._seed, 0, first + k, part)
                probes = [layer_probe(record, generator) for record in records]
                moved = torch.autograd.grad(
                    slopes, [record.shift for record in records], probes, retain_graph=True, allow_unused=True
                )
                for probe, move in zip(probes, moved, strict=True):
                    if move is not None:
                        values[k] += torch.linalg.vecdot(probe.flatten(1), move.flatten(1)).double()
            found.append(values)
        return torch.cat(found, 1)

    def exact(self) -> float:
        """Its expectation, from unit vectors in place of signs."""
        total = torch.zeros((), dtype=torch.float64, device=self._land.device)
        for batch in self._land.passes(self._size):
            for slope, record in zip(*self._slopes(batch), strict=True):
                shape = probe_shape(record)
                unit = torch.zeros(math.prod(shape[1:]), dtype=record.root.dtype, device=record.root.device)
                for k in range(len(unit)):
                    unit[k] = 1
                    probe = given_with(record, unit.reshape(shape[1:]).expand(shape))
                    unit[k] = 0
                    (move,) = torch.autograd.grad(slope, record.shift, probe, retain_graph=True, allow_unused=True)
                    if move is not None:
                        total += (probe * move).flatten(1).sum(1).double().sum()
        return float(total) / self.columns

    def _slopes(self, batch: Any) -> tuple[list[Tensor], list[Record]]:
        """Derivatives in what layers give, of those layers where they are not constant."""
        land, free = self._land, self._free
        if self._residual:
            value, records = recorded(self._layers, lambda: model_outputs(land, free, batch))
            weights = loss_slope(land, value, batch[-1])[1].detach()
        else:
            value, records = recorded(self._layers, lambda: land.functional(free, batch))
            weights = torch.ones_like(value)
        shifts = [record.shift for record in records]
        slopes = torch.autograd.grad(value, shifts, weights, create_graph=True, allow_unused=True)
        pairs = [(s, r) for s, r in zip(slopes, records, strict=True) if s is not None and s.requires_grad]
        return [slope for slope, _ in pairs], [record for _, record in pairs]


class ClassProbes:
    """‖J_iᵀ Σ_k ±r_ik‖² for signs of each example's own: the Gauss-Newton trace where outputs are many."""

    name = "classes"

    def __init__(self, land: Landscape, layers: tuple[Layer, ...], seed: int, size: int) -> None:
        self.columns = land.data.rows
        self.size: float = size
        self._land, self._layers, self._seed = land, layers, seed
        self._free, self._size = free_tensors(land), _rows_at_once(land, layers)

    def sample(self, first: int, count: int) -> Tensor:
        """Values for each example."""
        found = []
        for part, batch in enumerate(self._land.passes(self._size)):
            outputs, records = recorded(self._layers, lambda b=batch: model_outputs(self._land, self._free, b))  # type: ignore[misc]
            factors = loss_factors(self._land, outputs, batch)
            shifts = [record.shift for record in records]
            values = torch.zeros(count, len(outputs), dtype=torch.float64, device=self._land.device)
            for k in range(count):
                row = signed_rows(factors, outputs, seeded(self._land, self._seed, 1, first + k, part))
                signals = torch.autograd.grad(outputs, shifts, row, retain_graph=True, allow_unused=True)
                for record, signal in zip(records, signals, strict=True):
                    if signal is not None:
                        sums = (record.layer.grouped(signal) @ record.root).square().flatten(1).sum(1)
                        values[k] += sums.double()
            found.append(values)
        return torch.cat(found, 1)

    def exact(self) -> float:
        """Its expectation, class by class."""
        return exact_gauss_newton(self._land, self._layers, int(self.size)).trace


class HessianProducts:
    """vᵀ H v for random signs v over the named parameters, H the Hessian of the mean loss."""

    name = "products"
    columns = 1

    def __init__(self, land: Landscape, names: tuple[str, ...], seed: int) -> None:
        self._land, self._names, self._seed = land, names, seed
        self.size: float = sum(free_tensors(land)[name].numel() for name in names)

    def sample(self, first: int, count: int) -> Tensor:
        """One value for each probe."""
        land = self._land
        total = torch.zeros(count, 1, dtype=torch.float64, device=land.device)
        for batch in land.passes():
            share = leaves(batch)[0].shape[0] / land.data.rows
            slopes, points = self._slopes(batch)
            for k in range(count if slopes else 0):
                generator = seeded(land, self._seed, 2, first + k, 0)
                probes = [random_signs(point.shape, generator, point) for point in points]
                moved = torch.autograd.grad(slopes, points, probes, retain_graph=True, allow_unused=True)
                for probe, move in zip(probes, moved, strict=True):
                    if move is not None:
                        total[k] += share * (probe * move).sum().double()
        return total

    def exact(self) -> float:
        """Its expectation, one parameter after another."""
        total = 0.0
        for batch in self._land.passes():
            share = leaves(batch)[0].shape[0] / self._land.data.rows
            for slope, point in zip(*self._slopes(batch), strict=True):
                for k, entry in enumerate(slope.reshape(-1)):
                    (row,) = torch.autograd.grad(entry, point, retain_graph=True, allow_unused=True)
                    total += 0.0 if row is None else share * float(row.reshape(-1)[k])
        return total

    def _slopes(self, batch: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Derivatives of the mean loss in the parameters, of those where they are not constant."""
        land, free = self._land, free_tensors(self._land)
        own = [free[name].clone().requires_grad_() for name in self._names]
        values = land.functional({**free, **dict(zip(self._names, own, strict=True))}, batch)
        slopes = torch.autograd.grad(values.mean(), own, create_graph=True, allow_unused=True)
        pairs = [(s, w) for s, w in zip(slopes, own, strict=True) if s is not None and s.requires_grad]
        return [slope for slope, _ in pairs], [point for _, point in pairs]


class GaussNewtonProducts:
    """‖Σ_ik ±J_iᵀ r_ik‖² / n over the named parameters, for random signs."""

    name = "products"
    columns = 1
    size = math.inf

    def __init__(self, land: Landscape, names: tuple[str, ...], seed: int) -> None:
        self._land, self._names, self._seed = land, names, seed

    def exact(self) -> float:
        """Not to be had in a useful number of products."""
        raise NotImplementedError

    def sample(self, first: int, count: int) -> Tensor:
        """One value for each probe."""
        land = self._land
        free = free_tensors(land)
        own = {name: free[name].clone().requires_grad_() for name in self._names}
        sums = [[torch.zeros_like(w) for w in own.values()] for _ in range(count)]
        for part, batch in enumerate(land.passes()):
            outputs = model_outputs(land, {**free, **own}, batch)
            factors = loss_factors(land, outputs, batch)
            for k in range(count):
                row = signed_rows(factors, outputs, seeded(land, self._seed, 3, first + k, part))
                slopes = torch.autograd.grad(outputs, list(own.values()), row, retain_graph=True, allow_unused=True)
                for sum_, slope in zip(sums[k], slopes, strict=True):
                    if slope is not None:
                        sum_ += slope.detach()
        squares = [sum((t.double().square().sum() for t in one), torch.zeros((), dtype=torch.float64)) for one in sums]
        return torch.stack([s.to(land.device) for s in squares])[:, None] / land.data.rows


def _all_rows(factors: Tensor, outputs: Tensor) -> Tensor:
    """r_ik for all k and examples, shape (rows, *shape of the outputs)."""
    if factors.ndim:
        return factors.transpose(0, 1).reshape(-1, *outputs.shape)
    count = outputs[0].numel()
    unit = torch.eye(count, dtype=outputs.dtype, device=outputs.device) * factors
    return unit[:, None].expand(count, len(outputs), count).reshape(count, *outputs.shape)


def _rows_at_once(land: Landscape, layers: tuple[Layer, ...], signals: int = 0) -> int:
    """Examples to take at once, so that what layers were given, and signals at many positions, fit beside the rest."""
    held = sum(layer.held + (signals * layer.gives if layer.positions > 1 else 0) for layer in layers)
    return max(1, _room(land, _HELD) // (2 * land.activations + held))


def _room(land: Landscape, numbers: int) -> int:
    """That many numbers on a processor, more on an accelerator."""
    return numbers if land.device.type == "cpu" else max(numbers, _ON_ACCELERATOR)
