"""Requests to the dashboard that are answered, and those that are refused: pure decisions."""

from __future__ import annotations

import pytest

from minray.dashboard.access import (
    SECURITY_HEADERS,
    Access,
    Visit,
    cookie_name,
    dashboard_token,
    is_loopback,
    is_token,
    warning_of,
)

TOKEN = bytes(range(32))
OWN = dashboard_token(TOKEN)
HOST = "127.0.0.1:8265"
READER = Access({"head.example"}, allow_control=False)
MASTER = Access({"head.example"}, allow_control=True)


def status(visit: Visit, access: Access = READER) -> int:
    refusal = access.refusal(visit, TOKEN)
    return 200 if refusal is None else refusal.status


def test_the_dashboards_token_is_not_that_of_the_cluster() -> None:
    assert OWN != TOKEN.hex() and len(OWN) == 64
    assert dashboard_token(bytes(32)) != OWN


@pytest.mark.parametrize("given", ["", "x", OWN[:-1], OWN + "0", "0" * 64, "ü", "\udc80", OWN.upper() + " "])
def test_another_token_is_refused(given: str) -> None:
    assert not is_token(given, TOKEN)
    assert status(Visit("GET", HOST, given=given)) == 401
    assert status(Visit("GET", HOST, cookie=given)) == 401
    assert status(Visit("GET", HOST, authorization=f"Bearer {given}")) == 401


def test_a_cluster_without_a_token_lets_nobody_in() -> None:
    assert not is_token("", b"") and not is_token(dashboard_token(b""), b"")


@pytest.mark.parametrize("given", [OWN, TOKEN.hex(), f" {OWN}"])
def test_the_token_opens_by_address_cookie_or_header(given: str) -> None:
    for visit in (
        Visit("GET", HOST, given=given),
        Visit("HEAD", HOST, cookie=given),
        Visit("GET", HOST, authorization=f"bearer {given}"),
    ):
        assert status(visit) == 200


@pytest.mark.parametrize(
    "host", ["localhost:8265", "LocalHost", "127.0.0.1", "[::1]:8265", "10.1.2.3:8265", "head.example:1", "HEAD.example."]
)
def test_hosts_that_lead_here_for_certain(host: str) -> None:
    assert status(Visit("GET", host, cookie=OWN)) == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example:8265", "localhost.evil.example", "head.example.evil", "[::1", "127.0.0.1.x"]
)
def test_a_name_that_anybody_can_point_here_is_refused(host: str) -> None:
    assert status(Visit("GET", host, cookie=OWN)) == 421
    assert status(Visit("GET", host, given=OWN)) == 421
    assert status(Visit("GET", host, authorization=f"Bearer {OWN}")) == 200, "no foreign page can send this header"


CHANGE = Visit("POST", HOST, cookie=OWN, origin=f"http://{HOST}", site="same-origin", has_control_header=True)


def changed(**fields: object) -> Visit:
    return Visit(**{**vars(CHANGE), **fields})  # type: ignore[arg-type]


def test_a_change_needs_allow_control() -> None:
    assert status(CHANGE, READER) == 403 and status(CHANGE, MASTER) == 200
    assert status(changed(site=None), MASTER) == 200, "older browsers do not send Sec-Fetch-Site"


@pytest.mark.parametrize(
    "fields",
    [
        {"has_control_header": False},
        {"site": "cross-site"},
        {"site": "same-site"},
        {"site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"origin": None},
        {"origin": None, "site": None},
    ],
)
def test_a_change_must_come_from_the_page(fields: dict[str, object]) -> None:
    assert status(changed(**fields), MASTER) == 403


def test_a_program_with_the_token_in_its_header_may_change_things() -> None:
    visit = Visit("POST", HOST, authorization=f"Bearer {OWN}", has_control_header=True)
    assert status(visit, MASTER) == 200 and status(visit, READER) == 403
    browser = Visit(**{**vars(visit), "origin": "http://evil.example"})
    assert status(browser, MASTER) == 403


def test_other_methods_count_as_changes() -> None:
    assert [status(Visit(method, HOST, cookie=OWN), MASTER) for method in ("PUT", "DELETE", "OPTIONS", "PATCH")] == [403] * 4


def test_the_policy_allows_no_inline_script_and_no_other_host() -> None:
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy and "*" not in policy


def test_each_port_has_its_cookie() -> None:
    assert cookie_name(1) != cookie_name(2)


def test_only_an_address_that_others_reach_has_a_warning() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")] == [True] * 5
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "head.example")] == [False] * 4
    assert warning_of("localhost") == "" and "not encrypted" in warning_of("10.0.0.1")
