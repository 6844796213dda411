"""Settings shared by all tests: threads, hypothesis profiles, and what a missing package means.

CRUNODE_REQUIRE_ALL=1   a skip because of a missing package is a failure (the full test run)
CRUNODE_HYPOTHESIS=rotating   new random examples each time instead of the same ones
"""

import importlib.util
import os
import re
import signal

import pytest

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REQUIRE_ALL = os.environ.get("CRUNODE_REQUIRE_ALL") == "1"

# crunode passes its tests without the papers. A folder of the name alone, with nothing but caches, has no origin.
PAPERS = importlib.util.find_spec("crunode_papers")
collect_ignore = ["papers"] if PAPERS is None or PAPERS.origin is None else []

MISSING = re.compile(r"could not import|No module named|not installed")

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("fixed", deadline=None, derandomize=True)
    settings.register_profile("rotating", deadline=None, max_examples=500, print_blob=True)
    settings.load_profile(os.environ.get("CRUNODE_HYPOTHESIS", "fixed"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """One torch thread. The controller of a parallel run tests nothing and saves itself the import."""
    config = session.config
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        import torch

        torch.set_num_threads(1)


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
