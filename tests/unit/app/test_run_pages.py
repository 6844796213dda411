"""The pages about runs."""

import json
import re
import subprocess
import sys
import time

import pytest

from crunode.app.live_progress import progress_of
from crunode.store.documents import write_document
from crunode.store.run_record import read_run

HOSTILE = "<img src=x onerror=alert(1)>"


def names(text):
    return re.findall(r'<th scope="row"><a href="/run/[0-9a-f]{20}">(.*?)</a>', text)


def test_the_catalogue_lists_all_runs(client):
    found = client.get("/", order="name", down="no").text
    assert names(found) == ["&lt;img src=x onerror=alert(1)&gt;", "a/one", "a/two", "half"]
    assert "2.50 ± 0.3 mc ± 0.1 sys" in found
    assert "4 runs." in found


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"kind": "recipe"}, ["half"]),
        ({"name": "two"}, ["a/two"]),
        ({"name": "a/*"}, ["a/one", "a/two"]),
        ({"ok": "yes"}, ["a/one", "a/two"]),
        ({"ok": "no", "finding": "llc101"}, ["&lt;img src=x onerror=alert(1)&gt;"]),
        ({"where": "draws=11"}, ["a/two"]),
        ({"since": "2999-01-01"}, []),
        ({"status": "complete"}, []),
    ],
)
def test_filters(client, query, wanted):
    assert names(client.get("/", order="name", down="no", **query).text) == wanted


def test_order_and_its_sign(client):
    found = client.get("/", order="value", down="yes", kind="draws").text
    assert names(found) == ["&lt;img src=x onerror=alert(1)&gt;", "a/two", "a/one"]
    assert found.count("aria-sort") == 1
    assert 'aria-sort="descending"><a href="/?kind=draws&amp;order=value&amp;down=no">result' in found


@pytest.mark.parametrize(
    "query",
    [{"kind": "x"}, {"ok": "maybe"}, {"where": "n"}, {"where": "unknown=1"}, {"since": "x"}, {"order": "x"},
     {"page": "-1"}, {"page": "x"}, {"order": "name; DROP TABLE runs"}],
)  # fmt: skip
def test_bad_filters_are_said(client, query):
    found = client.get("/", **query)
    assert found.status == 400
    assert 'role="alert"' in found.text
    assert "expected" in found.text


@pytest.mark.heavy
def test_pages_of_the_list(make_client, tmp_path):
    for k in range(120):
        body = {"settings": {"model": {"kind": "mlp"}, "seed": k}}
        write_document(tmp_path / f"t{k:03d}" / "training.json", "crunode-training", 1, body)
    client = make_client(tmp_path)
    first, last = (client.get("/", order="name", down="no", page=p).text for p in (1, 9))
    assert names(first) == [f"t{k:03d}" for k in range(50)]
    assert names(last) == [f"t{k:03d}" for k in range(100, 120)]
    assert "page 3 of 3" in last
    assert "Next" in first
    assert "Next" not in last


def test_a_run_that_comes_later_is_listed(make_client, tmp_path):
    client = make_client(tmp_path)
    assert "There are none yet" in client.get("/").text
    write_document(tmp_path / "t" / "training.json", "crunode-training", 1, {"settings": {}})
    client.board.runs._next = 0.0
    assert names(client.get("/").text) == ["t"]


def test_the_page_of_a_run(client):
    found = client.get("/run/" + client.key("a/one"))
    assert found.status == 200
    assert "<strong>llc = 2.50 ± 0.3 mc ± 0.1 sys</strong>" in found.text
    assert 'id="run-findings"' in found.text
    assert 'id="run-settings"' in found.text


