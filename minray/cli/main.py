"""The command line, mainly for clusters that outlive a program, on one machine or many.

Ray: python/ray/scripts/scripts.py

    minray start --head                                        start a cluster that listens on loopback
    minray start --head --node-ip-address=10.0.0.1             start a cluster that other machines can join
    minray start --address=10.0.0.1:23456 --token-file=FILE    add a node on this machine to a cluster
    minray check --address=10.0.0.1:23456                      why this machine cannot join: see ``check``
    minray status                                              nodes, resources in use, waiting tasks, workers
    minray memory                                              contents of the object stores, and their references
    minray list actors|tasks|objects|nodes|workers|jobs        state tables; also get and summary: see ``state``
    minray stack, timeline                                     what processes do and have done: see ``processes``
    minray metrics [--serve PORT]                              figures of programs and of the system: see ``metrics``
    minray logs [FILE|actor ID|task ID|...]                    log files of all nodes: see ``logs``
    minray debug [ID]                                          attaches to a breakpoint of a task: see ``debug``
    minray dashboard                                           a web page about a cluster: see ``dashboard``
    minray microbenchmark                                      speed of this machine: see ``microbenchmark``
    minray lab                                                 workload traces on simulated clusters: see ``laboratory``
    minray client-server                                       serves remote clients: see ``client_server``
    minray drain-node --node-id=...                            make a node leave after its tasks have ended: see ``drain``
    minray health-check                                        whether a node or a cluster answers: see ``health_check``
    minray stop                                                end nodes that ``minray start`` has started here: see ``stop``

Rules
  * Each error is one line within seconds, and a failed start leaves nothing behind.
  * The token never appears on a command line or on the terminal, only the path of the file that contains it.
  * Several clusters may run on one machine. Programs that name none take that of the newest node; ``start`` says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from minray._version import __version__
from minray.cli import block as blocking
from minray.cli.check import check
from minray.cli.client_server import client_server, transport_of_clients
from minray.cli.dashboard import dashboard_command
from minray.cli.debug import debug_command
from minray.cli.drain import drain_command
from minray.cli.errors import errors_for_people
from minray.cli.laboratory import laboratory_commands
from minray.cli.logs import logs_command
from minray.cli.metrics import metrics_command
from minray.cli.output import FORMAT, formatted
from minray.cli.processes import process_commands
from minray.cli.state import state_commands, which_cluster
from minray.cli.status import cluster_facts, describe_cluster
from minray.cli.stop import stop
from minray.cli.tls import given_tls, tls_options
from minray.common.config import SystemConfig
from minray.common.labels import parse_labels
from minray.dashboard.access import warning_of
from minray.dashboard.connection import Target
from minray.dashboard.process import DEFAULT_HOST, DEFAULT_PORT
from minray.node.cluster_client import ClusterClient
from minray.node.discovery import (
    RAYS_TLS_FILES,
    TABLES_FILE,
    TOKEN_FILE,
    NodeFile,
    endpoint_of,
    forget_head,
    given_token,
    head_directory,
    make_token,
    nodes_of,
    read_token,
    session_token,
    setting,
    started_nodes,
    with_environment,
    write_token,
)
from minray.node.node import Node, NodeOptions, start_node
from minray.observability.memory_summary import GROUPS, NODE_ADDRESS, ORDERS, UNITS, View, memory_facts, memory_summary
from minray.platform.storage.private_paths import remove_tree
from minray.platform.transport.endpoints import check_free, free_port, own_address
from minray.platform.transport.tls import OPEN_TRAFFIC, is_reachable

LOOPBACK = "127.0.0.1"
DEFAULT_TRANSPORT = SystemConfig().transport


class JsonObject(click.ParamType):  # type: ignore[type-arg]  # Generic in some versions only.
    """Type of an option that is a JSON object, such as ``'{"fast_disk": 2}'``."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            decoded = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(decoded, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return decoded


class Labels(click.ParamType):  # type: ignore[type-arg]  # Generic in some versions only.
    """Type of an option that is a list of labels, such as ``zone=a,disk=fast``."""

    name = "labels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        try:
            return parse_labels(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="minray")
def main() -> None:
    """Start, stop and look at minray clusters."""


