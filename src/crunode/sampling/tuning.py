"""Everything left to be chosen: kernel, nbeta ladder, precision, step, batch, chains, lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch

from crunode.core.data import Examples
from crunode.core.landscape import Landscape
from crunode.core.result import Finding
from crunode.core.rng import derived_seed, preserved_rng
from crunode.errors import InputError
from crunode.sampling.batching import fill_batch, measure_noise, smaller_steps
from crunode.sampling.exchange import Exchange
from crunode.sampling.kernel import Kernel, has_setting
from crunode.sampling.layout import choose_layout
from crunode.sampling.metropolis import HMC, MALA
from crunode.sampling.nuts import NUTS
from crunode.sampling.pilot import Pilot, pilot
from crunode.sampling.posterior import Gaussian, Posterior, Rung, wbic_nbeta
from crunode.sampling.stepping import Explored, explore, half_steps, lengths_for
from crunode.sampling.stochastic import PSGLD, SGHMC, SGLD, SGNHT
from crunode.sampling.thinning import FULL_BATCH_WORK, THINNED_WORK

__all__ = ["KERNELS", "Plan", "tune"]

KERNELS: dict[str, type[Kernel]] = {k.__name__: k for k in (SGLD, PSGLD, SGHMC, SGNHT, MALA, HMC, NUTS, Exchange)}

_TINY_WORK = 1e3
# Gradients below which pilot chains are short, and from which half and twice the precision are run too.
_SHORT, _LONG = 200_000, 100_000
_FEWEST_STEPS = 20
_HMC_ACCEPTANCE = 0.8
# A Langevin step accepted this often has a discretisation error well below typical Monte-Carlo errors.
_LANGEVIN_ACCEPTANCE = 0.9
_PILOT_ROWS = 1024
# Precision of the prior times the mean square of the weights. A narrower prior hides the far end of the valleys, which
# lowers estimates at any temperature; in a much wider one exact kernels do not get around.
_WIDE = 0.1
# Measured κ is up to twice the true one, since chains fit some of the noise; only one far above belongs to a loss on
# another scale than a log-likelihood's.
_NOISE_SCALE = 4.0


@dataclass(frozen=True)
class Plan:
    """Resolved settings of a run and the reasons for them.

    Attributes:
        nbeta: Levels of the inverse temperature.
        precision: γ of the prior; None for a flat prior.
        kernel: The kernel with all fields filled.
        chains: Chains per level.
        draws: Kept draws per chain.
        warmup: Steps before them.
        reasons: One sentence for each choice.
        measures: What was measured on the way.
        findings: What was noticed.
        checks: Further rungs, beside the ladder.
    """

    nbeta: tuple[float, ...]
    precision: float | None
    kernel: Any
    chains: int
    draws: int
    warmup: int
    reasons: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    checks: tuple[Rung, ...] = ()

    def apply(self, posterior: Posterior, kernel: Any) -> tuple[Posterior, Any]:
        """The posterior and kernel with everything filled in."""
        prior = posterior.prior
        if isinstance(prior, Gaussian):
            prior = replace(prior, precision=self.precision)
        return Posterior(posterior.landscape, self.nbeta, prior), self.kernel

    def spec(self) -> dict[str, Any]:
        """JSON-able form, inverse of `from_spec`."""
        return {
            **{k: v for k, v in vars(self).items() if k not in ("kernel", "nbeta", "findings", "checks")},
            "nbeta": list(self.nbeta),
            "kernel": kernel_spec(self.kernel),
            "tuning_findings": [asdict(f) for f in self.findings],
            "checks": [asdict(r) for r in self.checks],
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], kernel: Any = None) -> Plan:
        """The plan stored in a run's spec; `kernel` is the one asked for, which may be of a kind unknown here."""
        names = ("precision", "chains", "draws", "warmup", "reasons", "measures")
        return cls(
            nbeta=tuple(spec["nbeta"]),
            kernel=kernel_of(spec["kernel"], kernel),
            findings=tuple(Finding(**f) for f in spec["tuning_findings"]),
            checks=tuple(Rung(**r) for r in spec.get("checks", ())),
            **{name: spec[name] for name in names},
        )


