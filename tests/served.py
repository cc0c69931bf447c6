"""A folder of files, served on this machine as any server of files does, for browsers that visit it."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/favicon.ico":  # Browsers ask for it where a page names no icon.
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def served(folder: Path) -> Generator[str, None, None]:
    """Serve a folder, and give its address without a slash at the end."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
