"""A kernel of Jupyter as a front end uses it: cells go in, and pieces of output come back, each for a cell.

Unlike nbclient, this front end takes output of cells that have ended, as JupyterLab does. It names cells in its requests.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

PATIENCE_S = 60.0
"""Seconds after which a test gives up."""


class Cell:
    """One execution of a cell, with what has come for it so far."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.streams: dict[str, str] = {"stdout": "", "stderr": ""}
        self.result = ""
        """The text of the value of the last line."""
        self.html = ""
        """The HTML of that value, or the text of the error if there is one."""
        self.error = ""
        """The name of the exception that has ended the cell; empty if none has."""
        self.displays: list[dict[str, Any]] = []
        """Pieces that ``display`` has shown, and their later versions."""
        self.is_idle = False

    def lines(self, stream: str = "stdout") -> list[str]:
        """The lines of a stream, without the names of tasks."""
        return [re.sub(r"^\([^)]*\) ", "", line) for line in self.streams[stream].splitlines()]


class Kernel:
    """A kernel, and the cells that it was given."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(kernel_name="python3")
        self._cells: dict[str, Cell] = {}

    def stop(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=False)
        self._manager.cleanup_resources()

    def run(self, code: str) -> Cell:
        """Run a cell to its end, and fail if it raises."""
        cell = self.begin(code)
        self.until(lambda: cell.is_idle)
        assert not cell.error, (cell.error, cell.html)
        return cell

    def begin(self, code: str) -> Cell:
        """Send a cell to the kernel."""
        message = self._client.session.msg("execute_request", self._content(code))
        message["metadata"] = {"cellId": f"cell-{len(self._cells)}"}
        self._client.shell_channel.send(message)
        cell = self._cells[message["header"]["msg_id"]] = Cell(message["header"]["msg_id"])
        return cell

    def interrupt(self) -> None:
        """Interrupt the running cell, as the stop button does."""
        self._manager.interrupt_kernel()

    def until(self, condition: Callable[[], bool]) -> None:
        """Take output until a condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, {cell.request_id: vars(cell) for cell in self._cells.values()}
            try:
                self._take(self._client.get_iopub_msg(timeout=1))
            except Empty:
                assert self._manager.is_alive(), "the kernel has died"

    def _take(self, message: dict[str, Any]) -> None:
        cell = self._cells.get(message["parent_header"].get("msg_id", ""))
        content = message["content"]
        if cell is None:
            return
        match message["msg_type"]:
            case "stream":
                cell.streams[content["name"]] += content["text"]
            case "execute_result":
                cell.result, cell.html = content["data"]["text/plain"], content["data"].get("text/html", "")
            case "error":
                cell.error, cell.html = content["ename"], content["evalue"]
            case "display_data" | "update_display_data":
                cell.displays.append(content)
            case "status":
                cell.is_idle = content["execution_state"] == "idle"

    @staticmethod
    def _content(code: str) -> dict[str, Any]:
        return {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
