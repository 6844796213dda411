"""Which tests reach a line of code, from runs of the tests with a coverage context for each."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

BUDGET = 120.0  # as recorded with coverage, two at a time; that is less than 60 seconds without
PER_FILE = 0.5
PYTEST = (
    "-m pytest -p no:cacheprovider -n 2 -m 'not slow' --cov=crunode --cov-context=test --cov-report= --durations=0 -vv"
)
Seconds = dict[str, float]


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout


def digests(root: Path, commit: str) -> dict[str, str]:
    """Modules, whose examples are tests, and files of tests, with what git calls their content."""
    words = (line.split() for line in git(root, "ls-tree", "-r", commit, "src", "tests").splitlines())
    return {w[3]: w[2] for w in words if re.search(r"^src/.*\.py$|/test_\w+\.py$", w[3])}


def copied(root: Path, folder: Path) -> Path:
    """A copy of the tree as it is committed, made once in a folder."""
    if not (tree := folder / "tree").exists():
        tree.mkdir(parents=True)
        archive = subprocess.run(["git", "-C", root, "archive", "HEAD"], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "src", "tests"], cwd=tree, check=True)
    return tree


def expected(tests: Seconds) -> float:
    return sum(tests.values()) + PER_FILE * len({test.partition("::")[0] for test in tests})


class Coverage:
    """Which tests reach a line, by runs with contexts, each valid for the files of tests that are as they were then.

    A run is a folder with `.coverage`, `durations.txt` as pytest prints them, the digests, and those files that ran.
    """

    def __init__(self, root: Path, given: Path | None = None, commit: str = "HEAD") -> None:
        """Run with coverage what is new or changed since the runs so far and the one that is given, of a commit."""
        self.root, self.now = root, digests(root, "HEAD")
        self.runs: list[tuple[Path, dict[str, str], set[str], Seconds]] = []
        for home in sorted(root.glob("build/mutants/coverage/*")):
            self.read(home)
        if given:
            self.add(given, digests(root, commit), list(digests(root, commit)))
        if files := [
            f for f, digest in self.now.items() if not any(f in r[2] and r[1][f] == digest for r in self.runs)
        ]:
            print(f"{len(files)} files of tests and examples to run with coverage", flush=True)
            command = [sys.executable, *shlex.split(PYTEST), *(files if self.runs else [])]
            with tempfile.TemporaryDirectory() as name, open(f"{name}/durations.txt", "w") as out:
                tree = copied(root, Path(name))
                env = {**os.environ, "PYTHONPATH": f"{tree}/src", "COVERAGE_FILE": f"{name}/.coverage"}
                subprocess.run(command, cwd=tree, stdout=out, env=env, check=False)
                self.add(Path(name), self.now, files)

    def add(self, folder: Path, then: dict[str, str], files: list[str]) -> None:
        home = self.root / f"build/mutants/coverage/{len(self.runs):03}"
        home.mkdir(parents=True)
        for name in (".coverage", "durations.txt"):
            shutil.copy(folder / name, home)
        with contextlib.closing(sqlite3.connect(home / ".coverage")) as base:
            base.execute("create table width as select context_id, count(distinct file_id) files from arc group by 1")
            base.execute("create unique index by_context on width (context_id)")
            base.commit()
        (home / "files.json").write_text(json.dumps([then, files]))
        self.read(home)

    def read(self, home: Path) -> None:
        times, printed = Counter[str](), (home / "durations.txt").read_text()
        for seconds, test in re.findall(r"^([\d.]+)s +(?:setup|call|teardown) +(\S.*?)\s*$", printed, re.M):
            times[test] += float(seconds)
        for test in re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", printed, re.M):
            times[test] = math.inf
        then, files = json.loads((home / "files.json").read_text())
        self.runs.append((home / ".coverage", then, set(files), times))

    def before(self, then: dict[str, str], file: str, lines: list[int]) -> str:
        """Lines of a file as they were numbered in a run: where it has changed since, those of the same text."""
        if (digest := then.get(file, "")) != self.now[file]:
            now = git(self.root, "show", f"HEAD:{file}").splitlines()
            old, wanted = (
                git(self.root, "cat-file", "blob", digest).splitlines() if digest else [],
                {now[k - 1] for k in lines},
            )
            lines = [k for k, line in enumerate(old, 1) if line in wanted]
        return ", ".join(map(str, lines))

    def tests(self, reached: str, lines: list[int], left: float = BUDGET) -> Seconds:
        """Tests that reach a line of a file, with seconds: quick ones that reach little else first, as many as fit."""
        ranked, seconds, chosen = dict[str, float](), dict[str, float](), dict[str, Seconds]()
        for path, then, files, times in self.runs:
            at = self.before(then, reached, lines)
            ask = f"""select distinct context, files from arc join file on file.id = file_id join context
            on context.id = arc.context_id join width on width.context_id = context.id
            where path like '%{reached}' and (fromno in ({at}) or tono in ({at}))"""
            with contextlib.closing(sqlite3.connect(path)) as base:
                found = base.execute(ask).fetchall()
            for test, width in ((context.rpartition("|")[0], width) for context, width in found):
                file = test.partition("::")[0]
                if file in files and then[file] == self.now.get(file) and times[test] < math.inf:
                    ranked[test], seconds[test] = (times[test] + 0.05) * width, max(times[test], 0.01)
        for test in sorted(ranked, key=ranked.__getitem__):
            file = test.partition("::")[0]
            if (cost := seconds[test] + PER_FILE * (file not in chosen)) <= left or not chosen:
                chosen.setdefault(file, {})[test] = seconds[test]
                left -= cost
        return {test: took for tests in chosen.values() for test, took in tests.items()}
