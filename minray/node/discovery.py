"""What processes of one user and machine know of each other: sessions, tokens, addresses, settings.

Ray: python/ray/_private/services.py (find_gcs_addresses, canonicalize_bootstrap_address), ray_constants.py

Sessions are below one directory per user, the runtime root. A session directory has ``sockets/``, ``logs/``, ``token``
(the cluster's secret, hexadecimal, mode 0600), ``node.json`` (how to join the node) and ``lock``. All of it but the logs
goes with the node. Beside the sessions, ``head_<ip>_<port>/`` has what a cluster of ``minray start --head`` needs to go on
after its head was killed: the gcs's tables and the token. It goes with ``minray stop``.

Rules
  * A runtime root is this user's alone to write, and no other user can change what its path leads to
    (``platform/storage/private_paths.py``): nobody can be led into a stranger's cluster.
  * ``$XDG_RUNTIME_DIR``, which no other user can take first, comes before /tmp, unless the system empties it when its user
    logs out: a program that was left running would lose its sockets. Then it is the refuge of a user whose directory in /tmp
    another user has taken. Objects are not spilled into it, since it may be memory.
  * Nodes are looked for in every runtime root that this process may mean, because a program and the command line need not
    have the same environment.
  * Every setting ``MINRAY_X`` of the environment may also be called ``RAY_X``.
"""

from __future__ import annotations

import os
import pwd
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from minray.common.config import SystemConfig
from minray.platform.process.session import LOGS, live_sessions, sweep_sessions
from minray.platform.storage.private_paths import make_private, remove_tree
from minray.platform.transport.endpoints import MAX_UNIX_PATH_BYTES

NODE_FILE, TOKEN_FILE, SOCKETS = "node.json", "token", "sockets"
TABLES_FILE = "gcs.sqlite"
HEAD_PATTERN = "head_*"
LOGIN_DIRECTORIES, LINGERING_USERS = "/run/user", "/var/lib/systemd/linger"
"""Where systemd keeps the runtime directories of users, and a file for each user whose directory stays after the logout."""
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
    """Where this user's new sessions are: the first of ``_root_paths`` that is, or can be made, this user's alone.

    Raises RuntimeError if there is none: it says why the first one cannot be used.
    """
    trouble = ""
    for path in _root_paths():
        try:
            return Path(make_private(path))
        except OSError as error:
            trouble = trouble or f"cannot use {path} for sessions: {error.strerror}"
    raise RuntimeError(f"{trouble}; set MINRAY_TMPDIR to a directory of your own")


def runtime_roots() -> list[Path]:
    """Every place that is there and may have sessions of this user, ``runtime_root`` first."""
    roots = [runtime_root()]
    for path in _root_paths():
        with suppress(OSError):
            if os.path.isdir(path):
                roots.append(Path(make_private(path)))
    return list(dict.fromkeys(roots))


def _root_paths() -> list[str]:
    """``$MINRAY_TMPDIR``, else ``minray-<uid>`` in ``$RAY_TMPDIR``, else the places that the system offers, best first."""
    if given := os.environ.get("MINRAY_TMPDIR"):
        return [os.path.abspath(given)]
    if given := os.environ.get("RAY_TMPDIR"):
        return [os.path.abspath(os.path.join(given, _own_name()))]
    paths = [os.path.abspath(os.path.join(_temporary_place(), _own_name()))]
    of_login = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(of_login):  # Others are to be ignored, says the specification of that variable.
        paths.insert(_goes_at_logout(of_login), os.path.join(of_login, "minray"))
    return paths


def _own_name() -> str:
    return f"minray-{os.geteuid()}"


def _temporary_place() -> str:
    return os.environ.get("TMPDIR") or "/tmp"


def _goes_at_logout(directory: str) -> bool:
    """Whether it is one that systemd makes at a user's login, of a user who does not linger (loginctl enable-linger)."""
    if os.path.normpath(directory) != f"{LOGIN_DIRECTORIES}/{os.geteuid()}":
        return False
    try:
        return not os.path.exists(os.path.join(LINGERING_USERS, pwd.getpwuid(os.geteuid()).pw_name))
    except KeyError:
        return True


def default_spilling_place(session: Path) -> str:
    """Where objects of that session spill unless somebody has said where; empty: into the session.

    ``$XDG_RUNTIME_DIR`` is often memory, which is what spilling is to relieve.
    """
    of_login = os.environ.get("XDG_RUNTIME_DIR")
    return _temporary_place() if of_login and session.parent == Path(os.path.realpath(of_login), "minray") else ""


def make_session(token: bytes) -> Path:
    """A fresh session directory. RuntimeError if the disk is full or the path is too long for sockets."""
    sweep()
    root = runtime_root()
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
    for session in _live_sessions_of_all_roots():
        try:
            found.append(msgspec.json.decode(Path(session, NODE_FILE).read_bytes(), type=NodeFile))
        except (OSError, msgspec.DecodeError):
            continue
    return found


def _live_sessions_of_all_roots() -> list[str]:
    """Oldest first: their names begin with the time."""
    return sorted((session for root in runtime_roots() for session in live_sessions(str(root))), key=os.path.basename)


def sweep() -> None:
    """Clean up after sessions of this user whose processes were all killed at once."""
    for root in runtime_roots():
        sweep_sessions(str(root))


def head_directory(address: str) -> Path:
    """Where the head that listens there keeps what outlives its session: the place that is there, else a new one."""
    places = [root / f"head_{address.replace(':', '_')}" for root in runtime_roots()]
    return next((place for place in places if place.exists()), places[0])


def forget_head(address: str) -> None:
    """Remove what the head has kept: it shall not live again."""
    remove_tree(str(head_directory(address)))


def forget_heads() -> None:
    """Remove what all heads have kept; for when none of them lives."""
    for root in runtime_roots():
        for directory in root.glob(HEAD_PATTERN):
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
