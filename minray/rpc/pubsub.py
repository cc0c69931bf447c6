"""Publish/subscribe: a versioned table per channel, read by long polls.

Ray: src/ray/pubsub/publisher.h, subscriber.h

The publisher keeps, per channel, the current value of every key and the version at which it last changed. A subscriber
says which version it has and receives what changed since, or everything when it has the version of another incarnation
of the publisher or one too old to tell what was removed meanwhile. A lost reply, a reset or a restart of the gcs thus
needs no handling of its own: the next poll repairs it.

A table may be larger than a record can be. A reply therefore holds the oldest of the changes, as many as fit, and the
version of the last of them, from which the next poll goes on.

A channel on which there is nothing, and of which nobody waits for news, is forgotten. All channels count with one counter,
so that one which begins anew is ahead of whatever anybody knows of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minray.platform.base import RemoteFailure
from minray.protocol.gcs import Poll, PollReply
from minray.rpc.connection import Peer, PeerUnreachable

logger = logging.getLogger(__name__)

MAX_REMOVALS = 10_000
"""How many removed keys a channel remembers before it answers old subscribers with a full snapshot."""
MAX_REPLY_BYTES = 8 * 1024 * 1024
"""More entries than fit into this are told in several replies; each has at least one, however large that is."""
POLL_TIMEOUT_S = 30.0


class _Topic:
    """One channel of the publisher."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.values: dict[bytes, bytes] = {}
        self.changed_at: dict[bytes, int] = {}
        """Key to version, in the order of the changes; removed keys too."""
        self.complete_since = version
        """Subscribers with an older version than this cannot be told what was removed."""
        self.waiters: list[asyncio.Future[None]] = []

    def publish(self, version: int, key: bytes, value: bytes | None) -> None:
        self.version = version
        self.changed_at.pop(key, None)
        self.changed_at[key] = self.version
        if value is None:
            self.values.pop(key, None)
            if len(self.changed_at) - len(self.values) > MAX_REMOVALS:
                self._forget_oldest_removal()
        else:
            self.values[key] = value
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _forget_oldest_removal(self) -> None:
        for key, version in self.changed_at.items():
            if key not in self.values:
                self.complete_since = version
                del self.changed_at[key]
                return

    def changes_since(self, version: int, begun: int) -> tuple[list[tuple[bytes, bytes | None]], int]:
        """As many as fit into a reply, and how far they reach; a snapshot is not told what was removed before it began."""
        newer: list[tuple[bytes, int]] = []
        for key, changed in reversed(self.changed_at.items()):
            if changed <= version:
                break
            if changed > begun or key in self.values:
                newer.append((key, changed))
        changes: list[tuple[bytes, bytes | None]] = []
        reached, size = version, 0
        for key, changed in reversed(newer):
            value = self.values.get(key)
            size += len(key) + len(value or b"")
            if changes and size > MAX_REPLY_BYTES:
                return changes, reached
            changes.append((key, value))
            reached = changed
        return changes, self.version


class Publisher:
    """All channels of the gcs."""

    def __init__(self, epoch: bytes) -> None:
        self._epoch = epoch
        self._topics: dict[str, _Topic] = {}
        self._version = 0
        """Of the last change."""
        self._forgotten = 0
        """The newest version of any channel that was forgotten."""

    def publish(self, channel: str, key: bytes, value: bytes | None) -> None:
        """Set (or with None remove) a key; wakes those who poll."""
        self._version += 1
        topic = self._topic(channel)
        topic.publish(self._version, key, value)
        self._maybe_forget(channel, topic)

    def _topic(self, channel: str) -> _Topic:
        return self._topics.setdefault(channel, _Topic(self._forgotten))

    def _maybe_forget(self, channel: str, topic: _Topic) -> None:
        if not topic.values and not topic.waiters and self._topics.get(channel) is topic:
            del self._topics[channel]
            self._forgotten = max(self._forgotten, topic.version)

    async def poll(self, request: Poll) -> PollReply:
        """Answer one poll: at once if there is news, else when there is, at the latest after the asked time."""
        topic = self._topic(request.channel)
        if request.epoch == self._epoch and request.version >= topic.version:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            topic.waiters.append(waiter)
            try:
                async with asyncio.timeout(request.timeout_s):
                    await waiter
            except TimeoutError:
                if waiter in topic.waiters:
                    topic.waiters.remove(waiter)
        self._maybe_forget(request.channel, topic)
        full = request.epoch != self._epoch or max(request.version, request.begun) < topic.complete_since
        version, begun = (0, topic.version) if full else (request.version, request.begun)
        entries, reached = topic.changes_since(version, begun)
        return PollReply(self._epoch, reached, full, entries, begun)


NOTHING = PollReply(b"", 0, False, [])
"""What a new subscriber has been told."""


def next_poll(channel: str, reply: PollReply, timeout_s: float = 0.0) -> Poll:
    """What to ask after this reply."""
    return Poll(channel, reply.epoch, reply.version, timeout_s, reply.begun)


async def read_table(peer: Peer, channel: str) -> list[bytes]:
    """The values that a channel has now. Raises PlatformError."""
    values: dict[bytes, bytes | None] = {}
    reply = NOTHING
    while reply is NOTHING or not reply.is_complete():
        reply = await peer.call(next_poll(channel, reply))
        if reply.full:
            values.clear()
        values.update(reply.entries)
    return [value for value in values.values() if value is not None]


class Subscription:
    """One channel as a subscriber sees it; ``on_change(key, value)`` is told of every difference, once."""

    def __init__(
        self, peer: Peer, channel: str, on_change: Callable[[bytes, bytes | None], None], period_s: float = 0.0
    ) -> None:
        """``period_s``: what changes within so long of the last news comes together, and of a key only the latest."""
        self._peer = peer
        self._channel = channel
        self._on_change = on_change
        self._period_s = period_s
        self._values: dict[bytes, bytes] = {}
        self._unnamed: dict[bytes, None] = {}
        """Keys that the snapshot which is being read has not named so far."""
        self._task: asyncio.Task[None] | None = None
        self.synchronised = asyncio.Event()
        """Set when the first snapshot has arrived whole."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"follow({self._channel})")

    def close(self) -> None:
        task, self._task = self._task, None  # a cancelled task keeps its frames, where the collector does not see them
        if task is not None:
            task.cancel()

    async def _follow(self) -> None:
        reply = NOTHING
        while True:
            try:
                reply = await self._peer.call(next_poll(self._channel, reply, POLL_TIMEOUT_S))
            except PeerUnreachable:
                return
            except RemoteFailure:
                await asyncio.sleep(1.0)
                continue
            self._apply(reply)
            if not reply.is_complete():
                continue
            self.synchronised.set()
            if self._period_s:
                await asyncio.sleep(self._period_s)

    def _apply(self, reply: PollReply) -> None:
        entries = dict(reply.entries)
        if reply.full:
            self._unnamed = dict.fromkeys(self._values)
        for key in entries:
            self._unnamed.pop(key, None)
        if reply.is_complete():
            entries.update(dict.fromkeys(self._unnamed))
            self._unnamed.clear()
        for key, value in entries.items():
            if self._values.get(key) == value:
                continue
            if value is None:
                del self._values[key]
            else:
                self._values[key] = value
            try:
                self._on_change(key, value)
            except Exception:  # a bug of ours, after which other news must still come
                logger.exception("news of %s were not taken in", self._channel)
