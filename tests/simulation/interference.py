"""Aimed trouble on the simulated wire: requests that arrive twice, channels that break at a chosen message.

The oracle's faults strike by chance; these strike where a guarantee is weakest. All of them look at each message that is
sent, by its word: the method for a request, ``method reply`` for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minray.platform.transport.queued_channel import CALL
from minray.simulation import SimCluster
from minray.simulation.network import NEVER_REPEATED

REPLAY_DELAYS_S = (0.0, 0.02, 0.3, 3.0, 40.0)
OnSend = Callable[[Any, Any, str], bool]
"""Gets the channel's end, the message, and its word; False: the message is not sent."""


def watch_sends(cluster: SimCluster, on_send: OnSend) -> None:
    """From now on ask about each message before it is sent."""
    wire: Any = cluster.world.wire
    send = wire.send

    def asking(end: Any, message: Any) -> None:
        word = message.method if message.kind == CALL else f"{message.method} {message.kind}"
        if on_send(end, message, word):
            send(end, message)

    wire.send = asking


def replay_requests(cluster: SimCluster, words: Sequence[str] = (), one_in: int = 2) -> None:
    """Every so manieth request arrives a second time, up to 40 s later, if its channel is open by then (G112)."""
    count = 0

    def on_send(end: Any, message: Any, word: str) -> bool:
        nonlocal count
        if message.kind == CALL and word not in NEVER_REPEATED and (not words or word in words):
            count += 1
            draw = cluster.oracle.below(("replay", count), one_in * len(REPLAY_DELAYS_S))
            if draw < len(REPLAY_DELAYS_S):
                cluster.world.loop.world.call_later(REPLAY_DELAYS_S[draw], again, end, message)
        return True

    def again(end: Any, message: Any) -> None:
        if not end.closed:
            end.pipe.put(message)

    watch_sends(cluster, on_send)


def break_channels(cluster: SimCluster, words: Sequence[str], budget: int, one_in: int = 2) -> None:
    """Channels break at some of these messages, before or after their delivery: the sender asks, or answers, again."""
    count = 0

    def on_send(end: Any, message: Any, word: str) -> bool:
        nonlocal count, budget
        if word in words and budget:
            count += 1
            draw = cluster.oracle.below(("break", count), 2 * one_in)
            if draw < 2:
                budget -= 1
                if draw:
                    end.pipe.put(message)
                end.pipe.shut()
                end.other.pipe.shut()
                return False
        return True

    watch_sends(cluster, on_send)


def kill_sender(
    cluster: SimCluster,
    word: str,
    *numbers: int,
    role: str = "worker/",
    code: int | None = None,
    late_s: float | None = None,
) -> None:
    """Processes of a role die when they are about to send such a message for the n-th time (counted for all of them).

    They are killed, or end with this exit code. The message is lost, or comes so late.
    """
    count = 0

    def on_send(end: Any, message: Any, said: str) -> bool:
        nonlocal count
        if said == word and end.pipe.source.name.startswith(role):
            count += 1
            if count in numbers:
                if late_s is not None:
                    end.pipe.put(message, late_s)
                end.pipe.source.exit(code, 9 if code is None else None)
                return False
        return True

    watch_sends(cluster, on_send)
