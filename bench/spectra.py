"""Spectral laws against random matrices, closed forms, quadrature, freealg, and the clock.

    OMP_NUM_THREADS=1 .venv/bin/python bench/spectra.py --out validation/spectra.json

- grid: both Hessian models over energies and ratios, atoms among them: Kolmogorov distance of one matrix of 1000 rows,
  and of the eigenvalues of many matrices of 200 rows together, in which the fluctuations of single ones average out.
- critical: the energy at which the numeric edge crosses 0, less the closed form.
- exponent: the power fitted to the index near ε_c, from the law and from random matrices.
- speed: processor time of a density at 400 points, law and edges made anew; median of 50.
- freealg (where .venv-peer-spectra has it): densities of Marchenko-Pastur and Wigner laws, as it gives them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from crunode.core.result import provenance
from crunode.spectra import (
    Law,
    critical_energy,
    edge_energy,
    fit_index,
    hessian_law,
    index,
    kolmogorov_distance,
    random_spectrum,
)

ENERGIES = (0.0, 0.01, 0.1, 0.5, 2.0)
RATIOS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 4.0)
PEER = Path(".venv-peer-spectra/bin/python")
PEER_CODE = """
import json, sys
import numpy as np
from freealg.distributions import FreeLevy
x, cases = json.loads(sys.argv[1])
found = []
for jumps, rates, sigma in cases:
    law = FreeLevy(jumps, np.array(rates) / sum(rates), sum(rates), 0.0, sigma)
    found.append(np.asarray(law.density(np.array(x), eta=1e-9)).tolist())
print(json.dumps(found))
"""


def grid(size: int, small: int, many: int) -> list[dict[str, Any]]:
    found = []
    for model in ("linear", "relu"):
        for ratio in RATIOS:
            for energy in ENERGIES:
                law = hessian_law(energy, ratio, model)
                pooled = np.concatenate([random_spectrum(law, small, seed) for seed in range(many)])
                one = kolmogorov_distance(random_spectrum(law, size, 1), law)
                row = {"model": model, "ratio": ratio, "energy": energy, "atom": sum(m for _, m in law.atoms)}
                found.append(row | {"one": one, "pooled": kolmogorov_distance(pooled, law)})
    return found


def critical() -> list[dict[str, Any]]:
    found = []
    for model in ("linear", "relu"):
        for ratio in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
            closed = critical_energy(ratio, model)
            edge = edge_energy(lambda e, r=ratio, m=model: hessian_law(e, r, m), 0.1 * closed, 10 * closed)
            found.append({"model": model, "ratio": ratio, "closed": closed, "relative": edge / closed - 1})
    return found


def exponents(size: int, many: int) -> list[dict[str, Any]]:
    found = []
    for model in ("linear", "relu"):
        at = critical_energy(0.25, model)
        for name, excess in (
            ("law to 0.002", np.geomspace(1e-4, 2e-3, 20)),
            ("matrices to 0.5", np.arange(0.1, 0.51, 0.05)),
        ):
            energy = at * (1 + excess)
            if name.startswith("law"):
                fit = fit_index(energy, index(energy, 0.25, model))
            else:
                shares = np.array(
                    [
                        [
                            (random_spectrum(hessian_law(float(e), 0.25, model), size, 100 * k + s) < 0).mean()
                            for s in range(many)
                        ]
                        for k, e in enumerate(energy)
                    ]
                )
                se = np.maximum(shares.std(1, ddof=1), 0.3 / size) / math.sqrt(many)
                fit = fit_index(energy, shares.mean(1), se)
            row = {
                "model": model,
                "ratio": 0.25,
                "from": name,
                "exponent": fit.exponent.value,
                "error": fit.exponent.error,
            }
            row |= {"critical": fit.critical_energy.value / at - 1, "critical error": fit.critical_energy.error / at}
            found.append(row)
    return found


def speed() -> dict[str, float]:
    found = {}
    for model in ("linear", "relu"):
        made = hessian_law(0.1, 0.5, model)
        x = np.linspace(made.edges.min() - 0.1, made.edges.max() + 0.1, 400)
        times = []
        for _ in range(50):
            fresh = Law(made.shift, made.semicircular, made.rates, made.jumps)
            start = time.process_time()
            fresh.density(x)
            times.append(time.process_time() - start)
        found[model] = statistics.median(times)
    return found


def peer() -> dict[str, Any] | None:
    """Largest differences from freealg's free Lévy densities, which are solved point by point near the axis."""
    if not PEER.exists():
        return None
    x = np.linspace(-0.6, 3.2, 400)
    # It takes positive jumps only, which leaves the ReLU model out.
    laws = {f"linear {energy}": hessian_law(energy, 0.5) for energy in (0.1, 1.0)}
    laws["two jumps"] = Law(0.0, 0.04, (0.5, 1.0), (0.3, 1.0))
    cases = [(law.jumps, law.rates, math.sqrt(law.semicircular)) for law in laws.values()]
    sent = json.dumps([x.tolist(), cases])
    run = subprocess.run([str(PEER), "-c", PEER_CODE, sent], capture_output=True, text=True)
    if run.returncode:
        return {"error": run.stderr.strip().splitlines()[-1]}
    theirs = json.loads(run.stdout.strip().splitlines()[-1])
    found = {}
    for (name, law), density in zip(laws.items(), theirs, strict=True):
        # At a few points its iteration ends on another root: a density of 0, or the negative one.
        off = np.abs(np.array(density) - law.density(x))
        same = off < 1e-6
        found[name] = {"points": len(x), "other root": int((~same).sum()), "largest difference": float(off[same].max())}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    size, small, many = 1000, 200, 30
    rows = grid(size, small, many)
    found = {
        "command": "OMP_NUM_THREADS=1 .venv/bin/python bench/spectra.py --out validation/spectra.json",
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "sizes": {"one": size, "pooled": [many, small]},
        "worst": {
            "one, times its size": size * max(r["one"] for r in rows),
            "pooled, times the size of one": small * max(r["pooled"] for r in rows),
            "ε_c relative": max(abs(r["relative"]) for r in critical()),
        },
        "speed": speed(),
        "freealg": peer(),
        "exponents": exponents(400, 20),
        "critical": critical(),
        "grid": rows,
        "provenance": provenance(),
    }
    print(json.dumps({k: found[k] for k in ("worst", "speed", "freealg", "exponents")}, indent=1, ensure_ascii=False))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
