"""`cullen2026-scaling`: the learning coefficient of quadratic networks against p and K (Figs. 1 and 2).

Networks are of two kinds: constructed ones, which are their own truth, so that λ is known, and trained ones, as in the
figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from crunode import llc, multi_temperature
from crunode.core import derived_seed, need
from crunode.exact import quadratic_modular_addition
from crunode.jobs import Cell, Expected, Recipe, Result, Row, place
from crunode_papers.cullen2026.constructed import construct
from crunode_papers.cullen2026.lines import Line, claimed_sign, fit_line
from crunode_papers.cullen2026.runs.langevin import PRINTED
from crunode_papers.cullen2026.runs.plans import BASELINE, CHAINS, PAPER, TOY, TOY_CHAINS, seeds_of
from crunode_papers.cullen2026.runs.quadratic import quadratic_trainings
from crunode_papers.grokking.tasks import ModularTask

__all__ = ["RECIPE", "cells", "compute", "critical_width", "figures", "rows", "trained_values"]

_NEAR = 0.05
# Standard error of a slope in K that tells (3p−2)/2 from (3p−1)/2.
_TELLS = 0.5 / 3
_MISSES = "the outputs see only the given pairs, whose features span less than all quadratic functions"
_THEOREMS = {
    "generic": (
        "theorems 4.1 and 4.2",
        "its hypotheses cannot hold at these widths: the generic rank is below K(d+p−1)",
    ),
    "modular": ("theorems 4.1 and 4.2", _MISSES),
    "subset": ("theorems 4.1 and 4.2", _MISSES),
    "ntk": ("theorem 5.1", "half the rank on other data"),
    "stage-two": ("theorem 5.5", "it leaves out the p output weights of each unit that is not active"),
}
_ONE_LESS = (
    "on pairs a unit's inputs have one degree of freedom less than 2p: a constant can move from one to the other"
)
_WHY = {
    "printed": "at nβ = 30 and γ = 5 the chains count directions of curvature above 1/6, and stop before they are at "
    "rest; the coefficient counts all directions in which the outputs change",
    "local": "trained weights are not generic, and the chains count directions of curvature above γ/nβ",
}

Case = tuple[str, int, int, dict[str, Any]]
_CASES: list[Case] = [
    ("generic", 3, 4, {"inputs": 4}),
    ("generic", 3, 4, {"inputs": 4, "centred": True}),
    ("generic", 3, 5, {"inputs": 4}),
    ("generic", 3, 12, {"inputs": 4}),
    ("modular", 3, 4, {}),
    ("modular", 3, 4, {"centred": True}),
    ("modular", 5, 6, {}),
    ("modular", 5, 12, {"centred": True}),
    ("subset", 5, 12, {"centred": True, "examples": 15}),
    ("subset", 3, 4, {"examples": 6}),
    ("subset", 7, 5, {"examples": 20}),
    ("lazy", 3, 12, {}),
    ("lazy", 3, 12, {"centred": True}),
    ("lazy", 5, 10, {"centred": True}),
    ("ntk", 3, 4, {}),
    ("ntk", 5, 4, {"centred": True}),
    ("stage-two", 3, 4, {"inputs": 4, "active": 2}),
]
# Moduli and widths, and those of them with chains beside the ranks. Ranks in exact arithmetic take minutes above these.
_SMALL = 3
_GRIDS: dict[str, list[tuple[int, int]]] = {
    "toy": [(3, 1), (3, 2), (3, 3), (3, 5), (3, 7), (5, 1), (5, 2), (5, 3), (5, 7), (7, 1), (7, 2)],
    "paper": [
        *((3, k) for k in (1, 2, 3, 5, 7, 9)),
        *((p, k) for p in (5, 7) for k in (1, 2, 3, 4, 6, 8, 12, 16)),
        *((11, k) for k in (1, 2, 3)),
    ],
}
_SAMPLED: dict[str, Any] = {
    "toy": {
        "cases": [("subset", 3, 4)],
        "grid": [(3, 1), (3, 2), (3, 3)],
        "chains": {"chains": 16, "draws": 40, "warmup": 40},
    },
    "paper": {
        "cases": [case[:3] for case in _CASES],
        "grid": [*((3, k) for k in (1, 2, 3, 5, 7, 9)), *((5, k) for k in (1, 2, 4, 8)), *((7, k) for k in (1, 2, 4))],
        "chains": {"chains": 16, "draws": 150, "warmup": 150},
    },
}
_TRAINED: dict[str, dict[str, Any]] = {
    "toy": {
        **TOY,
        "moduli": (11, 13, 17),
        "widths": (24, 48, 96),
        "epochs": 200,
        "trainings": 2,
        "chains": {**TOY_CHAINS, "printed": ["given", asdict(PRINTED)]},
    },
    "paper": {
        **BASELINE,
        "moduli": (53, 61, 71),
        "widths": (600, 800, 1000),
        "rates": [1e-3],
        "epochs": 2000,
        "trainings": 3,
        "chains": dict(CHAINS),
    },
}
_RIGHT = 0.95
_CHAINS = {"printed": "printed chains", "local": "local chains"}


def critical_width(modulus: int, examples: int, data_rank: int) -> Fraction:
    """Width K at which K(rank X + p − 1) parameters would be as many as p(N − 1) outputs, centred.

    From there on λ = p(N−1)/2 whatever K is.

    Example:
        >>> float(critical_width(53, 53**2, 105)), round(float(critical_width(53, 1123, 105)))
        (947.9235668789809, 379)
    """
    return Fraction(modulus * (examples - 1), data_rank + modulus - 1)


def cells(size: str, seed: int) -> list[Cell]:
    """One cell for each constructed network, and one for the trainings of each p and K."""
    sampled = _SAMPLED[size]
    found = []
    for case, p, hidden, options in _CASES:
        if size == "toy" and p > _SMALL:
            continue
        chains = sampled["chains"] if (case, p, hidden) in sampled["cases"] else None
        found.append(_constructed(case, p, hidden, options, seed, chains, "case"))
    for p, hidden in _GRIDS[size]:
        chains = sampled["chains"] if (p, hidden) in sampled["grid"] else None
        found.append(_constructed("modular", p, hidden, {"centred": True}, seed, chains, "grid"))
    plan = dict(_TRAINED[size])
    moduli, widths, count = plan.pop("moduli"), plan.pop("widths"), plan.pop("trainings")
    plan |= {"records": 2, "points": 2, "seeds": seeds_of(seed, count), "kind": "trained"}
    return found + [Cell(f"trained p={p} K={k}", {**plan, "modulus": p, "width": k}) for p in moduli for k in widths]


def _constructed(case: str, p: int, hidden: int, options: Mapping[str, Any], seed: int, chains: Any, kind: str) -> Cell:
    named = ", ".join(
        ["centred"] * bool(options.get("centred")) + [f"{k}={v}" for k, v in options.items() if v is not True]
    )
    settings = {"kind": kind, "case": case, "modulus": p, "hidden": hidden, "options": dict(options)}
    name = f"{kind}: {case} p={p} K={hidden}" + (f" ({named})" if named else "")
    return Cell(name, {**settings, "chains": chains, "seed": seed})


def compute(cell: Cell) -> dict[str, Any]:
    """λ of a constructed network, exact and estimated; or λ̂ of trained ones at their first and last epoch."""
    s = cell.settings
    if s["kind"] == "trained":
        return {"trainings": quadratic_trainings(s), "device": place().type, "exact": _generic(s)}
    made = construct(s["case"], s["modulus"], s["hidden"], **s["options"], seed=s["seed"])
    found: dict[str, Any] = {
        "exact": float(made.exact),
        "paper": made.paper,
        "paper_bounds": made.paper_bounds,
        "source": made.exact.citation,
        "checks": [str(check) for check in made.checks],
        "missed": [str(check) for check in made.missed],
        "estimate": _numbers(llc(made.landscape, seed=s["seed"])),
    }
    if s["chains"] is not None:
        line = multi_temperature(made.landscape, seed=derived_seed(s["seed"], 5), **s["chains"])
        assert line.draws is not None
        found |= {"sampled": _numbers(llc(line.draws)), "line": _numbers(line)}
    return found


def _generic(settings: Mapping[str, Any]) -> list[float]:
    """λ at generic weights on the training pairs of each seed."""
    found = []
    for seed in settings["seeds"]:
        task = ModularTask(settings["modulus"], fraction=settings["fraction"], seed=derived_seed(seed, 1))
        pairs = task.pairs[task.training].tolist()
        exact = quadratic_modular_addition(settings["modulus"], settings["width"], centred=True, pairs=pairs)
        found.append(float(exact))
    return found


def _numbers(estimate: Any) -> dict[str, Any]:
    codes = [f.code for f in estimate.findings if f.severity == "error"]
    return {"value": estimate.value, "se": estimate.se, "error": estimate.error, "findings": codes}


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """Constructed networks one by one, then lines in K and in p, of constructed and of trained networks."""
    found = [row for r in results if r.settings["kind"] == "case" for row in _case_rows(r)]
    grid = {(r.settings["modulus"], r.settings["hidden"]): r for r in results if r.settings["kind"] == "grid"}
    found += _grid_rows(grid)
    trained = {(r.settings["modulus"], r.settings["width"]): r for r in results if r.settings["kind"] == "trained"}
    found += _generalized(list(trained.values()))
    for name in _CHAINS:
        found += _trained_rows(trained, name, size)
    return found


def _case_rows(result: Result) -> list[Row]:
    name = result.cell.name.removeprefix("case: ")
    expected = Expected(result["exact"], _NEAR, result["source"], exact=True, relative=True)
    rows = [expected.row(f"{name}: llc", result["estimate"]["value"], se=result["estimate"]["se"])]
    for key, what in (("sampled", "chains alone"), ("line", "regression on 1/log nβ")):
        if result.value is not None and key in result.value:
            numbers = result[key]
            note = "findings " + ", ".join(numbers["findings"]) if numbers["findings"] else ""
            rows.append(expected.row(f"{name}: {what}", numbers["value"], se=numbers["error"], note=note))
    case = result.settings["case"]
    if result["paper"] is not None:
        theorem, why = _THEOREMS[case]
        gap = result["paper"] / result["exact"] - 1
        said = f"{why}; it is {abs(gap):.0%} too {'large' if gap > 0 else 'small'}"
        printed = Expected(result["paper"], 0.0, theorem)
        rows.append(printed.row(f"{name}: exact, against the paper's", result["exact"], why=said))
    if result["paper_bounds"] is not None:
        for bound, side in zip(result["paper_bounds"], ("at least", "at most"), strict=True):
            printed = Expected(bound, 0.0, "corollary 5.3", side=side)
            rows.append(printed.row(f"{name}: exact, {side}", result["exact"]))
    return rows


def _grid_rows(grid: Mapping[tuple[int, int], Result]) -> list[Row]:
    """Slopes in K below and above the critical width, and in p below it, of constructed networks on all pairs."""

    def below(p: int, k: int) -> bool:
        return k <= critical_width(p, p * p, 2 * p - 1)

    found = []
    for key, by in (("estimate", "llc"), ("sampled", "chains alone")):
        known = {at: result for at, result in grid.items() if key in (result.value or {})}
        for p in sorted({p for p, _ in known}):
            ends = f"K = {float(critical_width(p, p * p, 2 * p - 1)):.1f}"
            narrow = _line(known, key, [at for at in sorted(known) if at[0] == p and below(*at)], 1)
            if narrow is not None:
                name = f"all pairs, p = {p}: slope of λ in K up to {ends}, {by}"
                found.append(_exactly((3 * p - 2) / 2, "(3p−2)/2").row(name, narrow.slope, se=narrow.slope_se))
                if narrow.slope_se < _TELLS:
                    printed = Expected((3 * p - 1) / 2, 0.0, "theorem 4.2, (3p−1)/2")
                    found.append(printed.row(f"{name}, as printed", narrow.slope, se=narrow.slope_se, why=_ONE_LESS))
            wide = _line(known, key, [at for at in sorted(known) if at[0] == p and not below(*at)], 1)
            if wide is not None:
                name = f"all pairs, p = {p}: slope of λ in K above {ends}, {by}"
                found.append(_exactly(0.0, "λ = p(p²−1)/2").row(name, wide.slope, se=wide.slope_se))
        for k in sorted({k for _, k in known}):
            line = _line(known, key, [at for at in sorted(known) if at[1] == k and below(*at)], 0)
            if line is not None:
                name = f"all pairs, K = {k}: {{}} of λ in p, {by}"
                found.append(_exactly(1.5 * k, "3K/2").row(name.format("slope"), line.slope, se=line.slope_se))
                found.append(_exactly(-k, "−K").row(name.format("intercept"), line.intercept, se=line.intercept_se))
    return found


def _exactly(value: float, formula: str) -> Expected:
    return Expected(value, 1e-6, f"{formula}, corrected closed form", exact=True)


def _line(
    grid: Mapping[tuple[int, int], Result], key: str, places: Sequence[tuple[int, int]], axis: int
) -> Line | None:
    """The line through the estimates at three places or more, or at two where ranks leave no doubt."""
    if len(places) < (2 if key == "estimate" else 3):
        return None
    estimates = [grid[at][key] for at in places]
    values, errors = [e["value"] for e in estimates], [max(e["error"], 1e-9) for e in estimates]
    return fit_line([at[axis] for at in places], values, errors)


def trained_values(results: Mapping[Any, Result], name: str) -> dict[Any, tuple[float, float] | None]:
    """Mean over seeds of λ̂ at the last epoch, with its error; None where a chain diverged.

    Errors are those of means over seeds, with one relative spread for all results: few seeds tell little about their
    own, and errors from within chains that still drift tell nothing.

    Args:
        results: Of trained networks, with two seeds or more.
        name: Of the chains.
    """
    ends = {at: [one["points"][name][-1]["value"] for one in r["trainings"]] for at, r in results.items()}
    whole = {at: np.array(values) for at, values in ends.items() if None not in values}
    if not whole:
        return dict.fromkeys(ends)
    spread = math.sqrt(np.mean([values.var(ddof=1) / values.mean() ** 2 for values in whole.values()]))
    found: dict[Any, tuple[float, float] | None] = dict.fromkeys(ends)
    for at, values in whole.items():
        mean = float(values.mean())
        found[at] = mean, max(spread * abs(mean) / math.sqrt(len(values)), 1e-9)
    return found


def _trained_rows(trained: Mapping[tuple[int, int], Result], name: str, size: str) -> list[Row]:
    found = []
    values = trained_values(trained, name)
    for axis, other, claim in ((1, "p", "Fig. 2"), (0, "K", "Fig. 1")):
        for fixed in sorted({at[1 - axis] for at in trained}):
            here = sorted(at for at in trained if at[1 - axis] == fixed)
            points = [(at[axis], values[at], sum(trained[at]["exact"]) / len(trained[at]["exact"])) for at in here]
            what = f"trained, {other} = {fixed}: {{}} of λ̂ in {'pK'[axis]}, {_CHAINS[name]}"
            good = [(x, v[0], v[1]) for x, v, _ in points if v is not None]
            if len(good) < 3:
                found.append(Row(what.format("slope"), None, None, None, None, "no value", "chains diverged"))
                continue
            line = fit_line(*zip(*good, strict=True))
            theory = fit_line([x for x, _, _ in points], [e for _, _, e in points], [1.0] * len(points))
            rise = round(theory.slope, 9) + 0.0  # level lines have a slope of rounding errors, of either sign
            expected = Expected(rise, _NEAR, "at generic weights on these pairs", exact=True, relative=True)
            found.append(expected.row(what.format("slope"), line.slope, se=line.slope_se, why=_WHY[name]))
            if name == "printed":
                grows = what.format("sign of the slope")
                at_size = {"above": True, "judged": size != "toy"}
                found.append(claimed_sign(grows, line.slope, line.slope_se, f"{claim}: it grows", **at_size))
            straight = f"paper: {claim}: a linear relationship"
            found.append(Row(what.format("R² of the line"), None, line.r2, None, None, "shown", source=straight))
    return found


def _generalized(results: Sequence[Result]) -> list[Row]:
    """Figures 1 and 2 are about networks that have generalized."""
    ends = [one["validation_accuracy"][-1] for result in results for one in result["trainings"]]
    if not ends:
        return []
    share = sum(end is not None and end >= _RIGHT for end in ends) / len(ends)
    note = f"lowest validation accuracy {min(-1.0 if end is None else end for end in ends):.2f}"
    return [Row("trained: part of the networks that generalize", None, share, None, None, "shown", note)]


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """λ against K and against p: closed forms, the paper's, and what was estimated."""
    pyplot = need("matplotlib.pyplot", extra="plot")
    paths = []
    for kind, names in (("grid", ("estimate",)), ("trained", tuple(_CHAINS))):
        some = [r for r in results if r.settings["kind"] == kind]
        if not some:
            continue
        figure, axes = pyplot.subplots(
            len(names), 2, figsize=(9, 3.4 * len(names)), squeeze=False, layout="constrained"
        )
        for row, name in zip(axes, names, strict=True):
            for axis, (x_key, line_key) in zip(row, (("width", "modulus"), ("modulus", "width")), strict=True):
                _draw(axis, some, name, x_key, line_key)
        path = folder / f"{kind}.png"
        figure.savefig(path, dpi=150, bbox_inches="tight")
        pyplot.close(figure)
        paths.append(path)
    return paths


