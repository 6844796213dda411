"""One step of each kernel, and what it learns in warm-up, against the formulas in plain numpy."""

import math

import numpy as np
import pytest
import torch

from crunode.sampling.adaptation import begin, learn, reach
from crunode.sampling.exchange import Exchange
from crunode.sampling.metropolis import HMC, MALA
from crunode.sampling.nuts import NUTS
from crunode.sampling.stochastic import PSGLD, SGHMC, SGLD, SGNHT

A = np.array([0.5, 2.0, 7.0])  # curvatures
STEP = np.array([[0.3], [0.05]])


def potential(w):
    return (0.5 * A * w**2).sum(1) + 0.1 * (w**4).sum(1)


def slope(w):
    return A * w + 0.4 * w**3


class Gradient:
    """U(w) as above; the excess that kernels carry along is something else."""

    nbeta = torch.tensor([1.0, 1.0], dtype=torch.float64)

    def __call__(self, w):
        x = w.numpy()
        return torch.from_numpy(slope(x)), torch.from_numpy(x.sum(1))

    def energy(self, w, excess):
        np.testing.assert_allclose(excess.numpy(), w.numpy().sum(1))
        return torch.from_numpy(potential(w.numpy()))


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.random((2, 2))


def advanced(kernel, w, steps, warming=False):
    """Positions after each of some steps (noise, uniform), and what was recorded."""
    gradient, at = Gradient(), torch.from_numpy(w.copy())
    state = {"w": at, **kernel.init(at, gradient)}
    found = []
    for noise, uniform in steps:
        tensors = (torch.from_numpy(v.copy()) for v in (STEP, noise, uniform))
        row = kernel.advance(state, gradient, *tensors, warming)
        found.append((state["w"].numpy().copy(), {k: v.numpy().copy() for k, v in row.items()}))
    return found


def test_langevin_steps_are_half_the_step_down_the_slope_and_noise_of_its_variance():
    w, noise, uniform = drawn()
    ((found, row),) = advanced(SGLD(), w, [(noise, uniform)])
    np.testing.assert_allclose(found, w - STEP / 2 * slope(w) + np.sqrt(STEP) * noise)
    np.testing.assert_allclose(row["excess"], w.sum(1))


def test_preconditioned_steps_follow_a_running_mean_of_squares_that_warmup_alone_moves():
    w, noise, uniform = drawn()
    average = np.zeros_like(w)
    for warm in (True, False):
        kernel, state = PSGLD(), {}
        at = torch.from_numpy(w.copy())
        state = {"w": at, **kernel.init(at, Gradient())}
        here, average = w.copy(), np.zeros_like(w)
        for warming in (warm, warm, False):
            row = kernel.advance(state, Gradient(), *(torch.from_numpy(v) for v in (STEP, noise, uniform)), warming)
            np.testing.assert_allclose(row["excess"], here.sum(1))
            if warming:
                average = 0.99 * average + 0.01 * slope(here) ** 2
            root = np.sqrt(average)
            metric = np.ones_like(w)
            if average.any():
                metric = 1 / (root + 0.1 * np.sqrt((root**2).mean(1, keepdims=True)))
                metric /= metric.mean(1, keepdims=True)
            here = here - STEP / 2 * metric * slope(here) + np.sqrt(STEP * metric) * noise
            np.testing.assert_allclose(state["w"].numpy(), here)


class Idle(Gradient):
    """A slope along the first coordinate only."""

    def __call__(self, w):
        found, excess = super().__call__(w)
        return found * torch.tensor([1.0, 0.0, 0.0]).double(), excess


def test_a_coordinate_without_slope_is_preconditioned_by_the_damping_alone():
    w, noise, uniform = drawn()
    kernel, at = PSGLD(), torch.from_numpy(w.copy())
    state = {"w": at, **kernel.init(at, Idle())}
    kernel.advance(state, Idle(), *(torch.from_numpy(v) for v in (STEP, noise, uniform)), True)
    # One root mean square out of three coordinates: 1/(1 + 0.1/√3) there, and √3/0.1 at the others.
    metric = np.array([1 / (1 + 0.1 / math.sqrt(3)), math.sqrt(3) / 0.1, math.sqrt(3) / 0.1])
    metric /= metric.mean()
    expected = w - STEP / 2 * metric * slope(w) * [1, 0, 0] + np.sqrt(STEP * metric) * noise
    np.testing.assert_allclose(state["w"].numpy(), expected)


