"""Admission of pulls: which objects may begin to come to this node.

Ray: src/ray/object_manager/pull_manager.h

Pure. A request wants several objects at once (the arguments of a task, a list in a ``get``). They form a *bundle*, which is
useless before all of it is here, and which keeps its objects in memory as they arrive. So a bundle begins as a whole, when
the sizes of all its objects are known. Bundles begin in the order get, wait, task arguments, and among equals first come,
first served. As many begin as fit into the memory that is available (G87).

Rules
  * A bundle that has begun is never stopped: it holds memory, which other bundles get when it is over.
  * One bundle is always under way, whether it fits or not; the object store then makes room, or reports that there is none.
  * An object begins with the first of its bundles.
  * A bundle that waits for an object that is being reconstructed does not count as under way: the reconstruction may need
    other bundles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec

from minray.object_store.question import Order


class _Bundle(msgspec.Struct, eq=False):
    """Objects that one request wants together."""

    objects: dict[bytes, None]
    """Objects that are not here yet and may still come."""
    unknown: int = 0
    """Number of objects whose size is unknown."""
    bytes: int = 0
    """Total size of the objects that are ready to begin."""
    has_begun: bool = False
    stalled: int = 0
    """Number of objects that are being reconstructed."""

    def is_under_way(self) -> bool:
        return self.has_begun and not self.stalled


class _Object(msgspec.Struct, eq=False):
    """An object that is being pulled, or waits for its turn."""

    bundles: dict[Order, None]
    size: int | None = None
    """Size in bytes; None until its owner has told it."""
    on_begin: Callable[[], None] | None = None
    """Callback that begins the pull; set while the object is ready and has not begun."""
    is_due: bool = False
    """Whether the object has begun and has no memory yet."""
    is_stalled: bool = False
    """Whether the object is being reconstructed."""


class PullManager:
    """Decides when each pull of one node may begin."""

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self._has_room = has_room
        """Tells whether that many bytes are available without taking memory that is in use."""
        self._objects: dict[bytes, _Object] = {}
        self._bundles: dict[Order, _Bundle] = {}
        self._begun_count = 0
        """Number of bundles that are under way."""
        self.due_bytes = 0
        """Total size of the objects that have begun and have no memory yet."""
        self._waiting: list[Order] = []
        """Heap of bundles that are ready to begin; some may be over already."""

    def __len__(self) -> int:
        return len(self._objects)

    def bundles(self) -> list[tuple[int, bool]]:
        """Return of each bundle its purpose, and whether it is under way."""
        return [(order.purpose, bundle.is_under_way()) for order, bundle in self._bundles.items()]

    def queued(self) -> int:
        """Return the number of objects that have not begun."""
        return sum(not any(self._bundles[order].has_begun for order in one.bundles) for one in self._objects.values())

    def want(self, object_id: bytes, order: Order) -> None:
        """Add an object to a bundle; the caller adds the bundle's other objects at the same moment."""
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
        """Note an object's size, and call ``on_begin`` when it may begin: at once, or later."""
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
        self._advance()

    def on_room(self, object_id: bytes) -> None:
        """Note that an object that has begun has got its memory."""
        one = self._objects[object_id]
        assert one.is_due and one.size is not None
        one.is_due = False
        self.due_bytes -= one.size

    def stall(self, object_id: bytes) -> None:
        """Note that an object is being reconstructed; ``request`` follows when that is done."""
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
        """Remove an object that is here, or will not come."""
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
        """Return an object to the state before its size was known."""
        if one.size is None:
            return
        if one.is_due:
            self.due_bytes -= one.size
        for order in one.bundles:
            self._bundles[order].unknown += 1
            self._bundles[order].bytes -= one.size if one.on_begin is not None else 0
        one.size, one.on_begin, one.is_due = None, None, False

    def _maybe_line_up(self, order: Order) -> None:
        bundle = self._bundles[order]
        if not bundle.unknown and not bundle.has_begun:
            heapq.heappush(self._waiting, order)

    def _advance(self) -> None:
        """Begin all bundles that can begin, since memory may have become free."""
        while self._waiting:
            bundle = self._bundles.get(self._waiting[0])
            if bundle is not None and not bundle.has_begun and not bundle.unknown:
                if self._begun_count and not self._has_room(self.due_bytes + bundle.bytes):
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
            self.due_bytes += one.size
            for order in one.bundles:
                self._bundles[order].bytes -= one.size
            on_begin()
