"""λ and m of polynomials do not depend on how, and in which coordinates, they are written."""

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crunode.errors import InputError
from crunode.exact.algebra.factors import squarefree
from crunode.exact.algebra.ideals import monomial_ideal
from crunode.exact.algebra.local import of_product
from crunode.exact.algebra.newton import ideal, polynomial
from crunode.exact.algebra.nondegenerate import certify
from crunode.exact.algebra.parse import Formula, parse
from crunode.exact.algebra.plane import resolve
from crunode.exact.algebra.polynomials import Polynomial
from crunode.exact.combine import power, product_of, sum_of

X, Y = Polynomial.unknowns("x", "y")
COEFFICIENTS = st.sampled_from([-2, -1, 1, 2, 3])


def _planar(degree=3, most=3):
    exponents = st.tuples(st.integers(0, degree), st.integers(0, degree)).filter(any)
    return st.dictionaries(exponents, COEFFICIENTS, min_size=1, max_size=most).map(lambda t: Polynomial(("x", "y"), t))


def _spatial(degree=2, most=3):
    exponents = st.tuples(*[st.integers(0, degree)] * 3).filter(any)
    return st.dictionaries(exponents, COEFFICIENTS, min_size=1, max_size=most).map(
        lambda t: Polynomial(("x", "y", "z"), t)
    )


@st.composite
def planar_products(draw):
    """Products of even powers: the factors, and what they multiply to."""
    return [(f, draw(st.sampled_from([2, 2, 4]))) for f in draw(st.lists(_planar(), min_size=1, max_size=2))]


planar_sums = st.lists(_planar(), min_size=1, max_size=3)
invertible = st.tuples(*[st.integers(-2, 2)] * 4).filter(lambda m: m[0] * m[3] != m[1] * m[2])


def _total(product):
    total = Polynomial.constant(1, product[0][0].variables)
    for f, e in product:
        total = total * f**e
    return total


def _seen(K, **options):
    found = polynomial(K, local=True, **options)
    assert found.status == "exact"
    return found.value, found.multiplicity


@given(planar_products(), invertible)
@settings(max_examples=40)
def test_linear_changes_of_the_plane(product, m):
    images = [X * m[0] + Y * m[1], X * m[2] + Y * m[3]]
    moved = [(f.composed(images), e) for f, e in product]
    assert _seen(Formula(("x", "y"), (product,))) == _seen(_total(moved))


@given(planar_sums, st.integers(-2, 2), st.integers(2, 3), st.integers(1, 3))
@settings(max_examples=40)
def test_shears_and_scales_of_the_plane(generators, c, n, scale):
    total = Polynomial(("x", "y"), {})
    for g in generators:
        total = total + g * g
    expected = _seen(total)
    moved = total.composed([X * scale + Y**n * c, Y])
    assert _seen(moved) == expected
    assert _seen(total.composed([Y, X]) * Fraction(scale, 7)) == expected
    found = ideal(generators)
    assert (found.value, found.multiplicity) == expected


@given(planar_products(), st.integers(1, 2))
@settings(max_examples=30)
def test_powers_divide(product, s):
    base = polynomial(Formula(("x", "y"), (product,)))
    found = polynomial(Formula(("x", "y"), ([(f, s * e) for f, e in product],)))
    expected = power(base, s)
    assert (found.value, found.multiplicity) == (expected.value, expected.multiplicity)


@given(planar_products())
@settings(max_examples=30)
def test_one_more_square_adds_one_half(product):
    base = polynomial(Formula(("x", "y"), (product,)))
    names = ("x", "y", "z")
    lifted = [(Polynomial(names, {(*t, 0): c for t, c in f.terms.items()}), e) for f, e in product]
    square = [(Polynomial.unknowns(*names)[2], 2)]
    found = polynomial(Formula(names, (lifted, square)))
    half = polynomial("z**2")
    expected = sum_of(base, half)
    assert (found.status, found.value, found.multiplicity) == ("exact", expected.value, expected.multiplicity)
    found = polynomial(Formula(names, ([*lifted, *square],)))
    expected = product_of(base, half)
    assert (found.status, found.value, found.multiplicity) == ("exact", expected.value, expected.multiplicity)


