"""Mutation testing by seed: how many faults of meaning do the tests notice?

    python bench/mutants.py --seed 1 [--again] [--list] [--show N] [--only N] [--coverage FOLDER]

Not cosmic-ray or mutmut: both give every mutant the same weight and draw none by package, one knows no coverage
contexts, and the other no constants and no defaults. Each mutant is tried in a copy of the tree by tests that reach it.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import json
import math
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

from mutant_sites import Mutant, draw, package

ROOT = Path(__file__).resolve().parents[1]
BUDGET, GRACE, FILE_COST, MEMORY = 60.0, 10.0, 0.5, 6 << 30
NOTICED = ("failed", "timeout", "crash")


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout


def blobs(root: Path, commit: str = "HEAD") -> dict[str, str]:
    """Test files and modules (their examples are tests) with the digests of what is in them."""
    lines = (line.split() for line in git(root, "ls-tree", "-r", commit, "src", "tests").splitlines())
    return {words[3]: words[2] for words in lines if re.search(r"^src/.*\.py$|/test_\w+\.py$", words[3])}


class Coverage:
    """Which tests reach a line, from one or more runs with contexts; each is valid for test files unchanged since."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, blobs(root)
        self.layers = sorted((root / "build/mutants/coverage").glob("*/layer.json"))
        self.read = [json.loads(path.read_text()) for path in self.layers]

    def stale(self) -> list[str]:
        return [file for file, blob in self.now.items() if all(layer["files"].get(file) != blob for layer in self.read)]

    def add(self, folder: Path, commit: str, files: dict[str, str]) -> None:
        """Take in a folder with `.coverage` and `durations.txt`, what `pytest --durations=0` printed."""
        home = self.root / f"build/mutants/coverage/{len(self.layers):03}"
        home.mkdir(parents=True)
        shutil.copy(folder / ".coverage", home / "coverage.db")
        times: Counter[str] = Counter()
        for line in (folder / "durations.txt").read_text().splitlines():
            if found := re.match(r"([\d.]+)s (?:setup|call|teardown) +(\S.*?)\s*$", line):
                times[found[2]] += float(found[1])
        ask = (
            "select c.context, count(distinct a.file_id) from arc a join context c on c.id = a.context_id group by c.id"
        )
        with sqlite3.connect(home / "coverage.db") as base:
            width = {name.rpartition("|")[0]: n for name, n in base.execute(ask) if name.endswith("|run")}
        layer = {"commit": git(self.root, "rev-parse", commit).strip(), "files": files, "times": times, "width": width}
        (home / "layer.json").write_text(json.dumps(layer))
        self.__init__(self.root)

    def refresh(self) -> None:
        """Run with coverage what has changed or is new."""
        files = self.stale()
        if not files:
            return
        print(f"{len(files)} files of tests and examples to run with coverage", flush=True)
        with tempfile.TemporaryDirectory() as name:
            tree = copied(self.root, Path(name))
            flags = ["-n", "2", "-q", "-m", "not slow", "--cov=crunode", "--cov-context=test", "--cov-report="]
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags, "--durations=0", "-vv"]
            whole = [] if len(files) == len(self.now) else files
            with (tree / "durations.txt").open("w") as out:
                env = {**os.environ, "PYTHONPATH": str(tree / "src"), "COVERAGE_FILE": str(tree / ".coverage")}
                subprocess.run([*command, *whole], cwd=tree, stdout=out, env=env)
            self.add(tree, "HEAD", {file: self.now[file] for file in files})

    def before(self, layer: dict, mutant: Mutant) -> Iterator[tuple[int, int]]:
        """The lines of a mutant as they were numbered when the layer was made."""
        if layer["files"].get(mutant.file) == self.now.get(mutant.file):
            yield from mutant.lines
            return
        try:
            old = git(self.root, "show", f"{layer['commit']}:{mutant.file}").splitlines()
        except subprocess.CalledProcessError:
            return
        new = (self.root / mutant.file).read_text().splitlines()
        for _, a, b, c, d in difflib.SequenceMatcher(None, new, old, autojunk=False).get_opcodes():
            for low, high in mutant.lines:
                if low <= b and a < high:
                    equal = b - a == d - c
                    yield (c + max(low - a, 1), c + min(high - a, d - c)) if equal else (c + 1, d)

    def tests(self, mutant: Mutant, budget: float = BUDGET) -> dict[str, float]:
        """Tests that reach a mutant with their seconds: quick ones that reach little else first, as many as fit."""
        found: dict[str, tuple[float, float]] = {}
        ask = (
            "select distinct c.context from arc a join context c on c.id = a.context_id join file f on f.id = a.file_id "
            "where f.path like ? and (a.fromno between ? and ? or a.tono between ? and ?)"
        )
        for path, layer in zip(self.layers, self.read, strict=True):
            with sqlite3.connect(path.with_name("coverage.db")) as base:
                for low, high in self.before(layer, mutant):
                    for (name,) in base.execute(ask, (f"%{mutant.file}", low, high, low, high)):
                        test = name.rpartition("|")[0]
                        file = test.split("::")[0]
                        if file in self.now and layer["files"].get(file) == self.now[file]:
                            seconds = max(layer["times"].get(test, 0.0), 0.01)
                            found[test] = seconds, (seconds + 0.05) * layer["width"].get(test, 100)
        taken: dict[str, dict[str, float]] = {}
        left = budget
        for test, (seconds, _) in sorted(found.items(), key=lambda item: item[1][1]):
            file = test.split("::")[0]
            cost = seconds + (0 if file in taken else FILE_COST)
            if cost <= left:
                taken.setdefault(file, {})[test] = seconds
                left -= cost
        return {test: seconds for tests in taken.values() for test, seconds in tests.items()}


