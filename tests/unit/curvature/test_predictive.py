"""Roots, slopes and drawn labels of predictive distributions against their second derivatives."""

import math

import pytest
import torch

from crunode.curvature.predictive import Predictive

OUTPUTS = torch.tensor([[0.3, -1.0, 2.0], [4.0, 0.0, -3.0], [0.0, 0.0, 0.0], [-9.0, 1.0, 1.0]], dtype=torch.float64)


def hessian(kind, mean, row):
    """Of the loss of one example, in its outputs."""
    p = row.sigmoid()
    whole = {
        "categorical": torch.diag(row.softmax(0)) - torch.outer(row.softmax(0), row.softmax(0)),
        "bernoulli": torch.diag(p * (1 - p)),
        "gaussian": torch.eye(3, dtype=torch.float64),
    }[kind]
    if not mean or kind == "categorical":
        return whole
    return whole * (2 / 3 if kind == "gaussian" else 1 / 3)  # the mean of squares has no half


KINDS = [(kind, mean) for kind in ("categorical", "bernoulli", "gaussian") for mean in (False, True)]


@pytest.mark.parametrize(("kind", "mean"), KINDS)
def test_roots_are_roots_of_second_derivatives_and_whiten_slopes(kind, mean):
    model = Predictive(kind, mean)
    roots = model.root(OUTPUTS)
    slopes = torch.tensor([[0.5, -0.2, -0.3], [-1.0, 0.4, 0.6], [0.1, 0.1, -0.2], [0.3, 0.1, -0.4]]).double()
    slopes -= slopes.mean(1, keepdim=True)  # slopes of a softmax sum to zero
    white = model.whitened(OUTPUTS, slopes)
    for root, row, slope, found in zip(roots, OUTPUTS, slopes, white, strict=True):
        torch.testing.assert_close(root @ root.T, hessian(kind, mean, row))
        torch.testing.assert_close(root @ found, slope)
    shaped = model.whitened(OUTPUTS, slopes.clone()) if kind == "categorical" else None
    assert shaped is None or torch.equal(shaped, white)


@pytest.mark.parametrize(("kind", "mean"), KINDS)
def test_slopes_of_drawn_labels_have_the_second_derivative_as_covariance(kind, mean):
    model, chance = Predictive(kind, mean), torch.Generator().manual_seed(0)
    row, many = OUTPUTS[:1], 40_000
    drawn = model.drawn(row.expand(many, -1), chance)
    assert drawn.shape == (many, 3)
    want = hessian(kind, mean, row[0])
    # Means and products of 40 000 draws: five standard errors of numbers of size 1.
    assert float(drawn.mean(0).abs().max()) < 5 / math.sqrt(many)
    assert float((drawn.T @ drawn / many - want).abs().max()) < 8 / math.sqrt(many)
    if kind == "categorical":
        p = row[0].softmax(0)
        labels = (p - drawn).argmax(1)
        torch.testing.assert_close(drawn[:50], p - torch.nn.functional.one_hot(labels, 3)[:50].double())


def test_surprises_are_chances_of_labels_that_are_not_the_likeliest():
    p = OUTPUTS.softmax(1)
    assert Predictive("categorical", False).surprises(OUTPUTS) == pytest.approx(float((1 - p.amax(1)).sum()))
    s = OUTPUTS.sigmoid()
    expected = float(torch.minimum(s, 1 - s).sum())
    assert Predictive("bernoulli", False).surprises(OUTPUTS) == pytest.approx(expected)
    assert Predictive("gaussian", False).surprises(OUTPUTS) == math.inf