# --- start -------------------------------------------------------------------------------------------------------------


@main.command()
@click.option("--head", is_flag=True, help="Start a new cluster with this node as its head.")
@click.option("--address", metavar="HOST:PORT", help="Join the cluster whose head has this address.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="TCP port of the head's gcs; 0 means any free port.")
@click.option("--node-ip-address", metavar="IP", help="Address at which this node listens. Default of a head: 127.0.0.1.")
@click.option("--node-name", default="", help="Name of this node in listings.")
@click.option("--num-cpus", type=click.FloatRange(0), help="Number of CPUs. Default: all CPUs of this machine.")
@click.option("--num-gpus", type=click.FloatRange(0), help="Number of GPUs. Default: those that are found.")
@click.option("--memory", type=click.FloatRange(0), help="Bytes that tasks can request. Default: 70 % of this machine's.")
@click.option(
    "--object-store-memory",
    type=click.FloatRange(0),
    help="Size of the object store in bytes. Default: 30 % of this machine's memory.",
)
@click.option("--object-spilling-directory", default="", help="Places of spill files: paths or URLs, joined by colons.")
@click.option("--resources", type=JsonObject(), default="{}", help="Custom resources as JSON: '{\"fast_disk\": 2}'.")
@click.option("--labels", type=Labels(), default="", help="Labels of this node: zone=a,disk=fast.")
@click.option("--storage", help="File with the head's tables, so that the cluster survives its gcs; '' means in memory.")
@click.option(
    "--token-file",
    metavar="FILE",
    help="File with the cluster's token. Default: $MINRAY_TOKEN, else the token kept on this machine.",
)
@tls_options
@click.option("--system-config", type=JsonObject(), default="{}", help="Settings of a new cluster (--head), as JSON.")
@click.option("--include-dashboard", is_flag=True, help="Also serve the dashboard, a web page about the cluster (--head).")
@click.option("--dashboard-host", default=DEFAULT_HOST, show_default=True, help="Address at which the dashboard listens.")
@click.option(
    "--dashboard-port",
    type=click.IntRange(0, 65535),
    help=f"TCP port of the dashboard; 0 means any free one. Default: {DEFAULT_PORT}, or the next free one.",
)
@click.option(
    "--ray-client-server-port",
    "client_server_port",
    type=click.IntRange(0, 65535),
    help="Also start a client server (--head): remote clients connect to this TCP port; 0 means any free port.",
)
@click.option("--block", is_flag=True, help="Wait until the node ends; interrupting this command ends the node.")
@click.option(
    "--drain-on-sigterm",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="With --block: SIGTERM drains the node, for at most this time. Default: it ends the node at once.",
)
def start(
    head: bool,
    address: str | None,
    port: int,
    node_ip_address: str | None,
    storage: str | None,
    token_file: str | None,
    system_config: dict[str, Any],
    dashboard_port: int | None,
    block: bool,
    drain_on_sigterm: float,
    **of_the_node: Any,
) -> None:
    """Start a node on this machine: the head of a new cluster, or one more node of a running cluster."""
    if head == (address is not None):
        raise click.UsageError("give either --head or --address")
    ip = node_ip_address and node_ip_address.strip("[]")
    if not head and of_the_node["client_server_port"] is not None:
        raise click.UsageError("--ray-client-server-port is for the head; `minray client-server` serves clients elsewhere")
    if not head and (port or storage is not None or system_config):
        raise click.UsageError("--port, --storage and --system-config are for the head; they hold for the whole cluster")
    if not head and of_the_node["include_dashboard"]:
        raise click.UsageError("--include-dashboard is for the head; `minray dashboard` serves it on any other machine")
    if drain_on_sigterm and not block:
        raise click.UsageError("--drain-on-sigterm is about the process that --block keeps; give both")
    if block:
        blocking.take_signals()
    with errors_for_people():
        options = NodeOptions(head=head, detached=True, **of_the_node)
        options.dashboard_port = -1 if dashboard_port is None else dashboard_port
        if address is None:
            options.system_config = SystemConfig.from_overrides(with_environment({**system_config, **given_tls()}))
            node = _start_head(options, ip or LOOPBACK, port, storage, token_file)
        else:
            node = _join(options, address, ip, token_file)
        if not block:
            node.detach()
    if block:
        blocking.wait_for_end(node, drain_on_sigterm, lambda: _announce(node, options.dashboard_host))
    else:
        _announce(node, options.dashboard_host)


def _start_head(options: NodeOptions, ip: str, port: int, storage: str | None, token_file: str | None) -> Node:
    if ip in ("0.0.0.0", "::"):
        raise ValueError(f"--node-ip-address={ip} is not one address; give that at which other nodes reach this machine")
    token = given_token(token_file)
    if port:
        _check_free(ip, port)
    else:
        port = free_port(ip)
        forget_head(f"{ip}:{port}")  # An earlier cluster may have been given the same free port.
    options.node_ip = options.tcp_host = ip
    options.tcp_port = port
    directory = head_directory(f"{ip}:{port}")
    is_new = not directory.exists()
    try:
        if storage == "":
            options.token = token or make_token()
        else:
            options.token = _keep_token(directory, token)
            options.storage = _place_of_tables(storage) if storage else str(directory / TABLES_FILE)
        return start_node(options)
    except BaseException:
        if is_new:
            remove_tree(str(directory))
        raise


def _place_of_tables(path: str) -> str:
    """Return the absolute path of the file with the tables. Make its folder, mode 0700, if that is missing."""
    place = Path(os.path.abspath(path))
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise RuntimeError(f"cannot make the folder of --storage, {place.parent}: {error.strerror}") from None
    return str(place)


def _check_free(ip: str, port: int) -> None:
    """Raise RuntimeError if a cluster of this user has the port, PlatformError if the head cannot listen there."""
    running = [file for file in nodes_of(f"{ip}:{port}") if file.is_head]
    if running:
        address = running[0].gcs_address
        raise RuntimeError(
            f"a cluster of yours runs at {address} already (session {running[0].session_dir}). Programs join it with"
            f" minray.init(address={address!r}), and `minray stop --address={address}` ends it. Give another --port for a"
            " second cluster"
        )
    check_free(ip, port)


def _keep_token(directory: Path, token: bytes | None) -> bytes:
    """Return the given token, else the token that this head had before, else a new one; write it for the next start."""
    path = directory / TOKEN_FILE
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        if token is None and path.exists():
            return read_token(path)
        path.unlink(missing_ok=True)
        token = token or make_token()
        write_token(path, token)
        return token
    except OSError as error:
        raise RuntimeError(f"cannot write {path}: {error.strerror}") from None


ENCRYPTED_TRAFFIC = "Traffic between nodes is encrypted, and only nodes with a certificate of this CA can join: "


def _announce(node: Node, dashboard_host: str) -> None:
    """Print which node has started, how other nodes and programs join its cluster, and where its dashboard is."""
    file = node.file
    if not file.is_head:
        click.echo(f"Joined the cluster at {file.gcs_address}: {_describe(file)}")
        if is_reachable(file.tcp_host):
            click.echo(_traffic(file))
        _announce_others(file)
        return
    click.echo(f"Started a cluster at {file.gcs_address}: {_describe(file)}")
    click.echo("\nPrograms on this machine join it with minray.init(). Other nodes join it with\n")
    click.echo(f"    minray start --address={file.gcs_address} --token-file=FILE{_tls_of_next(file)}\n")
    click.echo(f"where FILE is a copy of {file.session_dir}/{TOKEN_FILE}, or with its content in $MINRAY_TOKEN.")
    if is_reachable(file.tcp_host):
        click.echo(f"To copy it, run on the other machine: scp {file.tcp_host}:{file.session_dir}/{TOKEN_FILE} FILE")
        click.echo(f"If that machine cannot join: minray check --address={file.gcs_address} --token-file=FILE")
    if file.system_config.transport != DEFAULT_TRANSPORT:
        click.echo(f"The other machines need MINRAY_TRANSPORT={file.system_config.transport} in their environment as well.")
    click.echo("Anyone who has the token can run programs here: keep it secret. On this machine minray finds it itself.")
    if is_reachable(file.tcp_host):
        click.echo(_traffic(file))
    else:
        click.echo("This head listens on loopback only; for other machines start it with --node-ip-address.")
    if file.client_server:
        click.echo(f"\nPrograms elsewhere join it with minray.init('minray://{file.client_server}') and the token.")
        if advice := transport_of_clients(file.system_config):
            click.echo(advice)
    choice = _announce_others(file)
    click.echo(f"\nTo look at it: minray status{choice}. To end it: minray stop{choice}.")
    if node.dashboard_url:
        click.echo(f"\nDashboard: {node.dashboard_url}")
        if warning := warning_of(dashboard_host):
            click.echo(warning)


def _announce_others(file: NodeFile) -> str:
    """Print which other clusters run on this machine; return the option that names this one, empty if it is alone."""
    others = _other_clusters(file.gcs_address)
    if not others:
        return ""
    click.echo(f"\nOther clusters run on this machine: {', '.join(others)}.")
    click.echo(f"Programs and commands that name no cluster take that of the newest node, {file.gcs_address}. To choose:")
    click.echo("minray.init(address=...), $MINRAY_ADDRESS, and the option --address of the commands.")
    return f" --address={file.gcs_address}"


def _other_clusters(address: str) -> list[str]:
    """Return the addresses of the clusters, other than that at ``address``, that `minray start` has started here."""
    return sorted({file.gcs_address for file in started_nodes()} - {address})


def _traffic(file: NodeFile) -> str:
    """Say what protects the traffic between the nodes."""
    return f"{ENCRYPTED_TRAFFIC}{file.system_config.tls_ca}." if file.system_config.tls_cert else OPEN_TRAFFIC


def _tls_of_next(file: NodeFile) -> str:
    return " --tls-cert=FILE --tls-key=FILE --tls-ca=FILE" if file.system_config.tls_cert else ""


def _describe(file: NodeFile) -> str:
    return f"node {file.node_name} ({file.node_id[:8]}), session {file.session_dir}"


def _join(options: NodeOptions, address: str, ip: str | None, token_file: str | None) -> Node:
    endpoint = endpoint_of(address)
    local = nodes_of(address)
    token = given_token(token_file) or (session_token(local[0].session_dir) if local else None)
    if token is None:
        raise RuntimeError(
            f"the token of the cluster at {address} is not known here: copy the token file that `minray start --head` has"
            " printed, and name the copy with --token-file, or set $MINRAY_TOKEN to its content"
        )
    own = _system_config(local)
    with _with_advice(address), ClusterClient(endpoint, token, own) as client:
        tls = {name: getattr(own, name) for name in RAYS_TLS_FILES}  # Each machine has files of its own.
        options.system_config = msgspec.structs.replace(client.system_config(), **tls)
    if endpoint.startswith("tcp:"):
        options.tcp_host = ip or own_address(address.rpartition(":")[0].strip("[]"))
        options.node_ip = options.tcp_host
    options.gcs_endpoint, options.token = endpoint, token
    return start_node(options)


@contextmanager
def _with_advice(address: str) -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise ConnectionError(f"{error}. To find out why: minray check --address={address}") from None


def _system_config(local: list[NodeFile]) -> SystemConfig:
    """Return what is needed to connect to a cluster: from its nodes on this machine, else from options and environment."""
    if local:
        return msgspec.structs.replace(local[0].system_config, **given_tls())
    return SystemConfig.from_overrides(with_environment(given_tls()))


# --- microbenchmark ----------------------------------------------------------------------------------------------------


@main.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True, help="Number of measurements of each row.")
@click.option("--seconds", type=click.FloatRange(0), default=2.0, show_default=True, help="Length of a measurement.")
def microbenchmark(words: tuple[str, ...], rounds: int, seconds: float) -> None:
    """Run Ray's microbenchmark on a new cluster of this machine: all rows, or those whose names contain a WORD."""
    from minray.cli.microbenchmark import measure  # here, since it imports numpy, which other commands do not need

    try:
        for line in measure(words, rounds, seconds):
            click.echo(line)
    except (ValueError, RuntimeError, ConnectionError) as error:
        raise click.ClickException(str(error)) from None


