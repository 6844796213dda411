r"""Posteriors of the last layers of a trained network, and the generalization error of what they predict.

g is frozen at its MAP estimate, $w = (A, B)$ or $w = B$ has a standard normal prior, and the generalization error of a
predictive density $\hat q$ is $G = E_x \mathrm{KL}(q(\cdot|x) \Vert \hat q(\cdot|x))$ (Murfet et al. 2020, eq. 8, 20
and 21).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from crunode_papers.murfet2020.hamiltonian import Energy
from crunode_papers.murfet2020.networks import DIM, activate

__all__ = [
    "energy_linear",
    "energy_one",
    "energy_two",
    "hessian_two",
    "kl_draws",
    "kl_gaussian",
    "last_layer",
    "normal_draws",
]

_SQUARE = DIM * DIM


def last_layer(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    r"""The posterior of B given features, in closed form: it is linear regression with a Gaussian prior.

    $y = B h + \varepsilon$, $B \sim N(0, I)$: the rows of B are independent with covariance
    $\Sigma = (H H^\top + I)^{-1}$ and mean $Y H^\top \Sigma$.

    Args:
        h: Features, (data set, feature, example), 0 where there is no example.
        y: Outputs, (data set, output, example).

    Returns:
        Mean of B, (data set, output, feature), and Σ, (data set, feature, feature), in float64.

    Example:
        >>> mean, cov = last_layer(torch.ones(1, 1, 3), torch.full((1, 1, 3), 2.0))
        >>> mean.item(), cov.item()
        (1.5, 0.25)
    """
    h, y = h.double(), y.double()
    precision = h @ h.mT + torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
    cov = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    return y @ h.mT @ cov, cov


def kl_gaussian(truth: Tensor, mean: Tensor, variance: Tensor | None = None) -> Tensor:
    r"""G of the predictive density $N(m(x), s(x) I)$ when the truth is $N(f_0(x), I)$, averaged over test inputs.

    $\mathrm{KL} = \frac{M}{2}(\log s + 1/s - 1) + \lVert f_0 - m\rVert^2 / 2s$ with M outputs.

    Args:
        truth: f0 at the test inputs, (data set, output, test).
        mean: m there.
        variance: s there, (data set, test); None for 1, the prediction of a point estimate.

    Example:
        >>> kl_gaussian(torch.zeros(1, 2, 1), torch.ones(1, 2, 1)).item()
        1.0
    """
    gap = (truth.double() - mean.double()).square().sum(1)
    if variance is None:
        return gap.mean(-1) / 2
    s = variance.double()
    return (truth.shape[1] / 2 * (s.log() + 1 / s - 1) + gap / (2 * s)).mean(-1)


def kl_draws(x: Tensor, truth: Tensor, noise: Tensor, slope: Tensor, draws: Tensor, floor: float = -math.inf) -> Tensor:
    r"""G of the mixture $\frac1R \sum_r p(y|x, w_r)$ over draws, on a test set.

    Args:
        x: g at the test inputs, (data set, 3, test).
        truth: f0 there.
        noise: Test outputs are `truth + noise`.
        slope: 1 for identity, 0 for ReLU in h, (data set, 1, 1).
        draws: A and B, (data set, draw, 18).
        floor: Log densities below it count as minus infinity: what exponentials of finite precision do.

    Returns:
        (data set,), in float64.

    Example:
        >>> x, truth, noise = torch.randn(3, 1, 3, 50)
        >>> kl_draws(x, torch.zeros_like(x), noise, torch.ones(1, 1, 1), torch.zeros(1, 4, 18)).abs().item() < 1e-6
        True
    """
    sets, count, _ = draws.shape
    tests = x.shape[-1]
    # As much at a time as a processor's cache holds, or as a GPU does quickly.
    block = max(1, (1 << 26 if x.is_cuda else 1 << 18) // (DIM * count))
    found = []
    for k in range(sets):
        a, b = draws[k].view(count, 2, DIM, DIM).unbind(1)
        flat = bool(slope[k] == 1)
        maps = (b @ a if flat else a).reshape(count * DIM, DIM)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for start in range(0, tests, block):
            part = slice(start, start + block)
            mean = (maps @ x[k, :, part]).view(count, DIM, -1)
            if not flat:
                mean = torch.bmm(b, mean.relu_())
            gap = mean.sub_(truth[k, :, part]).sub_(noise[k, :, part]).square_().sum(1)
            log = torch.logsumexp(gap.mul_(-0.5), 0).double() - math.log(count)
            log = torch.where(log < floor, -math.inf, log)
            total -= (log + noise[k, :, part].double().square().sum(0) / 2).sum()
        found.append(total / tests)
    return torch.stack(found)


def energy_one(h: Tensor, y: Tensor) -> Energy:
    """Minus the log posterior of B, (data set, chain, 9), from sums over the examples: its cost does not grow with n.

    Example:
        >>> level, slope = energy_one(torch.ones(1, 3, 2), torch.zeros(1, 3, 2))(torch.zeros(1, 4, 9))
        >>> slope.abs().max().item()
        0.0
    """
    gram = (h.double() @ h.mT.double() + torch.eye(DIM, device=h.device))[:, None].to(h.dtype)
    cross = (y.double() @ h.mT.double())[:, None].to(h.dtype)

    def energy(w: Tensor) -> tuple[Tensor, Tensor]:
        b = torch.unflatten(w, -1, (DIM, DIM))
        product = b @ gram
        return (b * (product / 2 - cross)).sum((-1, -2)), (product - cross).flatten(-2)

    return energy


def energy_linear(x: Tensor, y: Tensor) -> Energy:
    """Minus the log posterior of (A, B) for h = B A x, (data set, chain, 18), from sums over the examples.

    Example:
        >>> level, slope = energy_linear(torch.ones(1, 3, 2), torch.zeros(1, 3, 2))(torch.ones(1, 4, 18))
        >>> level[0, 0].item()
        252.0
    """
    gram = (x.double() @ x.mT.double())[:, None].to(x.dtype)
    cross = (y.double() @ x.mT.double())[:, None].to(x.dtype)

    def energy(w: Tensor) -> tuple[Tensor, Tensor]:
        a, b = torch.unflatten(w, -1, (2, DIM, DIM)).unbind(-3)
        both = b @ a
        product = both @ gram
        level = (both * (product / 2 - cross)).sum((-1, -2)) + w.square().sum(-1) / 2
        pull = product - cross
        return level, torch.cat([(b.mT @ pull).flatten(-2), (pull @ a.mT).flatten(-2)], -1) + w

    return energy


def energy_two(x: Tensor, y: Tensor) -> Energy:
    """Minus the log posterior of (A, B) for h = B ReLU(A x), (data set, chain, 18); padding has x = y = 0.

    Example:
        >>> level, slope = energy_two(torch.ones(1, 3, 2), torch.zeros(1, 3, 2))(torch.ones(1, 4, 18))
        >>> level[0, 0].item()
        252.0
    """
    sets, _, length = x.shape

    def energy(w: Tensor) -> tuple[Tensor, Tensor]:
        a, b = torch.unflatten(w, -1, (2, DIM, DIM)).unbind(-3)
        chains = w.shape[1]
        before = torch.bmm(a.reshape(sets, chains * DIM, DIM), x).view(sets * chains, DIM, length)
        after = before.relu_()
        b = b.reshape(sets * chains, DIM, DIM)
        gap = torch.bmm(b, after).view(sets, chains, DIM, length).sub_(y[:, None])
        level = gap.square().sum((-1, -2)) / 2 + w.square().sum(-1) / 2
        gap = gap.view(sets * chains, DIM, length)
        slope_b = torch.bmm(gap, after.mT).view(sets, chains, _SQUARE)
        back = torch.bmm(b.mT, gap).mul_(after > 0).view(sets, chains * DIM, length)
        slope_a = torch.bmm(back, x.mT).view(sets, chains, _SQUARE)
        return level, torch.cat([slope_a, slope_b], -1) + w

    return energy


def hessian_two(x: Tensor, y: Tensor, slope: Tensor, w: Tensor) -> Tensor:
    r"""Hessian in (A, B) of $\frac12 \sum_i \lVert y_i - h_w(x_i)\rVert^2$, without the prior, (data set, 18, 18).

    In float64. It is not positive in general: the residuals enter where A and B meet.

    Args:
        x: g at the data, (data set, 3, example), 0 where there is no example.
        y: Outputs, 0 there too.
        slope: 1 for identity, 0 for ReLU.
        w: Where, (data set, 18).

    Example:
        >>> x, y = torch.ones(1, 3, 2), torch.zeros(1, 3, 2)
        >>> hessian_two(x, y, torch.ones(1, 1, 1), torch.zeros(1, 18)).abs().sum().item()
        0.0
    """
    x, y, slope, w = x.double(), y.double(), slope.double(), w.double()
    a, b = w.view(-1, 2, DIM, DIM).unbind(1)
    z = a @ x
    h = activate(z, slope)
    on = torch.where(z > 0, 1.0, slope)
    gap = b @ h - y
    moved = on[:, :, None] * x[:, None]  # derivative of unit j in A_jk, (data set, j, k, example)
    upper = torch.einsum("djkn,dlmn,doj,dol->djklm", moved, moved, b, b)
    eye = torch.eye(DIM, dtype=x.dtype, device=x.device)
    lower = torch.einsum("djn,dln,op->dojpl", h, h, eye)
    mixed = torch.einsum("djn,dlkn,dol->dlkoj", h, moved, b)
    mixed = mixed + torch.einsum("don,djkn,jl->djkol", gap, moved, eye)
    sets = len(x)
    upper, lower, mixed = (part.reshape(sets, _SQUARE, _SQUARE) for part in (upper, lower, mixed))
    return torch.cat([torch.cat([upper, mixed], 2), torch.cat([mixed.mT, lower], 2)], 1)


def normal_draws(mean: Tensor, precision: Tensor, count: int, seed: int, floor: float | None = None) -> Tensor:
    """Draws from a normal distribution with given precision matrix, (data set, draw, parameter).

    Args:
        mean: (data set, parameter).
        precision: (data set, parameter, parameter), symmetric.
        count: Number of draws.
        seed: All randomness comes from it, on any device.
        floor: Eigenvalues below it are put at it. None: eigenvalues enter by their absolute values, as they do when
            numpy is given a covariance matrix that is none.

    Example:
        >>> normal_draws(torch.zeros(1, 2), 4 * torch.eye(2)[None], 10000, 0).std(1).round(decimals=1)
        tensor([[0.5000, 0.5000]])
    """
    values, vectors = torch.linalg.eigh(precision.double())
    values = values.abs() if floor is None else values.clamp(min=floor)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(mean), count, mean.shape[1], generator=generator).to(mean.device).double()
    return mean[:, None].double().add((noise * values.rsqrt()[:, None]) @ vectors.mT).to(mean.dtype)
