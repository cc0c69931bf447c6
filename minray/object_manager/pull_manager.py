"""Which objects may begin to come to this node.

Ray: src/ray/object_manager/pull_manager.h

Pure. Whoever wants objects here wants several at once (the arguments of a task, a list in a ``get``): a *bundle*, which is
of no use before all of it is here, and which keeps in memory what has come. So bundles begin as a whole, when the sizes of
all their objects are known: in the order get, wait, task arguments, and among equals first come, first served; as many as
fit into the memory that can be had (G87).

Rules
  * A bundle that has begun goes on, whatever comes: it holds memory, and others get that memory when it is over.
  * One bundle is always under way, whether it fits or not; the object store then makes room, or says that there is none.
  * An object begins with the first of its bundles.
  * A bundle that waits for an object which is being made again counts as not under way: others may be needed to make it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec

from minray.object_store.store import Order


class _Bundle(msgspec.Struct, eq=False):
    """What somebody wants."""

    objects: dict[bytes, None]
    """Those that are not over."""
    unknown: int = 0
    """How many of them have no size yet."""
    bytes: int = 0
    """Of those that could begin."""
    has_begun: bool = False
    stalled: int = 0
    """How many of them are being made again."""

    def is_under_way(self) -> bool:
        return self.has_begun and not self.stalled


class _Object(msgspec.Struct, eq=False):
    """What comes, or is to come."""

    bundles: dict[Order, None]
    size: int | None = None
    """None until its owner has told it."""
    on_begin: Callable[[], None] | None = None
    """Set when it could begin, until it does."""
    is_due: bool = False
    """It has begun, and has no memory yet."""
    is_stalled: bool = False
    """It is being made again."""


class PullManager:
    """All pulls of one node."""

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self._has_room = has_room
        """Whether so many bytes can be had without taking anything that is in use."""
        self._objects: dict[bytes, _Object] = {}
        self._bundles: dict[Order, _Bundle] = {}
        self._begun_count = 0
        """Of bundles that are under way."""
        self._due_bytes = 0
        """Of objects that have begun, and have no memory yet."""
        self._waiting: list[Order] = []
        """A heap of bundles that could begin; some may be over."""

    def __len__(self) -> int:
        return len(self._objects)

    def want(self, object_id: bytes, order: Order) -> None:
        """This object belongs to that bundle, whose other ones are told of at once, too."""
        one = self._objects.setdefault(object_id, _Object({}))
        bundle = self._bundles.setdefault(order, _Bundle({}))
        if order in one.bundles:
            return
        one.bundles[order] = bundle.objects[object_id] = None
        self._begun_count -= bundle.is_under_way() and one.is_stalled
        bundle.stalled += one.is_stalled
        if one.size is None:
            bundle.unknown += 1
        elif one.on_begin is not None:
            bundle.bytes += one.size
        if bundle.has_begun:
            self._begin(one)
        else:
            self._maybe_line_up(order)
            self._advance()

    def request(self, object_id: bytes, size: int, on_begin: Callable[[], None]) -> None:
        """Its size is known, and it would like to begin; called back at once, or later."""
        one = self._objects[object_id]
        self._set_stalled(one, False)
        self._forget_size(one)
        one.size, one.on_begin = size, on_begin
        for order in one.bundles:
            bundle = self._bundles[order]
            bundle.unknown -= 1
            bundle.bytes += size
            self._maybe_line_up(order)
        if any(self._bundles[order].has_begun for order in one.bundles):
            self._begin(one)
        else:
            self._advance()

    def on_room(self, object_id: bytes) -> None:
        """It has got its memory."""
        one = self._objects[object_id]
        assert one.is_due and one.size is not None
        one.is_due = False
        self._due_bytes -= one.size

    def stall(self, object_id: bytes) -> None:
        """It is being made again; ``request`` follows when that is done."""
        one = self._objects[object_id]
        self._forget_size(one)
        self._set_stalled(one, True)
        self._advance()

    def _set_stalled(self, one: _Object, is_stalled: bool) -> None:
        if one.is_stalled != is_stalled:
            one.is_stalled = is_stalled
            for order in one.bundles:
                bundle = self._bundles[order]
                self._begun_count -= bundle.is_under_way()
                bundle.stalled += 1 if is_stalled else -1
                self._begun_count += bundle.is_under_way()

    def on_end(self, object_id: bytes) -> None:
        """It is here, or will not come."""
        one = self._objects.pop(object_id)
        self._set_stalled(one, False)
        self._forget_size(one)
        for order in one.bundles:
            bundle = self._bundles[order]
            del bundle.objects[object_id]
            bundle.unknown -= 1
            if not bundle.objects:
                del self._bundles[order]
                self._begun_count -= bundle.is_under_way()
            else:
                self._maybe_line_up(order)
        self._advance()

    def _forget_size(self, one: _Object) -> None:
        """As before its owner told it."""
        if one.size is None:
            return
        if one.is_due:
            self._due_bytes -= one.size
        for order in one.bundles:
            self._bundles[order].unknown += 1
            self._bundles[order].bytes -= one.size if one.on_begin is not None else 0
        one.size, one.on_begin, one.is_due = None, None, False

    def _maybe_line_up(self, order: Order) -> None:
        bundle = self._bundles[order]
        if not bundle.unknown and not bundle.has_begun:
            heapq.heappush(self._waiting, order)

    def _advance(self) -> None:
        """Begin whatever can; memory may have become free."""
        while self._waiting:
            bundle = self._bundles.get(self._waiting[0])
            if bundle is not None and not bundle.has_begun and not bundle.unknown:
                if self._begun_count and not self._has_room(self._due_bytes + bundle.bytes):
                    return
                bundle.has_begun = True
                self._begun_count += 1
                for object_id in bundle.objects:
                    self._begin(self._objects[object_id])
            heapq.heappop(self._waiting)

    def _begin(self, one: _Object) -> None:
        on_begin, one.on_begin = one.on_begin, None
        if on_begin is not None:
            assert one.size is not None
            one.is_due = True
            self._due_bytes += one.size
            for order in one.bundles:
                self._bundles[order].bytes -= one.size
            on_begin()
