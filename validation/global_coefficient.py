"""Global learning coefficients by the slope of E_β[nL_n] in 1/β and by the free energy, beside exact ones.

    python validation/global_coefficient.py [--seeds 0 1 2] [--workers 2] [--out validation/global_coefficient.json]

Reduced rank regression (3, 2, 3) of rank 1, normal crossings x^2a y^2b, and tanh networks with one to four units whose
truth is zero; labels without noise, a standard normal prior, replica exchange (HMC with learned scales) from the prior
down to nβ = 10^10. Slopes are of the last three decades, given the multiplicity; without it a multiplicity of two takes
about 1/log nβ away.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

import crunode
from crunode import exact
from crunode.core.result import provenance
from crunode.exact import families
from crunode.examples.toys import normal_crossing, reduced_rank

HOTTEST, COLDEST, WITHIN = 1e-2, 1e10, 0.05


class Tanh(nn.Module):
    """x ↦ Σ_j a_j tanh(b_j x)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(hidden)), nn.Parameter(torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs at `x` of shape (examples, 1)."""
        return (self.a * torch.tanh(x * self.b)).sum(1, keepdim=True)


def tanh_landscape(hidden: int) -> crunode.Landscape:
    """Zero truth, inputs on an even grid of [−1, 1]."""
    x = torch.linspace(-1, 1, 24, dtype=torch.float64)[:, None]
    return crunode.Landscape(Tanh(hidden).double(), (x, torch.zeros_like(x)), "gaussian")


def case(name: str) -> tuple[crunode.Landscape, exact.LearningCoefficient]:
    """The landscape and its exact coefficient."""
    kind, *numbers = name.split()
    sizes = [int(k) for k in numbers]
    if kind == "tanh":
        return tanh_landscape(sizes[0]), families.tanh_zero_truth(sizes[0])
    if kind == "crossing":
        a, b = sizes
        land = normal_crossing(a, b)
        wide = crunode.Landscape.of_function(lambda w: w[0] ** (2 * a) * w[1] ** (2 * b), land.center.double())
        return wide, families.normal_crossing([a, b])
    land = reduced_rank(*sizes[:3], rank=sizes[3], n=40)
    net = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes[:3]))).double()
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), land.packing.unravel(land.center).values(), strict=True):
            parameter.copy_(value)
        x = land.data.tensors()[0].double()
        data = x, net(x)
    return crunode.Landscape(net, data, "gaussian"), exact.reduced_rank(*sizes[:3], rank=sizes[3])


CASES = (
    "reduced-rank 3 2 3 1",
    "crossing 0 1",
    "crossing 1 1",
    "crossing 1 2",
    "crossing 2 2",
    "tanh 1",
    "tanh 2",
    "tanh 3",
    "tanh 4",
)


def run(job: tuple[str, int, int]) -> dict[str, Any]:
    """One case with one seed."""
    name, seed, draws = job
    torch.set_num_threads(1)
    land, truth = case(name)
    value = float(truth.value)
    # Neighbours of a ladder with a factor f between them swap at a rate that depends on λ log²f alone.
    rungs = int(np.log(COLDEST / HOTTEST) / min(1.1 / value**0.5, 1.6)) + 1
    levels = tuple(np.geomspace(HOTTEST, COLDEST, rungs).tolist())
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        drawn = crunode.sample(
            crunode.Posterior(land, levels, crunode.Gaussian(1.0, mean="origin")),
            crunode.Exchange(crunode.HMC(metric="diagonal")),
            chains=8,
            draws=draws,
            warmup=draws // 3,
            seed=seed,
        )
        cold = drawn.only([t for t in levels if t >= 1e-3 * COLDEST])
        plain, slope = crunode.rlct(cold), crunode.rlct(cold, multiplicity=truth.multiplicity)
        energy = crunode.coefficient_from_energy(drawn)
        told = crunode.coefficient_from_energy(drawn, multiplicity=truth.multiplicity)
    report = crunode.exchange_report(drawn)
    return {
        "case": name,
        "seed": seed,
        "exact": str(truth.value),
        "exact_multiplicity": truth.multiplicity,
        "plain_slope": [plain.value, plain.se, plain.systematic, plain.value / value - 1],
        "slope": [slope.value, slope.se, slope.systematic, slope.value / value - 1],
        "energy": [energy.value, energy.se, energy.systematic, energy.value / value - 1],
        "energy_given_multiplicity": [told.value, told.se, told.systematic, told.value / value - 1],
        "multiplicity": energy.diagnostics["multiplicity"],
        "ok": slope.ok and energy.ok,
        "findings": sorted({f.code for f in (*slope.findings, *energy.findings)}),
        "swap_rate": min(report["swap_rate"]),
        "round_trips": report["round_trips"],
        "rungs": rungs,
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Run all cases and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draws", type=int, default=6000)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("global_coefficient.json"))
    options = parser.parse_args()
    jobs = [(name, seed, options.draws) for name in options.cases for seed in options.seeds]
    rows = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for row in pool.map(run, jobs):
            rows.append(row)
            print(
                f"{row['case']:<22} {row['exact']:>5} ({row['exact_multiplicity']})  slope {row['slope'][0]:.4f} "
                f"({100 * row['slope'][3]:+.1f} %)  energy {row['energy'][0]:.4f} ({100 * row['energy'][3]:+.1f} %, "
                f"given m {100 * row['energy_given_multiplicity'][3]:+.1f} %)  "
                f"m {row['multiplicity']}  swaps {row['swap_rate']:.2f}  {row['findings']}  {row['seconds']:.0f} s",
                flush=True,
            )
    content = {
        "command": f"python validation/global_coefficient.py --seeds {' '.join(map(str, options.seeds))} "
        f"--draws {options.draws}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "summary": {
            "runs": len(rows),
            "ok": sum(r["ok"] for r in rows),
            "within": WITHIN,
            "slope_within": sum(abs(r["slope"][3]) <= WITHIN for r in rows),
            "energy_within": sum(abs(r["energy"][3]) <= WITHIN for r in rows),
            "plain_slope_within": sum(abs(r["plain_slope"][3]) <= WITHIN for r in rows),
            "energy_given_multiplicity_within": sum(abs(r["energy_given_multiplicity"][3]) <= WITHIN for r in rows),
            "worst_energy_given_multiplicity": max(abs(r["energy_given_multiplicity"][3]) for r in rows),
            "worst_slope": max(abs(r["slope"][3]) for r in rows),
            "worst_energy": max(abs(r["energy"][3]) for r in rows),
            "multiplicity_right": sum(
                max(r["multiplicity"], key=r["multiplicity"].get) == str(r["exact_multiplicity"]) for r in rows
            ),
        },
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["summary"], indent=1))


if __name__ == "__main__":
    main()
