"""Which proof applies: λ and m of a polynomial at the origin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod

from crunode.exact.algebra import routes
from crunode.exact.algebra.factors import Factored, squarefree
from crunode.exact.algebra.ideals import minimal_exponents, newton_cover
from crunode.exact.algebra.nondegenerate import Certified, NegativeNearby, certify, certify_squares
from crunode.exact.algebra.parse import Product
from crunode.exact.algebra.polynomials import Polynomial, TooLarge
from crunode.exact.algebra.reductions import (
    completed_square,
    groups,
    reduce_generators,
    straightened,
    without_idle_directions,
)
from crunode.exact.algebra.routes import VARCHENKO, WATANABE, Weights, proven, with_details
from crunode.exact.algebra.splitting import split_quadratic
from crunode.exact.combine import power as power_of
from crunode.exact.combine import product_of, sum_of
from crunode.exact.result import LearningCoefficient

__all__ = ["of_generators", "of_product", "of_sum"]

HOWALD = "Howald 2001"
LIN = "Lin 2011"
_DEEPEST = 12


def of_sum(addends: Sequence[Product], variables: Sequence[str], h: Weights) -> LearningCoefficient:
    """λ of Σ of products of powers at the origin, where it vanishes; the addends are used as they were written.

    Raises:
        NegativeNearby: K is negative near the origin.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> print(of_sum([[(x - y, 2)], [(x, 4)]], ("x", "y"), [Fraction(0)] * 2))
        λ = 3/4, m = 1 (exact) [Howald 2001; Watanabe 2009]
    """
    if len(addends) == 1:
        return of_product(squarefree(addends[0], len(variables)), h)
    generators = square_roots(addends, len(variables))
    if generators is not None:
        return of_generators(generators, h)
    total = Polynomial(variables, {})
    for product in addends:
        total = total + prod((f**e for f, e in product), start=Polynomial.constant(1, variables))
    try:
        parts = squarefree([(total, 1)], len(variables))
    except TooLarge:
        parts = Factored(Fraction(1), (0,) * len(variables), ((total, 1),))
    return of_product(parts, h)


def square_roots(addends: Sequence[Product], size: int) -> list[Polynomial] | None:
    """g_i with K = Σ c_i g_i², c_i > 0, if every addend is such a square.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> [str(g) for g in square_roots([[(x - y, 2)], [(x, 4), (y, 2)]], 2)]
        ['x - y', 'x**2*y']
    """
    found = []
    for product in addends:
        try:
            parts = squarefree(product, size)
        except TooLarge:
            return None
        if parts.constant < 0 or any(e % 2 for e in parts.monomial) or any(e % 2 for _, e in parts.factors):
            return None
        root = product[0][0].like({tuple(e // 2 for e in parts.monomial): 1})
        for factor, e in parts.factors:
            root = root * factor ** (e // 2)
        found.append(root)
    return found


def of_product(product: Factored, h: Weights, depth: int = 0) -> LearningCoefficient:
    """λ of c x^a ∏ f_i^e_i at the origin, where it vanishes.

    Raises:
        NegativeNearby: It changes sign near the origin, or is negative there.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> print(of_product(Factored(Fraction(1), (2, 2), ((x - y, 2),)), [Fraction(0)] * 2))
        λ = 1/3, m = 1 (exact) [Varchenko 1976; Arnold, Gusein-Zade & Varchenko vol. II]
    """
    constant = product.constant
    for factor, e in product.factors:
        if factor.at_origin < 0 and e % 2:
            constant = -constant
    units = [(f, e) for f, e in product.factors if not f.at_origin]
    product = Factored(constant, product.monomial, tuple(units))
    used = sorted({*(j for f, _ in units for j in f.used), *(j for j, e in enumerate(product.monomial) if e)})
    if len(used) < len(h):
        smaller = tuple((f.restricted(used), e) for f, e in units)
        product = Factored(constant, tuple(product.monomial[j] for j in used), smaller)
        h = [h[j] for j in used]
    for j, e in enumerate(product.monomial):
        if e % 2:
            raise NegativeNearby(f"the factor with odd power {e} in variable {j + 1} changes sign")
    if constant < 0 and not any(e % 2 for _, e in product.factors):
        raise NegativeNearby("K is a negative multiple of a square")
    if not product.factors:
        return routes.crossing(product, h)
    together = groups([f.used for f, _ in product.factors])
    apart = [j for j, e in enumerate(product.monomial) if e and not any(j in f.used for f, _ in product.factors)]
    if len(together) + len(apart) > 1:
        return _by_groups(product, h, together, apart, depth)
    return _connected(product, h, depth)


def _by_groups(
    product: Factored, h: Weights, together: list[list[int]], apart: list[int], depth: int
) -> LearningCoefficient:
    """A product of functions in different variables."""
    parts = []
    sign = product.constant
    for members in together:
        factors = tuple(product.factors[k] for k in members)
        touched = {j for f, _ in factors for j in f.used}
        monomial = tuple(e if j in touched else 0 for j, e in enumerate(product.monomial))
        part, own = _of_either_sign(Factored(Fraction(1), monomial, factors), h, depth)
        parts.append(part)
        sign *= own
    if sign < 0:
        raise NegativeNearby("the factors in different variables have a negative product")
    for j in apart:
        power = product.monomial[j]
        parts.append(proven((1 + h[j]) / power, 1, WATANABE, "normal crossing: (h + 1) / exponent"))
    return product_of(*parts)


def _of_either_sign(product: Factored, h: Weights, depth: int) -> tuple[LearningCoefficient, int]:
    """λ of |K| and the sign of K: one factor of a product may be negative if another is."""
    try:
        return of_product(product, h, depth + 1), 1
    except NegativeNearby as first:
        try:
            flipped = Factored(-product.constant, product.monomial, product.factors)
            return of_product(flipped, h, depth + 1), -1
        except NegativeNearby:
            raise first from None


def _connected(product: Factored, h: Weights, depth: int) -> LearningCoefficient:
    costs = [1 + entry for entry in h]
    tried: list[str] = []
    bound: Certified | None = None
    try:
        bound = certify(product, costs)
        if bound.exact and bound.multiplicity is not None:
            return proven(bound.value, bound.multiplicity, VARCHENKO, bound.reason, **bound.details)
        tried.append(bound.reason)
    except TooLarge as error:
        tried.append(str(error))
    ways: list[Callable[[Factored, Weights, int], LearningCoefficient | None]] = [routes.curve] if len(h) == 2 else []
    ways += [routes.linear_forms, _straight, routes.smooth, _fewer_directions, _single]
    best: LearningCoefficient | None = None
    for way in ways if depth < _DEEPEST else []:
        try:
            found = way(product, h, depth)
        except TooLarge as error:
            tried.append(str(error))
            continue
        if found is not None and found.status == "exact" and found.multiplicity is not None:
            return found
        if found is not None and (best is None or routes.sharper(found, best)):
            best = found
    if bound is not None and bound.exact:
        return proven(bound.value, None, VARCHENKO, bound.reason, **bound.details)
    if best is not None and best.status == "exact":
        return best
    return routes.bounded(product, h, bound, best, tried)


def _straight(product: Factored, h: Weights, depth: int) -> LearningCoefficient | None:
    moved = straightened(product, h)
    if moved is None:
        return None
    found = of_product(moved[0], h, depth + 1)
    return with_details(found, {"coordinates": [moved[1], *found.details.get("coordinates", [])]})


def _fewer_directions(product: Factored, h: Weights, depth: int) -> LearningCoefficient | None:
    """K does not change along some directions."""
    radical = prod((f for f, _ in product.factors[1:]), start=product.factors[0][0])
    radical = radical * radical.like({tuple(int(e > 0) for e in product.monomial): 1})
    kept = without_idle_directions(radical, h)
    if kept is None:
        return None
    dropped = [j for j in range(len(h)) if j not in kept]
    cut: Product = [
        (f.like({e: c for e, c in f.terms.items() if not any(e[j] for j in dropped)}), p) for f, p in product.factors
    ]
    # A variable along which nothing changes is no factor, so the monomial stays.
    pieces: Product = [(f.restricted(kept), p) for f, p in cut]
    monomial = pieces[0][0].like({tuple(product.monomial[j] for j in kept): product.constant})
    names = product.factors[0][0].variables
    found = of_product(squarefree([(monomial, 1), *pieces], len(kept)), [h[j] for j in kept], depth + 1)
    step = f"K is constant along {len(dropped)} directions; {', '.join(names[j] for j in dropped)} set to 0"
    return with_details(found, {"coordinates": [step, *found.details.get("coordinates", [])]})


def _single(product: Factored, h: Weights, depth: int) -> LearningCoefficient | None:
    """A power of one function: sums in different variables, and the squares of its Hessian."""
    if any(product.monomial) or len(product.factors) != 1:
        return None
    ((f, e),) = product.factors
    if e % 2 == 0:
        # |f|^e with an f that may change sign: these rules need f ≥ 0.
        try:
            found = _nonnegative(f, h, depth)
        except NegativeNearby:
            try:
                found = _nonnegative(-f, h, depth)
            except NegativeNearby:
                return routes.of_both_signs(f, e, h)
        return power_of(found, e) if found is not None and found.status == "exact" else None
    found = _nonnegative(f if product.constant > 0 else -f, h, depth)
    return power_of(found, e) if found is not None and e > 1 else found


def _nonnegative(f: Polynomial, h: Weights, depth: int) -> LearningCoefficient | None:
    """λ of f itself. Every exact answer here comes with a proof that f ≥ 0 near the origin."""
    exponents = list(f.terms)
    together = groups([[j for j, entry in enumerate(e) if entry] for e in exponents])
    if len(together) > 1:
        parts = []
        for members in together:
            part = f.like({exponents[k]: f.terms[exponents[k]] for k in members})
            parts.append(of_product(squarefree([(part, 1)], len(h)), h, depth + 1))
        return sum_of(*parts)
    completed = completed_square(f, h)
    if completed is not None:
        rest, step = completed
        square = proven(Fraction(1, 2), 1, WATANABE, "a square split off", coordinates=[step])
        if not rest:
            return square
        return sum_of(square, of_product(squarefree([(rest, 1)], len(h)), h, depth + 1))
    if any(h):
        return None
    found = None
    for degree in (2, 4, 6, 12):
        found = _split_off(f, degree, depth)
        # Beyond one variable, long series cost much and seldom settle what short ones leave open.
        if found is None or found.status == "exact" or (degree >= 6 and len(h) - 2 * found.bounds[0] > 1):
            return found
    return found


def _split_off(f: Polynomial, degree: int, depth: int) -> LearningCoefficient | None:
    """The squares of the Hessian, and what is left after them as far as a series of this degree tells."""
    count = len(f.variables)
    split = split_quadratic(f, degree)
    if split is None:
        return None
    half = Fraction(split.rank, 2)
    route = f"splitting lemma: {split.rank} squares"
    squares = proven(half, 1, WATANABE, route)
    if not split.rest:
        if split.known is None:
            return squares
        return LearningCoefficient.at_most(Fraction(count, 2), low=half, citation=WATANABE, details={"route": route})
    size = len(split.rest.variables)
    rest = Factored(Fraction(1), (0,) * size, ((split.rest, 1),))
    if split.known is None:
        return sum_of(squares, of_product(squarefree([(split.rest, 1)], size), [Fraction(0)] * size, depth + 1))
    axes = [min((e[j] for e in split.rest.terms if e[j] == sum(e)), default=None) for j in range(size)]
    found = certify(rest, [Fraction(1)] * size) if None not in axes else None
    if found is not None and found.exact:
        # Every term of higher degree lies inside the polyhedron, since all axes are met below that degree.
        return sum_of(squares, proven(found.value, found.multiplicity, VARCHENKO, found.reason, **found.details))
    # The unknown terms start at the next degree; more terms can only raise the Newton value.
    beyond = [tuple((split.known + 1) * int(i == j) for i in range(size)) for j in range(size)]
    rows = minimal_exponents([*split.rest.terms, *beyond])
    high = half + min(newton_cover(rows, [Fraction(1)] * size).value, Fraction(size, 2))
    return LearningCoefficient.at_most(high, low=half, citation=WATANABE, details={"route": route})


def of_generators(generators: Sequence[Polynomial], h: Weights) -> LearningCoefficient:
    """λ of Σ g_i² at the origin, where all g_i vanish.

    Example:
        >>> x, y, z = Polynomial.unknowns("x", "y", "z")
        >>> print(of_generators([x * y + z, z], [Fraction(0)] * 3))
        λ = 1, m = 2 (exact) [Howald 2001; Watanabe 2009]
    """
    count, left, steps = reduce_generators(generators, h)
    details = {"generators": [str(g) for g in left][:20], "coordinates": steps}
    parts = []
    if count:
        parts.append(proven(Fraction(count, 2), 1, WATANABE, f"{count} generators are coordinates"))
    for members in groups([g.used for g in left]):
        parts.append(_of_group([left[k] for k in members], h))
    found = parts[0] if len(parts) == 1 else sum_of(*parts)
    if found.status == "exact" and all(len(g.terms) == 1 for g in left):
        found = proven(found.bounds[0], found.multiplicity, f"{HOWALD}; {WATANABE}", "monomial ideal after reduction")
    return with_details(found, details)


def _of_group(generators: Sequence[Polynomial], h: Weights) -> LearningCoefficient:
    used = sorted({j for g in generators for j in g.used})
    generators = [g.restricted(used) for g in generators]
    h = [h[j] for j in used]
    costs = [1 + entry for entry in h]
    if all(len(g.terms) == 1 for g in generators):
        rows = minimal_exponents(next(iter(g.terms)) for g in generators)
        cover = newton_cover(rows, costs)
        return proven(cover.value / 2, cover.dimension + 1, f"{HOWALD}; {WATANABE}", "monomial ideal")
    if len(generators) == 1:
        return of_product(squarefree([(generators[0], 2)], len(used)), h)
    try:
        newton = certify_squares(generators, costs)
        if newton.exact:
            return proven(newton.value, newton.multiplicity, f"{LIN}; {VARCHENKO}", newton.reason, **newton.details)
    except TooLarge:
        pass
    total = generators[0].like({})
    for g in generators:
        total = total + g * g
    try:
        parts = squarefree([(total, 1)], len(used))
    except TooLarge:
        parts = Factored(Fraction(1), (0,) * len(used), ((total, 1),))
    found = of_product(parts, h)
    if found.status == "exact":
        return found
    # K ≥ g_i² for each of them.
    floors = [of_product(squarefree([(g, 2)], len(used)), h).bounds[0] for g in generators]
    low, high = min(max(found.bounds[0], *floors), found.bounds[1]), found.bounds[1]
    if low == high:
        return proven(low, None, found.citation, "lower and upper bound agree")
    return LearningCoefficient.at_most(high, low=low, citation=found.citation, details=found.details)
