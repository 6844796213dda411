"""Are singular points told from smooth ones? `Resolved.bent` at random deep linear networks, beside exact values.

    python validation/smooth_points.py [--class 10K] [--count 100] [--first-seed 8300] [--out FILE]

A center is a smooth point where half the rank of the Jacobian there is the exact local coefficient. `bent` knows
neither. Networks whose rank is not certain within 3 %, which are small ones, are not looked at.
"""

from __future__ import annotations

import argparse
import json
import math
from datetime import UTC, datetime
from pathlib import Path

import torch

from crunode.core.result import provenance
from crunode.curvature.jacobian import NoOutputs
from crunode.estimators.prior_scale import PriorScale
from crunode.estimators.resolved import SMOOTH, Resolved
from crunode_papers.hitchcock2025.problem import Problem
from crunode_papers.hitchcock2025.problems import problems_of


def row(problem: Problem) -> dict:
    """What is found at one network, and what is true."""
    land = problem.with_examples(2000).landscape()
    index = torch.arange(max(64, math.ceil(1.25 * problem.widths[0])))
    truth = {
        "problem": problem.name,
        "dim": problem.dim,
        "layers": len(problem.widths) - 1,
        "share_of_rank": float(problem.local.details["jacobian_rank"] / (2 * problem.local.value)),
        "smooth": problem.local.details["jacobian_rank"] == 2 * problem.local.value,
    }
    try:
        found = Resolved(land, index, PriorScale(land, 0.1, 1.0))
        return {**truth, "bent": found.bent(), "passes": found.gradients}
    except NoOutputs as error:
        return {**truth, "bent": None, "why": str(error)}


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--class", dest="kind", default="10K")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=8300)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row(problem) for problem in problems_of(args.kind, count=args.count, first_seed=args.first_seed)]
    seen = [r for r in rows if r["bent"] is not None]
    record = {
        "command": f"python validation/smooth_points.py --class {args.kind} --count {args.count} "
        f"--first-seed {args.first_seed}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "summary": {
            "networks": len(rows),
            "looked_at": len(seen),
            "smooth": sum(r["smooth"] for r in seen),
            "smooth_taken_for_singular": sum(r["smooth"] and r["bent"] > SMOOTH for r in seen),
            "singular_not_seen": sum(not r["smooth"] and r["bent"] <= SMOOTH for r in seen),
            "largest_at_smooth": max((r["bent"] for r in seen if r["smooth"]), default=None),
            "least_elsewhere": min((r["bent"] for r in seen if not r["smooth"]), default=None),
            "passes": [min(r["passes"] for r in seen), max(r["passes"] for r in seen)],
        },
        "rows": rows,
    }
    text = json.dumps(record, indent=1)
    print(json.dumps(record["summary"], indent=1))
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
