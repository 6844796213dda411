"""Golden runs: does this tree give the numbers of another commit, to the last bit, on this machine?

    python bench/golden.py --base COMMIT      run the calls of both trees and compare them by name
    python bench/golden.py --out FILE         run the calls of this tree and write their lines as JSON

Each tree runs its own bench/golden.py on its own sources. Exit 0: all equal, or calls are new; 1: a call differs or is
gone; 2: COMMIT does not exist or has no golden file, or a tree could not be run. Nothing is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = "bench/golden.py"
AHEAD = ("torch.func", "torch._dynamo", "torch._decomp.decompositions_for_jvp", "numpy.ma", "sympy", "scipy.stats")
SHOWN = 12
"""Lines of a call that are shown when they differ."""

Lines = dict[str, str]
Calls = dict[str, Lines]


class Refused(Exception):
    """The comparison cannot be made; the message says why."""


def own_sources() -> None:
    """Let this process, and those it starts, import this tree and nothing of another."""
    os.environ["PYTHONPATH"] = f"{ROOT}/src{os.pathsep}{ROOT}/bench"
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONHASHSEED": "0"}
    sys.path[:0] = [f"{ROOT}/src", f"{ROOT}/bench"]
    import crunode

    if ROOT not in Path(crunode.__file__).resolve().parents:
        raise Refused(f"expected crunode of {ROOT}, got {crunode.__file__}")


def import_ahead() -> None:
    """Import once, for all that are forked, what calls import."""
    import crunode

    own = [module.name for module in pkgutil.walk_packages(crunode.__path__, "crunode.")]
    for name in [*(name for name in own if "__main__" not in name), *AHEAD]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def answer(function: Callable[[], object], out: Path) -> None:
    """In a process of its own: run one call in an empty folder, and write its lines."""
    import numpy as np
    import torch
    from golden_lines import error_line, lines

    (here := out.with_suffix(".folder")).mkdir()
    os.chdir(here)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (whatever draws from it shall draw the same)
    random.seed(0)
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    try:
        found = dict(lines(function()))
    except Exception as error:
        found = {"raised": error_line(error)}
    out.write_text(json.dumps({"lines": found, "seconds": time.perf_counter() - begun}), encoding="utf-8")


def run_calls(calls: dict[str, Callable[[], object]], workers: int) -> Calls:
    """The lines of each call; every call has a process of its own, so that none depends on those before it."""
    context, todo, found = get_context("fork"), list(enumerate(calls)), {}
    running: dict[int, tuple[str, Path, BaseProcess]] = {}
    with tempfile.TemporaryDirectory(prefix="golden-calls-") as folder:
        try:
            while todo or running:
                while todo and len(running) < workers:
                    k, name = todo.pop(0)
                    process = context.Process(target=answer, args=(calls[name], out := Path(folder) / f"{k}.json"))
                    process.start()
                    running[process.sentinel] = name, out, process
                for sentinel in wait(list(running)):
                    name, out, process = running.pop(sentinel)
                    process.join()
                    ended = {"lines": {"raised": f"process ended with {process.exitcode}"}, "seconds": 0.0}
                    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else ended
                    found[name] = result["lines"]
                    note = result["lines"].get("raised", "")
                    print(f"{len(found)}/{len(calls)} {result['seconds']:5.1f} s  {name}  {note}", file=sys.stderr)
        finally:
            for _, _, process in running.values():
                process.terminate()
    return {name: found[name] for name in calls}


def difference(old: str, new: str) -> str:
    """The first numbers in which two lines differ, relative to one another; empty where no numbers do.

    >>> difference((1.0).hex(), (1.5).hex())
    'relative 0.33, 1.0 -> 1.5'
    """
    for one, other in zip(old.split(), new.split(), strict=False):
        if one != other:
            try:
                a, b = (float.fromhex(text) if "x" in text else float(text) for text in (one, other))
            except ValueError:
                return ""
            return f"relative {abs(a - b) / (max(abs(a), abs(b)) or 1.0):.2g}, {a!r} -> {b!r}"
    return ""


def compare(old: Calls, new: Calls) -> tuple[list[str], list[str], list[str]]:
    """What to say of calls that differ, of those that are gone, and of those that are new."""
    changed = []
    for name in (name for name in old if name in new and old[name] != new[name]):
        keys = [key for key in old[name] | new[name] if old[name].get(key) != new[name].get(key)]
        changed.append(f"differs: {name} ({len(keys)} of {len(old[name] | new[name])} lines)")
        for key in keys[:SHOWN]:
            before, after = old[name].get(key, "(nothing)"), new[name].get(key, "(nothing)")
            changed.append(f"  {key}\n    old {before[:200]}\n    new {after[:200]}")
            if said := difference(before, after):
                changed.append(f"    {said}")
    gone = [f"gone: {name}" for name in old if name not in new]
    return changed, gone, [f"new: {name}" for name in new if name not in old]


def git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)


@contextlib.contextmanager
def worktree(root: Path, base: str) -> Iterator[Path]:
    """The tree of a commit in a temporary folder, which is taken away again."""
    if not base:
        raise Refused("expected a commit to compare with, got none; say make golden BASE=<commit>")
    if git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}").returncode:
        raise Refused(f"expected a commit of {root.name}, got {base!r}, which does not exist")
    if git(root, "cat-file", "-e", f"{base}:{FILE}").returncode:
        raise Refused(f"expected a commit with {FILE}, got {base}, which has none to run; take a later one")
    with tempfile.TemporaryDirectory(prefix="golden-base-") as folder:
        try:
            made = git(root, "worktree", "add", "--detach", f"{folder}/tree", base)
            if made.returncode:
                raise Refused(f"could not make a worktree of {base}: {made.stderr.strip()}")
            yield Path(folder) / "tree"
        finally:
            git(root, "worktree", "remove", "--force", f"{folder}/tree")
            git(root, "worktree", "prune")


def cpu_seconds() -> float:
    """What processes that have ended took, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_tree(tree: Path, words: list[str]) -> Calls:
    """The calls of a tree, by its own golden file."""
    begun, before = time.perf_counter(), cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="golden-out-") as folder:
        out = Path(folder) / "calls.json"
        process = subprocess.Popen([sys.executable, str(tree / FILE), "--out", str(out), *words], cwd=tree)
        try:
            code = process.wait()
        finally:
            process.terminate()
            process.wait()
        if code or not out.exists():
            raise Refused(f"the golden file of {tree} ended with exit code {code}")
        found = json.loads(out.read_text(encoding="utf-8"))
    took, cpu = time.perf_counter() - begun, cpu_seconds() - before
    print(f"{tree}: {len(found)} calls in {took:.0f} s, {cpu:.0f} s of CPU", file=sys.stderr)
    return found


def against(root: Path, base: str, words: list[str]) -> int:
    """Run both trees, say what differs; 1 where something does."""
    with worktree(root, base) as tree:
        old = run_tree(tree, words)
    changed, gone, fresh = compare(old, new := run_tree(root, words))
    print("\n".join([*changed, *gone, *fresh]))
    raised = sum("raised" in found for found in new.values())
    differing = sum(line.startswith("differs") for line in changed)
    print(f"{len(new)} calls: {differing} differ, {len(gone)} gone, {len(fresh)} new, {raised} raised")
    return int(bool(changed or gone))


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="the commit to compare with")
    parser.add_argument("--out", type=Path, help="where to write the lines of this tree; standard output by default")
    parser.add_argument("--only", default="", help="calls with this in their name")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if asked.base is not None:
            return against(root, asked.base, ["--only", asked.only, "--workers", str(asked.workers)])
        own_sources()
        from golden_calls import all_calls

        import_ahead()
        found = run_calls({n: f for n, f in all_calls().items() if asked.only in n}, asked.workers)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ended", file=sys.stderr)
        return 130
    text = json.dumps(found, indent=1)
    print(text) if asked.out is None else asked.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
