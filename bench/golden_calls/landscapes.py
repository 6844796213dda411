"""Small landscapes for golden calls, in a module of their own so that a command line finds them."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

import crunode as cr


def products(inputs: int, hidden: int, outputs: int, *, rank: int, n: int) -> cr.Landscape:
    """A linear network of two layers where its zero set crosses itself: both have the rank of the truth."""
    generator = torch.Generator().manual_seed(0)

    def columns(rows: int) -> Tensor:
        return torch.randn(rows, rank, generator=generator) / rows**0.5

    u, p, q = columns(hidden), columns(inputs), columns(outputs)
    net = nn.Sequential(nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, outputs, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(u @ p.T)
        net[1].weight.copy_(q @ u.T)
    x = torch.randn(n, inputs, generator=generator)
    return cr.Landscape(net, (x, net(x).detach()), "gaussian")


def smooth() -> cr.Landscape:
    """Two linear layers without label noise at a smooth point of the zero set."""
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 1, bias=False))
    return cr.Landscape(net, (x, net(x).detach()), "gaussian")


def singular() -> cr.Landscape:
    """The same where the zero set crosses itself."""
    return products(3, 2, 3, rank=1, n=60)


def large() -> cr.Landscape:
    """So many parameters that the default is annealed."""
    return products(500, 205, 500, rank=2, n=4)


def noisy() -> cr.Landscape:
    """A linear model with noisy labels."""
    torch.manual_seed(0)
    x = torch.randn(80, 3)
    net = nn.Linear(3, 1, bias=False)
    return cr.Landscape(net, (x, net(x).detach() + torch.randn(80, 1)), "gaussian")


def bent() -> cr.Landscape:
    """A tanh network away from any minimum."""
    torch.manual_seed(1)
    x = torch.randn(60, 2)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    return cr.Landscape(net, (x, x.sin().sum(1, keepdim=True)), "gaussian")


def classes(width: int = 5) -> cr.Landscape:
    """A tanh network with three classes."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
    x, y = torch.randn(50, 4), torch.randint(3, (50,))
    return cr.Landscape(net, (x, y), "cross-entropy")


def images() -> cr.Landscape:
    """A small convolutional network with two classes."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))
    return cr.Landscape(net, (torch.randn(20, 1, 5, 5), torch.randint(2, (20,))), "cross-entropy")


def doubles(hidden: int = 12) -> cr.Landscape:
    """A network in double precision with more parameters than equations."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2)).double()
    x, y = torch.randn(8, 3).double(), torch.randn(8, 2).double()
    return cr.Landscape(net, (x, y), "gaussian")


def rectified() -> cr.Landscape:
    """A ReLU network at its own labels."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    x = torch.randn(80, 2, dtype=torch.float64)
    return cr.Landscape(net, (x, net(x).detach()), "gaussian")


def crossing(n: int = 1000) -> cr.Landscape:
    """K(x, y) = x²y² at the origin."""
    return cr.Landscape.of_function(lambda w: (w[0] * w[1]) ** 2, torch.zeros(2, dtype=torch.float64), n=n)


def valley() -> cr.Landscape:
    """(w1 w2 − 1)², with a saddle at the origin."""
    return cr.Landscape.of_function(lambda w: (w[0] * w[1] - 1) ** 2, torch.zeros(2, dtype=torch.float64))


def wells() -> cr.Landscape:
    """A wide well that is not as deep as a narrow one."""
    return cr.Landscape.of_function(
        lambda w: torch.minimum(0.02 + w[0] ** 4, 100 * (w[0] - 1) ** 2), torch.ones(1, dtype=torch.float64), n=1000
    )


class Tanh(nn.Module):
    """Tanh units without biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(0.5 * torch.ones(width, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.a.T) @ self.b


def triple(width: int = 2) -> cr.Triple:
    """Tanh units, a single one as the truth, and a prior."""
    prior = cr.Gaussian(1.0, mean="origin")
    return cr.Triple(Tanh(width), torch.tanh, "uniform", features=1, prior=prior, sd=0.5)


@functools.cache
def rungs() -> cr.Draws:
    """Draws of x²y² over levels from hot to cold, which change places."""
    posterior = cr.Posterior(crossing(), tuple(4.0**k for k in range(8)), cr.Gaussian(1.0))
    return cr.sample(posterior, cr.Exchange(cr.HMC(leaps=4)), chains=2, draws=60, warmup=40, layout="batched")
