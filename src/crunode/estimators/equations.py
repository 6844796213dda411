"""The equations of state: what generalisation, training and fluctuation have to do with each other in any model.

Over data sets of n examples from a truth that the model realises, at inverse temperature β,

    n E[G − S]   → (λ − ν)/β + ν        Bayes generalisation
    n E[T − S_n] → (λ − ν)/β − ν        Bayes training
      E[V]       → 2ν/β                 functional variance
    n (G − S) + n (C − S_n) − (β − 1) V → 2λ/β        cross-validation C, for each data set

Four equations for two numbers, in regular and singular models alike. Each is checked against what the other three say.

References:
    Watanabe 2009, chapter 6; Watanabe 2010, Neural Networks 23, 20; Watanabe 2010, JMLR 11, 3571.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.result import Draws, Estimate, Finding
from crunode.core.rng import derived_seed
from crunode.errors import InputError
from crunode.estimators.chains import chosen_level
from crunode.estimators.criteria import bayes_training_loss, functional_variance, loo
from crunode.estimators.extrapolate import digamma
from crunode.estimators.generalization import bayes_excess
from crunode.estimators.triples import Triple
from crunode.sampling.posterior import Posterior, positive
from crunode.sampling.run import sample
from crunode.sampling.tuning import tune

__all__ = ["Equation", "EquationsOfState", "equations_of_state", "simulate"]

Array = NDArray[np.float64]

_NAMES = ("generalization", "training", "variance", "cross-validation")
_FEWEST = 3
# Numbers in memory at a time.
_BLOCK = 1 << 22
# Residuals of more errors than this are reported.
_CLEAR = 4.0
# What a multiplicity of two would take away is within 1.96 of these.
_DOUBLE = 0.55


@dataclass(frozen=True)
class Equation:
    """One of the equations, with λ and ν from the other three.

    Attributes:
        name: "generalization", "training", "variance" or "cross-validation".
        left: The mean over data sets.
        right: What λ and ν from the other equations give.
        se: Error of their difference, from the scatter over data sets.
        systematic: What the limit of large n leaves out, by its order.
    """

    name: str
    left: float
    right: float
    se: float
    systematic: float

    @property
    def residual(self) -> float:
        """How far it is from holding."""
        return self.left - self.right

    @property
    def score(self) -> float:
        """That in units of its error."""
        return self.residual / math.hypot(self.se, self.systematic)


@dataclass(frozen=True)
class EquationsOfState:
    """Learning coefficient and singular fluctuation from all equations, and how well each one holds.

    Attributes:
        coefficient: λ.
        fluctuation: ν at this temperature.
        equations: The four, in the order above.
        findings: What was noticed.
    """

    coefficient: Estimate
    fluctuation: Estimate
    equations: tuple[Equation, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether they hold, and nothing speaks against the draws."""
        return all(f.severity != "error" and f.code != "CRIT713" for f in self.findings)

    def __str__(self) -> str:
        lines = [f"{'':16}  {'left':>8}  {'right':>8}  {'± data':>8}  {'± limit':>8}  {'errors':>7}"]
        for e in self.equations:
            numbers = f"{e.left:8.3f}  {e.right:8.3f}  {e.se:8.2g}  {e.systematic:8.2g}  {e.score:7.1f}"
            lines.append(f"{e.name:16}  {numbers}")
        return "\n".join([str(self.coefficient), str(self.fluctuation), *lines])


