"""Log lines about peers that break the protocol: one a minute for each stranger, and one for all that have the token.

Ray: has no counterpart

An attacker who reaches a port can send garbage to it ten thousand times a second. A line for each time would fill the disk
and hide the rest of the log.

    0 s     closing the connection of 10.0.0.7:4711 to tcp:10.0.0.1:6379: not a minray peer
    60 s    10.0.0.7: 4212 more in the last 60 s; the last one: closing the connection of 10.0.0.7:8923 to ...

Rules
  * The first line of a peer appears at once and opens a window. Later ones within the window are counted, and reported in
    one line at its end, which opens the next window. A window in which nothing happened is the last one.
  * At most ``MOST_PEERS`` peers have a window of their own. All others share one.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

WINDOW_S = 60.0
MOST_PEERS = 256
"""Number of peers with windows of their own; an attacker may have any number of addresses."""
OTHERS = "other peers"
KNOWN_PEERS = "peers with the token"
"""Name of all peers that know the token, which share one window: they may call themselves what they like."""


class _Window(msgspec.Struct):
    """The events of one peer since its last log line: their number, and the text of the last one."""

    count: int = 0
    last: str = ""
    timer: asyncio.TimerHandle | None = None
    """The end of the window; set when it is opened."""


class PeerLog:
    """The windows of one network, on whose loop it is used."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._windows: dict[str, _Window] = {}
        """The open windows by peer; a timer ends each of them."""

    def warn(self, peer: str, text: str) -> None:
        """Log the text now, or count it. ``peer`` is the same for all connections of one machine or process."""
        if peer not in self._windows and len(self._windows) >= MOST_PEERS:
            peer = OTHERS
        window = self._windows.get(peer)
        if window is None:
            self._logger.warning("%s", text)
            self._open(peer)
        else:
            window.count += 1
            window.last = text

    def close(self) -> None:
        """Tell what was counted, and log nothing later: the listener is closed."""
        windows, self._windows = self._windows, {}
        for peer, window in windows.items():
            assert window.timer is not None
            window.timer.cancel()
            self._tell(peer, window)

    def _open(self, peer: str) -> None:
        window = self._windows[peer] = _Window()
        window.timer = asyncio.get_running_loop().call_later(WINDOW_S, self._end, peer)

    def _end(self, peer: str) -> None:
        window = self._windows.pop(peer)
        if window.count:
            self._tell(peer, window)
            self._open(peer)

    def _tell(self, peer: str, window: _Window) -> None:
        if window.count:
            self._logger.warning("%s: %d more in the last %g s; the last one: %s", peer, window.count, WINDOW_S, window.last)
