"""What a Metropolis kernel learns in warm-up: a scale for each coordinate, and a step size that goes with it.

Every chain learns from its own past alone, so that its draws do not depend on which others run beside it. After warm-up
nothing is learned: from then on the kernel is a fixed one, and stationary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["begin", "learn", "reach"]

# Steps before the first window, and its length; each window is twice as long as the one before.
_FIRST, _WINDOW = 10, 20
_TARGET = 0.8
# Dual averaging: how far it is pulled back, the weight of its start, and the decay of its average (Hoffman & Gelman).
_PULL, _START, _DECAY = 0.05, 10.0, 0.75
# Moves against which those of a window are weighed: with as many, scales are half-way to their geometric mean.
_SHRINK = 5.0


def begin(w: Tensor, scales: bool = True) -> dict[str, Tensor]:
    """State to be kept beside the positions `w` (chain, dim): unit scales and no change of the step.

    Args:
        w: Positions.
        scales: Learn a scale for each coordinate; otherwise the step size alone.

    Example:
        >>> sorted(begin(torch.zeros(2, 3)))[:3]
        ['adapted', 'log_size', 'log_size_mean']
    """
    wide = w.double()
    row = wide.new_zeros(len(w))
    names = ("log_size", "log_size_mean", "log_size_origin", "shortfall", "moved")
    window = {"window_mean": torch.zeros_like(wide), "window_square": torch.zeros_like(wide)} if scales else {}
    return {
        "scale": torch.ones_like(w if scales else w[:, :1]),
        **window,
        **{name: row.clone() for name in names},
        # On the CPU wherever the chains are: it decides what is done next.
        "adapted": torch.zeros(1, dtype=torch.int64),
    }


def reach(state: dict[str, Tensor], warming: bool) -> Tensor:
    """Factor on the step size along each coordinate, shape (chain, dim), or (chain, 1) without scales.

    Example:
        >>> reach(begin(torch.zeros(1, 2)), warming=True)
        tensor([[1., 1.]])
    """
    log_size = state["log_size" if warming else "log_size_mean"]
    return state["scale"] * log_size.exp().to(state["scale"].dtype)[:, None]


def learn(state: dict[str, Tensor], accept: Tensor, target: float = _TARGET) -> None:
    r"""Take a warm-up step into account, in place.

    The logarithm of the step size follows $x_k = x_0 - \frac{\sqrt k}{0.05} \bar h_k$, where $\bar h_k$ is the running
    mean of `target` less the acceptance; later the average of the $x_k$ with weights $k^{-0.75}$ is used. At the end of
    a window of 20, 40, 80, ... steps the scales become the standard deviations of its positions, with logarithms shrunk
    to the common mean by $m / (m + 5)$ for $m$ accepted moves. The step size is divided by the least growth of a scale,
    which keeps it within the bound of stability, and starts anew from there.

    Args:
        state: The kernel's state, with what `begin` gave and the new position "w".
        accept: Acceptance probability of each chain.
        target: The acceptance aimed for.

    References:
        Nesterov 2009; Hoffman & Gelman 2014, section 3.2.

    Example:
        >>> state = {"w": torch.zeros(1, 2), **begin(torch.zeros(1, 2))}
        >>> learn(state, torch.tensor([0.0]))
        >>> bool(reach(state, warming=True).max() < 1)  # nothing was accepted: smaller steps
        True
    """
    count = int(state["adapted"]) + 1
    state["adapted"].fill_(count)
    since, length = _place(count)
    accept = torch.nan_to_num(accept.double(), nan=0.0)
    state["shortfall"].lerp_(target - accept, 1 / (since + _START))
    state["log_size"].copy_(state["log_size_origin"] - math.sqrt(since) / _PULL * state["shortfall"])
    state["log_size_mean"].lerp_(state["log_size"], (since + 3.0) ** -_DECAY)
    state["moved"].add_(accept)
    window = [name for name in ("window_mean", "window_square") if name in state]
    if window:
        ahead = state["w"].double() - state["window_mean"]
        state["window_mean"].add_(ahead, alpha=1 / since)
        state["window_square"].addcmul_(ahead, state["w"].double() - state["window_mean"])
    if since == length:
        if window and count > _FIRST:
            _rescale(state, since)
        state["log_size_origin"].copy_(state["log_size_mean"])
        for name in (*window, "shortfall", "moved"):
            state[name].zero_()


def _place(count: int) -> tuple[int, int]:
    """Number of a step within its window, from 1 up, and the length of the window."""
    if count <= _FIRST:
        return count, _FIRST
    count, length = count - _FIRST, _WINDOW
    while count > length:
        count, length = count - length, 2 * length
    return count, length


def _rescale(state: dict[str, Tensor], steps: int) -> None:
    log_scale = 0.5 * (state["window_square"] / (steps - 1)).log()
    # A chain that stood still has no scale to offer, and keeps the one it has.
    good = torch.isfinite(log_scale).all(1, keepdim=True)
    common = log_scale.mean(1, keepdim=True)
    share = (state["moved"] / (state["moved"] + _SHRINK))[:, None]
    old = state["scale"].double().log()
    new = torch.where(good, common + share * (log_scale - common), old)
    state["scale"].copy_(new.exp())
    change = (new - old).amin(1)
    for name in ("log_size", "log_size_mean"):
        state[name].sub_(change)