def kernel_spec(kernel: Any) -> dict[str, Any]:
    """A kernel's name and fields as JSON-able values; one around another kernel has that one's step and leaps too.

    Example:
        >>> kernel_spec(Exchange(MALA(step=(0.1, 0.2))))["step"]
        [0.1, 0.2]
    """
    spec: dict[str, Any] = {"name": type(kernel).__name__}
    for name, value in vars(kernel).items():
        spec[name] = kernel_spec(value) if is_dataclass(value) else list(value) if isinstance(value, tuple) else value
    if isinstance(kernel, Exchange):
        spec |= {"step": spec["inner"]["step"], "leaps": kernel.leaps}
    return spec


def kernel_of(spec: Mapping[str, Any], like: Any = None) -> Any:
    """The kernel that `kernel_spec` described; of the same kind as `like`, where given.

    Example:
        >>> kernel_of({"name": "SGLD", "step": 0.5, "batch": None})
        SGLD(step=0.5, batch=None)
    """
    kind = KERNELS[spec["name"]] if like is None else type(like)
    values = {}
    for name in (f.name for f in fields(kind) if f.name in spec):
        value = spec[name]
        if isinstance(value, Mapping):
            value = kernel_of(value, getattr(like, name, None))
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _with_step(kernel: Any, step: Any) -> Any:
    if isinstance(kernel, Exchange):
        return replace(kernel, inner=_with_step(kernel.inner, step))
    return replace(kernel, step=step)


def tune(
    posterior: Posterior,
    kernel: Any = None,
    *,
    chains: int | None = None,
    draws: int | None = None,
    warmup: int | None = None,
    budget: int | None = None,
    seed: int = 0,
) -> Plan:
    """Fill in whatever is None, from short pilot chains; what is given stays.

    - *kernel*: HMC on all data where a full gradient is cheap, otherwise SGHMC on minibatches.
    - *precision*: a share of the typical curvature nβ Tr(H²)/Tr(H) of the loss, so that the prior holds no direction
      that the loss holds. With exact kernels a hundredth, or 0.1/mean(w*²) if that is less; with minibatch kernels,
      whose chains cross the prior in some 1/share steps, 0.005 for 200 parameters to 0.05 for 2000. Without curvature
      0.1/mean(w*²); without weights, 1.
    - *nbeta*: a ladder around n/(κ log n). κ = E[δ²]/(2E[δ]) over loss differences δ_i(w) of single examples is 1
      for a log-likelihood at its truth, and near 0 without label noise, where lower temperatures see more.
    - *step*: by stochastic approximation of the Metropolis acceptance at each level: 0.8 for HMC trajectories, 0.9
      for the Langevin proposals of unadjusted kernels, and no larger than suits the curvature at points that short
      trajectories reach. Unadjusted kernels also run at half the step, to measure what it adds.
    - *batch*: enlarged until Langevin steps are predicted to heat by less than 5 % of the signal at n / log n; noise
      that minibatches have at the center is taken away by a control variate where it heats.
    - *friction*, unless the kernel was given: 0.1, or as much more as keeps that heating below 5 % too.

    Args:
        posterior: The target, with anything left None to choose.
        kernel: A kernel with or without its step; None to choose one.
        chains: Chains per level.
        draws: Kept draws per chain.
        warmup: Steps before them.
        budget: The most gradients to spend (one chain, one batch), pilot chains included; None for enough.
        seed: Pilot chains take their randomness from it.

    Returns:
        The plan, with a reason for each choice.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=1000)
        >>> plan = tune(Posterior(land, nbeta="wbic"))
        >>> type(plan.kernel).__name__, plan.kernel.step is not None, plan.reasons["nbeta"]
        ('HMC', True, 'as asked')
    """
    with preserved_rng(), torch.no_grad():
        return _tune(posterior, kernel, (chains, draws, warmup), budget, derived_seed(seed, 7))


