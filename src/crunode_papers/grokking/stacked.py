"""Quadratic networks along a leading axis, and an optimizer's steps for all of them at once.

Weights are kept by input: `first` has shape (training, 2p, K), so that W x for x = [e_a; e_b] is a sum of two rows, and
`second` has shape (training, K, p). An example is the pair of rows (a, p + b) and its result c.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crunode_papers.grokking.networks import initial_weights
from crunode_papers.grokking.settings import TrainingSettings

__all__ = ["Stack", "gradients", "residuals"]

_BETAS, _EPS = (0.9, 0.999), 1e-8
# Numbers held at once where networks are evaluated on all their examples.
_AT_ONCE = 1 << 24
# Epochs whose orders are drawn together; it decides which stream an order comes from, so it is fixed.
_BLOCK = 64


def residuals(first: Tensor, second: Tensor, rows: Tensor, results: Tensor, centred: bool = True) -> tuple[Tensor, ...]:
    """Wx and P⊥(Ŷ − Y) of stacked networks, P⊥ along the examples.

    Args:
        first: W of each network, shape (T, 2p, K).
        second: V of each, shape (T, K, p).
        rows: a and p + b of each example, shape (T, B, 2).
        results: c of each, shape (T, B).
        centred: Whether P⊥ is there.

    Returns:
        Inputs of the units, shape (T, B, K), and residuals, shape (T, B, p).

    Example:
        >>> w, v = torch.zeros(1, 4, 3), torch.zeros(1, 3, 2)
        >>> residuals(w, v, torch.tensor([[[0, 2], [1, 2]]]), torch.tensor([[0, 1]]))[1].tolist()
        [[[-0.5, 0.5], [0.5, -0.5]]]
    """
    units = _units(first, _flat_rows(rows, first.shape[1])).view(*results.shape, -1)
    return units, _gap(units.square(), second, results, centred)


def gradients(
    first: Tensor, second: Tensor, rows: Tensor, results: Tensor, centred: bool = True
) -> tuple[Tensor, Tensor]:
    """Gradients of ½‖P⊥(Y − Ŷ)‖²_F / B by W and V, for each network of a stack.

    With F = (Wx)² and R = P⊥(Ŷ − Y)/B, where P⊥P⊥ = P⊥: ∂V = FᵀR, ∂F = RVᵀ, ∂(Wx) = 2 Wx ⊙ ∂F, ∂W = Xᵀ ∂(Wx).

    Args:
        first: W of each network, shape (T, 2p, K).
        second: V of each, shape (T, K, p).
        rows: a and p + b of each example, shape (T, B, 2).
        results: c of each, shape (T, B).
        centred: Whether P⊥ is there.

    Returns:
        Tensors of the shapes of `first` and `second`.

    Example:
        >>> w, v = torch.zeros(1, 4, 3), torch.ones(1, 3, 2)
        >>> found = gradients(w, v, torch.tensor([[[0, 2], [1, 2]]]), torch.tensor([[0, 1]]))
        >>> [(tuple(g.shape), bool(g.any())) for g in found]
        [((1, 4, 3), False), ((1, 3, 2), False)]

    References:
        Cullen 2026, section 5: ∂F is −G_F/B.
    """
    flat = _flat_rows(rows, first.shape[1])
    units = _units(first, flat).view(*results.shape, -1)
    features = units.square()
    gap = _gap(features, second, results, centred).div_(results.shape[1])
    by_second = torch.bmm(features.transpose(1, 2), gap)
    by_units = torch.bmm(2 * gap, second.transpose(1, 2)).mul_(units)
    if first.device.type != "cpu":
        return _summed_by_product(by_units, rows, first.shape[1]), by_second
    by_first = torch.zeros_like(first)
    for k in range(2):
        by_first.view(-1, first.shape[2]).index_add_(0, flat[k], by_units.flatten(0, 1))
    return by_first, by_second


def _summed_by_product(values: Tensor, rows: Tensor, inputs: int) -> Tensor:
    """Xᵀ times `values`: on other devices sums by index come in any order, and differ from run to run."""
    one_hot = values.new_zeros(*values.shape[:2], inputs).scatter_(2, rows, 1.0)
    return torch.bmm(one_hot.transpose(1, 2), values)


def _flat_rows(rows: Tensor, inputs: int) -> Tensor:
    """Rows of the networks' tables laid one after another, shape (2, T·B)."""
    offset = torch.arange(0, len(rows) * inputs, inputs, device=rows.device)
    return (rows + offset[:, None, None]).flatten(0, 1).T.contiguous()


