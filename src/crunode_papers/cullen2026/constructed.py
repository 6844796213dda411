"""Quadratic networks f(x) = V(Wx)² whose learning coefficient is known: the network itself is the truth.

Weights are whole numbers times a power of two, so that every hypothesis is decided in exact arithmetic. Labels are what
the network predicts at these weights. A landscape has the whole data set for its one example, which stands for `n`: the
paper's data are uniform over a finite set, and its P⊥ takes the mean over all of them off.

References:
    Cullen 2026, sections 4 and 5.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import crunode as cr
from crunode import InputError, Landscape
from crunode.core import Examples, derived_seed
from crunode.exact import HypothesisCheck, LearningCoefficient, exact_rank

__all__ = ["CASES", "Constructed", "QuadraticOnData", "construct", "own_truth", "paper_value"]

CASES = ("generic", "modular", "subset", "lazy", "ntk", "stage-two")
"""Kinds of solutions: data that tell all quadratic functions apart, all modular pairs, a training subset of them, the
output layer alone on all pairs, the linearized network on all pairs, and a network with units that are not active."""

_LARGEST, _UNIT = 48, 1 / 32
# Hypotheses hold at almost all weights, and nearly fail at many. Of so many draws the one with the most even Jacobian
# is taken, so that chains see all its directions at temperatures within reach.
_DRAWS = 16
Matrix = list[list[int]]


class QuadraticOnData(nn.Module):
    """f(x) = V (Wx)² on a whole data set: inputs (1, N, d) to outputs (1, N, p)/√N, the mean over N taken off if asked.

    With the loss "gaussian" its one example has the loss ½‖P⊥(Y − Ŷ)‖²_F / N.

    Args:
        first: W, shape (K, d).
        second: V, shape (p, K).
        centred: Whether P⊥ is there.

    Example:
        >>> net = QuadraticOnData(torch.ones(3, 2), torch.ones(1, 3), centred=True)
        >>> net(torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])).flatten().tolist()
        [-3.181980609893799, 3.181980609893799]
    """

    def __init__(self, first: Tensor, second: Tensor, centred: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first.clone()), nn.Parameter(second.clone())
        self.centred = centred

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, shape (1, N, p)."""
        outputs = (x @ self.first.T).square() @ self.second.T
        if self.centred:
            outputs = outputs - outputs.mean(-2, keepdim=True)
        return outputs / math.sqrt(x.shape[-2])


@dataclass(frozen=True)
class Constructed:
    """A network at an exact solution.

    Attributes:
        landscape: Loss, data and weights.
        exact: λ by the corrected closed form, or by bounds.
        paper: λ by the paper's own theorem; None where it gives bounds only.
        paper_bounds: What the paper says λ lies between, where it says so.
        checks: The hypotheses that the value rests on, each decided in exact arithmetic.
        missed: What the paper's theorem needs, stated there or not, and what fails here.
    """

    landscape: Landscape
    exact: LearningCoefficient
    paper: float | None
    paper_bounds: tuple[float, float] | None
    checks: tuple[HypothesisCheck, ...]
    missed: tuple[HypothesisCheck, ...] = ()