@given(planar_products(), st.tuples(st.integers(0, 3), st.integers(0, 3)))
@settings(max_examples=60)
def test_the_certificate_and_the_resolution_agree(product, h):
    parts = squarefree(product, 2)
    vanishing = tuple((f, e) for f, e in parts.factors if not f.at_origin)
    assume(vanishing)
    parts = type(parts)(abs(parts.constant), parts.monomial, vanishing)
    newton = certify(parts, [1 + Fraction(entry) for entry in h])
    curve = resolve([(f.terms, e) for f, e in vanishing], parts.monomial, h)
    if newton.exact:
        assert newton.value == curve.value
        assert newton.multiplicity in (None, curve.multiplicity)
    else:
        assert newton.value >= curve.value


@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 3).filter(any), min_size=1, max_size=4),
    st.tuples(*[st.integers(0, 2)] * 3),
)
@settings(max_examples=40)
def test_sums_of_even_monomials_are_monomial_ideals(rows, h):
    names = ("x", "y", "z")
    expected = monomial_ideal(rows, h)
    total = Polynomial(names, {})
    for row in rows:
        total = total + Polynomial(names, {tuple(2 * entry for entry in row): 3})
    for K in (total, Formula(names, tuple([(Polynomial(names, {row: 1}), 2)] for row in rows))):
        found = polynomial(K, h=h)
        assert (found.status, found.value, found.multiplicity) == ("exact", expected.value, expected.multiplicity)


@given(st.lists(_spatial(), min_size=1, max_size=3), st.tuples(*[st.integers(-1, 1)] * 9), st.booleans())
@settings(max_examples=50, deadline=None)
def test_what_is_said_in_space_holds_in_all_coordinates(generators, m, as_product):
    x, y, z = Polynomial.unknowns("x", "y", "z")
    determinant = (
        m[0] * (m[4] * m[8] - m[5] * m[7]) - m[1] * (m[3] * m[8] - m[5] * m[6]) + m[2] * (m[3] * m[7] - m[4] * m[6])
    )
    assume(determinant)
    answers = []
    for images in ([x, y, z], [x * m[k] + y * m[k + 1] + z * m[k + 2] for k in (0, 3, 6)], [x + y * z, y, z]):
        moved = [g.composed(images) for g in generators]
        product = ([(g, 2) for g in moved],)
        answers.append(polynomial(Formula(("x", "y", "z"), product if as_product else tuple([(g, 2)] for g in moved))))
    assert max(found.bounds[0] for found in answers) <= min(found.bounds[1] for found in answers)
    known = {found.multiplicity for found in answers if found.status == "exact"} - {None}
    assert len(known) <= 1
    assert all(0 < found.bounds[1] <= Fraction(3, 2) for found in answers)


@given(_planar(4, 4))
@settings(max_examples=60, deadline=None)
def test_a_polynomial_of_any_sign_gets_a_proven_value_or_an_error(K):
    try:
        found = polynomial(K, local=True)
    except InputError as error:
        message = str(error)
        found = None
    if found is None:
        assert "negative" in message
        return
    assert found.status == "exact"
    squared = polynomial(Formula(("x", "y"), ([(K, 2)],)))
    assert (squared.value * 2, squared.multiplicity) == (found.value, found.multiplicity)
    near = [Fraction(a, 10**6) for a in (-7, -3, -1, 1, 2, 5)]
    assert all(K([a, b * 10**k]) >= 0 for a in near for b in near for k in (0, 3))


@given(st.text(max_size=30) | st.text("xy+-*/^() 0123456789.e", max_size=30))
@settings(max_examples=200)
def test_any_text_gives_a_polynomial_or_an_error(text):
    try:
        formula = parse(text)
    except InputError:
        return
    assert parse(str(formula.expanded()), formula.variables).expanded() == formula.expanded()


@given(planar_products())
@settings(max_examples=20)
def test_routes_agree_on_products(product):
    direct = of_product(squarefree(product, 2), [Fraction(0)] * 2) if any(not f.at_origin for f, _ in product) else None
    assume(direct is not None)
    assert (direct.value, direct.multiplicity) == _seen(_total(product))
