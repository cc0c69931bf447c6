"""A head with a client server, in processes of its own, for tests that connect to it as remote clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minray.common.config import SystemConfig
from minray.node.discovery import NodeFile, with_environment
from minray.node.node import Node, NodeOptions, start_node


@contextmanager
def client_head(system_config: dict[str, Any] | None = None, **options: Any) -> Iterator[Node]:
    """Start a head that ends with the block; programs of this machine find its token."""
    system = SystemConfig.from_overrides(with_environment(system_config))
    node = start_node(NodeOptions(system_config=system, client_server_port=0, **{"num_cpus": 2, **options}))
    try:
        yield node
    finally:
        node.close()


def address_of(file: NodeFile) -> str:
    return f"minray://{file.client_server}"
