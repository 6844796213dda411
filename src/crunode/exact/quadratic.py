"""Quadratic networks on data that tell all quadratic functions apart: x ↦ Σ_j v_j (w_j·x + b_j)²."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from crunode.errors import InputError
from crunode.exact.arguments import whole
from crunode.exact.result import LearningCoefficient
from crunode.exact.secants import GenericRank, search_rank, veronese_features, veronese_rank

__all__ = ["quadratic_multi_output", "quadratic_single_output", "stage_two"]

_DATA = "the inputs tell all quadratic functions apart (`identifies_quadratics` checks it)"


def quadratic_single_output(input_dim: Any, hidden: Any) -> LearningCoefficient:
    """Local coefficient of a quadratic network with one output and biases, f(x) = Σ_j v_j (w_j·x + b_j)² + c.

    With d inputs and K units: (d+1)(d+2)/4 for K ≥ d at points where Q = Σ v_j w_j w_jᵀ has rank d, and
    ½[K(2d−K+1)/2 + K + 1] for K < d at points where it has rank K. The multiplicity is 1: the parameter map to the
    coefficients of f has locally constant rank there.

    Args:
        input_dim: d.
        hidden: K.

    Example:
        >>> print(quadratic_single_output(4, 2))
        λ = 5, m = 1 (exact) [Cullen 2026, ...]

    References:
        Cullen 2026, theorems G.1 and G.2.
    """
    d, k = whole(input_dim, "input_dim"), whole(hidden, "hidden")
    used = min(d, k)
    rank = used * (2 * d - used + 1) // 2 + used + 1
    return LearningCoefficient.exact(
        Fraction(rank, 2),
        1,
        citation="Cullen 2026, theorem G.1"
        if k >= d
        else "Cullen 2026, theorem G.2; its condition v_i + v_j ≠ 0 is not needed",
        hypotheses=(_DATA, f"Q = Σ v_j w_j w_jᵀ has rank {used} at the parameter", "squared error, unit noise"),
        details={"rank": rank, "local": True},
    )


def quadratic_multi_output(input_dim: Any, outputs: Any, hidden: Any) -> LearningCoefficient:
    """Local coefficient of a quadratic network with p outputs and no biases at a generic parameter.

    Half the generic rank of (W, V) ↦ (Q_1, …, Q_p), Q_k = Σ_j v_kj w_j w_jᵀ: usually
    ½ min{K(d+p−1), p·d(d+1)/2}, but not for p = 1, for K ≤ p near d(d+1)/2, nor where a secant variety is defective;
    see `crunode.exact.secants.veronese_rank`. The status is `conditional` where the rank rests on a conjecture, and
    details say which argument gave it.

    Args:
        input_dim: d.
        outputs: p.
        hidden: K.

    Example:
        >>> print(quadratic_multi_output(4, 3, 5))
        λ = 29/2, m = 1 (exact) [Cullen 2026, ...]

    References:
        Cullen 2026, theorems 4.1 and 4.2; Abo & Brambilla 2009, Experimental Mathematics 18:369; Ottaviani 2007.
    """
    d, p, k = whole(input_dim, "input_dim"), whole(outputs, "outputs"), whole(hidden, "hidden")
    found = veronese_rank(d, p, k)
    hypotheses = [_DATA, "the parameter is generic, so that the rank is the generic one", "squared error, unit noise"]
    if not found.proven:
        hypotheses.append("the defective cases listed by Abo & Brambilla (2009) are all there are")
    return LearningCoefficient.exact(
        Fraction(found.value, 2),
        1,
        citation="Cullen 2026, theorems 4.1 and 4.2, corrected: half the generic rank (Abo & Brambilla 2009)",
        hypotheses=tuple(hypotheses),
        conditional=not found.proven,
        details={"rank": found.value, "rank_by": found.reason, "local": True},
    )


def stage_two(input_dim: Any, outputs: Any, hidden: Any, effective_width: Any) -> LearningCoefficient:
    """Local coefficient where only some units of a quadratic network are active.

    K_eff units are generic; the others have output weights zero and input weights w_j ≠ 0, generic too. Each of those
    adds its p output weights, so λ = ½[K_eff(d+p−1) + p(K−K_eff)] as long as all these directions are independent.
    Where they span everything, λ = p·d(d+1)/4; between the two only [rank/2, count/2] is known. Where the active units
    alone have a smaller rank than K_eff(d+p−1) (see `quadratic_multi_output`), that rank takes its place.

    Args:
        input_dim: d.
        outputs: p.
        hidden: K.
        effective_width: K_eff, from 0 to K.

    Example:
        >>> print(stage_two(4, 3, hidden=6, effective_width=2))
        λ = 12, m = 1 (exact) [Cullen 2026, ...]

    References:
        Cullen 2026, theorem 5.5, which leaves out the p(K−K_eff) output weights.
    """
    d, p, k = whole(input_dim, "input_dim"), whole(outputs, "outputs"), whole(hidden, "hidden")
    active = whole(effective_width, "effective_width", low=0)
    if active > k:
        raise InputError(f"expected effective_width from 0 to hidden = {k}, got {active}")
    full = d * (d + 1) // 2
    alone = veronese_rank(d, p, active) if active else GenericRank(0, True, "no active unit")
    count = alone.value + p * (k - active)
    found: int | None
    if k >= full:
        found = p * full
    elif active in (0, k):
        found = count
    else:
        bound = min(count, p * full)
        found = search_rank(
            veronese_features(d, k), outputs=p, terms=k, tangents=d - 1, span=full, bound=bound, inactive=k - active
        )
    hypotheses = [
        _DATA,
        "the active units are generic",
        "the others have output weights zero and generic input weights, none of them zero",
        "squared error, unit noise",
    ]
    citation = "Cullen 2026, theorem 5.5, corrected: each inactive unit adds its p output weights"
    details = {"rank": found, "count": count, "local": True}
    if found is not None and found not in (count, p * full):
        low, high = Fraction(found, 2), Fraction(count, 2)
        return LearningCoefficient.interval(low, high, citation=citation, hypotheses=tuple(hypotheses), details=details)
    if found is None:
        hypotheses.append("the directions counted are linearly independent")
    if not alone.proven:
        hypotheses.append("the defective cases listed by Abo & Brambilla (2009) are all there are")
    return LearningCoefficient.exact(
        Fraction(min(count, p * full) if found is None else found, 2),
        1,
        citation=citation,
        hypotheses=tuple(hypotheses),
        conditional=found is None or not alone.proven,
        details=details,
    )