def construct(
    case: str,
    modulus: int,
    hidden: int,
    *,
    centred: bool = False,
    inputs: int | None = None,
    examples: int | None = None,
    active: int | None = None,
    n: int = 10_000,
    seed: int = 0,
) -> Constructed:
    """A quadratic network at an exact solution, with its learning coefficient.

    Args:
        case: One of `CASES`.
        modulus: p, the number of outputs; modular inputs are pairs of residues.
        hidden: K, the number of units.
        centred: Whether the loss takes the mean over the examples off.
        inputs: d, for "generic" and "stage-two" (2p where left out).
        examples: N, for "subset"; left out, 40 % of the pairs. Elsewhere all pairs, or enough inputs to tell.
        active: K_eff, for "stage-two".
        n: Examples that the data stand for.
        seed: Weights and data come from it.

    Raises:
        InputError: No such case, or a hypothesis does not hold at these weights.

    Example:
        >>> made = construct("modular", 3, 4, centred=True)
        >>> float(made.exact), made.paper, all(made.checks)
        (12.0, 16.0, True)

    References:
        Cullen 2026, theorems 4.1, 4.2, 5.1, 5.2 and 5.5.
    """
    if case not in CASES:
        raise InputError(f"expected case among {', '.join(CASES)}, got {case!r}")
    draw = random.Random(derived_seed(seed, CASES.index(case)))
    free_inputs = case in ("generic", "stage-two")
    d = (inputs or 2 * modulus) if free_inputs else 2 * modulus
    kept = hidden
    if free_inputs:
        x = _whole(draw, (d + 1) * (d + 2) // 2 + 4, d)
        if case == "generic":
            exact = cr.exact.quadratic_multi_output(d, modulus, hidden)
        else:
            kept = hidden // 2 if active is None else active
            exact = cr.exact.stage_two(d, modulus, hidden, kept)
    else:
        pairs = [(a, b) for a in range(modulus) for b in range(modulus)]
        if case == "subset":
            pairs = sorted(draw.sample(pairs, examples or int(0.4 * len(pairs))))
        x = [[int(i == a) for i in range(modulus)] + [int(i == b) for i in range(modulus)] for a, b in pairs]
        if case == "lazy":
            exact = cr.exact.lazy_random_features(modulus, hidden, centred=centred)
        else:
            exact = cr.exact.quadratic_modular_addition(modulus, hidden, centred=centred, pairs=pairs)
    tried = []
    for _ in range(_DRAWS):
        w, v = _whole(draw, hidden, d), _whole(draw, modulus, hidden)
        v = [[a if j < kept else 0 for j, a in enumerate(row)] for row in v]
        jacobian = _jacobian(w, v, x, centred)[:, hidden * d if case == "lazy" else 0 :]
        tried.append((_evenness(jacobian, int(2 * exact.bounds[0])), w, v, jacobian))
    _, w, v, jacobian = max(tried, key=lambda one: one[0])
    rows: Matrix = jacobian.tolist()
    if case == "ntk":
        exact = cr.exact.linearised(rows)
    checks, missed = _checks(case, w, v, x, rows, exact, centred)
    failed = [str(check) for check in checks if not check]
    if failed:
        raise InputError(
            f"expected hypotheses to hold at weights of seed {seed}, got {'; '.join(failed)}; take another"
        )
    value, around = paper_value(case, d, modulus, hidden, kept, exact)
    if case == "ntk":
        scale = math.log2(_UNIT**2 / math.sqrt(len(x)) / (len(x) if centred else 1))
        land = _linearized(w, v, rows, 2.0 ** round(scale), n)  # a power of two keeps the rows exact
    else:
        data = torch.tensor(x, dtype=torch.float32) / max(abs(a) for row in x for a in row)
        first, second = torch.tensor(w) * _UNIT, torch.tensor(v) * _UNIT
        land = own_truth(first, second, data, centred, n=n, free="second" if case == "lazy" else None)
    return Constructed(land, exact, value, around, checks, missed)


def paper_value(
    case: str, inputs: int, outputs: int, hidden: int, active: int, exact: LearningCoefficient
) -> tuple[float | None, tuple[float, float] | None]:
    """λ as the paper has it, or the two values that it lies between.

    Theorems 4.1 and 4.2 for networks, 5.5 with units that are not active, corollary 5.3 for the lazy regime, and
    theorem 5.1 (the rank of the Fisher matrix) for the linearized network.

    Args:
        case: One of `CASES`.
        inputs: d.
        outputs: p.
        hidden: K.
        active: K_eff.
        exact: The corrected value, which theorem 5.1 agrees with.

    Example:
        >>> paper_value("modular", 10, 5, 12, 12, None)  # λ = 60, centred
        (84.0, None)
    """
    full = inputs * (inputs + 1) // 2
    if case == "ntk":
        return float(exact), None
    if case == "lazy":
        cone = inputs - 1
        return None, (outputs * min(cone, hidden) / 2, outputs * min(cone * (cone + 1) // 2, hidden) / 2)
    if case == "stage-two":
        return active * (inputs + outputs - 1) / 2, None
    return (outputs * full if hidden >= full else hidden * (inputs + outputs - 1)) / 2, None


def _checks(
    case: str, w: Matrix, v: Matrix, x: Matrix, rows: Matrix, exact: LearningCoefficient, centred: bool
) -> tuple[tuple[HypothesisCheck, ...], tuple[HypothesisCheck, ...]]:
    found = exact_rank(rows)
    needed = int(2 * exact.bounds[0])
    verdict = "holds" if found.rank == needed else "fails"
    at_weights = HypothesisCheck(
        verdict, "the Jacobian of weights to outputs on the data has the rank 2λ", found.rank, needed, None, True
    )
    if case in ("lazy", "ntk"):
        return (at_weights,), ()
    active = [j for j in range(len(w)) if any(row[j] for row in v)]
    w, v = [w[j] for j in active], [[row[j] for j in active] for row in v]
    over = len(w) >= len(w[0]) * (len(w[0]) + 1) // 2
    stated = cr.exact.features_span(w) if over else cr.exact.units_independent(w, v)
    # Centred outputs tell the same apart as long as no quadratic form is constant on the data.
    apart = cr.exact.identifies_quadratics(x, bias=centred)
    # The paper states the first and leaves the second unsaid; where one fails the corrected value needs neither.
    given = (stated, apart)
    return (*(check for check in given if check), at_weights), tuple(check for check in given if not check)


def _jacobian(w: Matrix, v: Matrix, x: Matrix, centred: bool) -> Tensor:
    """Derivatives of all outputs on all examples by W, then V: whole numbers. Centred ones are N times themselves."""
    first, second, data = (torch.tensor(m, dtype=torch.int64) for m in (w, v, x))
    z = data @ first.T
    inner = 2 * torch.einsum("ck,nk,nd->nckd", second, z, data).flatten(2)
    outer = torch.einsum("nk,ce->ncek", z.square(), torch.eye(len(v), dtype=torch.int64)).flatten(2)
    both = torch.cat([inner, outer], 2)
    if centred:
        both = len(x) * both - both.sum(0, keepdim=True)
    return both.flatten(0, 1)


def _evenness(jacobian: Tensor, count: int) -> float:
    """The singular value of number `count`, over the largest."""
    values = torch.linalg.svdvals(jacobian.double())
    return float(values[count - 1] / values[0]) if count <= len(values) else 0.0


def own_truth(first: Tensor, second: Tensor, inputs: Tensor, centred: bool, *, n: int, free: Any = None) -> Landscape:
    """The landscape of a quadratic network that is its own truth: the labels are its outputs.

    Args:
        first: W, shape (K, d).
        second: V, shape (p, K).
        inputs: The data set, shape (N, d).
        centred: Whether the mean over it is taken off.
        n: Examples that it stands for.
        free: "second" keeps W fixed.

    Example:
        >>> land = own_truth(torch.eye(2), torch.ones(1, 2), torch.randn(5, 2), True, n=100)
        >>> land.n, land.dim, float(land.loss())
        (100, 6, 0.0)
    """
    model = QuadraticOnData(first, second, centred)
    data = inputs.to(first)[None]
    with torch.no_grad():
        labels = model(data)
    return Landscape(model, Examples([(data, labels)], copies=n), "gaussian", params=free)


def _linearized(w: Matrix, v: Matrix, rows: Matrix, scale: float, n: int) -> Landscape:
    """Linear regression on the rows of the Jacobian."""
    data = torch.tensor(rows, dtype=torch.float32)[None] * scale
    model = nn.Linear(data.shape[-1], 1, bias=False, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        model.weight.copy_(torch.cat([torch.tensor(m).flatten() for m in (w, v)])[None] * _UNIT)
        labels = model(data)
    return Landscape(model, Examples([(data, labels)], copies=n), "gaussian")


def _whole(draw: random.Random, rows: int, columns: int) -> Matrix:
    choices: Sequence[int] = [k for k in range(-_LARGEST, _LARGEST + 1) if k]
    return [[draw.choice(choices) for _ in range(columns)] for _ in range(rows)]
