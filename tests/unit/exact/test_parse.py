"""Text to polynomials: what is read, and that nothing else is."""

import time
from fractions import Fraction

import pytest

from crunode.errors import InputError
from crunode.exact.algebra.parse import parse, read
from crunode.exact.algebra.polynomials import Polynomial


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x**2 + y**2", "x**2 + y**2"),
        ("(x^2-y^3)^2", "y**6 - 2*x**2*y**3 + x**4"),
        ("x^2^3", "x**8"),
        ("-x**2", "-x**2"),
        ("2*-x + +y", "-2*x + y"),
        ("--x", "x"),
        ("1/2*x - x/4", "1/4*x"),
        ("0.25*x + 1e-1*y + .5", "1/4*x + 1/10*y + 1/2"),
        ("x**(1+1)*3", "3*x**2"),
        ("(x+y)*(x-y)/(1+1)", "1/2*x**2 - 1/2*y**2"),
        ("x**0", "1"),
        ("(x - x)**2", "0"),
        (" x\n+\ty ", "x + y"),
    ],
)
def test_reads(text, expected):
    assert str(parse(text).expanded()) == expected


def test_names_come_in_natural_order_unless_given():
    assert parse("x10*b + x2").variables == ("b", "x2", "x10")
    assert parse("y", ["x", "y"]).expanded().terms == {(0, 1): 1}
    with pytest.raises(InputError, match="got also z"):
        parse("z", ["x", "y"])
    with pytest.raises(InputError):
        parse("x", ["x", "x"])
    with pytest.raises(InputError):
        parse("x", "x")


def test_products_and_powers_stay_as_written():
    formula = parse("(x-y)**4*(x+y)**2 + x**2")
    assert [[e for _, e in product] for product in formula.addends] == [[4, 2], [1]]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "__import__('os').system('true')",
        "__class__",
        "().__class__",
        "exec('1')",
        "lambda: 1",
        "x.real",
        "x[0]",
        "x; y",
        "x == y",
        "x if y else z",
        "9**9**9",
        "x**9**9**9",
        "(x+1)**99999",
        "((x+y)**100)**100",
        "(9**2000)**2000",
        "*".join(["9**2000"] * 500),
        "(x+y+z+w)**500",
        "(x+y)**500*(z+w)**500",
        "(" * 10**6,
        "(" * 9000,
        "(" * 100 + "x" + ")" * 100,
        "x**" * 3000 + "2",
        "x" * 20_000,
        "x y",
        "2x",
        "x(y)",
        "(x)(y)",
        "x²",
        "х + 1",
        "𝐱",
        "x\u200b + y",
        "x\x00",
        "x/0",
        "x/y",
        "x/(y-y)",
        "1/(x-x+2*x)",
        "2**x",
        "x**-1",
        "x**0.5",
        "x**(1/2)",
        "x**y",
        "1e99999999",
        "1" * 5000,
        "1__0",
        "0x10",
        "(x",
        "x)",
        "()",
        "x +",
        "* x",
        "x ** ** 2",
        "nan*'x'",
        "+".join(f"x{k}" for k in range(80)),
    ],
)
def test_all_else_is_refused_quickly(text):
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        parse(text).expanded()
    assert time.process_time() - start < 1
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [None, 3, 2.5, b"x", ["x"], True, object()])
def test_other_types_are_refused(value):
    with pytest.raises(InputError, match="as text"):
        read(value)


def test_long_chains_of_signs_and_terms_are_no_nesting():
    assert str(parse("-" * 9000 + "x").expanded()) == "x"
    assert parse("+".join(["x"] * 4000)).expanded().terms == {(1,): 4000}
    assert parse("*".join(["x"] * 1000)).expanded().terms == {(1000,): 1}


def test_polynomials_pass_through_in_the_wanted_order():
    x, y = Polynomial.unknowns("x", "y")
    assert read(x * 2 + y, ["y", "z", "x"]).expanded().terms == {(0, 0, 1): 2, (1, 0, 0): 1}
    assert read(x - x).addends == ()


def test_sympy_expressions_are_read_by_their_text():
    sympy = pytest.importorskip("sympy")
    x, y = sympy.symbols("x y")
    assert read((x**2 - y) ** 2 / 3).expanded() == parse("(x**2-y)**2/3").expanded()
    with pytest.raises(InputError):
        read(sympy.sin(x))
    with pytest.raises(InputError):
        read(sympy.sqrt(x))


def test_numbers_are_exact():
    assert parse("0.1*x").expanded().terms == {(1,): Fraction(1, 10)}
