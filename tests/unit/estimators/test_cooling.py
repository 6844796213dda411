"""Large networks: a chain that is cooled down, held against exact coefficients and closed forms."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crunode.core.landscape import Landscape
from crunode.curvature.jacobian import NoOutputs
from crunode.estimators import coefficient, cooling
from crunode.estimators.closing import Closed, Closing
from crunode.estimators.coefficient import llc
from crunode.estimators.cooled_chain import CooledChain, Level
from crunode.estimators.cooling import cooled_estimate, extrapolated
from crunode.estimators.resolved import Resolved
from crunode.exact import deep_linear, deep_linear_local
from crunode.examples.toys import quadratic, reduced_rank


def levels_of(values: list[float], se: float = 0.0) -> list[Level]:
    return [Level(10.0 ** (4 + k), v, se, 1) for k, v in enumerate(values)]


@given(st.floats(1e3, 1e5), st.floats(0.01, 0.4), st.floats(0.1, 0.7))
def test_geometric_increments_lead_to_their_sum(limit: float, missing: float, ratio: float) -> None:
    values = [limit * (1 - missing * ratio**k) for k in range(4)]
    found, error = extrapolated(levels_of(values, se=1e-6 * limit))
    left = limit - values[-1]
    assert abs(found - limit) <= 2 * error + 0.5 * left + 1e-4 * limit


@pytest.mark.heavy
@given(st.floats(1e2, 1e5), st.floats(0.1, 1e3))
def test_the_answer_scales_with_the_levels(limit: float, factor: float) -> None:
    values = [limit * (1 - 0.3 * 0.5**k) for k in range(3)]
    found, error = extrapolated(levels_of(values, se=0.001 * limit))
    again = extrapolated(levels_of([factor * v for v in values], se=0.001 * factor * limit))
    assert again == pytest.approx((factor * found, factor * error), rel=1e-6)


def test_increments_that_do_not_shrink_are_not_believed_for_ever() -> None:
    found, error = extrapolated(levels_of([1000.0, 2000.0, 3000.0], se=1.0))
    assert 3000 < found < 6000
    assert error > 300


def test_level_values_are_their_own_limit() -> None:
    found, error = extrapolated(levels_of([5000.0, 5010.0, 5005.0], se=30.0))
    assert found == pytest.approx(5005, abs=30)
    assert error < 60


@pytest.mark.heavy
@pytest.mark.parametrize(("hidden", "rank"), [(20, 4), (30, 10)])
def test_reduced_rank_at_its_most_singular_point(hidden: int, rank: int) -> None:
    exact = float(deep_linear((60, hidden, 60), rank).value)
    est = cooled_estimate(reduced_rank(60, hidden, 60, rank=rank), seed=1, budget=12_000)
    assert est.ok
    # Three stated errors of a single chain: a false alarm in less than one of 300 seeds.
    assert abs(est.value - exact) < 3 * est.error
    # Of directions that the center does not have a fifth may belong to pieces of the valley that do not lead there.
    assert est.error < 0.2 * exact


@pytest.mark.heavy
def test_steps_are_corrected_where_all_directions_are_equally_stiff() -> None:
    # Without correction leapfrog steps of this length would add 8.9 %.
    values = [cooled_estimate(quadratic(2000), seed=seed, budget=12_000).value for seed in range(4)]
    assert sum(values) / 4 == pytest.approx(1000, abs=3 * math.sqrt(1000 / 4))


def test_a_small_budget_is_an_error_and_is_kept() -> None:
    est = cooled_estimate(reduced_rank(10, 5, 10, rank=2), budget=1200)
    assert not est.ok
    assert [f.code for f in est.findings if f.severity == "error"] == ["LLC115"]
    assert est.diagnostics["cost"]["gradients"] <= 1200 + 10


def test_a_flat_loss_is_an_error() -> None:
    est = cooled_estimate(Landscape.of_function(lambda w: 0 * w.sum(), torch.zeros(50), n=1000))
    assert not est.ok
    assert "LLC106" in [f.code for f in est.findings]


@pytest.mark.heavy
def test_too_few_examples_are_noticed() -> None:
    """A network with more inputs than the examples to begin with takes more of them."""
    torch.manual_seed(0)
    net = torch.nn.Linear(600, 2, bias=False)
    x = torch.randn(6000, 600)
    est = cooled_estimate(Landscape(net, (x, net(x).detach()), "gaussian"), budget=6000)
    assert est.diagnostics["examples"] > 600
    assert abs(est.value - 600) < 3 * est.error


@pytest.mark.heavy
def test_llc_cools_large_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coefficient, "_HUGE", 300)
    land = reduced_rank(20, 10, 20, rank=2)
    center = land.center.clone()
    est = llc(land, seed=3, budget=12_000)
    assert len(est.diagnostics["levels"]) >= 2
    assert all(r["steps"] > 0 for r in est.diagnostics["levels"])
    assert {"LLC114"} <= {f.code for f in est.findings}
    assert torch.equal(land.center, center)
    assert est.diagnostics["target"] == "local"


def deep_linear_network(widths: tuple[int, ...], ranks: tuple[int, ...], seed: int = 0) -> Landscape:
    """Layers of the given ranks on their own predictions."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for a, b, rank in zip(widths, widths[1:], ranks, strict=False):
        layer = torch.nn.Linear(a, b, bias=False)
        left, right = torch.randn(b, rank, generator=generator), torch.randn(a, rank, generator=generator)
        layer.weight.data = left @ right.T / max(a, b) ** 0.5 / rank**0.5
        layers.append(layer)
    net = torch.nn.Sequential(*layers)
    x = torch.randn(2000, widths[0], generator=generator)
    return Landscape(net, (x, net(x).detach()), "gaussian")


