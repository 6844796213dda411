"""Rows of the recipe: printed slopes beside ours, the authors' steps beside their numbers, the paper's orderings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crunode.jobs import Expected, Result, Row
from crunode_papers.murfet2020.measure import AS_PRINTED, METHODS
from crunode_papers.murfet2020.networks import Panel
from crunode_papers.murfet2020.published import TABLE5_NOTE, printed
from crunode_papers.murfet2020.slopes import Slope, fit_slope

__all__ = ["collect", "label", "make_rows"]

_SIGMAS = 3.0
_PRINTED_SETS = 30  # as appendix A.5 says
_RELATIVE = 0.1
_UNMIXED = 0.1
_SAME = 0.05
_NOT_FINITE = "G is not finite for some data sets"
_LETTERS = {(1, False): "a", (5, False): "b", (1, True): "c", (5, True): "d"}
_EXACT = "last layer in closed form"

_WHY = {
    "last-layer Laplace": "printed for another Gaussian: the code has the mean loss without n/2, predicts with "
    "transposed matrices and without the ReLU, and with the identity takes a layer that was never trained; see the row "
    "as coded",
    "last-layer MCMC": "printed for another layer: the code takes the transpose of A for A, and with the identity an A "
    "that was never trained; see the row as coded",
}
_REFUTED = {
    "two-layer Laplace": "the other way around: where MAP overfits, the prior that the two-layer Hessian is floored at "
    "does good",
    "last-layer Laplace": "the other way around: the posterior of the last layer is Gaussian, so that its Laplace "
    "approximation is no worse than MAP",
    "MAP": "the other way around: being Bayesian in a regular last layer alone does not help, and its standard normal "
    "prior is not the one that MAP was trained with",
    "last-layer MCMC": "the other way around: here the last layer alone does better than the last two",
}


def label(panel: Panel) -> str:
    """Short name of a panel: table, letter and network.

    Example:
        >>> label(Panel(5, False, True, False))
        'Table 1b (5 layers, identity)'
    """
    network = f"{panel.layers} layer{'s' * (panel.layers > 1)}, {'ReLU' if panel.relu else 'identity'}"
    return f"Table {panel.table}{_LETTERS[panel.layers, panel.relu]} ({network})"


def collect(results: Sequence[Result]) -> list[tuple[Panel, list[int], dict[str, Any]]]:
    """Panels in the order of the paper's tables, with data sets of several cells put side by side."""
    found: dict[Panel, tuple[list[int], dict[str, Any]]] = {}
    for result in results:
        for part in result["panels"]:
            layers, relu, realizable, minibatch = part["panel"]
            panel = Panel(layers, bool(relu), bool(realizable), bool(minibatch))
            flat = {**part["errors"], **{key: x for key, x in part.items() if key not in ("panel", "errors")}}
            arrays = {key: np.asarray(x, dtype=float) for key, x in flat.items()}
            if panel in found:
                arrays = {key: np.concatenate([found[panel][1][key], x], 1) for key, x in arrays.items()}
            found[panel] = list(result.settings["sizes"]), arrays
    order = sorted(found, key=lambda p: (p.table, _LETTERS[p.layers, p.relu]))
    return [(panel, *found[panel]) for panel in order]


def make_rows(results: Sequence[Result], size: str) -> list[Row]:
    """The table of the recipe; at toy size nothing is held against printed numbers, since n is another."""
    rows = []
    for panel, sizes, arrays in collect(results):
        fits = {name: fit_slope(sizes, arrays[name], not panel.realizable) for name in (*METHODS, _EXACT)}
        coded = {name: fit_slope(sizes, arrays[own], not panel.realizable) for name, own in AS_PRINTED.items()}
        paper = size == "paper"
        for name in METHODS:
            rows += _method_rows(panel, name, fits[name], paper)
        for name in AS_PRINTED:
            rows.append(_coded_row(panel, name, coded[name], arrays[AS_PRINTED[name]], paper))
        rows += _order_rows(panel, {name: fit_slope(sizes, arrays[name], False) for name in METHODS})
        rows += _check_rows(panel, fits, arrays, paper)
    return rows


def _held(panel: Panel, name: str, text: str, slope: Slope, why: str) -> Row:
    """A slope against a printed one. The printed one has an error too: that of 30 data sets with our scatter."""
    known = printed(panel.table, panel.layers, panel.relu, name)
    note = TABLE5_NOTE if panel.table == 5 else ""
    if known is None:
        return _shown(text, slope.value, slope.se, "not in our text of the paper")
    if not math.isfinite(known[0]):
        return _shown(text, slope.value, slope.se, f"printed: {known[0]}")
    if not math.isfinite(slope.value):
        return Row(text, known[0], None, None, None, "no value", _NOT_FINITE, "paper")
    # What is added to our error so that the two errors count together, as roots of sums of squares.
    more = math.hypot(slope.se, slope.spread / math.sqrt(_PRINTED_SETS)) - slope.se
    tolerance = _RELATIVE * abs(known[0]) + _SIGMAS * more
    expected = Expected(known[0], tolerance, f"Table {panel.table}", note)
    return expected.row(text, slope.value, se=slope.se, sigmas=_SIGMAS, why=why)


