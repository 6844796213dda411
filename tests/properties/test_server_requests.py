"""Requests that no browser sends: the dashboard answers each with a page of its own, and nothing else happens."""

import asyncio
import hashlib
import os
import random
import sys
from pathlib import Path

import pytest

from crunode.app import exact_pages, jobs
from crunode.app.server import create_app
from crunode.store.documents import write_document

REQUESTS = 400
PATHS = (
    "/", "/run/{key}", "/run/{key}/live", "/run/{key}/tags", "/compare", "/exact", "/recipes", "/running",
    "/running/live", "/running/stop", "/sign-in", "/static/{key}", "/../../etc/passwd", "/static/../server.py",
    "//evil.example/", "/run/..%2f..%2fetc", "/.env", "/docs", "/openapi.json",
)  # fmt: skip
FIELDS = (
    "name", "kind", "status", "ok", "tag", "finding", "where", "since", "until", "order", "down", "page", "run",
    "family", "value-dim", "tags", "change", "recipe", "seed", "job", "token", "form_token",
)  # fmt: skip
PIECES = (
    "../", "/etc/passwd", "%00", "\0", "<script>alert(1)</script>", "' OR 1=1 --", "{{7*7}}", "${7*7}", "$(id)", ";id",
    "|id", "\r\nx: y", "½", "\ud800", "-1", "1e999", "nan", "9" * 50, "a" * 3000, "[" * 500, "*", "?" * 50, "=", "&",
    "draws", "running", "yes", "name", "value", "toy", "add", "regular", "toy-volume", "kernel.name=HMC", "",
)  # fmt: skip


class World:
    """A folder of runs with something beside it that must stay as it is, and the dashboard of the runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "secret.txt").write_text("the secret of this test")
        for k in range(3):
            body = {"settings": {"model": {"kind": "mlp"}, "seed": k, "recipe": "x"}}
            write_document(home / "runs" / f"t{k}" / "training.json", "crunode-training", 1, body)
        self.app = create_app(home / "runs")
        self.board = self.app.app.state.board
        self.keys = [self.board.runs.key(f"t{k}") for k in range(3)]

    def files(self) -> dict[str, str]:
        """All files, the index of the catalogue apart."""
        found = (p for p in self.home.rglob("*") if p.is_file() and ".crunode-runs" not in p.name)
        return {str(p.relative_to(self.home)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}

    def request(self, rng: random.Random) -> dict:
        word = self._word(rng)
        path = rng.choice(PATHS).replace("{key}", rng.choice([*self.keys, word]))
        path = path if rng.random() < 0.9 else "/" + self._word(rng)
        query = "&".join(f"{rng.choice(FIELDS)}={self._word(rng)}" for _ in range(rng.randrange(4)))
        form = "&".join(f"{rng.choice(FIELDS)}={self._word(rng)}" for _ in range(rng.randrange(5)))
        if rng.random() < 0.5:
            form += f"&form_token={self.board.access.form_token()}"
        headers = [(b"host", rng.choice((b"localhost", b"127.0.0.1:8765", b"[::1]", b"evil.example", _bytes(rng))))]
        headers = headers if rng.random() < 0.8 else [(b"host", b"localhost")] * rng.randrange(3)
        if rng.random() < 0.8:
            headers.append((b"content-type", b"application/x-www-form-urlencoded"))
        for name in (b"origin", b"sec-fetch-site", b"cookie", b"content-length", b"content-type", b"x-" + _bytes(rng)):
            if rng.random() < 0.12:
                headers.append((name, _bytes(rng)))
        method = rng.choice(("GET", "GET", "POST", "POST", "HEAD", "PUT", "TRACE", "get", "\0"))
        body = form.encode("utf-8", "replace") if rng.random() < 0.85 else _bytes(rng, 5000)
        return {
            "type": "http", "method": method, "path": path, "raw_path": path.encode("utf-8", "replace"),
            "query_string": query.encode("utf-8", "replace").replace(b" ", b"+"), "headers": headers,
            "server": ("127.0.0.1", 8765), "scheme": "http", "http_version": "1.1", "root_path": "", "body": body,
        }  # fmt: skip

    def _word(self, rng: random.Random) -> str:
        return "".join(rng.choice([*PIECES, *self.keys]) for _ in range(rng.randrange(1, 3)))


def _bytes(rng: random.Random, most: int = 40) -> bytes:
    return bytes(rng.randrange(256) for _ in range(rng.randrange(most)))


async def answer(app, scope: dict) -> tuple[int, dict[str, str], bytes]:
    sent = []
    body = scope.pop("body")

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await asyncio.wait_for(app(scope, receive, send), 30)
    assert [m["type"] for m in sent[:1]] == ["http.response.start"]
    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(m.get("body", b"") for m in sent[1:])


@pytest.fixture
def world(tmp_path, monkeypatch):
    started = []
    # No request of this test is good enough to start anything: the recipe that they name is not there.
    monkeypatch.setattr(jobs.subprocess, "Popen", lambda *given, **_: started.append(given) or sys.exit("started"))
    monkeypatch.setattr(exact_pages, "exact_answer", lambda family, given: "λ = 1")
    made = World(tmp_path)
    yield made
    made.board.close()
    assert started == []


def test_hostile_requests(world):
    rng = random.Random(7)
    before = world.files()
    statuses: dict[int, int] = {}
    loop = asyncio.new_event_loop()
    try:
        for number in range(REQUESTS):
            scope = world.request(rng)
            asked = (scope["method"], scope["path"][:200], scope["query_string"][:200])
            status, headers, body = loop.run_until_complete(answer(world.app, scope))
            statuses[status] = statuses.get(status, 0) + 1
            assert status < 500, (number, asked)
            assert "content-security-policy" in headers, asked
            text = body.decode("utf-8")
            assert "<script>alert" not in text, asked
            assert "Traceback" not in text, asked
            assert "the secret" not in text, asked
            assert "root:x:" not in text, asked
            assert ">49<" not in text, asked
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    after = world.files()
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert all(name.startswith("runs/t") and name.endswith("/tags.json") for name in changed), changed
    assert {200, 400, 403, 404, 405, 421} <= statuses.keys(), statuses
    assert os.path.isfile(world.home / "secret.txt")
