"""Where only torch, numpy and safetensors are installed: all that needs no more works, and the rest says what it needs.

That no module or function imports another package but through `need` is a rule of tests/contracts/test_layout.py, so
that what differs here is what `need` refuses.
"""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import crunode
from crunode._extras import need
from crunode.errors import MissingExtra

SRC = Path(crunode.__file__).parent
COMMANDS = ("crunode.cli", "crunode.__main__")  # typer and its own, loaded as soon as a command runs
WITH_TORCH = ("jinja2", "markupsafe")  # torch itself needs them

pytestmark = pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")  # toy sizes


def modules() -> list[str]:
    paths = sorted(SRC.rglob("*.py"))
    names = [".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not name.startswith(COMMANDS)]


def doors() -> list[tuple[str, str]]:
    """Packages and extras that `need` is asked for in words of the source."""
    calls = [n for path in SRC.rglob("*.py") for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    needs = (n for n in calls if getattr(n.func, "id", "") == "need")
    words = {(n.args[0].value, k.value.value) for n in needs for k in n.keywords if isinstance(k.value, ast.Constant)}
    return sorted(word for word in words if word[0] not in WITH_TORCH)


def noisy() -> crunode.Landscape:
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    net = nn.Linear(3, 1, bias=False)
    return crunode.Landscape(net, (x, net(x).detach() + torch.randn(60, 1)), "gaussian")


def commanded(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "crunode", *words], capture_output=True, text=True)


def test_every_module_can_be_imported():
    assert len(modules()) > 300
    for name in modules():
        importlib.import_module(name)


@pytest.mark.parametrize(("module", "extra"), doors())
def test_what_is_missing_is_named_with_the_extra_that_brings_it(module, extra):
    with pytest.raises(MissingExtra, match=rf"pip install 'crunode\[{extra}\]'"):
        need(module, extra)


def test_a_coefficient_is_stored_resumed_and_loaded(tmp_path):
    first = crunode.llc(noisy(), nbeta=10.0, chains=2, draws=40, warmup=20, store=tmp_path)
    again = crunode.llc(noisy(), nbeta=10.0, chains=2, draws=40, warmup=20, store=tmp_path)
    assert (again.value, again.se) == (first.value, first.se)
    assert crunode.load_estimate(tmp_path).value == first.value
    assert first.value == pytest.approx(1.5, abs=4 * first.se + 0.1)


def test_workers_give_the_same():
    one, two = (
        crunode.llc(noisy(), nbeta=10.0, chains=2, draws=40, warmup=20, executor=executor)
        for executor in (None, crunode.Processes(2))
    )
    assert one.value == two.value


def test_a_recipe_runs(tmp_path):
    assert crunode.recipe("toy-volumes").run("toy", 0, store=tmp_path).ok


def test_draws_are_not_converted_without_the_package(tmp_path):
    draws = crunode.sample(crunode.Posterior(noisy(), nbeta=10.0), chains=2, draws=10, warmup=10)
    with pytest.raises(MissingExtra, match=r"crunode\[arviz\]"):
        draws.to_datatree()


def test_a_report_needs_no_pictures(tmp_path):
    crunode.report(crunode.llc(noisy()), tmp_path / "report.html")
    assert "1.5" in (tmp_path / "report.html").read_text()


def test_a_picture_names_its_extra():
    with pytest.raises(MissingExtra, match=r"crunode\[plot\]"):
        crunode.Comparison("loo", ()).plot()


def test_exact_values_need_no_torch_and_no_typer():
    done = commanded("exact", "polynomial", "x^2*y^2", "--json")
    assert done.returncode == 0, done.stderr
    assert '"1/2"' in done.stdout


def test_other_commands_name_the_package():
    done = commanded("doctor")
    assert done.returncode == 2
    assert "pip install typer" in done.stderr


def test_progress_is_silent(monkeypatch):
    from crunode.core.progress import Progress

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress(3, "work") as bar:
        bar.advance()