def _units(first: Tensor, flat: Tensor) -> Tensor:
    table = first.flatten(0, 1)
    return table.index_select(0, flat[0]).add_(table.index_select(0, flat[1]))


def _gap(features: Tensor, second: Tensor, results: Tensor, centred: bool) -> Tensor:
    gap = torch.bmm(features, second)
    gap.scatter_add_(2, results[:, :, None], gap.new_full((), -1.0).expand(*results.shape, 1))
    return gap.sub_(gap.mean(1, keepdim=True)) if centred else gap


class Stack:
    """Trainings of the same shapes and optimizer, taking their steps together.

    Args:
        settings: Of each training; equal in modulus, width, batch, optimizer, centring, and numbers of pairs.
        dtype: Of weights and everything else.
        device: Where they are.

    Attributes:
        first: W of each, shape (T, 2p, K): a view of the weights.
        second: V of each, shape (T, K, p): likewise.

    Example:
        >>> from crunode_papers.grokking.tasks import ModularTask
        >>> stack = Stack([TrainingSettings(ModularTask(5), width=4, seed=s) for s in (0, 1)])
        >>> before = stack.evaluate()
        >>> stack.epoch(stack.orders(1))
        >>> bool((stack.evaluate()[0] < before[0]).all())
        True
    """

    def __init__(
        self,
        settings: Sequence[TrainingSettings],
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        self.settings, one = list(settings), settings[0]
        self.size, self.examples, self.centred, self._kind = one.size, one.examples, one.centred, one.optimizer
        self.device = torch.device(device)
        p, k = one.task.modulus, one.width
        drawn = [initial_weights(p, k, s.seed, s.scale) for s in settings]
        weights = [torch.cat([w.T.reshape(-1), v.T.reshape(-1)]) for w, v in drawn]
        self._flat = torch.stack(weights).to(self.device, dtype)
        self.first = self._flat[:, : 2 * p * k].view(-1, 2 * p, k)
        self.second = self._flat[:, 2 * p * k :].view(-1, k, p)
        self._mean, self._square = (torch.zeros_like(self._flat) for _ in range(2))
        self._slope = torch.empty_like(self._flat)
        self._count = torch.zeros((), dtype=torch.float64, device=self.device)
        self._rate = torch.tensor([[s.rate] for s in settings], dtype=torch.float64, device=self.device)
        decay = torch.tensor([[s.weight_decay] for s in settings], dtype=torch.float64, device=self.device)
        self._decay, self._shrink = decay.to(dtype), (1 - self._rate * decay).to(dtype)
        self.parts = [self._examples("training"), self._examples("validation")]
        self._block, self._drawn = -1, torch.empty(0, dtype=torch.int64)

    def _examples(self, part: str) -> tuple[Tensor, Tensor]:
        data = [s.task.data(part, inputs="tokens", targets="classes") for s in self.settings]
        pairs, results = (torch.stack(column) for column in zip(*data, strict=True))
        shift = torch.tensor([0, self.settings[0].task.modulus])
        return (pairs + shift).to(self.device), results.to(self.device)

    def orders(self, epoch: int) -> Tensor:
        """Orders of the examples in an epoch, shape (T, N), each from its training's seed and the epoch alone."""
        if self.size == self.examples:
            return torch.arange(self.examples, device=self.device).expand(len(self.settings), -1)
        block, offset = divmod(epoch, _BLOCK)
        if block != self._block:
            whole = np.broadcast_to(np.arange(self.examples), (_BLOCK, self.examples))
            seeds = (np.random.SeedSequence(s.seed, spawn_key=(2, block)) for s in self.settings)
            drawn = [np.random.Generator(np.random.SFC64(seed)).permuted(whole, axis=1) for seed in seeds]
            orders = torch.from_numpy(np.stack(drawn, 1))
            if self.device.type == "cuda":  # from memory that the device reads by itself, so that nobody waits
                orders = orders.pin_memory()
            self._drawn, self._block = orders.to(self.device, non_blocking=True), block
        return self._drawn[offset]

    def epoch(self, order: Tensor) -> None:
        """Go through the examples once in these orders; nothing waits for the device."""
        rows, results = self.parts[0]
        rows = rows.gather(1, order[:, :, None].expand(-1, -1, 2))
        results = results.gather(1, order)
        for start in range(0, self.examples, self.size):
            end = start + self.size
            self._step(rows[:, start:end], results[:, start:end])

    def _step(self, rows: Tensor, results: Tensor) -> None:
        by_first, by_second = gradients(self.first, self.second, rows, results, self.centred)
        slope = torch.cat([by_first.flatten(1), by_second.flatten(1)], 1, out=self._slope)
        if self._kind == "adamw":
            self._flat.mul_(self._shrink)
        else:
            slope.addcmul_(self._flat, self._decay)
        if self._kind == "sgd":
            self._flat.addcmul_(slope, -self._rate.to(slope.dtype))
            return
        self._count += 1
        # Both corrections for the start at zero, as one factor of the rate and one of ε.
        late, root = 1 - _BETAS[0] ** self._count, (1 - _BETAS[1] ** self._count).sqrt()
        self._mean.lerp_(slope, 1 - _BETAS[0])
        self._square.mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
        size = torch.sqrt(self._square, out=slope).add_((_EPS * root).to(slope.dtype))
        self._flat.addcmul_(torch.div(self._mean, size, out=size), (-self._rate * root / late).to(slope.dtype))

    def state(self) -> list[Tensor]:
        """All that steps change."""
        return [self._flat, self._mean, self._square, self._count]

    def weights(self, index: int) -> tuple[Tensor, Tensor]:
        """Copies of W of shape (K, 2p) and V of shape (p, K) of a training."""
        return self.first[index].T.contiguous(), self.second[index].T.contiguous()

    def evaluate(self) -> Tensor:
        """What a run records, shape (6, T) in float64, in the order of `RECORDED`; NaN without finite losses."""
        step = max(1, _AT_ONCE // (max(rows.shape[1] for rows, _ in self.parts) * self.first.shape[2]))
        starts = range(0, len(self.settings), step)
        values = torch.cat([self._evaluated(slice(start, start + step)) for start in starts], 1)
        return torch.where(torch.isfinite(values[:2]).all(0), values, torch.nan)

    def _evaluated(self, part: slice) -> Tensor:
        losses, right, raw = [], [], []
        offset: Tensor | float | None = None
        for rows, results in self.parts:
            _, gap = residuals(self.first[part], self.second[part], rows[part], results[part], centred=False)
            gap, classes = gap.double(), results[part]
            mean = gap.mean(1, keepdim=True)
            if offset is None:  # what training leaves open, as the training examples show it
                offset = mean if self.centred else 0.0
            own = (gap - mean if self.centred else gap).square().sum((1, 2)) / (2 * gap.shape[1])
            outputs = gap.scatter_add(2, classes[:, :, None], torch.ones_like(gap[:, :, :1]))
            losses.append(own)
            right.append(((outputs - offset).argmax(2) == classes).double().mean(1))
            raw.append((outputs.argmax(2) == classes).double().mean(1))
        return torch.stack([*losses, *right, *raw])
