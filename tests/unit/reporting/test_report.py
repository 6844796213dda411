"""Reports are whole pages, say what the folders say, and take nothing from elsewhere."""

import importlib.util
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import InputError
from crunode.jobs.recipe import Cell, Expected, Recipe, Result, Run
from crunode.reporting.folder_views import folder_view, stored_draws
from crunode.reporting.fragments import asset, run_page
from crunode.reporting.html import page_html, policy, report, views_of
from crunode.reporting.result_views import result_view
from crunode.store.atomic import digest
from crunode.store.documents import write_document
from crunode.store.run_store import RunStore, save_estimate
from crunode.training.trajectory import Trajectory, Visit

_SPEC = importlib.util.spec_from_file_location("page_check", Path(__file__).with_name("page_check.py"))
page_check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(page_check)
check = page_check.check

EVIL = '"><img src=x onerror=alert(1)>\u202e</script><script>alert(2)</script>\x1b[2J'
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def sampled(folder, value=2.0, name="llc", **more):
    """A run folder with two levels of two chains and an estimate."""
    nbeta = [5.0, 5.0, 20.0, 20.0]
    spec = {"nbeta_per_chain": nbeta, "kernel": {"name": "HMC", "step": 0.1}, "reasons": {"kernel": "it is cheap"}}
    store = RunStore.create(folder, spec=spec, groups=[[0, 2], [1, 3]], seed=3, provenance={"crunode": "0.1.0"})
    rng = np.random.default_rng(0)
    for group in (0, 1):
        store.resume(group)
        for kind in ("warmup", "draws", "draws"):
            arrays = {"excess": rng.random((2, 30)) / 5, "positions": rng.random((2, 30, 3))}
            store.append(group, kind, arrays, {"x": np.ones(1)}, {"step": 0})
    store.finish("complete")
    levels = [{"nbeta": b, "value": value, "se": 0.1, "rhat": 1.002, "ess": 99.0} for b in (5.0, 20.0)]
    seen = {"rhat": 1.002, "ess": 99.0, "levels": levels}
    save_estimate(
        folder, Estimate(name, value, se=0.1, systematic=0.05, diagnostics=seen, terms={"step": 0.05}, **more)
    )
    return Path(folder)


def trajectory():
    visits = []
    for k in range(12):
        findings = (Finding.of("MC202", "ESS 40"),) if k == 3 else ()
        estimate = Estimate("llc", 9.0 - 5 * (k >= 6) + 0.01 * (k % 3), se=0.1, findings=findings)
        visits.append(Visit(10 * k, 1.0 / (k + 1), "", {"llc": estimate}))
    return Trajectory(tuple(visits), ("llc",), n=100, seed=4)


def recipe_run():
    rows = [Expected(1.5, 0.1, "Theorem 1", exact=True).row("λ", 1.4567, se=0.01)]
    rows += [Expected(0.5, 0.0, "Table 2").row("m", 8.0, se=0.1, why="another phase")]
    recipe = Recipe("demo", "A demonstration", "Nobody 2026", None, None, None, notes="One.\n\nTwo.\n\nThree.")
    return Run(recipe, "toy", 0, tuple(rows), (Result(Cell("a", {}), {"x": 1}, 0.5),), provenance={"crunode": "0.1.0"})


def seal(path, form, **content):
    body = {"format": form, "version": 1, **content}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**body, "sha256": digest(text.encode())}))


def test_a_folder_of_draws(tmp_path):
    view = folder_view(sampled(tmp_path / "a"))
    assert view.problems == ()
    assert [c.title for c in view.charts][:3] == ["Traces at nβ = 5", "Traces at nβ = 20", "Running estimate"]
    page = check(page_html([view]))
    assert "llc = 2.00 ± 0.1 mc ± 0.05 sys, ok: nothing stands against it." in page.text
    assert "because: it is cheap" in page.text
    assert "Duane" in page.text
    assert "0.1.0" in page.text


def test_the_chains_are_those_of_the_store(tmp_path):
    home = sampled(tmp_path / "a")
    ours, whole = stored_draws(home), RunStore.open(home).draws()
    assert set(ours.arrays) == {"excess"}
    np.testing.assert_array_equal(ours.arrays["excess"], whole.arrays["excess"])
    np.testing.assert_array_equal(ours.warmup["excess"], whole.warmup["excess"])
    from crunode.sampling.diagnostics import ess, split_rhat

    values = 5.0 * whole.at(5.0)["excess"]
    tables = {t.title: t for t in folder_view(home).tables}
    assert tables["Do the chains agree?"].rows[0] == ("5", "2", f"{split_rhat(values):.4g}", f"{ess(values):.5g}")
    assert tables["Every chain by itself"].rows[1][4] == f"{ess(values[1]):.4g}"


