"""What a short descent from the center says of an estimate: on a double well, whose depth is 1/4."""

import pytest
import torch

import crunode as cr
from crunode.estimators.polish import Polish, center_findings, check_length


def well(dim):
    return cr.Landscape.of_function(
        lambda w: w[1:].square().sum() - w[0] ** 2 + w[0] ** 4, torch.zeros(dim, dtype=torch.float64)
    )


def said(dim=2, value=1.0, se=0.1, plain=1.0, coldest=1.0, noise=None, known=()):
    measures = {} if noise is None else {"label_noise": noise}
    seen = {"levels": [{"nbeta": coldest}, {"nbeta": coldest / 2}], "plain": {"nbeta": plain}}
    est = cr.Estimate("llc", value, se=se, spec={"measures": measures}, diagnostics=seen, findings=known)
    after, found = center_findings(well(dim), est, steps=150)
    assert found.fell == pytest.approx(0.25, rel=1e-4)
    assert found.saddle
    return [f for f in after.findings if f not in known]


@pytest.mark.parametrize(("dim", "value", "scale"), [(2, 1.0, 1), (2, 50.0, 1), (8, 0.2, 1), (8, 3.0, 3), (8, 20.0, 4)])
def test_a_fall_counts_from_half_of_what_is_known_of_the_estimate(dim, value, scale):
    """nβ / 4 against half of the estimate, which is no more than d/2 and not taken for less than 1."""
    assert not said(dim, value, plain=1.96 * scale)
    (finding,) = said(dim, value, plain=2.04 * scale)
    assert finding.code == "LLC111"
    assert f"a saddle, from which the loss falls by 0.25, nbeta times which is {0.51 * scale:.3g}" in finding.message
    assert "within 0.707 of the center" in finding.message


def test_the_coldest_level_counts_where_labels_carry_no_noise():
    for noise, coldest_counts in ((None, False), (0.25, False), (1.0, False), (0.24, True), (0.0, True)):
        assert bool(said(plain=1.0, coldest=9.0, noise=noise)) == coldest_counts
        assert bool(said(plain=9.0, coldest=1.0, noise=noise)) != coldest_counts


def test_a_value_below_zero_by_two_errors_is_told_too():
    assert [f.code for f in said(value=-1.0, se=0.4, plain=9.0)] == ["LLC111", "LLC101"]
    assert [f.code for f in said(value=-1.0, se=0.6, plain=9.0)] == ["LLC111"]
    assert [f.code for f in said(value=1.0, se=0.1, plain=9.0)] == ["LLC111"]
    known = (cr.Finding.of("LLC101", "known"),)
    assert [f.code for f in said(value=-1.0, se=0.4, plain=9.0, known=known)] == ["LLC111"]


def test_a_slope_is_told_from_a_saddle():
    land = cr.Landscape.of_function(lambda w: (w - 1).square().sum(), torch.zeros(2, dtype=torch.float64))
    seen = {"levels": [{"nbeta": 9.0}], "plain": {"nbeta": 9.0}}
    est = cr.Estimate("llc", 1.0, se=0.1, spec={"measures": {}}, diagnostics=seen)
    after, found = center_findings(land, est, steps=100)
    assert not found.saddle
    assert "a slope, down which the loss falls by 2, nbeta times which is 18" in after.findings[0].message
    assert "within 1.41 of the center" in after.findings[0].message
    short, cut = center_findings(land, est, steps=2)
    assert not cut.converged
    assert "already" in short.findings[0].message
    assert "already" not in after.findings[0].message


def test_a_look_is_a_small_part_of_what_an_estimate_takes():
    """A fiftieth of a budget, a twentieth of the examples, and never more than 150 gradients."""
    assert [check_length(b, 10) for b in (49, 50, 99, 100, 7499, 7500, 10**6)] == [0, 1, 1, 2, 149, 150, 150]
    assert [check_length(None, 10, x) for x in (199, 200, 400, 10**9)] == [0, 1, 2, 150]
    assert check_length(100, 10, 10**9) == 2
    assert check_length(None, 10) == 150


def test_a_polish_tells_its_numbers():
    made = Polish(0.5, 0.25, 3.0, 1.0, 12, False, True)
    assert made.fell == 2.0
    assert made.summary()["fell"] == 2.0
    assert made.summary()["relative"] == 0.25
    assert "after 12 gradients, at a distance of 0.5 the loss is 1 and falls further" in made.finding().message
