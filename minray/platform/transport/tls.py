"""TLS between machines: the three files of a node, and the contexts that are made of them.

Ray: python/ray/_common/tls_utils.py, and RAY_USE_TLS in src/ray/rpc/grpc_server.cc

A node has a certificate, the certificate's key, and the certificate of the authority (CA) that has signed those of all
nodes. Both sides of a connection show their certificate. Unix sockets stay without TLS.

    files = files_of(system_config)             None: this cluster does not use TLS
    check(files)                                raises TlsFilesWrong, with words, before anything is started
    tls = Tls(files)                            one for each network, used in one thread
    tls.server(), tls.client("10.0.0.7")        contexts for the next connection

Rules
  * TLS 1.2 at least, and 1.3 where both sides have it. There is no way back to plain TCP.
  * The certificate of the other side must lead to our CA and be valid now. If the address is a name, the certificate must
    have that name too. Nodes know each other by IP address, which is not compared: any certificate of the CA may be any
    node.
  * The token is still asked for, inside TLS. Its proof covers the certificate of the side that connects (``binding``). So a
    node in the middle, with another certificate of the same CA, cannot pass the proof on.
  * The side that refuses the other logs or raises why. The other only sees the end, and says so.
  * A key that every user of the machine can read is refused.
  * Files that have changed are read again for the next connection, so certificates are renewed without a restart. Files that
    cannot be used then are reported once, and the former ones stay.

Left out: lists of revoked certificates. Python shows no exporter of TLS 1.3, so nodes that share one certificate are not
told apart.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minray.common.config import SystemConfig
from minray.platform.base import AuthenticationFailed, ConnectFailed, PlatformError

logger = logging.getLogger(__name__)

ADVICE = "give --tls-cert, --tls-key and --tls-ca (or $MINRAY_TLS_CERT, $MINRAY_TLS_KEY and $MINRAY_TLS_CA)"
OPEN_TRAFFIC = (
    "Traffic between nodes is not encrypted and not protected against changes: an attacker who can change it can run"
    " programs here. Use only networks that you trust, or TLS (--tls-cert, --tls-key, --tls-ca)."
)
"""Warning of a process that listens without TLS at an address that other machines can reach."""
OPEN_CLIENTS = (
    "Traffic between remote clients and this server is not encrypted and not protected against changes: an attacker who can"
    " change it can run programs here. Use only networks that you trust, an SSH tunnel, or a cluster with TLS."
)
"""Said by a client server that other machines can reach, in a cluster without TLS."""


SHUTDOWN_S = 2.0
"""Seconds that a peer has to confirm the end of TLS before its socket is closed anyway."""


class TlsFilesWrong(PlatformError):
    """The three files cannot be used together; the text says which of them, why, and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of one node's files, all in PEM format."""

    cert: str
    """Certificate of this node, followed by those of intermediate authorities."""
    key: str
    ca: str
    """Certificates of the authorities that may have signed those of other nodes."""


def files_of(system: SystemConfig) -> TlsFiles | None:
    """Return the files of a configuration; None without TLS. Raises ``TlsFilesWrong`` if some are named and others not."""
    paths = {"--tls-cert": system.tls_cert, "--tls-key": system.tls_key, "--tls-ca": system.tls_ca}
    missing = [option for option, path in paths.items() if not path]
    if len(missing) == len(paths):
        return None
    if missing:
        raise TlsFilesWrong(f"TLS needs three files: {', '.join(missing)} is missing; {ADVICE}")
    return TlsFiles(system.tls_cert, system.tls_key, system.tls_ca)


def is_reachable(host: str) -> bool:
    """Return whether a listener at this host can be reached from other machines."""
    return host not in ("", "localhost", "::1") and not host.startswith("127.")


# --- files --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the three files."""

    cert: bytes
    key: bytes
    ca: bytes

    @property
    def certificate(self) -> bytes:
        """The node's own certificate in DER, as a peer sees it."""
        return first_certificate(self.cert)


def first_certificate(pem: bytes) -> bytes:
    """Return the first certificate of a text in PEM format as DER. Raises ValueError if there is none."""
    text = pem.decode("ascii", errors="replace")
    start, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(text[start:end])


def read(files: TlsFiles) -> Pem:
    """Read the files. Raises ``TlsFilesWrong`` for one that is missing, open to others, or of another kind."""
    pem = Pem(_read("--tls-cert", files.cert), read_key(files.key), _read("--tls-ca", files.ca))
    for option, path, text in (("--tls-cert", files.cert, pem.cert), ("--tls-ca", files.ca, pem.ca)):
        try:
            first_certificate(text)
        except ValueError:
            raise TlsFilesWrong(f"{path} ({option}) contains no certificate in PEM format") from None
    return pem