def test_the_same_number_as_the_command_line(client):
    root = client.board.runs.catalog.root
    command = [sys.executable, "-m", "crunode", "runs", "show", "a/two", "--root", root, "--json"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert f"llc = {said['value']:.2f} ± {said['se']} mc" in client.get("/run/" + client.key("a/two")).text


def test_hostile_names_and_findings_are_escaped(client):
    for found in (client.get("/"), client.get("/run/" + client.key(HOSTILE)), client.get("/", name=HOSTILE)):
        assert found.status == 200
        assert "<img src=x" not in found.text
        assert "<b>bad" not in found.text
        assert "&lt;img src=x" in found.text


@pytest.mark.parametrize(
    "key",
    ["0" * 20, "a/one", "..", "%2e%2e", "../../etc/passwd", "a\0b", "A" * 20, "0" * 4000 or "x", "½" * 20, " "],
)  # fmt: skip
def test_what_is_no_key_of_a_run_is_not_there(client, key):
    for path in (f"/run/{key}", f"/run/{key}/live", f"/static/{key}"):
        assert client.get(path).status in (404, 413)
    assert client.get("/compare", run=[key, "1" * 20]).status == 404


def test_a_key_of_a_folder_that_is_no_run_is_not_there(client):
    for name in ("a", "..", "/etc", "a/one/estimates", ".", "a/one/../two"):
        assert client.get("/run/" + client.key(name)).status == 404


def test_tags(make_client):
    client = make_client()
    at = "/run/" + client.key("a/one")
    assert client.post(at + "/tags", tags="best paper", change="add").headers["location"] == at
    assert "Remove the tag best" in client.get(at).text
    assert names(client.get("/", tag="best").text) == ["a/one"]
    assert client.post(at + "/tags", tags="best", change="remove").status == 303
    assert client.board.runs.catalog.record("a/one").tags == ("paper",)
    for bad in ("<b>", "x" * 65, "", "   "):
        assert client.post(at + "/tags", tags=bad, change="add").status == 400
    assert client.post(at + "/tags", tags="x", change="destroy").status == 400


def test_comparison(client):
    keys = [client.key(name) for name in ("a/one", "a/two")]
    found = client.get("/compare", run=keys).text
    assert "+1" in found
    assert "+2.24" in found  # 1 / hypot(0.3, 0.1, 0.3, 0.1)
    assert ">draws<" in found.replace("\n", "")
    assert f'href="/run/{keys[0]}"' in found
    assert client.get("/compare", run=keys[:1]).status == 400
    assert client.get("/compare", run=[f"{k:020d}" for k in range(9)]).status == 400


def test_comparison_of_unlike_runs_has_the_differences(client):
    found = client.get("/compare", run=[client.key("a/one"), client.key("half")]).text
    assert "kind: a/one" in found.replace("&#34;", '"')


def test_chosen_runs_stay_chosen(client):
    key = client.key("a/one")
    found = client.get("/", run=key, kind="recipe").text
    assert f'<input type="hidden" name="run" value="{key}">' in found
    assert f'name="run" value="{key}" checked' in found


def test_progress_is_read_from_the_folder(client):
    at = "/run/" + client.key("half")
    assert "1 of 4 cells" in client.get(at).text
    root = client.board.runs.catalog.root
    write_document(root / "half" / "cells" / "1.json", "crunode-recipe-cell", 1, {"cell": "cell 1", "value": {}})
    found = client.get(at + "/live").text
    assert 'data-said="half: 2 of 4 cells"' in found
    assert '<progress max="4" value="2" aria-label="Progress of half">' in found
    assert "data-done" not in found
    assert "half" in client.get("/running").text


def test_the_end_of_a_run_is_told(make_client):
    client = make_client()
    home = client.board.runs.catalog.root / "half"
    write_document(home / "result.json", "crunode-recipe-run", 1, {"rows": [], "cells": []})
    assert 'data-done="1"' in client.get(f"/run/{client.key('half')}/live").text


def test_progress_of_draws(tmp_path):
    import numpy as np

    from crunode.store.run_store import RunStore

    spec = {"warmup": 5, "draws": 20, "nbeta_per_chain": [1.0, 1.0, 1.0]}
    with RunStore.create(tmp_path / "a", spec=spec, groups=[[0, 1], [2]], seed=0, provenance={}) as store:
        store.resume(0)
        store.append(0, "draws", {"excess": np.ones((2, 10))}, {"w": np.zeros(4)}, {})
        record = read_run(tmp_path / "a", "manifest.json")
        found = progress_of(tmp_path / "a", record, now=time.time() + 60)
    assert found.words == "20 of 75 draws"
    assert 59 <= found.quiet <= 70
