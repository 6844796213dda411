"""Networks on modular addition: ranks of dense derivatives with real weights on the pairs that are given."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from crunode.errors import InputError
from crunode.exact.modular_addition import fourier_solution, lazy_random_features, quadratic_modular_addition


def jacobian(pairs, p, u, t, v, centred):
    """Of f_c(a, b) = Σ_j v_cj (u_j(a) + t_j(b))² by all of v, u and t, at the pairs; one row a parameter."""
    a, b = np.array(pairs).T
    rows = []
    for uj, tj, vj in zip(u, t, v, strict=True):
        z = uj[a] + tj[b]
        rows += [np.outer(e, z**2) for e in np.eye(p)]
        rows += [np.outer(vj, 2 * z * (a == i)) for i in range(p)]
        rows += [np.outer(vj, 2 * z * (b == i)) for i in range(p)]
    found = np.array(rows)
    if centred:
        found = found - found.mean(axis=2, keepdims=True)
    return found.reshape(len(found), -1)


def generic(pairs, p, k, centred, seed=0):
    rng = np.random.default_rng(seed)
    return int(np.linalg.matrix_rank(jacobian(pairs, p, *rng.normal(size=(3, k, p)), centred)))


def one_hot(pairs, p):
    rows = [np.concatenate([np.eye(p)[a], np.eye(p)[b]]) for a, b in pairs]
    return int(np.linalg.matrix_rank(np.array(rows)))


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("p", "widths"), [(1, (1, 2)), (2, (1, 2, 3, 4)), (3, (1, 2, 3, 4, 5, 8)), (4, (2, 6, 7, 15))])
def test_all_pairs_have_the_rank_of_a_random_derivative(p, widths, centred):
    pairs = list(itertools.product(range(p), repeat=2))
    if centred and p == 1:
        return
    for k in widths:
        found = quadratic_modular_addition(p, k, centred=centred)
        rank = generic(pairs, p, k, centred)
        assert (found.details["rank"], found.value, found.multiplicity) == (rank, Fraction(rank, 2), 1)
        assert (found.details["examples"], found.details["data_rank"]) == (p * p, one_hot(pairs, p))


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_given_pairs_have_the_rank_of_a_random_derivative_on_them(seed, centred):
    rng = np.random.default_rng(seed)
    p = 4
    every = np.array(list(itertools.product(range(p), repeat=2)))
    chosen = every[rng.permutation(len(every))[: int(rng.integers(4, 14))]].tolist()
    for k in (2, 5, 8):
        found = quadratic_modular_addition(p, k, centred=centred, pairs=chosen)
        assert found.details["rank"] == generic(chosen, p, k, centred, seed)
        assert found.details["data_rank"] == one_hot(chosen, p)
        assert found.details["examples"] == len(chosen)


def test_rare_inputs_lower_the_bound_that_proves_the_rank():
    """Input 3 occurs once: its pair is seen p times at most, whatever the width."""
    pairs = [*itertools.product(range(3), repeat=2), (3, 0)]
    for k in (5, 7):
        found = quadratic_modular_addition(4, k, centred=False, pairs=pairs)
        assert found.details["rank"] == generic(pairs, 4, k, False)
        assert found.status == "exact"


@pytest.mark.parametrize(("p", "frequencies"), [(3, 1), (5, 2)])
def test_the_fourier_solution_adds_and_has_the_rank_of_its_derivative(p, frequencies):
    grid = np.arange(p)
    u, t, v = [], [], []
    for f in range(1, frequencies + 1):
        for third in range(3):
            phase = 2 * np.pi * third / 3
            for sign in (1, -1):
                u.append(np.cos(2 * np.pi * f * grid / p + phase))
                t.append(sign * u[-1])
                v.append(sign * np.cos(2 * np.pi * f * grid / p + 2 * phase))
    pairs = list(itertools.product(range(p), repeat=2))
    a, b = np.array(pairs).T
    out = sum(np.outer(vj, (uj[a] + tj[b]) ** 2) for uj, tj, vj in zip(u, t, v, strict=True))
    target = np.eye(p)[(a + b) % p].T
    out, target = (x - x.mean(0) for x in (out, target))
    assert out == pytest.approx(out.max() / target.max() * target, abs=1e-9)
    rank = int(np.linalg.matrix_rank(jacobian(pairs, p, u, t, v, True), tol=1e-8))
    found = fourier_solution(p)
    assert found.details["rank"] == rank
    assert found.bounds == (Fraction(rank, 2), Fraction(len(u) * (3 * p - 2), 2))
    assert found.details["hidden"] == len(u)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("name", "function"), [("t", lambda z: z), ("t^2", np.square), ("x**3", lambda z: z**3)])
def test_frozen_features_have_the_rank_of_their_values(name, function, centred):
    p = 3
    a, b = np.array(list(itertools.product(range(p), repeat=2))).T
    for k in (1, 4, 5, 8, 9, 12):
        u, t = np.random.default_rng(k).normal(size=(2, k, p))
        values = function(u[:, a] + t[:, b])
        values = values - centred * values.mean(1, keepdims=True)
        rank = p * int(np.linalg.matrix_rank(values))
        found = lazy_random_features(p, k, centred=centred, activation=name)
        assert (found.value, found.details["rank"]) == (Fraction(rank, 2), rank)
        assert lazy_random_features(p, 99, centred=centred, activation=name).details["span"] >= rank // p


def test_numbers_of_pairs_and_of_inputs_have_to_fit():
    for wrong in ({"examples": 10, "data_rank": 5}, {"examples": 4, "data_rank": 5}, {"examples": 8, "data_rank": 6}):
        with pytest.raises(InputError, match="expected at most 9 pairs of rank at most"):
            quadratic_modular_addition(3, 2, centred=True, **wrong)
    assert quadratic_modular_addition(3, 2, centred=True, examples=9, data_rank=5).details["rank"] == 14
    with pytest.raises(InputError, match="got both"):
        quadratic_modular_addition(3, 2, centred=True, pairs=[(0, 1)], examples=1, data_rank=1)
    with pytest.raises(InputError, match="got one of them"):
        quadratic_modular_addition(3, 2, centred=True, examples=1)
    with pytest.raises(InputError, match="at most once"):
        quadratic_modular_addition(3, 2, centred=True, pairs=[(0, 1), (0, 1)])
    for pair in ((0, 3), (3, 0), (0, 1, 2)):
        with pytest.raises(InputError, match="two numbers from 0 to 2"):
            quadratic_modular_addition(3, 2, centred=True, pairs=[pair])


def test_what_is_known_by_numbers_alone_rests_on_how_often_inputs_occur():
    for k, status, says in ((3, "exact", False), (6, "conditional", True), (30, "exact", True)):
        found = quadratic_modular_addition(5, k, centred=False, examples=20, data_rank=9)
        assert found.status == status
        assert any("every input occurs in at least K/p" in line for line in found.hypotheses) == (k > 5)
        assert says == (k > 5)
