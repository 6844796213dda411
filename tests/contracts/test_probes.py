"""The estimators are valid probes, and the suite refuses functions that are not."""

import random

import numpy as np
import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.estimators.coefficient import llc
from crunode.testing import check_probe


def crossing():
    return Landscape.of_function(lambda w: (w[0] * w[1]) ** 2, torch.zeros(2, dtype=torch.float64))


def quick_llc(landscape, seed=0):
    return llc(landscape, nbeta=1e3, chains=8, draws=60, warmup=30, seed=seed)


def unseeded(landscape):
    return Estimate("noise", float(torch.rand(())), se=0.1)


def seeds_torch(landscape):
    torch.manual_seed(0)
    return Estimate("x", 1.0, se=0.1)


def seeds_numpy(landscape):
    np.random.seed(0)  # noqa: NPY002
    return Estimate("x", 1.0, se=0.1)


def uses_random(landscape):
    return Estimate("x", random.random(), se=0.1)


def moves_center(landscape):
    landscape.center.add_(1e-3)
    return Estimate("x", 1.0, se=0.1)


WRONG = {
    unseeded: "random state of torch",
    seeds_torch: "random state of torch",
    seeds_numpy: "random state of numpy",
    uses_random: "random state of Python",
    moves_center: "changed the center",
}


@pytest.mark.heavy
def test_llc_is_a_probe():
    assert 0 < check_probe(quick_llc, crossing()).value < 1


@pytest.mark.parametrize("probe", WRONG, ids=lambda p: p.__name__)
def test_wrong_probe_is_refused(probe):
    with pytest.raises(AssertionError, match=WRONG[probe]):
        check_probe(probe, crossing())


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (1.0, "expected an Estimate"),
        (Estimate("x", float("nan"), se=0.1), "finite value"),
        (Estimate("x", 1.0, se=float("inf")), "finite se"),
        (Estimate("x", 1.0, se=-0.1), "errors from 0 up"),
        (Estimate("", 1.0, se=0.1), "with a name"),
    ],
    ids=str,
)
def test_wrong_estimate_is_refused(estimate, message):
    with pytest.raises(AssertionError, match=message):
        check_probe(lambda landscape: estimate, crossing())


def test_value_has_to_come_again():
    values = iter([1.0, 2.0])
    with pytest.raises(AssertionError, match="same value from the same seed"):
        check_probe(lambda landscape: Estimate("x", next(values), se=0.1), crossing())
