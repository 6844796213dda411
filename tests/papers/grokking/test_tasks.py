import itertools

import pytest
import torch

from crunode.errors import InputError
from crunode_papers.grokking.tasks import OPERATIONS, ModularTask


@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_solve_the_defining_equation(operation):
    p = 7
    task = ModularTask(p, operation)
    for (a, b), c in zip(task.pairs.tolist(), task.results.tolist(), strict=True):
        left, right = {
            "addition": (c, a + b),
            "subtraction": (c + b, a),
            "multiplication": (c, a * b),
            "division": (c * b, a),
        }[operation]
        assert (left - right) % p == 0
        assert 0 <= c < p
    expected = {(a, b) for a, b in itertools.product(range(p), repeat=2) if operation != "division" or b}
    assert sorted(map(tuple, task.pairs.tolist())) == sorted(expected)


def test_operations_other_than_division_take_any_modulus():
    assert ModularTask(6, "multiplication").results.max() == 5
    assert len(ModularTask(4, "subtraction").pairs) == 16


@pytest.mark.parametrize("modulus", [4, 9, 15, 1])
def test_division_needs_a_prime(modulus):
    with pytest.raises(InputError, match=r"prime modulus|from 2 up"):
        ModularTask(modulus, "division")


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 0.01, float("nan"), True, "half"])
def test_fraction_has_to_leave_both_parts(fraction):
    with pytest.raises(InputError, match="fraction"):
        ModularTask(5, fraction=fraction)


@pytest.mark.parametrize("wrong", [{"modulus": 2.0}, {"modulus": 1}, {"seed": -1}, {"operation": "power"}])
def test_other_values_are_refused(wrong):
    with pytest.raises(InputError, match="expected"):
        ModularTask(**{"modulus": 5, **wrong})


def test_paper_size():
    task = ModularTask(53, fraction=0.4)
    assert (len(task.training), len(task.validation)) == (1123, 1686)


def test_whole_fractions_are_not_rounded_down():
    assert len(ModularTask(10, fraction=0.29).training) == 29  # 0.29 · 100 is 28.999999999999996


def test_split_comes_from_the_seed_and_leaves_global_state_alone():
    state = torch.get_rng_state()
    one, again, other = ModularTask(11, seed=3), ModularTask(11, seed=3), ModularTask(11, seed=4)
    assert torch.equal(one.training, again.training)
    assert not torch.equal(one.training, other.training)
    assert torch.equal(torch.get_rng_state(), state)


def test_split_does_not_prefer_a_row():
    # Counts of a in 400 splits of half the pairs are 200·7 ± 3 for each a: six standard errors allow 1 in 10^8.
    counts = sum(torch.bincount(t.pairs[t.training][:, 0], minlength=7) for t in _splits(400)).double()
    assert (counts - 400 * 24 / 7).abs().max() < 6 * (400 * 7 * 0.25 * 42 / 48) ** 0.5


def _splits(count):
    return (ModularTask(7, fraction=0.5, seed=seed) for seed in range(count))


def test_data_forms_agree():
    task = ModularTask(5, "division", fraction=0.5)
    x, y = task.data("validation", dtype=torch.float64)
    pairs, classes = task.data("validation", inputs="tokens", targets="classes")
    assert x.dtype == torch.float64
    assert torch.equal(x.reshape(-1, 2, 5).argmax(-1), pairs)
    assert torch.equal(x.sum(1), torch.full((10,), 2.0, dtype=torch.float64))
    assert torch.equal(y.argmax(1), classes)
    assert len(task.data("all")[0]) == 20


@pytest.mark.parametrize("wrong", [{"part": "test"}, {"inputs": "binary"}, {"targets": "logits"}])
def test_unknown_forms_are_refused(wrong):
    with pytest.raises(InputError, match="among"):
        ModularTask(5).data(**wrong)
