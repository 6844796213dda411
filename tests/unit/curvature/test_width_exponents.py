"""Exponents by weighted least squares, and what is said of lazy training and of steps, in closed form."""

import numpy as np
import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.gauss_newton import gauss_newton_step, linearized_descent
from crunode.curvature.lazy import gradient_change_bound, lazy_diagnostics, linearization_error, width_exponent
from crunode.errors import InputError

WIDTHS = (16, 64, 128, 512, 1024)


def noisy(count=6, seed=0):
    rng = np.random.default_rng(seed)
    return {p: p**-0.7 * np.exp((0.1 + 0.03 * k) * rng.standard_normal(count)) for k, p in enumerate(WIDTHS)}


def fitted(values):
    """Slope, its error for known errors, and χ² by the normal equations."""
    x = np.log(sorted(values))
    logs = [np.log(values[p]) for p in sorted(values)]
    y, se = np.array([v.mean() for v in logs]), np.array([v.std(ddof=1) / np.sqrt(len(v)) for v in logs])
    design = np.column_stack([x, np.ones_like(x)]) / se[:, None]
    found = np.linalg.lstsq(design, y / se, rcond=None)[0]
    chi2 = ((design @ found - y / se) ** 2).sum()
    return found[0], np.sqrt(np.linalg.inv(design.T @ design)[0, 0]), chi2, y, se


def test_an_exponent_is_the_slope_of_weighted_least_squares():
    values = noisy()
    slope, error, chi2, y, se = fitted(values)
    found = width_exponent(values, "rate")
    assert (found.name, found.value) == ("rate", pytest.approx(slope))
    assert found.se == pytest.approx(error * max(1.0, np.sqrt(chi2 / 3)))
    shown = found.diagnostics
    assert shown["widths"] == found.spec["widths"] == list(WIDTHS)
    assert shown["log_means"] == pytest.approx(y.tolist())
    assert shown["log_errors"] == pytest.approx(se.tolist())
    assert shown["chi2"] == pytest.approx(chi2)
    wide = fitted({p: values[p] for p in WIDTHS[2:]})[0]
    assert shown["wider_half"] == pytest.approx(wide)
    assert found.systematic == found.terms["wider half"] == pytest.approx(abs(wide - slope))
    assert found.findings == ()


def test_more_scatter_than_the_errors_explain_raises_the_error():
    values = {p: v * np.exp(0.5 * (-1) ** k) for k, (p, v) in enumerate(noisy(40).items())}
    slope, error, chi2, *_ = fitted(values)
    found = width_exponent(values)
    assert chi2 > 3 + 4 * np.sqrt(6)
    assert (found.value, found.se) == (pytest.approx(slope), pytest.approx(error * np.sqrt(chi2 / 3)))
    assert [f.code for f in found.findings] == ["CURV845"]


def test_a_little_more_scatter_than_the_errors_explain_is_not_told():
    told = []
    for size in np.linspace(0.0, 0.5, 26):
        values = {p: v * np.exp(size * (-1) ** k) for k, (p, v) in enumerate(noisy(40).items())}
        told.append((fitted(values)[2] > 3 + 4 * np.sqrt(6), len(width_exponent(values).findings) == 1))
    assert all(one == other for one, other in told)
    assert 0 < sum(one for one, _ in told) < 26


def test_single_values_are_weighed_alike_and_their_scatter_is_the_error():
    rng = np.random.default_rng(1)
    x, y = np.log(WIDTHS), -0.5 * np.log(WIDTHS) + 0.1 * rng.standard_normal(5)
    found = width_exponent({p: [float(np.exp(v))] for p, v in zip(WIDTHS, y, strict=True)})
    slope, level = np.polyfit(x, y, 1)
    left = y - level - slope * x
    assert found.value == pytest.approx(slope)
    assert found.se == pytest.approx(np.sqrt(left @ left / 3 / ((x - x.mean()) ** 2).sum()))
    assert (found.diagnostics["log_errors"], found.findings) == ([0.0] * 5, ())
    assert found.diagnostics["wider_half"] == pytest.approx(np.polyfit(x[2:], y[2:], 1)[0])
    mixed = noisy()
    mixed[64] = mixed[64][:1]  # one width with a single value: no error of it is known
    assert width_exponent(mixed).diagnostics["log_errors"] == [0.0] * 5


