"""What processes of one user and machine know of each other: sessions, tokens, addresses, settings.

Ray: python/ray/_private/services.py (find_gcs_addresses, canonicalize_bootstrap_address), ray_constants.py

Sessions are below one directory per user. A session directory has ``sockets/``, ``logs/``, ``token`` (the cluster's secret,
hexadecimal, mode 0600), ``node.json`` (how to join the node) and ``lock``. All of it but the logs goes with the node. Beside
the sessions, ``head_<ip>_<port>/`` has what a cluster of ``minray start --head`` needs to go on after its head was killed:
the gcs's tables and the token. It goes with ``minray stop``.

Rules
  * Only this user's directory is looked at, and it must be his alone to write: nobody can be led into a stranger's cluster.
  * Every setting ``MINRAY_X`` of the environment may also be called ``RAY_X``.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from minray.common.config import SystemConfig
from minray.platform.endpoints import MAX_UNIX_PATH_BYTES
from minray.platform.session import LOGS, live_sessions, remove_tree, sweep_sessions

NODE_FILE, TOKEN_FILE, SOCKETS = "node.json", "token", "sockets"
TABLES_FILE = "gcs.sqlite"
HEAD_PATTERN = "head_*"
TOKEN_BYTES = 32
MIN_TOKEN_BYTES = 16


class NodeFile(msgspec.Struct):
    """``node.json``: how a process of the same user and machine joins this node."""

    node_id: str
    node_ip: str
    node_name: str
    gcs_endpoint: str
    """As this node reaches the gcs."""
    gcs_address: str
    """As it is written in ``init(address=...)``."""
    raylet_endpoint: str
    socket_dir: str
    tcp_host: str
    session_dir: str
    is_head: bool
    detached: bool
    """Started by ``minray start``: ``init()`` without an address joins it, and ``minray stop`` ends it."""
    system_config: SystemConfig
    zygote_pid: int


# --- settings ----------------------------------------------------------------------------------------------------------

RAYS_SWITCHES: dict[tuple[str, str], dict[str, Any]] = {
    ("DEDUP_LOGS", "0"): {"log_deduplication_window_s": 0.0},
    ("IGNORE_UNHANDLED_ERRORS", "1"): {"report_unseen_errors": False},
}
"""Settings that Ray's messages name, and what they mean here."""


def setting(name: str) -> str | None:
    """``$MINRAY_<name>``, else ``$RAY_<name>``, else None; empty is None."""
    return os.environ.get(f"MINRAY_{name}") or os.environ.get(f"RAY_{name}") or None


def with_environment(overrides: dict[str, Any] | None) -> dict[str, Any]:
    """Overrides of the system config on top of the environment's: each entry has a setting (``MINRAY_TRANSPORT``).

    Raises TypeError for a value of the wrong type.
    """
    found: dict[str, Any] = {}
    for (name, position), entries in RAYS_SWITCHES.items():
        if setting(name) == position:
            found.update(entries)
    for field in msgspec.structs.fields(SystemConfig):
        text = setting(field.name) or setting(field.name.upper())
        if text is not None:
            try:
                found[field.name] = msgspec.convert(text, field.type, strict=False)
            except msgspec.ValidationError as error:
                raise TypeError(f"environment variable MINRAY_{field.name}={text!r}: {error}") from None
    return {**found, **(overrides or {})}


# --- sessions ----------------------------------------------------------------------------------------------------------


def runtime_root() -> Path:
    """Where this user's sessions are: ``$MINRAY_TMPDIR``, else ``minray-<uid>`` in ``$RAY_TMPDIR``, ``$TMPDIR`` or /tmp."""
    own = f"minray-{os.getuid()}"
    ray_tmpdir = os.environ.get("RAY_TMPDIR")
    default = os.path.join(ray_tmpdir or os.environ.get("TMPDIR") or "/tmp", own)
    path = Path(os.path.abspath(os.environ.get("MINRAY_TMPDIR") or default))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise RuntimeError(f"cannot use {path} for sessions: {error.strerror}; set MINRAY_TMPDIR elsewhere") from None
    if status.st_uid != os.getuid():
        raise RuntimeError(f"{path} belongs to another user; set MINRAY_TMPDIR to a directory of your own")
    if status.st_mode & 0o022:
        raise RuntimeError(f"others may write to {path}; set MINRAY_TMPDIR to a directory of your own, such as {path / own}")
    return path


def make_session(token: bytes) -> Path:
    """A fresh session directory. RuntimeError if the disk is full or the path is too long for sockets."""
    root = runtime_root()
    sweep_sessions(str(root))
    session = root / f"session_{time.strftime('%Y%m%d-%H%M%S')}_{secrets.token_hex(3)}"
    longest = str(session / SOCKETS / ("w-" + "0" * 16))
    if len(os.fsencode(longest)) > MAX_UNIX_PATH_BYTES:
        raise RuntimeError(
            f"{session} is too long for unix sockets ({len(os.fsencode(longest))} of at most {MAX_UNIX_PATH_BYTES} bytes);"
            " set MINRAY_TMPDIR to a shorter directory"
        )
    try:
        for directory in (session, session / SOCKETS, session / LOGS):
            directory.mkdir(mode=0o700)
        write_token(session / TOKEN_FILE, token)
    except OSError as error:
        remove_tree(str(session))
        raise RuntimeError(f"cannot create the session {session}: {error.strerror}; set MINRAY_TMPDIR elsewhere") from None
    return session


