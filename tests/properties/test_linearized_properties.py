"""Gauss-Newton steps and linearized descent, for any small problem."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import crunode as cr
from crunode.curvature.gauss_newton import gauss_newton_step, linearized_descent
from crunode.curvature.lazy import linearization_error, width_exponent
from crunode.curvature.linearized import linearize

SEEDS = st.integers(0, 2**31)
EXAMPLES = 25


def problem(seed, rows, hidden, loss="gaussian"):
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(generator=generator)
    x, y = torch.randn(2, rows, 3, generator=generator, dtype=torch.float64)
    return cr.Landscape(net, (x, y[:, :1]), loss)


@settings(max_examples=EXAMPLES, deadline=None)
@given(SEEDS, st.integers(1, 12), st.integers(1, 6))
def test_step_solves_the_normal_equations_and_moves_least(seed, rows, hidden):
    land = problem(seed, rows, hidden)
    linear, found = linearize(land), gauss_newton_step(land)
    left, _, right = torch.linalg.svd(linear.jacobian, full_matrices=False)
    wanted = next(iter(land.passes()))[-1].reshape(-1) - linear.outputs
    rank = found.rank.rank
    rest = left[:, :rank].T @ (wanted - linear.push(found.step))
    assert rest.norm() <= 1e-8 * max(float(wanted.norm()), 1.0)  # no weights can do better
    outside = found.step - right[:rank].T @ (right[:rank] @ found.step)
    assert outside.norm() <= 1e-8 * max(float(found.step.norm()), 1e-12)  # and none of the step is for nothing
    assert found.predicted.value <= float(land.loss()) * (1 + 1e-9) + 1e-12


@settings(max_examples=EXAMPLES, deadline=None)
@given(SEEDS, st.floats(1e-6, 1e3), st.floats(1.01, 100.0))
def test_damping_shortens_the_step(seed, damping, factor):
    land = problem(seed, 6, 4)
    short, long = gauss_newton_step(land, damping * factor), gauss_newton_step(land, damping)
    assert short.distance.value < long.distance.value <= gauss_newton_step(land).distance.value * (1 + 1e-9)


@settings(max_examples=EXAMPLES, deadline=None)
@given(SEEDS, st.floats(0.05, 0.95), st.integers(1, 40))
def test_descent_keeps_its_promise_at_every_rate(seed, share, steps):
    land = problem(seed, 5, 6)
    top = 2 / linearized_descent(land, 1).best_rate
    found = linearized_descent(land, steps, share * 2 / top)
    assert (found.losses <= found.bounds * (1 + 1e-9) + 1e-15).all()
    assert (np.diff(found.losses) <= 1e-12 * found.losses[0]).all()
    assert found.best_contraction.value <= found.contraction.value * (1 + 1e-9) < 1 + 1e-9
    assert found.measured.value <= found.contraction.value * (1 + 1e-6)
    assert np.isclose(found.losses[-1], linearize(land).loss(found.weights), rtol=1e-8, atol=1e-12)


@settings(max_examples=EXAMPLES, deadline=None)
@given(SEEDS, st.floats(1e-3, 1e-2))
def test_linearization_error_is_of_second_order(seed, size):
    """Halving a small step makes the error a quarter, but for terms of third order."""
    land = problem(seed, 6, 5)
    step = size * torch.randn(land.dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    whole, half = (linearization_error(land, land.center + c * step).value for c in (1.0, 0.5))
    assert abs(whole / half - 4) < 60 * size


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.floats(-2.0, 2.0),
    st.floats(1e-3, 1e3),
    st.lists(st.integers(1, 10_000), min_size=3, max_size=6, unique=True),
    st.integers(2, 5),
)
def test_exponent_of_a_power_is_found_and_scale_does_not_matter(power, scale, widths, count):
    noise = np.exp(0.1 * np.random.default_rng(0).standard_normal((len(widths), count)))
    values = {p: p**power * row for p, row in zip(widths, noise, strict=True)}
    found = width_exponent(values)
    other = width_exponent({p: scale * np.asarray(v) for p, v in values.items()})
    assert np.isclose(found.value, other.value, rtol=1e-8, atol=1e-8)
    plain = width_exponent({p: [scale * p**power] for p in widths})
    assert np.isclose(plain.value, power, rtol=1e-7, atol=1e-7)
