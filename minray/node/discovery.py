"""How processes of one user on one machine find each other: sessions, tokens, addresses, settings.

Ray: python/ray/_private/services.py (find_gcs_addresses, canonicalize_bootstrap_address), ray_constants.py

Sessions are below one directory per user, the runtime root. A session directory has ``sockets/``, ``logs/``, ``token``
(the cluster's secret, hexadecimal, mode 0600), ``node.json`` (how to join the node) and ``lock``. All but the logs is
removed when the node ends. Beside the sessions, ``head_<ip>_<port>/`` has the gcs's tables and the token, with which a
cluster of ``minray start --head`` goes on after its head was killed. ``minray stop`` removes it.

Rules
  * Only this user can write to a runtime root, and no other user can change what its path leads to
    (``platform/storage/private_paths.py``), so that no other user can lead a driver into another cluster.
  * ``$XDG_RUNTIME_DIR`` comes before /tmp, since no other user can take it first. If the system empties it when its user
    logs out, it comes after /tmp: a program that was left running would lose its sockets. It then serves a user whose
    directory in /tmp another user has taken. Objects are not spilled into it, since it may be memory.
  * Nodes are searched in every runtime root that any environment of this user may choose, because a program and the command
    line need not have the same environment.
  * Every setting ``MINRAY_X`` of the environment may also be called ``RAY_X``.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from minray.common.config import SystemConfig
from minray.common.decoding import MALFORMED
from minray.platform.process.session import LOGS, SOCKETS, hold_lock, live_sessions, sweep_sessions
from minray.platform.storage.private_paths import make_private, remove_tree
from minray.platform.transport.endpoints import MAX_UNIX_PATH_BYTES, check_unix_sockets

NODE_FILE, TOKEN_FILE = "node.json", "token"
TABLES_FILE = "gcs.sqlite"
HAS_SESSIONS = hasattr(os, "geteuid")
"""Whether this system has what a session needs: owners of files, and locks that end with their process. Windows has not."""
HEAD_PATTERN = "head_*"
LOGIN_DIRECTORIES, LINGERING_USERS = "/run/user", "/var/lib/systemd/linger"
"""Directories of systemd: one has the users' runtime directories, the other a file for each user whose runtime directory
stays after the logout."""
TOKEN_BYTES = 32
"""Length in bytes of a token that minray makes."""
MIN_TOKEN_BYTES = 16
"""Fewest bytes of a token that is accepted; a shorter one could be guessed."""
logger = logging.getLogger("minray")


class NodeFile(msgspec.Struct):
    """``node.json``: how a process of the same user and machine joins this node."""

    node_id: str
    node_ip: str
    node_name: str
    gcs_endpoint: str
    """Endpoint at which this node reaches the gcs."""
    gcs_address: str
    """Address of the gcs, as in ``init(address=...)``."""
    raylet_endpoint: str
    socket_dir: str
    tcp_host: str
    session_dir: str
    is_head: bool
    detached: bool
    """Whether ``minray start`` has started the node: ``init()`` without an address joins it, ``minray stop`` ends it."""
    system_config: SystemConfig
    zygote_pid: int
    departure: str = ""
    """Reason why the raylet has ended in order, and is not started again; empty as long as the node lives."""
    client_server: str = ""
    """Address of the node's client server; empty if it has none."""

    @property
    def restarts(self) -> bool:
        """Whether the zygote starts the raylet again when it crashes (``raylet_restart``)."""
        return self.is_head and self.detached


def write_node_file(file: NodeFile) -> None:
    """Write a node's file; readers find the old one or the new one. Raises OSError."""
    path = Path(file.session_dir, NODE_FILE)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(file))
    part.rename(path)


def read_node_file(session_dir: str) -> NodeFile | None:
    """Return the file of a session's node, or None if it has none that can be read."""
    try:
        return msgspec.json.decode(Path(session_dir, NODE_FILE).read_bytes(), type=NodeFile)
    except (OSError, *MALFORMED):
        return None


# --- settings ----------------------------------------------------------------------------------------------------------

RAYS_SWITCHES: dict[tuple[str, str], dict[str, Any]] = {
    ("DEDUP_LOGS", "0"): {"log_deduplication_window_s": 0.0},
    ("IGNORE_UNHANDLED_ERRORS", "1"): {"report_unseen_errors": False},
    ("PROFILING", "1"): {"record_task_phases": True},
}
"""Entries of the system config that a setting of Ray, named in Ray's messages, stands for: by its name and value."""

RAYS_TLS_FILES = {"tls_cert": "TLS_SERVER_CERT", "tls_key": "TLS_SERVER_KEY", "tls_ca": "TLS_CA_CERT"}
"""Ray's settings of the files for TLS, by entry of the system config."""