def test_momentum_is_rubbed_off_and_shaken_in_balance():
    w, noise, uniform = drawn()
    _, other, _ = drawn(1)
    v, eta = np.zeros_like(w), STEP / 2
    found = advanced(SGHMC(), w, [(noise, uniform), (other, uniform)])
    for (at, row), shake in zip(found, (noise, other), strict=True):
        np.testing.assert_allclose(row["excess"], w.sum(1))
        v = 0.9 * v - eta * slope(w) + np.sqrt(2 * 0.1 * eta) * shake
        w = w + v
        np.testing.assert_allclose(at, w)


def test_a_thermostat_adds_friction_where_velocities_are_too_hot():
    w, noise, uniform = drawn()
    _, other, _ = drawn(1)
    v, eta, xi = np.zeros_like(w), STEP / 2, np.full((2, 1), 0.1)
    found = advanced(SGNHT(), w, [(noise, uniform), (other, uniform), (noise, uniform)])
    for (at, row), shake in zip(found, (noise, other, noise), strict=True):
        np.testing.assert_allclose(row["excess"], w.sum(1))
        v = (1 - xi) * v - eta * slope(w) + np.sqrt(2 * 0.1 * eta) * shake
        w = w + v
        xi = xi + 0.02 * ((1 - xi / 2) * (v**2).mean(1, keepdims=True) / eta - 1)
        np.testing.assert_allclose(at, w)


def proposed(w, noise):
    """A Langevin proposal and its chance, from normal densities both ways."""

    def log_density(to, start):
        mean = start - STEP / 2 * slope(start)
        return -(((to - mean) ** 2).sum(1) / (2 * STEP[:, 0]))

    new = w - STEP / 2 * slope(w) + np.sqrt(STEP) * noise
    return new, potential(w) - potential(new) + log_density(w, new) - log_density(new, w)


def trajectory(w, noise, uniform, leaps, spread, scale=1.0):
    size, p = np.sqrt(STEP) * spread ** -uniform[:, 1:2] * scale, noise
    new = w
    for _ in range(leaps):
        p = p - size / 2 * slope(new)
        new = new + size * p
        p = p - size / 2 * slope(new)
    return new, potential(w) - potential(new) + ((noise**2).sum(1) - (p**2).sum(1)) / 2


@pytest.mark.parametrize("kernel", [MALA(), HMC(), HMC(leaps=1), HMC(leaps=3, spread=1.5)], ids=repr)
def test_a_proposal_is_taken_with_its_metropolis_chance(kernel):
    for seed in range(6):
        w, noise, uniform = drawn(seed)
        if isinstance(kernel, MALA):
            new, gain = proposed(w, noise)
        else:
            new, gain = trajectory(w, noise, uniform, kernel.leaps, 1.5 if kernel.leaps == 3 else 4.0)
        chance = np.exp(np.minimum(gain, 0))
        for share in (0.999, 1.001):  # just below the chance, and just above
            near = np.stack([chance * share, uniform[:, 1]], 1)
            for warming in (False, True):
                ((found, row),) = advanced(kernel, w, [(noise, near)], warming)
                taken = (near[:, 0] < chance)[:, None]
                np.testing.assert_allclose(found, np.where(taken, new, w), atol=1e-12)
                np.testing.assert_allclose(row["accept"], chance)
                np.testing.assert_allclose(row["excess"], found.sum(1))


def test_steps_are_scaled_along_each_coordinate_and_by_what_was_learned():
    w, noise, uniform = drawn()
    kernel, at = HMC(leaps=2, metric="diagonal"), torch.from_numpy(w.copy())
    state = {"w": at, **kernel.init(at, Gradient())}
    scale, size, mean = np.array([[0.5, 1.0, 0.3], [0.2, 0.4, 0.1]]), np.array([0.3, -0.2]), np.array([-0.1, 0.4])
    state["scale"].copy_(torch.from_numpy(scale))
    state["log_size"].copy_(torch.from_numpy(size))
    state["log_size_mean"].copy_(torch.from_numpy(mean))
    uniform[:, 0] = 0  # any proposal is taken
    for warming, log_size in ((False, mean), (True, size)):
        here = state["w"].numpy().copy()
        new, _ = trajectory(here, noise, uniform, 2, 4.0, scale * np.exp(log_size)[:, None])
        row = kernel.advance(state, Gradient(), *(torch.from_numpy(v) for v in (STEP, noise, uniform)), warming)
        np.testing.assert_allclose(state["w"].numpy(), new)
        assert row["accept"].shape == (2,)
    assert int(state["adapted"]) == 1