def _tune(posterior: Posterior, kernel: Any, asked: tuple[int | None, ...], budget: int | None, seed: int) -> Plan:
    land = posterior.landscape
    reasons: dict[str, str] = {}
    measures: dict[str, Any] = {}
    findings: list[Finding] = []
    if land.n < 100:
        findings.append(Finding.of("LLC105", f"n = {land.n}"))
    kernel, spent = _kernel(land, kernel, reasons), 0
    # Not from the seed: repeats with other seeds shall sample the same posterior.
    curvature = _curvature(_subset(land, _PILOT_ROWS, 0), 0, probes=16)
    measures["curvature_trace"], measures["curvature_square"] = curvature
    precision = _precision(posterior, kernel, curvature, reasons)
    free_precision = isinstance(posterior.prior, Gaussian) and posterior.prior.precision is None
    if isinstance(posterior.prior, Gaussian):
        posterior = replace(posterior, prior=replace(posterior.prior, precision=precision))
    small = land if kernel.metropolis else _subset(land, _PILOT_ROWS, seed)
    core = kernel.core
    # Pilot chains look for the step themselves, and each rung for its own.
    guide: Any = replace(core, step=None, metric=None) if isinstance(core, HMC) else MALA()
    target = _HMC_ACCEPTANCE if isinstance(guide, HMC) else _LANGEVIN_ACCEPTANCE
    layout = choose_layout(small, 8, None)[0]
    first: Pilot | None = None
    if posterior.nbeta is None and land.noise_free:
        levels = _ladder(land, 0.0, reasons, measures)
    elif posterior.nbeta is None:
        fresh = _subset(land, 4 * _PILOT_ROWS, seed + 2)
        for level in _hotter(land):
            base = replace(posterior, landscape=small, nbeta=level)
            first = pilot(base, guide, chains=4, target=target, seed=seed, layout=layout)
            spent += first.gradients
            noise = _label_noise(fresh, first)
            # Too cold to tell when the chains fit so much noise that the loss does not rise on average.
            if not land.pointwise or (noise is not None and noise * level < _NOISE_SCALE * wbic_nbeta(land.n)):
                break
        levels = _ladder(land, noise, reasons, measures)
    else:
        levels = posterior.levels
        reasons["nbeta"] = "as asked"
    if kernel.step is None:
        start = None if first is None else [first.steps[0] * first.nbeta[0] / level for level in levels]
        target_posterior = replace(posterior, landscape=small, nbeta=levels)
        short = budget is not None and budget < _SHORT
        size = {"chains": 1, "iterations": 40} if short else {"chains": 2}
        probe = pilot(target_posterior, guide, target=target, seed=seed + 1, layout=layout, start=start, **size)
        spent += probe.gradients
        kernel = _with_step(kernel, tuple(probe.steps) if len(levels) > 1 else probe.steps[0])
        measures["pilot_acceptance"] = list(probe.accept)
        reasons["step"] = f"Metropolis acceptance near {target} at each level of nbeta"
        first = probe
    else:
        reasons["step"] = "as asked"
    halves: tuple[Rung, ...] = ()
    if not kernel.metropolis and has_setting(kernel, "batch"):
        found: Explored | None = None
        if reasons["step"] != "as asked" and (budget is None or budget >= _SHORT):
            found = explore(replace(posterior, landscape=small, nbeta=levels), seed=seed + 3, layout=layout)
            spent += 0 if found is None else found.gradients
        measure_noise(land, levels, first, found, measures, seed)
        kernel = fill_batch(land, levels, kernel, first, measures, reasons)
        if reasons["step"] != "as asked":
            kernel = smaller_steps(land, levels, kernel, first, precision or 0.0, measures, reasons)
            halves = half_steps(levels, precision or 0.0, kernel)
            reasons["half_steps"] = "at each level, to measure and remove what the step adds to the estimate"
    measures |= {"pilot_gradients": spent, "pilot_rows": small.data.rows}
    # Without label noise a colder ladder shows the limit, in which the prior has no part.
    wanted = free_precision and precision is not None and not land.noise_free and not kernel.ladder
    checks = _checks(levels, precision or 0.0, kernel, land.n) if wanted else ()
    checks = (*(checks if budget is None or budget >= _LONG else ()), *halves)
    count, kept, discarded = _lengths(land, kernel, levels, precision, len(levels) + len(checks), measures)
    if budget is not None:
        rest = budget - spent
        count, kept, discarded = _within(rest, len(levels) + len(checks), kernel, count, kept, discarded, asked)
    chains, draws, warmup = asked
    return Plan(
        levels,
        precision,
        kernel,
        chains or count,
        draws or kept,
        discarded if warmup is None else warmup,
        reasons,
        measures,
        tuple(findings),
        checks,
    )