def test_findings_come_with_meaning_and_remedy(tmp_path):
    bad = Finding.of("LLC101", "value -3")
    page = check(run_page(result_view(Estimate("llc", -3.0, se=0.1, findings=(bad,)))), whole=False)
    assert "not ok: see below: LLC101." in page.text
    from crunode.errors import FINDINGS

    assert FINDINGS["LLC101"].meaning in page.text
    assert f"What to do: {bad.remedy}" in page.text


def test_serious_findings_come_first():
    findings = (Finding.of("MC202", "few"), Finding.of("LLC101", "negative"))
    text = check(run_page(result_view(Estimate("llc", 1.0, se=0.1, findings=findings))), whole=False).text
    assert text.index("error LLC101") < text.index("warning MC202")


def test_a_trajectory_shows_its_change_points():
    found = trajectory()
    (change,) = found.transitions("llc").changes
    view = result_view(found)
    assert view.charts[0].marks == [(change.previous + change.step) / 2]
    assert view.charts[0].bands == [(change.low, change.high)]
    page = check(page_html([view]))
    assert "llc: 1 change, between steps 50 and 60." in page.text
    assert "at step 110, the last of 12 visits" in page.text


def test_a_tracker_folder_reads_as_its_trajectory(tmp_path):
    from crunode.training.tracker_store import TrackerStore

    store = TrackerStore(tmp_path / "t", {"probes": {"llc": {}}, "seed": 4})
    for visit in trajectory().visits:
        store.keep(visit)
    one, other = folder_view(tmp_path / "t"), result_view(trajectory())
    assert one.charts == other.charts
    assert one.answer.number == other.answer.number


def test_a_recipe_shows_paper_value_ours_tolerance_and_verdict(tmp_path):
    run = recipe_run()
    view = result_view(run)
    table = view.tables[0]
    assert table.rows[0] == ("λ", "agrees", "1.5", "1.457", "0.01", "0.13", "", "exact: Theorem 1")
    assert table.rows[1][1] == "explained"
    assert table.footnotes == ("another phase",)
    printed = run.compare()
    assert all(cell in printed for row in table.rows for cell in row[:6] if cell)
    home = tmp_path / "r"
    write_document(home / "recipe.json", "crunode-recipe-store", 1, {"run": {"recipe": "demo", "seed": 0, "cells": {}}})
    run.save(home / "result.json")
    (home / "figures").mkdir()
    (home / "figures" / "one.png").write_bytes(PNG)
    (home / "figures" / "fake.png").write_bytes(b"<svg onload=alert(1)>")
    (home / "figures" / "two.svg").write_bytes(b"<svg/>")
    stored = folder_view(home)
    assert stored.tables == view.tables
    assert [p.data for p in stored.pictures] == [PNG]
    assert stored.problems == ("figures/fake.png is no PNG picture",)
    page = check(page_html([stored]))
    assert "Nobody 2026" in page.text
    assert "1 agrees, 1 explained" in page.text


class Training:
    """A training's history, as a package beside crunode may have one: known by its names alone."""

    def rows(self):
        return [{"epoch": k, "step": k, "loss": 1.0 / k, "validation_loss": 2.0 / k} for k in range(1, 5)]

    def to_dict(self):
        columns = {"epoch": [1, 2, 3, 4], "loss": [1.0, 0.5, 1 / 3, 0.25], "measured": {}}
        return {**columns, "findings": [], "seed": None, "spec": {}, "provenance": {}}


def test_other_results():
    assert "loss = 0.25 after 4 epochs" in check(page_html([result_view(Training())])).text
    draws = Draws({"excess": np.ones((2, 40))}, {}, np.array([1.0, 1.0]), {})
    assert "no result" in check(page_html([result_view(draws)])).text
    with pytest.raises(InputError, match="expected an estimate, draws"):
        result_view(3.0)


def test_a_sweep():
    from crunode.estimators.sweep_result import Cell as Point
    from crunode.estimators.sweep_result import Sweep

    cells = [
        Point(step, precision, 30.0, value=2.0 + step, se=0.1, systematic=0.0, ok=step < 0.1, findings=())
        for precision in (1.0, 10.0)
        for step in (0.01, 0.1)
    ]
    sweep = Sweep((0.01, 0.1), (1.0, 10.0), (30.0,), tuple(cells), (cells[0],) * 7, Estimate("llc", 2.1, se=0.1))
    view = result_view(sweep)
    assert view.tables[1].rows == [("0.01", "2.01", "2.01"), ("0.1", "2.1 not ok", "2.1 not ok")]
    check(page_html([view]))


