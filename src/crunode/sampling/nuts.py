"""The no-U-turn sampler: Hamiltonian trajectories that end where they would turn back, for all chains at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from crunode.core.result import Finding
from crunode.errors import InputError
from crunode.sampling.adaptation import begin, learn, reach
from crunode.sampling.kernel import Gradient, Kernel, State, Step
from crunode.sampling.stochastic import check_fields

__all__ = ["NUTS", "counted_uniforms"]

# Energy error from which a trajectory counts as divergent.
_DIVERGENT = 1000.0
# Share of draws at the largest depth that is worth a finding.
_SATURATED = 0.01
# SplitMix64 (Steele, Lea & Flood 2014), as signed numbers: torch has the arithmetic of int64 only, which wraps.
_GOLDEN, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15

Point = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class NUTS(Kernel):
    """The no-U-turn sampler with multinomial choice within a trajectory.

    From standard normal momenta a trajectory is doubled, forward or backward in time by the toss of a coin, until the
    ends of it or of one of its binary subtrees approach each other: z · ρ ≤ 0 at either end, with momenta z and ρ their
    sum over the subtree (the ends at half weight). A leaf is chosen with probability ∝ exp(−energy) within a new half,
    and a new half takes over the choice with probability min(1, W_new/W_old), W the sum of these weights. Stationary
    for exp(−U(w)) exactly, whatever the step.

    In warm-up each chain adapts its own leapfrog size to the mean acceptance `accept` by dual averaging, beginning at
    `step`; with metric="diagonal" it also learns the standard deviation of each coordinate, in windows of doubling
    length (`crunode.sampling.adaptation`). All chains grow their trees together, and those that are done wait.

    Recorded with each draw: `excess`; `accept`, the mean over the trajectory of min(1, exp(−energy error)); `depth`,
    the doublings that were completed; `leaps`, gradients taken; `divergent`, 1 where an energy error exceeded 1000;
    `step`, ε in use, along the coordinate that has the smallest.

    Attributes:
        step: ε (the square of the leapfrog size, to be comparable with SGLD) at the start; None to have it tuned.
        depth: The most doublings; a trajectory has less than 2^depth leaps.
        metric: "diagonal" to learn the scale of each coordinate in warm-up; None for the same in all.
        accept: Acceptance that warm-up aims for; None to keep the step as it is.

    References:
        Hoffman & Gelman 2014; Betancourt 2017, arXiv:1701.02434, appendix A; Phan et al. 2019, arXiv:1912.11554, and
        Lao & Dillon 2019 for trees without recursion.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> from crunode.sampling.posterior import Posterior
        >>> from crunode.sampling.run import sample
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=1000)
        >>> draws = sample(Posterior(land, nbeta="wbic"), NUTS(step=1e-3), chains=2, draws=20, warmup=10)
        >>> draws.arrays["depth"].shape, int(draws.arrays["divergent"].sum())
        ((2, 20), 0)
    """

    step: Step = None
    depth: int = 10
    metric: str | None = None
    accept: float | None = 0.8
    metropolis: ClassVar[bool] = True
    uniforms: ClassVar[int] = 3
    leaps: ClassVar[int] = 8  # in a typical trajectory, for plans that are made before there is any

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or not 1 <= self.depth <= 20:
            raise InputError(f"expected depth as a whole number from 1 to 20, got {self.depth!r}; 10 suits most")
        if self.metric not in (None, "diagonal"):
            raise InputError(f"expected metric as None or 'diagonal', got {self.metric!r}; leave it out for none")
        if self.accept is not None and not (isinstance(self.accept, int | float) and 0 < self.accept < 1):
            raise InputError(f"expected accept between 0 and 1, got {self.accept!r}; 0.8 suits most")
        if self.accept is None and self.metric is not None:
            raise InputError("expected accept with metric='diagonal', got None; give 0.8, since scales change the step")

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """Gradient and loss at the position, and what warm-up will learn."""
        slope, excess = gradient(w)
        return {
            "slope": slope,
            "excess": excess,
            **({} if self.accept is None else begin(w, scales=self.metric is not None)),
        }

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One trajectory and the choice of a point on it, in place."""
        move = step.sqrt() if self.accept is None else step.sqrt() * reach(state, warming)
        tree = _Tree(gradient, state, move, noise, _keys(uniform))
        while tree.depth_reached < self.depth and tree.double():
            pass
        for name, value in zip(("w", "slope", "excess"), tree.chosen, strict=True):
            state[name].copy_(value)
        accept = tree.accepted / tree.leaps.clamp(min=1)
        if warming and self.accept is not None:
            learn(state, accept, self.accept)
        kind = state["w"].dtype
        counts = {"depth": tree.depth, "leaps": tree.leaps, "divergent": tree.divergent}
        row = {"excess": state["excess"].clone(), "accept": accept, **counts, "step": move.square().amin(1)}
        return {name: value if name == "excess" else value.to(kind) for name, value in row.items()}

    def findings(self, arrays: Mapping[str, np.ndarray]) -> tuple[Finding, ...]:
        """What kept draws say about their trajectories.

        Args:
            arrays: Arrays of the draws, each of shape (chain, draw).

        Example:
            >>> [f.code for f in NUTS().findings({"divergent": np.array([[0, 1]]), "depth": np.array([[3, 4]])})]
            ['MC208']
        """
        found = []
        bad, full = np.asarray(arrays["divergent"]) > 0, np.asarray(arrays["depth"]) >= self.depth
        if bad.any():
            found.append(
                Finding.of("MC208", f"{int(bad.sum())} of {bad.size} draws, in {int(bad.any(1).sum())} chains")
            )
        if full.size and full.mean() > _SATURATED:
            found.append(Finding.of("MC209", f"{full.mean():.0%} of the draws at depth {self.depth}"))
        return tuple(found)


