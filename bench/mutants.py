"""Mutation testing: how many faults of meaning, drawn by seed, do the tests notice?

Not cosmic-ray or mutmut: neither draws by seed and package nor exchanges arguments, labels or axes, and one knows no
coverage contexts, the other no constants and defaults. Records and coverage are kept in build/mutants.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from difflib import unified_diff
from importlib.metadata import entry_points
from multiprocessing import active_children, get_context
from pathlib import Path

from mutant_sites import RULES, Mutant, draw, package
from reach import Coverage, Seconds, copied, expected, git

MEMORY, GRACE, NOTICED = 6 << 30, 10.0, ("failed", "timeout", "crash")


def _tested(tree: Path, tests: Seconds, at: Path, memory: int, grace: float) -> None:
    """In a process of its own: tests up to the first that fails; `at` is where they are, and an alarm ends them."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": f"{tree}/src", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": f"{tree.parent}/tmp"}
    (tree.parent / "tmp").mkdir(exist_ok=True)
    sys.dont_write_bytecode = True  # or a mutant of the same second and size as another could be taken for it
    tempfile.tempdir, sys.path[0], end = None, f"{tree}/src", time.time() + 3 * (expected(tests) + grace)
    for stream in (1, 2):
        os.dup2(os.open(tree.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)

    def begin(nodeid: str) -> None:
        at.write_text(nodeid)
        signal.setitimer(signal.ITIMER_REAL, max(0.01, min(3 * (tests.get(nodeid, 0) + grace), end - time.time())))

    class Watch:
        def pytest_collectstart(self, collector: object) -> None:
            begin(collector.nodeid)

        def pytest_collection_modifyitems(self, items: list) -> None:
            order = {test: k for k, test in enumerate(tests)}
            items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            begin(nodeid)

    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    flags = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", f"--basetemp={tree.parent}/pytest"]
    os._exit(importlib.import_module("pytest").main([*flags, *files], plugins=[Watch()]))


def run(tree: Path, tests: Seconds, memory: int, grace: float) -> tuple[str, str]:
    """How tests end ("passed" or one of `NOTICED`), and at which one.

    A test may take three times what it took before and `grace`, and so may all of them.
    """
    (at := tree.parent / "at").write_text("")
    if not (pid := os.fork()):
        try:
            _tested(tree, tests, at, memory, grace)
        finally:
            os._exit(70)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:  # the group, and what was started with this tree in its environment
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        for place in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"{tree}/src".encode() in place.read_bytes():
                    os.kill(int(place.parent.name), signal.SIGKILL)
    ends = {0: "passed", 1: "failed", 2: "failed", 3: "failed", 5: "passed", -signal.SIGALRM: "timeout"}
    return ends.get(code, "crash"), at.read_text()


def attempt(tree: Path, mutant: Mutant, tests: Seconds, memory: int = MEMORY, grace: float = GRACE) -> dict:
    """Put in a mutant and see whether a test notices that passes without it, in a third of its limit."""
    path, begun, how, by = tree / mutant.file, time.time(), "no test", ""
    source, stat = path.read_bytes(), path.stat()
    while tests:
        path.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
        try:
            how, by = run(tree, tests, memory, grace)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if how == "passed":
            how, by = "survived", ""
            break
        alone, then = {by: tests.get(by, 0.0)}, time.time()
        alone = alone if by.partition("::")[0] in {test.partition("::")[0] for test in tests} else tests
        if run(tree, alone, memory, grace)[0] == "passed" and time.time() - then < expected(alone) + grace:
            break
        left = {test: took for test, took in tests.items() if by not in (test, test.partition("::")[0])}
        tests, how = {} if alone is tests else left, "unsure"  # it fails without the mutant too
    return {"status": how, "by": by, "seconds": round(time.time() - begun, 1), "tests": len(tests)}


def tried(coverage: Coverage, folder: Path, mutant: Mutant) -> dict:
    lines = [k for low, high in mutant.lines for k in range(low, high + 1)]
    tests = coverage.tests(mutant.file, lines)
    if (read := RULES["inspected"].get(mutant.operator)) and read.partition("::")[0] in coverage.now:
        tests |= {read: 3.0}
    try:
        return attempt(copied(coverage.root, folder / str(os.getpid())), mutant, tests)
    except KeyboardInterrupt:
        os._exit(130)  # else the pool would give it the next one


def brief(mutant: Mutant) -> str:
    old, new = (" ".join(text.split()) for text in (mutant.old, mutant.new))
    at = max(0, next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0) - 40)
    where = f"{mutant.file}:{mutant.line} {mutant.function} [{mutant.operator}]"
    return f"{where} {old[at : at + 90]} -> {new[at : at + 90]}"


