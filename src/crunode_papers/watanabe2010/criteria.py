"""`watanabe-criteria`: WAIC, cross-validation and the equations of state on a regular and a singular model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import crunode as cr
from crunode import HMC, Gaussian, Landscape, Posterior, exact, sample
from crunode.core import derived_seed, need
from crunode.jobs import Cell, Expected, Recipe, Result, Row
from crunode_papers.bilinear.posteriors import DataSets, Samples, draw_posteriors, simulate

__all__ = ["RECIPE", "cells", "closed_forms", "compute", "figures", "rows"]

Array = NDArray[np.float64]

TRUE_WEIGHTS = (1.0, -0.5, 0.0, 0.5)
TRUE_MAP = ((1.5, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0))
HIDDEN = 2
COEFFICIENTS = {
    "regular": exact.regular(len(TRUE_WEIGHTS)).bounds[0],
    "singular": exact.reduced_rank(4, HIDDEN, 2, rank=1).bounds[0],
}
MODELS = {"regular": "linear regression, d = 4", "singular": "reduced rank 4-2-2, rank 1"}
BETAS = (0.5, 1.0)
_PRECISION = 1.0
_NAMES = ("bg", "bt", "v", "cv", "waic")

_SIZES: Mapping[str, dict[str, Any]] = {
    "toy": {
        "sizes": {"regular": (50, 100, 200, 400), "singular": (50, 200)},
        "blocks": {"regular": (1, 300), "singular": (1, 24)},
        "chain": {"chains": 4, "draws": 250, "warmup": 50, "test": 300},
        "hmc": {"regular": {"chains": 32, "draws": 50, "warmup": 20, "leaps": 4}},
    },
    "paper": {
        "sizes": {"regular": (100, 200, 400, 800, 1600), "singular": (50, 100, 200, 400, 800)},
        "blocks": {"regular": (1, 4000), "singular": (15, 40)},
        "chain": {"chains": 4, "draws": 500, "warmup": 100, "test": 1000},
        "hmc": {kind: {"chains": 32, "draws": 600, "warmup": 200, "leaps": 8} for kind in MODELS},
    },
}


def cells(size: str, seed: int) -> list[Cell]:
    """Blocks of data sets for each model, n and β; and posteriors sampled by HMC, held against exact draws."""
    plan = _SIZES[size]
    found = []
    for index, model in enumerate(MODELS):
        blocks, sets = plan["blocks"][model]
        for n in plan["sizes"][model]:
            for beta in BETAS if n == max(plan["sizes"][model]) else (1.0,):
                for block in range(blocks):
                    settings = {"model": model, "n": n, "beta": beta, "sets": sets, **plan["chain"]}
                    # The same data at both temperatures; other data at each n.
                    settings["seed"] = derived_seed(seed, index, n, block)
                    found.append(Cell(f"{model} n={n} beta={beta} block {block}", settings))
    for model, options in plan["hmc"].items():
        settings = {"model": model, "hmc": True, "n": 60, "beta": 1.0, **options, "seed": derived_seed(seed, 99)}
        found.append(Cell(f"{model} by HMC", settings))
    return found


def compute(cell: Cell) -> dict[str, Any]:
    """Bayes losses relative to the entropy, times n, with V, cross-validation and WAIC, for each data set."""
    settings = cell.settings
    if settings.get("hmc"):
        return _by_hmc(settings)
    seeds = [derived_seed(settings["seed"], k) for k in range(settings["sets"])]
    if settings["model"] == "regular":
        found = [closed_forms(_regression(settings["n"], s), settings["beta"], s) for s in seeds]
    else:
        data = simulate(TRUE_MAP, settings["n"], seeds)
        options = {name: settings[name] for name in ("chains", "draws", "warmup", "seed")}
        level = settings["beta"] * settings["n"]
        drawn = draw_posteriors(data, HIDDEN, [level], precision=_PRECISION, **options)
        found = [_of_draws(drawn, k, settings) for k in range(len(seeds))]
    return {name: [each[name] for each in found] for name in _NAMES}


def _of_draws(drawn: Samples, index: int, settings: Mapping[str, Any]) -> dict[str, float]:
    n, beta = settings["n"], settings["beta"]
    draws = drawn.of(index)
    entropy = float(drawn.data.true_losses()[index].mean())  # S_n, but for the constant that L_n lacks too
    waic = cr.waic(draws).value
    spread = cr.functional_variance(draws).value
    # Smoothed weights have a bias of their own, small as such but not beside a difference of order n^-2.
    cross = cr.loo(draws, smooth=False).value
    generator = torch.Generator().manual_seed(derived_seed(settings["seed"], 7, index))
    inputs, outputs = drawn.data.truth.shape[1], drawn.data.truth.shape[0]
    x = _inputs(settings["test"], inputs, generator)
    noise = torch.randn(settings["test"], outputs, generator=generator, dtype=torch.float64)
    return {
        "bg": n * _generalization(drawn.maps[index].flatten(0, 2) - drawn.data.truth, x, noise),
        "bt": n * (waic - beta * spread / n - entropy),
        "v": spread,
        "cv": n * (cross - entropy),
        "waic": n * (waic - entropy),
    }


def _generalization(off: torch.Tensor, x: torch.Tensor, noise: torch.Tensor) -> float:
    """−E log(E_w p(y|x, w) / q(y|x)) with the noise of each test example taken with both signs.

    The part that is linear in the noise, by far the greatest and zero in the mean, then drops out.
    """
    delta = torch.einsum("wnm,im->win", off, x)
    linear, square = (delta * noise).sum(2), 0.5 * delta.square().sum(2)
    logs = [torch.logsumexp(sign * linear - square, 0) - math.log(len(off)) for sign in (1.0, -1.0)]
    return -float(torch.stack(logs).mean())


def _inputs(count: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Inputs from N(0, I) made to have exactly the identity as second moment, on which losses depend most."""
    x = torch.randn(count, width, generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(x.T @ x / count)
    return torch.t(torch.linalg.solve_triangular(factor, x.T, upper=False))


def _regression(n: int, seed: int) -> tuple[Array, Array]:
    data = simulate([TRUE_WEIGHTS], n, [seed])
    return data.x[0].numpy(), data.y[0, :, 0].numpy()


def closed_forms(data: tuple[Array, Array], beta: float, seed: int = 0) -> dict[str, float]:
    """All quantities of a linear regression y = xᵀw + noise with prior N(0, 1), where the posterior is normal.

    With r = y − xᵀw normal of mean μ and variance s: Var r²/2 = s²/2 + μ²s, and
    log E exp(−c r²/2) = −½ log(1 + cs) − ½ cμ²/(1 + cs). The test error is exact over the noise, and an average
    over inputs from `seed`.

    Example:
        >>> found = closed_forms(_regression(100, 0), 1.0)
        >>> abs(found["waic"] - found["cv"]) < 0.1
        True
    """
    x, y = data
    n, d = x.shape
    cov = np.linalg.inv(_PRECISION * np.eye(d) + beta * x.T @ x)
    mean = beta * cov @ x.T @ y
    mu, s = y - x @ mean, np.einsum("ni,ij,nj->n", x, cov, x)

    def log_mean(c: float) -> Array:
        return np.asarray(-0.5 * np.log1p(c * s) - 0.5 * c * mu**2 / (1 + c * s))

    test = _inputs(300, d, torch.Generator().manual_seed(derived_seed(seed, 7))).numpy()
    spread, miss = np.einsum("ni,ij,nj->n", test, cov, test), test @ (mean - np.array(TRUE_WEIGHTS))
    entropy = float(((y - x @ np.array(TRUE_WEIGHTS)) ** 2 / 2).mean())
    v = float((s**2 / 2 + mu**2 * s).sum())
    training = float(-log_mean(1.0).mean()) - entropy
    return {
        "bg": n * float((0.5 * np.log1p(spread) + 0.5 * (1 + miss**2) / (1 + spread) - 0.5).mean()),
        "bt": n * training,
        "v": v,
        "cv": n * (float((log_mean(-beta) - log_mean(1 - beta)).mean()) - entropy),
        "waic": n * training + beta * v,
    }


def _by_hmc(settings: Mapping[str, Any]) -> dict[str, Any]:
    """WAIC, LOO and V of one data set by `crunode.sample`, and what they should be."""
    n, regular = settings["n"], settings["model"] == "regular"
    data = simulate([TRUE_WEIGHTS] if regular else TRUE_MAP, n, [settings["seed"]])
    landscape = Landscape(_network(regular), (data.x[0], data.y[0]), "gaussian")
    posterior = Posterior(landscape, settings["beta"] * n, Gaussian(_PRECISION, mean="origin"))
    options = {name: settings[name] for name in ("chains", "draws", "warmup", "seed")}
    draws = sample(posterior, HMC(leaps=settings["leaps"]), **options, keep=("pointwise",))
    ours = {"waic": cr.waic(draws), "loo": cr.loo(draws), "v": cr.functional_variance(draws)}
    if regular:
        known = closed_forms((data.x[0].numpy(), data.y[0, :, 0].numpy()), settings["beta"])
        entropy = float(data.true_losses().mean())
        other = {"waic": (known["waic"] / n + entropy, 0.0), "loo": (known["cv"] / n + entropy, 0.0)}
        other["v"] = (known["v"], 0.0)
    else:
        other = _by_gibbs(data, settings)
    scale = {"waic": n, "loo": n, "v": 1}
    return {
        name: {
            "ours": scale[name] * est.value,
            "known": scale[name] * other[name][0],
            "se": scale[name] * math.hypot(est.se, other[name][1]),
        }
        for name, est in ours.items()
    }


def _by_gibbs(data: DataSets, settings: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    level = settings["beta"] * settings["n"]
    drawn = draw_posteriors(data, HIDDEN, [level], precision=_PRECISION, chains=16, draws=2000, seed=settings["seed"])
    draws = drawn.of(0)
    found = {"waic": cr.waic(draws), "loo": cr.loo(draws), "v": cr.functional_variance(draws)}
    return {name: (est.value, est.se) for name, est in found.items()}


def _network(regular: bool) -> torch.nn.Module:
    """The model at the truth."""
    if regular:
        net: torch.nn.Module = torch.nn.Linear(len(TRUE_WEIGHTS), 1, bias=False).double()
        values = [torch.tensor([TRUE_WEIGHTS])]
    else:
        linear = torch.nn.Linear
        net = torch.nn.Sequential(linear(4, HIDDEN, bias=False), linear(HIDDEN, 2, bias=False)).double()
        first, second = torch.zeros(HIDDEN, 4), torch.zeros(2, HIDDEN)
        first[0, 0], second[0, 0] = TRUE_MAP[0][0], 1.0
        values = [first, second]
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), values, strict=True):
            parameter.copy_(value)
    return net


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """The equations of state at the largest n, the order of WAIC − LOO, and HMC against exact draws."""
    table = []
    for model, title in MODELS.items():
        biggest = max(_SIZES[size]["sizes"][model])
        for beta in BETAS:
            seen = _gathered(results, model, biggest, beta)
            table += _states(seen, model, f"{title}, n = {biggest}, β = {beta:g}: ", biggest, beta)
        table += _orders(results, model, title, size)
    for result in results:
        if result.settings.get("hmc"):
            for name, label in (("waic", "n WAIC"), ("loo", "n LOO"), ("v", "V")):
                regular = result.settings["model"] == "regular"
                source = "closed form" if regular else "the same posterior by Gibbs sampling"
                found = result[name]
                known = Expected(found["known"], 0.0, source, exact=True)
                title = f"{MODELS[result.settings['model']]}, n = 60: {label} by HMC"
                table.append(known.row(title, found["ours"], se=found["se"]))
    return table