class _Tree:
    """The trajectories of all chains while they grow.

    Chains that still grow are always at the same leaf of the same doubling, so that one place in memory for each
    level of subtrees serves all of them.
    """

    def __init__(self, gradient: Any, state: State, move: Tensor, noise: Tensor, key: Tensor) -> None:
        self.gradient, self.move, self.key = gradient, move, key
        w, slope, excess = state["w"], state["slope"], state["excess"]
        self.start = gradient.energy(w, excess) + _kinetic(noise)
        self.left: Point = (w, noise, slope)
        self.right: Point = (w, noise, slope)
        self.chosen: Point = (w, slope, excess)
        self.total, self.weight = noise, torch.zeros_like(self.start)
        self.growing = torch.ones_like(self.start, dtype=torch.bool)
        self.divergent = ~self.growing
        self.accepted, self.leaps = torch.zeros_like(self.start), torch.zeros_like(self.start)
        self.depth, self.depth_reached = torch.zeros_like(self.start), 0

    def double(self) -> bool:
        """Add a half of as many leaves as there are; False when no chain grows further."""
        level = self.depth_reached
        leaves = 2**level
        # Leaf k of the trajectory has number 2k, the coin and the exchange of a doubling two odd ones.
        drawn = counted_uniforms(self.key, [4 * level + 1, 4 * level + 3, *range(2 * leaves, 4 * leaves, 2)])
        forward = (drawn[:, 0] < 0.5)[:, None]
        logs = drawn.log()
        point: Point = _where(forward, self.right, self.left)
        half = _Half(self, torch.where(forward, self.move, -self.move), point)
        for leaf in range(leaves):
            if not half.extend(leaf, logs[:, 2 + leaf]):
                break
        alive = half.alive
        row = alive[:, None]
        self.right = _where(row & forward, half.point, self.right)
        self.left = _where(row & ~forward, half.point, self.left)
        self.chosen = _choose(alive & (logs[:, 1] < half.weight - self.weight), half.chosen, self.chosen)
        self.weight = torch.where(alive, torch.logaddexp(self.weight, half.weight), self.weight)
        self.total = torch.where(row, self.total + half.total, self.total)
        self.depth += alive
        self.growing = alive & ~_turned(self.left[1], self.right[1], self.total)
        self.depth_reached += 1
        return bool(self.growing.any())


