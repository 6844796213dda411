"""Samplers that the library does not have, compared per gradient with plain HMC: is any of them worth having?

    python validation/samplers_tried.py [--gradients 16000] [--out validation/samplers_tried.json]

Everything as in `samplers.py`: eight chains, the same number of gradients each, a quarter of them for warm-up, the same
measures, on those of its landscapes that use all data. Added are a quadratic in turned axes, since in its own axes a
diagonal preconditioner is perfect, and reduced rank regression 64 times colder, where chains rarely change from one arm
of the singularity to another ("ess_halves" is for ‖first half of w − w*‖² less that of the second, which in networks of
two layers tells the arms apart; HMC and exchange also ten times as long). A linear network knows its inputs by XᵀX
alone: six examples with the same XᵀX/n stand for the 2048. All kernels start at w* and are run and tuned by the loops
of this file, HMC too. Figures are means over two seeds; "seeds" has each.

- HMC, 16 leaps of a size that is log-uniform over a factor of 4 from one trajectory to the next.
- MALT (Riou-Durand & Vogrinc 2022): before and after each leap the momentum is partly replaced, so that exp(−damping)
  of it is left at the end; one test at the end, on the sum of the energy errors of single leaps. As HMC otherwise, or
  with leaps of one size ("even"), as its authors have it.
- HMC, rank r: momenta of covariance Σ⁻¹, where Σ = √D (1 + V(Λ − 1)Vᵀ) √D is the diagonal plus rank r that brings the
  Fisher divergence over draws and gradients of all chains in the second quarter of warm-up down most (r directions of
  largest |log Λ|, those between ½ and 2 left out).
- Exchange: HMC at nβ, nβ/ratio, nβ/ratio², ... with swaps of neighbours after each trajectory, even and odd pairs in
  turn. A rung gets its share of the gradients: those of all rungs are counted, and the coldest one is compared.
- MCLMC (Robnik et al. 2023): microcanonical Langevin without a test, minimal-norm integrator (two gradients a step).
  "left" is what remains after a second run at half the step, its error taken as of second order: (4 v(h/2) − v(h))/3.
  "gradients_1%" counts both runs. Effective sizes are those of the first run, and "half_..." those of the second.

Steps. With a test: log ε moves by 6 (k + 5)^-0.6 (acceptance − 0.8), averaged over the chains of a rung; the mean over
the second half of warm-up is kept (rank r: from its change on). MCLMC: h = m^(-1/6), where m is the running mean of
ΔE²/(d a h⁶) over warm-up, for an energy error a = 5e-4 per step and dimension; momenta forget over a length
L = √(Σ Var w_k), found half-way in warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from samplers import CHAINS, reference, stretched, targets
from torch import Tensor, nn

from crunode import Landscape, Posterior
from crunode.core.data import leaves
from crunode.core.result import provenance
from crunode.sampling.diagnostics import ess, mcse_mean
from crunode.sampling.engine import Engine
from crunode.sampling.pilot import first_step

ACCEPTANCE, ENERGY_ERROR, COLDER, SEEDS = 0.8, 5e-4, 64, (11, 12)
LONGER = ", ten times as long"


@dataclass(frozen=True)
class Adjusted:
    """A sampler with a Metropolis test; plain HMC as it stands."""

    name: str
    leaps: int = 16
    spread: float = 4.0
    damping: float = 0.0
    rank: int | None = None
    rungs: int = 1
    ratio: float = 1.0


SAMPLERS = (
    Adjusted("HMC"),
    Adjusted("HMC, 8 leaps", leaps=8),
    Adjusted("HMC, 32 leaps", leaps=32),
    Adjusted("MALT, damping 1", damping=1.0),
    Adjusted("MALT, damping 1, even", damping=1.0, spread=1.0),
    Adjusted("MALT, damping 2, even, 32 leaps", damping=2.0, spread=1.0, leaps=32),
    Adjusted("HMC, diagonal", rank=0),
    Adjusted("HMC, rank 16", rank=16),
    Adjusted("exchange, 4 rungs, ratio 2", rungs=4, ratio=2.0),
    Adjusted("exchange, 4 rungs, ratio 4", rungs=4, ratio=4.0),
    None,  # MCLMC
)


def fitted(draws: Tensor, slopes: Tensor, rank: int) -> tuple[Tensor, int]:
    """A = √D (1 + V(√Λ − 1)Vᵀ), for w = A z with standard normal momenta in z, and its rank."""
    x, g = draws.double() - draws.double().mean(0), slopes.double() - slopes.double().mean(0)
    root = (x.var(0) / g.var(0)).pow(0.25)
    # The geometric mean of spread and fisher⁻¹ solves Σ · fisher · Σ = spread.
    half, fisher = _power(torch.cov((x / root).T), 0.5), torch.cov((g * root).T)
    values, vectors = torch.linalg.eigh(half @ _power(half @ fisher @ half, -0.5) @ half)
    far = values.log().abs()
    chosen = [k for k in far.argsort(descending=True)[:rank].tolist() if far[k] > np.log(2)]
    low = (vectors[:, chosen] * (values[chosen].sqrt() - 1)) @ vectors[:, chosen].T
    return (root[:, None] * (torch.eye(len(root)) + low)).to(draws), len(chosen)


def _power(matrix: Tensor, exponent: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=1e-8 * float(values.max())) ** exponent) @ vectors.T


class Chains:
    """Positions, gradients and losses of all chains, and one move of an adjusted sampler."""

    def __init__(self, posterior: Posterior, sampler: Adjusted, seed: int) -> None:
        self.sampler, self.count = sampler, CHAINS * sampler.rungs
        self.levels = torch.tensor([posterior.levels[0] / sampler.ratio**k for k in range(sampler.rungs)])
        self.engine = engine_of(posterior, self.levels.repeat_interleave(CHAINS))
        self.precision, self.mean = posterior.precision, posterior.mean
        self.generator = torch.Generator().manual_seed(seed)
        self.metric = torch.eye(posterior.landscape.dim)
        self.w = posterior.landscape.center.expand(self.count, -1).clone()
        self.slope, self.excess = (t.clone() for t in self.engine(self.w))

    def move(self, step: Tensor) -> Tensor:
        """A trajectory and its test; returns the acceptance of each chain."""
        sampler, metric, engine = self.sampler, self.metric, self.engine
        chance = torch.rand(self.count, 2, generator=self.generator)
        size = step.sqrt() * sampler.spread ** -chance[:, 1:]
        keep = float(np.exp(-0.5 * sampler.damping / sampler.leaps))
        lose = (1 - keep**2) ** 0.5
        w, slope, excess = self.w, self.slope, self.excess
        momentum, gain = torch.randn(w.shape, generator=self.generator), torch.zeros(self.count, dtype=torch.float64)
        for _ in range(sampler.leaps):
            if sampler.damping:
                momentum = keep * momentum + lose * torch.randn(w.shape, generator=self.generator)
            gain += engine.energy(w, excess) + 0.5 * momentum.square().sum(1, dtype=torch.float64)
            momentum = momentum - 0.5 * size * (slope @ metric)
            w = w + size * (momentum @ metric.T)
            slope, excess = engine(w)
            momentum = momentum - 0.5 * size * (slope @ metric)
            gain -= engine.energy(w, excess) + 0.5 * momentum.square().sum(1, dtype=torch.float64)
            if sampler.damping:
                momentum = keep * momentum + lose * torch.randn(w.shape, generator=self.generator)
        accept = torch.nan_to_num(gain, nan=-torch.inf).clamp(max=0).exp()
        moved = chance[:, 0] < accept
        self.w = torch.where(moved[:, None], w, self.w)
        self.slope = torch.where(moved[:, None], slope, self.slope)
        self.excess = torch.where(moved, excess, self.excess)
        return accept

    def swap(self, first: int) -> float:
        """Exchange rungs first and first + 1, first + 2 and first + 3, ...; returns the mean acceptance."""
        order, accepted = torch.arange(self.count).view(-1, CHAINS), []
        excess = self.excess.view(-1, CHAINS).double()
        for k in range(first, self.sampler.rungs - 1, 2):
            accept = ((self.levels[k] - self.levels[k + 1]) * (excess[k] - excess[k + 1])).clamp(max=0).exp()
            swapped = torch.rand(CHAINS, generator=self.generator) < accept
            order[k : k + 2] = torch.where(swapped, order[k : k + 2].flip(0), order[k : k + 2])
            accepted.append(float(accept.mean()))
        order, nbeta = order.reshape(-1), self.engine.nbeta[:, None]
        prior = self.precision * (self.w - self.mean)
        self.slope = ((self.slope - prior) / nbeta)[order] * nbeta + prior[order]
        self.w, self.excess = self.w[order], self.excess[order]
        return float(np.mean(accepted))


def engine_of(posterior: Posterior, nbeta: Tensor) -> Engine:
    """Gradients on all data of chains at the given temperatures."""
    return Engine(posterior, range(len(nbeta)), nbeta.double(), seed=0, batch=None, layout="batched")


def adjusted(posterior: Posterior, sampler: Adjusted, gradients: int, seed: int) -> tuple[Tensor, Tensor, dict]:
    """Losses (draw, chain) and offsets (draw, chain, dim) of the coldest rung, and what was tuned."""
    chains, total = Chains(posterior, sampler, seed), gradients // (sampler.leaps * sampler.rungs)
    log_step = torch.tensor([first_step(posterior, float(t), seed) for t in chains.levels]).double().log()
    warmup, change, begun = total // 4, total // 4 // 2, 0
    steps, seen, rows, accepts, swaps, tuned = [], [], [], [], [], {}
    for k in range(total):
        step = log_step.exp().repeat_interleave(CHAINS).float()[:, None]
        accept = chains.move(step).view(-1, CHAINS).mean(1)
        if sampler.rungs > 1:
            swaps.append(chains.swap(k % 2))
        if k < warmup:
            log_step = log_step + 6.0 / (k - begun + 5) ** 0.6 * (accept - ACCEPTANCE)
            if k >= (begun + warmup) // 2:
                steps.append(log_step)
            if sampler.rank is not None and change // 2 <= k < change:
                seen.append((chains.w, chains.slope))
            if seen and k == change:
                chains.metric, tuned["rank"] = fitted(*map(torch.cat, zip(*seen, strict=True)), sampler.rank or 0)
                log_step, begun, steps = torch.full_like(log_step, np.log(0.1)), k, []
            if k + 1 == warmup:
                log_step = torch.stack(steps).mean(0)
            continue
        accepts.append(float(accept[0]))
        rows.append((chains.excess[:CHAINS], chains.w[:CHAINS] - chains.mean))
    tuned |= {"step": float(log_step[0].exp()), "accept": float(np.mean(accepts))}
    tuned |= {"swapped": float(np.mean(swaps[warmup:]))} if swaps else {}
    return *map(torch.stack, zip(*rows, strict=True)), tuned


def kick(u: Tensor, slope: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """The directions u after the force has acted for `size`, and the kinetic energy gained."""
    norm = slope.norm(dim=1, keepdim=True).clamp(min=1e-20)
    against, dim = -slope / norm, u.shape[1]
    delta = size * norm / (dim - 1)
    cosine = (against * u).sum(1, keepdim=True)
    # Divided by exp(delta), so that large forces do not overflow.
    fall, square = (-delta).exp(), (-2 * delta).exp()
    new = 2 * fall * u + against * ((1 - square) + cosine * (1 + square - 2 * fall))
    scale = (1 + square) + cosine * (1 - square)
    gained = (dim - 1) * (delta.double() + (scale.double() / 2).clamp(min=1e-30).log())
    return new / new.norm(dim=1, keepdim=True), gained[:, 0]


def microcanonical(posterior: Posterior, given: float | None, gradients: int, seed: int) -> tuple[Tensor, Tensor, dict]:
    """As `adjusted`, for MCLMC; after warm-up with the given step, if any."""
    engine, generator = engine_of(posterior, torch.full((CHAINS,), posterior.levels[0])), torch.Generator()
    generator.manual_seed(seed)
    dim, total = posterior.landscape.dim, gradients // 2
    warmup, outer = total // 4, 0.1931833275037836
    w = posterior.landscape.center.expand(CHAINS, -1).clone()
    slope, excess = (t.clone() for t in engine(w))
    u = nn.functional.normalize(torch.randn(w.shape, generator=generator))
    size = (first_step(posterior, posterior.levels[0], seed) * dim) ** 0.5
    length, weight, mean, lost, rows, seen = 10 * size, 0.0, 0.0, 0, [], []
    for k in range(total):
        old, h = (w, u, slope, excess), torch.tensor(size)
        start = engine.energy(w, excess)
        u, gained = kick(u, slope, outer * h)
        slope, _ = engine(w := w + 0.5 * h * u)
        u, more = kick(u, slope, (1 - 2 * outer) * h)
        slope, excess = engine(w := w + 0.5 * h * u)
        u, last = kick(u, slope, outer * h)
        error = engine.energy(w, excess) - start + gained + more + last
        bad = ~(error.isfinite() & slope.isfinite().all(1) & (error.abs() < 1000))
        if bad.any():
            for new, kept in zip((w, u, slope, excess), old, strict=True):
                new[bad] = kept[bad]
            u[bad] *= -1  # back to where it came from
            lost += int(bad.sum())
        noise = float(np.sqrt(np.expm1(2 * size / length) / dim))
        u = nn.functional.normalize(u + noise * torch.randn(u.shape, generator=generator))
        if k < warmup:
            squared = float(torch.where(bad, 1e6, error.square()).clamp(max=1e6).mean())
            forget = 1 - 1 / min(k + 1, 50 + k // 4)
            mean, weight = forget * mean + squared / (dim * ENERGY_ERROR * size**6), forget * weight + 1
            size = float(np.clip((mean / weight) ** (-1 / 6), 0.5 * size, 1.5 * size))
            if warmup // 4 <= k < warmup // 2:
                seen.append(w)
            elif k == warmup // 2:
                length = float(torch.cat(seen).var(0).sum().sqrt())
            elif k + 1 == warmup:
                size = given or size
            continue
        rows.append((excess, w - posterior.mean))
    return *map(torch.stack, zip(*rows, strict=True)), {"step": size, "length": length, "lost": lost}


def measures(excess: Tensor, offset: Tensor, nbeta: float, gradients: int, exact: float) -> dict[str, float]:
    """Error and effective sizes of one run."""
    kept = gradients * 3 // 4 * CHAINS
    scaled, square, middle = nbeta * excess.T.double().numpy(), offset.double().square(), offset.shape[2] // 2
    halves = square[..., :middle].sum(2) - square[..., middle:].sum(2)
    return {
        "bias": float(scaled.mean()) / exact - 1,
        "bias_se": mcse_mean(scaled) / exact,
        "ess": 1000 * ess(scaled) / kept,
        "ess_distance": 1000 * ess(square.sum(2).T.numpy()) / kept,
        "ess_halves": 1000 * ess(halves.T.numpy()) / kept,
    }


def compare(sampler: Adjusted | None, posterior: Posterior, gradients: int, exact: float, seed: int) -> dict[str, Any]:
    """One sampler on one landscape; None is MCLMC."""
    start, kept, known = time.perf_counter(), gradients * 3 // 4 * CHAINS, (posterior.levels[0], gradients, exact)
    run: Any = microcanonical if sampler is None else adjusted
    *drawn, tuned = run(posterior, sampler, gradients, seed)
    row = measures(*drawn, *known) | tuned
    row |= {"left": row["bias"], "left_se": row["bias_se"]}
    if sampler is None:
        half = measures(*microcanonical(posterior, tuned["step"] / 2, gradients, seed + 100)[:2], *known)
        row["left"] = (4 * half["bias"] - row["bias"]) / 3
        row["left_se"] = float(np.hypot(4 * half["bias_se"], row["bias_se"])) / 3
        row |= {f"half_{name}": value for name, value in half.items()}
        kept *= 2
    return row | {"gradients_1%": kept * (row["left_se"] / 0.01) ** 2, "seconds": time.perf_counter() - start}


def mean_of(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and the errors of these means."""
    mean: dict[str, Any] = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    for key in (key for key in mean if key.endswith("_se")):
        mean[key] = float(np.sqrt(np.mean([row[key] ** 2 for row in rows]) / len(rows)))
    return {"kernel": name, **mean, "seeds": rows}


