"""Access to the dashboard: its token, its host names, and protection against other sites.

Ray: has no counterpart; its dashboard answers everybody who reaches it, unless a cluster has a token

The functions are pure. ``server`` asks them about every request, before it looks at the path.

Rules
  * The dashboard's token is derived from the cluster's. So an address in a browser's history, or on a terminal, lets nobody
    join the cluster. It stays valid when a head is started again on its tables.
  * The cluster's token itself is accepted too: it opens more than the dashboard does.
  * One visit with ``?token=`` sets the cookie. Scripts cannot read it (HttpOnly), and other sites cannot send it (SameSite).
  * A request with the cookie must name a host that leads here for certain: an IP address, localhost, or this machine. A name
    that its owner can point anywhere would let a foreign page read the answers (DNS rebinding).
  * A POST must come from the page: with its origin, and with a header that no form can set.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

PURPOSE = b"minray dashboard"
"""Text that the dashboard's token is derived with, so that it differs from all other uses of the cluster's token."""
CONTROL_HEADER = "X-Minray-Dashboard"
"""Header that each POST must have. A page of another site cannot send it without being allowed to, and nobody is."""
UNAUTHORIZED, FORBIDDEN, MISDIRECTED = 401, 403, 421

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer. The page has no inline script or style, and its parts come from this server alone."""


def dashboard_token(cluster_token: bytes) -> str:
    """Derive the dashboard's token, 64 hexadecimal digits, from the token of its cluster."""
    return hmac.digest(cluster_token, PURPOSE, "sha256").hex()


def cookie_name(port: int) -> str:
    """Return the cookie's name. Browsers send a cookie to all ports of a host, so each dashboard has a name of its own."""
    return f"minray-dashboard-{port}"


@dataclass(frozen=True)
class Visit:
    """The parts of a request that decide whether it is answered."""

    method: str
    host: str
    """Value of the header ``Host``."""
    given: str = ""
    """Token in the address."""
    cookie: str = ""
    authorization: str = ""
    origin: str | None = None
    site: str | None = None
    """Value of the header ``Sec-Fetch-Site``, which browsers send and pages cannot change."""
    has_control_header: bool = False


class AccessRefusal(NamedTuple):
    status: int
    error: str


ASKS_FOR_TOKEN = AccessRefusal(
    UNAUTHORIZED,
    "this dashboard needs its token: open the address with ?token=... that `minray dashboard` or the head has printed, "
    "or send the header Authorization: Bearer TOKEN",
)


class Access:
    """Decides about requests, for a dashboard that knows its token and the names of its host."""

    def __init__(self, hosts: set[str], allow_control: bool) -> None:
        """``hosts``: names, in lower case, that lead to this machine; IP addresses and localhost are always accepted."""
        self._hosts = hosts
        self._allow_control = allow_control

    def refusal(self, visit: Visit, cluster_token: bytes) -> AccessRefusal | None:
        """Return why a request is not answered; None if it is."""
        by_bearer = is_token(_bearer(visit.authorization), cluster_token)
        if not by_bearer:
            if not self._is_our_host(visit.host):
                return AccessRefusal(
                    MISDIRECTED,
                    f"this dashboard does not answer under the name {host_of(visit.host)!r}: use an IP address, localhost "
                    f"or one of {', '.join(sorted(self._hosts)) or 'no other names'}",
                )
            if not is_token(visit.cookie, cluster_token) and not is_token(visit.given, cluster_token):
                return ASKS_FOR_TOKEN
        if visit.method in ("GET", "HEAD"):
            return None
        return self._refusal_of_change(visit, by_bearer)

    def _refusal_of_change(self, visit: Visit, by_bearer: bool) -> AccessRefusal | None:
        if not self._allow_control:
            return AccessRefusal(
                FORBIDDEN, "this dashboard only shows the cluster; start it with --allow-control to change it"
            )
        if not visit.has_control_header:
            return AccessRefusal(FORBIDDEN, f"a change needs the header {CONTROL_HEADER}: 1")
        if by_bearer and visit.origin is None and visit.site is None:
            return None  # It is no browser, so no foreign page can have sent it.
        if visit.site not in (None, "same-origin"):
            return AccessRefusal(
                FORBIDDEN, "a change must come from the dashboard's own page, and this one comes from elsewhere"
            )
        if visit.origin is None or urlsplit(visit.origin).netloc != visit.host:
            return AccessRefusal(FORBIDDEN, "a change must have the dashboard's own origin in the header Origin")
        return None

    def _is_our_host(self, header: str) -> bool:
        name = host_of(header)
        return name == "localhost" or name in self._hosts or _is_ip(name)


def is_token(given: str, cluster_token: bytes) -> bool:
    """Tell whether a text is the dashboard's or the cluster's token. The time this takes tells nothing about them."""
    if not given or not cluster_token:
        return False
    text = given.strip().encode(errors="replace")
    is_own = hmac.compare_digest(text, dashboard_token(cluster_token).encode())
    return hmac.compare_digest(text, cluster_token.hex().encode()) or is_own


def host_of(header: str) -> str:
    """Return the host in a ``Host`` header, in lower case and without its port; "" if it has none."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token if scheme.lower() == "bearer" else ""


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a listener at this address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def warning_of(host: str) -> str:
    """Return what it means that a dashboard listens at this address; "" if only this machine reaches it."""
    if is_loopback(host):
        return ""
    return (
        f"The dashboard listens at {host} for other machines. Its traffic, with the token, is not encrypted: anyone who "
        "can read it on the way can look at the cluster. Use only networks that you trust, or loopback and an SSH tunnel."
    )