def report(root: Path, mutants: list[Mutant], status: dict[Mutant, str]) -> int:
    """Print how many were noticed, and those that were not; 1 where too many are said to be equivalent."""
    path = root / "bench/equivalent_mutants.toml"
    known = tomllib.loads(path.read_text())["mutant"] if path.exists() else []
    same = {(m["file"], m["function"], m["old"], m["new"]) for m in known if m["reason"]}
    equal = [m for m in status if status[m] not in NOTICED and m[:4] in same]
    rows = [m for m in mutants if m in status and m not in equal]
    for name in ["all", *dict.fromkeys(package(m.file) for m in rows)]:
        seen = [status[m] in NOTICED for m in rows if name in ("all", package(m.file))]
        k, n, z = sum(seen), max(len(seen), 1), 1.96
        middle, half = k + z * z / 2, z * math.sqrt(k * (n - k) / n + z * z / 4)
        low, high = (middle - half) / (n + z * z), (middle + half) / (n + z * z)
        print(f"{name:10}{k:4}/{len(seen):<4} noticed, {low:.2f} to {high:.2f} (95 %)")
    for m in (m for m in rows if status[m] not in NOTICED):
        print(f"{mutants.index(m):3} {status[m]}: {brief(m)}")
    print(f"{len(equal)} equivalent of {len(mutants)}, {len(mutants) - len(status)} to do")
    return int(20 * len(equal) > len(mutants))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument(
        "--show", type=int, nargs="?", const=-1, help="print one mutant as a difference, or all in brief"
    )
    parser.add_argument("--only", type=int, help="try one mutant")
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    parser.add_argument("--coverage", type=Path, help="a folder with .coverage and durations.txt of a run of all tests")
    parser.add_argument("--at", default="HEAD", help="the commit that it is of")
    asked = parser.parse_args()
    mutants = draw(root := asked.root.resolve(), asked.seed, asked.count)
    for k, m in enumerate(mutants) if asked.show is not None else ():
        source = (root / m.file).read_bytes()
        sides = [text.decode().splitlines() for text in (source, source[: m.start] + m.new.encode() + source[m.end :])]
        shown = {k: "\n".join(unified_diff(*sides, m.file, m.file, lineterm="")), -1: f"{k:3} {brief(m)}"}
        if asked.show in shown:
            print(shown[asked.show])
    if asked.show is not None:
        return 0
    if dirty := git(root, "status", "--porcelain", "--", "src", "tests"):
        print(f"expected src and tests as committed, got changes; commit or stash them:\n{dirty}", file=sys.stderr)
        return 2
    coverage, record = Coverage(root, asked.coverage, asked.at), root / f"build/mutants/seed-{asked.seed}.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    known = {tuple(d[name] for name in Mutant._fields[:5]): d["status"] for d in lines}
    status = {m: known[m[:5]] for m in mutants if m[:5] in known}
    todo = [m for m in mutants if m not in status or (asked.again and status[m] not in NOTICED)]
    todo = todo if asked.only is None else [mutants[asked.only]]
    plugins = [entry.module for entry in entry_points(group="pytest11")]
    for name in ("torch", "torch.func", "scipy.stats", "scipy.optimize", *plugins):  # once for all that are forked
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    start = {"seed": asked.seed, "commit": git(root, "rev-parse", "HEAD").strip()}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(2, get_context("fork")) as pool:
        jobs = {pool.submit(tried, coverage, Path(name), m): m for m in todo}
        try:
            for k, job in enumerate(as_completed(jobs), 1):
                m, d = jobs[job], job.result()
                status[m] = d["status"]
                with record.open("a") as out:
                    out.write(json.dumps({**start, "package": package(m.file), **m._asdict(), **d}) + "\n")
                print(f"{k}/{len(todo)} {d['status']:9}{d['seconds']:6} s  {brief(m)}  {d['by']}", flush=True)
        except (KeyboardInterrupt, BrokenProcessPool):
            for worker in active_children():
                worker.terminate()
            print("ended; the same command goes on from here", file=sys.stderr)
            return 130
    return report(root, mutants, status)


if __name__ == "__main__":
    sys.exit(main())
