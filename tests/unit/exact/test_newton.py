"""Polynomials at a point: values with proof, honest bounds, and input that has no value."""

import time
from fractions import Fraction

import pytest

from crunode.errors import InputError
from crunode.exact.algebra.newton import ideal, polynomial
from crunode.exact.algebra.parse import parse
from crunode.exact.algebra.polynomials import Polynomial

EXACT = [
    ("x**2+y**2", None, 1, 1),
    ("x**2*y**4", [1, 0], "1/4", 1),
    ("x**2*y**2", [0, 0], "1/2", 2),
    ("(x-y)**2", None, "1/2", 1),
    ("(x*y*(x-y))**2", None, "1/3", 1),
    ("x**2*(y-1)**4", [0, 1], "1/4", 1),
    ("(x*y-1)**2", [1, 1], "1/2", 1),
    ("((x-1)*y)**2", [1, 0], "1/2", 2),
    ("(x**2+y**2-1)**2", ["3/5", "4/5"], "1/2", 1),
    ("(x-0.5)**2*y**4", [0.5, 0], "1/4", 1),
    ("x**2", [0, 0], "1/2", 1),
    ("y**2", [5, 0], "1/2", 1),
    ("x**2*y**2*z**2", None, "1/2", 3),
    ("x**6+x**2*y**2+y**6", None, "1/2", 2),
    ("x**4+y**4-2*x**2*y**2", None, "1/2", 2),
    ("(x-y)**2+z**2", None, 1, 1),
    ("(x*y-z)**2", None, "1/2", 1),
    ("(x+y+z)**2", None, "1/2", 1),
    ("(x*y+z)**2+z**2", None, 1, 2),
    ("(x-y)**4+(x+y+z)**4", None, "1/2", 1),
    ("(x*y-z*w)**2", None, "1/2", 1),
    ("(x*y)**2+(y*z)**2+(z*x)**2", None, "3/4", 1),
    ("(x**2+y**2-z**2)**2", None, "1/2", 1),
    ("(x**2+y**2+z**2)**2", None, "3/4", 1),
    ("(x**2-y**2*z)**2", None, "1/2", 2),
    ("x**2+x*y+y**2+z**4", None, "5/4", 1),
    ("x**2*y**2*z**2*(x-y)**2*(y-z)**2*(x-z)**2", None, "1/4", 1),
    ("(x-y**2)**2+(y-z**2)**2", None, 1, 1),
    ("(x**2+y**2)*(y**2+z**2)", None, "3/4", 1),
    ("(x*y-z**2)**2+x**4*y**2", None, "5/8", 1),
    ("(a*b+c*d+e*f+g*h)**2", None, "1/2", 1),
    ("(x+y+z+w+v)**8+x**2", None, "5/8", 1),
    ("x**4*y**2+x**2*y**4-3*x**2*y**2+1", [1, 1], 1, 1),
    ("(y**2+x**2*z)**2+y**4*x**2", None, "1/2", 2),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("text", "point", "value", "m"), EXACT)
def test_exact_values(text, point, value, m):
    found = polynomial(text, point)
    assert (found.status, found.value, found.multiplicity) == ("exact", Fraction(value), m)
    assert found.citation
    assert found.details


@pytest.mark.heavy
@pytest.mark.parametrize(("text", "point", "value", "m"), EXACT)
def test_the_way_it_is_written_does_not_matter(text, point, value, m):
    formula = parse(text)
    if point is not None and len(point) != len(formula.variables):
        formula = parse(text, ["x", "y"])
    found = polynomial(formula.expanded(), point)
    low, high = found.bounds
    assert low <= Fraction(value) <= high
    if len(formula.variables) <= 2:
        assert (found.status, found.multiplicity) == ("exact", m)


def test_what_has_no_certificate_is_an_upper_bound():
    # On the face itself the polynomial has singular zeros, at (±1, ±1, ±1).
    found = polynomial("x**4*y**2 + x**2*y**4 - 3*x**2*y**2*z**2 + z**6")
    assert found.status == "upper_bound"
    assert found.value == Fraction(1, 2)
    assert found.bounds[0] == Fraction(1, 6)
    assert found.multiplicity is None
    assert "not excluded" in " ".join(found.details["missing"])