def test_three_widths_are_enough_and_a_line_has_no_error():
    found = width_exponent({p: [3.0 * p**-1.25] * 2 for p in (1, 4, 16)})
    assert found.value == pytest.approx(-1.25)
    assert found.error < 1e-9
    assert found.diagnostics["wider_half"] == pytest.approx(-1.25)


@pytest.mark.parametrize(
    "values",
    [
        {1: [1.0], 2: [1.0]},
        {0: [1.0], 2: [1.0], 4: [1.0]},
        {1: [], 2: [1.0], 4: [1.0]},
        {1: [0.0], 2: [1.0], 4: [1.0]},
        {1: [np.inf], 2: [1.0], 4: [1.0]},
        {1: [-1.0], 2: [1.0], 4: [1.0]},
    ],
)
def test_values_without_a_logarithm_and_too_few_widths_are_refused(values):
    with pytest.raises(InputError):
        width_exponent(values)


def test_the_bound_of_a_gradient_change_in_closed_form():
    x = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    found = gradient_change_bound(x, width=8, bend=3.0, distance=0.5)
    assert found.tolist() == pytest.approx([625 * 9 * 0.25 / 8, 9 * 0.25 / 8])
    assert gradient_change_bound(x, 1, 1.0, 0.0).tolist() == [0.0, 0.0]
    for width, bend, distance in ((0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, -0.1), (1, np.inf, 1.0), (1, 1.0, np.inf)):
        with pytest.raises(InputError):
            gradient_change_bound(x, width, bend, distance)
    with pytest.raises(InputError):
        gradient_change_bound(x[0], 1, 1.0, 1.0)