def _method_rows(panel: Panel, name: str, slope: Slope, paper: bool) -> list[Row]:
    text = f"{label(panel)}: {name}"
    if not paper:
        return [_shown(text, slope.value, slope.se, "")]
    known = printed(panel.table, panel.layers, panel.relu, name)
    r2 = known[1] if known is not None and math.isfinite(known[1]) else None
    ours = slope.r2 if math.isfinite(slope.r2) else None
    source = f"paper: Table {panel.table}" if r2 is not None else ""
    why = _WHY.get(name, TABLE5_NOTE if panel.table == 5 else "")
    return [
        _held(panel, name, text, slope, why),
        Row(f"{text}, R²", r2, ours, None, None, "shown", source=source),
    ]


def _coded_row(panel: Panel, name: str, slope: Slope, errors: np.ndarray, paper: bool) -> Row:
    text = f"{label(panel)}: {AS_PRINTED[name]}"
    if name != "two-layer Laplace":
        if not paper:
            return _shown(text, slope.value, slope.se, "")
        return _held(panel, name, text, slope, TABLE5_NOTE if panel.table == 5 else "")
    share = float(np.isinf(errors).mean())
    known = printed(panel.table, panel.layers, panel.relu, name)
    text = f"{text}, share of infinite G"
    if not paper or known is None:
        return Row(text, None, share, None, None, "shown")
    # A slope is printed as infinite, or with an intercept as nan, as soon as one error is infinite.
    return Row(text, None, share, None, None, "agrees" if share > 0 else "differs", f"printed: {known[0]}")


def _order_rows(panel: Panel, fits: Mapping[str, Slope]) -> list[Row]:
    """Whether one method does worse than another, paired over data sets.

    The slopes have no intercept: they are averages of G with weights 1/n. One with intercept may be small for a
    method with large errors at all n.
    """
    rows = []
    for worse, better in itertools.pairwise(METHODS):
        gap = fits[worse].each - fits[better].each
        mean, se = float(gap.mean()), float(gap.std(ddof=1) / math.sqrt(len(gap)))
        text = f"{label(panel)}: {worse} worse than {better} by"
        source = "paper: section 5"
        if not (math.isfinite(mean) and math.isfinite(se)):
            rows.append(Row(text, 0.0, None, None, None, "no value", _NOT_FINITE, source, "at least"))
            continue
        if mean > _SIGMAS * se:
            verdict, note = "agrees", "confirmed"
        elif mean < -_SIGMAS * se:
            verdict, note = "explained", f"refuted, {_REFUTED[worse]}"
        else:
            verdict, note = "shown", "undecided: within three standard errors"
        rows.append(Row(text, 0.0, mean, se, _SIGMAS * se, verdict, note, source, "at least"))
    return rows


def _check_rows(panel: Panel, fits: Mapping[str, Slope], arrays: Mapping[str, np.ndarray], paper: bool) -> list[Row]:
    unmixed = float((arrays["two rhat"] > 1.1).mean())
    return [
        _shown(f"{label(panel)}: {_EXACT}", fits[_EXACT].value, fits[_EXACT].se, ""),
        _exact_row(panel, fits),
        Row(
            f"{label(panel)}: two-layer MCMC, share of data sets with R-hat above 1.1",
            _UNMIXED if paper else None,
            unmixed,
            None,
            None,
            "shown" if not paper else "agrees" if unmixed <= _UNMIXED else "differs",
            "half of the chains start at MAP, half at prior draws",
            "what this recipe asks of its chains" if paper else "",
            "at most",
        ),
        _shown(
            f"{label(panel)}: two-layer MCMC, share of divergent transitions", arrays["two divergent"].mean(), None, ""
        ),
        _shown(f"{label(panel)}: negative eigenvalues of the two-layer Hessian", arrays["negative"].mean(), None, ""),
    ]


def _exact_row(panel: Panel, fits: Mapping[str, Slope]) -> Row:
    text = f"{label(panel)}: last-layer MCMC minus closed form"
    gap = fits["last-layer MCMC"].each - fits[_EXACT].each
    if not np.isfinite(gap).all():
        return Row(text, 0.0, None, None, None, "no value", _NOT_FINITE, "exact: conjugate posterior")
    same = Expected(0.0, _SAME * abs(fits[_EXACT].value), "conjugate posterior", exact=True)
    return same.row(text, float(gap.mean()), se=float(gap.std(ddof=1) / math.sqrt(len(gap))))


def _shown(text: str, value: float, se: float | None, note: str) -> Row:
    ours = float(value) if math.isfinite(value) else None
    error = None if se is None or not math.isfinite(se) else float(se)
    return Row(text, None, ours, error, None, "shown", note)
