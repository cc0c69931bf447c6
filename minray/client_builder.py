"""``ray.client("host:port").connect()``: Ray's older way to connect a program to a client server.

Ray: python/ray/client_builder.py

    with minray.client("10.0.0.1:10001").namespace("games").env({"working_dir": "."}).connect():
        ...

It does what ``init("minray://10.0.0.1:10001", namespace="games", runtime_env={...})`` does, which Ray recommends. Without an
address, or with "local", a cluster is started or joined as by ``init``. Left out: several connections of one process
(``allow_multiple``).
"""

from __future__ import annotations

from typing import Any

from minray.node.discovery import CLIENT_SCHEMES
from minray.node.init import ClientContext, RayContext, init

__all__ = ["ClientBuilder", "ClientContext", "client"]


class ClientBuilder:
    """Collects what a connection needs; ``connect`` makes it. Each method returns this object."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self._namespace: str | None = None
        self._environment: dict[str, Any] | None = None

    def namespace(self, namespace: str) -> ClientBuilder:
        """Set the namespace of the program's named actors."""
        self._namespace = namespace
        return self

    def env(self, env: dict[str, Any]) -> ClientBuilder:
        """Set the runtime environment of the program's tasks and actors."""
        self._environment = env
        return self

    def connect(self) -> RayContext:
        """Connect this process. Raises the errors of ``init``."""
        return init(self.address, namespace=self._namespace, runtime_env=self._environment)


def client(address: str | None = None) -> ClientBuilder:
    """Begin a connection to the client server at ``host:port``. Without an address, or with "local", none is used."""
    if not isinstance(address, str | None):
        raise TypeError(f"client takes an address, not {type(address).__name__}")
    if address and address != "local" and not address.startswith(CLIENT_SCHEMES):
        address = f"minray://{address}"
    return ClientBuilder(address)
