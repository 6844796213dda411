"""Kernels compared per gradient: error and effective sample size on landscapes whose answer is known.

    python validation/samplers.py [--gradients 16000] [--out validation/samplers.json]

Each kernel gets the same number of gradients a chain, warm-up included, with steps found by the tuner. Unadjusted ones
run half of their chains at half the step, as `llc` does. "bias" is (λ̂ − λ)/λ at the tuned step, "left" the same after
the error of the step was removed; "ess" is the effective sample size of nβ(L(w) − L(w*)) and "ess_distance" that of
‖w − w*‖² in a thousand gradients; "gradients_1%" is how many gradients an error of 1 % of λ takes, step error removed.

Landscapes: a quadratic with curvatures over three decades (exact); reduced rank regression 6-4-6 of rank 2, with the
model's own labels and with unit noise on minibatches of 128, in a narrow prior and a wide one; and a tanh network
2-4-1 at its true parameter with unit noise, all but the first against long runs of HMC.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

import crunode
from crunode import HMC, MALA, PSGLD, SGHMC, SGLD, SGNHT, Gaussian, Landscape, Posterior
from crunode.core.result import provenance
from crunode.estimators.richardson import remove_step_bias
from crunode.sampling.diagnostics import ess, mcse_mean
from crunode_papers.hitchcock2025.linear import singular_network

CHAINS = 8
CURVATURES = torch.logspace(-1.5, 1.5, 60)
QUADRATIC_NBETA, QUADRATIC_PRECISION = 1000.0, 1.0


def stretched(w: Tensor) -> Tensor:
    """½ Σ h_k w_k² with a condition number of 1000."""
    return 0.5 * (CURVATURES * w**2).sum()


def tanh_network(n: int = 1000) -> Landscape:
    """A network 2-4-1 at the parameter that made its data, with unit noise."""
    generator = torch.Generator().manual_seed(5)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        x = 2 * torch.randn(n, 2, generator=generator)
        y = net(x) + torch.randn(n, 1, generator=generator)
    return Landscape(net, (x, y), "gaussian")


def targets() -> list[tuple[str, Posterior, int | None, float | None]]:
    """Name, posterior, batch (None for all data), and the exact answer where there is one."""
    bowl = Landscape.of_function(stretched, torch.zeros(len(CURVATURES)))
    held = QUADRATIC_NBETA * CURVATURES.double()
    exact = float((0.5 * held / (held + QUADRATIC_PRECISION)).sum())
    noisy = singular_network(2048, seed=9, widths=(6, 4, 6), rank=2, noise=1.0)
    own = noisy.self_labelled()
    assert own is not None
    nbeta = 2048 / math.log(2048)
    return [
        ("quadratic, condition 1000", Posterior(bowl, QUADRATIC_NBETA, Gaussian(QUADRATIC_PRECISION)), None, exact),
        ("reduced rank, own labels", Posterior(own, nbeta, Gaussian(3.0)), None, None),
        ("reduced rank, unit noise, batch 128, narrow prior", Posterior(noisy, nbeta, Gaussian(30.0)), 128, None),
        ("reduced rank, unit noise, batch 128, wide prior", Posterior(noisy, nbeta, Gaussian(3.0)), 128, None),
        ("tanh 2-4-1, unit noise", Posterior(tanh_network(), 1000 / math.log(1000), Gaussian(1.0)), None, None),
    ]


def kernels(batch: int | None, rows: int) -> list[tuple[str, Any]]:
    """The kernels to compare; on minibatches only those that can, with and without a control variate."""
    if batch is None:
        plain = [(k.__name__, k(batch=rows)) for k in (SGLD, PSGLD, SGHMC, SGNHT)]
        return [*plain, ("MALA", MALA()), ("HMC", HMC())]
    options = [(k, c) for k in (SGLD, PSGLD, SGHMC, SGNHT) for c in (False, True)]
    return [(f"{k.__name__}{', control' if c else ''}", k(batch=batch, control=c)) for k, c in options]


def reference(posterior: Posterior) -> tuple[float, float]:
    """λ̂ and its error by long runs of HMC."""
    drawn = crunode.sample(posterior, HMC(), chains=16, draws=1500, warmup=300, seed=77)
    nbeta = drawn.levels()[0]
    scaled = nbeta * drawn.at(nbeta)["excess"].astype(np.float64)
    return float(scaled.mean()), mcse_mean(scaled)


def compare(name: str, kernel: Any, posterior: Posterior, gradients: int, exact: float) -> dict[str, Any]:
    """One kernel on one landscape."""
    steps = gradients // getattr(kernel, "leaps", 1)
    start = time.perf_counter()
    drawn = crunode.sample(posterior, kernel, chains=CHAINS, draws=steps * 3 // 4, warmup=steps // 4, seed=11)
    nbeta = drawn.levels()[0]
    arrays = drawn.at(nbeta)
    scaled = nbeta * arrays["excess"].astype(np.float64)
    kept = scaled.size * getattr(kernel, "leaps", 1)
    removed = remove_step_bias(drawn)
    value, se = (float(scaled.mean()), mcse_mean(scaled))
    total = kept
    left, left_se = value, se
    if removed is not None:
        left, left_se, total = removed.values[0], removed.se[0], 2 * kept
    return {
        "kernel": name,
        "bias": value / exact - 1,
        "bias_se": se / exact,
        "left": left / exact - 1,
        "left_se": left_se / exact,
        "stated": 0.0 if removed is None else removed.left[0] / exact,
        "ess": 1000 * ess(scaled) / kept,
        "ess_distance": 1000 * ess(arrays["distance2"].astype(np.float64)) / kept,
        "gradients_1%": total * (left_se / exact / 0.01) ** 2,
        "step": drawn.spec["kernel"]["step"],
        "seconds": time.perf_counter() - start,
    }


def main() -> int:
    """Run all and write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradients", type=int, default=16_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("samplers.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for title, posterior, batch, exact in targets():
        error = 0.0
        if exact is None:
            exact, error = reference(posterior)
        print(f"{title}: {exact:.3f} ± {error:.2g}", flush=True)
        rows = []
        for name, kernel in kernels(batch, posterior.landscape.data.rows):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", crunode.DiagnosticWarning)
                row = compare(name, kernel, posterior, options.gradients, exact)
            rows.append(row)
            print(
                f"  {name:<16} bias {100 * row['bias']:+6.1f} ± {100 * row['bias_se']:.1f} %  "
                f"left {100 * row['left']:+6.1f} ± {100 * row['left_se']:.1f} ± {100 * row['stated']:.1f} %  "
                f"ess {row['ess']:6.1f}  distance {row['ess_distance']:6.2f}  1 %: {row['gradients_1%']:.3g} gradients",
                flush=True,
            )
        found.append({"target": title, "reference": exact, "reference_se": error, "rows": rows})
    content = {
        "command": f"python validation/samplers.py --gradients {options.gradients}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "targets": found,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