class Undefined(Gradient):
    """No number but where it begins."""

    def energy(self, w, excess):
        return torch.where(excess == 0, 0.0, torch.nan).double()

    def __call__(self, w):
        return torch.ones_like(w), w.sum(1)


@pytest.mark.parametrize("kernel", [MALA(), HMC(leaps=2), NUTS(step=0.1)], ids=repr)
def test_a_loss_that_is_no_number_is_never_moved_to(kernel):
    w = torch.zeros(2, 3, dtype=torch.float64)
    state = {"w": w, **kernel.init(w, Undefined())}
    _, noise, uniform = drawn()
    uniform = np.concatenate([0 * uniform[:, :1], uniform], axis=1)
    row = kernel.advance(state, Undefined(), *(torch.from_numpy(v) for v in (STEP, noise, uniform)), False)
    assert not w.any()
    assert not row["accept"].any()


class Wide:
    """A standard normal in many directions."""

    def __call__(self, w):
        return w.clone(), torch.zeros(len(w), dtype=w.dtype)

    def energy(self, w, excess):
        return 0.5 * w.square().sum(1)


@pytest.mark.parametrize(
    ("dim", "warming", "more", "relaxed"),
    [(1000, True, 1, False), (1200, False, 1, False), (1200, True, 9, True), (1200, True, 11, False)],
)
def test_warmup_grants_a_twentieth_for_each_direction_beyond_a_thousand(dim, warming, more, relaxed):
    size = 0.4
    p = 1 - size / 2
    new = 1 + size * p
    p -= size / 2 * new
    gain = dim / 2 * (2 - new**2 - p**2)
    assert -20 < gain < -10
    kernel, w = HMC(leaps=1), torch.ones(1, dim, dtype=torch.float64)
    state = {"w": w.clone(), **kernel.init(w, Wide())}
    step, uniform = torch.full((1, 1), size**2).double(), torch.tensor([[math.exp(gain + more), 0.0]]).double()
    row = kernel.advance(state, Wide(), step, w, uniform, warming)
    assert float(row["accept"]) == pytest.approx(math.exp(gain), rel=1e-6)  # the true chance in any case
    assert bool((state["w"] != 1).any()) == relaxed


def reference(accepts, target=0.8):
    """Dual averaging of Hoffman & Gelman with γ = 0.05, t0 = 10, κ = 0.75, anew from the average in each window."""
    windows, done = [10, 20, 40, 80], 0
    origin = mean = 0.0
    for length in windows:
        shortfall = 0.0
        for t, accept in enumerate(accepts[done : done + length], 1):
            shortfall = (1 - 1 / (t + 10)) * shortfall + (target - accept) / (t + 10)
            size = origin - math.sqrt(t) / 0.05 * shortfall
            share = (t + 3) ** -0.75
            mean = share * size + (1 - share) * mean
            yield size, mean
        done, origin = done + length, mean


def test_step_sizes_are_averaged_as_by_hoffman_and_gelman_in_windows_of_doubling_length():
    accepts = np.random.default_rng(0).random(150)
    state = {"w": torch.zeros(1, 2, dtype=torch.float64), **begin(torch.zeros(1, 2, dtype=torch.float64), scales=False)}
    for accept, (size, mean) in zip(accepts, reference(accepts), strict=True):
        learn(state, torch.tensor([accept]))
        assert reach(state, warming=True).item() == pytest.approx(math.exp(size))
        assert reach(state, warming=False).item() == pytest.approx(math.exp(mean))


def test_an_acceptance_that_is_no_number_counts_as_none():
    states = []
    for accept in (math.nan, 0.0):
        states.append({"w": torch.zeros(1, 1), **begin(torch.zeros(1, 1), scales=False)})
        learn(states[-1], torch.tensor([accept]))
    assert reach(states[0], True) == reach(states[1], True) < 1


def test_scales_are_standard_deviations_of_a_window_shrunk_to_their_geometric_mean():
    rng = np.random.default_rng(1)
    w = rng.normal(size=(150, 2, 3)) * [0.1, 1.0, 5.0] + [1.0, -2.0, 3.0]
    accept = rng.random((150, 2))
    state = {"w": torch.from_numpy(w[0]), **begin(torch.from_numpy(w[0]))}
    scale = np.ones((2, 3))
    for k in range(150):
        state["w"] = torch.from_numpy(w[k])
        before = reach(state, warming=True).numpy() / state["scale"].numpy()
        learn(state, torch.from_numpy(accept[k]))
        if k + 1 in (30, 70, 150):
            begun = {30: 10, 70: 30, 150: 70}[k + 1]
            moved = accept[begun : k + 1].sum(0)[:, None]
            logs = np.log(w[begun : k + 1].std(0, ddof=1))
            common = logs.mean(1, keepdims=True)
            scale = np.exp(common + moved / (moved + 5) * (logs - common))
        np.testing.assert_allclose(state["scale"].numpy(), scale)
        assert before.shape == (2, 3)


