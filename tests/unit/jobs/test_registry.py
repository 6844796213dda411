"""Recipes as installed packages offer them: what is said of names and packages that give none."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

import crunode as cr
from crunode.jobs import registry
from crunode.jobs.registry import recipe, recipes
from crunode.testing import check_recipe

MODULE = '''
"""Cubes of small numbers, as a third party writes a recipe: with public names only."""

from crunode.jobs import Cell, Expected, Recipe


def cells(size, seed):
    return [Cell(f"cube {x}", {"x": x, "seed": seed}) for x in range({"toy": 2, "paper": 5}[size])]


def compute(cell):
    return {"value": cell.settings["x"] ** 3}


def rows(results, size):
    known = (0, 1, 8, 27, 64)
    return [Expected(known[r.settings["x"]], 0, "by hand", exact=True).row(r.cell.name, r["value"]) for r in results]


RECIPE = Recipe("cubes", "Cubes of small numbers", "nobody", cells, compute, rows)
'''


def install(folder, name, version, points):
    """What a package manager leaves of a package with these entry points."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{key} = {value}" for key, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines, ""]))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path where the package "tiny" offers one good recipe."""
    folder = tmp_path / "site"
    install(folder, "tiny", "1.0", {"cubes": "tiny_cubes:RECIPE"})
    (folder / "tiny_cubes.py").write_text(MODULE)
    (folder / "tiny_broken.py").write_text("raise RuntimeError('planted')\n")
    (folder / "tiny_exit.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("tiny_cubes", "tiny_broken", "tiny_exit"):
        sys.modules.pop(name, None)


def listed(run):
    code, out, err = run("recipe", "list")
    assert (code, err) == (0, "")
    return out


def test_a_recipe_of_another_package_is_a_valid_one(site):
    assert {"cubes", "toy-volumes"} <= set(recipes())
    assert check_recipe(recipe("cubes")).ok
    assert cr.recipe("cubes") is recipe("cubes")


def test_an_unknown_name_gets_the_nearest_and_where_they_were_looked_for(site):
    with pytest.raises(cr.InputError) as caught:
        recipe("cubse")
    assert "got 'cubse'; nearest: cubes" in str(caught.value)
    said = str(caught.value).split("looked in: ")[1].split(", ")
    assert sorted(said) == said
    assert {f"crunode {metadata.version('crunode')}", "tiny 1.0"} <= set(said)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("tiny_broken", r"\(RuntimeError: planted\)"),
        ("tiny_exit", r"\(SystemExit: 3\)"),
        ("tiny_nowhere", "tiny_nowhere"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_and_the_others_are_listed(site, run, module, words):
    install(site, "broken-pack", "2.1", {"bad": f"{module}:RECIPE"})
    with pytest.raises(cr.InputError, match=rf"bad = {module}:RECIPE of broken-pack 2\.1, .*{words}.*uninstall"):
        recipe("bad")
    out = listed(run)
    (line,) = [line for line in out.splitlines() if line.startswith("bad ")]
    assert "cannot be loaded" in line
    assert "broken-pack 2.1" in line
    assert "Cubes of small numbers" in out
    assert "toy-volumes" in out


def test_what_is_no_recipe_is_told_with_its_package(site):
    install(site, "wrong", "0.1", {"wrong": "tiny_cubes:cells"})
    with pytest.raises(cr.InputError, match=r"expected a Recipe at .*wrong = tiny_cubes:cells of wrong 0\.1, got func"):
        recipe("wrong")


def test_two_packages_with_one_name_are_both_told_and_neither_is_taken(site, run):
    install(site, "rival", "3.0", {"cubes": "tiny_rival:RECIPE"})
    with pytest.raises(cr.InputError) as caught:
        recipe("cubes")
    for words in ("tiny_cubes:RECIPE of tiny 1.0", "tiny_rival:RECIPE of rival 3.0", "uninstall", "rename"):
        assert words in str(caught.value)
    assert recipes().count("cubes") == 1
    (line,) = [line for line in listed(run).splitlines() if line.startswith("cubes ")]
    assert str(caught.value) in line
    (row,) = [row for row in json.loads(run("recipe", "list", "--json")[1]) if row["name"] == "cubes"]
    assert str(caught.value) in row["title"]


def test_the_same_object_of_two_packages_is_a_conflict_too(site):
    install(site, "rival", "3.0", {"cubes": "tiny_cubes:RECIPE"})
    with pytest.raises(cr.InputError, match="got 2"):
        recipe("cubes")


def test_one_package_found_twice_is_no_conflict(site, tmp_path, monkeypatch):
    install(tmp_path / "again", "Tiny", "1.0", {"cubes": "tiny_cubes:RECIPE"})
    both = [
        point
        for folder in (site, tmp_path / "again")
        for dist in metadata.distributions(path=[str(folder)])
        for point in dist.entry_points
    ]
    assert len(both) == 2
    monkeypatch.setattr(registry, "_points", lambda: both)
    assert recipe("cubes").title == "Cubes of small numbers"
    assert recipes() == ["cubes"]


def test_without_any_recipe_there_is_a_sentence(run, monkeypatch):
    monkeypatch.setattr(registry, "_points", lambda: [])
    assert listed(run).startswith("No installed package offers a recipe")
    assert json.loads(run("recipe", "list", "--json")[1]) == []
    with pytest.raises(cr.InputError, match=r"no installed package has an entry point of the group crunode\.recipes"):
        recipe("cubes")


def command(site, *words):
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "crunode", "recipe", *words, "--json"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.heavy
def test_the_command_line_lists_and_runs_what_another_package_offers(site):
    assert {"name": "cubes", "title": "Cubes of small numbers", "paper": "nobody"} in command(site, "list")
    found = command(site, "run", "cubes")
    assert (found["recipe"], found["ok"]) == ("cubes", True)
    assert [row["ours"] for row in found["rows"]] == [0, 1]
