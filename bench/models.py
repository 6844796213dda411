"""The three benchmark cases, in plain torch: models, data and sampling settings.

Nothing but torch is imported here, so that every measured tool reads the same cases from its own
environment. ``build(name)`` is seeded and leaves the global generator as it found it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Case = tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor], int]

CHAINS = (8, 32)
LOCALIZATION = 1.0


@dataclass(frozen=True)
class Settings:
    """What both sides sample with: w += -step/2 (nbeta grad L + localization (w - w0)) + sqrt(step) noise."""

    step_size: float
    nbeta: float
    localization: float = LOCALIZATION


class Quadratic(nn.Module):
    """f(x) = V (W x)^2, the square taken element by element; no biases."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden, bias=False)
        self.second = nn.Linear(hidden, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).square())


def _tiny() -> Case:
    """Deep linear net 5-4-4-5 at a rank-2 truth, n = 2000, mean squared error, batches of 256."""
    n, noise = 2000, 0.1
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 5, bias=False))
    with torch.no_grad():
        model[1].weight[2:] = 0.0
        model[2].weight[:, 2:] = 0.0
        inputs = torch.randn(n, 5)
        targets = model(inputs) + noise * torch.randn(n, 5)
    return model, inputs, targets, F.mse_loss, 256


def _mlp() -> Case:
    """ReLU net 784-256-256-10 on random inputs and labels, n = 4096, cross-entropy, batches of 128."""
    n = 4096
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.randn(n, 784), torch.randint(10, (n,)), F.cross_entropy, 128


def _quadratic() -> Case:
    """Quadratic net on addition modulo p = 53 (d = 106, K = 512), n = 1124, squared error, batches of 128."""
    p, hidden, n = 53, 512, 1124
    model = Quadratic(2 * p, hidden, p)
    pairs = torch.cartesian_prod(torch.arange(p), torch.arange(p))[torch.randperm(p * p)[:n]]
    inputs = F.one_hot(pairs, p).reshape(n, 2 * p).float()
    targets = F.one_hot(pairs.sum(dim=1) % p, p).float()
    return model, inputs, targets, F.mse_loss, 128


_BUILDERS: dict[str, Callable[[], Case]] = {"tiny": _tiny, "mlp": _mlp, "quadratic": _quadratic}
_STEP_SIZES = {"tiny": 1e-5, "mlp": 1e-6, "quadratic": 1e-6}
MODELS = tuple(_BUILDERS)


def build(name: str, seed: int = 0) -> Case:
    """Return (module, inputs, targets, loss_fn, batch_size); loss_fn(outputs, targets) is a mean."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _BUILDERS[name]()


def settings(name: str, n: int) -> Settings:
    """The sampling settings of a case with n data: nbeta = n / log n."""
    return Settings(step_size=_STEP_SIZES[name], nbeta=n / math.log(n))
