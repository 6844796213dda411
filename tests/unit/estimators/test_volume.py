"""Volumes against closed forms, the law against made-up volumes, and what is refused."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import crunode as cr
from crunode.estimators.volume_law import fit_law
from crunode.testing import check_probe

QUICK = {"levels": 30, "particles": 300, "replicas": 8, "moves": 8}
LOG2 = math.log(2)


def crossing(w):
    return (w[:, 0] * w[:, 1]) ** 2


def quick(target, at=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        return cr.volume_scaling(target, at, **{**QUICK, **options})


def curve(estimate):
    return (np.array(estimate.diagnostics[name]) for name in ("t", "log_volume", "log_volume_se"))


@pytest.mark.parametrize("radius", [1.0, 0.25])
def test_volumes_of_a_crossing(radius):
    # |xy| < √t in the box of side 2r: share s (1 − log s) with s = √t / r².
    t, logs, se = curve(quick(crossing, torch.zeros(2), radius=radius))
    share = np.sqrt(t) / radius**2
    off = (logs - np.log(share * (1 - np.log(share)))) / np.maximum(se, 1e-3)
    assert np.abs(off).max() < 4.5
    assert np.sqrt(np.mean(off**2)) < 2.5


def test_volumes_under_a_gaussian_prior():
    # x² < t has the share erf(√(t/2)/σ).
    t, logs, se = curve(quick(lambda w: w[:, 0] ** 2, torch.tensor([3.0]) * 0, prior="gaussian", radius=0.5))
    wanted = np.log([math.erf(math.sqrt(v / 2) / 0.5) for v in t])
    assert np.abs((logs - wanted) / np.maximum(se, 1e-3)).max() < 4.5


def test_the_box_stands_around_the_point():
    at = torch.tensor([5.0, -7.0])
    moved = quick(lambda w: crossing(w - at), at)
    still = quick(crossing, torch.zeros(2))
    assert moved.value == pytest.approx(still.value, rel=1e-6)


def test_a_scale_of_the_potential_or_of_the_box_changes_nothing():
    one = quick(crossing, torch.zeros(2))
    scaled = quick(lambda w: 1e6 * crossing(w), torch.zeros(2))
    wider = quick(crossing, torch.zeros(2), radius=8.0)
    assert scaled.value == pytest.approx(one.value, rel=1e-9)
    assert wider.value == pytest.approx(one.value, rel=1e-9)


def test_same_seed_same_value_other_seed_other_value():
    a, b, c = (quick(crossing, torch.zeros(2), seed=s).value for s in (0, 0, 1))
    assert a == b != c


@pytest.mark.heavy
def test_landscapes_are_taken_too():
    potential = cr.Landscape.of_function(lambda w: (w[0] * w[1]) ** 2, torch.zeros(2))
    assert quick(potential).value == pytest.approx(quick(crossing, torch.zeros(2)).value, rel=1e-6)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(2, 1)
    linear = quick(cr.Landscape(model, (x, model(x).detach()), "gaussian"))
    assert linear.value == pytest.approx(1.5, abs=4 * linear.error)


def test_it_is_a_probe():
    potential = cr.Landscape.of_function(lambda w: (w[0] * w[1]) ** 2, torch.zeros(2))
    assert check_probe(quick, potential).name == "volume"


def test_an_absolute_rounding_ends_the_levels():
    x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(1, 1)
    noisy = cr.Landscape(model, (x, model(x).detach()), lambda output, target: (output - target).square().sum(1) + 1.0)
    with pytest.warns(cr.DiagnosticWarning, match="VOL603"):
        found = cr.volume_scaling(noisy, **{**QUICK, "levels": 80})
    assert min(found.diagnostics["t"]) > 1e-14
    assert found.value == pytest.approx(1.0, abs=4 * found.error)


def made_up(law, m, *, tau=None, steps=80, particles=4000, replicas=16, extra=0.0, seed=0):
    """Shares of particles that follow t^law (log 1/t + tau)^(m−1) (1 + extra t^(1/4)), from where they fall on."""
    depth = np.arange(steps + 1) * LOG2
    tau = max(3.0, 1.2 * (m - 1) / law) if tau is None else tau
    logs = -law * depth + (m - 1) * np.log(depth + tau) + np.log1p(extra * np.exp(-depth / 4))
    return (
        np.random.default_rng(seed).binomial(particles, np.exp(np.diff(logs))[:, None], (steps, replicas)) / particles
    )


@pytest.mark.parametrize("law", [0.25, 0.5, 1.5])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_law_behind_made_up_volumes(law, m):
    found = fit_law(made_up(law, m), 4000, largest=4)
    error = math.hypot(found.se, *found.terms.values())
    assert abs(found.value - law) < 3.5 * error
    assert found.multiplicity == m
    assert sum(found.weights.values()) == pytest.approx(1)
    assert abs(found.surprise) < 4


def test_a_correction_of_a_higher_exponent_is_allowed_for():
    found = fit_law(made_up(0.5, 1, extra=5.0), 4000, largest=3)
    assert found.value == pytest.approx(0.5, abs=3.5 * math.hypot(found.se, *found.terms.values()))
    assert found.multiplicity == 1


@pytest.mark.heavy
def test_the_stated_error_covers():
    off = []
    for seed in range(40):
        found = fit_law(made_up(0.5, 2, seed=seed, particles=1000), 1000, largest=3)
        off.append((found.value - 0.5) / math.hypot(found.se, *found.terms.values()))
    assert 0.4 < np.sqrt(np.mean(np.square(off))) < 1.3
    assert np.abs(off).max() < 4


def test_levels_that_err_alike_widen_the_error():
    shares = made_up(0.5, 1, particles=1000)
    together = shares * np.exp(0.02 * np.random.default_rng(1).standard_normal((1, shares.shape[1])))
    assert fit_law(together, 1000, 2).se > 2 * fit_law(shares, 1000, 2).se


def test_volumes_that_follow_no_law_are_found_out():
    shares = made_up(0.5, 1)
    shares[40:] *= 0.8  # another law below some t
    assert fit_law(shares, 4000, 3).surprise > 5


def test_a_flat_potential_has_coefficient_zero():
    found = quick(lambda w: torch.relu(w.abs().amax(1) - 0.4) ** 2, torch.zeros(2))
    assert abs(found.value) < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 3}, "levels"),
        ({"particles": 2.0}, "particles"),
        ({"replicas": True}, "replicas"),
        ({"moves": 0}, "moves"),
        ({"radius": 0}, "radius"),
        ({"radius": math.inf}, "radius"),
        ({"prior": "flat"}, "prior"),
        ({"seed": -1}, "seed"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(cr.InputError, match=message):
        cr.volume_scaling(crossing, torch.zeros(2), **options)


def test_wrong_potentials_are_refused():
    two = torch.zeros(2)
    with pytest.raises(cr.InputError, match="nowhere below 0"):
        quick(lambda w: w[:, 0] ** 2 - w[:, 1] ** 2, two)
    with pytest.raises(cr.InputError, match="0 at the point"):
        quick(lambda w: w[:, 0] ** 2 + 1, two)
    with pytest.raises(cr.InputError, match="index the"):
        quick(lambda w: (w[0] * w[1]) ** 2, two)
    with pytest.raises(cr.InputError, match="is 0 on half"):
        quick(lambda w: torch.relu(w[:, 0] - 0.5) ** 2, two)
    with pytest.raises(cr.InputError, match="1 to 12 parameters"):
        quick(crossing, torch.zeros(13))
    with pytest.raises(cr.InputError, match="at="):
        quick(crossing)
    with pytest.raises(cr.InputError, match="no point beside"):
        quick(cr.Landscape.of_function(lambda w: w[0] ** 2, torch.zeros(1)), two)
    with pytest.raises(cr.InputError, match="Landscape or a function"):
        quick("xy", two)
