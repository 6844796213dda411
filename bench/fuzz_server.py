"""Hostile requests to a real server of the dashboard, byte by byte; writes validation/fuzz_server.json.

    python bench/fuzz_server.py [--requests 2000] [--seed 0]

Each request goes to the socket of `crunode serve` as bytes: good ones with fields, headers and paths made to be
dangerous, and such that are no HTTP at all. Afterwards the server must still answer, no answer may have been a failure
of the server or show a file, no process may have been started, and no file may have changed but tags and the index.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote_plus

from crunode.core.result import provenance
from crunode.store.documents import write_document

ROOT = Path(__file__).resolve().parents[1]
PATHS = (
    "/", "/run/KEY", "/run/KEY/live", "/run/KEY/tags", "/compare", "/exact", "/recipes", "/running", "/running/live",
    "/running/stop", "/sign-in", "/static/app.js", "/static/KEY", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
    "/static/..%2f..%2fserver.py", "//evil.example/", "http://evil.example/", "*", "/docs", "/openapi.json",
)  # fmt: skip
FIELDS = (
    "name", "kind", "status", "ok", "tag", "finding", "where", "since", "until", "order", "down", "page", "run",
    "family", "value-dim", "value-k", "tags", "change", "recipe", "seed", "job", "token",
)  # fmt: skip
PIECES = (
    "../../etc/passwd", "/etc/passwd", "\0", "<script>alert(1)</script>", "' OR 1=1 --", "{{7*191}}", "$(touch x)",
    ";touch x", "|touch x", "\r\nx: y", "½", "-1", "1e999", "nan", "9" * 50, "a" * 3000, "[" * 500, "*", "draws", "yes",
    "name", "add", "regular", "murfet2020-volume;", "--store", "--file", "__import__('os').system('touch x')", "",
    "file:///etc/passwd", "seed=1", "2026-13-45", "\u202e", "%s%n",
)  # fmt: skip
HOSTS = (
    "localhost:PORT",
    "127.0.0.1:PORT",
    "localhost:PORT",
    "[::1]",
    "evil.example",
    "a@localhost",
    "",
    "localhost,x",
)


def word(rng: random.Random, keys: list[str]) -> str:
    return "".join(rng.choice([*PIECES, *keys]) for _ in range(rng.randrange(1, 3)))


def encoded(rng: random.Random, keys: list[str], most: int) -> str:
    return "&".join(f"{rng.choice(FIELDS)}={quote_plus(word(rng, keys))}" for _ in range(rng.randrange(most)))


def request(rng: random.Random, keys: list[str], token: str, port: int) -> tuple[bytes, bool]:
    """One request, and whether it is whole; one in seven is changed afterwards in places of its own choice."""
    path = rng.choice(PATHS).replace("KEY", rng.choice([*keys, quote_plus(word(rng, keys))]))
    method = rng.choice(("GET",) * 6 + ("POST",) * 6 + ("HEAD", "PUT", "OPTIONS", "CONNECT", "G\0T"))
    query = encoded(rng, keys, 4)
    body = (encoded(rng, keys, 5) + (f"&form_token={token}" if rng.random() < 0.7 else "")).encode()
    if rng.random() < 0.1:
        body = rng.randbytes(rng.choice((10, 1000, 70_000)))
    headers = [("Host", rng.choice(HOSTS).replace("PORT", str(port)) if rng.random() < 0.15 else f"localhost:{port}")]
    headers.append(("Content-Type", "application/x-www-form-urlencoded" if rng.random() < 0.9 else word(rng, keys)))
    stated = str(len(body)) if rng.random() < 0.9 else rng.choice(("-1", "x", "99999999999", "0", "3"))
    headers.append(("Content-Length", stated))
    for name in ("Origin", "Sec-Fetch-Site", "Cookie", "Host", "Transfer-Encoding", "X-Forwarded-Host", "Upgrade"):
        if rng.random() < 0.03:
            headers.append((name, word(rng, keys)))
    version = "1.1" if rng.random() < 0.93 else rng.choice(("1.0", "9", ""))
    lines = [f"{method} {path}{'?' if query else ''}{query} HTTP/{version}"]
    head = "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers), "Connection: close"])
    whole = bytearray(head.encode("utf-8") + b"\r\n\r\n" + (b"" if method == "HEAD" else body))
    complete = stated == str(len(body))
    if rng.random() < 0.15:
        complete = False
        for _ in range(rng.randrange(1, 8)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
    if rng.random() < 0.03:
        return bytes(whole[: rng.randrange(1, len(whole))]), False
    return bytes(whole), complete


def sent(port: int, data: bytes, complete: bool = True) -> bytes:
    """The answer to some bytes; empty where there is none. A server that waits for more is told that none will come."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as link, contextlib.suppress(OSError):
        link.sendall(data)
        link.settimeout(60 if complete else 0.3)
        while True:
            try:
                part = link.recv(65536)
            except TimeoutError:
                link.shutdown(socket.SHUT_WR)
                link.settimeout(60)
                continue
            if not part:
                break
            found += part
    return found


