"""TLS of a port for browsers and Prometheus: a certificate and its key, and visitors that show none.

Ray: has none; its dashboard and its metrics' ports are plain HTTP

The rules are those of ``tls.py``, but for the CA: visitors prove who they are with a token, inside TLS. Files that have
changed are read again for the next connection.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass

from minray.common.config import SystemConfig
from minray.platform.transport.tls import TlsFilesWrong, load_certificate, read_key, versions_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WebFiles:
    """The paths of a port's files, in PEM format."""

    cert: str
    key: str


def web_files_of(system: SystemConfig) -> WebFiles | None:
    """Return the files of a cluster's process, with which its port also serves browsers; None without TLS."""
    return WebFiles(system.tls_cert, system.tls_key) if system.tls_cert and system.tls_key else None


class WebTls:
    """The context of one port, for the files as they are now."""

    def __init__(self, files: WebFiles) -> None:
        """Read the files. Raises ``TlsFilesWrong``."""
        self._files = files
        self._versions = versions_of([files.cert, files.key])
        self._context = self._make()

    def server(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        versions = versions_of([self._files.cert, self._files.key])
        if versions != self._versions:
            self._versions = versions
            try:
                self._context = self._make()
            except TlsFilesWrong as error:
                logger.warning("the files for TLS have changed, and the former ones stay in use: %s", error)
        return self._context

    def _make(self) -> ssl.SSLContext:
        read_key(self._files.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_certificate(context, self._files.cert, self._files.key)
        return context
