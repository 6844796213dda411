"""Volume scaling against exact learning coefficients, in value and multiplicity, within the stated error."""

import warnings
from fractions import Fraction

import pytest
import torch

import crunode as cr

QUICK = {"levels": 72, "particles": 400, "replicas": 16, "moves": 16}
# Potential, dimension, λ, m.
CASES = {
    "x^2+y^2": (lambda w: w.square().sum(1), 2, Fraction(1), 1),
    "x^4+y^4": (lambda w: (w**4).sum(1), 2, Fraction(1, 2), 1),
    "x^2y^2": (lambda w: w.prod(1) ** 2, 2, Fraction(1, 2), 2),
    "x^2y^4": (lambda w: w[:, 0] ** 2 * w[:, 1] ** 4, 2, Fraction(1, 4), 1),
    "x^2y^2z^2": (lambda w: w.prod(1) ** 2, 3, Fraction(1, 2), 3),
    "(xy(x-y))^2": (lambda w: (w.prod(1) * (w[:, 0] - w[:, 1])) ** 2, 2, Fraction(1, 3), 1),
    "xy, yz, zx": (lambda w: (w * w.roll(1, 1)).square().sum(1), 3, Fraction(3, 4), 1),
    "x^2+y^2z^2": (lambda w: w[:, 0] ** 2 + w[:, 1:].prod(1) ** 2, 3, Fraction(1), 2),
    "x^6+x^2y^2+y^6": (lambda w: (w**6).sum(1) + w.prod(1) ** 2, 2, Fraction(1, 2), 2),
    "x^2y^2+z^2w^2": (lambda w: w[:, :2].prod(1) ** 2 + w[:, 2:].prod(1) ** 2, 4, Fraction(1), 3),
}


@pytest.mark.parametrize("name", CASES)
def test_volumes_agree_with_the_exact_value(name):
    potential, dim, exact, multiplicity = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        found = cr.volume_scaling(potential, torch.zeros(dim), seed=1, **QUICK)
    assert found.ok
    assert found.error < 0.06 * exact
    assert abs(found.value - exact) < 3 * found.error
    assert found.diagnostics["weights"][str(multiplicity)] > 0.2
    decided = "VOL602" not in {f.code for f in found.findings}
    assert not decided or found.diagnostics["multiplicity"] == multiplicity
