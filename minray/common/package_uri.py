"""Names of the directories that a runtime environment brings to its workers: ``gcs://`` and ``local://``.

Ray: python/ray/_private/runtime_env/protocol.py, python/ray/_common/runtime_env_package.py

    gcs://_ray_pkg_029f88d5ecc55e1e4d64fc6e388fd103.zip    a package that ``init`` has uploaded, named by its content
    local:///srv/project                                  a directory that is on every node already

The name of a package is a digest of its bytes. So equal directories make one package, and a receiver knows whether it has
received the right one.
"""

from __future__ import annotations

import re

UPLOADED, LOCAL = "gcs://", "local://"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
"""The beginning of a URI; a path does not match."""
ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.xz")
"""Files that can be a ``working_dir`` in the place of a directory."""
WHEEL = ".whl"
PREFIX = "_ray_pkg_"
"""First characters of a package's name, as in Ray."""
DIGEST_CHARACTERS = 32
"""Hexadecimal digits of the digest in a name: 128 bits, so that no two packages ever have the same name."""


def package_name(archive: bytes | bytearray | memoryview) -> str:
    """Return the name of a package, without the suffix, which follows from its bytes."""
    import hashlib  # here, because it loads OpenSSL, which most programs do not need

    return PREFIX + hashlib.sha256(archive).hexdigest()[:DIGEST_CHARACTERS]


def uri_of(name: str) -> str:
    return f"{UPLOADED}{name}.zip"


def name_in(uri: str) -> str:
    """Return the name of the package that a ``gcs://`` URI names."""
    return uri.removeprefix(UPLOADED).rpartition(".")[0]
