"""Generic rank of a sum of K terms v ⊗ x, x on a cone X: the dimension of a secant variety, by computation or theorem.

A network Σ_j v_j σ(w_j) with p outputs has that form: v_j are the output weights of unit j, x_j = σ(w_j) its feature.
The derivative at (v_j, x_j) spans R^p ⊗ x_j and v_j ⊗ T_j, with T_j the tangent space of X at x_j (Terracini 1911). Its
rank at a random point modulo a prime is a lower bound of the generic rank; where it meets an upper bound from
counting parameters, the generic rank is proven.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crunode.exact.rank import modular_rank

__all__ = [
    "DIMENSION_COMPUTED",
    "GenericRank",
    "search_rank",
    "secant_bound",
    "tangent_rank",
    "veronese_features",
    "veronese_rank",
]

# A term of the sum: the feature x_j, and vectors that span its tangent space together with it.
Term = tuple[list[int], list[list[int]]]

# Multiplications in the elimination, and in what goes before it, up to which the rank is computed: half a second.
_LARGEST = 1e8
_LARGEST_BEFORE = 2.5e6

# Input dimension up to which the two widths beside the critical one were computed for every number of outputs: tangent
# spaces independent for more terms stay so for fewer, and what fewer terms fill, more fill, so these decide all others.
DIMENSION_COMPUTED = 10

_EXPONENTS = (13, 31)


@dataclass(frozen=True)
class GenericRank:
    """A generic rank with the reason why it is right.

    Attributes:
        value: The rank.
        proven: False where it rests on a conjecture.
        reason: The argument in words.

    Example:
        >>> veronese_rank(3, 2, 3).value
        12
    """

    value: int
    proven: bool
    reason: str


def secant_bound(outputs: int, terms: int, cone: int, span: int) -> int:
    """Upper bound of the generic rank from counting parameters.

    K terms v ⊗ x with v in R^p and x on a cone of dimension n that spans a space of dimension l have rank at most
    K(n+p−1) and at most p·l; for K ≤ min(p, l) at most K(p+l−K), the dimension of the p × l matrices of rank K.

    Example:
        >>> secant_bound(outputs=3, terms=5, cone=4, span=10)
        30
    """
    bound = min(terms * (cone + outputs - 1), outputs * span)
    return min(bound, terms * (outputs + span - terms)) if terms <= min(outputs, span) else bound


def tangent_rank(
    terms: Sequence[Term],
    outputs: int,
    *,
    weights: Sequence[Sequence[int]] | None = None,
    still: Sequence[list[int]] = (),
    seed: int = 0,
    exponent: int = 61,
) -> int:
    """Rank modulo a prime of the derivative at the given features, and at given or random output weights.

    The part R^p ⊗ x_j is divided out first, which leaves a matrix smaller than the derivative.

    Args:
        terms: Features and tangent vectors, whole numbers.
        outputs: The number p of outputs.
        weights: Output weights v of each term; drawn at random when left out.
        still: Features of terms whose v is zero: they add R^p ⊗ x and nothing else.
        seed: Of the output weights.
        exponent: The prime is 2^exponent − 1.

    Example:
        >>> tangent_rank([([1, 0, 0], [[0, 1, 0]])], outputs=2)
        3
    """
    prime = (1 << exponent) - 1
    draw = random.Random(f"output weights {seed}")  # independent of the features, whatever they were drawn from
    reduced, pivots = _echelon([x for x, _ in terms] + list(still), prime)
    rest = [i for i in range(len(reduced[0]) if reduced else 0) if i not in set(pivots)]
    rows = []
    for j, (_, tangents) in enumerate(terms):
        v = weights[j] if weights else [draw.randrange(prime) for _ in range(outputs)]
        for tangent in tangents:
            heads = [(tangent[at], row) for at, row in zip(pivots, reduced, strict=True) if tangent[at]]
            left = [(tangent[i] - sum(head * row[i] for head, row in heads)) % prime for i in rest]
            rows.append([a * b % prime for a in v for b in left])
    return outputs * len(pivots) + modular_rank(rows, exponent)


def _echelon(rows: Sequence[Sequence[int]], prime: int) -> tuple[list[list[int]], list[int]]:
    """Reduced echelon form modulo `prime`, with the column of each row's leading 1."""
    reduced: list[list[int]] = []
    pivots: list[int] = []
    for row in rows:
        row = [x % prime for x in row]
        for at, other in zip(pivots, reduced, strict=True):
            if head := row[at]:
                row = [(x - head * y) % prime for x, y in zip(row, other, strict=True)]
        lead = next((i for i, x in enumerate(row) if x), None)
        if lead is None:
            continue
        scale = pow(row[lead], -1, prime)
        row = [x * scale % prime for x in row]
        for i, other in enumerate(reduced):
            if head := other[lead]:
                reduced[i] = [(x - head * y) % prime for x, y in zip(other, row, strict=True)]
        reduced.append(row)
        pivots.append(lead)
    return reduced, pivots


