"""The files of the page, read once, with their types and tags.

Ray: python/ray/dashboard/http_server_head.py (static files of client/build)

The folder is flat and belongs to the package. A name is looked up in a table, so that no path of a visitor reaches the disk.
A browser keeps a file, asks each time whether it has changed, and gets no bytes if it has not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

PAGE = "index.html"
DIRECTORY = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
"""Type of each file by the end of its name; others are not served."""


class PageFile(NamedTuple):
    body: bytes
    type: str
    tag: str
    """Value of the header ``ETag``, which changes with the content."""


def read_page(directory: Path = DIRECTORY) -> dict[str, PageFile]:
    """Read all files of the page, by name."""
    found = {}
    for path in sorted(directory.glob("*")):
        if path.suffix in TYPES and path.is_file():
            body = path.read_bytes()
            found[path.name] = PageFile(body, TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return found
