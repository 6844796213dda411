"""How far is the rank in the valley above the least? `Closing` from the end of a chain and from random points.

    python validation/closing.py [--class 100K] [--seeds 9402 9405 9600] [--workers 2] [--out FILE]

In deep linear networks the least rank of the Jacobian on pieces of the valley that lead to the center is known. The
chain is cooled for two temperatures as `cooled_estimate` does; random points are those of its prior.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode.curvature.jacobian import NoOutputs
from crunode.estimators.closing import Closing
from crunode.estimators.cooled_chain import FACTOR, MOVES, CooledChain
from crunode.estimators.prior_scale import PriorScale
from crunode.sampling.labels import choose_labels
from crunode_papers.hitchcock2025.problems import problems_of

EXAMPLES, LEVELS = 20_000, 2


def below(land: Landscape, index: Tensor, offset: Tensor, guess: float, exact: float) -> dict:
    """The point of the valley below an offset."""
    steps, begin = Closing(land, index, MOVES[0][0]), time.perf_counter()
    try:
        found = steps.close(offset, guess)
        answer = {"rank": found.rank, "error": found.error, "relative_error": found.rank / (2 * exact) - 1}
    except NoOutputs as error:
        answer = {"rank": None, "why": str(error)}
    return {**answer, "passes": steps.gradients, "seconds": time.perf_counter() - begin}


def row(given: tuple[str, int]) -> dict:
    """What is found at one network, and what is true."""
    kind, seed = given
    torch.set_num_threads(1)
    problem = problems_of(kind, count=1, first_seed=seed)[0]
    exact = float(problem.local.value)
    land = choose_labels(
        problem.with_examples(EXAMPLES).landscape(device="cpu"), None, kernel=None, seed=seed
    ).landscape
    chain = CooledChain(land, *MOVES[0], seed=0, most=1 << 40)
    t, levels = chain.begin(), []
    for k in range(LEVELS):
        level = chain.level(t * FACTOR**k, first=False)
        levels.append({"nbeta": level.nbeta, "share": level.value / exact})
    normal = torch.randn(land.dim, generator=torch.Generator().manual_seed(0), dtype=land.center.dtype)
    return {
        "problem": problem.name,
        "dim": problem.dim,
        "layers": len(problem.widths) - 1,
        "share_of_rank": float(problem.local.details["jacobian_rank"]) / (2 * exact),
        "levels": levels,
        "chain": below(land, chain.index, chain.moved, level.value, exact),
        "random": below(land, chain.index, PriorScale(land, *MOVES[0])(normal).double(), level.value, exact),
    }


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--class", dest="kind", default="100K")
    parser.add_argument("--seeds", type=int, nargs="+", default=[9402, 9405, 9600])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.workers) as pool:
        rows = list(pool.map(row, [(args.kind, seed) for seed in args.seeds]))
    record = {
        "command": f"python validation/closing.py --class {args.kind} --seeds {' '.join(map(str, args.seeds))}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "rows": rows,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
