"""A dashboard on a folder of runs, and Chromium to look at it.

These tests are for `make browser`, which has an environment of its own; elsewhere they are left out.

CHROMIUM=PATH            the browser, in place of the one on the path
CRUNODE_SCREENSHOTS=DIR  where to put pictures of the pages
"""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WANTED = os.environ.get("CRUNODE_BROWSER") == "1"
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
READY = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None
collect_ignore_glob = [] if WANTED or READY else ["test_*.py"]


@contextlib.contextmanager
def serving(root, *options):
    """A server of its own; gives the address that it says."""
    command = [sys.executable, "-m", "crunode", "serve", root.name, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root.parent) as process:
        try:
            yield re.search(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="session")
def slow_recipes(tmp_path_factory):
    """A package beside crunode that offers the recipes of slow_volumes.py to all processes started from here."""
    site = tmp_path_factory.mktemp("site")
    info = site / "slow_volumes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-volumes\nVersion: 1.0\n")
    points = "watched-volumes = slow_volumes:WATCHED\nendless-volumes = slow_volumes:ENDLESS\n"
    (info / "entry_points.txt").write_text(f"[crunode.recipes]\n{points}")
    shutil.copy(Path(__file__).with_name("slow_volumes.py"), site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        yield


@pytest.fixture(scope="session")
def root(tmp_path_factory, slow_recipes) -> Path:
    import warnings

    import torch

    from crunode.core.landscape import Landscape
    from crunode.estimators.coefficient import llc

    folder = tmp_path_factory.mktemp("home") / "runs"
    land = Landscape.of_function(lambda w: (w[0] * w[1]) ** 2 + w[2] ** 2, torch.zeros(3), n=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in (0, 1):
            llc(land, chains=4, draws=200, warmup=100, seed=seed, store=folder / "crossing" / f"seed{seed}")
        name = folder / "<script>alert(1)<" / "script><img src=x onerror=alert(2)>"
        llc(land, chains=2, draws=20, warmup=10, seed=2, store=name, on_failure="return")
    return folder


@pytest.fixture(scope="session")
def serve():
    return serving


@pytest.fixture(scope="session")
def address(root):
    with serving(root) as found:
        yield found.rstrip("/")


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser, address):
    """A page that fails the test when a script fails, something is blocked, or another host is asked."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, base_url=address)
    problems = []
    # A form that is refused, with a page that says why, is an error to the console.
    expected = "the server responded with a status of 400"
    context.on(
        "console",
        lambda said: problems.append(said.text) if said.type == "error" and expected not in said.text else None,
    )
    context.on("weberror", lambda error: problems.append(str(error.error)))
    context.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
    context.on("request", lambda sent: sent.url.startswith((address, "data:")) or problems.append(sent.url))
    yield context.new_page()
    context.close()
    assert problems == []
