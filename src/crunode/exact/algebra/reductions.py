"""Changes of coordinates and of generators that keep λ and m and make a problem smaller."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from crunode.exact.algebra.factors import Factored, squarefree
from crunode.exact.algebra.polynomials import Exponent, Polynomial, TooLarge
from crunode.exact.algebra.program import nullspace, rank

__all__ = [
    "arrangement",
    "completed_square",
    "groups",
    "reduce_generators",
    "straightened",
    "without_idle_directions",
]

_MOST_FORMS = 12


def groups(supports: Sequence[Sequence[int]]) -> list[list[int]]:
    """Indices of sets, gathered so that sets of different groups share no element.

    Example:
        >>> groups([(0, 1), (2,), (1, 3)])
        [[0, 2], [1]]
    """
    found: list[tuple[set[int], list[int]]] = []
    for index, support in enumerate(supports):
        elements, members = set(support), [index]
        rest = []
        for others, indices in found:
            if others & elements:
                elements |= others
                members = indices + members
            else:
                rest.append((others, indices))
        found = [*rest, (elements, members)]
    return sorted(sorted(members) for _, members in found)


def reduce_generators(
    generators: Sequence[Polynomial], h: Sequence[Fraction]
) -> tuple[int, list[Polynomial], list[str]]:
    """Simplify generators of an ideal at the origin: λ of Σ g_i² depends on the ideal alone.

    Generators are replaced by rational combinations in echelon form, lose factors that do not vanish at the origin and
    terms that a monomial generator divides. A generator x_j·u + g with u ≠ 0 at the origin, and neither u nor g with
    x_j, is made the coordinate x_j; it adds 1/2 to λ, and x_j is eliminated from the others. u may have x_j if every
    other generator is a power of x_j times a polynomial without it. Only variables without a weight are moved.

    Args:
        generators: Polynomials that vanish at the origin.
        h: Exponents of the weight.

    Returns:
        How many coordinates were split off, the generators left, and what was done in words.

    Example:
        >>> x, y, z = Polynomial.unknowns("x", "y", "z")
        >>> count, left, steps = reduce_generators([x * y + z, z], [Fraction(0)] * 3)
        >>> count, [str(g) for g in left]
        (1, ['x*y'])
    """
    left = [g for g in generators if g]
    split, steps = 0, []
    changed = True
    while changed and left:
        left = _without_units(_tidy(left))
        left = _tidy(left)
        changed = False
        for g, j in _coordinates(left, h):
            names = left[0].variables
            if len(g.terms) > 1:
                steps.append(f"{g} taken as a coordinate in place of {names[j]}")
            left = [other for other in (_eliminated(other, g, j) for other in left if other is not g) if other]
            split += 1
            changed = True
            break
    return split, left, steps


def _tidy(generators: list[Polynomial]) -> list[Polynomial]:
    """Echelon form by low degree first, and monomial generators used on all the others."""
    while True:
        exponents = sorted({e for g in generators for e in g.terms}, key=lambda e: (sum(e), e))
        if len(exponents) * len(generators) > 50_000:
            return generators
        place = {e: k for k, e in enumerate(exponents)}
        rows = [{place[e]: c for e, c in g.terms.items()} for g in generators]
        done: list[tuple[int, dict[int, Fraction]]] = []
        for row in rows:
            for pivot, other in done:
                _subtract(row, other, pivot)
            if row:
                pivot = min(row)
                lead = row[pivot]
                row = {k: c / lead for k, c in row.items()}
                for _, other in done:
                    _subtract(other, row, pivot)
                done.append((pivot, row))
        found = [generators[0].like({exponents[k]: c for k, c in row.items()}) for _, row in sorted(done, key=_first)]
        single = [next(iter(g.terms)) for g in found if len(g.terms) == 1]
        shorter = []
        for g in found:
            if len(g.terms) > 1:
                g = g.like({e: c for e, c in g.terms.items() if not any(_over(e, s) for s in single)})
            if g:
                shorter.append(g)
        if sum(len(g.terms) for g in shorter) == sum(len(g.terms) for g in generators):
            return shorter
        generators = shorter


def _first(item: tuple[int, dict[int, Fraction]]) -> int:
    return item[0]


def _over(one: Exponent, two: Exponent) -> bool:
    return all(a >= b for a, b in zip(one, two, strict=True))


def _subtract(row: dict[int, Fraction], other: dict[int, Fraction], pivot: int) -> None:
    factor = row.get(pivot)
    if factor:
        for k, c in other.items():
            value = row.get(k, Fraction(0)) - factor * c
            if value:
                row[k] = value
            else:
                row.pop(k, None)


def _without_units(generators: list[Polynomial]) -> list[Polynomial]:
    found = []
    for g in generators:
        try:
            parts = squarefree([(g, 1)], len(g.variables)) if len(g.terms) > 1 else None
        except TooLarge:
            parts = None
        if parts is not None and any(f.at_origin for f, _ in parts.factors):
            g = g.like({parts.monomial: 1})
            for factor, power in parts.factors:
                if not factor.at_origin:
                    g = g * factor**power
        found.append(g)
    return found


def _coordinates(generators: list[Polynomial], h: Sequence[Fraction]) -> list[tuple[Polynomial, int]]:
    found = []
    for g in generators:
        for j in g.used:
            unit = tuple(int(i == j) for i in range(len(h)))
            if h[j] or unit not in g.terms:
                continue
            others = (other for other in generators if other is not g)
            if g.degree(j) == 1 or all(len({e[j] for e in other.terms}) == 1 for other in others):
                found.append((g, j))
    return sorted(found, key=lambda item: len(item[0].terms))


def _parts(g: Polynomial, j: int) -> list[Polynomial]:
    """Coefficients of the powers of x_j."""
    found: list[dict[Exponent, Fraction]] = [{} for _ in range(g.degree(j) + 1)]
    for e, c in g.terms.items():
        found[e[j]][(*e[:j], 0, *e[j + 1 :])] = c
    return [g.like(terms) for terms in found]


def _eliminated(other: Polynomial, g: Polynomial, j: int) -> Polynomial:
    """Put −g0/u for x_j, where g = g0 + x_j u, and clear the denominator, which does not vanish at the origin."""
    rest, unit, *higher = _parts(g, j)
    coefficients = _parts(other, j)
    if higher:
        # The other generator has one power of x_j only, and powers of u are dropped as factors.
        return coefficients[-1] * (-rest) ** (len(coefficients) - 1)
    total = other.like({})
    for k, coefficient in enumerate(coefficients):
        if coefficient:
            total = total + coefficient * (-rest) ** k * unit ** (len(coefficients) - 1 - k)
    return total


def without_idle_directions(f: Polynomial, h: Sequence[Fraction]) -> list[int] | None:
    """Variables to keep, when f does not change along some directions; the others can be set to zero.

    Returns:
        The kept indices, or None where f changes along every direction, or a variable with a weight would be moved.

    Example:
        >>> x, y, z = Polynomial.unknowns("x", "y", "z")
        >>> without_idle_directions((x - y) ** 4 + (y - z) ** 4, [Fraction(0)] * 3)
        [1, 2]
    """
    slopes = [f.derivative(j).terms for j in range(len(f.variables))]
    exponents = {e for slope in slopes for e in slope}
    directions = nullspace([[slope.get(e, 0) for slope in slopes] for e in exponents], len(slopes))
    if not directions:
        return None
    dropped = list(_pivots(directions))
    for j in range(len(slopes)):
        if j not in dropped and h[j] and any(direction[j] for direction in directions):
            return None
    return [j for j in range(len(slopes)) if j not in dropped]


def _pivots(rows: Sequence[Sequence[int]]) -> list[int]:
    found: list[int] = []
    for j in range(len(rows[0])):
        if rank([[row[k] for k in [*found, j]] for row in rows]) > len(found):
            found.append(j)
    return found


def straightened(product: Factored, h: Sequence[Fraction]) -> tuple[Factored, str] | None:
    """Make a factor c x_j + g, with g free of x_j, the coordinate x_j, if x_j has no weight and is no factor yet.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> found, step = straightened(Factored(Fraction(1), (0, 0), ((x - y * y, 2),)), [Fraction(0)] * 2)
        >>> found.monomial, step
        ((2, 0), '-y**2 + x taken as a coordinate in place of x')
    """
    size = len(h)
    for index, (factor, power) in enumerate(product.factors):
        for j in factor.used:
            unit = tuple(int(i == j) for i in range(size))
            alone = [e for e in factor.terms if e[j]] == [unit]
            if h[j] or product.monomial[j] or not alone:
                continue
            unknowns = Polynomial.unknowns(*factor.variables)
            rest = factor.like({e: c for e, c in factor.terms.items() if not e[j]})
            images = list(unknowns)
            images[j] = (unknowns[j] - rest) * (1 / factor.terms[unit])
            others = [(f.composed(images), e) for k, (f, e) in enumerate(product.factors) if k != index]
            monomial = product.factors[index][0].like({product.monomial: product.constant})
            moved = squarefree([(monomial, 1), (unknowns[j], power), *others], size)
            return moved, f"{factor} taken as a coordinate in place of {factor.variables[j]}"
    return None


def arrangement(product: Factored, h: Sequence[Fraction]) -> tuple[Fraction, int] | None:
    """λ and m of a product of powers of linear forms.

    Blowing up all intersections W of the hyperplanes, smallest first, makes it normal crossing; the divisor of W has
    N = the sum of the powers of the forms that vanish on W and A = codim W, and divisors meet if their W form a chain
    (Mustață 2006). So λ = min codim W / N_W, and m is the length of the longest chain of minimizing W.

    Returns:
        (λ, m), or None where a factor is not a linear form, there is a weight, or there are too many forms.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> arrangement(Factored(Fraction(1), (2, 2), ((x - y, 2),)), [Fraction(0)] * 2)
        (Fraction(1, 3), 1)
    """
    size = len(h)
    forms: list[tuple[list[Fraction | int], int]] = []
    for j, power in enumerate(product.monomial):
        if power:
            forms.append(([int(i == j) for i in range(size)], power))
    for factor, power in product.factors:
        if any(sum(e) != 1 for e in factor.terms):
            return None
        forms.append(([factor.terms.get(tuple(int(i == j) for i in range(size)), 0) for j in range(size)], power))
    if any(h) or len(forms) > _MOST_FORMS:
        return None
    flats: dict[frozenset[int], tuple[int, int]] = {}
    for count in range(1, min(size, len(forms)) + 1):
        for chosen in combinations(range(len(forms)), count):
            rows = [forms[k][0] for k in chosen]
            if rank(rows) < count:
                continue
            closure = frozenset(k for k in range(len(forms)) if rank([*rows, forms[k][0]]) == count)
            flats[closure] = (count, sum(forms[k][1] for k in closure))
    value = min(Fraction(count, total) for count, total in flats.values())
    best = sorted((flat for flat, (count, total) in flats.items() if Fraction(count, total) == value), key=len)
    length: dict[frozenset[int], int] = {}
    for flat in best:
        length[flat] = 1 + max((length[other] for other in length if other < flat), default=0)
    return value, max(length.values())


def completed_square(f: Polynomial, h: Sequence[Fraction]) -> tuple[Polynomial, str] | None:
    """For f = A x_j² + 2 B x_j + C with A > 0 at the origin and x_j without weight: A C − B², free of x_j.

    f = A (x_j + B/A)² + (A C − B²)/A, so λ(f) = 1/2 + λ(A C − B²), and f ≥ 0 if and only if A C − B² ≥ 0.

    Returns:
        A C − B² and the step in words, or None where no variable fits.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> print(completed_square((x - y * y) ** 2 + x * x * y * y, [Fraction(0)] * 2)[0])
        y**6
    """
    found = []
    for j in f.used:
        if h[j] or f.degree(j) != 2:
            continue
        last, middle, lead = _parts(f, j)
        if lead.at_origin > 0:
            half = middle * Fraction(1, 2)
            found.append((lead * last - half * half, f"the square in {f.variables[j]} completed"))
    return min(found, key=lambda item: (len(item[0].terms), item[1])) if found else None
