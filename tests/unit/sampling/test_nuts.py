"""NUTS: its trees against a recursive reference, its numbers, its waiting, its adaptation, its findings."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.sampling.nuts import NUTS, _keys, counted_uniforms
from crunode.sampling.posterior import Flat, Posterior
from crunode.sampling.run import sample


def banana(w):
    """U and ∇U of x ~ N(0, 1), y ~ N(x²/2, 1/4), for rows of positions."""
    x, y = w[:, 0], w[:, 1]
    off = y - x**2 / 2
    return x**2 / 2 + 2 * off**2, torch.stack([x - 4 * off * x, 4 * off], 1)


class Field:
    """What a kernel is given: gradients and losses of all rows, and energies."""

    def __init__(self, potential=banana):
        self.potential, self.calls = potential, 0

    def __call__(self, w):
        self.calls += 1
        value, slope = self.potential(w)
        return slope, value

    def energy(self, w, excess):
        return excess.double()


# The reference: one chain, in plain Python, by recursion.


def leapfrog(w, p, slope, size):
    p = p - 0.5 * size * slope
    w = w + size * p
    value, slope = (t[0].numpy() for t in banana(torch.from_numpy(w)[None]))
    return w, p - 0.5 * size * slope, slope, float(value)


def turns(first, last, total):
    inner = total - (first + last) / 2
    return first @ inner <= 0 or last @ inner <= 0


def build(level, point, size, start):
    """A half of 2^level leaves beyond `point`: its end, first and last momentum and their sum, validity, leaves."""
    if level == 0:
        w, p, slope, value = leapfrog(*point, size)
        gain = start - value - 0.5 * p @ p
        return (w, p, slope), p, p, p, gain > -1000, [(gain, w)]
    end, first, last, total, good, leaves = build(level - 1, point, size, start)
    if not good:
        return end, first, last, total, False, leaves
    end, _, last, more, good, further = build(level - 1, end, size, start)
    total = total + more
    return end, first, last, total, good and not turns(first, last, total), leaves + further


def reference(w, p, key, size, depth):
    def u(number):
        return float(counted_uniforms(key, [number])[0, 0])

    value, slope = (t[0].numpy() for t in banana(torch.from_numpy(w)[None]))
    start = float(value) + 0.5 * p @ p
    ends, total, weight, chosen = {1: (w, p, slope), -1: (w, p, slope)}, p, 0.0, w
    chances, level, divergent = [], 0, False
    while level < depth:
        sign = 1 if u(4 * level + 1) < 0.5 else -1
        end, _, _, more, good, leaves = build(level, ends[sign], sign * size, start)
        chances += [min(1.0, math.exp(gain)) for gain, _ in leaves]
        divergent = divergent or any(gain <= -1000 for gain, _ in leaves)
        if not good:
            break
        inner, picked = -math.inf, None
        for k, (gain, position) in enumerate(leaves):
            inner = np.logaddexp(inner, gain)
            if math.log(u(2 * (2**level + k))) < gain - inner:
                picked = position
        if math.log(u(4 * level + 3)) < inner - weight:
            chosen = picked
        weight, total, ends[sign], level = np.logaddexp(weight, inner), total + more, end, level + 1
        if turns(ends[-1][1], ends[1][1], total):
            break
    return chosen, np.mean(chances), level, len(chances), divergent


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.floats(0.01, 1.5), depth=st.integers(1, 6))
def test_same_trees_as_by_recursion(seed, size, depth):
    generator = torch.Generator().manual_seed(seed)
    w = 2 * torch.randn(6, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    uniform = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    kernel, field, start = NUTS(depth=depth, accept=None), Field(), w.clone()
    state = {"w": w, **kernel.init(w, field)}
    row = kernel.advance(state, field, torch.full((6, 1), size**2, dtype=torch.float64), noise, uniform, False)
    for k in range(6):
        key = _keys(uniform[k : k + 1])
        chosen, accept, level, leaps, divergent = reference(start[k].numpy(), noise[k].numpy(), key, size, depth)
        np.testing.assert_allclose(state["w"][k].numpy(), chosen, rtol=1e-8, atol=1e-10)
        assert float(row["accept"][k]) == pytest.approx(accept, rel=1e-8)
        assert (int(row["depth"][k]), int(row["leaps"][k]), bool(row["divergent"][k])) == (level, leaps, divergent)
    assert field.calls == 1 + int(row["leaps"].max())  # nothing is evaluated once all are done
    slope, excess = field(state["w"])
    assert torch.allclose(state["slope"], slope)
    assert torch.allclose(state["excess"], excess)


def test_numbers_are_those_of_splitmix64():
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # published outputs for seed 0
    expected = [(word >> 11) * 2.0**-53 for word in first]
    assert counted_uniforms(torch.zeros(1, dtype=torch.int64), [0, 1, 2])[0].tolist() == expected


@pytest.mark.parametrize("scheme", ["neighboring keys", "keys of streams"])
def test_numbers_are_uniform_and_independent(scheme):
    """Chi-squared of 1023 and correlations, at 5 standard deviations each: 1 failure in 300 000 by chance."""
    if scheme == "neighboring keys":
        key = torch.arange(512)
    else:
        key = _keys(torch.rand(512, 3, generator=torch.Generator().manual_seed(0)))
    u = counted_uniforms(key, range(256)).numpy()
    pairs = [(u[:, :-1], u[:, 1:]), (u[:-1], u[1:]), (u[:, 0::2], u[:, 1::2])]
    for a, b in pairs:
        counts = np.histogram2d(a.ravel(), b.ravel(), bins=32, range=[[0, 1], [0, 1]])[0]
        expected = a.size / 1024
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi - 1023) < 5 * math.sqrt(2 * 1023)
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / math.sqrt(a.size)
    assert 0 <= u.min() < u.max() < 1


def landscape(dtype=torch.float64):
    def potential(w):
        return w[0] ** 2 / 2 + 2 * (w[1] - w[0] ** 2 / 2) ** 2

    return Posterior(Landscape.of_function(potential, torch.zeros(2, dtype=dtype)), nbeta=1.0, prior=Flat())


SIZE = {"chains": 3, "draws": 8, "warmup": 35, "seed": 3, "keep": ["positions"]}


@pytest.mark.heavy
@pytest.mark.parametrize("metric", [None, "diagonal"])
def test_draws_do_not_depend_on_layout_or_neighbors(metric):
    kernel = NUTS(step=0.1, metric=metric)
    together = sample(landscape(), kernel, layout="batched", **SIZE).arrays
    apart = sample(landscape(), kernel, layout="sequential", **SIZE).arrays
    fewer = sample(landscape(), kernel, layout="batched", **{**SIZE, "chains": 2}).arrays
    for name in ("positions", "depth", "leaps", "accept", "step"):
        np.testing.assert_allclose(together[name], apart[name], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(together[name][:2], fewer[name], rtol=1e-9, atol=1e-12)
    assert len(np.unique(together["leaps"])) > 1  # chains did wait for each other


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_trees_stay_within_their_depth(depth):
    draws = sample(landscape(), NUTS(step=1e-4, depth=depth, accept=None), **SIZE).arrays
    assert draws["depth"].max() == depth
    assert draws["leaps"].max() == 2**depth - 1


class Interrupted(Exception):
    pass


@dataclass(frozen=True)
class Stopping(NUTS):
    left: ClassVar[int] = 0

    def advance(self, *args):
        Stopping.left -= 1
        if Stopping.left < 0:
            raise Interrupted
        return super().advance(*args)


@pytest.mark.heavy
@pytest.mark.parametrize("stop", [70, 140])
def test_interrupted_runs_go_on_to_the_same_draws(tmp_path, stop):
    """Stopped within warm-up after the first learned scales, or among the kept draws."""
    call = {"chains": 2, "draws": 70, "warmup": 80, "layout": "batched", "keep": ["positions"]}
    kernel = Stopping(step=0.1, metric="diagonal")
    Stopping.left = 10**9
    whole = sample(landscape(), kernel, **call)
    Stopping.left = stop
    with pytest.raises(Interrupted):
        sample(landscape(), kernel, store=tmp_path / "run", **call)
    Stopping.left = 10**9
    resumed = sample(landscape(), kernel, store=tmp_path / "run", **call)
    for name, values in whole.arrays.items():
        assert np.array_equal(values, resumed.arrays[name]), name
    for name, values in whole.warmup.items():
        assert np.array_equal(values, resumed.warmup[name]), name


@pytest.mark.heavy
@pytest.mark.parametrize("accept", [0.6, 0.9])
def test_warmup_reaches_the_acceptance(accept):
    """The mean over 32 chains and 100 draws has an error of 0.01; 0.06 is what the average of late sizes may miss."""
    draws = sample(landscape(), NUTS(step=1e-3, accept=accept), chains=32, draws=100, warmup=500, layout="batched")
    assert abs(float(draws.arrays["accept"].mean()) - accept) < 0.06
    assert (np.ptp(draws.arrays["step"], axis=1) == 0).all()
    assert len(np.unique(draws.arrays["step"])) == 32


@pytest.mark.heavy
def test_scales_shorten_trees():
    def potential(w):
        return w[0] ** 2 / 2 + 200 * w[1] ** 2

    target = Posterior(Landscape.of_function(potential, torch.zeros(2, dtype=torch.float64)), nbeta=1.0, prior=Flat())
    call = {"chains": 4, "draws": 40, "warmup": 70, "layout": "batched"}
    plain = sample(target, NUTS(step=2e-3), **call).arrays["leaps"].mean()
    scaled = sample(target, NUTS(step=2e-3, metric="diagonal"), **call).arrays["leaps"].mean()
    assert scaled < plain / 3


def test_divergences_are_flagged():
    """Leaps of size 1 on a curvature of 2·10⁴ are unstable by a factor of 100 in size."""
    target = Posterior(Landscape.of_function(lambda w: 1e4 * w.square().sum(), torch.zeros(2)), nbeta=1.0, prior=Flat())
    draws = sample(target, NUTS(step=1.0, accept=None), chains=2, draws=10, warmup=0)
    assert (draws.arrays["divergent"] == 1).all()
    assert (draws.arrays["leaps"] == 1).all()
    assert [f.code for f in draws.findings] == ["MC208"]
    assert sample(target, NUTS(step=1e-5), chains=2, draws=10, warmup=30).findings == ()


def test_trees_at_the_largest_depth_are_a_finding():
    draws = sample(landscape(), NUTS(step=1e-4, depth=2, accept=None), **SIZE)
    assert [f.code for f in draws.findings] == ["MC209"]


def test_a_loss_that_is_not_a_number_is_a_divergence():
    def walled(w):
        value, slope = banana(w)
        out = w[:, 0].abs() > 1
        return torch.where(out, torch.nan, value), torch.where(out[:, None], torch.nan, slope)

    kernel, field, w = NUTS(accept=None), Field(walled), torch.zeros(4, 2, dtype=torch.float64)
    state = {"w": w, **kernel.init(w, field)}
    noise = torch.tensor([[3.0, 0.0]] * 4, dtype=torch.float64)
    row = kernel.advance(state, field, torch.full((4, 1), 0.25).double(), noise, torch.rand(4, 3).double(), False)
    assert (row["divergent"] == 1).all()
    assert torch.isfinite(state["w"]).all()
    assert torch.isfinite(row["accept"]).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 0.0},
        {"depth": 0},
        {"depth": 2.0},
        {"depth": True},
        {"metric": "dense"},
        {"accept": 1.0},
        {"accept": "0.8"},
        {"accept": None, "metric": "diagonal"},
    ],
    ids=str,
)
def test_bad_settings_are_refused(fields):
    with pytest.raises(InputError, match="expected"):
        NUTS(**fields)


def test_gradients_are_counted_as_they_were_taken():
    land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=1000)
    draws = sample(Posterior(land, 100.0, Flat()), NUTS(step=1e-3), chains=2, draws=10, warmup=5)
    taken = draws.arrays["leaps"].sum() + draws.warmup["leaps"].sum()
    assert draws.gradients == taken > 30
