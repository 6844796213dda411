"""How quick the dashboard's pages are at 10 000 runs; writes validation/dashboard.json.

    python bench/dashboard.py [--runs 10000] [--folder DIR]

A real server on loopback is asked over HTTP, on a keep-alive connection and without a browser. The runs are those of
bench/catalog.py.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from catalog import fill

from crunode.core.result import provenance

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "all runs": "/",
    "all runs, by name, page 100": "/?order=name&down=no&page=100",
    "all runs, by value": "/?order=value",
    "filter name": "/?name=run0012",
    "filter kind and ok": "/?kind=draws&ok=yes",
    "filter setting": "/?where=kernel.name%3DHMC",
    "filter tag that no run has": "/?tag=none",
    "running": "/running",
    "recipes": "/recipes",
    "exact values": "/exact",
}


def timed(connection: http.client.HTTPConnection, path: str, repeats: int) -> dict:
    times, size = [], 0
    for _ in range(repeats):
        start = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        size = len(answer.read())
        times.append(time.perf_counter() - start)
        assert answer.status == 200, (path, answer.status)
    return {
        "median_ms": 1e3 * statistics.median(times),
        "worst_ms": 1e3 * max(times),
        "repeats": repeats,
        "bytes": size,
    }


def measured(root: Path, repeats: int) -> dict:
    command = [sys.executable, "-m", "crunode", "serve", str(root), "--port", "0"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = int(re.search(r":(\d+)/", server.stdout.readline())[1])
            ready = time.perf_counter() - start
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            figures = {}
            for name, path in PAGES.items():
                timed(connection, path, 1)
                figures[name] = timed(connection, path, repeats)
            connection.request("GET", "/?order=name&down=no")
            keys = re.findall(
                r'<th scope="row"><a href="(/run/[0-9a-f]{20})"', connection.getresponse().read().decode()
            )
            figures["a run"] = timed(connection, keys[0], repeats)
            figures["two runs side by side"] = timed(
                connection, "/compare?" + "&".join(f"run={key[5:]}" for key in keys[:2]), repeats
            )
        finally:
            server.terminate()
    return {"seconds_until_ready": ready, "figures": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    os.fsync = lambda handle: None  # the copies need not survive a power cut
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        fill(Path(folder), options.runs)
        found = measured(Path(folder), options.repeats)
    result = {
        "command": "python bench/dashboard.py" + (f" --runs {options.runs}" if options.runs != 10_000 else ""),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": {**provenance(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0]},
        "runs": options.runs,
        **found,
    }
    for name, row in found["figures"].items():
        print(f"{name:<30} median {row['median_ms']:8.1f} ms  worst {row['worst_ms']:8.1f} ms  {row['bytes']} bytes")
    print(f"ready after {found['seconds_until_ready']:.1f} s, the index of all runs included")
    if options.runs == 10_000:
        (ROOT / "validation" / "dashboard.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