def test_no_coordinate_steps_farther_where_scales_change():
    rng = np.random.default_rng(2)
    w = rng.normal(size=(70, 1, 3)) * [0.1, 1.0, 5.0]
    w[30:] *= [3.0, 0.5, 1.0]
    state = {"w": torch.from_numpy(w[0]), **begin(torch.from_numpy(w[0]))}
    for k in range(70):
        before, mean, scale = (state[n].clone() for n in ("log_size", "log_size_mean", "scale"))
        if k in (29, 69):
            state["log_size_origin"].copy_(before)
            state["shortfall"].zero_()
        state["w"] = torch.from_numpy(w[k])
        learn(state, torch.tensor([0.8], dtype=torch.float64))
        if k in (29, 69):  # as accepted as is aimed for, but for the least growth of a scale, which it makes up for
            growth = float((state["scale"] / scale).log().min())
            assert growth != 0
            assert float(state["log_size"]) == pytest.approx(float(before) - growth, abs=1e-9)
            share = ((20 if k == 29 else 40) + 3.0) ** -0.75
            expected = float(mean) + share * float(before - mean) - growth
            assert float(state["log_size_mean"]) == pytest.approx(expected, abs=1e-9)


def test_a_chain_that_stood_still_along_a_coordinate_keeps_its_scales():
    state = {"w": torch.zeros(2, 3, dtype=torch.float64), **begin(torch.zeros(2, 3, dtype=torch.float64))}
    rng = np.random.default_rng(3)
    for _ in range(30):
        state["w"] = torch.from_numpy(np.stack([[0, 0, rng.normal()], rng.normal(size=3)]))
        learn(state, torch.tensor([0.5, 0.5]))
    assert torch.equal(state["scale"][0], torch.ones(3, dtype=torch.float64))
    assert not torch.equal(state["scale"][1], torch.ones(3, dtype=torch.float64))


class Two(Gradient):
    """Rungs 1 and 2 of two chains."""

    nbeta = torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=torch.float64)

    def prior_slope(self, w):
        return torch.zeros_like(w)


def test_two_rungs_try_a_swap_after_each_step_however_many_chains():
    rng = np.random.default_rng(4)
    kernel, w = Exchange(MALA()), torch.from_numpy(rng.normal(size=(4, 3)))
    state = {"w": w, **kernel.init(w, Two())}
    step = torch.full((4, 1), 1e-3, dtype=torch.float64)
    for _ in range(3):
        row = kernel.advance(state, Two(), step, torch.zeros_like(w), torch.rand(4, 3).double(), False)
        assert row["swap"].isfinite().tolist() == [True, True, False, False]
    assert [Exchange(k).uniforms for k in (MALA(), HMC(), NUTS())] == [3, 3, 4]
    assert [Exchange(k).leaps for k in (MALA(), HMC(), HMC(leaps=5))] == [1, 16, 5]


class Cliff:
    """Flat, and beyond 1 higher by a given energy."""

    def __init__(self, height):
        self.height = height

    def __call__(self, w):
        return torch.zeros_like(w), torch.zeros(len(w), dtype=w.dtype)

    def energy(self, w, excess):
        return torch.where(w[:, 0].abs() > 1, self.height, 0.0).double()


@pytest.mark.parametrize(("height", "divergent"), [(900.0, 0), (1100.0, 1)])
def test_a_trajectory_diverges_where_its_energy_is_off_by_more_than_a_thousand(height, divergent):
    kernel, w = NUTS(step=4.0, accept=None), torch.zeros(1, 1, dtype=torch.float64)
    state = {"w": w, **kernel.init(w, Cliff(height))}
    ones = torch.ones(1, 1, dtype=torch.float64)
    row = kernel.advance(state, Cliff(height), 4 * ones, ones, torch.full((1, 3), 0.4).double(), False)
    assert row["divergent"].item() == divergent


@pytest.mark.parametrize(("full", "codes"), [(1, []), (3, ["MC209"])])
def test_one_draw_in_a_hundred_at_the_largest_depth_is_no_finding(full, codes):
    depth = np.array([[7] * full + [3] * (200 - full)]).reshape(2, 100)
    assert [f.code for f in NUTS(depth=7).findings({"divergent": np.zeros((2, 100)), "depth": depth})] == codes