def read_key(path: str) -> bytes:
    """Read a private key. Raises ``TlsFilesWrong`` for a file that is missing, open to others, encrypted, or none."""
    key = _read("--tls-key", path)
    if b"PRIVATE KEY-----" not in key:
        raise TlsFilesWrong(f"{path} (--tls-key) contains no private key in PEM format")
    if b"ENCRYPTED" in key:
        raise TlsFilesWrong(f"{path} (--tls-key) is encrypted, and nobody is there to type its password: decrypt it")
    return key


def _read(option: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if option == "--tls-key" and mode & stat.S_IRWXO:
                raise TlsFilesWrong(
                    f"every user of this machine can read {path} (--tls-key), mode {mode:o}: chmod 600 {path}"
                )
            return file.read()
    except OSError as error:
        raise TlsFilesWrong(f"cannot read {path} ({option}): {error.strerror or error}") from None


def versions_of(paths: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return what changes when a file is replaced or written."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append((0, 0, 0))
    return found


# --- contexts -----------------------------------------------------------------------------------------------------------


class Context(ssl.SSLContext):
    """A context, and the certificate that it shows."""

    certificate: bytes
    """In DER."""

    @property
    def binding(self) -> bytes:
        """The bytes that the proof of the token covers on a connection which is made with this context."""
        return binding(self.certificate)

    def arguments(self, host: str) -> dict[str, Any]:
        """Return the arguments for asyncio with which a connection to ``host`` is made."""
        return {"ssl": self, "server_hostname": host, "ssl_shutdown_timeout": SHUTDOWN_S}


def make_context(files: TlsFiles, *, server_side: bool, checks_name: bool = False) -> Context:
    """Make a context with which both sides must show a certificate of the CA. Raises ``TlsFilesWrong``."""
    pem = read(files)
    context = Context(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = checks_name
    context.verify_mode = ssl.CERT_REQUIRED
    if server_side:
        context.num_tickets = 0  # No client of ours resumes a session.
    try:
        context.load_verify_locations(cadata=pem.ca.decode("ascii", errors="replace"))
    except ssl.SSLError as error:
        raise TlsFilesWrong(f"{files.ca} (--tls-ca) cannot be used: {_reason(error)}") from None
    load_certificate(context, files.cert, files.key)
    context.certificate = pem.certificate
    return context


def load_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Have a context show the certificate in a file. Raises ``TlsFilesWrong``."""
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsFilesWrong(f"{key} (--tls-key) is not the key of {cert} (--tls-cert)") from None
        raise TlsFilesWrong(f"{cert} and {key} (--tls-cert, --tls-key) cannot be used: {_reason(error)}") from None
    except OSError as error:  # A file is missing, or was replaced or removed since it was read.
        raise TlsFilesWrong(f"cannot read {cert} or {key}: {error.strerror or error}") from None


def check(files: TlsFiles) -> None:
    """Check that a node with these files accepts itself: a handshake in memory. Raises ``TlsFilesWrong``."""
    arrived, departed = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = make_context(files, server_side=True).wrap_bio(arrived, departed, server_side=True)
    client = make_context(files, server_side=False).wrap_bio(departed, arrived)
    waiting = [client, server]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise TlsFilesWrong(
                    f"{files.cert} (--tls-cert) is not valid for {files.ca} (--tls-ca): {_verdict(error)}"
                ) from None
            except ssl.SSLError as error:
                raise TlsFilesWrong(
                    f"a connection to itself with {files.cert} (--tls-cert) fails: {_reason(error)}"
                ) from None


def check_config(system: SystemConfig) -> None:
    """Check the files that a configuration names. Raises RuntimeError if they cannot be used."""
    try:
        files = files_of(system)
        if files is not None:
            check(files)
    except TlsFilesWrong as error:
        raise RuntimeError(str(error)) from None


_SERVER, _CLIENT, _CLIENT_BY_NAME = "server", "client", "client by name"


class Tls:
    """The contexts of one network, for the files as they are now. Used in one thread."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._versions: list[tuple[int, int, int]] = []
        """The state of the files when they were last read; empty before that."""
        self._contexts: dict[str, Context] = {}

    def server(self) -> Context:
        """Return the context for the next connection that comes in. Raises ``TlsFilesWrong``, but only if no files were
        usable so far."""
        return self._context(_SERVER)

    def client(self, host: str) -> Context:
        """Return the context for a connection to ``host``, whose certificate must have that name unless it is an IP
        address. Raises as ``server`` does."""
        return self._context(_CLIENT if is_ip_address(host) else _CLIENT_BY_NAME)

    def bound_by(self, encrypted: Encrypted | None) -> bytes:
        """Return the binding of a connection that came in; None: it is one without TLS, of this machine."""
        return b"" if encrypted is None else binding(encrypted.getpeercert(True))

    def explain_end(self, error: Exception | None, is_silent: bool) -> PlatformError | None:
        """Return why a connection of ours has ended before its handshakes were over; None if TLS does not know.

        ``is_silent``: the server has said nothing. With TLS 1.3 it refuses our certificate only after the handshake of TLS.
        """
        if isinstance(error, ssl.SSLError):
            return AuthenticationFailed(describe(error))
        return ConnectFailed(LOST_BY_CLIENT) if is_silent else None

    def _context(self, role: str) -> Context:
        versions = versions_of([self.files.cert, self.files.key, self.files.ca])
        if versions != self._versions:
            try:
                self._contexts = {
                    _SERVER: make_context(self.files, server_side=True),
                    _CLIENT: make_context(self.files, server_side=False),
                    _CLIENT_BY_NAME: make_context(self.files, server_side=False, checks_name=True),
                }
            except TlsFilesWrong as error:
                if not self._contexts:
                    raise
                logger.warning("the files for TLS have changed, and the former ones stay in use: %s", error)
            self._versions = versions
        return self._contexts[role]


def is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


# --- connections --------------------------------------------------------------------------------------------------------


def binding(certificate: bytes | None) -> bytes:
    """Return what the proof of the token covers, from the certificate of the side that connects; empty without TLS."""
    return hashlib.sha256(certificate).digest() if certificate else b""


class Encrypted(Protocol):
    """The TLS of one connection: an ``ssl.SSLObject``, or the event loop's substitute."""

    def getpeercert(self, binary_form: bool) -> bytes | None: ...


OTHER_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's codes (X509_V_ERR_...) of certificates that lead to no CA that is trusted here."""
PLAIN_PEER = f"it does not speak TLS, and this process does: a process of the same cluster would; {ADVICE} there too"
ENCRYPTED_PEER = f"it speaks TLS, and this process does not: {ADVICE}"
LOST_BY_CLIENT = (
    "it ended the connection when this process had shown its certificate: perhaps another CA has signed the certificate, or"
    " it has expired (the log of the other side says why, but for gRPC's)"
)
"""A client's words for a server that says nothing inside TLS. asyncio and gRPC send no alert when they refuse a certificate,
so only the side that refuses knows why."""
LOST_BY_SERVER = "it ended the connection in the TLS handshake, perhaps since it does not accept this process's certificate"
_SHOWN_TO_PEER = "the other side does not accept this process's certificate"
_ALERTS = {
    "TLSV1_ALERT_UNKNOWN_CA": f"{_SHOWN_TO_PEER}: another CA has signed it",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{_SHOWN_TO_PEER}: it has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": _SHOWN_TO_PEER,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"{_SHOWN_TO_PEER}: it is for another purpose",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _SHOWN_TO_PEER,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side wants a certificate, and this process has shown none",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "both sides have no version of TLS in common",
    "UNSUPPORTED_PROTOCOL": "both sides have no version of TLS in common",
    "NO_PROTOCOLS_AVAILABLE": "both sides have no version of TLS in common",
    "UNEXPECTED_EOF_WHILE_READING": LOST_BY_SERVER,
    "WRONG_VERSION_NUMBER": PLAIN_PEER,
    "HTTP_REQUEST": PLAIN_PEER,
    "PACKET_LENGTH_TOO_LONG": PLAIN_PEER,
}
"""Reasons of OpenSSL, and what they mean here."""


def describe(error: ssl.SSLError) -> str:
    """Say why a TLS handshake has failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {_verdict(error)}"
    return _ALERTS.get(error.reason or "", f"the TLS handshake has failed: {_reason(error)}")


def describe_text(text: str) -> str:
    """Return the meaning of the first of OpenSSL's reasons in a text, for libraries that pass on only text; else it."""
    return next((words for reason, words in _ALERTS.items() if reason in text), text)


def _verdict(error: ssl.SSLCertVerificationError) -> str:
    """Say why a certificate is not accepted."""
    if error.verify_code in OTHER_AUTHORITY:
        return f"a CA has signed it that is not in --tls-ca ({error.verify_message})"
    return error.verify_message


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
