"""What draws say of how they were made, and priors of what they are."""

import math

import numpy as np
import pytest
import torch

from crunode import HMC, NUTS, Exchange, Flat, Gaussian, InputError, Landscape, Posterior, sample, sample_each
from crunode.sampling.density import Density
from crunode.sampling.evaluate import _close
from crunode.sampling.posterior import wbic_nbeta
from crunode.sampling.stochastic import SGLD

SIZE = {"chains": 2, "draws": 5, "warmup": 3}
ASKED = {"chains": 2, "draws": 5, "warmup": 3, "budget": None, "seed": 11, "keep": ["positions"], "observe": ["size"]}


def land(dim=3):
    model = torch.nn.Linear(dim, 1, bias=False).double()
    torch.nn.init.constant_(model.weight, 0.5)
    x = torch.randn(20, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Landscape(model, (x, x.sum(1, keepdim=True)), "gaussian")


OPTIONS = {"seed": 11, "keep": ["positions"], "observe": {"size": lambda _, w: w.norm()}}


def test_draws_say_what_was_asked_for_and_what_was_made_of_it():
    one = land()
    kernel = SGLD(step=(1e-3, 2e-3), batch=7)
    draws = sample(Posterior(one, (30.0, 10.0), Gaussian(2.0)), kernel, checks=False, **SIZE, **OPTIONS)
    spec, asked = draws.spec, draws.spec["asked"]
    assert {name: asked[name] for name in ASKED} == ASKED
    assert (asked["landscape"], asked["nbeta"], asked["checks"]) == (one.fingerprint(), [30.0, 10.0], False)
    assert asked["prior"] == {"precision": 2.0, "mean": "center"}
    assert (asked["kernel"]["name"], asked["kernel"]["batch"]) == ("SGLD", 7)
    assert (spec["n"], spec["dim"], spec["rows"]) == (20, 3, 20)
    assert spec["nbeta_per_chain"] == [30.0, 30.0, 10.0, 10.0]
    assert spec["role_per_chain"] == ["ladder"] * 4
    assert (spec["chains"], spec["draws"], spec["warmup"]) == (2, 5, 3)
    plain = sample(Posterior(one, 30.0), HMC(step=0.01, leaps=1), seed=1, **SIZE).spec["asked"]
    assert (plain["nbeta"], plain["keep"], plain["observe"]) == (30.0, [], [])


def test_draws_of_many_data_sets_say_which_one():
    lands = [land(), land()]
    posts = [Posterior(one, 30.0, Gaussian(2.0)) for one in lands]
    for k, draws in enumerate(sample_each(posts, HMC(step=0.01, leaps=2), **SIZE, **OPTIONS)):
        spec, asked = draws.spec, draws.spec["asked"]
        assert {name: asked[name] for name in ("seed", "keep", "observe", "set")} == {
            "seed": 11,
            "keep": ["positions"],
            "observe": ["size"],
            "set": k,
        }
        assert asked["landscape"] == lands[k].fingerprint()
        assert asked["prior"] == {"precision": 2.0, "mean": "center"}
        assert (asked["kernel"]["name"], asked["kernel"]["leaps"]) == ("HMC", 2)
        assert (spec["n"], spec["dim"], spec["rows"]) == (20, 3, 20)
        assert (spec["nbeta_per_chain"], spec["role_per_chain"]) == ([30.0] * 2, ["ladder"] * 2)
        assert (spec["chains"], spec["draws"], spec["warmup"]) == (2, 5, 3)


@pytest.mark.parametrize(("name", "value"), [("chains", 0), ("draws", 0), ("warmup", -1), ("budget", 0)])
def test_a_count_that_is_too_small_is_named(name, value):
    post = Posterior(land(), 30.0, Gaussian(1.0))
    with pytest.raises(InputError, match=f"expected {name} as"):
        sample(post, HMC(step=0.01), **{**SIZE, name: value})
    if name != "budget":
        with pytest.raises(InputError, match=f"expected {name} as"):
            sample_each([post], HMC(step=0.01), **{**SIZE, name: value})


@pytest.mark.parametrize(("layout", "groups"), [("batched", 1), ("sequential", 4)])
def test_chains_run_together_or_one_by_one(layout, groups):
    jobs = []

    class Watching:
        def map(self, fn, given):
            jobs.extend(given)
            return [fn(job) for job in jobs]

    sample(Posterior(land(), (10.0, 30.0), Gaussian(1.0)), HMC(step=0.01), layout=layout, executor=Watching(), **SIZE)
    assert len(jobs) == groups
    assert {job.layout for job in jobs} == {layout}
    assert sorted(chain for job in jobs for chain in job.chains) == [0, 1, 2, 3]


def test_a_posterior_says_its_levels_and_its_prior():
    one = land()
    assert Posterior(one, (3.0, 7.0), Flat()).spec() == {"nbeta": [3.0, 7.0], "prior": "flat"}
    assert Posterior(one, "wbic", Gaussian(4.0, "origin")).spec() == {
        "nbeta": [20 / math.log(20)],
        "prior": {"precision": 4.0, "mean": "origin"},
    }
    assert [wbic_nbeta(n) for n in (1, 3, 1000)] == pytest.approx([n / math.log(max(n, 3)) for n in (1, 3, 1000)])
    assert (Posterior(one, 1.0, Gaussian(4.0)).stiffness, Posterior(one, 1.0, Flat()).stiffness) == (4.0, 0.0)


def quadratic(*curvatures):
    return Density(lambda w: -0.5 * (torch.tensor(curvatures, dtype=w.dtype) * w.square()).sum(), name="bowl")


def test_stiffness_of_a_quadratic_prior_lies_between_its_curvatures():
    assert quadratic(5.0, 5.0, 5.0).on(land()).stiffness() == pytest.approx(5, rel=1e-6)
    found = quadratic(1.0, 2.0, 30.0).on(land()).stiffness()
    assert 2 < found <= 30
    assert quadratic(2.0, 4.0, 60.0).on(land()).stiffness() == pytest.approx(2 * found, rel=1e-6)


def test_a_prior_is_known_by_its_name_and_its_values():
    first, same, other = (quadratic(*c).on(land()).spec() for c in ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), (1.0, 2.0, 3.1)))
    assert (first["density"], first["normalized"]) == ("bowl", False)
    assert first == same
    assert first["values"] != other["values"]
    assert Density(torch.distributions.Normal(0.0, 1.0), name="normal").on(land()).spec()["normalized"] is True