def _checks(levels: tuple[float, ...], precision: float, kernel: Any, n: int) -> tuple[Rung, ...]:
    """Rungs at half and at twice the precision, at the level nearest to n / log n."""
    here = min(range(len(levels)), key=lambda j: abs(math.log(levels[j] / wbic_nbeta(n))))
    step = kernel.step[here] if isinstance(kernel.step, tuple) else kernel.step
    factors = (("half-precision", 0.5), ("double-precision", 2.0))
    return tuple(Rung(levels[here], precision * factor, step, role) for role, factor in factors)


def _within(
    gradients: int, rungs: int, kernel: Any, chains: int, draws: int, warmup: int, asked: tuple[int | None, ...]
) -> tuple[int, int, int]:
    """Chains, draws and warm-up that take no more than that many gradients: first fewer chains, then shorter ones."""
    leaps = kernel.leaps
    chains = asked[0] or chains
    while asked[0] is None and chains > 2 and gradients < chains * rungs * leaps * (draws + warmup):
        chains //= 2
    steps = gradients // (chains * rungs * leaps)
    given = [value for value in asked[1:] if value is not None]
    least = sum(given) + (2 - len(given)) * _FEWEST_STEPS
    if steps < least:
        need = chains * rungs * leaps * least
        raise InputError(
            f"expected a budget of at least {need:.3g} gradients beside the pilot chains, for {chains} chains at each "
            f"of {rungs} settings, got {max(gradients, 0)} left; raise budget=, or give fewer chains or one nbeta"
        )
    if steps >= draws + warmup:
        return chains, draws, warmup
    return chains, max(steps - int(0.3 * steps), _FEWEST_STEPS), int(0.3 * steps)


def _kernel(land: Landscape, kernel: Any, reasons: dict[str, str]) -> Any:
    if kernel is not None:
        reasons["kernel"] = "as asked"
        return kernel
    work = land.data.rows * land.dim
    if work <= (THINNED_WORK if land.data.copies > 1 else FULL_BATCH_WORK):
        reasons["kernel"] = f"a full gradient is cheap ({work:.1g} examples × parameters): no minibatch or step error"
        # Tiny models have the thinnest arms and the cheapest trajectories.
        return HMC(leaps=32, spread=10.0) if work < _TINY_WORK else HMC()
    reasons["kernel"] = f"a full gradient is costly ({work:.1g} examples × parameters): minibatches, with momentum"
    return SGHMC()


def _precision(
    posterior: Posterior, kernel: Any, curvature: tuple[float, float], reasons: dict[str, str]
) -> float | None:
    if not isinstance(posterior.prior, Gaussian):
        return None
    if posterior.prior.precision is not None:
        reasons["precision"] = "as asked"
        return posterior.prior.precision
    square = float(posterior.landscape.center.double().square().mean())
    trace, trace_square = curvature
    typical = wbic_nbeta(posterior.landscape.n) * trace_square / trace if trace > 0 else 0.0
    if not kernel.metropolis and typical * square > 1e-2:
        # A narrow prior hides what the loss holds weakly; chains of larger models are shorter and need one to mix.
        share = min(max(posterior.landscape.dim / 200, 1.0), 10.0) * 0.005
        reasons["precision"] = f"{share:.3g} of the typical curvature of the loss times n / log n, so that chains mix"
        return share * typical
    if square < 1e-4:
        reasons["precision"] = "1, as the weights at the center are zero or nearly so"
        return 1.0
    if 0 < 0.01 * typical < _WIDE / square:
        reasons["precision"] = "a hundredth of the typical curvature of the loss times n / log n"
        return 0.01 * typical
    reasons["precision"] = "a tenth over the mean square of the weights: the prior is three times as wide as they are"
    return _WIDE / square