def copied(root: Path, folder: Path) -> Path:
    """A copy of the tree as it is committed."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", root, "archive", "HEAD"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    return tree


def _tested(tree: Path, tests: Sequence[str], log: Path, memory: int) -> None:
    """In a process of its own: pytest on the tests, which says into `log` where it is and what has failed."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(tree)
    (tree.parent / "tmp").mkdir(exist_ok=True)
    os.environ |= {"PYTHONPATH": str(tree / "src"), "TMPDIR": str(tree.parent / "tmp")}
    tempfile.tempdir = None
    sys.path[0] = str(tree / "src")
    out = os.open(tree.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    order = {test: k for k, test in enumerate(tests)}

    def say(word: str, what: str) -> None:
        with log.open("a") as file:
            file.write(f"{word} {what}\n")

    def keep(items: list) -> None:
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])

    watch = SimpleNamespace(
        pytest_collectstart=lambda collector: say("at", collector.nodeid),
        pytest_collectreport=lambda report: say("failed", report.nodeid) if report.failed else None,
        pytest_collection_modifyitems=lambda items: keep(items),
        pytest_runtest_logstart=lambda nodeid, location: say("at", nodeid),
        pytest_runtest_logreport=lambda report: say("failed", report.nodeid) if report.failed else None,
    )
    import pytest

    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    flags = ["-x", "-q", "-p", "no:cacheprovider", "--tb=short", f"--basetemp={tree.parent / 'pytest'}"]
    os._exit(int(pytest.main([*flags, *files], plugins=[watch])))


def run(tree: Path, tests: dict[str, float], memory: int, grace: float) -> tuple[str, str, float]:
    """How tests end ("passed" or one of `NOTICED`), which one ended it, and after how many seconds.

    A test may take three times what it took and `grace` more, all together three times what they may.
    """
    log = tree.parent / "log"
    log.write_text("")
    start, whole, late = time.time(), 3 * (sum(tests.values()) + grace + FILE_COST * len(tests)), ""
    pid = os.fork()
    if not pid:
        try:
            _tested(tree, list(tests), log, memory)
        finally:
            os._exit(70)
    try:
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            time.sleep(0.02)
            at = log.read_text().rpartition("at ")[2].split("\n")[0]
            if time.time() - max(start, log.stat().st_mtime) > 3 * (tests.get(at, 0) + grace):
                late = at or "collection"
            elif time.time() - start > whole:
                late = "all"
            if late:
                os.killpg(pid, signal.SIGKILL)
    finally:
        end_all(pid, tree)
    said, code = log.read_text(), os.waitstatus_to_exitcode(ended[1])
    failed = re.search(r"^failed (.*)", said, re.M)
    test = late or (failed[1] if failed else said.rpartition("at ")[2].split("\n")[0])
    how = "timeout" if late else "crash" if code not in range(6) else "passed" if code in (0, 5) else "failed"
    return how, test, time.time() - start