def simulate(
    triple: Triple,
    n: int,
    sets: int,
    *,
    beta: float = 1.0,
    kernel: Any = None,
    center: Any = None,
    seed: int = 0,
    **options: Any,
) -> list[tuple[Draws, Landscape]]:
    """Draws of the posteriors of several data sets from the truth, with positions and losses of all examples kept.

    Settings that are left out are tuned on the first data set, and kept for the others.

    Args:
        triple: Model, truth and prior.
        n: Examples of a data set.
        sets: How many data sets.
        beta: Inverse temperature.
        kernel: The sampler; None to choose one.
        center: Weights where chains start; None for the model's own.
        seed: All randomness comes from it.
        options: Passed to `sample`: chains, draws, warmup, budget, executor, layout.

    Example:
        >>> from crunode.sampling.metropolis import HMC
        >>> triple = Triple(torch.nn.Linear(1, 1), lambda x: 0.5 * x, "normal", features=1)
        >>> runs = simulate(triple, 50, 3, kernel=HMC(step=0.01, leaps=4), chains=2, draws=20, warmup=5)
        >>> len(runs), runs[0][0].arrays["pointwise"].shape
        (3, (2, 20, 50))
    """
    if isinstance(sets, bool) or not isinstance(sets, int) or sets < 1:
        raise InputError(f"expected sets as a positive whole number, got {sets!r}")
    positive("beta", beta)
    lengths = {name: options.pop(name, None) for name in ("chains", "draws", "warmup", "budget")}
    found: list[tuple[Draws, Landscape]] = []
    for k in range(sets):
        own = derived_seed(seed, k)
        posterior: Posterior = triple.posterior(n, own, beta=beta, center=center)
        if k == 0:
            plan = tune(posterior, kernel, **lengths, seed=own)
            posterior, kernel = plan.apply(posterior, kernel)
            lengths = {"chains": plan.chains, "draws": plan.draws, "warmup": plan.warmup}
        drawn = sample(posterior, kernel, **lengths, **options, seed=own, keep=("positions",))
        found.append((_with_losses(drawn, posterior.landscape, triple), posterior.landscape))
    return found


def _with_losses(draws: Draws, land: Landscape, triple: Triple) -> Draws:
    """The draws with the loss of every example, for all of them together: one by one takes longer than sampling."""
    x, y = _data(land)
    places = triple.positions(draws, draws.levels()[0])
    chains, count, _ = places.shape
    with torch.no_grad():
        parts = torch.split(places.reshape(chains * count, -1), max(1, _BLOCK // (16 * len(x))))
        rows = [triple.loss(out, y) for part in parts for out in triple.outputs(part, x)]
    return replace(
        draws, arrays={**draws.arrays, "pointwise": torch.stack(rows).cpu().numpy().reshape(chains, count, -1)}
    )


def _data(land: Landscape) -> tuple[Tensor, Tensor]:
    found = leaves(next(iter(land.passes(land.data.rows))))
    if len(found) != 2:
        raise InputError(f"expected landscapes on data (x, y), got {len(found)} tensors")
    return found[0], found[1]


def equations_of_state(
    sets: Sequence[tuple[Draws, Landscape]], triple: Triple, *, test: int = 1000, seed: int = 0
) -> EquationsOfState:
    """Learning coefficient and singular fluctuation over data sets, and a check of each equation of state.

    Args:
        sets: For each data set its draws, with positions and pointwise losses kept, and its landscape, as `simulate`
            gives them: all of one n and one nbeta.
        triple: Model, truth and prior.
        test: Number of test inputs, the same for all.
        seed: Of the test inputs.

    Returns:
        The result. Equations hold in the limit of large n: the next term, of order λ(2λ + 1)/n, and the difference of
        cross-validation and WAIC are in their systematic errors; λ has what a multiplicity of two would change it by
        in its own, as `rlct` has. An equation that misses by more than four errors is reported (finding CRIT713), and
        so is a truth that is not realised (CRIT705).

    Example:
        >>> from crunode.sampling.metropolis import HMC
        >>> triple = Triple(torch.nn.Linear(1, 1), lambda x: 0.5 * x, "normal", features=1)
        >>> runs = simulate(triple, 100, 8, kernel=HMC(leaps=4), chains=4, draws=100, warmup=30)
        >>> state = equations_of_state(runs, triple, test=300)
        >>> bool(abs(state.coefficient.value - 1) < 4 * state.coefficient.error)  # d/2
        True
    """
    level, n = _checked(sets, triple)
    beta = level / n
    table = np.array([_observed(draws, land, triple, n, beta, test, seed) for draws, land in sets])
    gaps = table[:, 4]
    values = table[:, :4]
    design = np.array([[1 / beta, 1 - 1 / beta], [1 / beta, -1 / beta - 1], [0, 2 / beta], [2 / beta, 0]])
    root = math.sqrt(len(values))
    errors = values.std(0, ddof=1) / root
    first = _solution(design, errors)
    rough = abs(float((values.mean(0) @ first.T)[0]))
    limit = math.hypot(rough * (2 * rough + 1) / n, float(np.abs(gaps.mean())))
    both = values @ _solution(design, np.hypot(errors, limit)).T
    equations = []
    for j, name in enumerate(_NAMES):
        others = [k for k in range(len(_NAMES)) if k != j]
        right = values[:, others] @ _solution(design[others], np.hypot(errors[others], limit)).T @ design[j]
        apart = values[:, j] - right
        se = float(apart.std(ddof=1)) / root
        equations.append(Equation(name, float(values[:, j].mean()), float(right.mean()), se, limit))
    value, nu = (float(v) for v in both.mean(0))
    scatter = both.std(0, ddof=1) / root
    terms = {"limit": limit, "multiplicity": _DOUBLE / max(math.log(level) - digamma(max(value, 0.5)), 1.0)}
    draws = sets[0][0]
    findings = tuple(_findings(sets, triple, equations, seed))
    whole = Estimate(
        "coefficient",
        value,
        se=float(scatter[0]),
        systematic=math.hypot(*terms.values()),
        findings=findings,
        spec=draws.spec,
        seed=seed,
        diagnostics={"beta": beta, "n": n, "sets": len(sets), "per_set": both[:, 0].tolist()},
        terms=terms,
        provenance=draws.provenance,
    )
    fluctuation = replace(
        whole,
        name="fluctuation",
        value=nu,
        se=float(scatter[1]),
        systematic=limit,
        terms={"limit": limit},
        diagnostics={**whole.diagnostics, "per_set": both[:, 1].tolist()},
    )
    return EquationsOfState(whole, fluctuation, tuple(equations), findings)


def _solution(design: Array, errors: Array) -> Array:
    """The matrix that maps left sides to (λ, ν) by weighted least squares."""
    scaled = design / np.maximum(errors, 1e-300)[:, None]
    return np.asarray(np.linalg.pinv(scaled) / np.maximum(errors, 1e-300))


def _checked(sets: Any, triple: Any) -> tuple[float, int]:
    if not isinstance(triple, Triple):
        raise InputError(f"expected a Triple, got {type(triple).__name__}")
    pairs = list(sets) if isinstance(sets, Sequence) else []
    fits = all(
        isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], Draws) and isinstance(p[1], Landscape) for p in pairs
    )
    if len(pairs) < _FEWEST or not fits:
        raise InputError(
            f"expected {_FEWEST} data sets or more as pairs of draws and landscape, got {len(pairs)} of another form "
            "or too few; simulate(triple, n, sets) makes them"
        )
    kinds = {(chosen_level(draws, None), int(draws.spec["n"])) for draws, _ in pairs}
    if len(kinds) > 1:
        raise InputError(f"expected data sets of one nbeta and one n, got {sorted(kinds)}")
    for draws, land in pairs:
        if draws.spec["asked"].get("landscape") not in (None, land.fingerprint()):
            raise InputError("expected each landscape to be the one its draws are of, got another one")
    return kinds.pop()


