"""The tests of this folder that a remote client does not run, each with the reason.

``make test-client`` connects all others to a head as a remote client (``MINRAY_TEST_AS=client``). Tests that start clusters
of their own have no use for that, and are not listed here.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.real.not_local import names_of

OWN_CLUSTER = "it starts a cluster of its own"

NOT_CLIENT: dict[str, str] = {}
"""File and test -> reason, as in ``not_local``."""


def reason_for(node_id: str, fixtures: Collection[str]) -> str:
    """Return why a test, by its id and its fixtures, is not for a remote client; empty if it is."""
    if "node" not in fixtures:
        return OWN_CLUSTER
    return next((NOT_CLIENT[name] for name in names_of(node_id) if name in NOT_CLIENT), "")
