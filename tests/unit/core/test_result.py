"""Estimates, draws and findings as values."""

import json
import math

import numpy as np
import pytest

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import FINDINGS, InputError


def draws(levels=(1.0,), chains=2, count=3):
    nbeta = np.repeat(levels, chains)
    excess = np.arange(len(nbeta) * count, dtype=float).reshape(len(nbeta), count)
    return Draws({"excess": excess}, {}, nbeta, {"nbeta": list(levels)})


@pytest.mark.parametrize("code", FINDINGS)
def test_every_finding_says_what_it_means_and_what_to_do(code):
    kind = FINDINGS[code]
    assert kind.severity in ("info", "warning", "error")
    assert kind.meaning.endswith(".")
    assert str(kind.remedy).endswith(".")
    assert str(Finding.of(code, "seen")) == f"{code} {kind.title}: seen. {kind.remedy}"


def test_ok_needs_finite_numbers_and_no_error():
    assert Estimate("llc", 1.0, se=0.1).ok
    assert Estimate("llc", 1.0, se=0.1, findings=(Finding.of("MC202", "x"), Finding.of("MODEL501", "x"))).ok
    assert not Estimate("llc", 1.0, se=0.1, findings=(Finding.of("MC201", "x"),)).ok
    for value, se, systematic in ((math.nan, 0.1, 0.0), (1.0, math.nan, 0.0), (1.0, 0.1, math.inf)):
        assert not Estimate("llc", value, se=se, systematic=systematic).ok


def test_error_joins_both_parts():
    assert Estimate("llc", 1.0, se=3.0, systematic=4.0).error == 5.0


@pytest.mark.parametrize(
    ("value", "se", "text"),
    [
        (12.3456, 0.2, "12.35 ± 0.2"),
        (1234.5, 20.0, "1234 ± 20"),
        (0.0, 0.0, "0 ± 0"),
        (math.nan, math.nan, "nan ± nan"),
    ],
)
def test_text_shows_digits_that_mean_something(value, se, text):
    assert str(Estimate("llc", value, se=se)).startswith(f"llc {text} mc")


def test_text_tells_chains_diagnostics_and_findings():
    told = str(
        Estimate(
            "llc",
            2.0,
            se=0.1,
            findings=(Finding.of("MC201", "x"), Finding.of("MODEL501", "x")),
            diagnostics={"rhat": 1.234, "ess": 81.7},
            draws=draws((1.0, 2.0)),
        )
    )
    assert told.endswith("| 2 nbeta × 2 chains × 3 draws | R-hat 1.23, ESS 82 | not ok (MC201)")


def test_html_is_escaped():
    page = Estimate("<llc>", 2.0, se=0.1, findings=(Finding.of("LLC105", "n < 10"),))._repr_html_()
    assert "&lt;llc&gt;" in page
    assert "n &lt; 10" in page


def test_dict_round_trip_through_json_shares_nothing():
    spec = {"kernel": {"step": [1e-3]}}
    one = Estimate("llc", 2.0, se=0.1, spec=spec, seed=3, findings=(Finding.of("LLC105", "x"),), terms={"heating": 0.5})
    content = one.to_dict()
    assert content["ok"] is True
    assert Estimate.from_dict(json.loads(json.dumps(content))) == one
    content["spec"]["kernel"]["step"].append(1.0)
    assert one.spec == {"kernel": {"step": [1e-3]}}


@pytest.mark.parametrize("change", [{"colour": 1}, {"findings": None}, {"findings": [{"code": "X"}]}])
def test_content_of_another_kind_is_refused(change):
    content = {**Estimate("llc", 2.0, se=0.1).to_dict(), **change}
    with pytest.raises(InputError, match="another version"):
        Estimate.from_dict(content)


def test_further_findings_make_a_copy():
    one = Estimate("llc", 2.0, se=0.1)
    assert one.with_findings(Finding.of("MC201", "x")).ok is False
    assert one.ok


def test_draws_by_level():
    both = draws((2.0, 1.0))
    assert (both.chains, both.draws, both.levels()) == (4, 3, [1.0, 2.0])
    assert both.at(1.0)["excess"][0, 0] == 6.0
    with pytest.raises(InputError, match=r"one of the sampled nbeta \[1.0, 2.0\], got 3"):
        both.at(3.0)


def test_draws_in_the_arviz_schema():
    pytest.importorskip("xarray")
    arrays = {"excess": np.ones((2, 3)), "positions": np.ones((2, 3, 4)), "pointwise": np.full((2, 3, 5), 0.5)}
    tree = Draws(arrays, {"excess": np.ones((2, 1))}, np.ones(2), {"n": 5}).to_datatree()
    assert set(tree.children) == {"posterior", "sample_stats", "log_likelihood", "warmup_sample_stats"}
    assert float(tree["log_likelihood"]["pointwise"][0, 0, 0]) == -0.5
    assert json.loads(tree["posterior"].attrs["crunode_spec"]) == {"n": 5}
