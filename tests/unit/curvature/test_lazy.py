"""Exponents by lines through logarithms, and distances from a linearization in closed form."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import crunode as cr
from crunode.curvature.lazy import gradient_change_bound, linearization_error, width_exponent
from crunode.errors import InputError


def around(width, means, rng, spread, count=6):
    """Values whose logarithms have exactly these means, and a known scatter."""
    noise = rng.normal(size=count)
    return np.exp(means + spread * (noise - noise.mean()) / noise.std(ddof=1))


def test_an_exponent_is_that_of_weighted_least_squares():
    rng = np.random.default_rng(0)
    widths = [32, 64, 128, 256, 512]
    heights, spreads = -0.5 * np.log(widths) + [0.01, -0.02, 0.0, 0.02, -0.01], [0.1, 0.2, 0.1, 0.3, 0.1]
    values = {p: around(p, y, rng, s) for p, y, s in zip(widths, heights, spreads, strict=True)}
    found = width_exponent(values)
    errors = np.array(spreads) / math.sqrt(6)
    line, covariance = np.polyfit(np.log(widths), heights, 1, w=1 / errors, cov="unscaled")
    assert found.value == pytest.approx(line[0])
    assert found.se == pytest.approx(math.sqrt(covariance[0, 0]))
    seen = found.diagnostics
    assert seen["widths"] == widths
    assert seen["log_means"] == pytest.approx(heights.tolist())
    assert seen["log_errors"] == pytest.approx(errors.tolist())
    assert seen["chi2"] == pytest.approx((((heights - np.polyval(line, np.log(widths))) / errors) ** 2).sum())
    half = np.polyfit(np.log(widths[2:]), heights[2:], 1, w=1 / errors[2:])[0]
    assert seen["wider_half"] == pytest.approx(half)
    assert found.systematic == pytest.approx(abs(half - line[0])) == found.terms["wider half"]
    assert not found.findings


def test_scatter_beyond_the_errors_widens_them_and_is_reported():
    rng = np.random.default_rng(1)
    widths = [16, 32, 64, 128, 256, 512]
    heights = -0.5 * np.log(widths) + np.array([1, -1, 1, -1, 1, -1]) * 0.3
    values = {p: around(p, y, rng, 0.05) for p, y in zip(widths, heights, strict=True)}
    found = width_exponent(values)
    plain = np.polyfit(np.log(widths), heights, 1, cov=True)[1][0, 0]
    assert found.se == pytest.approx(math.sqrt(plain))
    assert [f.code for f in found.findings] == ["CURV845"]
    # χ² is doubted from four standard deviations above its mean.
    for chi2, codes in ((14.0, []), (17.0, ["CURV845"])):
        size = math.sqrt(chi2 / (6 - 9 / 17.5))  # less what the line takes of the zigzag
        near, heights = {}, []
        for p, sign in zip(widths, (1, -1) * 3, strict=True):
            heights.append(-0.5 * math.log(p) + sign * size * 0.1 / math.sqrt(6))
            near[p] = around(p, heights[-1], rng, 0.1)
        rest = np.array(heights) - np.polyval(np.polyfit(np.log(widths), heights, 1), np.log(widths))
        found = width_exponent(near)
        assert found.diagnostics["chi2"] == pytest.approx(6 * (rest**2).sum() / 0.01)
        assert [f.code for f in found.findings] == codes, found.diagnostics["chi2"]


def test_single_values_are_weighed_alike():
    widths = [10, 20, 40, 80]
    heights = np.array([0.1, -0.3, -0.2, -0.9])
    found = width_exponent({p: [math.exp(y)] for p, y in zip(widths, heights, strict=True)})
    line = stats.linregress(np.log(widths), heights)
    assert (found.value, found.se) == (pytest.approx(line.slope), pytest.approx(line.stderr))
    assert found.diagnostics["wider_half"] == pytest.approx((heights[3] - heights[2]) / math.log(2))
    assert found.diagnostics["log_errors"] == [0.0] * 4
    mixed = width_exponent({10: [1.0, 1.1], 20: [0.9], 40: [0.7, 0.8]})  # one error is not known: none counts
    assert mixed.diagnostics["log_errors"] == [0.0] * 3
    three = width_exponent({1: [2.0], 2: [1.0], 4: [0.5]})
    assert three.value == pytest.approx(-1)
    assert three.systematic == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [math.inf], [math.nan], [1.0, 0.0]])
def test_widths_without_positive_values_are_refused(bad):
    with pytest.raises(InputError, match="positive and finite"):
        width_exponent({1: [1.0], 2: bad, 4: [1.0]})
    with pytest.raises(InputError, match="three positive widths"):
        width_exponent({1: [1.0], 2: [1.0]})
    with pytest.raises(InputError, match="three positive widths"):
        width_exponent({0: [1.0], 1: [1.0], 2: [1.0]})


def test_the_bound_of_a_change_of_gradients_grows_with_the_fourth_power_of_inputs():
    x = torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.5, 0.0]], dtype=torch.float64)
    found = gradient_change_bound(x, width=50, bend=3.0, distance=0.4)
    assert found.tolist() == pytest.approx([81 * 9 * 0.16 / 50, 0.5**4 * 9 * 0.16 / 50])
    for settings in ((0, 1.0, 1.0), (5, 0.0, 1.0), (5, 1.0, -1.0), (5, math.inf, 1.0)):
        with pytest.raises(InputError):
            gradient_change_bound(x, *settings)
    assert gradient_change_bound(x, 1, 1.0, 0.0).tolist() == [0.0, 0.0]


class Square(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))

    def forward(self, x):
        return (self.w**2 * x).sum(1, keepdim=True)


def test_the_error_of_a_linearization_is_the_part_of_second_order():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    land = cr.Landscape(Square(), (x, x[:, :1]), "gaussian")
    to = torch.tensor([1.3, -1.4], dtype=torch.float64)
    found = linearization_error(land, to)
    off = x.numpy() @ [0.09, 0.16]
    moved = x.numpy() @ [1.3**2 - 1, 1.4**2 - 1]
    assert found.value == pytest.approx(math.sqrt((off**2).mean()))
    assert found.diagnostics["relative"] == pytest.approx(np.linalg.norm(off) / np.linalg.norm(moved))
    assert found.diagnostics["largest"] == pytest.approx(off.max())
    assert found.diagnostics["distance"] == pytest.approx(0.5)
    assert linearization_error(land, land.center).diagnostics["relative"] == 0


def test_how_lazy_training_was_is_said_in_six_numbers():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    land = cr.Landscape(Square(), (x, x[:, :1]), "gaussian")
    found = cr.curvature.lazy_diagnostics(land, torch.tensor([1.3, -1.4], dtype=torch.float64))
    before, after = (2 * x.numpy() * w for w in ([1.0, -1.0], [1.3, -1.4]))
    change = np.linalg.norm(after @ after.T - before @ before.T) / np.linalg.norm(before @ before.T)
    assert found.kernel_change.value == pytest.approx(change)
    assert found.relative_error.value == pytest.approx(found.error.diagnostics["relative"])
    assert found.distance.value == pytest.approx(0.5)
    assert found.per_coordinate.value == pytest.approx(math.sqrt(0.125))
    assert found.largest.value == pytest.approx(0.4)
    assert [f.code for f in found.findings] == ["CURV844"]
    near = cr.curvature.lazy_diagnostics(land, torch.tensor([1.01, -1.01], dtype=torch.float64))
    assert not near.findings
