"""Quadratic networks on modular addition: one-hot pairs (a, b), p outputs, f_c(a, b) = Σ_j v_cj (u_j(a) + t_j(b))².

On pairs of one-hot inputs a unit's input z_j(a, b) = u_j(a) + t_j(b) has 2p − 1 degrees of freedom, and the outputs are
seen at no more than p² points. Both are smaller than for generic data. Centring takes the mean over the examples off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any

from crunode.errors import InputError
from crunode.exact.arguments import flag, sequence, whole
from crunode.exact.result import LearningCoefficient
from crunode.exact.secants import search_rank, secant_bound, tangent_rank

__all__ = [
    "MODULUS_COMPUTED",
    "fourier_solution",
    "lazy_random_features",
    "quadratic_modular_addition",
    "quadratic_on_data",
]

Pair = tuple[int, int]

# Modulus up to which the ranks at the two widths beside the critical one were computed on all pairs: they decide all
# other widths.
MODULUS_COMPUTED = 13
ANALYTIC = ("tanh", "sigmoid", "softplus", "gelu", "silu", "exp", "sin", "cos", "erf")


def quadratic_modular_addition(
    modulus: Any,
    hidden: Any,
    *,
    centred: Any,
    pairs: Any = None,
    examples: Any = None,
    data_rank: Any = None,
) -> LearningCoefficient:
    """Local coefficient of a quadratic network with generic parameters on modular addition data.

    On all pairs ½ min{K(3p−2), p·l} with l = p², or p² − 1 centred. On N training pairs whose one-hot matrix X_N has
    rank n, with l = N or N − 1: ½ min{K(n+p−1), p·l}, and at most ½K(p+l−K) where K ≤ min(p, l). An input that occurs
    fewer than K/p times lowers this: its K parameters are seen through fewer than K outputs. Give the pairs themselves
    and that is taken into account.

    The rank is computed for small sizes (p ≤ 13 on all pairs) and proven for K ≤ p and K ≥ l; elsewhere the value is
    `conditional`.

    Args:
        modulus: p, from 1 up.
        hidden: K.
        centred: True when the loss takes the mean over examples off the outputs.
        pairs: The training pairs (a, b), each at most once; all p² of them when left out.
        examples: Number N of training pairs, when the pairs are not given.
        data_rank: Rank n of X_N, when the pairs are not given.

    Example:
        >>> print(quadratic_modular_addition(5, 12, centred=True))
        λ = 60, m = 1 (exact) [Cullen 2026, ...]
        >>> quadratic_modular_addition(113, 48, centred=True, examples=3830, data_rank=225).value
        Fraction(8088, 1)

    References:
        Cullen 2026, theorems 4.1 and 4.2, corrected for the data.
    """
    p, k, centre = whole(modulus, "modulus"), whole(hidden, "hidden"), flag(centred, "centred")
    chosen = _chosen(pairs, p) if pairs is not None else None
    if pairs is not None and (examples is not None or data_rank is not None):
        raise InputError("expected the pairs, or examples and data_rank, got both; leave out the latter")
    if (examples is None) != (data_rank is None):
        raise InputError("expected examples and data_rank together, got one of them")
    if chosen is None and examples is None and p <= 60:
        chosen = [(a, b) for a in range(p) for b in range(p)]
    if chosen is not None:
        count, cone = len(chosen), _data_rank(chosen)
    elif examples is None:
        count, cone = p * p, 2 * p - 1
    else:
        count, cone = whole(examples, "examples"), whole(data_rank, "data_rank")
        most = min(2 * p - 1, count)
        if count > p * p or cone > most:
            raise InputError(f"expected at most {p * p} pairs of rank at most {most}, got {count} and {cone}")
    span = count - centre
    bound = secant_bound(p, k, cone, span)
    if chosen is not None and p < k < span:
        bound = min(bound, _pruned(chosen, p, k, centre))
    found = None
    if chosen is not None:
        found = search_rank(_features(chosen, k, centre), outputs=p, terms=k, tangents=2 * p, span=span, bound=bound)
    if found is not None:
        rank, proven, reason = found, found == bound, "rank computed modulo a prime; it meets the parameter count"
        if not proven:
            reason = "rank computed modulo primes"
    else:
        rank, proven, reason = bound, k >= span or k <= p, "parameter count"
        if proven:
            reason = "the features span all functions" if k >= span else "spans of K features"
        elif p <= MODULUS_COMPUTED and count == p * p:
            proven, reason = True, "parameter count; computed beside the critical width for this modulus"
    hypotheses = [
        "the parameter is generic, so that the rank is the generic one",
        "squared error" + (" after centring over the examples" if centre else ""),
    ]
    if not proven:
        hypotheses.append("the generic rank is the parameter count, which is computed only for small sizes")
    if examples is not None and k > p:
        hypotheses.append(f"every input occurs in at least K/p = {Fraction(k, p)} of the pairs")
        proven = proven and k >= span
    return LearningCoefficient.exact(
        Fraction(rank, 2),
        1,
        citation="Cullen 2026, theorems 4.1 and 4.2, corrected: the outputs see only the given pairs",
        hypotheses=tuple(hypotheses),
        conditional=not proven,
        details={"rank": rank, "rank_by": reason, "examples": count, "data_rank": cone, "local": True},
    )


def quadratic_on_data(modulus: Any, hidden: Any, *, centred: Any, data: Any) -> LearningCoefficient:
    """`quadratic_modular_addition` with `data` in words, as pairs, or as numbers of examples and rank.

    Example:
        >>> print(quadratic_on_data(5, 12, centred=True, data="all p^2 pairs"))
        λ = 60, m = 1 (exact) [Cullen 2026, ...]
    """
    chosen: dict[str, Any] = {}
    if isinstance(data, Mapping):
        chosen = dict(data)
        if not chosen or not set(chosen) <= {"pairs", "examples", "data_rank"}:
            raise InputError(f"expected data with pairs, or with examples and data_rank, got {data!r}")
    elif isinstance(data, str):
        if data.strip().lower().replace(" ", "") not in ("allp^2pairs", "allp**2pairs", "allpairs", "all"):
            raise InputError(
                f'expected data as "all p^2 pairs", a list of pairs, or examples and data_rank, got {data!r}'
            )
    elif data is not None:
        chosen = {"pairs": data}
    return quadratic_modular_addition(modulus, hidden, centred=centred, **chosen)


def lazy_random_features(modulus: Any, hidden: Any, *, centred: Any, activation: Any = "t^2") -> LearningCoefficient:
    """Coefficient of the output layer alone on all pairs of modular addition, with the first layer frozen at random.

    λ = (p/2) min(l, K), m = 1, with l the dimension that the features σ(u(a) + t(b)) span: p² for every analytic σ that
    is not affine, 2p − 1 for an affine one; one less when centred.

    Args:
        modulus: p.
        hidden: K.
        centred: True when the mean over examples is taken off.
        activation: "t^2", any power "t^k", or the name of an analytic function such as "tanh".

    Example:
        >>> print(lazy_random_features(5, 10, centred=True))
        λ = 25, m = 1 (exact) [Cullen 2026, ...]

    References:
        Cullen 2026, theorem 5.2; corollary 5.3 gives bounds where this is exact.
    """
    p, k, centre = whole(modulus, "modulus"), whole(hidden, "hidden"), flag(centred, "centred")
    name = activation.strip().lower() if isinstance(activation, str) else activation
    power = re.fullmatch(r"[tx](?:(?:\^|\*\*)([1-9]\d{0,3}))?", name) if isinstance(name, str) else None
    if power is None and name not in ANALYTIC and name not in ("square", "quadratic"):
        raise InputError(
            f'expected activation as "t^2", another power "t^k", or one of {", ".join(ANALYTIC)}, got {activation!r}; '
            "no theorem here covers activations that are not analytic, because units may be dead"
        )
    affine = power is not None and power.group(1) in (None, "1")
    span = (2 * p - 1 if affine else p * p) - centre
    return LearningCoefficient.exact(
        Fraction(p * min(span, k), 2),
        1,
        citation="Cullen 2026, theorem 5.2, with the span computed in place of the bounds of corollary 5.3",
        hypotheses=(
            "the first layer is frozen at weights drawn from a density",
            "squared error on all pairs" + (", centred over them" if centre else ""),
        ),
        details={"span": span, "rank": p * min(span, k)},
    )


def fourier_solution(modulus: Any) -> LearningCoefficient:
    """Bounds of the local coefficient at an exact Fourier solution of modular addition, centred, on all pairs.

    Each frequency f = 1 … (p−1)/2 has six units: u(a) = cos(2πfa/p + φ), t = ±u, v(c) = ±cos(2πfc/p + 2φ), for three
    phases φ a third of a turn apart, so K = 3(p−1). The centred output is the target up to a factor. The Jacobian has a
    rank below the generic one, and its neighbours have another, so that only rank/2 ≤ λ ≤ K(3p−2)/2 is known. The upper
    bound counts parameters less two symmetries a unit: scaling, and moving a constant from u to t.

    Args:
        modulus: p, one of 3, 5, 7, 9. Cosines are taken modulo 2^61 − 1, which has roots of unity of these orders.

    Example:
        >>> print(fourier_solution(3))
        21/2 ≤ λ ≤ 21 (interval) [Cullen 2026, ...]

    References:
        Cullen 2026, section 5.2, whose generic values do not hold at this solution.
    """
    p = whole(modulus, "modulus")
    if p not in (3, 5, 7, 9):
        raise InputError(f"expected modulus 3, 5, 7 or 9, for which the rank is computed, got {p}")
    prime = (1 << 61) - 1
    turn, third = _root(p, prime), _root(3, prime)
    half = pow(2, -1, prime)

    def cosine(steps: int, phase: int) -> int:
        z = pow(turn, steps % p, prime) * pow(third, phase % 3, prime) % prime
        return (z + pow(z, -1, prime)) * half % prime

    pairs = [(a, b) for a in range(p) for b in range(p)]
    terms, weights = [], []
    for f in range(1, (p - 1) // 2 + 1):
        for phase in range(3):
            u = [cosine(f * a, phase) for a in range(p)]
            v = [cosine(f * c, 2 * phase) for c in range(p)]
            for sign in (1, -1):
                terms.append(_feature(pairs, u, [sign * x for x in u], centre=True))
                weights.append([sign * x for x in v])
    rank = tangent_rank(terms, p, weights=weights, exponent=61)
    return LearningCoefficient.interval(
        Fraction(rank, 2),
        Fraction(3 * (p - 1) * (3 * p - 2), 2),
        citation="Cullen 2026, section 5.2, corrected: at the Fourier solution itself only bounds are known",
        hypotheses=("six units a frequency, three phases a third of a turn apart", "squared error, centred, all pairs"),
        details={"rank": rank, "hidden": 3 * (p - 1), "local": True},
    )


def _root(order: int, prime: int) -> int:
    """An element whose multiplicative order is `order`, a power of 3, 5 or 7."""
    q = next(q for q in (3, 5, 7) if order % q == 0)
    for base in range(2, 100):
        root = pow(base, (prime - 1) // order, prime)
        if pow(root, order // q, prime) != 1:
            return root
    raise AssertionError("a prime field has a root of unity of every order that divides its size less one")


def _chosen(pairs: Any, p: int) -> list[Pair]:
    found: list[Pair] = []
    for i, pair in enumerate(sequence(pairs, "pairs")):
        entries = sequence(pair, f"pairs[{i}]")
        if len(entries) != 2:
            raise InputError(f"expected pairs[{i}] as two numbers from 0 to {p - 1}, got {pair!r}")
        a, b = (whole(x, f"pairs[{i}]", low=0) for x in entries)
        if max(a, b) >= p:
            raise InputError(f"expected pairs[{i}] as two numbers from 0 to {p - 1}, got {pair!r}")
        found.append((a, b))
    if len(set(found)) < len(found):
        raise InputError("expected each pair at most once; a repeated pair adds nothing to the rank, leave it out")
    return found


def _data_rank(pairs: Sequence[Pair]) -> int:
    """Rank of the one-hot rows: that of the graph with the pairs as edges, the vertices less the components."""
    parent: dict[int, int] = {}

    def top(x: int) -> int:
        while parent.setdefault(x, x) != x:
            parent[x] = x = parent[parent[x]]
        return x

    rank = 0
    for a, b in pairs:
        first, second = top(a), top(-1 - b)
        if first != second:
            parent[first] = second
            rank += 1
    return rank


def _pruned(pairs: Sequence[Pair], p: int, k: int, centre: bool) -> int:
    """Parameter count after setting aside the pairs of rare inputs, whose p outputs each are then all counted."""
    left, aside, bound = list(pairs), 0, p * (len(pairs) - centre)
    while left:
        bound = min(bound, p * aside + secant_bound(p, k, _data_rank(left), len(left) - centre))
        seen = Counter([a for a, _ in left] + [-1 - b for _, b in left])
        rarest = min(seen, key=seen.__getitem__)
        if p * seen[rarest] >= k:
            break
        aside += seen[rarest]
        left = [(a, b) for a, b in left if rarest not in (a, -1 - b)]
    return min(bound, p * (aside + len(left)) - (p if centre else 0))


def _feature(pairs: Sequence[Pair], u: list[int], t: list[int], centre: bool) -> tuple[list[int], list[list[int]]]:
    z = [u[a] + t[b] for a, b in pairs]

    def seen(values: list[int]) -> list[int]:
        # Modulo constants a function is its differences to its first value.
        return [x - values[0] for x in values[1:]] if centre else values

    along = [seen([x * (a == i) for x, (a, _) in zip(z, pairs, strict=True)]) for i in range(len(u))]
    along += [seen([x * (b == i) for x, (_, b) in zip(z, pairs, strict=True)]) for i in range(len(t))]
    return seen([x * x for x in z]), along


def _features(
    pairs: Sequence[Pair], k: int, centre: bool
) -> Callable[[Random, int], list[tuple[list[int], list[list[int]]]]]:
    p = 1 + max(max(pair) for pair in pairs)

    def make(draw: Random, prime: int) -> list[tuple[list[int], list[list[int]]]]:
        def weights() -> list[int]:
            return [draw.randrange(1, prime) for _ in range(p)]

        return [_feature(pairs, weights(), weights(), centre) for _ in range(k)]

    return make