def _observed(
    draws: Draws, land: Landscape, triple: Triple, n: int, beta: float, test: int, seed: int
) -> tuple[float, ...]:
    """Left sides of the equations for one data set, and what cross-validation is above WAIC, times n."""
    x, y = _data(land)
    own = triple.empirical_entropy((x, y)).value
    with torch.no_grad():
        losses = triple.loss(triple.outputs(land.center, x), y)
    if not torch.allclose(losses.double(), land.losses().double(), rtol=1e-3, atol=1e-4):
        raise InputError(
            "expected landscapes with the loss −log p of the triple, got another one; use triple.landscape"
        )
    above = bayes_excess(draws, triple, test=test, seed=seed).value
    training = bayes_training_loss(draws).value - own
    spread = functional_variance(draws).value
    cross = loo(draws).value - own
    fourth = n * (above + cross) - (beta - 1) * spread
    return n * above, n * training, spread, fourth, n * cross - n * training - beta * spread


def _findings(
    sets: Sequence[tuple[Draws, Landscape]], triple: Triple, equations: Sequence[Equation], seed: int
) -> Iterator[Finding]:
    seen: dict[str, list[Finding]] = {}
    for draws, _ in sets:
        for finding in bayes_training_loss(draws).findings:
            seen.setdefault(finding.code, []).append(finding)
    for same in seen.values():
        first = same[0]
        yield replace(first, message=f"{first.message} ({len(same)} of {len(sets)} data sets)")
    yield from triple.distance(sets[0][0], seed=seed).findings
    worst = max(equations, key=lambda e: abs(e.score))
    if not abs(worst.score) < _CLEAR:
        yield Finding.of("CRIT713", f"that of {worst.name} misses by {worst.residual:.3g}, {worst.score:.1f} errors")