def test_priors_are_told_apart_at_the_center_and_around_it_to_more_than_rounding():
    def known(change):
        return Density(lambda w: -w.square().sum() + change(w - land().center)).on(land()).spec()["values"]

    plain = known(lambda off: off.sum() * 0)
    for width in (1e-3, 0.1, 1.0):  # a bump on the center itself, and what is off by as much as bumps are wide
        assert known(lambda off, width=width: (-(off / width).square().sum()).exp() / 10) != plain
    assert known(lambda off: 1e-3 * off.sum()) != plain
    assert known(lambda off: 1e-9 * (1 + off.sum())) == plain


@pytest.mark.parametrize("chains", [1, 3])
def test_energies_and_slopes_of_a_prior_are_those_of_its_formula(chains):
    term = quadratic(1.0, 2.0, 3.0).on(land())
    w = torch.randn(chains, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(term.energy(w), 0.5 * (w.square() * torch.tensor([1.0, 2.0, 3.0])).sum(1))
    torch.testing.assert_close(term.gradient(w), w * torch.tensor([1.0, 2.0, 3.0]))


def test_the_prior_of_one_chain_is_looked_at_near_that_chain_alone():
    seen = []

    def log(w):
        seen.append(w.detach())
        return -w.square().sum()

    term = Density(log).on(land())
    w = torch.tensor([[4.0, -3.0, 5.0]], dtype=torch.float64)
    for run in (term.energy, term.gradient):
        seen.clear()
        run(w)
        assert seen
        assert max(float((at - w[0]).abs().max()) for at in seen) < 0.05


def test_gradients_are_close_chain_by_chain():
    cold, hot = torch.tensor([1e8, 2e8]).double(), torch.tensor([1.0, 2.0]).double()
    both = torch.stack([cold, hot])
    eps = torch.finfo(torch.float64).eps
    assert _close(both, both * (1 + 5e3 * eps), 0.0)
    assert not _close(both, both * (1 + 5e4 * eps), 0.0)
    # What is rounding to the cold chain is none to the hot one.
    assert not _close(both, both + torch.tensor([[0.0], [1e-6]]).double(), 0.0)
    assert _close(both, both + torch.tensor([[1e-6], [0.0]]).double(), 0.0)
    assert _close(hot - hot, hot - hot + 3 * eps, 1.0)
    assert not _close(hot - hot, hot - hot + 5 * eps, 1.0)
    holes = torch.tensor([math.nan, math.inf]).double()
    assert _close(holes, holes, 0.0)
    assert not _close(holes, hot, 0.0)
    assert not _close(hot, hot.float(), 0.0)
    assert not _close(hot, hot[:1], 0.0)


def test_kernels_keep_what_they_are_given_and_default_to_what_they_say():
    assert (HMC().leaps, HMC().spread, NUTS().depth, NUTS().accept) == (16, 4.0, 10, 0.8)
    assert Exchange().every == 1
    assert isinstance(Exchange().inner, HMC)
    draws = sample(Posterior(land(), (1.0, 2.0), Gaussian(1.0)), Exchange(HMC(step=0.01, leaps=2), every=2), **SIZE)
    assert np.isfinite(draws.arrays["swap"][:2]).mean() == pytest.approx(0.5, abs=0.11)
