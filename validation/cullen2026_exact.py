"""Held against the truth: quadratic networks that are built so that their learning coefficient is known.

    python validation/cullen2026_exact.py [--seeds 0] [--out validation/cullen2026_exact.json]

Each network is its own truth, at weights where the hypotheses hold, which is decided in exact arithmetic. λ is
estimated three times: by `llc` with defaults, which finds the rank around the weights; by `llc` from draws alone, which
knows nothing of ranks; and as the intercept in 1/log nβ. Beside them is what Cullen 2026 has for λ, and how far that is
off. Networks on all pairs at several p and K give slopes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import crunode
from crunode.core.result import Estimate, provenance
from crunode.core.rng import derived_seed
from crunode.estimators.multitemperature import multi_temperature
from crunode_papers.cullen2026.constructed import construct
from crunode_papers.cullen2026.lines import fit_line

NEAR = 0.05
CHAINS = {"chains": 16, "draws": 150, "warmup": 150}
NETWORKS: list[tuple[str, int, int, dict[str, Any]]] = [
    ("generic", 3, 4, {"inputs": 4}),
    ("generic", 3, 5, {"inputs": 4}),
    ("generic", 3, 12, {"inputs": 4}),
    ("modular", 3, 2, {}),
    ("modular", 3, 4, {}),
    ("modular", 5, 6, {}),
    ("modular", 5, 12, {}),
    ("subset", 5, 3, {"examples": 15}),
    ("subset", 5, 12, {"examples": 15}),
    ("subset", 7, 5, {"examples": 20}),
    ("lazy", 3, 12, {}),
    ("lazy", 5, 10, {}),
    ("ntk", 3, 4, {}),
    ("ntk", 5, 4, {}),
    ("stage-two", 3, 4, {"inputs": 4, "active": 2}),
]
WIDTHS = (1, 2, 3, 4, 6, 8)
MODULI = (3, 5, 7)


def numbers(estimate: Estimate, exact: float) -> dict[str, Any]:
    """An estimate with its stated errors, and how far it is off."""
    return {
        "value": estimate.value,
        "se": estimate.se,
        "systematic": estimate.systematic,
        "ok": estimate.ok,
        "findings": [f.code for f in estimate.findings],
        "relative_error": estimate.value / exact - 1,
        "errors_off": (estimate.value - exact) / estimate.error if estimate.error else None,
    }


def run(case: str, modulus: int, hidden: int, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """All estimates of one network, beside the exact value and the paper's."""
    start = time.perf_counter()
    made = construct(case, modulus, hidden, **options, seed=seed)
    exact = float(made.exact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        plain = crunode.llc(made.landscape, seed=seed)
        line = multi_temperature(made.landscape, seed=derived_seed(seed, 5), **CHAINS)
        assert line.draws is not None
        chains = crunode.llc(line.draws)
    off = None if made.paper is None else made.paper / exact - 1
    return {
        "case": case,
        "modulus": modulus,
        "hidden": hidden,
        "options": options,
        "seed": seed,
        "dim": made.landscape.dim,
        "exact": str(made.exact.value),
        "source": made.exact.citation,
        "hypotheses": [str(check) for check in made.checks],
        "what the theorem needs and is not there": [str(check) for check in made.missed],
        "paper": made.paper,
        "paper_bounds": made.paper_bounds,
        "paper_relative_error": off,
        "llc": numbers(plain, exact),
        "chains": numbers(chains, exact),
        "line": numbers(line, exact),
        "levels": line.diagnostics["levels"],
        "seconds": time.perf_counter() - start,
    }


def slopes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of λ in K at each p, and in p at each K, from networks on all pairs below the critical width."""
    found = []
    for axis, fixed_by in (("hidden", "modulus"), ("modulus", "hidden")):
        for fixed in sorted({row[fixed_by] for row in rows}):
            here = [row for row in rows if row[fixed_by] == fixed and row["below"]]
            if len(here) < 3:
                continue
            p_or_k = {"modulus": fixed} if fixed_by == "modulus" else {"hidden": fixed}
            expected = (3 * fixed - 2) / 2 if fixed_by == "modulus" else 1.5 * fixed
            printed = (3 * fixed - 1) / 2 if fixed_by == "modulus" else 1.5 * fixed
            lines = {}
            for key in ("llc", "chains"):
                errors = [max((row[key]["se"] ** 2 + row[key]["systematic"] ** 2) ** 0.5, 1e-9) for row in here]
                line = fit_line([row[axis] for row in here], [row[key]["value"] for row in here], errors)
                ends = {"intercept": line.intercept, "intercept_se": line.intercept_se}
                lines[key] = {"slope": line.slope, "slope_se": line.slope_se, **ends, "r2": line.r2}
            places = [row[axis] for row in here]
            found.append({**p_or_k, "in": axis, "at": places, "exact": expected, "as printed": printed, **lines})
    return found


def distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each network once: some are there for themselves and for a slope."""
    found = {}
    for row in rows:
        key = json.dumps([row[name] for name in ("case", "modulus", "hidden", "options", "seed")], sort_keys=True)
        found.setdefault(key, row)
    return list(found.values())


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst relative error of each estimator, and by case."""
    found: dict[str, Any] = {"networks": len(rows)}
    for key in ("llc", "chains", "line"):
        sizes = [abs(row[key]["relative_error"]) for row in rows]
        far = [abs(row[key]["errors_off"]) for row in rows if row[key]["errors_off"] is not None]
        found[key] = {
            "worst_relative_error": max(sizes),
            "within_5_percent": sum(size <= NEAR for size in sizes),
            "within_two_stated_errors": sum(one <= 2 for one in far),
            "by_case": {
                case: max(abs(row[key]["relative_error"]) for row in rows if row["case"] == case)
                for case in dict.fromkeys(row["case"] for row in rows)
            },
        }
    return found


def main() -> int:
    """Run all networks and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("cullen2026_exact.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    jobs = [
        (case, p, k, {**given, "centred": centred}, seed)
        for case, p, k, given in NETWORKS
        for centred in (False, True)
        for seed in options.seeds
    ]
    rows = [shown(run(*job)) for job in jobs]
    scaled = []
    for p in MODULI:
        for k in WIDTHS:
            below = k * (3 * p - 2) <= p * (p * p - 1)
            if below or k <= 6:
                scaled.append(shown(run("modular", p, k, {"centred": True}, options.seeds[0])) | {"below": below})
    result, lines = summary(distinct([*rows, *scaled])), slopes(scaled)
    print(json.dumps({"summary": result, "slopes": lines}, indent=1))
    content = {
        "command": "python validation/cullen2026_exact.py --seeds " + " ".join(map(str, options.seeds)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "chains": CHAINS,
        "summary": result,
        "slopes": lines,
        "rows": rows,
        "scaling": scaled,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if max(result[key]["worst_relative_error"] for key in ("llc", "chains")) <= NEAR else 1


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Print a line about a network."""
    off = "" if row["paper_relative_error"] is None else f"{100 * row['paper_relative_error']:+.0f} %"
    values = "  ".join(
        f"{k} {row[k]['value']:.2f} ({100 * row[k]['relative_error']:+.1f} %)" for k in ("llc", "chains")
    )
    name = f"{row['case']} p={row['modulus']} K={row['hidden']} {row['options']} seed {row['seed']}"
    line = f"{row['line']['value']:.2f} ± {(row['line']['se'] ** 2 + row['line']['systematic'] ** 2) ** 0.5:.2f}"
    print(f"{name:<72} exact {row['exact']:<6} {values}  line {line}  paper {off}  {row['seconds']:.0f} s", flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