def summed_up(land: Landscape) -> Landscape:
    """A linear network on as many examples as it has inputs, with the same loss everywhere."""
    first, second = (w.detach().clone() for w in land.packing.unravel(land.center).values())
    net = nn.Sequential(*(nn.Linear(w.shape[1], w.shape[0], bias=False) for w in (first, second)))
    net.load_state_dict({"0.weight": first, "1.weight": second})
    inputs = leaves(next(iter(land.passes())))[0].double()
    x = (len(first[0]) ** 0.5 * torch.linalg.cholesky(inputs.T @ inputs / len(inputs)).T).float()
    with torch.no_grad():
        small = Landscape(net, (x, net(x)), "gaussian")
        w = land.center + 0.3 * torch.randn(land.dim, generator=torch.Generator().manual_seed(0))
        assert torch.isclose(land.losses(w).mean() - land.loss(), small.losses(w).mean() - small.loss(), rtol=1e-4)
    return small


def landscapes() -> list[tuple[str, Posterior, float | None]]:
    """Name, posterior, and the exact answer where there is one."""
    bowl, singular, curved = [(name, p, exact) for name, p, batch, exact in targets() if batch is None]
    turn = torch.linalg.qr(torch.randn(60, 60, generator=torch.Generator().manual_seed(3))).Q
    turned = replace(bowl[1], landscape=Landscape.of_function(lambda w: stretched(turn @ w), torch.zeros(60)))
    linear = replace(singular[1], landscape=summed_up(singular[1].landscape))
    cold = replace(linear, nbeta=COLDER * linear.levels[0])
    colds = [(f"{singular[0]}, cold{longer}", cold, None) for longer in ("", LONGER)]
    return [bowl, (f"{bowl[0]}, turned", turned, bowl[2]), (singular[0], linear, None), curved, *colds]


def main() -> int:
    """Run all and write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradients", type=int, default=16_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("samplers_tried.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for title, posterior, exact in landscapes():
        exact, error = reference(posterior) if exact is None else (exact, 0.0)
        print(f"{title}: {exact:.3f} ± {error:.2g}", flush=True)
        rows, gradients = [], options.gradients * (10 if LONGER in title else 1)
        for sampler in (SAMPLERS[0], *(s for s in SAMPLERS if s and s.rungs > 1)) if LONGER in title else SAMPLERS:
            with torch.no_grad():
                each = [compare(sampler, posterior, gradients, exact, seed) for seed in SEEDS]
            rows.append(row := mean_of("MCLMC" if sampler is None else sampler.name, each))
            print("  ", *(f"{k} {v:.3g} " for k, v in row.items() if isinstance(v, float)), row["kernel"], flush=True)
        found.append({"target": title, "reference": exact, "reference_se": error, "rows": rows})
    content = {
        "command": f"python validation/samplers_tried.py --gradients {options.gradients}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "targets": found,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