def _hotter(land: Landscape) -> list[float]:
    """N / log n and lower values to try when that is too cold for the loss at hand."""
    return [wbic_nbeta(land.n) * 10.0**-k for k in range(5)]


def _label_noise(land: Landscape, first: Pilot) -> float | None:
    """κ = E[δ²]/(2E[δ]) over loss differences of single examples at the pilot's last positions.

    The examples are others than the pilot's where there are many, since its own are partly fitted. None without
    per-example losses or without a positive mean; 0 for a single example, which has none to differ from.
    """
    if not land.pointwise:
        return None
    if land.data.rows == 1:
        return 0.0
    base = land.losses()
    difference = torch.stack([(land.losses(row) - base).double() for row in first.last])
    mean = float(difference.mean())
    return float(difference.square().mean()) / (2 * mean) if mean > 0 else None


def _ladder(
    land: Landscape, kappa: float | None, reasons: dict[str, str], measures: dict[str, Any]
) -> tuple[float, ...]:
    base = wbic_nbeta(land.n)
    measures["label_noise"] = kappa
    if kappa is not None and kappa < 0.25:
        reasons["nbeta"] = f"little label noise (κ = {kappa:.2g}): a ladder from n / log n upward"
        return tuple(base * f for f in (1.0, 4.0, 16.0, 64.0))
    scale = 1.0 if kappa is None else 1.0 / max(kappa / _NOISE_SCALE, 1.0)
    known = "unknown" if kappa is None else f"κ = {kappa:.2g}"
    reasons["nbeta"] = f"label noise ({known}): a ladder around n / log n" + (" over κ" if scale < 1 else "")
    return tuple(base * scale * f for f in (0.25, 0.5, 1.0, 2.0))


def _lengths(
    land: Landscape,
    kernel: Any,
    levels: tuple[float, ...],
    precision: float | None,
    rungs: int,
    measures: dict[str, Any],
) -> tuple[int, int, int]:
    """Chains per level, kept draws and warm-up: more of each where gradients are cheap."""
    if isinstance(kernel.core, HMC):
        work = land.data.rows * land.dim
        chains = int(2 ** min(max(round(math.log2(1e5 / work)), 2), 8))
        if work < _TINY_WORK:
            return chains, 800, 400
        return (chains, 500, 150) if work < FULL_BATCH_WORK else (chains, 200, 100)
    if kernel.metropolis or not has_setting(kernel, "batch"):
        return (4, 2000, 500)
    work = min(kernel.batch, land.data.rows) * land.dim
    chains, draws, warmup, slow = lengths_for(kernel, precision or 0.0, levels=len(levels), rungs=rungs, work=work)
    measures["relaxation_steps"] = slow if math.isfinite(slow) else None
    return chains, draws, warmup


def _subset(land: Landscape, rows: int, seed: int) -> Landscape:
    if not land.data.stacked or land.data.rows <= rows:
        return land
    generator = torch.Generator().manual_seed(derived_seed(seed, 11))
    index = torch.randperm(land.data.rows, generator=generator)[:rows].to(land.device)
    return land.with_data(Examples([land.data.take(index)]))


def _curvature(land: Landscape, seed: int, probes: int = 4) -> tuple[float, float]:
    """Hutchinson estimates of Tr H and Tr H² of the loss at the center, on the given examples.

    Products Hv are differences of gradients, which every model has; second derivatives are not needed.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, 13))
    batch = next(iter(land.passes()))
    radius = 1e-3 * max(float(land.center.double().square().mean()) ** 0.5, 0.1)
    first, second = 0.0, 0.0
    for _ in range(probes):
        v = torch.randint(0, 2, land.center.shape, generator=generator).to(land.center) * 2 - 1
        ends = [land.batch_gradient(land.center + sign * radius * v, batch).double() for sign in (1, -1)]
        product = (ends[0] - ends[1]) / (2 * radius)
        first += float(product @ v.double()) / probes
        second += float(product @ product) / probes
    return first, second