def find_nodes() -> list[NodeFile]:
    """The living nodes of this user on this machine, oldest first."""
    found = []
    for session in live_sessions(str(runtime_root())):
        try:
            found.append(msgspec.json.decode(Path(session, NODE_FILE).read_bytes(), type=NodeFile))
        except (OSError, msgspec.DecodeError):
            continue
    return found


def head_directory(address: str) -> Path:
    """Where the head that listens there keeps what outlives its session."""
    return runtime_root() / f"head_{address.replace(':', '_')}"


def forget_head(address: str) -> None:
    """Remove what the head has kept: it shall not live again."""
    remove_tree(str(head_directory(address)))


def forget_heads() -> None:
    """Remove what all heads have kept; for when none of them lives."""
    for directory in runtime_root().glob(HEAD_PATTERN):
        remove_tree(str(directory))


# --- tokens ------------------------------------------------------------------------------------------------------------


def make_token() -> bytes:
    return secrets.token_bytes(TOKEN_BYTES)


def write_token(path: Path, token: bytes) -> None:
    """Raises OSError, also if there is such a file."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{token.hex()}\n")


def read_token(path: Path) -> bytes:
    """RuntimeError if it cannot be read or is none."""
    try:
        return parse_token(path.read_text(), str(path))
    except UnicodeDecodeError:
        raise RuntimeError(f"{path} is not a cluster token, which is a line of hexadecimal digits") from None
    except OSError as error:
        raise RuntimeError(f"cannot read the cluster's token {path}: {error.strerror}") from None


def session_token(session_dir: str) -> bytes:
    """RuntimeError if it cannot be read."""
    return read_token(Path(session_dir, TOKEN_FILE))


def parse_token(text: str, origin: str) -> bytes:
    """RuntimeError, naming the ``origin``, for what is no token."""
    try:
        token = bytes.fromhex(text.strip())
    except ValueError:
        token = b""
    if len(token) < MIN_TOKEN_BYTES:
        raise RuntimeError(f"{origin} is not a cluster token, which is a line of hexadecimal digits")
    return token


def given_token(token_file: str | None) -> bytes | None:
    """The token of that file, else of ``$MINRAY_TOKEN``, else None. RuntimeError if what is given is none."""
    if token_file:
        return read_token(Path(token_file))
    text = setting("TOKEN")
    return parse_token(text, "the environment variable MINRAY_TOKEN") if text else None


# --- addresses ---------------------------------------------------------------------------------------------------------


def endpoint_of(address: str) -> str:
    """The endpoint of a gcs whose address is ``host:port`` (or, on this machine, ``unix:/path``). ValueError."""
    if address.startswith("unix:"):
        return address
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{address!r} is not an address; it looks like 127.0.0.1:6379")
    return f"tcp:{address}"


def started_nodes() -> list[NodeFile]:
    """The nodes here that ``minray start`` has begun."""
    return [file for file in find_nodes() if file.detached]


def nodes_of(address: str) -> list[NodeFile]:
    """The nodes here of the cluster of that address (or gcs endpoint, or session directory): those of the head first."""
    wanted = _plain(address)
    matching = [
        file for file in find_nodes() if wanted in map(_plain, (file.gcs_address, file.gcs_endpoint, file.session_dir))
    ]
    return sorted(matching, key=lambda file: not file.is_head)


def _plain(address: str) -> str:
    """One spelling: a host of IPv6 without brackets, and loopback by its number."""
    host, colon, port = address.rpartition(":")
    return f"{'127.0.0.1' if host == 'localhost' else host.replace('[', '').replace(']', '')}{colon}{port}"


def candidates(address: str | None) -> list[NodeFile]:
    """The nodes that ``init(address)`` may join, best first; empty: it shall start a cluster of its own.

    Raises ConnectionError if there is none but should be, ValueError for what is no address.
    """
    address = address or setting("ADDRESS")
    if address == "local":
        return []
    if address is None or address == "auto":
        started = started_nodes()
        if not started and address is not None:
            raise ConnectionError("no running cluster was found on this machine; start one with: minray start --head")
        return nodes_of(started[-1].gcs_address) if started else []
    if address.startswith("ray://"):
        raise ValueError("ray:// addresses need Ray Client, which minray does not have; run the driver on one of the nodes")
    matching = nodes_of(address)
    if not matching:
        raise ConnectionError(
            f"no node of a cluster at {address!r} runs on this machine under this user; a driver needs one:"
            f" minray start --address={address}"
        )
    return matching