def _gathered(results: Sequence[Result], model: str, n: int, beta: float) -> dict[str, Array]:
    """Each quantity over all data sets of a model, n and β."""
    wanted = {"model": model, "n": n, "beta": beta}
    blocks = [r for r in results if not r.settings.get("hmc") and {k: r.settings[k] for k in wanted} == wanted]
    return {name: np.concatenate([np.asarray(r[name], dtype=float) for r in blocks]) for name in _NAMES}


def _states(seen: Mapping[str, Array], model: str, where: str, n: int, beta: float) -> list[Row]:
    half = float(COEFFICIENTS[model])
    nu = beta * seen["v"] / 2
    # Equations of state leave out squares of the variance 2λ/(nβ) of a loss, summed over n examples.
    beyond = 2 * half * (half + 1) / (beta**2 * n)

    def row(label: str, value: float, values: Array, source: str) -> Row:
        se = float(values.std(ddof=1) / math.sqrt(len(values)))
        return Expected(value, beyond, source, exact=True).row(where + label, float(values.mean()), se=se)

    if model == "regular":
        table = [
            row("n E[Bg]", half, seen["bg"], "(λ−ν)/β + ν, ν = λ"),
            row("n E[Bt]", -half, seen["bt"], "(λ−ν)/β − ν, ν = λ"),
            row("E[V]", 2 * half / beta, seen["v"], "2ν/β, ν = λ"),
        ]
    else:
        shown = float(nu.std(ddof=1) / math.sqrt(len(nu)))
        table = [
            Row(f"{where}ν", None, float(nu.mean()), shown, None, "shown", "no closed form is known"),
            row("n E[Bg] − (λ−ν)/β − ν", 0.0, seen["bg"] - (half - nu) / beta - nu, "(λ−ν)/β + ν"),
            row("n E[Bt] − (λ−ν)/β + ν", 0.0, seen["bt"] - (half - nu) / beta + nu, "(λ−ν)/β − ν"),
        ]
    identity = seen["bg"] + seen["cv"] - (beta - 1) * seen["v"]
    table.append(row("n(Bg + Cv) − (β−1)V", 2 * half / beta, identity, "2λ/β"))
    table.append(row("n E[Bg − Bt] − βV", 0.0, seen["bg"] - seen["bt"] - beta * seen["v"], "E[Bg − Bt] = 2ν/n"))
    return table