def get(port: int, path: str) -> bytes:
    return sent(port, f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())


def files(home: Path) -> dict[str, str]:
    found = (p for p in home.rglob("*") if p.is_file() and ".crunode-runs" not in p.name and p.name != "log")
    return {str(p.relative_to(home)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def fuzzed(home: Path, count: int, seed: int) -> dict:
    rng = random.Random(seed)
    (home / "secret").write_text("the secret of this folder")
    for k in range(3):
        body = {"settings": {"model": {"kind": "mlp"}, "seed": k}}
        write_document(home / "runs" / f"t{k}" / "training.json", "crunode-training", 1, body)
    command = [sys.executable, "-m", "crunode", "serve", "runs", "--port", "0"]
    with open(home / "log", "w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=home)
    try:
        port = int(re.search(r":(\d+)/", server.stdout.readline())[1])
        token = re.search(rb'name="form_token" value="([0-9a-f]{64})"', get(port, "/exact"))[1].decode()
        keys = re.findall(r"/run/([0-9a-f]{20})", get(port, "/").decode())
        assert len(set(keys)) == 3
        before = files(home)
        statuses: Counter[str] = Counter()
        shown = unanswered = 0
        slowest = 0.0
        for _ in range(count):
            data, complete = request(rng, keys, token, port)
            start = time.perf_counter()
            answer = sent(port, data, complete)
            unanswered += complete and not answer
            slowest = max(slowest, time.perf_counter() - start)
            line = re.match(rb"HTTP/1\.1 (\d{3})", answer)
            statuses[line[1].decode() if line else "no answer"] += 1
            bad = (b"<script>alert", b"Traceback", b"the secret", b"root:x:", b"1337")
            shown += any(text in answer for text in bad)
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        after = files(home)
        changed = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
        return {
            "requests": count,
            "statuses": dict(sorted(statuses.items())),
            "answers_of_5xx": sum(n for status, n in statuses.items() if status.startswith("5")),
            "whole_requests_without_answer": unanswered,
            "answers_with_what_must_not_be_shown": shown,
            "files_changed_but_tags": [n for n in changed if not re.fullmatch(r"runs/t\d/tags\.json", n)],
            "tag_files_changed": len([n for n in changed if n.endswith("tags.json")]),
            "processes_left": children.read_text().split() if children.exists() else "not known",
            "errors_logged": (home / "log").read_text().count("Traceback"),
            "answers_afterwards": get(port, "/").startswith(b"HTTP/1.1 200"),
            "slowest_s": slowest,
        }
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = fuzzed(Path(folder), options.requests, options.seed)
    print(json.dumps(found, indent=1))
    good = found["answers_afterwards"] and not (
        found["answers_of_5xx"] or found["answers_with_what_must_not_be_shown"] or found["files_changed_but_tags"]
        or found["processes_left"] or found["errors_logged"]
    )  # fmt: skip
    result = {
        "command": f"python bench/fuzz_server.py --requests {options.requests} --seed {options.seed}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": {**provenance(), "cores": os.cpu_count()},
        **found,
        "ok": good,
    }
    if options.requests >= 1000:
        (ROOT / "validation" / "fuzz_server.json").write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
