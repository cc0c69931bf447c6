"""Authorities and certificates for tests, made by the command line of OpenSSL."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from minray.platform.transport.tls import TlsFiles

NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
NAMES = "IP:127.0.0.1,DNS:localhost"


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """A CA, whose files are in a directory of its own."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.cert, self._key = directory / f"{name}.crt", directory / f"{name}.key"
        self.cert.parent.mkdir(parents=True, exist_ok=True)
        subject = ["-subj", f"/CN={name} of tests", "-days", "2"]
        openssl("req", "-x509", *NEW_KEY, *subject, "-keyout", str(self._key), "-out", str(self.cert))

    def sign(self, name: str, days: int = 2, extensions: str = f"subjectAltName={NAMES}") -> TlsFiles:
        """Make a certificate and its key. With ``days=-1`` it has expired yesterday."""
        cert, key, request = (self.directory / f"{name}.{ending}" for ending in ("crt", "key", "csr"))
        openssl("req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
        (self.directory / "extensions").write_text(extensions)
        given = ["-in", str(request), "-CA", str(self.cert), "-CAkey", str(self._key), "-CAcreateserial"]
        wanted = ["-days", str(days), "-extfile", str(self.directory / "extensions"), "-out", str(cert)]
        openssl("x509", "-req", *given, *wanted)
        return TlsFiles(str(cert), str(key), str(self.cert))


kept = contextlib.ExitStack()
"""Holds the directory of what tests of this process share, from its first use. The run closes this at its end: a worker of
pytest-xdist ends too soon for ``TemporaryDirectory`` to remove the directory itself."""


@cache
def authority() -> Authority:
    """Return the authority that tests of this process share."""
    return Authority(Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="minray-certificates-"))))


@cache
def node_files() -> TlsFiles:
    """Return the certificate of a node, which tests of this process share."""
    return authority().sign("node")
