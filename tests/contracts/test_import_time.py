"""What is quick stays quick: the package and the commands that need no torch do not load it."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "matplotlib", "scipy", "xarray")


def loaded(code: str) -> set[str]:
    """Heavy packages that a fresh interpreter has loaded after running `code`."""
    report = f"\nimport sys\nprint('LOADED', *[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_the_package_loads_nothing_heavy():
    assert loaded("import crunode; crunode.__version__; crunode.InputError; dir(crunode)") == set()


@pytest.mark.heavy
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["explain"], ["explain", "LLC102"], ["llc", "--help"]])
def test_commands_that_compute_nothing_load_nothing_heavy(words):
    pytest.importorskip("typer")
    code = (
        f"import crunode.cli\ntry:\n    crunode.cli.main({words!r})\nexcept SystemExit as end:\n    assert not end.code"
    )
    assert loaded(code) == set()


@pytest.mark.heavy
def test_the_check_sees_torch():
    assert "torch" in loaded("import crunode; crunode.Landscape")
