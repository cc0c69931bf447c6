"""Makes the link under which the playground runs a failing scenario with the student's code.

Ray: has no counterpart.

    https://.../index.html#attempt=...

The link has all of it: the name and the text of the student's file and the scenario, as JSON that is compressed (zlib) and
written in base64. The playground (``docs/playground``) puts the file in place of its own before it imports minray. So it
must be built from the commit from which the archive was made, and a run of the link changes nothing but that browser's tab.

The playground's address is a line of ``labs/playground.txt``, which ``python -m labs.archive --playground ADDRESS`` writes.
Without that file no link is made.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

ADDRESS = "labs/playground.txt"
"""File of an archive with the playground's address."""


def link(root: Path, file: str, scenario: str) -> str:
    """Return the link for the code in ``file`` and a scenario in JSON; empty if the archive knows no playground."""
    address = root / ADDRESS
    if not address.is_file():
        return ""
    attempt = {"file": file, "text": (root / file).read_text(), "scenario": scenario}
    packed = zlib.compress(json.dumps(attempt, separators=(",", ":")).encode(), 9)
    return f"{address.read_text().strip()}#attempt={base64.urlsafe_b64encode(packed).decode().rstrip('=')}"
