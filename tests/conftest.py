"""Settings shared by all tests: threads, hypothesis profiles, and what a missing package means.

CRUNODE_REQUIRE_ALL=1   a skip because of a missing package is a failure (the full test run)
CRUNODE_MINIMAL=1       leave out test modules that import a package the minimal install lacks
CRUNODE_HYPOTHESIS=rotating   new random examples each time instead of the same ones
"""

import ast
import importlib.util
import os
import re
import signal
from pathlib import Path

import pytest

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REQUIRE_ALL = os.environ.get("CRUNODE_REQUIRE_ALL") == "1"
MINIMAL = os.environ.get("CRUNODE_MINIMAL") == "1" and not REQUIRE_ALL

# What a test module may import at its top that the minimal install does not have.
# Modules of crunode stand with the package they cannot be imported without.
BEYOND_MINIMAL = {
    "arviz": "arviz",
    "arviz_stats": "arviz_stats",
    "crunode.app": "fastapi",
    "crunode.cli": "typer",
    "hypothesis": "hypothesis",
    "matplotlib": "matplotlib",
    "pandas": "pandas",
    "plotly": "plotly",
    "scipy": "scipy",
    "tqdm": "tqdm",
    "typer": "typer",
    "xarray": "xarray",
}

LEFT_OUT = pytest.StashKey[list[str]]()
MISSING = re.compile(r"could not import|No module named|not installed")

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("fixed", deadline=None, derandomize=True)
    settings.register_profile("rotating", deadline=None, max_examples=500, print_blob=True)
    settings.load_profile(os.environ.get("CRUNODE_HYPOTHESIS", "fixed"))


def _imports(path: Path) -> set[str]:
    """Dotted names that a module imports at its top."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def pytest_sessionstart(session: pytest.Session) -> None:
    """One torch thread. The controller of a parallel run tests nothing and saves itself the import."""
    config = session.config
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        import torch

        torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = []


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a test module out of the minimal install when a package it imports is not there."""
    if not (MINIMAL and collection_path.suffix == ".py" and collection_path.name.startswith("test_")):
        return None
    imports = _imports(collection_path)
    needed = {
        package
        for module, package in BEYOND_MINIMAL.items()
        if any(name == module or name.startswith(f"{module}.") for name in imports)
    }
    missing = sorted(package for package in needed if importlib.util.find_spec(package) is None)
    if missing:
        config.stash[LEFT_OUT].append(f"{collection_path.relative_to(config.rootpath)}: {', '.join(missing)}")
        return True
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[LEFT_OUT]:
        terminalreporter.section("left out of the minimal install")
        for line in sorted(config.stash[LEFT_OUT]):
            terminalreporter.line(line)


def _fail_if_missing(report: pytest.CollectReport | pytest.TestReport) -> None:
    if REQUIRE_ALL and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if MISSING.search(reason):
            report.outcome = "failed"
            report.longrepr = f"a package is missing, and CRUNODE_REQUIRE_ALL=1: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    _fail_if_missing(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    _fail_if_missing(report)
    return report


@pytest.fixture
def run(capsys):
    """Run the command line: exit code, standard output, standard error."""

    from crunode import cli  # not everywhere: the minimal install lacks what it needs

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main([str(word) for word in words])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return call
