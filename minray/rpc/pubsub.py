"""Publish/subscribe: a versioned table per channel, read by long polls.

Ray: src/ray/pubsub/publisher.h, subscriber.h

The publisher keeps, per channel, the current value of every key and the version at which it last changed. A subscriber
sends the version that it has and receives what changed since. It receives a full snapshot when its version is that of
another incarnation of the publisher, or is too old to say what was removed meanwhile. A lost reply, a reset or a restart of
the gcs thus needs no handling of its own: the next poll repairs it.

A table may be larger than a record can be. A reply therefore holds the oldest changes, as many as fit, and the version of
the last of them, from which the next poll goes on.

If every subscriber owns a key and changes it all the time, as nodes do with their resources, the values for all subscribers
would grow with the square of their number. Such a subscriber pauses between its polls, and for longer after much news. So
what it hears in a second is bounded, and is older the more subscribers there are.

A channel without values and without waiting polls is forgotten. All channels share one version counter, so that a channel
that begins anew is ahead of every version that a subscriber knows of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minray.common.bounds import BOUNDS, Bounds
from minray.common.sharing import same
from minray.platform.base import RemoteFailure
from minray.protocol.gcs import Poll, PollReply
from minray.rpc.connection import Peer, PeerUnreachable

logger = logging.getLogger(__name__)

POLL_TIMEOUT_S = 30.0
"""Longest seconds that the publisher holds a poll without news."""
NEWS_IN_A_PERIOD = 64
"""Number of changes in one reply above which the pause after it grows with their number: with the default period of 0.1 s, a
node hears of at most 640 changes a second. Clusters of up to 64 nodes never reach this."""


class _Topic:
    """Holds one channel of the publisher: values, versions and waiting polls."""

    def __init__(self, version: int, bounds: Bounds) -> None:
        self.version = version
        self._max_removals = bounds.publisher_max_removals
        self._max_reply_bytes = bounds.publisher_max_reply_bytes
        self.values: dict[bytes, bytes] = {}
        self.changed_at: dict[bytes, int] = {}
        """Version of each key's last change, in the order of the changes; removed keys are included."""
        self.complete_since = version
        """Oldest version since which all removals are remembered; a subscriber with an older one needs a snapshot."""
        self.waiters: list[asyncio.Future[None]] = []

    def publish(self, version: int, key: bytes, value: bytes | None) -> None:
        self.version = version
        self.changed_at.pop(key, None)
        self.changed_at[key] = self.version
        if value is None:
            self.values.pop(key, None)
            if len(self.changed_at) - len(self.values) > self._max_removals:
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
        """Return the changes that fit into one reply, and the version that they reach.

        Of keys that were removed before the subscriber's snapshot began (``begun``) it says nothing."""
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
            if changes and size > self._max_reply_bytes:
                return changes, reached
            changes.append((key, value))
            reached = changed
        return changes, self.version


class Publisher:
    """Holds all channels of the gcs and answers their polls."""

    def __init__(self, epoch: bytes, bounds: Bounds = BOUNDS) -> None:
        self._epoch = epoch
        self._bounds = bounds
        self._topics: dict[str, _Topic] = {}
        self._version = 0
        """Version of the last change on any channel."""
        self._forgotten = 0
        """Newest version among the channels that were forgotten."""

    def publish(self, channel: str, key: bytes, value: bytes | None) -> None:
        """Set a key (or remove it if ``value`` is None), and wake the waiting polls."""
        self._version += 1
        topic = self._topic(channel)
        topic.publish(self._version, key, value)
        self._maybe_forget(channel, topic)

    def _topic(self, channel: str) -> _Topic:
        return self._topics.setdefault(channel, _Topic(self._forgotten, self._bounds))

    def _maybe_forget(self, channel: str, topic: _Topic) -> None:
        if not topic.values and not topic.waiters and self._topics.get(channel) is topic:
            del self._topics[channel]
            self._forgotten = max(self._forgotten, topic.version)

    async def poll(self, request: Poll) -> PollReply:
        """Answer one poll as soon as there is news, at the latest after ``timeout_s``."""
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
        return PollReply(epoch=self._epoch, version=reached, full=full, entries=entries, begun=begun)


NOTHING = PollReply(b"", 0, False, [])
"""Reply before the first poll: a new subscriber knows nothing."""


def next_poll(channel: str, reply: PollReply, timeout_s: float = 0.0) -> Poll:
    """Build the poll that continues after this reply."""
    return Poll(channel=channel, epoch=reply.epoch, version=reply.version, timeout_s=timeout_s, begun=reply.begun)


async def read_table(peer: Peer, channel: str) -> list[bytes]:
    """Read all values that a channel has now. Raises PlatformError."""
    values: dict[bytes, bytes | None] = {}
    reply = NOTHING
    while reply is NOTHING or not reply.is_complete():
        reply = await peer.call(next_poll(channel, reply))
        if reply.full:
            values.clear()
        values.update(reply.entries)
    return [value for value in values.values() if value is not None]


class Subscription:
    """Follows one channel and calls ``on_change(key, value)`` once for every difference."""

    def __init__(
        self,
        peer: Peer,
        channel: str,
        on_change: Callable[[bytes, bytes | None], None],
        period_s: float = 0.0,
        on_changed: Callable[[], None] | None = None,
    ) -> None:
        """``period_s``: pause between polls; changes within it arrive together, and of each key only the latest value.

        It is longer after more than ``NEWS_IN_A_PERIOD`` changes. ``on_changed`` is called after the changes of each reply,
        for what needs to be done once for all of them.
        """
        self._peer = peer
        self._channel = channel
        self._on_change = on_change
        self._on_changed = on_changed
        self._period_s = period_s
        self._values: dict[bytes, bytes] = {}
        self._unnamed: dict[bytes, None] = {}
        """Known keys that the snapshot being read has not named so far; those left at its end were removed."""
        self._task: asyncio.Task[None] | None = None
        self.synchronised = asyncio.Event()
        """Set when the first snapshot has arrived completely."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"follow({self._channel})")

    def close(self) -> None:
        task, self._task = self._task, None  # A cancelled task keeps its frames, and the garbage collector cannot see them.
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
                await asyncio.sleep(self._period_s * max(1.0, len(reply.entries) / NEWS_IN_A_PERIOD))

    def _apply(self, reply: PollReply) -> None:
        entries = dict(reply.entries)
        if reply.full:
            self._unnamed = dict.fromkeys(self._values)
        for key in entries:
            self._unnamed.pop(key, None)
        if reply.is_complete():
            entries.update(dict.fromkeys(self._unnamed))
            self._unnamed.clear()
        changes = [(key, value) for key, value in entries.items() if self._values.get(key) != value]
        for key, value in changes:
            if value is None:
                del self._values[key]
            else:
                key = same(key)
                value = self._values[key] = same(value)
            self._tell(self._on_change, key, value)
        if changes and self._on_changed is not None:
            self._tell(self._on_changed)

    def _tell(self, listener: Callable[..., None], *news: bytes | None) -> None:
        try:
            listener(*news)
        except Exception:  # A bug of minray; later changes must still be delivered.
            logger.exception("a change on channel %s could not be handled", self._channel)
