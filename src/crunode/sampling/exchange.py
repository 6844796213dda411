"""Replica exchange: chains at neighbouring inverse temperatures swap their positions.

A chain that is too cold to leave a mode gets to the others by way of the hot end of the ladder, where modes are joined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from crunode.core.result import Draws, Finding
from crunode.errors import InputError
from crunode.sampling.kernel import Gradient, Kernel, State, Step
from crunode.sampling.metropolis import HMC

__all__ = ["Exchange", "exchange_findings", "exchange_report"]

# Below this rate of accepted swaps two rungs have no draws in common.
_NO_OVERLAP = 0.02


@dataclass(frozen=True)
class Exchange(Kernel):
    r"""A Metropolis kernel on each rung of a ladder of nbeta, and swaps between neighbouring rungs after its steps.

    The posterior needs two levels of nbeta or more. Rungs $a$ and $b$ of a chain swap their positions with probability
    $\min(1, \exp((t_a - t_b)(L_a - L_b)))$ for inverse temperatures $t$ and losses $L$, which leaves the product of
    the posteriors of all rungs as it is, as the prior is the same on all of them. Pairs (0, 1), (2, 3), ... and
    (1, 2), (3, 4), ... take turns: positions then travel along the ladder in fewer steps than with random pairs.

    Besides what the inner kernel records, draws have `swap`, the acceptance probability of a swap with the next colder
    rung (nan where none was tried), and `replica`, which of the chain's positions, numbered from the hottest rung on as
    they were at the start, is at the rung. `exchange_report` makes swap rates and round trips of them.

    Attributes:
        inner: HMC, MALA or another Metropolis kernel whose state is position, loss and gradient; what it adapts in
            warm-up belongs to the rung and does not travel. Its `step` may have one value for each level.
        every: Steps of the inner kernel from one round of swaps to the next.

    References:
        Geyer 1991; Hukushima & Nemoto 1996; Okabe et al. 2001 and Syed et al. 2022 for the alternating pairs.

    Example:
        >>> from crunode import Landscape, Posterior, sample
        >>> land = Landscape.of_function(lambda w: (w * w - 1).square().sum(), torch.ones(1), n=1000)
        >>> draws = sample(Posterior(land, (1.0, 4.0, 16.0)), Exchange(HMC(leaps=4)), chains=2, draws=50, warmup=20)
        >>> draws.arrays["replica"].shape
        (6, 50)
    """

    inner: Kernel = field(default_factory=HMC)
    every: int = 1
    metropolis: ClassVar[bool] = True
    ladder: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.inner, Exchange) or not getattr(self.inner, "metropolis", False):
            raise InputError(
                f"expected inner as a kernel with a Metropolis test, got {self.inner!r}; give HMC() or MALA(), since "
                "swaps compare losses on all data and unadjusted kernels know them on minibatches only"
            )
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise InputError(f"expected every as a positive whole number, got {self.every!r}")

    @property
    def step(self) -> Step:
        """The inner kernel's step."""
        return self.inner.step

    @property
    def core(self) -> Kernel:
        """The inner kernel."""
        return self.inner

    @property
    def leaps(self) -> int:
        """Gradients that a step takes on each rung."""
        return self.inner.leaps

    @property
    def uniforms(self) -> int:
        """Uniform numbers for a step: the last one is for the swap."""
        return self.inner.uniforms + 1

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """The inner kernel's state, which rows make a ladder, and which replica is where."""
        ladder = ladder_rows(gradient.nbeta)  # type: ignore[attr-defined]
        replica = torch.empty(len(w), dtype=torch.int64, device=w.device)
        replica[ladder] = torch.arange(len(ladder), device=w.device)[:, None].expand_as(ladder)
        state = self.inner.init(w, gradient)
        missing = {"slope", "excess"} - set(state)
        if missing:
            raise InputError(f"expected a kernel that keeps slope and excess in its state, got one without {missing}")
        # The count stays on the CPU wherever the chains are: it decides what is done next.
        return {**state, "ladder": ladder, "replica": replica, "sweep": torch.zeros(1, dtype=torch.int64)}

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One step of the inner kernel and, every so often, a round of swaps, in place."""
        row = self.inner.advance(state, gradient, step, noise, uniform[:, :-1], warming)
        count = int(state["sweep"])
        state["sweep"].fill_(count + 1)
        chance = torch.full_like(state["excess"], torch.nan)
        if count % self.every == 0:
            odd = count // self.every % 2 if len(state["ladder"]) > 2 else 0
            _swap(state, gradient, uniform[:, -1], odd, chance)
        return {**row, "excess": state["excess"].clone(), "swap": chance, "replica": state["replica"].clone()}


def ladder_rows(nbeta: Tensor) -> Tensor:
    """Rows that make up ladders, shape (rung, chain), from the hottest rung on.

    Example:
        >>> ladder_rows(torch.tensor([4.0, 4.0, 1.0, 1.0])).tolist()
        [[2, 3], [0, 1]]
    """
    levels, counts = torch.unique(nbeta, return_counts=True)
    if len(levels) < 2 or bool((counts != counts[0]).any()):
        raise InputError(
            f"expected the same number of chains at each of two or more levels of nbeta, got {counts.tolist()} at "
            f"{levels.tolist()}; give levels that differ by more than rounding"
        )
    return torch.argsort(nbeta, stable=True).view(len(levels), -1)


def _swap(state: State, gradient: Any, uniform: Tensor, odd: int, chance: Tensor) -> None:
    ladder, nbeta = state["ladder"], gradient.nbeta
    last = odd + (len(ladder) - odd) // 2 * 2
    hot, cold = ladder[odd:last:2].reshape(-1), ladder[odd + 1 : last : 2].reshape(-1)
    excess, wide = state["excess"].double(), nbeta.double()
    gain = torch.nan_to_num((wide[cold] - wide[hot]) * (excess[cold] - excess[hot]), nan=-torch.inf)
    probability = gain.clamp(max=0).exp()
    chance[hot] = probability.to(chance.dtype)
    taken = uniform[cold] < probability
    source = torch.arange(len(uniform), device=uniform.device)
    source[hot], source[cold] = torch.where(taken, cold, hot), torch.where(taken, hot, cold)
    prior = gradient.prior_slope(state["w"])  # the same on all rungs
    ratio = (nbeta / nbeta[source])[:, None]
    slope = (state["slope"] - prior)[source] * ratio + prior[source]
    moved = source != torch.arange(len(source), device=source.device)
    state["slope"].copy_(torch.where(moved[:, None], slope, state["slope"]))
    for name in ("w", "excess", "replica"):
        state[name].copy_(state[name][source])


def exchange_report(draws: Draws) -> dict[str, Any]:
    """How well positions travel along the ladder, in the kept draws.

    A round trip is that of one position from the hottest rung to the coldest one and back.

    Args:
        draws: Draws made with `Exchange`.

    Returns:
        `nbeta`: the levels, ascending; `swap_rate`: mean acceptance between each and the next one; `round_trips`: how
        many there were over all chains; `steps_per_round_trip`: draws of one position for each, or None.

    Raises:
        InputError: The draws were made with another kernel.

    Example:
        >>> from crunode import Landscape, Posterior, sample
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=1000)
        >>> draws = sample(Posterior(land, (1.0, 2.0)), Exchange(HMC(leaps=4)), chains=4, draws=200, warmup=20)
        >>> report = exchange_report(draws)
        >>> report["round_trips"] > 50, [round(rate, 1) for rate in report["swap_rate"]]
        (True, [0.8])
    """
    if "replica" not in draws.arrays or "swap" not in draws.arrays:
        raise InputError("expected draws made with Exchange, got some without swaps; sample with kernel=Exchange()")
    levels = draws.levels()
    rows = [draws.at(level) for level in levels]
    tried = [row["swap"][np.isfinite(row["swap"])] for row in rows[:-1]]
    at = np.stack([row["replica"] for row in rows])  # (rung, chain, draw)
    trips = sum(round_trips(at[:, chain]) for chain in range(at.shape[1]))
    return {
        "nbeta": levels,
        "swap_rate": [float(rate.mean(dtype=np.float64)) if rate.size else None for rate in tried],
        "round_trips": trips,
        "steps_per_round_trip": at.size / trips if trips else None,
    }


def round_trips(replica: np.ndarray) -> int:
    """Round trips in one ladder's record of which replica was at which rung, shape (rung, draw).

    Example:
        >>> round_trips(np.array([[0, 1, 0, 0], [1, 0, 1, 1]]))
        1
    """
    trips = 0
    for label in range(len(replica)):
        at_hot, at_cold = replica[0] == label, replica[-1] == label
        ends = at_hot[at_hot | at_cold]  # True where it was at the hot end
        ends = ends[np.argmax(ends) :] if ends.any() else ends[:0]
        turns = int((ends[1:] != ends[:-1]).sum())
        trips += turns // 2
    return trips


def exchange_findings(draws: Draws) -> tuple[Finding, ...]:
    """What is wrong with the ladder, if anything: MC206 for rungs without overlap, MC207 for no round trip.

    Example:
        >>> from crunode import Landscape, Posterior, sample
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(20), n=1000)
        >>> draws = sample(Posterior(land, (1.0, 9.0)), Exchange(HMC(leaps=4)), chains=2, draws=50, warmup=20)
        >>> [finding.code for finding in exchange_findings(draws)]
        ['MC206', 'MC207']
    """
    report = exchange_report(draws)
    levels, rates = report["nbeta"], report["swap_rate"]
    poor = [(rate, k) for k, rate in enumerate(rates) if rate is not None and rate < _NO_OVERLAP]
    found = []
    if poor:
        rate, k = min(poor)
        places = f"{len(poor)} of {len(rates)} pairs, the worst at nbeta {levels[k]:.4g} and {levels[k + 1]:.4g}"
        found.append(Finding.of("MC206", f"swap rate {rate:.2g} ({places})"))
    if not report["round_trips"]:
        found.append(Finding.of("MC207", f"none in {draws.draws} draws on {len(levels)} rungs"))
    return tuple(found)
