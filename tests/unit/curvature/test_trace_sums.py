"""Running sums of random terms, how often each is drawn, and XTrace by its definition."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from crunode.curvature.linalg import _range, _Small
from crunode.curvature.traces import _Parts, _refine, _Sum


class Noisy:
    """A term whose probes scatter by a known amount in each of its columns."""

    name = "noisy"

    def __init__(self, mean, spread, columns=50, size=10**9, seed=0):
        self.true, self.spread, self.columns, self.size = mean, spread, columns, size
        self.chance = torch.Generator().manual_seed(seed)
        self.drawn = torch.zeros(0, columns, dtype=torch.float64)
        self.starts = []

    def sample(self, start, count):
        self.starts.append((start, count))
        fresh = torch.randn(count, self.columns, generator=self.chance, dtype=torch.float64)
        values = self.true + self.spread * math.sqrt(self.columns) * fresh
        self.drawn = torch.cat([self.drawn, values])
        return values

    def exact(self):
        return self.true


def test_a_sum_knows_the_mean_and_the_spread_of_what_was_drawn():
    term = Noisy(3.0, 2.0, columns=5)
    running = _Sum(term)
    for count in (30, 1, 9):
        running.draw(count)
    assert term.starts == [(0, 30), (30, 1), (31, 9)]
    assert running.probes == 40
    assert running.mean == pytest.approx(float(term.drawn.mean()))
    # One probe is the mean over columns, which are independent.
    assert running.spread == pytest.approx(float(term.drawn.var(0).sum().sqrt()) / 5)
    assert running.spread == pytest.approx(2.0, rel=0.2)
    assert not running.settled
    running.settle()
    assert (running.mean, running.spread, running.settled) == (3.0, 0.0, True)


def test_a_variance_is_known_before_it_decides_when_to_stop():
    # Degrees of freedom: one less than probes, in each column.
    for columns in (2, 10, 64):
        least = _Sum(Noisy(0.0, 1.0, columns)).least
        assert 100 <= (least - 1) * columns < 100 + columns
    assert 8 <= _Sum(Noisy(0.0, 1.0, 1)).least <= 16


def test_probes_are_drawn_until_the_error_is_as_wanted_and_where_it_is_large():
    small, large = Noisy(4.0, 0.5, seed=1), Noisy(6.0, 2.0, seed=2)
    parts = _Parts(exact=10.0, terms=[_Sum(small), _Sum(large)])
    value, se = _refine(parts, 0.01, 10**6)
    counts = [term.probes for term in parts.terms]
    assert value == pytest.approx(10 + sum(term.mean for term in parts.terms))
    assert abs(value - 20) < 4 * se
    assert se == pytest.approx(math.sqrt(sum(t.spread**2 / t.probes for t in parts.terms)))
    assert 0.85 * 0.01 * 20 < se <= 0.01 * value
    # The fewest in sum: as many as their spreads, Σ s / (ε T)² of each s.
    assert counts[1] / counts[0] == pytest.approx(4, rel=0.3)
    assert sum(counts) == pytest.approx(2.5**2 / 0.2**2, rel=0.3)


def test_a_term_that_costs_less_by_itself_is_taken_by_itself():
    cheap, dear = Noisy(5.0, 3.0, size=50), Noisy(1.0, 0.01, size=10**9)
    parts = _Parts(terms=[_Sum(cheap), _Sum(dear)])
    value, se = _refine(parts, 0.001, 10**6)
    assert [term.settled for term in parts.terms] == [True, False]
    assert value == pytest.approx(6, abs=4 * se)
    tiny = _Parts(terms=[_Sum(Noisy(2.0, 1.0, size=2))])
    assert _refine(tiny, 0.01, 100) == (2.0, 0.0)
    assert tiny.terms[0].probes == 0


def test_no_more_probes_are_drawn_than_allowed():
    parts = _Parts(terms=[_Sum(Noisy(1.0, 5.0))])
    value, se = _refine(parts, 1e-4, 64)
    assert parts.terms[0].probes == 64
    assert se == pytest.approx(5 / 8, rel=0.2)
    growing = Noisy(1.0, 5.0)
    _refine(_Parts(terms=[_Sum(growing)]), 0.05, 10**6)
    ends = np.cumsum([count for _, count in growing.starts])
    assert all(b <= 4 * a for a, b in pairwise(ends))
    assert math.isfinite(value)


def xtrace(matrix, omega):
    """Each vector left out of the basis in turn: the trace on the basis, and what the vector says of the rest."""
    size, count = omega.shape
    found = []
    for k in range(count):
        others = np.delete(omega, k, 1)
        basis = np.linalg.qr(matrix @ others)[0]
        rest = omega[:, k] - basis @ (basis.T @ omega[:, k])
        scale = (size - basis.shape[1]) / (rest @ rest)
        found.append(np.trace(basis.T @ matrix @ basis) + scale * rest @ matrix @ rest)
    return np.mean(found)


def test_the_trace_from_a_sketch_is_that_of_each_vector_left_out_in_turn():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(20, 20)) * np.geomspace(1, 0.01, 20)
    matrix, omega = root @ root.T, rng.normal(size=(20, 6))
    y = torch.as_tensor(matrix @ omega)
    basis = _range(y)
    given, whole = torch.as_tensor(omega), torch.as_tensor(matrix)
    assert basis.T @ basis == pytest.approx(np.eye(6), abs=1e-12)
    assert basis @ (basis.T @ y) == pytest.approx(y.numpy())
    beyond = whole @ basis
    small = _Small(
        basis.T @ beyond,
        basis.T @ y,
        basis.T @ given,
        beyond.T @ given,
        given.square().sum(0),
        (given * y).sum(0),
    )
    assert float(small.estimate(20)) == pytest.approx(xtrace(matrix, omega))
    without = small.without_each().estimate(20)
    assert without.tolist() == pytest.approx([xtrace(matrix, np.delete(omega, k, 1)) for k in range(6)])
    longer = _range(torch.cat([y, y[:, :1] + torch.as_tensor(rng.normal(size=(20, 1))), y[:, :2]], 1), basis)
    assert longer.shape[1] == 7  # what lies in the basis already adds nothing
    assert longer[:, :6] == pytest.approx(basis.numpy())
    assert longer.T @ longer == pytest.approx(np.eye(7), abs=1e-10)