# --- status ------------------------------------------------------------------------------------------------------------


@main.command()
@which_cluster
@FORMAT
def status(address: str | None, token_file: str | None, form: str) -> None:
    """Show a cluster's nodes, resources in use, tasks that wait for resources, and workers."""
    with errors_for_people(), _client(address, token_file) as client:
        nodes = client.nodes()
        reports = client.resources()
        stats = client.node_stats([info.address for info in nodes if info.alive])
        if form != "table":
            click.echo(formatted(form, cluster_facts(client.address, nodes, reports, stats)))
            return
        click.echo(describe_cluster(client.address, nodes, reports, stats))
        others = _other_clusters(client.address)
        if others:
            click.echo(f"\nOther clusters run on this machine: {', '.join(others)}; see: minray status --address=...")


@main.command()
@which_cluster
@click.option(
    "--group-by", type=click.Choice(GROUPS), default=NODE_ADDRESS, show_default=True, help="Print a table for each of these."
)
@click.option(
    "--sort-by",
    type=click.Choice(list(ORDERS)),
    default="OBJECT_SIZE",
    show_default=True,
    help="Order of references; OBJECT_SIZE puts the largest first.",
)
@click.option("--units", type=click.Choice(list(UNITS)), default="B", show_default=True, help="Unit of sizes.")
@click.option("--stats-only", is_flag=True, help="Show only the object stores, without references.")
@click.option("-n", "--num-entries", type=click.IntRange(1), help="Most references shown of each group. Default: all.")
@click.option("--detail", is_flag=True, help="Show all columns and whole ids, however wide.")
@FORMAT
def memory(
    address: str | None,
    token_file: str | None,
    group_by: str,
    sort_by: str,
    units: str,
    stats_only: bool,
    num_entries: int | None,
    detail: bool,
    form: str,
) -> None:
    """Show the object stores. Also show which processes refer to which objects, why, and from which line of code."""
    view = View(
        group_by=group_by,
        sort_by=sort_by,
        units=units,
        num_entries=num_entries,
        stats_only=stats_only,
        is_narrow=not detail,
    )
    with errors_for_people(), _client(address, token_file) as client:
        objects = client.objects()
        click.echo(memory_summary(objects, view) if form == "table" else formatted(form, memory_facts(objects, view)))


