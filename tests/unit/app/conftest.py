"""A dashboard on a few runs, and a client that can send it anything, good or bad."""

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import pytest


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Client:
    """Sends requests to an ASGI application without a server between them."""

    app: object
    cookie: str = ""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def send(self, method, path, query=b"", headers=(), body=b""):
        pairs = [(k.lower().encode(), v.encode("latin-1")) for k, v in dict(headers).items()]
        if not any(name == b"host" for name, _ in pairs):
            pairs.append((b"host", b"localhost:8765"))
        if self.cookie:
            pairs.append((b"cookie", self.cookie.encode()))
        return self.raw(method, path, query, pairs, body)

    def raw(self, method, path, query, pairs, body):
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode("utf-8", "replace"),
            "query_string": query, "headers": pairs, "server": ("127.0.0.1", 8765), "scheme": "http",
            "http_version": "1.1", "root_path": "",
        }  # fmt: skip
        found = []

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            found.append(message)

        self.loop.run_until_complete(asyncio.wait_for(self.app(scope, receive, send), 60))
        data = b"".join(m.get("body", b"") for m in found[1:])
        headers = {k.decode(): v.decode() for k, v in found[0]["headers"]}
        return Answer(found[0]["status"], headers, data.decode("utf-8"))

    def get(self, path, headers=(), **query):
        return self.send("GET", path, urlencode(query, doseq=True).encode(), headers)

    def post(self, path, headers=(), token=None, **form):
        given = self.form_token() if token is None else token
        body = urlencode({**form, "form_token": given}, doseq=True).encode()
        kind = {"content-type": "application/x-www-form-urlencoded", "content-length": str(len(body))}
        return self.send("POST", path, b"", {**kind, **dict(headers)}, body)

    def form_token(self):
        return re.search(r'name="form_token" value="([0-9a-f]{64})"', self.get("/exact").text)[1]

    @property
    def board(self):
        return self.app.app.state.board

    def key(self, name):
        return self.board.runs.key(name)


def make_runs(root: Path) -> None:
    """Two runs with estimates, one with a name made to be dangerous, a recipe half done."""
    from crunode.core.result import Estimate, Finding
    from crunode.store.documents import write_document
    from crunode.store.run_store import RunStore, save_estimate

    for k, name in enumerate(("a/one", "a/two", "<img src=x onerror=alert(1)>")):
        store = RunStore.create(root / name, spec={"n": 9, "draws": 10 + k}, groups=[[0]], seed=k, provenance={})
        found = (Finding.of("LLC101", "<b>bad</b>"),) if k == 2 else ()
        save_estimate(store.folder, Estimate("llc", 2.5 + k, se=0.3, systematic=0.1, findings=found))
        store.close()
    asked = {"recipe": "toy-volumes", "recipe_version": 1, "size": "toy", "seed": 0}
    run = {**asked, "cells": {f"cell {k}": {"k": k} for k in range(4)}}
    home = root / "half"
    write_document(home / "recipe.json", "crunode-recipe-store", 1, {"run": run})
    write_document(home / "cells" / "0.json", "crunode-recipe-cell", 1, {"cell": "cell 0", "value": {}})


@pytest.fixture(scope="session")
def make_client(tmp_path_factory):
    from crunode.app.server import create_app

    made = []

    def make(root=None, access=None):
        if root is None:
            root = tmp_path_factory.mktemp("runs")
            make_runs(root)
        client = Client(create_app(root, access))
        made.append(client)
        return client

    yield make
    for client in made:
        client.board.close()
        client.loop.run_until_complete(client.loop.shutdown_default_executor())
        client.loop.close()


@pytest.fixture(scope="module")
def client(make_client):
    return make_client()