@pytest.mark.heavy
def test_at_a_smooth_point_the_rank_is_the_answer_however_far_the_chain_gets() -> None:
    """Layers of full rank but one: half the rank of the Jacobian is exact, and two levels are enough to know it."""
    widths, ranks = (40, 30, 35, 50), (30, 30, 8)
    exact = 8 * 40 + 30 * 50 - 8 * 30  # rows of the last layer see 30 directions, all others 8
    est = cooled_estimate(deep_linear_network(widths, ranks), seed=2, budget=8000)
    rank = est.diagnostics["center_rank"]
    assert rank["bent"] < 1e-3
    assert rank["rank"] == pytest.approx(exact, rel=0.03)
    assert est.value == pytest.approx(exact / 2, rel=0.05)
    assert abs(est.value - exact / 2) < 3 * est.error
    assert all(0 < level["share"] <= 1 for level in est.diagnostics["levels"])


@pytest.mark.heavy
def test_at_a_singular_point_the_valley_bounds_what_is_hidden() -> None:
    land = deep_linear_network((40, 30, 35, 50), (30, 8, 8))
    est = cooled_estimate(land, seed=2, budget=16_000)
    levels, center, valley = (est.diagnostics[name] for name in ("levels", "center_rank", "valley"))
    # More shows than the center has, so that it need not be asked whether there is more.
    assert levels[-1]["value"] > 1.05 * center["rank"] / 2
    assert "bent" not in center
    local = float(deep_linear_local([50, 35, 30, 40], [[8, 8, 8], [8, 8], [30]]).value)
    assert levels[-1]["value"] < est.value < valley["rank"] / 2
    assert abs(est.value / local - 1) < 0.05
    assert abs(est.value - local) < 3 * est.error


def run_of(levels: list[Level], shares: list[tuple[float, float]], rank: float) -> SimpleNamespace:
    """A chain at a center of rank 1410 that came to these levels, above a point of the valley with that rank."""
    measure = SimpleNamespace(center=SimpleNamespace(rank=1410.0, error=2.0), shares=shares, singular=True)
    return SimpleNamespace(levels=levels, measure=measure, valley=Closed(rank, 3.0, 1e-13, 0.1))


def test_levels_that_show_nothing_hidden_have_no_say_beside_the_valley() -> None:
    run = run_of(levels_of([578.0, 709.0], se=1.0), [(0.805, 0.005), (0.948, 0.006)], 2040.0)
    found = cooling._answered(run)
    assert found is not None
    assert 0.98 * 1020 <= found.value <= 1020
    assert found.terms["reach"] == pytest.approx(0.2 * (found.value - 705))
    assert {"temperature", "law"}.isdisjoint(found.terms)


def test_levels_that_were_followed_count_by_how_certain_they_are() -> None:
    levels, shares = levels_of([800.0, 940.0, 990.0], se=1.0), [(0.9, 0.002), (0.97, 0.002), (1.0, 0.002)]
    found = cooling._answered(run_of(levels, shares, 2100.0))
    alone = cooling._answer(levels, run_of(levels, shares, 2100.0).measure)
    assert found is not None
    assert alone is not None
    assert alone.value < found.value < 1050
    assert found.terms["pieces"] < 0.025 * 1050


def test_a_point_of_another_valley_has_no_say() -> None:
    levels, shares = levels_of([800.0, 940.0, 990.0], se=1.0), [(0.9, 0.002), (0.97, 0.002), (1.0, 0.002)]
    for rank in (1300.0, 1800.0):  # less than the center has, less than the chain saw
        run = run_of(levels, shares, rank)
        assert cooling._answered(run) == cooling._answer(levels, run.measure)


def not_reached(self: Closing, *_: object) -> None:
    raise NoOutputs("the rank in the valley is 900 ± 200")


@pytest.mark.heavy
def test_chains_go_on_where_the_valley_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "close", not_reached)
    widths, ranks = (20, 15, 18, 25), (15, 4, 4)
    est = cooled_estimate(deep_linear_network(widths, ranks), seed=2, budget=16_000)
    assert len(est.diagnostics["levels"]) >= 3
    assert est.diagnostics["valley"] is None
    local = float(deep_linear_local([25, 18, 15, 20], [[4, 4, 4], [4, 4], [15]]).value)
    assert abs(est.value - local) < 3 * est.error


