"""What reaches the pages, and what every answer says."""

import re
from html.parser import HTMLParser

import pytest

from crunode.app.access import Access
from crunode.app.forms import LONGEST_BODY
from crunode.app.guard import HEADERS

TOKEN = "a token of many signs"
PAGES = ("/", "/running", "/running/live", "/exact", "/recipes", "/nowhere", "/run/0", "/compare", "/static/app.js")


@pytest.mark.parametrize("path", [p for p in PAGES if p != "/recipes"])
def test_every_answer_has_the_headers(client, path):
    found = client.get(path).headers
    assert HEADERS.items() <= found.items()
    assert "access-control-allow-origin" not in found
    policy = found["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert path.startswith("/static") or found["cache-control"] == "no-store"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("path", ["/", "/exact", "/running", "/run/KEY"])
def test_pages_load_nothing_but_files_of_this_server(client, path):
    tags = Tags()
    tags.feed(client.get(path.replace("KEY", client.key("a/one"))).text)
    assert len(tags.found) > 20
    for tag, given in tags.found:
        assert tag not in ("style", "iframe", "object", "embed", "base")
        assert tag != "script" or given["src"].startswith("/static/")
        assert not any(name == "style" or name.startswith("on") for name in given)
        for name in ("src", "href", "action"):
            assert re.match(r"/(?!/)|#|\?|data:|$", given.get(name) or ""), f"{tag} would go elsewhere: {given}"


@pytest.mark.parametrize("host", ["evil.example", "", "localhost.evil.example:8765"])
def test_other_hosts_are_refused(client, host):
    assert client.get("/", headers={"host": host}).status == 421
    assert client.post("/exact", headers={"host": host}).status == 421


def test_a_request_without_host_and_one_with_two_are_refused(client):
    assert client.raw("GET", "/", b"", [], b"").status == 421
    two = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert client.raw("GET", "/", b"", two, b"").status == 400


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_forms_of_other_sites_are_refused(client, headers):
    assert client.post("/run/" + client.key("a/one") + "/tags", headers, tags="x", change="add").status == 403
    assert client.board.runs.catalog.record("a/one").tags == ()


@pytest.mark.parametrize("path", ["/exact", "/recipes", "/running/stop", "/run/KEY/tags", "/sign-in"])
@pytest.mark.parametrize("token", ["", "0" * 64])
def test_forms_without_the_form_token_are_refused(client, path, token):
    sent = {"recipe": "toy-volumes", "tags": "x", "change": "add"}
    assert client.post(path.replace("KEY", client.key("a/one")), token=token, **sent).status == 403
    assert client.board.jobs.all() == []
    assert client.board.runs.catalog.record("a/one").tags == ()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "\r\n"])
def test_other_methods_are_refused(client, method):
    assert client.send(method, "/").status == 405


def test_head_is_answered(client):
    assert client.send("HEAD", "/").status == 200


def test_large_requests_are_refused(client):
    kind = {"content-type": "application/x-www-form-urlencoded"}
    big = b"a=" + b"x" * LONGEST_BODY
    assert client.send("POST", "/exact", b"", kind, big).status == 413
    assert client.send("POST", "/exact", b"", {**kind, "content-length": str(10**12)}, b"").status == 413
    assert client.send("POST", "/exact", b"", {**kind, "content-length": "many"}, b"").status == 413
    assert client.send("GET", "/", b"name=" + b"x" * 9000).status == 413
    assert client.send("GET", "/" + "x" * 3000).status == 413


def test_forms_of_other_kinds_are_refused(client):
    for kind in ("application/json", "multipart/form-data; boundary=x", "text/plain", ""):
        assert client.send("POST", "/exact", b"", {"content-type": kind}, b"{}").status == 415
    many = b"&".join(b"a=1" for _ in range(500))
    assert client.send("POST", "/exact", b"", {"content-type": "application/x-www-form-urlencoded"}, many).status == 400


def test_websockets_are_closed(client):
    sent = []

    async def send(message):
        sent.append(message)

    client.loop.run_until_complete(client.app({"type": "websocket", "path": "/", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.fixture(scope="module")
def locked(make_client):
    return make_client(access=Access("0.0.0.0", 8765, TOKEN))


@pytest.mark.parametrize("path", PAGES)
def test_without_the_token_nothing_is_shown(locked, path):
    found = locked.get(path)
    assert found.status == (200 if path.startswith("/static") else 401)
    assert "a/one" not in found.text
    assert "set-cookie" not in found.headers


def test_the_wrong_token_gives_nothing(locked):
    found = locked.get("/", token=TOKEN[:-1])
    assert found.status == 401
    assert "not the token" in found.text
    assert "set-cookie" not in found.headers
    assert TOKEN[:-1] not in found.text


def test_the_token_gives_a_cookie_that_opens_all_pages(make_client):
    locked = make_client(access=Access("0.0.0.0", 8765, TOKEN))
    found = locked.get("/", token=TOKEN)
    assert found.status == 200
    cookie = found.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    assert TOKEN not in found.text
    locked.cookie = cookie.partition(";")[0]
    assert "a/one" in locked.get("/").text
    assert locked.post("/exact", family="normal_crossing", **{"value-k": "1,1"}).status == 200
    assert locked.post("/exact", token="0" * 64).status == 403


def test_the_token_can_be_given_in_a_form(make_client):
    locked = make_client(access=Access("0.0.0.0", 8765, TOKEN))
    given = re.search(r'name="form_token" value="([0-9a-f]{64})"', locked.get("/").text)[1]
    assert locked.post("/sign-in", token=given, **{"token ": TOKEN}).status == 401
    body = f"form_token={given}&token={TOKEN.replace(' ', '+')}".encode()
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert "set-cookie" in locked.send("POST", "/sign-in", b"", kind, body).headers
    wrong = body.replace(given.encode(), b"0" * 64)
    assert locked.send("POST", "/sign-in", b"", kind, wrong).status == 401
    # What those outside are given is no good for those inside.
    locked.cookie = f"crunode-8765={locked.board.access.session}"
    assert locked.post("/exact", token=given).status == 403


def test_an_error_in_a_page_says_nothing_of_the_inside(make_client, monkeypatch, caplog):
    client = make_client()
    monkeypatch.setattr(client.board.runs.catalog, "count", lambda **_: 1 / 0)
    found = client.get("/")
    assert found.status == 500
    assert "ZeroDivision" not in found.text
    assert "Traceback" not in found.text
    assert "ZeroDivisionError" in caplog.text
    assert HEADERS.items() <= found.headers.items()
