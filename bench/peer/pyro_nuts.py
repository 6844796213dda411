"""Pyro's NUTS at the local posterior of a small ReLU network: losses of the draws and the time they took.

    .venv-peer-pyro/bin/python bench/peer/pyro_nuts.py CASE.npz OUT.npz --draws 300 --warmup 300

Needs an environment of its own:

    python3 -m venv .venv-peer-pyro
    .venv-peer-pyro/bin/pip install -c constraints.txt torch==2.13.0 pyro-ppl==1.9.2

`bench/posterior.py --peer` writes the case (inputs, targets, center) and reads the result.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor


class Counted(NUTS):
    """NUTS that looks at the clock before each draw and counts leapfrog steps after warm-up."""

    def setup(self, warmup_steps: int, *args: object, **kwargs: object) -> None:
        super().setup(warmup_steps, *args, **kwargs)
        self.wanted, self.at, self.gradients = warmup_steps, [], 0
        plain = self.potential_fn

        def potential(z: dict[str, Tensor]) -> Tensor:
            self.gradients += 1
            return plain(z)

        self.potential_fn = potential

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        if len(self.at) == self.wanted:
            self.gradients = 0
        self.at.append((time.process_time(), time.perf_counter()))
        return super().sample(params)


def output(w: Tensor, inputs: Tensor) -> Tensor:
    """f(x) from the vector of all parameters: first weights, first biases, last weights, last bias."""
    hidden = torch.relu(inputs @ w[:10].view(5, 2).T + w[10:15])
    return hidden @ w[15:20] + w[20]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--jit", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    case = {name: torch.from_numpy(value) for name, value in np.load(args.case).items()}
    inputs, targets, center = case["inputs"], case["targets"][:, 0], case["center"]

    def model() -> None:
        w = pyro.sample("w", dist.Normal(center, 1.0).to_event(1))
        pyro.sample("y", dist.Normal(output(w, inputs), 1.0).to_event(1), obs=targets)

    kernel = Counted(model, jit_compile=args.jit, ignore_jit_warnings=True)
    chain = MCMC(
        kernel,
        num_samples=args.draws,
        warmup_steps=args.warmup,
        initial_params={"w": center.clone()},
        disable_progbar=True,
    )
    chain.run()
    end = time.process_time(), time.perf_counter()
    base = 0.5 * (output(center, inputs) - targets).double().square().sum()
    draws = chain.get_samples()["w"]
    loss = [float(0.5 * (output(w, inputs) - targets).double().square().sum() - base) for w in draws]
    first = kernel.at[args.warmup]
    np.savez(
        args.out,
        loss=np.array(loss),
        cpu_s=end[0] - first[0],
        wall_s=end[1] - first[1],
        warmup_cpu_s=first[0] - kernel.at[0][0],
        warmup=args.warmup,
        gradients=kernel.gradients,
        version=pyro.__version__,
    )


if __name__ == "__main__":
    main()
