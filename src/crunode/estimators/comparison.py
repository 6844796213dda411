"""Model selection: which of several models predicts new data best, and how sure that is.

The criteria are means over the same examples, so that two models are compared example by example: what both find hard
cancels. The error of a difference has two parts: that of the data, √(Var_i[d_i] / n), and that of Monte Carlo.

References:
    Watanabe 2010, JMLR 11, 3571; Vehtari, Gelman & Gabry 2017, Statistics and Computing 27, 1413.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crunode.core.result import Draws, Estimate
from crunode.errors import InputError
from crunode.estimators.criteria import with_parts

__all__ = ["Comparison", "Row", "compare"]

# A difference that is this many errors large is called clear.
_CLEAR = 2.0


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        name: Its name.
        estimate: Its criterion.
        difference: How much worse it is than the best one, per example.
        data_se: Error of the difference from the choice of examples.
        mc_se: Error of the difference from Monte Carlo.
    """

    name: str
    estimate: Estimate
    difference: float
    data_se: float
    mc_se: float

    @property
    def clear(self) -> bool:
        """Whether the difference to the best model is more than two of its errors."""
        return self.difference > _CLEAR * math.hypot(self.data_se, self.mc_se)


@dataclass(frozen=True)
class Comparison:
    """Models from best to worst.

    Attributes:
        criterion: "loo" or "waic".
        rows: One for each model.
    """

    criterion: str
    rows: tuple[Row, ...]

    @property
    def best(self) -> str:
        """The name of the model that is expected to predict best."""
        return self.rows[0].name

    @property
    def tied(self) -> tuple[str, ...]:
        """The best model and all that are not clearly worse."""
        return tuple(row.name for row in self.rows if not row.clear)

    @property
    def ok(self) -> bool:
        """Whether all criteria are."""
        return all(row.estimate.ok for row in self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'':{width}}  {self.criterion:>10}  {'difference':>10}  {'± data':>8}  {'± mc':>8}"]
        for row in self.rows:
            note = "" if row.estimate.ok else "  not ok"
            serious = [f.code for f in row.estimate.findings if f.severity != "info"]
            note += f"  ({', '.join(serious)})" if serious else ""
            lines.append(
                f"{row.name:{width}}  {row.estimate.value:10.4f}  {row.difference:10.4f}  {row.data_se:8.2g}  "
                f"{row.mc_se:8.2g}{'' if row.clear or row is self.rows[0] else '  not clear'}{note}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values.

        Example:
            >>> Comparison("loo", ()).to_dict()
            {'criterion': 'loo', 'rows': []}
        """
        rows = [
            {
                "name": row.name,
                "difference": row.difference,
                "data_se": row.data_se,
                "mc_se": row.mc_se,
                "clear": row.clear,
                "estimate": row.estimate.to_dict(),
            }
            for row in self.rows
        ]
        return {"criterion": self.criterion, "rows": rows}

    def plot(self) -> Any:
        """Criteria and differences with their errors, as a matplotlib figure (extra `plot`)."""
        return importlib.import_module("crunode.reporting.comparison_plots").plot_comparison(self)


def compare(models: Mapping[str, Draws], criterion: str = "loo") -> Comparison:
    """Compare models by "loo" or "waic" on the same examples.

    Args:
        models: Draws of each model's posterior, sampled with keep=("pointwise",) on the same data in the same order.
        criterion: "loo" or "waic".

    Raises:
        InputError: There are fewer than two models, or their numbers of examples differ.

    Example:
        >>> import torch
        >>> from crunode.core.landscape import Landscape
        >>> from crunode.sampling.metropolis import HMC
        >>> from crunode.sampling.posterior import Gaussian, Posterior
        >>> from crunode.sampling.run import sample
        >>> x = torch.randn(100, 1, generator=torch.Generator().manual_seed(0))
        >>> y = x + 0.5 * torch.randn(100, 1, generator=torch.Generator().manual_seed(1))
        >>> def drawn(net):
        ...     posterior = Posterior(Landscape(net, (x, y), "gaussian"), 100.0, Gaussian(1.0, mean="origin"))
        ...     return sample(posterior, HMC(), chains=4, draws=200, keep=("pointwise",))
        >>> line = drawn(torch.nn.Linear(1, 1))
        >>> level = drawn(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU()))
        >>> compare({"line": line, "bent": level}).best
        'line'
    """
    if not isinstance(models, Mapping) or len(models) < 2:
        raise InputError("expected two models or more as a mapping from names to draws, such as {'a': draws, ...}")
    found = {name: with_parts(draws, criterion) for name, draws in models.items()}
    sizes = {name: len(values) for name, (_, values) in found.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"expected models of the same examples, got {sizes} of them; give each the same data")
    best = min(found, key=lambda name: found[name][0].value)
    top, reference = found[best]
    rows = []
    for name in sorted(found, key=lambda name: found[name][0].value):
        est, values = found[name]
        apart = values - reference
        chance = 0.0 if name == best else math.hypot(est.se, top.se)
        data_se = float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
        rows.append(Row(name, est, float(apart.mean()), data_se, chance))
    return Comparison(criterion, tuple(rows))
