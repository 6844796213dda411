"""Exact values against quadrature of the volume {K < t}, and the linear program against scipy."""

import json
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from crunode.exact.algebra.ideals import monomial_ideal
from crunode.exact.algebra.newton import polynomial
from crunode.exact.algebra.parse import parse


def _volumes(text, levels, reach, points=240):
    """Vol{K < t} in the square |x|, |y| < reach: on every line x = c the set is found from the roots of K − t in y."""
    terms = {e: float(c) for e, c in parse(text, ["x", "y"]).expanded().terms.items()}
    degree = max(j for _, j in terms)
    grid = np.logspace(-10, math.log10(reach), points)
    edges = np.concatenate([-grid[::-1], grid])
    found = np.zeros(len(levels))
    for x, width in zip((edges[1:] + edges[:-1]) / 2, np.diff(edges), strict=True):
        line = np.zeros(degree + 1)
        for (i, j), c in terms.items():
            line[degree - j] += c * x**i
        for k, level in enumerate(levels):
            shifted = line.copy()
            shifted[-1] -= level
            roots = np.roots(shifted)
            real = roots[np.abs(roots.imag) < 1e-9 * np.abs(roots)].real
            cuts = np.sort(np.concatenate([[-reach], real[np.abs(real) < reach], [reach]]))
            below = np.polyval(shifted, (cuts[1:] + cuts[:-1]) / 2) < 0
            found[k] += width * np.diff(cuts)[below].sum()
    return found


CURVES = [
    ("x**2 + y**2", 0.01),
    ("x**4 + y**4", 0.02),
    ("(x - y)**2", 0.01),
    ("x**2*y**2", 0.02),
    ("x**2*y**4", 0.02),
    ("(x**2 - y**3)**2", 0.03),
    ("(x*y*(x - y))**2", 0.03),
    ("((y - x**2)**2 - x**5)**2", 0.03),
    ("(x**2 + y**2)**2", 0.02),
    ("(y**2 - 2*x**2)**2", 0.02),
    ("(x - y)**4*(x + y)**2", 0.02),
    ("x**6 + x**2*y**2 + y**6", 0.02),
    ("(y - x**2)**2 + x**6", 0.02),
    ("((y - x)**2 - x**3)**2", 0.03),
    ("(x**2 + y**2)*(x - y)**2", 0.02),
    ("x**2*(x - y**2)**2", 0.03),
]


@pytest.mark.parametrize(("text", "tolerance"), CURVES)
def test_volumes_scale_with_the_exact_exponents(text, tolerance):
    found = polynomial(text)
    assert found.status == "exact"
    levels = np.logspace(-5, -9, 5)
    volumes = _volumes(text, levels, 0.5)
    # V = c t^λ (−log t + b)^(m−1): the slope of log V is λ − (m − 1)/(−log t + b), with b of order one.
    slope = np.polyfit(np.log(levels[2:]), np.log(volumes[2:]), 1)[0]
    logs = -np.log(levels[2:]).mean()
    assert slope + (found.multiplicity - 1) / logs == pytest.approx(float(found.value), abs=tolerance)
    # t^−λ V grows by equal steps per decade for m = 2. For m = 1 it tends to a constant, with steps that shrink by the
    # factor 10^−δ, δ the gap to the next exponent: for two decades 10^(−1/6) = 0.68 at the smallest gap here, 1/12.
    scaled = volumes / levels ** float(found.value)
    growth, later = (scaled[4] - scaled[0]) / scaled[4], (scaled[4] - scaled[2]) / (scaled[2] - scaled[0])
    if found.multiplicity == 2:
        assert growth > 0.3
        assert 0.95 < later < 1.05
    else:
        assert abs(growth) < 0.05 or later < 0.85


def test_the_linear_program_agrees_with_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    source = random.Random(7)
    for size, count in [(3, 5), (5, 12), (8, 20), (12, 40), (20, 60)] * 4:
        rows = [[source.choice([0, 0, 1, 2, 5]) for _ in range(size)] for _ in range(count)]
        rows = [row for row in rows if any(row)]
        h = [source.randint(0, 3) for _ in range(size)]
        found = monomial_ideal(rows, h)
        expected = optimize.linprog(
            [entry + 1 for entry in h], A_ub=-np.array(rows), b_ub=-np.ones(len(rows)), bounds=(0, None), method="highs"
        )
        assert float(found.value) == pytest.approx(expected.fun / 2, rel=1e-9)
        # m − 1 is the dimension of the optimal face: as many independent directions as keep it, found by programs too.
        assert found.multiplicity - 1 == _optimal_dimension(optimize, rows, h, expected.fun)


def _optimal_dimension(optimize, rows, h, best):
    """The rank of the optimal points that random objectives pick out of the optimal face."""
    source = np.random.default_rng(0)
    size = len(h)
    picked = []
    for _ in range(3 * size):
        answer = optimize.linprog(
            source.normal(size=size),
            A_ub=np.vstack([-np.array(rows, float), [[entry + 1 for entry in h]]]),
            b_ub=np.concatenate([-np.ones(len(rows)), [best + 1e-10]]),
            bounds=(0, None),
            method="highs",
        )
        picked.append(answer.x)
    return int(np.linalg.matrix_rank(np.array(picked) - picked[0], tol=1e-5))


def test_the_square_of_a_real_cone_by_its_radial_volume():
    # {(x² + y² − z²)² < t}: along rays at angle θ from the cone the radius is √t / |cos 2θ|, cut off at 1.
    found = polynomial("(x**2 + y**2 - z**2)**2")
    angles = np.linspace(1e-7, math.pi / 2 - 1e-7, 2_000_001)
    levels = np.logspace(-5, -8, 4)
    volumes = []
    for level in levels:
        radius = np.minimum(1, (math.sqrt(level) / np.abs(np.cos(2 * angles))) ** 0.5)
        volumes.append(np.mean(radius**3 * np.sin(angles)))
    slope = np.polyfit(np.log(levels), np.log(volumes), 1)[0]
    assert slope == pytest.approx(float(found.value), abs=0.01)
    assert found.value == Fraction(1, 2)


def test_details_are_plain_data():
    for text, _ in CURVES:
        assert json.loads(json.dumps(polynomial(text).to_dict()))["status"] == "exact"
    assert json.dumps(polynomial("x**4*y**2 + x**2*y**4 - 3*x**2*y**2*z**2 + z**6").to_dict())
