"""A Firefox without a window, asked by its own protocol (Marionette): playwright drives only Firefoxes of its own making.

A message is its length, a colon, and a JSON list: [0, number, command, parameters]; an answer is [1, number, error, result].
Firefox chooses the port and writes it into its profile.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.helpers import wait_for_condition

NAMED = "MINRAY_TEST_FIREFOX"
"""Environment variable with the path of a Firefox that is not among ``FIREFOX``."""
FIREFOX = [Path(os.environ.get(NAMED, "/usr/bin/firefox-esr")), Path("/usr/bin/firefox")]
START_S = 120
LEAST_WIDTH = 500
"""Pixels below which no window of Firefox goes; the page in it can be narrower."""


def path_of_firefox() -> Path | None:
    """Return the Firefox of this machine; None if it has none."""
    return next((path for path in FIREFOX if path.exists()), None)


class Firefox:
    """A Firefox with a profile of its own; use it as a context manager."""

    def __init__(self, path: Path, profile: Path, width: int = 1280, theme: str = "light") -> None:
        """Start one whose window has this width, in pixels, and which asks pages for a "light" or a "dark" theme."""
        settings = f'"layout.css.prefers-color-scheme.content-override", {("dark", "light").index(theme)}'
        (profile / "user.js").write_text(f'user_pref("marionette.port", 0);\nuser_pref({settings});\n')
        self._width = width
        options = ["--headless", "--marionette", "--no-remote", "--remote-allow-system-access", "--profile", str(profile)]
        command = [str(path), *options]
        environment = {**os.environ, "HOME": str(profile)}
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._port = profile / "MarionetteActivePort"
        self._count = 0

    def __enter__(self) -> Firefox:
        try:
            self._connect()
        except BaseException:
            self._process.kill()
            self._process.wait(START_S)
            raise
        return self

    def _connect(self) -> None:
        def is_there() -> bool:
            assert self._process.poll() is None, f"Firefox has ended with code {self._process.returncode}"
            return self._port.exists() and bool(self._port.read_text())

        wait_for_condition(is_there, START_S, "Firefox does not listen")
        self._socket = socket.create_connection(("127.0.0.1", int(self._port.read_text())), timeout=START_S)
        self._file = self._socket.makefile("rb")
        self._read()  # its greeting
        self.command("WebDriver:NewSession", capabilities={"alwaysMatch": {}})
        self.command("WebDriver:SetWindowRect", width=max(self._width, LEAST_WIDTH), height=900)
        self.command("Marionette:SetContext", value="chrome")
        self.run("gBrowser.selectedBrowser.style.maxWidth = arguments[0]", f"{self._width}px")
        self.command("Marionette:SetContext", value="content")

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()
        self._process.terminate()
        self._process.wait(START_S)

    def command(self, name: str, **parameters: Any) -> Any:
        self._count += 1
        message = json.dumps([0, self._count, name, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._read()
        assert error is None, error
        return result

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page; return what it returns."""
        return self.command("WebDriver:ExecuteScript", script=script, args=list(arguments))["value"]

    def _read(self) -> Any:
        size = b""
        while (digit := self._file.read(1)) != b":":
            assert digit, "Firefox has closed the connection"
            size += digit
        return json.loads(self._file.read(int(size)))