def setting(name: str) -> str | None:
    """Return ``$MINRAY_<name>``, else ``$RAY_<name>``, else None; an empty value counts as None."""
    return os.environ.get(f"MINRAY_{name}") or os.environ.get(f"RAY_{name}") or None


def with_environment(overrides: dict[str, Any] | None) -> dict[str, Any]:
    """Merge overrides of the system config into those of the environment: ``MINRAY_TRANSPORT`` sets ``transport``.

    Entries that only Ray knows are left out. Raises TypeError for a value of the wrong type, ValueError if TLS is wanted
    without files.
    """
    found: dict[str, Any] = {}
    for (name, position), entries in RAYS_SWITCHES.items():
        if setting(name) == position:
            found.update(entries)
    for name in SystemConfig.__struct_fields__:
        text = setting(name) or setting(name.upper())
        if text is not None:
            (field,) = (field for field in msgspec.structs.fields(SystemConfig) if field.name == name)
            try:
                found[name] = msgspec.convert(text, field.type, strict=False)
            except msgspec.ValidationError as error:
                raise TypeError(f"environment variable MINRAY_{name}={text!r}: {error}") from None
    for name, of_ray in RAYS_TLS_FILES.items():
        if text := setting(of_ray):
            found.setdefault(name, text)
    merged = dict(found)
    if overrides:
        from minray.node.config_of_ray import without_entries_of_ray  # few programs give a configuration

        merged |= without_entries_of_ray(overrides)
    return _with_tls(merged, found)


