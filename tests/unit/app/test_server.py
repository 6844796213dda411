"""The command that serves the dashboard."""

import http.client
import re
import socket
import subprocess
import sys

import pytest

from crunode.app import server
from crunode.cli.commands import run_words


def test_what_cannot_be_served_is_said(tmp_path, capsys):
    assert run_words(["serve", str(tmp_path / "absent")]) == 2
    assert "expected a folder of runs" in capsys.readouterr().err
    assert run_words(["serve", str(tmp_path), "--token", "short", "--port", "0"]) == 2
    assert "at least 16" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run_words(["serve", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
    assert "expected an address to listen at" in capsys.readouterr().err
    assert run_words(["serve", str(tmp_path), "--port", "70000"]) == 2


@pytest.mark.parametrize(("host", "given"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_token_is_made_up_where_others_can_reach_it(tmp_path, monkeypatch, host, given):
    import uvicorn

    said = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    monkeypatch.setattr(server, "recipe_cards", lambda: ())
    server.serve(tmp_path, host, 0, say=said.append)
    assert bool(re.search(r"http://127.0.0.1:\d+/\?token=[\w-]{32}$", said[0])) is given
    assert ("Others on the network" in " ".join(said)) is given


@pytest.mark.heavy
def test_a_real_server(tmp_path):
    command = [sys.executable, "-m", "crunode", "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(re.search(r"http://127.0.0.1:(\d+)/$", process.stdout.readline().strip())[1])
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            link.request("GET", "/")
            answer = link.getresponse()
            assert answer.status == 200
            assert b"There are none yet" in answer.read()
            assert answer.getheader("server") is None
            link.request("GET", "/", headers={"Host": "evil.example"})
            assert link.getresponse().status == 421
            link.close()
        finally:
            process.terminate()
            process.wait(30)
