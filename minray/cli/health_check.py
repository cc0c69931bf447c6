"""``minray health-check``: whether a node of this machine, or a cluster elsewhere, answers.

Ray: health_check in python/ray/scripts/scripts.py

    minray health-check                                 readiness: this machine's node answers, and on a head the gcs too
    minray health-check --liveness                      liveness: the node need not be restarted
    minray health-check --address=HOST:PORT --wait=300  the gcs of a cluster answers: what a new node waits for

Probes run it every few seconds, so it starts quickly: it needs neither click nor what a driver needs. ``minray/__main__.py``
calls ``main`` before it imports the other commands.

Rules
  * The exit code is 0 if the answer is yes, and 1 with one line on standard error if it is no.
  * The gcs must say something that only a gcs with this token says. An open port proves nothing: that of a gcs which still
    loads its tables is open, and another program may have it.
  * TLS has no options here: a node has its files in its configuration, and otherwise $MINRAY_TLS_CERT and its like count.
  * Liveness is about what only a restart can mend. A node is dead if its processes have ended, or if the gcs has declared it
    dead. A busy node is alive. So is one whose gcs is silent: nodes wait for their gcs. A head is dead if its gcs is silent.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from minray.common.config import SystemConfig
from minray.node.discovery import (
    NodeFile,
    endpoint_of,
    given_token,
    nodes_of,
    session_token,
    started_nodes,
    with_environment,
)
from minray.platform.base import Buffer, Network, PlatformError
from minray.platform.process.host import RealHost
from minray.platform.transport.sockets import StreamNetwork
from minray.platform.transport.tls import Tls, files_of
from minray.protocol.base import Record, Request, decode, encode, reply_class
from minray.protocol.gcs import CheckAlive, GetWorkerDeath

R = TypeVar("R", bound=Record)

TIMEOUT_S = 5.0
"""Default of the seconds that each process has to answer."""
PAUSE_S = 0.5
"""Seconds between two attempts of a check that may wait."""
SICK = (PlatformError, ConnectionError, RuntimeError, TimeoutError)
"""Errors that mean no. A wrong option raises ValueError, for which waiting would not help."""


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    address: str | None
    token_file: str | None
    is_liveness: bool
    timeout_s: float
    wait_s: float


def main(arguments: Sequence[str]) -> None:
    """Run the command; end the process with its exit code."""
    options = _parse(arguments)
    try:
        print(asyncio.run(_until_healthy(options)))
    except (*SICK, ValueError) as error:
        silence = f"no answer within {options.timeout_s:g} s"
        print(f"Error: {silence if isinstance(error, TimeoutError) else error}", file=sys.stderr)
        sys.exit(1)


def _parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        "minray health-check", description="Tell whether a node of this machine, or a cluster elsewhere, answers."
    )
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="Ask the gcs of this cluster. Default: a node of this machine."
    )
    parser.add_argument("--token-file", metavar="FILE", help="File with the cluster's token, for --address.")
    parser.add_argument(
        "--liveness", action="store_true", help="Fail only if this machine's node has to be restarted: silence is no death."
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="Time to answer. Default: 5.")
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="Try again for so long. Default: 0.")
    given = parser.parse_args(arguments)
    if given.address is not None and given.liveness:
        parser.error("--liveness is about this machine's node, and --address about a cluster: give one of them")
    if not (0 < given.timeout < float("inf") and 0 <= given.wait < float("inf")):
        parser.error("--timeout and --wait are finite numbers of seconds, and --timeout is above 0")
    return Options(
        address=given.address,
        token_file=given.token_file,
        is_liveness=given.liveness,
        timeout_s=given.timeout,
        wait_s=given.wait,
    )


async def _until_healthy(options: Options) -> str:
    """Check once, and then again as long as that may help; return what was found. Raises what the last check raised."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.wait_s
    check: Callable[[Options], Awaitable[str]] = _check_node if options.address is None else _check_cluster
    while True:
        try:
            return await check(options)
        except SICK:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(PAUSE_S)


async def _check_cluster(options: Options) -> str:
    """Ask the gcs at the address. The address may be a name, which is resolved again for each check."""
    address = options.address
    assert address is not None
    endpoint = endpoint_of(address)
    local = nodes_of(address)
    token = given_token(options.token_file) or (session_token(local[0].session_dir) if local else None)
    if token is None:
        raise ValueError(f"the token of the cluster at {address} is not known here: use --token-file or $MINRAY_TOKEN")
    system = local[0].system_config if local else SystemConfig.from_overrides(with_environment(None))
    await _ask(_network(system, token), endpoint, CheckAlive(), options.timeout_s)
    return f"The gcs at {address} answers."


async def _check_node(options: Options) -> str:
    nodes = started_nodes()
    if not nodes:
        raise ConnectionError("no node that `minray start` has started runs on this machine under this user")
    file = nodes[-1]
    if file.departure:
        raise ConnectionError(f"node {file.node_id[:8]} has left the cluster ({file.departure})")
    network = _network(file.system_config, session_token(file.session_dir))
    if options.is_liveness:
        return await _check_liveness(network, file, options.timeout_s)
    questions = [_ask(network, file.raylet_endpoint, CheckAlive(), options.timeout_s)]
    if file.is_head:
        questions.append(_ask(network, file.gcs_endpoint, CheckAlive(), options.timeout_s))
    await asyncio.gather(*questions)
    return f"Node {file.node_id[:8]} answers."


async def _check_liveness(network: Network, file: NodeFile, timeout_s: float) -> str:
    """Ask the gcs whether it has declared this node dead."""
    try:
        death = (await _ask(network, file.gcs_endpoint, GetWorkerDeath(b"", bytes.fromhex(file.node_id)), timeout_s)).death
    except (PlatformError, TimeoutError):
        if file.is_head:
            raise
        return f"Node {file.node_id[:8]} runs, and its gcs does not answer."
    if death is not None and not file.is_head:  # The raylet of a head is started again, as another node.
        raise ConnectionError(f"node {file.node_id[:8]} is dead for its cluster: {death.cause}")
    return f"Node {file.node_id[:8]} runs."


def _network(system_config: SystemConfig, token: bytes) -> Network:
    """Make the network of a process that only asks; a whole ``Platform`` would import much more."""
    files = files_of(system_config)
    tls = None if files is None else Tls(files)
    if system_config.transport == "grpc":
        from minray.platform.transport.grpc_transport import GrpcNetwork  # only where it is used

        return GrpcNetwork(token, RealHost(), tls=tls)
    return StreamNetwork(token, RealHost(), tls=tls)


async def _ask(network: Network, endpoint: str, request: Request[R], timeout_s: float) -> R:
    """Ask one question on a channel of its own. Raises PlatformError, or TimeoutError after ``timeout_s``."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_reply(error: PlatformError | None, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(bytes(payload))
        else:
            answer.set_exception(error)

    async with asyncio.timeout(timeout_s):
        channel = await network.connect(endpoint, b"", RealHost().random_bytes(16), lambda: None)
        try:
            channel.call(type(request).__name__, encode(request), (), on_reply)
            reply = decode(reply_class(type(request)), await answer)
        finally:
            channel.close()
    return reply  # type: ignore[return-value]  # ``reply_class`` cannot say that this is the request's own R
