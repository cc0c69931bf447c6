"""``minray check``: why this machine cannot join a cluster, step by step, and what to do about it.

Ray: ``ray health-check`` says only whether a gcs answers

    minray check --address=10.0.0.1:23456 --token-file=FILE

Each line is ``ok``, ``warning`` or ``failed``. The first failure on the way to the head ends that way, since nothing behind
it can be tried. The exit code is 0 if nothing has failed, else 1. Every step has a time-out. The token is never sent: what
listens there is first asked without it, and then both sides prove that they know it (``platform/transport/handshake.py``).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from minray._version import __version__
from minray.cli.tls import given_tls, tls_options
from minray.common.config import SystemConfig
from minray.node.cluster_client import ClusterClient
from minray.node.discovery import (
    NodeFile,
    endpoint_of,
    given_token,
    nodes_of,
    read_token,
    runtime_root,
    session_token,
    setting,
    started_nodes,
    with_environment,
)
from minray.platform.base import PlatformError, RemoteFailure
from minray.platform.transport.endpoints import own_address
from minray.platform.transport.probe import ProbeFailed, connect, recognize, resolve
from minray.protocol.gcs import CheckJoinReply

STEP_S = 4.0
"""Seconds that each step may take."""
CLOCK_S = 1.0
"""Largest difference of clocks that needs no warning: time-lines and logs of several machines can then be compared."""
DISK_BYTES = 1 << 30
"""Least free bytes of the disk with the session: logs and spilled objects go there."""
OPEN_FILES = 4096
"""Least limit of open files that needs no warning: a raylet has a connection to each worker and to each other node."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class _Report:
    """Prints the verdicts, and knows whether one was a failure."""

    def __init__(self) -> None:
        self.has_failed = False

    def ok(self, what: str, words: str) -> None:
        click.echo(f"ok       {what}: {words}")

    def warn(self, what: str, words: str, advice: str) -> None:
        click.echo(f"warning  {what}: {words}\n         {advice}")

    def fail(self, what: str, words: str, advice: str) -> None:
        self.has_failed = True
        click.echo(f"failed   {what}: {words}\n         {advice}")


@click.command("check")
@click.option("--address", metavar="HOST:PORT", help="Address of the head. Default: $MINRAY_ADDRESS, else the newest here.")
@click.option("--token-file", metavar="FILE", help="File with the cluster's token. Default: as for `minray start`.")
@click.option("--node-ip-address", metavar="IP", help="Address at which this machine's node will listen. Default: found.")
@tls_options
def check(address: str | None, token_file: str | None, node_ip_address: str | None) -> None:
    """Tell why a node on this machine cannot join the cluster at an address, and what to do."""
    report = _Report()
    try:
        _check_head(report, address or setting("ADDRESS") or "", token_file, node_ip_address)
    except ProbeFailed as error:
        report.fail("head", str(error), error.advice)
    except (ValueError, RuntimeError, PlatformError) as error:
        report.fail("head", str(error), "mend this, and check again")
    _check_machine(report)
    sys.exit(int(report.has_failed))


# --- The way to the head -----------------------------------------------------------------------------------------------


def _check_head(report: _Report, address: str, token_file: str | None, ip: str | None) -> None:
    if not address or address == "auto":
        newest = started_nodes()[-1:]
        if not newest:
            raise ProbeFailed("no cluster is named, and none runs here", "give the --address that the head has printed")
        address = newest[0].gcs_address
    endpoint, local = endpoint_of(address), nodes_of(address)
    own = local[0].system_config if local else SystemConfig.from_overrides(with_environment(given_tls()))
    if endpoint.startswith("tcp:"):
        host, _, port = address.rpartition(":")
        _check_port(report, host.strip("[]"), int(port), own)
        ip = ip or own_address(host.strip("[]"))
    token = _token(address, local, token_file)
    with ClusterClient(endpoint, token, own, address) as client:
        try:
            client.system_config()
        except ConnectionError as error:
            report.fail("handshake", str(error), _advice_of(str(error)))
            return
        report.ok("handshake", "the head knows this machine's token" + (", over TLS" if own.tls_cert else ""))
        _check_join(report, client, ip or "")


