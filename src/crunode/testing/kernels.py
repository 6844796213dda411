"""`check_kernel`: does a kernel draw from the posterior it is given, whatever the layout, the seed and the scale?"""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import torch

from crunode.core.result import Draws
from crunode.core.rng import preserved_rng
from crunode.errors import CrunodeError
from crunode.sampling.diagnostics import mcse_mean
from crunode.sampling.run import sample
from crunode.testing.targets import ROWS, Target, function_target, module_target

__all__ = ["check_kernel"]

# Standard errors allowed. At 5, one comparison in 1.7 million fails by chance, and one kernel in 40 000.
ERRORS = 5.0
# ε times the largest curvature: small where the step makes an error, large where a Metropolis test removes it.
UNADJUSTED, ADJUSTED = 0.1, 0.9
# Relative error of a variance that a step may make, as a fraction of ε times the largest curvature; Langevin
# dynamics has 1/(1 − εh/4), a quarter.
STEP_ERROR = 1 / 3
CHAINS = 256
# Steps; an unadjusted chain goes through its slowest direction in 80 of them.
WARMUP, DRAWS = {False: 400, True: 50}, {False: 1200, True: 400}


def check_kernel(kernel: Any, *, seed: int = 0) -> dict[str, float]:
    """Check a kernel against Gaussian posteriors that are known exactly, and against the contract of a kernel.

    A kernel is a frozen dataclass with a field `step`, an attribute `metropolis` and methods `init(w, gradient)` and
    `advance(state, gradient, step, noise, uniform, warming)`. What is checked:

    - *form*: frozen, picklable, leaves landscape, frozen parameters and global random state as they were;
    - *seeds*: the same seed gives the same draws bit for bit, another seed others, whatever the global random state;
    - *chains*: all differ, and a chain has the same draws whichever others run beside it;
    - *layouts*: all chains at once, or one after the other, give the same draws to rounding;
    - *scale*: the loss times 4 at a quarter of nbeta gives the same draws;
    - *target*: mean and variance along each eigen-direction, correlations, and the mean excess loss (d/(2nβ) without a
      prior), at two values of nbeta, on a bare function and on a module of which a part is frozen.

    Tolerances of the target are 5 standard errors from the effective sample size. To variances an unadjusted kernel
    may add ε U''/3, where ε is the step (chosen here, in units of plain Langevin dynamics) and U'' the largest
    curvature; at ε U'' = 0.1 that is 3 %, and 2 % for the mean excess loss, where U'' is the mean curvature. A
    Metropolis kernel may add nothing, at steps ten times larger. With other settings than its step a kernel has to
    sample the same posterior: check it at several.

    Args:
        kernel: An instance; its step and batch are replaced.
        seed: Seed of the runs.

    Returns:
        Measured over exact values: the variance of each direction, the mean excess loss in units of d/(2nβ).

    Raises:
        AssertionError: The kernel is not as it should be; the message says what was seen and what was allowed.

    Example:
        >>> from crunode.sampling.metropolis import MALA
        >>> ratios = check_kernel(MALA())
        >>> all(abs(r - 1) < 0.1 for r in ratios.values())
        True
    """
    name = type(kernel).__name__
    try:
        _check_form(kernel)
        _check_streams(kernel, seed)
        target = {**_check_target(kernel, module_target(), seed), **_check_target(kernel, function_target(), seed)}
    except AssertionError as error:
        raise AssertionError(f"{name} is not a valid kernel: {error}") from None
    except CrunodeError as error:
        raise AssertionError(f"{name} is not a valid kernel: sampling a Gaussian failed: {error}") from error
    return target


def require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _check_form(kernel: Any) -> None:
    is_data = dataclasses.is_dataclass(kernel) and not isinstance(kernel, type)
    require(is_data and type(kernel).__dataclass_params__.frozen, "expected an instance of a frozen dataclass")
    require("step" in {f.name for f in dataclasses.fields(kernel)}, "expected a field `step`")
    for method in ("init", "advance"):
        require(callable(getattr(kernel, method, None)), f"expected a method `{method}`")
    require(isinstance(getattr(kernel, "metropolis", None), bool), "expected `metropolis` as True or False")
    require(pickle.loads(pickle.dumps(kernel)) == kernel, "expected equality after a pickle, to reach other processes")


def _fitted(kernel: Any, target: Target, batch: int) -> Any:
    """The kernel with a step that suits the curvature of each level, and the batch where it has one."""
    unit = ADJUSTED if kernel.metropolis else UNADJUSTED
    steps = tuple(unit / target.stiffest(level) for level in range(len(target.means)))
    changes: dict[str, Any] = {"step": steps if len(steps) > 1 else steps[0]}
    if any(f.name == "batch" for f in dataclasses.fields(kernel)):
        changes["batch"] = batch
    return dataclasses.replace(kernel, **changes)