def _with_tls(merged: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Make the paths for TLS absolute. With USE_TLS=0 leave out those that were ``found`` in the environment.

    Raises ValueError for USE_TLS=1 without paths.
    """
    wanted = (setting("USE_TLS") or "").lower()
    for name in RAYS_TLS_FILES:
        path = merged.get(name)
        if wanted in ("0", "false") and path == found.get(name):
            merged.pop(name, None)
        elif isinstance(path, str) and path:
            merged[name] = os.path.abspath(path)
    if wanted in ("1", "true") and not any(map(merged.get, RAYS_TLS_FILES)):
        raise ValueError("MINRAY_USE_TLS (or RAY_USE_TLS) is set, but no files are: set MINRAY_TLS_CERT, _KEY and _CA too")
    return merged


# --- sessions ----------------------------------------------------------------------------------------------------------


def runtime_root() -> Path:
    """Return the directory for this user's new sessions, making it if necessary.

    It is the first of ``_root_paths`` that only this user can write to. Raises RuntimeError if there is none; the message
    says why the first one cannot be used. Raises RuntimeError on a system without unix sockets, too.
    """
    check_unix_sockets()
    trouble = ""
    for path in _root_paths():
        try:
            return Path(make_private(path))
        except OSError as error:
            trouble = trouble or f"cannot use {path} for sessions: {error.strerror}"
    raise RuntimeError(f"{trouble}; set MINRAY_TMPDIR to a directory of your own")


def runtime_roots() -> list[Path]:
    """Return all existing directories that may have sessions of this user, ``runtime_root`` first."""
    roots = [runtime_root()]
    for path in _root_paths():
        with suppress(OSError):
            if os.path.isdir(path):
                roots.append(Path(make_private(path)))
    return list(dict.fromkeys(roots))


def _root_paths() -> list[str]:
    """Return ``$MINRAY_TMPDIR``, else ``minray-<uid>`` in ``$RAY_TMPDIR``, else the system's directories, best first."""
    if given := os.environ.get("MINRAY_TMPDIR"):
        return [os.path.abspath(given)]
    if given := os.environ.get("RAY_TMPDIR"):
        return [os.path.abspath(os.path.join(given, _own_name()))]
    paths = [os.path.abspath(os.path.join(_temporary_place(), _own_name()))]
    of_login = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(of_login):  # The specification of that variable says that relative paths are to be ignored.
        paths.insert(_goes_at_logout(of_login), os.path.join(of_login, "minray"))
    return paths


def _own_name() -> str:
    return f"minray-{os.geteuid()}"


def _temporary_place() -> str:
    return os.environ.get("TMPDIR") or "/tmp"


def _goes_at_logout(directory: str) -> bool:
    """Return whether systemd removes this directory when the user logs out: not with ``loginctl enable-linger``."""
    if os.path.normpath(directory) != f"{LOGIN_DIRECTORIES}/{os.geteuid()}":
        return False
    import pwd

    try:
        return not os.path.exists(os.path.join(LINGERING_USERS, pwd.getpwuid(os.geteuid()).pw_name))
    except KeyError:
        return True


def default_spilling_place(session: Path) -> str:
    """Return the default directory for a session's spill files; "" means the session directory.

    A session in ``$XDG_RUNTIME_DIR`` spills elsewhere, since that directory is often in memory.
    """
    of_login = os.environ.get("XDG_RUNTIME_DIR")
    return _temporary_place() if of_login and session.parent == Path(os.path.realpath(of_login), "minray") else ""


def make_session(token: bytes) -> Path:
    """Make a new session directory. Raises RuntimeError if it cannot be made or its path is too long for sockets."""
    sweep()
    session = _session_in(runtime_root())
    longest = str(session / SOCKETS / ("w-" + "0" * 16))
    if len(os.fsencode(longest)) > MAX_UNIX_PATH_BYTES:
        raise RuntimeError(
            f"{session} is too long for unix sockets ({len(os.fsencode(longest))} of at most {MAX_UNIX_PATH_BYTES} bytes);"
            " set MINRAY_TMPDIR to a shorter path"
        )
    try:
        for directory in (session, session / SOCKETS, session / LOGS):
            directory.mkdir(mode=0o700)
        write_token(session / TOKEN_FILE, token)
    except OSError as error:
        remove_tree(str(session))
        raise RuntimeError(f"cannot create {session}: {error.strerror}; set MINRAY_TMPDIR to another path") from None
    return session


def _session_in(root: Path) -> Path:
    """Return a new path; sorted by name, sessions are in the order of their starts, to the millisecond."""
    now = time.time()
    start = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return root / f"session_{start}.{int(now * 1000) % 1000:03d}_{secrets.token_hex(2)}"


def new_session_path() -> Path:
    """Return the path for a session inside this process. Neither it nor the directory above it is made."""
    if not HAS_SESSIONS:
        import tempfile  # Other systems have better places.

        return _session_in(Path(tempfile.gettempdir()))
    return _session_in(Path(_root_paths()[0]))


def begin_local_session(session: Path) -> int:
    """Make and lock the directory of a session inside this process; return the lock's descriptor. Raises OSError.

    Where processes cannot have sessions there is no lock (-1): nothing sweeps the directory of a killed program.
    """
    if not HAS_SESSIONS:
        session.mkdir(mode=0o700)
        return -1
    make_private(str(session.parent))
    sweep()
    session.mkdir(mode=0o700)
    return hold_lock(str(session))


def find_nodes() -> list[NodeFile]:
    """Return the living nodes of this user on this machine, oldest first; those inside this process last."""
    files = map(read_node_file, _live_sessions_of_all_roots())
    return [file for file in files if file is not None] + local_nodes


def _live_sessions_of_all_roots() -> list[str]:
    """Return the living sessions, oldest first: their names contain the start time."""
    return sorted((session for root in runtime_roots() for session in live_sessions(str(root))), key=os.path.basename)


def sweep() -> None:
    """Remove the files of this user's sessions whose processes were all killed at once."""
    for root in runtime_roots():
        sweep_sessions(str(root))


def head_directory(address: str) -> Path:
    """Return the directory with a head's tables and token, for a head that listens at ``address``; it need not exist."""
    places = [root / f"head_{address.replace(':', '_')}" for root in runtime_roots()]
    return next((place for place in places if place.exists()), places[0])


def forget_head(address: str) -> None:
    """Remove a head's tables and token, so that the cluster is not started again."""
    remove_tree(str(head_directory(address)))


def forget_heads() -> None:
    """Remove the tables and tokens of all heads; to be called when no head lives."""
    for root in runtime_roots():
        for directory in root.glob(HEAD_PATTERN):
            remove_tree(str(directory))


# --- tokens ------------------------------------------------------------------------------------------------------------


def make_token() -> bytes:
    return secrets.token_bytes(TOKEN_BYTES)


def write_token(path: Path, token: bytes) -> None:
    """Write a token to a new file. Raises OSError, also if the file exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{token.hex()}\n")


def read_token(path: Path) -> bytes:
    """Read a token from a file. Raises RuntimeError if it cannot be read or does not contain a token."""
    try:
        return parse_token(path.read_text(), str(path))
    except UnicodeDecodeError:
        raise RuntimeError(f"{path} is not a cluster token, which is a line of hexadecimal digits") from None
    except OSError as error:
        raise RuntimeError(f"cannot read the cluster's token {path}: {error.strerror}") from None


def session_token(session_dir: str) -> bytes:
    """Read the token of a session; one inside this process has none. Raises RuntimeError as ``read_token`` does."""
    if any(file.session_dir == session_dir for file in local_nodes):
        return b""
    return read_token(Path(session_dir, TOKEN_FILE))


def parse_token(text: str, origin: str) -> bytes:
    """Parse a token. Raises RuntimeError, which names the ``origin``, if the text is not a token."""
    try:
        token = bytes.fromhex(text.strip())
    except ValueError:
        token = b""
    if len(token) < MIN_TOKEN_BYTES:
        raise RuntimeError(f"{origin} is not a cluster token, which is a line of hexadecimal digits")
    return token


def given_token(token_file: str | None) -> bytes | None:
    """Return the token in that file, else that of ``$MINRAY_TOKEN``, else None. Raises RuntimeError for a bad token."""
    if token_file:
        return read_token(Path(token_file))
    text = setting("TOKEN")
    return parse_token(text, "the environment variable MINRAY_TOKEN") if text else None


local_nodes: list[NodeFile] = []
"""The nodes inside this process, oldest first."""


def discard_local(file: NodeFile) -> None:
    """Forget a node that has ended, if it was one inside this process; with a head forget its whole cluster."""
    cluster = file.gcs_endpoint if file.is_head else None
    local_nodes[:] = [node for node in local_nodes if node.node_id != file.node_id and node.gcs_endpoint != cluster]


own_heads: list[str] = []
"""Session directories of the heads that this process has started with ``Cluster``, oldest first; some may have ended."""


# --- addresses ---------------------------------------------------------------------------------------------------------


def endpoint_of(address: str) -> str:
    """Return the endpoint of a gcs from its address: ``host:port`` or, on this machine, ``unix:/path``.

    Raises ValueError for anything else.
    """
    if address.startswith("unix:"):
        return address
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{address!r} is not an address; it looks like 127.0.0.1:6379")
    return f"tcp:{address}"


def started_nodes() -> list[NodeFile]:
    """Return the nodes of this machine that ``minray start`` has started, oldest first."""
    return [file for file in find_nodes() if file.detached]


def nodes_of(address: str) -> list[NodeFile]:
    """Return this machine's nodes of a cluster, head nodes first, but those that have left it last.

    ``address`` is the cluster's address, its gcs endpoint, or a session directory.
    """
    wanted = _plain(address)
    matching = [
        file for file in find_nodes() if wanted in map(_plain, (file.gcs_address, file.gcs_endpoint, file.session_dir))
    ]
    return sorted(matching, key=lambda file: (bool(file.departure), not file.is_head))


def _plain(address: str) -> str:
    """Return the one spelling with which addresses are compared: IPv6 hosts without brackets, localhost as 127.0.0.1."""
    host, colon, port = address.rpartition(":")
    return f"{'127.0.0.1' if host == 'localhost' else host.replace('[', '').replace(']', '')}{colon}{port}"


def _own_head() -> list[NodeFile]:
    """Return the newest living head that this process has started with ``Cluster``, if there is one."""
    return [file for file in find_nodes() if file.session_dir in own_heads][-1:] if own_heads else []


CLIENT_SCHEMES = ("minray://", "ray://")
"""Beginnings of the address of a client server."""
CLIENT_SERVER_PORT = 10001
"""TCP port of a client server whose address names none, as in Ray."""


def client_server_of(address: str | None) -> str | None:
    """Return host and port of the client server that ``init(address)`` connects to; None if it joins a node, or starts one.

    Raises ValueError for an address without a host, or with a wrong port.
    """
    address = address or setting("ADDRESS") or ""
    scheme = next((scheme for scheme in CLIENT_SCHEMES if address.startswith(scheme)), None)
    if scheme is None:
        return None
    place = address.removeprefix(scheme).rstrip("/")
    if ":" not in place.rpartition("]")[2]:
        place = f"{place}:{CLIENT_SERVER_PORT}"
    try:
        endpoint_of(place)
    except ValueError:
        raise ValueError(
            f"{address!r} is not the address of a client server; it looks like {scheme}10.0.0.1:10001"
        ) from None
    return place


def candidates(address: str | None) -> list[NodeFile]:
    """Return the nodes that ``init(address)`` may join, best first; empty means that it starts a cluster of its own.

    Raises ConnectionError if no node of the wanted cluster runs here.
    """
    address = address or setting("ADDRESS")
    if address == "local":
        return []
    if address is None or address == "auto":
        started = _own_head() or started_nodes()
        if not started and address is not None:
            raise ConnectionError("no running cluster was found on this machine; start one with: minray start --head")
        if len({file.gcs_address for file in started}) > 1:
            logger.info(
                "several clusters run on this machine; this program joins that of the newest node, %s;"
                " choose with init(address=...)",
                started[-1].gcs_address,
            )
        return nodes_of(started[-1].gcs_address) if started else []
    matching = nodes_of(address)
    if not matching:
        raise ConnectionError(
            f"no node of a cluster at {address!r} runs on this machine under this user; a driver needs one:"
            f" minray start --address={address}"
        )
    return matching
