"""Who may use the dashboard."""

import pytest

from crunode.app.access import Access, host_of, is_loopback
from crunode.errors import InputError

TOKEN = "a token of many signs"


def test_an_address_that_others_can_reach_needs_a_token():
    with pytest.raises(InputError, match="expected a token"):
        Access("0.0.0.0")
    assert Access("0.0.0.0", token=TOKEN).token == TOKEN


@pytest.mark.parametrize("token", ["", "short", "with a \n line that ends"])
def test_poor_tokens_are_refused(token):
    with pytest.raises(InputError, match="at least 16 printable"):
        Access(token=token)


def test_the_token_is_not_shown_by_repr():
    assert TOKEN not in repr(Access(token=TOKEN))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765", "localhost."])
def test_loopback_names_are_answered(host):
    assert Access().answers_to(host)


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil@localhost", "localhost/",
     "localhost:8765:1", "[::1", "::1", "127.1", "0x7f000001", "192.168.0.7", "local host", "localhost\r\nx: y"],
)  # fmt: skip
def test_other_names_are_not(host):
    assert not Access().answers_to(host, "127.0.0.1")


def test_an_address_for_everyone_answers_to_the_one_that_was_reached():
    access = Access("0.0.0.0", token=TOKEN)
    assert access.answers_to("192.168.0.7:8765", "192.168.0.7")
    assert not access.answers_to("evil.example", "192.168.0.7")
    assert not Access("10.0.0.1", token=TOKEN).answers_to("192.168.0.7", "192.168.0.7")


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ({}, True),
        ({"origin": "http://localhost:8765"}, True),
        ({"origin": "http://localhost:8765", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "null"}, False),
        ({"origin": "http://localhost:9999"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://localhost:8765.evil.example"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://localhost:8765", "sec-fetch-site": "cross-site"}, False),
    ],
)
def test_forms_come_from_pages_of_this_server(headers, good):
    assert Access().comes_from_here("POST", {"host": "localhost:8765", **headers}) is good


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ({}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, True),
    ],
)
def test_other_sites_may_link_to_pages_and_not_load_them(headers, good):
    assert Access().comes_from_here("GET", {"host": "localhost:8765", **headers}) is good


def test_tokens_and_cookies():
    access = Access(token=TOKEN)
    assert access.is_token(TOKEN)
    assert not access.is_token(TOKEN[:-1])
    assert not access.is_token("")
    assert not access.is_signed_in("")
    assert not access.is_signed_in(f"{access.cookie}={TOKEN}")
    assert access.is_signed_in(f"other=1; {access.cookie}={access.session}")
    assert access.session != Access(token=TOKEN).session
    assert not access.is_form_token(access.form_token(signed_in=False))


def test_no_token_lets_everyone_on_the_machine_in():
    assert Access().is_signed_in("")
    assert not Access().is_token("")


def test_hosts():
    assert host_of("a" * 300) is None
    assert is_loopback("::1")
    assert not is_loopback("example.org")