def _draw(axis: Any, results: Sequence[Result], name: str, x_key: str, line_key: str) -> None:
    def setting(result: Result, key: str) -> int:
        s = result.settings
        return int(s["hidden"] if key == "width" and "hidden" in s else s[key])

    known = {r.cell.name: r for r in results}
    if name == "estimate":
        values = {key: (r[name]["value"], r[name]["error"]) for key, r in known.items()}
    else:
        values = {key: v or (math.nan, math.nan) for key, v in trained_values(known, name).items()}
    for number, fixed in enumerate(sorted({setting(r, line_key) for r in results})):
        here = sorted((r for r in results if setting(r, line_key) == fixed), key=lambda r: setting(r, x_key))
        places = [setting(r, x_key) for r in here]
        exact = [e if isinstance(e, float) else sum(e) / len(e) for e in (r["exact"] for r in here)]
        axis.plot(places, exact, lw=0.8, color=f"C{number % 10}")
        found = [values[r.cell.name] for r in here]
        label = f"{'p' if line_key == 'modulus' else 'K'} = {fixed}"
        axis.errorbar(places, *zip(*found, strict=True), fmt="o", ms=3, color=f"C{number % 10}", label=label)
    axis.set(xlabel="K" if x_key == "width" else "p", ylabel=f"λ̂, {name}; lines: exact", yscale="log")
    axis.legend(fontsize=6)


RECIPE = Recipe(
    name="cullen2026-scaling",
    title="The learning coefficient of quadratic networks against p and K",
    paper=f"{PAPER}; sections 4, 5 and 6.1, Figs. 1 and 2",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="Constructed networks are their own truth, at weights where the hypotheses hold (each decided in exact "
    "arithmetic), so that λ is known. The paper's K(d+p−1)/2 holds on data that tell all quadratic functions apart. On "
    "modular pairs it does not: a unit has 3p−2 parameters that matter, and there are no more than p(p²−1) directions "
    "in all (p = 5, K = 12: 60, not 84). Above K = p(N−1)/(3p−2), which is 379, 502 and 678 for p = 53, 61 and 71 and "
    "40 % of the pairs, λ does not depend on K at all, so that a growth with K from 600 to 1000 as in Fig. 2 is not "
    "that of λ.\n\n"
    "Trained networks are measured with the paper's chains, on the given labels, and with chains at nβ = 10⁷ on the "
    "network's own outputs. The paper gives neither the p and K of its figures nor the learning rate; those of its "
    "appendix are taken, with Adam at rate 1e-3 until networks have generalized.",
)
