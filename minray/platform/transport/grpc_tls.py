"""TLS for the gRPC transport: its credentials, and what gRPC does not tell about a handshake.

Ray: src/ray/rpc/grpc_server.cc, python/ray/_private/grpc_utils.py

gRPC always compares the certificate's names with the address, and has no words for most failures. So before it connects,
a TLS connection of our own (``visit``) checks the listener as the stream transport does, and reads a name that gRPC can
ask for.

Rules
  * The rules are those of ``tls.py``: both sides show a certificate, whose chain counts. Names count only where the address
    is a name.
  * A listener reads its files again when they have changed, without being asked: gRPC calls ``fetch`` for each connection.

What we do not like yet: gRPC logs no peer whose TLS handshake fails.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import grpc

from minray.platform.base import AuthenticationFailed
from minray.platform.transport.endpoints import TcpEndpoint
from minray.platform.transport.handshake import TLS_RECORDS
from minray.platform.transport.tls import (
    ENCRYPTED_PEER,
    Pem,
    Tls,
    TlsFiles,
    TlsFilesWrong,
    binding,
    first_certificate,
    is_ip_address,
    read,
)

logger = logging.getLogger("minray.platform.transport.grpc_transport")


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return a listener's credentials, which follow the files. Raises ``TlsFilesWrong``."""
    first = read(files)
    shown = [first]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        try:
            newest = read(files)
        except TlsFilesWrong as error:
            logger.warning("the files for TLS have changed, and the former ones stay in use: %s", error)
            return None
        if newest == shown[0]:
            return None
        shown[0] = newest
        return _configuration(newest)

    fetcher = cast(Callable[[], grpc.ServerCertificateConfiguration], fetch)  # None, which its types lack: no change.
    return grpc.dynamic_ssl_server_credentials(_configuration(first), fetcher, require_client_authentication=True)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)


def channel_credentials(files: TlsFiles) -> tuple[grpc.ChannelCredentials, bytes]:
    """Return the credentials of a channel, and its ``binding``. Raises ``TlsFilesWrong``."""
    pem = read(files)
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert), binding(pem.certificate)


def binding_of(authenticated: Mapping[str, Any]) -> bytes:
    """Return the binding of a call that came in, from its ``auth_context``."""
    certificates = list(authenticated.get("x509_pem_cert", ()))
    return binding(first_certificate(certificates[0])) if certificates else b""


async def visit(where: TcpEndpoint, tls: Tls) -> str:
    """Make a TLS connection to a listener and end it. Return the name that gRPC must ask for; empty: the address.

    Raises ``ssl.SSLError`` if the listener is not accepted, and other errors of a connect.
    """
    visitor = _Visitor()
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: visitor, where.host, where.port, ssl=tls.client(where.host), server_hostname=where.host
        )
        assert visitor.transport is not None
        return _name_in(visitor.transport.get_extra_info("peercert")) if is_ip_address(where.host) else ""
    finally:
        if visitor.transport is not None:  # Also if the attempt was cancelled: no loop ends TLS by itself then.
            visitor.transport.abort()


class _Visitor(asyncio.Protocol):
    """A connection that only looks at the certificate of the other side."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)


def _name_in(certificate: Mapping[str, Any]) -> str:
    """Return a name for which gRPC accepts this certificate."""
    for kind, name in certificate.get("subjectAltName", ()):
        if kind in ("DNS", "IP Address"):
            return str(name).replace("*.", "any.")
    for fields in certificate.get("subject", ()):
        for field, value in fields:
            if field == "commonName":
                return str(value)
    raise AuthenticationFailed("its certificate has neither a name nor an address, which gRPC needs")


async def refuse_tls(where: TcpEndpoint) -> None:
    """Raise ``AuthenticationFailed`` if a listener speaks TLS: called without TLS, after gRPC could not connect."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # It is only asked which protocol it speaks.
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    reader, writer = await asyncio.open_connection(where.host, where.port)
    try:
        writer.write(outgoing.read())
        first = await reader.read(2)
    finally:
        writer.transport.abort()
    if first in TLS_RECORDS:
        raise AuthenticationFailed(ENCRYPTED_PEER)