class _Half:
    """The new half of a trajectory, leaf after leaf; a chain is not alive when its half turned or diverged."""

    def __init__(self, tree: _Tree, move: Tensor, point: Point) -> None:
        self.tree, self.move, self.point = tree, move, point
        self.alive = tree.growing.clone()
        self.weight = torch.full_like(tree.weight, -torch.inf)
        self.total = torch.zeros_like(tree.total)
        self.chosen = tree.chosen
        self._marks: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, leaf: int, log_uniform: Tensor) -> bool:
        """One leapfrog step; False when no chain is left."""
        tree = self.tree
        w, momentum, slope = self.point
        momentum = torch.addcmul(momentum, self.move, slope, value=-0.5)
        w = torch.addcmul(w, self.move, momentum)
        slope, excess = tree.gradient(w)
        momentum.addcmul_(self.move, slope, value=-0.5)
        gain = tree.start - tree.gradient.energy(w, excess) - _kinetic(momentum)
        gain = torch.nan_to_num(gain, nan=-torch.inf, posinf=-torch.inf)
        tree.leaps += self.alive
        tree.accepted += gain.clamp(max=0).exp_() * self.alive
        bad = gain < -_DIVERGENT
        tree.divergent = tree.divergent | (bad & self.alive)
        self.alive &= ~bad
        self.weight = torch.logaddexp(self.weight, gain)
        self.chosen = _choose(self.alive & (log_uniform < gain - self.weight), (w, slope, excess), self.chosen)
        self.point = (w, momentum, slope)
        self._check(leaf, momentum)
        return bool(self.alive.any())

    def _check(self, leaf: int, momentum: Tensor) -> None:
        """Has a subtree that ends at this leaf turned?

        A subtree of 2^k leaves ends where the last k bits of the leaf's number are ones. The first leaves of those that
        are still open differ in the number of ones among their bits, which is where they are kept.
        """
        if leaf % 2 == 0:
            self._marks[(leaf >> 1).bit_count()] = momentum, self.total
            self.total = self.total + momentum
            return
        self.total = self.total + momentum
        last = (leaf >> 1).bit_count()
        ones = (leaf ^ (leaf + 1)).bit_length() - 1
        for place in range(last - ones + 1, last + 1):
            first, before = self._marks[place]
            self.alive &= ~_turned(first, momentum, self.total - before)


def _turned(first: Tensor, last: Tensor, total: Tensor) -> Tensor:
    """Do the ends of a (sub)tree approach each other, by the generalised criterion?"""
    inner = torch.sub(total, first + last, alpha=0.5)
    return torch.minimum((first * inner).sum(1), (last * inner).sum(1)) <= 0


def _kinetic(momentum: Tensor) -> Tensor:
    return 0.5 * momentum.square().sum(1, dtype=torch.float64)


def _where(mask: Tensor, one: Point, other: Point) -> Point:
    a, b, c = (torch.where(mask, x, y) for x, y in zip(one, other, strict=True))
    return a, b, c


def _choose(mask: Tensor, one: Point, other: Point) -> Point:
    row = mask[:, None]
    return torch.where(row, one[0], other[0]), torch.where(row, one[1], other[1]), torch.where(mask, one[2], other[2])


def _keys(uniform: Tensor) -> Tensor:
    """A 64-bit key for each row, from three uniform numbers of which single precision has 24 bits each."""
    a, b, c = (uniform[:, :3].double() * 2.0**24).long().unbind(1)
    return (a << 40) | (b << 16) | (c >> 8)


def counted_uniforms(key: Tensor, numbers: Sequence[int]) -> Tensor:
    """Uniform numbers in [0, 1) that depend on a key and a counter alone: entries of the SplitMix64 sequence.

    Args:
        key: Keys of the rows, int64, shape (row,).
        numbers: Counters.

    Returns:
        Shape (row, number), in float64.

    References:
        Steele, Lea & Flood 2014.

    Example:
        >>> one = counted_uniforms(torch.tensor([7, 8]), [0, 1, 2])
        >>> torch.equal(one[1:, 2:], counted_uniforms(torch.tensor([8]), [2]))
        True
    """
    counter = torch.tensor(list(numbers), dtype=torch.int64, device=key.device)
    z = key[:, None] + (counter + 1) * _GOLDEN
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    z = z ^ _shift(z, 31)
    return _shift(z, 11).double() * 2.0**-53


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift to the right without copies of the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