def test_several_are_compared_at_the_top(tmp_path):
    one, other = sampled(tmp_path / "a"), sampled(tmp_path / "b", value=3.0)
    RunStore.create(tmp_path / "c", spec={}, groups=[[0]], seed=0, provenance={})
    views = views_of([one, other, tmp_path / "c"])
    page = check(page_html(views))
    z = 1.0 / (2**0.5 * np.hypot(0.1, 0.05))
    assert f"+1 +{z:.3g}" in page.text
    assert page.text.index("Comparison") < page.text.index("Findings")
    assert page.headings[:3] == [1, 2, 2]
    assert "#run-3" in page.links
    text = check(page_html(views_of({"first": one, "second": Estimate("llc", 3.0, se=0.1)}))).text
    assert "1. first" in text
    assert views_of([tmp_path])[1].name == f"{tmp_path.name}/b"


def test_settings_that_differ(tmp_path):
    views = []
    for k in (0, 1):
        views.append(result_view(Estimate("llc", 2.0, se=0.1, spec={"step": 0.1 + k, "n": 9}, seed=k), f"r{k}"))
    text = check(page_html(views)).text
    table = text[text.index("Settings that differ") :]
    assert "step 0.1 1.1" in table
    assert " n 9 9" not in table[:200]


def test_the_page_needs_nothing_and_lets_nothing_run():
    text = page_html([result_view(Estimate("llc", 2.0, se=0.1))])
    page = check(text)
    (rule,) = [
        dict(zip(("key", "value"), pair, strict=True))["value"]
        for pair in page.attributes
        if "default-src" in str(pair[1])
    ]
    assert rule == policy([asset("page.css")], [asset("page.js")])
    assert rule.startswith("default-src 'none'")
    assert "unsafe" not in rule
    assert re.findall(r"https?://[^\"'\s]+", text) == ["http://www.w3.org/2000/svg"]
    for word in ("innerHTML", "eval(", "fetch(", "XMLHttpRequest", "import(", "document.write"):
        assert word not in asset("page.js")
    assert "url(" not in asset("page.css")
    assert "@import" not in asset("page.css")
    assert len(text) < 60_000


def test_the_same_results_give_the_same_file(tmp_path):
    home = sampled(tmp_path / "a")
    first = report(home, tmp_path / "one.html").read_bytes()
    assert report(home, tmp_path / "two.html").read_bytes() == first


def test_wrong_input(tmp_path):
    good = Estimate("llc", 2.0, se=0.1)
    for thing, path in (
        (good, "a.txt"),
        ([], "a.html"),
        (tmp_path / "none", "a.html"),
        (tmp_path, "a.html"),
        (7, "a.html"),
    ):
        with pytest.raises(InputError, match="expected"):
            report(thing, tmp_path / path)
    (tmp_path / "b.html").mkdir()
    with pytest.raises(InputError, match=r"ending in \.html"):
        report(good, tmp_path / "b.html")
    assert not (tmp_path / "a.html").exists()


def test_hostile_text_is_escaped_everywhere(tmp_path):
    home = tmp_path / "runs" / "<b>&\"'"
    spec = {EVIL: EVIL, "reasons": {"kernel": EVIL}, "kernel": {"name": EVIL}}
    RunStore.create(home, spec=spec, groups=[[0]], seed=0, provenance={"git": EVIL})
    finding = Finding("LLC101", "error", EVIL, EVIL)
    save_estimate(home, Estimate(EVIL, 1.0, se=0.1, findings=(finding,), terms={EVIL: 0.1}))
    text = page_html(views_of([home, home]))
    page = check(text)
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert page.text.count("<script>alert(2)</script>\\x1b[2J") > 6


def test_long_text_is_cut():
    long = "x" * 1_000_000
    estimate = Estimate(long, 1.0, se=0.1, spec={long: long}, findings=(Finding("LLC101", "error", long, long),))
    assert len(page_html([result_view(estimate)])) < 120_000