def _check_port(report: _Report, host: str, port: int, own: SystemConfig) -> None:
    addresses = resolve(host, STEP_S)
    if addresses != [host]:
        report.ok("name", f"{host} is {', '.join(addresses)}")
    connection = connect(host, port, STEP_S)
    report.ok("port", f"a process listens at {host}:{port}")
    if own.tls_cert or own.transport != "stream":
        connection.close()  # The handshake comes inside TLS or HTTP/2; the client below meets it.
        return
    recognize(connection, STEP_S)
    report.ok("protocol", "it is minray, of the same protocol version")


def _token(address: str, local: list[NodeFile], token_file: str | None) -> bytes:
    token = read_token(Path(token_file)) if token_file else given_token(None)
    token = token or (session_token(local[0].session_dir) if local else None)
    if token is None:
        raise ProbeFailed(
            f"the token of the cluster at {address} is not known here",
            "copy the token file that `minray start --head` has printed, and name the copy with --token-file",
        )
    return token


def _advice_of(words: str) -> str:
    if "Hostname mismatch" in words:
        return "use the head's IP address, or a name that is in its certificate (subjectAltName)"
    if "token" in words:
        return "copy the head's token file again, and name the copy with --token-file (or set $MINRAY_TOKEN)"
    if "version" in words:
        return "install the same version of minray on both machines"
    if "TLS" in words or "certificate" in words:
        return "give --tls-cert, --tls-key and --tls-ca with files of the same CA as on the head"
    return "look into gcs.log on the head; both machines need the same MINRAY_TRANSPORT"


def _check_join(report: _Report, client: ClusterClient, ip: str) -> None:
    try:
        reply, ahead_s = client.check_join(ip)
    except RemoteFailure:
        report.fail("version", "the head runs a minray that does not know `minray check`", _advice_of("version"))
        return
    except (ConnectionError, PlatformError) as error:
        report.fail("way back", f"nothing can listen at {ip}: {error}", "give an address of this machine: --node-ip-address")
        return
    _check_versions(report, reply)
    words = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the head's"
    if abs(ahead_s) > CLOCK_S:
        report.warn("clock", f"this machine's clock is {words}", "synchronize both clocks (NTP), or times are misleading")
    else:
        report.ok("clock", words)
    if reply.unreachable:
        report.fail(
            "way back",
            f"the head cannot connect to this machine: {reply.unreachable}",
            "open all TCP ports between the machines of a cluster, or give the address that others reach: --node-ip-address",
        )
    elif ip:
        report.ok("way back", f"the head connects to {ip}")


def _check_versions(report: _Report, reply: CheckJoinReply) -> None:
    if reply.python != PYTHON:
        words = f"the head runs Python {reply.python}, this machine {PYTHON}"
        report.fail("Python", words, f"use Python {reply.python} here: functions and classes travel as bytecode")
    else:
        report.ok("Python", f"{PYTHON} on both machines")
    if reply.version != __version__:
        words = f"the head runs minray {reply.version}, this machine {__version__}"
        report.fail("version", words, f"pip install minray=={reply.version}")
    else:
        report.ok("version", f"minray {__version__} on both machines")


# --- This machine ------------------------------------------------------------------------------------------------------


def _check_machine(report: _Report) -> None:
    for look in (_check_disk, _check_open_files):
        look(report)


def _check_disk(report: _Report) -> None:
    try:
        root = runtime_root()
        free = shutil.disk_usage(root).free
    except (RuntimeError, OSError) as error:
        report.fail("disk", str(error), "set MINRAY_TMPDIR to a directory of your own")
        return
    words = f"{free / 1e9:.1f} GB are free in {root}"
    if free < DISK_BYTES:
        report.warn("disk", words, "make room for logs and spilled objects, or set MINRAY_TMPDIR to another disk")
    else:
        report.ok("disk", words)
    if not hasattr(os, "memfd_create") and os.path.isdir("/dev/shm"):
        report.ok("memory", f"{shutil.disk_usage('/dev/shm').free / 1e9:.1f} GB are free in /dev/shm")


def _check_open_files(report: _Report) -> None:
    import resource  # Windows, which lacks this module, has no nodes.

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        words = f"a process may open {hard} files"
        report.warn("open files", words, f"raise the limit to {OPEN_FILES} or more (ulimit -Hn, LimitNOFILE=)")
    else:
        report.ok("open files", "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard} for each process")