def end_all(pid: int, tree: Path) -> None:
    """End the group of a process and whatever was started with this tree in its environment."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{tree}/src".encode() in place.read_bytes():
                os.kill(int(place.parent.name), signal.SIGKILL)


@lru_cache
def own_tree(root: Path, folder: Path) -> Path:
    return copied(root, folder / str(os.getpid()))


def attempt(tree: Path, mutant: Mutant, tests: dict[str, float], memory: int = MEMORY, grace: float = GRACE) -> dict:
    """Put in a mutant and see whether a test notices that also passes, in a third of its time, without it."""
    path, begun, tests = tree / mutant.file, time.time(), dict(tests)
    source, stat = path.read_bytes(), path.stat()
    how, test = "no test", ""
    while tests:
        try:
            path.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
            how, test, _ = run(tree, tests, memory, grace)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if how == "passed":
            break
        alone = {test: tests[test]} if test in tests else tests
        without, _, seconds = run(tree, alone, memory, grace)
        if without == "passed" and seconds < sum(alone.values()) + grace + FILE_COST * len(alone):
            break
        tests = {name: cost for name, cost in tests.items() if name not in alone}
        how = "no test"
    status = "survived" if how == "passed" else how
    return {
        "status": status,
        "by": test if status in NOTICED else "",
        "seconds": time.time() - begun,
        "tests": len(tests),
    }


def tried(root: Path, folder: Path, mutant: Mutant) -> dict:
    return attempt(own_tree(root, folder), mutant, Coverage(root).tests(mutant))


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    middle, wide = k + z * z / 2, z * math.sqrt(k * (n - k) / n + z * z / 4)
    return (middle - wide) / (n + z * z), (middle + wide) / (n + z * z)


def brief(mutant: Mutant) -> str:
    old, new = (" ".join(text.split()) for text in (mutant.old, mutant.new))
    same = len(os.path.commonprefix([old, new]))
    start = max(0, same - 40)
    return f"{mutant.file}:{mutant.line} {mutant.function} [{mutant.operator}] {old[start : start + 90]} -> {new[start : start + 90]}"


def report(mutants: Sequence[Mutant], done: dict, known: list[dict]) -> int:
    """Print how many were noticed, and those that were not; 1 where too many are said to be equivalent."""
    same = {(m["file"], m["function"], m["old"], m["new"]) for m in known if m["reason"]}
    rows = [(m, done[m.key]["status"]) for m in mutants if m.key in done]
    equal = [m for m, status in rows if status not in NOTICED and m.key[:4] in same]
    rows = [(m, status) for m, status in rows if m not in equal]
    for name in ["", *dict.fromkeys(package(m.file) for m, _ in rows)]:
        mine = [status in NOTICED for m, status in rows if name in ("", package(m.file))]
        if mine:
            low, high = wilson(sum(mine), len(mine))
            print(f"{name or 'all':10} {sum(mine)}/{len(mine)} noticed, 95 %: {low:.2f} to {high:.2f}")
    for m, status in rows:
        if status not in NOTICED:
            print(f"{mutants.index(m):3} {status}: {brief(m)}")
    print(f"{len(equal)} equivalent, {len(mutants) - len(rows) - len(equal)} to do")
    return int(20 * len(equal) > len(mutants))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    parser.add_argument("--list", action="store_true", help="print the draw")
    parser.add_argument("--show", type=int, help="print one mutant as a difference")
    parser.add_argument("--only", type=int, help="try one mutant")
    parser.add_argument("--coverage", type=Path, help="a folder with .coverage and durations.txt of HEAD")
    asked = parser.parse_args()
    root = asked.root.resolve()
    mutants = draw(root, asked.seed, asked.count)
    if asked.list:
        print(*(f"{k:3} {brief(m)}" for k, m in enumerate(mutants)), sep="\n")
        return 0
    if asked.show is not None:
        mutant = mutants[asked.show]
        source = (root / mutant.file).read_bytes()
        new = source[: mutant.start] + mutant.new.encode() + source[mutant.end :]
        sides = [text.decode().splitlines() for text in (source, new)]
        print(*difflib.unified_diff(*sides, mutant.file, mutant.file, lineterm=""), sep="\n")
        return 0
    if dirty := git(root, "status", "--porcelain", "--", "src", "tests"):
        print(f"expected src and tests as committed, got changes; commit or stash them:\n{dirty}", file=sys.stderr)
        return 2
    commit = git(root, "rev-parse", "HEAD").strip()
    coverage = Coverage(root)
    if asked.coverage:
        coverage.add(asked.coverage, commit, coverage.now)
    coverage.refresh()
    record = root / f"build/mutants/seed-{asked.seed}.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    done = {(d["file"], d["function"], d["old"], d["new"], d["nth"]): d for d in lines}
    todo = [m for m in mutants if m.key not in done or (asked.again and done[m.key]["status"] not in NOTICED)]
    todo = [mutants[asked.only]] if asked.only is not None else todo
    if root == ROOT:
        for name in ("torch", "torch.func", "numpy", "scipy.stats", "scipy.optimize", "pytest"):
            importlib.import_module(name)
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(2, get_context("fork")) as pool,
        record.open("a") as out,
    ):
        waiting = {pool.submit(tried, root, Path(name), m): m for m in todo}
        for k, job in enumerate(as_completed(waiting), 1):
            m = waiting[job]
            place = {"package": package(m.file), "line": m.line, "operator": m.operator, "commit": commit}
            keys = dict(zip(("file", "function", "old", "new", "nth"), m.key, strict=True))
            done[m.key] = {"seed": asked.seed, **keys, **place, **job.result()}
            out.write(json.dumps(done[m.key]) + "\n")
            out.flush()
            d = done[m.key]
            print(f"{k}/{len(todo)} {d['status']:9}{d['seconds']:5.0f} s  {brief(m)}  {d['by']}", flush=True)
    file = root / "bench/equivalent_mutants.toml"
    known = tomllib.loads(file.read_text()).get("mutant", []) if file.exists() else []
    return report(mutants, done, known)


if __name__ == "__main__":
    sys.exit(main())