@pytest.mark.parametrize("place", ["manifest.json", "estimates/llc.json", "groups/g000.json", "chunks", "nothing"])
@pytest.mark.parametrize("kind", ["cut", "link", "gone"])
def test_broken_folders_say_what_is_wrong(tmp_path, place, kind):
    home = sampled(tmp_path / "runs" / "a")
    secret = tmp_path / "secret"
    secret.write_text("top secret")
    target = next((home / "chunks").iterdir()) if place == "chunks" else home / place
    if place == "nothing":
        (home / "manifest.json").write_text("{}")
    elif kind == "cut":
        target.write_bytes(target.read_bytes()[:-5])
    else:
        target.unlink()
        if kind == "link":
            target.symlink_to(secret)
    gone = place == "manifest.json" and kind == "gone"
    if gone:
        with pytest.raises(InputError, match="which holds none"):
            views_of(home)
        assert views_of([home, tmp_path / "runs" / "a"])[0].problems == ("there is no run in this folder",)
        return
    views = views_of([home])
    page = check(page_html(views))
    assert "top secret" not in page.text
    lost = place == "estimates/llc.json" and kind == "gone"  # nobody can know that there was one
    assert lost or views[0].problems
    assert lost or "could not be shown" in page.text


WRONG = [None, 3, "x", [1, "a", None], {"a": [{}]}, {"value": 10**400, "se": "x"}, [[[]]] * 3, -1e308, True]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_documents_of_wrong_types(tmp_path, wrong):
    seal(tmp_path / "r" / "a" / "recipe.json", "crunode-recipe-store", run=wrong)
    seal(
        tmp_path / "r" / "a" / "result.json",
        "crunode-recipe-run",
        rows=wrong,
        cells=wrong,
        notes=wrong,
        messages=wrong,
        title=wrong,
    )
    seal(tmp_path / "r" / "b" / "sweep.json", "crunode-sweep", asked=wrong, plan=wrong)
    seal(
        tmp_path / "r" / "b" / "result.json",
        "crunode-sweep-result",
        sweep={"cells": wrong, "summary": {"sensitivity": wrong}},
    )
    seal(tmp_path / "r" / "b" / "default.json", "crunode-sweep-record", record={"diagnostics": wrong, "terms": wrong})
    seal(tmp_path / "r" / "c" / "training.json", "crunode-training", settings=wrong)
    seal(
        tmp_path / "r" / "c" / "history.json", "crunode-training-history", rows=[{"loss": wrong, "epoch": wrong}, wrong]
    )
    seal(tmp_path / "r" / "d" / "tracker.json", "crunode-tracker", settings=wrong)
    for k in range(8):
        visit = {
            "step": k if k else wrong,
            "loss": wrong,
            "estimates": {"llc": {"value": wrong if k % 2 else 1.0, "se": wrong}},
        }
        seal(tmp_path / "r" / "d" / "visits" / f"step-{k:08d}.json", "crunode-visit", visit=visit)
    seal(tmp_path / "r" / "e" / "manifest.json", "crunode-run", status=wrong, spec=wrong, groups=wrong, findings=wrong)
    seal(
        tmp_path / "r" / "f" / "manifest.json",
        "crunode-run",
        spec={"nbeta_per_chain": wrong, "role_per_chain": wrong},
        groups=[[0]],
    )
    check(page_html(views_of(tmp_path / "r")))


def test_links_are_not_followed(tmp_path):
    home = tmp_path / "r"
    write_document(home / "recipe.json", "crunode-recipe-store", 1, {"run": {"recipe": "demo", "cells": {}}})
    recipe_run().save(home / "result.json")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.png").write_bytes(PNG + b"secret")
    (home / "figures").symlink_to(tmp_path / "outside")
    assert folder_view(home).pictures == ()
    (home / "figures").unlink()
    (home / "figures").mkdir()
    (home / "figures" / "a.png").symlink_to(tmp_path / "outside" / "secret.png")
    view = folder_view(home)
    assert view.pictures == ()
    assert "a link" in view.problems[0]


def _luminance(color):
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one, other):
    a, b = sorted((_luminance(one), _luminance(other)))
    return (b + 0.05) / (a + 0.05)


def test_colors_can_be_told_from_the_paper():
    """WCAG 2: 4.5 for text, 3 for lines."""
    blocks = re.findall(r"(:root[^{]*)\{([^}]*--paper[^}]*)\}", asset("page.css"))
    assert len(blocks) == 4
    assert blocks[1][1].split() == blocks[2][1].split()  # dark by preference and by choice are the same
    for _, block in blocks:
        colors = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for name in ("ink", "soft", "link"):
            assert _contrast(colors[name], colors["paper"]) >= 4.5
            assert _contrast(colors[name], colors["shade"]) >= 4.5
        for name in ("good", "warn", "bad", "mild"):
            assert _contrast(colors[name], colors[f"{name}-paper"]) >= 4.5
        for k in range(8):
            assert _contrast(colors[f"c{k}"], colors["paper"]) >= 3
            assert _contrast(colors[f"c{k}"], colors["band"]) >= 3