def _orders(results: Sequence[Result], model: str, title: str, size: str) -> list[Row]:
    """How E[Cv − WAIC] falls with n at β = 1, by weighted least squares of its logarithm on log n."""
    logs, values, weights, gaps = [], [], [], []
    for n in _SIZES[size]["sizes"][model]:
        seen = _gathered(results, model, n, 1.0)
        gap = (seen["cv"] - seen["waic"]) / n
        mean, se = float(gap.mean()), float(gap.std(ddof=1) / math.sqrt(len(gap)))
        logs.append(math.log(n))
        values.append(math.log(abs(mean)))
        weights.append((mean / se) ** 2)
        gaps.append((n, mean, se))
    w = np.array(weights) / np.sum(weights)
    x = np.array(logs) - np.dot(w, logs)
    slope = float(np.dot(w * x, values) / np.dot(w * x, x))
    se = float(1 / math.sqrt(np.sum(weights) * np.dot(w * x, x)))
    bound = Expected(-2.0, 0.0, "Cv − WAIC = O(n⁻²)", exact=True, side="at most")
    table = [bound.row(f"{title}, β = 1: slope of log(Cv − WAIC) in log n", slope, se=se)]
    if model == "regular":
        d, (n, mean, se_mean) = len(TRUE_WEIGHTS), gaps[-1]
        # Cv − WAIC is a twelfth of the mean fourth cumulant of the losses, here E[μ²s³] with s = ‖x‖²/n, up to 1/n.
        known = Expected(d * (d + 2) * (d + 4), 5 * d / n, "κ₄/12 = d(d+2)(d+4)/n³", exact=True, relative=True)
        table.append(known.row(f"{title}, n = {n}, β = 1: n³ E[Cv − WAIC]", n**3 * mean, se=n**3 * se_mean))
    return table


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Generalization loss, training loss and Cv − WAIC over n."""
    figure = need("matplotlib.figure", extra="plot").Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    for model, title in MODELS.items():
        sizes = sorted({r.settings["n"] for r in results if r.settings["model"] == model and "hmc" not in r.settings})
        found = [_gathered(results, model, n, 1.0) for n in sizes]
        for axis, name in ((axes[0], "bg"), (axes[1], "bt")):
            errors = [f[name].std(ddof=1) / math.sqrt(len(f[name])) for f in found]
            axis.errorbar(sizes, [f[name].mean() for f in found], yerr=errors, marker="o", label=title)
        gaps = [abs((f["cv"] - f["waic"]).mean()) / n for n, f in zip(sizes, found, strict=True)]
        axes[2].loglog(sizes, gaps, marker="o", label=title)
        axes[0].axhline(float(COEFFICIENTS[model]), color="gray", linewidth=0.8)
    for axis, label in zip(axes, ("n E[Bg]", "n E[Bt]", "|E[Cv − WAIC]|"), strict=True):
        axis.set(xlabel="n", ylabel=label)
    axes[2].legend(fontsize="small")
    path = folder / "criteria.png"
    figure.savefig(path, dpi=120)
    return [path]


RECIPE = Recipe(
    name="watanabe-criteria",
    title="WAIC, cross-validation and the equations of state, regular and singular",
    paper="Watanabe 2010, Asymptotic equivalence of Bayes cross validation and WAIC in singular learning theory, JMLR "
    "11:3571; as surveyed by Seyoum 2025",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Bg and Bt are the Bayes generalization and training losses less the entropy (its empirical value S_n for "
    "Bt and Cv), V the functional variance, ν = β E[V]/2 the singular fluctuation, Cv leave-one-out cross-validation. "
    "At every β, n E[Bg] → (λ−ν)/β + ν and n E[Bt] → (λ−ν)/β − ν, and on each single data set Bg and Cv add up: "
    "n(Bg + Cv) → (β−1)V + 2λ/β. Regular models have ν = λ = d/2.\n\n"
    "The regular model is a linear regression whose posterior is normal, so all of it is in closed form. The singular "
    "one is a reduced rank regression with a width more than it needs; its draws alternate between the two factors, "
    "each normal given the other, for all data sets at once, and single data sets are sampled by HMC as a check.\n\n"
    "Cv − WAIC = O(n⁻²) is a bound. At β = 1 odd cumulants cancel and a twelfth of the fourth is left, which is of "
    "order n⁻³ wherever the posterior tends to a normal one, as in all regular models; only singular ones, whose "
    "posterior keeps its shape, approach n⁻².\n\n"
    "The survey prints WAIC with a minus before the variance term; with it the table would fail: a plus is right.",
)