def _check_streams(kernel: Any, seed: int) -> None:
    target = module_target()
    land = target.posterior.landscape
    before, written = land.fingerprint(), repr(kernel)

    def run(at: Target = target, *, batch: int = 20, noise: int = 0, **options: Any) -> np.ndarray:
        settings = {"chains": 6, "seed": seed, "layout": "batched", "draws": 15, "warmup": 5, **options}
        with preserved_rng():
            torch.manual_seed(noise)
            state = torch.get_rng_state()
            draws = sample(at.posterior, _fitted(kernel, target, batch), keep=["positions"], **settings)
            require(torch.equal(state, torch.get_rng_state()), "expected the global random state to stay as it was")
        return draws.arrays["positions"]

    first = run()
    changed = "expected frozen parameters, center and data to stay as they were, got others after sampling"
    require(land.fingerprint() == before, changed)
    require(repr(kernel) == written, "expected the kernel to stay as it was")
    message = "expected the same draws from the same seed, got others; take randomness from `noise` and `uniform` only"
    require(np.array_equal(first, run(noise=1)), message)
    message = "expected other draws from another seed, got the same"
    require(not np.isclose(first, run(seed=seed + 1)).all(2).any(), message)
    last = run(batch=ROWS)[:, -1]  # on all data, so that only the noise tells chains apart
    alike = [(i, j) for i in range(6) for j in range(i) if np.allclose(last[i], last[j], rtol=1e-6)]
    require(not alike, f"expected chains with noise of their own, got the same draws in chains {alike}")
    _agree(first[:3], run(chains=3), "expected draws of a chain not to depend on the other chains")
    _agree(first, run(layout="sequential"), "expected the same draws from chains run at once and one by one")
    require(land.fingerprint() == before, changed)
    message = "expected the same draws with the loss times 4 and nbeta over 4; use nbeta through the gradient only"
    _agree(first, run(module_target(4.0)), message)


def _agree(one: np.ndarray, other: np.ndarray, message: str) -> None:
    scale = float(np.abs(one).max())
    gap = float(np.abs(one - other).max())
    require(gap <= 1e-8 * scale, f"{message}, got a difference of {gap:.2g} on draws of size {scale:.2g}")


def _check_target(kernel: Any, target: Target, seed: int) -> dict[str, float]:
    land = target.posterior.landscape
    fitted = _fitted(kernel, target, ROWS)
    before = land.fingerprint()
    work = max(1, int(getattr(kernel, "leaps", 1)))
    levels = len(target.means)
    draws = sample(
        target.posterior,
        fitted,
        chains=CHAINS,
        draws=max(DRAWS[kernel.metropolis] // work, 100),
        warmup=max(WARMUP[kernel.metropolis] // work, 20),
        seed=seed,
        layout="batched",
        keep=["positions"],
    )
    require(land.fingerprint() == before, "expected frozen parameters to stay as they were, got others")
    ratios: dict[str, float] = {}
    for level in range(levels):
        ratios |= _check_level(kernel, target, level, draws)
    return ratios | _check_excess(kernel, target, draws)


def _check_level(kernel: Any, target: Target, level: int, draws: Draws) -> dict[str, float]:
    nbeta = target.posterior.levels[level]
    arrays = draws.at(nbeta)
    where = f"on the {target.name} target at nbeta {nbeta:g}"
    curvature, axes = (t.numpy() for t in torch.linalg.eigh(target.precisions[level]))
    scaled = (arrays["positions"] - target.means[level].numpy()) @ axes * np.sqrt(curvature)
    require(bool(np.isfinite(scaled).all()), f"{where}: expected finite draws")
    slack = _slack(kernel)
    ratios: dict[str, float] = {}
    for k, h in enumerate(curvature):
        z = scaled[:, :, k]
        direction = f"{where}, along the direction of curvature {h:.4g}"
        _near(z.mean(), 0.0, mcse_mean(z), 0.0, f"{direction}: mean, in standard deviations")
        _near((z**2).mean(), 1.0, mcse_mean(z**2), slack, f"{direction}: variance over its exact value")
        ratios[f"{target.name} nbeta {nbeta:g} curvature {h:.4g}"] = float((z**2).mean())
        for j in range(k):
            product = z * scaled[:, :, j]
            _near(product.mean(), 0.0, mcse_mean(product), slack / 2, f"{direction}: correlation with another one")
    return ratios


def _check_excess(kernel: Any, target: Target, draws: Draws) -> dict[str, float]:
    """The mean excess loss, over all levels together: the sharpest measure of the temperature."""
    parts, drift = [], []
    for level, nbeta in enumerate(target.posterior.levels):
        curvature = torch.linalg.eigvalsh(target.precisions[level])
        loss = draws.at(nbeta)["excess"].astype(np.float64)
        parts.append(1 + nbeta * (loss - target.excess[level]) / (len(curvature) / 2))
        drift.append(float(curvature.mean() / curvature[-1]))
        message = f"on the {target.name} target at nbeta {nbeta:g}: mean excess loss, in units of d/(2 nbeta)"
        _near(parts[-1].mean(), 1.0, mcse_mean(parts[-1]), _slack(kernel) * drift[-1], message)
    joint = np.concatenate(parts)
    message = f"on the {target.name} target: mean excess loss at all nbeta, in units of d/(2 nbeta)"
    _near(joint.mean(), 1.0, mcse_mean(joint), _slack(kernel) * max(drift), message)
    return {f"{target.name} excess": float(joint.mean())}


def _slack(kernel: Any) -> float:
    return 0.0 if kernel.metropolis else STEP_ERROR * UNADJUSTED


def _near(value: float, exact: float, error: float, slack: float, what: str) -> None:
    allowed = ERRORS * error + slack
    good = math.isfinite(error) and abs(value - exact) <= allowed
    require(good, f"{what}: expected {exact:.4g} ± {allowed:.2g}, got {value:.4g} (standard error {error:.2g})")