def test_the_newton_value_of_a_degenerate_square_is_not_taken_for_exact():
    found = polynomial("x**2 - 2*x*y + y**2")
    assert found.value == Fraction(1, 2)
    assert polynomial("(x-y)**2*(1 + x)**2").value == Fraction(1, 2)


@pytest.mark.parametrize(
    ("text", "h", "point", "value", "m"),
    [
        ("x**2*y**2", [1, 0], None, "1/2", 1),
        ("x**2*y**2", [1, 0], [0, 1], 1, 1),
        # Away from x = 0 the weight |x|^h is positive.
        ("(x-1)**2*y**2", [7, 0], [1, 0], "1/2", 2),
        ("x**2+y**2", [1, 2], None, "5/2", 1),
        ("(x-y-z)**2", [1, 1, 1], None, "1/2", 1),
        ("(x-y)**2+z**2", [0, 0, 1], None, "3/2", 1),
    ],
)
def test_weights(text, h, point, value, m):
    found = polynomial(text, point, h)
    assert (found.status, found.value, found.multiplicity) == ("exact", Fraction(value), m)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "-x**2",
        "x**3",
        "x**2 - y**2",
        "x**2*y",
        "x**4 - x**2*y**2",
        "x**2 - x**3",
        "x**2 - y**3",
        "x**4 + y**4 - 3*x**2*y**2",
        "x**2 - 2*x*y**2 + y**4 - y**7",
        "x**2*y**2 - x**3*y**3*z",
        "x**2 + y**4 + z**6 + x*y*z",
        "(x-y)**2*(x+y)**3",
        "x**6 + y**6 + z**6 - 4*x**2*y**2*z**2",
        "(y**2 - 2*x**2)**2 - x**6",
        "(x**2 + y**2)**2*(x - 3*y)*(x - 4*y)",
    ],
)
def test_a_negative_value_is_shown(text):
    with pytest.raises(InputError, match="negative at") as caught:
        polynomial(text)
    where = str(caught.value).split("negative at ")[1].split(";")[0]
    values = dict(part.split(" = ") for part in where.split(", "))
    formula = parse(text)
    assert formula.expanded()([Fraction(values[name]) for name in formula.variables]) < 0


def test_values_far_away_can_be_left_out_of_account():
    assert polynomial("x**2/2 - x**4/24", local=True).value == Fraction(1, 2)
    with pytest.raises(InputError, match="negative"):
        polynomial("x**2/2 - x**4/24")
    with pytest.raises(InputError, match="negative"):
        polynomial("x**2 - y**3", local=True)


@pytest.mark.parametrize(
    ("K", "point", "message"),
    [
        ("0", None, "0 everywhere"),
        ("x - x", None, "0 everywhere"),
        ("(x*y - y*x)**2", None, "0 everywhere"),
        ("x**2 + 1", None, "to vanish"),
        ("x**2", [1], "to vanish"),
        ("(x**2-2)**2", ["1.4142"], "to vanish"),
        ("x**2 - 1", None, "to vanish"),
        ("7", None, "to vanish"),
        ("x**2 + y**2", [0], "coordinates"),
        ("x**2 + y**2", [0, 1, 2, 3], "coordinates"),
        ("a**2 + b**2", [1, 0, 0], "coordinates"),
        ("x**2", "0", "as a list"),
        ("x**2", 0, "as a list"),
        ("x**2", [None], "as numbers"),
        ("x**2", [True], "as numbers"),
        ("x**2", [float("nan")], "as numbers"),
        ("x**2", [float("inf")], "as numbers"),
        ("x**2", ["y"], "as numbers"),
        ("x**2", ["__import__('os')"], "expected"),
        ("sin(x)**2", None, "operator"),
        ("", None, "empty"),
        (None, None, "as text"),
        (3, None, "as text"),
    ],
)
def test_bad_input_raises(K, point, message):
    with pytest.raises(InputError, match=message):
        polynomial(K, point)


@pytest.mark.parametrize("h", [[0], [0, -1], [0, 0.5], "00", [0, True]])
def test_bad_weights_raise(h):
    with pytest.raises(InputError):
        polynomial("x**2*y**2", None, h)