class Square(nn.Module):
    """w² x: the linearization misses (θ − θ0)² x of ((θ − θ0)² + 2 θ0 (θ − θ0)) x, and K = 4 w² x²."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x):
        return self.w**2 * x


def square(scale=1.0):
    x = torch.tensor([[1.0], [2.0], [-2.0]], dtype=torch.float64)
    return cr.Landscape(Square(), (scale * x, torch.zeros(3, 1, dtype=torch.float64)), "gaussian")


@pytest.mark.parametrize("step", [0.02, 0.04, 0.06, 0.3, -0.3])
def test_laziness_of_a_square_in_closed_form(step):
    found = lazy_diagnostics(square(), torch.tensor([1 + step], dtype=torch.float64))
    missed, change = abs(step / (2 + step)), abs((1 + step) ** 2 - 1)
    assert found.error.value == pytest.approx(step**2 * np.sqrt(3))
    assert found.relative_error.value == found.error.diagnostics["relative"] == pytest.approx(missed)
    assert found.kernel_change.value == pytest.approx(change)
    assert found.error.diagnostics["largest"] == pytest.approx(2 * step**2)
    assert found.distance.value == found.error.diagnostics["distance"] == pytest.approx(abs(step))
    assert found.per_coordinate.value == found.largest.value == pytest.approx(abs(step))
    names = (found.error, found.relative_error, found.kernel_change, found.distance, found.per_coordinate)
    assert len({one.name for one in names}) == 5
    # More than a tenth is not lazy.
    codes = ["CURV844"] if max(missed, change) > 0.1 else []
    assert [[f.code for f in one.findings] for one in (found, *names)] == [codes] * 6
    assert found.error.spec == {"n": 3, "dim": 1, "outputs": 1}


def test_weights_that_did_not_move_miss_nothing():
    assert linearization_error(square(), torch.ones(1).double()).diagnostics["relative"] == 0.0
    with pytest.raises(InputError):
        lazy_diagnostics(square(0.0), torch.ones(1).double())


def linear(x, y, start):
    net = nn.Linear(x.shape[1], 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(start[None])
    return cr.Landscape(net, (x, y[:, None]), "gaussian")


def problem(rows, columns, seed=0):
    chance = torch.Generator().manual_seed(seed)
    parts = (torch.randn(*shape, generator=chance, dtype=torch.float64) for shape in ((rows, columns), (rows,)))
    return (*parts, torch.randn(columns, generator=chance, dtype=torch.float64))


@pytest.mark.parametrize(("rows", "columns", "codes"), [(7, 3, ["CURV842"]), (3, 7, []), (4, 4, [])])
def test_a_step_on_a_linear_model_reaches_least_squares(rows, columns, codes):
    x, y, start = problem(rows, columns)
    for damping in (0.0, 0.3):
        found = gauss_newton_step(linear(x, y, start), damping)
        left = y - x @ start
        if damping:
            eye = damping * rows * torch.eye(columns, dtype=torch.float64)
            step = torch.linalg.solve(x.T @ x + eye, x.T @ left)
        else:
            step = torch.linalg.pinv(x) @ left
        torch.testing.assert_close(found.step, step)
        torch.testing.assert_close(found.weights, start + step)
        after = float((left - x @ step).square().mean() / 2)
        assert found.loss.value == pytest.approx(after, abs=1e-14)
        assert found.predicted.value == pytest.approx(after, abs=1e-14)
        assert found.distance.value == pytest.approx(float(step.norm()))
        assert found.condition.value == pytest.approx(float(torch.linalg.cond(x)) ** 2)
        assert [f.code for f in found.findings] == codes
        assert found.rank.rank == min(rows, columns)
        assert found.distance.spec["damping"] == damping
        spec = {"n": rows, "dim": columns, "outputs": 1, "loss": "gaussian", "method": "svd"}
        assert spec.items() <= found.loss.spec.items()


@pytest.mark.parametrize("rate", [None, 0.2])
@pytest.mark.parametrize(("rows", "columns"), [(6, 3), (3, 6)])
def test_descent_on_a_linear_model_is_descent(rows, columns, rate):
    x, y, start = problem(rows, columns, seed=2)
    found = linearized_descent(linear(x, y, start), 7, rate)
    values = torch.linalg.svdvals(x).square() / rows
    best = 2 / float(values[0] + values[-1])
    assert found.best_rate == pytest.approx(best)
    assert found.rate == pytest.approx(best if rate is None else rate)
    weights, losses = start.clone(), []
    for _ in range(8):
        left = x @ weights - y
        losses.append(float(left.square().mean() / 2))
        last, weights = weights, weights - found.rate * x.T @ left / rows
    torch.testing.assert_close(found.weights, last)
    assert found.losses == pytest.approx(np.array(losses))
    shrink = float((1 - found.rate * values).abs().max())
    assert found.contraction.value == pytest.approx(shrink)
    kappa = float(values[0] / values[-1])
    assert found.condition.value == pytest.approx(kappa)
    assert found.best_contraction.value == pytest.approx((kappa - 1) / (kappa + 1))
    floor = float((x @ torch.linalg.pinv(x) @ y - y).square().mean() / 2)
    assert found.floor == pytest.approx(floor, abs=1e-12)
    assert found.bounds == pytest.approx(floor + shrink ** (2 * np.arange(8)) * (losses[0] - floor))
    assert (found.losses <= found.bounds * (1 + 1e-9) + 1e-12).all()
    # The last two losses above the floor tell what the last step left of the residual.
    assert found.measured.value == pytest.approx(np.sqrt((losses[-1] - floor) / (losses[-2] - floor)), rel=1e-6)
    assert (found.contraction.spec["steps"], found.contraction.spec["rate"]) == (7, found.rate)
