"""Job files made by an enemy: each of many damaged ones is refused with a clear error, or read into plain units.

    python bench/fuzz_jobs.py [--cases 3000] [--seed 0]

Reading one must open no other file, import no module of the user's, and end within a second. Writes
validation/fuzz_jobs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from crunode.core.result import provenance
from crunode.errors import InputError
from crunode.jobs.job_file import read_jobs
from crunode.store.guarded import is_plain_name

ROOT = Path(__file__).resolve().parents[1]
GOOD = """
on = "processes:2"

[[job]]
name = "wide"
kind = "llc"
target = "study:landscape"
seed = 3
[job.settings]
chains = 4
[job.matrix]
draws = [100, 200]

[[job]]
name = "table"
kind = "recipe"
recipe = "murfet2020-volume"
size = "toy"
"""
PIECES = [
    *('"../../etc/passwd"', '"/etc/passwd"', '"os:system"', '"a\\u0000b"', '"<script>"', '"\\u001b[2J"', "-1", "nan"),
    *("inf", "1e400", "9" * 5000, '"' + "x" * 5000 + '"', "[" * 300 + "]" * 300, "{a = " * 200 + "1" + "}" * 200),
    *(
        "[[job]]",
        "[job.matrix]",
        "draws = [" + "1, " * 3000 + "]",
        "true",
        "2026-01-01",
        '"""',
        "'''",
        "=",
        "\x00",
        "é",
    ),
]
opened: list[str] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and watch.on:
        opened.append(os.fspath(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else "")


watch.on = False


def damaged(chance: random.Random) -> bytes:
    lines = GOOD.splitlines()
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(lines))
        kind = chance.randrange(5)
        if kind == 0:
            lines.pop(place)
        elif kind == 1:
            lines.insert(place, chance.choice(PIECES))
        elif kind == 2 and "=" in lines[place]:
            lines[place] = lines[place].split("=")[0] + "= " + chance.choice(PIECES)
        elif kind == 3:
            lines[place] = chance.choice(["x", "job", "store", "weights", "__class__", '"a b"']) + " = 1"
        else:
            lines.insert(place, chance.choice(lines))
        lines = lines or [""]
    data = bytearray("\n".join(lines), "utf-8")
    for _ in range(chance.choice([0, 0, 0, 3])):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, counts, failures, longest = random.Random(options.seed), Counter[str](), [], 0.0
    sys.addaudithook(watch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.toml")
        path.write_text(GOOD)
        assert len(read_jobs(path).units) == 3  # and imports what reading needs
        for case in range(options.cases):
            path.write_bytes(damaged(chance))
            before, start = set(sys.modules), time.perf_counter()
            opened.clear()
            watch.on = True
            try:
                units = read_jobs(path).units
                counts["read"] += 1
                odd = [u.name for u in units if not is_plain_name(u.name) or "/" in u.name]
                if odd:
                    failures.append(f"case {case}: unit {odd[0][:80]!r}")
            except InputError as error:
                counts["refused"] += 1
                if "expected" not in str(error) and "not valid" not in str(error):
                    failures.append(f"case {case}: says {str(error)[:120]!r}")
            except Exception as error:
                failures.append(f"case {case}: {type(error).__name__}: {str(error)[:120]}")
            watch.on = False
            longest = max(longest, time.perf_counter() - start)
            other = {name for name in opened if name != str(path)}
            new = {name for name in set(sys.modules) - before if name.split(".")[0] in ("study", "os")}
            if other or new:
                failures.append(f"case {case}: opened {len(other)} other files, imported {sorted(new)}")
    record = {
        "command": f"python bench/fuzz_jobs.py --cases {options.cases} --seed {options.seed}",
        "date": datetime.now(UTC).date().isoformat(),
        "provenance": provenance(),
        "cases": options.cases,
        **counts,
        "longest_s": round(longest, 3),
        "failures": failures,
    }
    (ROOT / "validation" / "fuzz_jobs.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({key: record[key] for key in ("cases", "read", "refused", "longest_s")}), *failures[:10], sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
