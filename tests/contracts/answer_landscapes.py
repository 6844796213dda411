"""Small landscapes, one for each route to a coefficient; in a module of its own so that a command line finds them."""

import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.examples.toys import reduced_rank


def smooth():
    """Two linear layers without label noise at a smooth point of the zero set."""
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 1, bias=False))
    return Landscape(net, (x, net(x).detach()), "gaussian")


def singular():
    """The same where the zero set crosses itself."""
    return reduced_rank(3, 2, 3, rank=1, n=100)


def noisy():
    """A linear model with noisy labels."""
    torch.manual_seed(0)
    x = torch.randn(80, 3)
    net = nn.Linear(3, 1, bias=False)
    return Landscape(net, (x, net(x).detach() + torch.randn(80, 1)), "gaussian")


def bent():
    """A tanh network away from any minimum."""
    torch.manual_seed(1)
    x = torch.randn(60, 2)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    return Landscape(net, (x, x.sin().sum(1, keepdim=True)), "gaussian")


def large():
    """As many parameters as a test can anneal in."""
    return reduced_rank(12, 5, 12, rank=2, n=30)
