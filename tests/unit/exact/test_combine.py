"""Sums, products, powers and strata, with bounds carried along."""

from fractions import Fraction

import pytest

from crunode.errors import InputError
from crunode.exact.combine import power, product_of, strata, sum_of
from crunode.exact.result import LearningCoefficient

HALF = LearningCoefficient.exact(Fraction(1, 2), 2, citation="A")
ONE = LearningCoefficient.exact(1, 1, citation="B")
MOST = LearningCoefficient.at_most(Fraction(3, 4), low=Fraction(1, 4), citation="C", hypotheses=("c",))
BETWEEN = LearningCoefficient.interval(Fraction(2, 3), 2, citation="D")
ASSUMED = LearningCoefficient.exact(Fraction(1, 2), 1, citation="E", conditional=True, hypotheses=("e",))
OPEN = LearningCoefficient.exact(Fraction(1, 2), None, citation="F")


def _seen(found):
    return found.status, found.bounds, found.multiplicity


def test_exact_parts():
    assert _seen(sum_of(HALF, ONE, HALF)) == ("exact", (2, 2), 3)
    assert _seen(product_of(HALF, ONE, HALF)) == ("exact", (Fraction(1, 2), Fraction(1, 2)), 4)
    assert _seen(strata(HALF, ONE, ASSUMED))[2] == 2
    assert _seen(power(HALF, 3)) == ("exact", (Fraction(1, 6), Fraction(1, 6)), 2)
    assert sum_of(HALF, ONE).citation == "A; B"


def test_bounds_and_hypotheses_carry_over():
    assert _seen(sum_of(ONE, MOST)) == ("upper_bound", (Fraction(5, 4), Fraction(7, 4)), None)
    assert sum_of(ONE, MOST).hypotheses == ("c",)
    assert _seen(sum_of(MOST, BETWEEN))[0] == "interval"
    assert _seen(sum_of(ONE, ASSUMED)) == ("conditional", (Fraction(3, 2), Fraction(3, 2)), 1)
    assert _seen(power(MOST, Fraction(1, 2))) == ("upper_bound", (Fraction(1, 2), Fraction(3, 2)), None)
    assert _seen(product_of(ONE, MOST)) == ("upper_bound", (Fraction(1, 4), Fraction(3, 4)), None)


def test_a_part_that_cannot_be_the_least_has_no_say():
    assert _seen(product_of(HALF, BETWEEN)) == ("exact", (Fraction(1, 2), Fraction(1, 2)), 2)
    assert _seen(strata(HALF, BETWEEN)) == ("exact", (Fraction(1, 2), Fraction(1, 2)), 2)


def test_an_unknown_multiplicity_stays_unknown_where_it_matters():
    assert sum_of(OPEN, ONE).multiplicity is None
    assert product_of(OPEN, HALF).multiplicity is None
    assert product_of(OPEN, LearningCoefficient.exact(Fraction(1, 3), 1, citation="")).multiplicity == 1


@pytest.mark.parametrize("call", [sum_of, product_of, strata])
def test_bad_parts_raise(call):
    with pytest.raises(InputError):
        call()
    with pytest.raises(InputError):
        call(HALF, Fraction(1, 2))


@pytest.mark.parametrize("exponent", [0, -1, True, 0.5, "2", None])
def test_bad_powers_raise(exponent):
    with pytest.raises(InputError):
        power(HALF, exponent)


@pytest.mark.parametrize(("part", "status"), [(HALF, "conditional"), (MOST, "upper_bound"), (BETWEEN, "interval")])
def test_whatever_is_known_says_where_it_is_from(part, status):
    found = sum_of(part, ASSUMED)
    assert found.status == status
    assert "e" in found.hypotheses
    assert all(isinstance(line, str) and len(line) == 1 for line in found.hypotheses)
    assert found.citation == f"{part.citation}; E"
    assert found.details["route"] == "sum of functions in different variables"
    assert found.details["parts"][1] == ASSUMED.to_dict()


def test_citations_are_named_once():
    assert sum_of(sum_of(HALF, ONE), HALF).citation == "A; B"
    assert product_of(HALF, ONE).details["route"] == "product of functions in different variables"
    assert strata(HALF, ONE).details["route"] == "least over the strata"
    assert power(HALF, 2).details["route"] == "power of a function"