def _client(address: str | None, token_file: str | None) -> ClusterClient:
    """Make a client of the cluster that ``_locate`` finds, and raise its errors."""
    target = _locate(address, token_file)
    return ClusterClient(target.gcs_endpoint, target.token, target.system_config, target.address)


def _locate(address: str | None, token_file: str | None) -> Target:
    """Find the cluster at ``address``, else $MINRAY_ADDRESS, else the newest cluster started here.

    Raises ConnectionError if none is found, RuntimeError without a token, ValueError for a bad address.
    """
    address = address or setting("ADDRESS")
    local = nodes_of(address) if address and address != "auto" else started_nodes()[-1:]
    if local:
        file = local[0]
        local_token = read_token(Path(token_file)) if token_file else session_token(file.session_dir)
        session = os.path.basename(file.session_dir)
        return Target(
            gcs_endpoint=file.gcs_endpoint,
            token=local_token,
            system_config=_system_config(local),
            address=file.gcs_address,
            session=session,
        )
    if not address or address == "auto":
        raise ConnectionError("no running cluster was found on this machine; name one with --address")
    endpoint = endpoint_of(address)
    token = given_token(token_file)
    if token is None:
        raise RuntimeError(f"the token of the cluster at {address} is not known here: use --token-file or $MINRAY_TOKEN")
    system_config = _system_config([])
    name = endpoint.removeprefix("tcp:")
    return Target(gcs_endpoint=endpoint, token=token, system_config=system_config, address=name, session="")


@main.command("health-check", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def health_check(arguments: tuple[str, ...]) -> None:
    """Tell whether a node of this machine, or a cluster elsewhere, answers: for probes (health-check --help)."""
    from minray.cli.health_check import main as check  # as in ``minray.__main__``, which does not come here for it

    check(arguments)


for _command in [
    stop,
    drain_command(_client),
    check,
    debug_command(_client),
    logs_command(_client),
    metrics_command(_client),
    dashboard_command(_locate),
    *state_commands(_client),
    *process_commands(_client),
]:
    main.add_command(_command)
main.add_command(client_server)
main.add_command(laboratory_commands)