def test_variables_fix_the_order():
    assert polynomial("x**2*y**4", [0, 1], variables=["y", "x"]).value == Fraction(1, 4)
    assert polynomial("x**2*y**4", [1, 0], variables=["y", "x"]).value == Fraction(1, 2)
    with pytest.raises(InputError):
        polynomial("x**2", variables=["y"])


def test_polynomials_are_taken_too():
    x, y = Polynomial.unknowns("x", "y")
    assert polynomial((x * x - y**3) ** 2).value == Fraction(5, 12)


def test_sympy_expressions_are_taken_too():
    sympy = pytest.importorskip("sympy")
    x, y = sympy.symbols("x y")
    assert polynomial((x**2 - y**3) ** 2).value == Fraction(5, 12)
    assert polynomial(sympy.expand((x - y) ** 2), [2, 2]).value == Fraction(1, 2)


@pytest.mark.parametrize(
    ("generators", "point", "value", "m"),
    [
        (["x*y", "y*z", "z*x"], None, "3/4", 1),
        (["x*y + z", "z"], None, 1, 2),
        (["x - 1", "y*(x-1) + z**2"], [1, 0, 0], "3/4", 1),
        (["x + y", "x - y", "x + 3*y"], None, 1, 1),
        (["x*(1 + y)", "y**3*(2 - x)"], None, "2/3", 1),
        (["x*z", "x + x**2 + z**2"], None, "2/3", 1),
        (["a*b + c*d", "a*c"], None, "3/4", 1),
        (["x**2 - y**3"], None, "5/12", 1),
        # 2x2 matrices of product zero at the origin: 3/2 for reduced rank regression with all sizes 2, rank 0
        (["a*p + b*r", "a*q + b*s", "c*p + d*r", "c*q + d*s"], None, None, None),
    ],
)
def test_ideals(generators, point, value, m):
    found = ideal(generators, point)
    if value is None:
        assert found.bounds[0] <= Fraction(3, 2) <= found.bounds[1]
    else:
        assert (found.status, found.value, found.multiplicity) == ("exact", Fraction(value), m)


@pytest.mark.parametrize("generators", [[], "x", None, ["x", "0*y + 1"], ["0"], ["x - x", "0"], [None]])
def test_bad_generators_raise(generators):
    with pytest.raises(InputError):
        ideal(generators)


@pytest.mark.parametrize(
    "text",
    [
        "+".join(f"x{i}**2*x{i + 1}**2" for i in range(30)),
        "+".join(f"(x{i}-x{i + 1})**2" for i in range(30)),
        "(" + "+".join(f"x{i}*y{i}" for i in range(12)) + ")**2",
        "(x+y+z)**20",
        "(x*y)**1000",
        "((y-x-x**2-x**3)**2-x**31)**2",
    ],
)
def test_large_ones_answer_at_once(text):
    start = time.process_time()
    assert polynomial(text).status == "exact"
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("text", "value", "m"),
    [
        ("(x**2+y**2)*(z**2+w**2)", 1, 2),
        ("(-x**2-y**2)*(-z**2-w**2)", 1, 2),
        ("(x**2-2*x*y+2*y**2)*z**2", "1/2", 1),
    ],
)
def test_factors_in_different_variables_may_both_be_negative(text, value, m):
    found = polynomial(text)
    assert (found.status, found.value, found.multiplicity) == ("exact", Fraction(value), m)


@pytest.mark.parametrize("text", ["-(x**2+y**2)*(z**2+w**2)", "(x**2+y**2)*(-z**2-w**2)", "-(x-y)**2*(z-w)**2"])
def test_a_product_that_is_negative_is_refused(text):
    with pytest.raises(InputError, match="negative"):
        polynomial(text)


@pytest.mark.parametrize(
    "text",
    ["(y - 3*x**2)**2 - x**9", "(7*y - 3*x**2)**2 - x**19", "(y**2 - 2*x**2)**2 - x**8", "(y - x/5)*(y - x/6)"],
)
def test_thin_negative_regions_are_shown_too(text):
    """Beside a parabola, and at irrational tangents, as close to the point as that."""
    with pytest.raises(InputError, match="negative at") as caught:
        polynomial(text, local=True)
    values = dict(part.split(" = ") for part in str(caught.value).split("negative at ")[1].split(";")[0].split(", "))
    assert parse(text).expanded()([Fraction(values["x"]), Fraction(values["y"])]) < 0