def search_rank(
    make: Callable[[random.Random, int], list[Term]],
    *,
    outputs: int,
    terms: int,
    tangents: int,
    span: int,
    bound: int,
    inactive: int = 0,
) -> int | None:
    """Greatest rank at two random points, or the first that reaches `bound`.

    Args:
        make: Features at random parameters, from a source of randomness and a prime.
        outputs: The number p of outputs.
        terms: How many features `make` gives.
        tangents: How many tangent vectors each of them has.
        span: Dimension of the space the features live in.
        bound: A rank at which to stop.
        inactive: How many of the features, the last ones, have output weights zero.

    Returns:
        The rank, None where the matrix is too large to be done in about half a second.

    Example:
        >>> search_rank(veronese_features(3, 2), outputs=2, terms=2, tangents=2, span=6, bound=8)
        8
    """
    active = terms - inactive
    columns, rows = outputs * max(span - terms, 0), active * tangents
    before = max(terms * terms * span, rows * terms * max(span - terms, 0), rows * columns)
    if rows * columns * min(rows, columns) > _LARGEST or before > _LARGEST_BEFORE:
        return None
    best = 0
    for seed, exponent in enumerate(_EXPONENTS):
        made = make(random.Random(seed), (1 << exponent) - 1)
        still = [feature for feature, _ in made[active:]]
        best = max(best, tangent_rank(made[:active], outputs, still=still, seed=seed, exponent=exponent))
        if best >= bound:
            break
    return best


def veronese_features(dim: int, terms: int) -> Callable[[random.Random, int], list[Term]]:
    """Features w wᵀ at random w in `dim` dimensions, as symmetric matrices written out.

    Example:
        >>> (feature, tangents), = veronese_features(2, 1)(random.Random(0), 5)
        >>> len(feature), len(tangents)
        (3, 1)
    """

    def make(draw: random.Random, prime: int) -> list[Term]:
        return [_square([draw.randrange(1, prime) for _ in range(dim)]) for _ in range(terms)]

    return make


def _square(w: list[int]) -> Term:
    dim = len(w)
    pairs = [(i, j) for i in range(dim) for j in range(i, dim)]
    feature = [w[i] * w[j] for i, j in pairs]
    # The derivative along w is the feature again, so one direction can be left out.
    along = [[(i == k) * w[j] + (j == k) * w[i] for i, j in pairs] for k in range(1, dim)]
    return feature, along


def veronese_rank(dim: int, outputs: int, terms: int) -> GenericRank:
    """Generic rank of (W, V) ↦ (Q_1, …, Q_p) with Q_k = Σ_j v_kj w_j w_jᵀ.

    It is the dimension of the cone over the K-th secant variety of P^(p−1) × P^(d−1) embedded by O(1, 2).
    With s = d(d+1)/2: for p = 1 it is K(2d−K+1)/2 (K ≤ d); for K ≤ min(p, s) it is K(p + min(d−1, s−K)), because K
    general points of the Veronese variety span a space that meets it in finitely many points when s−K ≥ d−1, and every
    general subspace is such a span otherwise; for K ≥ s it is p·s; for K ≤ d, p ≥ 2 it is K(d+p−1), seen at unit
    vectors w_j. Between, min{K(d+p−1), p·s} is expected; less by one for p = 3, d = 2k+2 ≥ 4, K = 3k+2 (Ottaviani 2007)
    and for (d, p, K) = (4, 5, 6). It is computed for small sizes. For large ones that these are the only exceptions is
    the conjecture of Abo & Brambilla (2009). For p = 2 it is classical: two generic quadratic forms are diagonal in one
    basis, so that K = d fills all.

    Args:
        dim: Input dimension d.
        outputs: Number p of outputs.
        terms: Number K of hidden units.

    Example:
        >>> veronese_rank(4, 3, 5)
        GenericRank(value=29, proven=True, reason='defective secant variety (Ottaviani 2007), rank computed')
    """
    d, p, k = dim, outputs, terms
    s = d * (d + 1) // 2
    if p == 1:
        used = min(k, d)
        return GenericRank(used * (2 * d - used + 1) // 2, True, "symmetric matrices of rank at most K")
    if k >= s:
        return GenericRank(p * s, True, "the features span all symmetric matrices")
    if k <= p:
        return GenericRank(k * (p + min(d - 1, s - k)), True, "spans of K points of the Veronese variety")
    bound = secant_bound(p, k, d, s)
    if k <= d:
        return GenericRank(bound, True, "unit vectors as features")
    if p == 2:
        return GenericRank(bound, True, "a generic pencil of quadrics is diagonal in some basis, so K = d fills all")
    known = {(4, 5, 6): "Abo & Brambilla 2009"}
    if p == 3 and d % 2 == 0 and d >= 4 and 2 * k == 3 * d - 2:
        known[d, p, k] = "Ottaviani 2007"
    if (d, p, k) in known:
        bound -= 1
    found = search_rank(veronese_features(d, k), outputs=p, terms=k, tangents=d - 1, span=s, bound=bound)
    if (d, p, k) in known:
        by = f"defective secant variety ({known[d, p, k]})"
        return GenericRank(bound, found == bound or p == 3, f"{by}, rank computed" if found == bound else by)
    if found is not None:
        reason = "rank computed modulo a prime; it meets the parameter count"
        return GenericRank(found, found == bound, reason if found == bound else "rank computed modulo primes")
    if d <= DIMENSION_COMPUTED:
        return GenericRank(bound, True, "parameter count; computed beside the critical width for this d")
    return GenericRank(bound, False, "parameter count; exact by the conjecture of Abo & Brambilla (2009)")
