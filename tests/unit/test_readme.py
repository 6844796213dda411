"""The README's code runs as written, and its links lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_code_runs_as_written(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)
    assert len(blocks) == 1
    names: dict = {}
    exec(compile(blocks[0], "README.md", "exec"), names)
    assert str(names["est"]) in capsys.readouterr().out
    assert names["est"].value > 0


@pytest.mark.parametrize("target", re.findall(r"\]\(((?!https?:)[^)]+)\)", README))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


def test_picture_is_small():
    assert (ROOT / "docs/images/demo.png").stat().st_size < 200_000


def test_commands_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w+)", README):
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("name", ["findings.md", "accuracy.md"])
def test_pages_are_what_code_and_validation_say(name):
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == runpy.run_path(str(ROOT / "docs/conf.py"))["PAGES"][name](), "build the docs to renew it"