@pytest.mark.heavy
def test_levels_go_on_without_the_rank_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(self: Resolved) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(Resolved, "_more", out_of_memory)
    est = cooled_estimate(reduced_rank(20, 10, 20, rank=2), seed=1, budget=16_000)
    assert len(est.diagnostics["levels"]) >= 3
    assert {level["share"] for level in est.diagnostics["levels"]} == {None}
    assert est.diagnostics["center_rank"] is None
    assert abs(est.value - 102) < 3 * est.error  # 102 is exact


def test_directions_that_are_known_to_be_there_and_do_not_show_are_in_the_error() -> None:
    levels = levels_of([900.0, 990.0], se=1.0)
    center = SimpleNamespace(rank=2000.0, error=1.0)
    answers = [
        cooling._answer(levels, SimpleNamespace(center=center, shares=[(0.9, 0.001), (0.99, 0.001)], singular=singular))
        for singular in (False, True)
    ]
    (plain, singular), errors = answers, [math.hypot(*a.terms.values()) for a in answers]
    assert plain.value == singular.value == pytest.approx(1000)
    assert plain.enough
    assert not singular.enough
    assert errors[0] < 30 < 90 < errors[1]


@pytest.mark.heavy
def test_a_temperature_that_shows_next_to_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crunode.estimators.cooling._FEW", 1.1)
    monkeypatch.setattr(Closing, "close", not_reached)
    est = cooled_estimate(deep_linear_network((20, 15, 18, 25), (15, 4, 4)), seed=2, budget=8000)
    assert not est.ok
    assert "LLC115" in [f.code for f in est.findings]


@pytest.mark.parametrize("off", [1.0, 1.1])
def test_a_level_is_done_again_where_halves_are_too_rough(off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the loss of the chain is held against that in single precision, here `off` times as large."""
    chain = CooledChain(quadratic(400), 0.1, 1.0, 0, 5000)
    chain._halved = True
    exact = CooledChain._excess
    monkeypatch.setattr(CooledChain, "_excess", lambda self, chart: off * exact(self, chart))
    t, before = chain.first(), chain.spent
    level = chain.level(t, first=True)
    assert level is not None
    assert abs(level.value - 200) < 5 * level.se  # five standard deviations: a false alarm in 10⁶ seeds
    assert chain._halved is (off == 1.0)
    assert (level.steps > 1.5 * 770) is (off != 1.0)  # 770 steps a level
    assert chain.spent - before == level.steps


def test_a_chain_takes_as_many_examples_as_its_layers_are_given_numbers() -> None:
    chain = CooledChain(deep_linear_network((1000, 4, 4), (4, 4)), 0.1, 1.0, 0, 10)
    assert chain.examples == 1250
    assert len(chain.index) == 1250
    assert torch.equal(chain.index, chain.index.sort().values)


def test_a_chain_that_sees_less_the_colder_it_is_is_held_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def cooled(land: Landscape, share: float, reach: float, seed: int, most: int, held: bool) -> cooling._Run:
        given.append((share, reach, most))
        run = cooling._Run(CooledChain(land, share, reach, seed, most), held)
        run.chain.spent, run.chain.seen, run.chain.top = 1000, 5000, 1.0
        run.levels = levels_of([1000.0, 900.0] if reach > 0.2 else [900.0, 1000.0], se=10.0)
        return run

    monkeypatch.setattr(cooling, "_cooled", cooled)
    land = reduced_rank(10, 5, 10, rank=2)
    est = cooled_estimate(land, budget=10_000)
    assert given == [(0.1, 1.0, 10_000), (0.03, 0.3, 9000), (0.01, 0.1, 8000)]
    assert est.spec["kernel"]["reach"] == 0.1
    assert est.diagnostics["cost"] == {"gradients": 3000.0, "examples": 15_000.0}
    given.clear()
    # One that may go anywhere is not held.
    cooled_estimate(land, "basin", budget=10_000)
    assert given == [(1.0, 1.0, 10_000)]


def test_a_chain_that_leaves_whatever_it_is_held_by_is_an_error() -> None:
    land = reduced_rank(10, 5, 10, rank=2)
    run = cooling._Run(CooledChain(land, 0.1, 1.0, 0, 100), held=True, levels=levels_of([1000.0, 900.0], se=10.0))
    run.answer = cooling._Answer(950.0, {"law": 1.0}, False)
    assert run.astray
    est = cooling._estimate(land, run, 0, (0.1, 1.0))
    assert not est.ok
    assert "LLC120" in [f.code for f in est.findings]
    run.levels = levels_of([1000.0, 950.0], se=10.0)  # 3.5 errors
    assert not run.astray
