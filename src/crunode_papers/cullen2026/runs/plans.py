"""Settings that the recipes share: chains, sizes, and rows about trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from crunode.core import derived_seed
from crunode.jobs import Expected, Row
from crunode_papers.claims.rows import claim_row
from crunode_papers.claims.statistics import mean_test
from crunode_papers.cullen2026.runs.curves import curve_numbers, diverged, gathered, summarized, times_of
from crunode_papers.cullen2026.runs.langevin import PRINTED

__all__ = ["BASELINE", "CHAINS", "PAPER", "TOY", "TOY_CHAINS", "curve_rows", "grokking_rows", "seeds_of"]

PAPER = "Cullen et al. 2026, Grokking as a Phase Transition between Competing Basins, arXiv:2603.01192"

CHAINS: Mapping[str, Any] = {
    "printed": ["given", asdict(PRINTED)],
    "local": ["own", {"step": 10.0, "resolution": 5e-4, "nbeta": 1e7, "warmup": 400, "draws": 300}],
}
"""The paper's chains, and chains that stay near the weights and come to rest: names, labels and settings."""

TOY_CHAINS: Mapping[str, Any] = {
    "printed": ["given", {**asdict(PRINTED), "chains": 2, "warmup": 20, "draws": 60}],
    "local": ["own", {"step": 4.0, "resolution": 2e-2, "nbeta": 1e6, "chains": 2, "warmup": 40, "draws": 60}],
}

BASELINE: Mapping[str, Any] = {
    "modulus": 53,
    "fraction": 0.4,
    "width": 1024,
    "batch": 128,
    "rates": [1e-4],
    "weight_decays": [1e-5],
    "records": 250,
    "chains": CHAINS,
}
"""Appendix H.1, with the rate of Fig. 3, since none is given for the baseline."""

TOY: Mapping[str, Any] = {
    "modulus": 17,
    "fraction": 0.5,
    "width": 96,
    "batch": None,
    "rates": [1e-2],
    "weight_decays": [1e-3],
    "records": 100,
    "chains": TOY_CHAINS,
}
"""The smallest tables that grok within a second on one core."""

_NAMES = {"printed": "λ̂ (printed chains)", "local": "λ̂ (local chains)"}


def seeds_of(seed: int, count: int) -> list[int]:
    """Seeds of the trainings of a condition.

    Example:
        >>> len(set(seeds_of(0, 10)))
        10
    """
    return [derived_seed(seed, k) for k in range(count)]


def grokking_rows(name: str, trainings: Sequence[Mapping[str, Any]], source: str, size: str) -> list[Row]:
    """Do trainings memorize, and generalize later?"""
    whole = [one for one in trainings if not diverged(one)]
    times = [times_of(one) for one in whole]
    lost = f"{len(trainings) - len(whole)} of {len(trainings)} diverged" if len(whole) < len(trainings) else ""
    found = []
    for what in ("memorization", "generalization"):
        reached = [getattr(one, what) for one in times if getattr(one, what) is not None]
        ended = f"{min(reached)} to {max(reached)} epochs" if reached else "in none"
        expected = Expected(1.0, 0.0, source, side="at least")
        share, note = len(reached) / len(trainings), "; ".join(part for part in (f"after {ended}", lost) if part)
        found.append(expected.row(f"{name}: part of the trainings with {what}", share, note=note))
    both = [(t.memorization, t.generalization) for t in times]
    later = [float(np.log2(late / max(early, 1))) for early, late in both if early is not None and late is not None]
    test = mean_test(later) if later else None
    delays = [t.delay for t in times if t.delay is not None]
    note = f"delay of {min(delays)} to {max(delays)} epochs" if delays else ""
    what = f"{name}: log₂ of generalization time over memorization time"
    return [*found, claim_row(what, test, source, above=True, size=size, note=note)]


def curve_rows(
    name: str, trainings: Sequence[Mapping[str, Any]], source: str, size: str, late: bool = True
) -> list[Row]:
    """Does λ̂ fall as the validation loss falls, and which of them is first?

    Args:
        name: Of the condition.
        trainings: Over seeds.
        source: Where the claims are made.
        size: Size of the run.
        late: Whether to look from memorization on, and not at all epochs.
    """
    found = []
    for chains in (key for key in trainings[0]["points"] if key != "epochs"):
        numbers = [curve_numbers(one, chains) for one in trainings]
        what, total = f"{name}: {{}} {_NAMES.get(chains, chains)}", len(trainings)
        since = "from memorization on" if late else "at all epochs"
        lost = [value["value"] is None for one in trainings for value in one["points"][chains]]
        if any(lost):
            share = sum(lost) / len(lost)
            text = what.format("part of the points at which chains diverged, of")
            found.append(Row(text, None, share, None, None, "shown", f"{sum(lost)} of {len(lost)}"))
        for key, text, above in (
            ("correlation" if late else "whole", f"rank correlation with the validation loss {since}, of", True),
            ("changes", "rank correlation with the validation loss of changes from point to point, of", True),
            ("fall", "fall from the maximum to the end, as part of the maximum, of", True),
        ):
            if key != "whole" and not late:
                continue
            test, note = summarized(gathered(numbers, key), total)
            found.append(claim_row(what.format(text), test, source, above=above, size=size, note=note))
        for key, text in (
            *([] if late else [("fall", "fall from the maximum to the end, as part of the maximum, of")]),
            ("lead", "log₂ of half time of the validation loss over half time of"),
            ("behind_accuracy", "log₂ of half time over time of validation accuracy ½, of"),
            ("max", "maximum of"),
            ("final", "last"),
        ):
            test, note = summarized(gathered(numbers, key), total)
            value, se = (None, None) if test is None else (test.value, test.se if test.dof > 0 else None)
            found.append(Row(what.format(text), None, value, se, None, "shown", note))
    return found
