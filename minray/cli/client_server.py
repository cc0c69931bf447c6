"""``minray client-server``: lets programs on machines without a node use a cluster.

Ray: ray start --ray-client-server-port; python -m ray.util.client.server

    minray client-server                                  for clients on this machine, at 127.0.0.1:10001
    minray client-server --host 10.0.0.1 --port 0         for clients elsewhere, at any free port
    minray client-server --transport grpc                 for clients that gRPC alone reaches, through a proxy for example

The command runs in the foreground on a machine that has a node of the cluster. It ends when it is interrupted or the node
ends, and all its clients are disconnected then. ``minray start --head --ray-client-server-port`` starts one with the head.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress

import click
import msgspec

from minray.cli.errors import errors_for_people
from minray.common.config import SystemConfig
from minray.node.discovery import CLIENT_SERVER_PORT, NodeFile, candidates, read_node_file
from minray.platform.process.host import RealHost, raise_file_limit
from minray.platform.real import check_transport
from minray.platform.transport.tls import OPEN_CLIENTS, is_reachable

LOOK_S = 1.0
"""Seconds between two looks whether the node lives."""


@click.command("client-server")
@click.option("--address", metavar="HOST:PORT", help="Address of the cluster. Default: the newest started here.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address at which clients reach this machine.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=CLIENT_SERVER_PORT, show_default=True, help="TCP port; 0: any free one."
)
@click.option(
    "--transport",
    type=click.Choice(["stream", "grpc"]),
    envvar="MINRAY_CLIENT_TRANSPORT",
    help="Transport that clients speak. Default: $MINRAY_CLIENT_TRANSPORT, else that of the cluster.",
)
def client_server(address: str | None, host: str, port: int, transport: str | None) -> None:
    """Serve remote clients of a cluster, in the foreground: minray.init("minray://HOST:PORT")."""
    with errors_for_people():
        node = candidates(address or "auto")[0]
        system_config = node.system_config
        if transport is not None:
            system_config = msgspec.structs.replace(system_config, client_transport=transport)
        check_transport(system_config.for_clients())
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        raise_file_limit()
        asyncio.run(_serve(node, system_config, host, port))


def transport_of_clients(system_config: SystemConfig) -> str:
    """Say what clients need to speak the transport of this configuration's client server; empty: nothing."""
    transport = system_config.for_clients().transport
    if transport == SystemConfig().transport:
        return ""
    return f"These programs need MINRAY_CLIENT_TRANSPORT={transport} in their environment."


async def _serve(node: NodeFile, system_config: SystemConfig, host: str, port: int) -> None:
    from minray.remote_client.server import ClientServer  # No other command needs it.

    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    server = ClientServer(node.session_dir, RealHost(), system_config)
    await server.listen(host, port)
    try:
        click.echo(f"Remote clients of the cluster at {node.gcs_address} are served at minray://{server.address}")
        if advice := transport_of_clients(system_config):
            click.echo(advice)
        if is_reachable(host) and not system_config.tls_cert:
            click.echo(OPEN_CLIENTS)
        while not interrupted.is_set() and read_node_file(node.session_dir) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(interrupted.wait(), LOOK_S)
    finally:
        await server.close()
    if not interrupted.is_set():
        raise RuntimeError(f"the node of the client server has ended; its logs are in {node.session_dir}/logs")
