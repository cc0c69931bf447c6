"""A second right solution of lab 4, of another design: it counts everything anew after each event, and keeps no counters.

Clauses and scenarios must accept it (``tests/labs/in_full.py``): a lab asks for its contract, and not for minray's own way.
"""

from __future__ import annotations

from labs import holes
from labs.lab import ROOT, Hole

WANT = """
        one = self._objects.setdefault(object_id, _Object({}))
        bundle = self._bundles.setdefault(order, _Bundle({}))
        one.bundles[order] = bundle.objects[object_id] = None
        self._look()
"""
REQUEST = """
        one = self._objects[object_id]
        one.size, one.on_begin, one.is_due, one.is_stalled = size, on_begin, False, False
        self._look()
"""
ON_ROOM = """
        self._objects[object_id].is_due = False
        self._look()
"""
STALL = """
        one = self._objects[object_id]
        one.size, one.on_begin, one.is_due, one.is_stalled = None, None, False, True
        self._look()
"""
ON_END = """
        for order in self._objects.pop(object_id).bundles:
            del self._bundles[order].objects[object_id]
            if not self._bundles[order].objects:
                del self._bundles[order]
        self._look()

    def _look(self) -> None:
        while (ready := self._next()) is not None:
            on_begin, ready.on_begin, ready.is_due = ready.on_begin, None, True
            self._count()
            on_begin()

    def _count(self) -> None:
        self.due_bytes = sum(one.size for one in self._objects.values() if one.is_due)
        for bundle in self._bundles.values():
            bundle.stalled = sum(self._objects[object_id].is_stalled for object_id in bundle.objects)

    def _next(self) -> _Object | None:
        self._count()
        for order in sorted(self._bundles):
            bundle = self._bundles[order]
            objects = [self._objects[object_id] for object_id in bundle.objects]
            if not bundle.has_begun:
                if any(one.size is None for one in objects):
                    continue
                needed = self.due_bytes + sum(one.size for one in objects if one.on_begin is not None)
                if any(other.is_under_way() for other in self._bundles.values()) and not self._has_room(needed):
                    break
                bundle.has_begun = True
            for one in objects:
                if one.on_begin is not None:
                    return one
        for bundle in self._bundles.values():
            for object_id in bundle.objects if bundle.has_begun else ():
                if self._objects[object_id].on_begin is not None:
                    return self._objects[object_id]
        return None
"""
BODIES = {"want": WANT, "request": REQUEST, "on_room": ON_ROOM, "stall": STALL, "on_end": ON_END}


def pull_manager(lab: Hole) -> str:
    """Return the lab's starter with these bodies in it."""
    text = holes.starter((ROOT / lab.file).read_text(), lab)
    for name, body in BODIES.items():
        hole = f'        raise RuntimeError("lab {lab.name}: write PullManager.{name}")\n'
        assert text.count(hole) == 1, f"the starter of {lab.name} does not ask for {name} any more"
        text = text.replace(hole, body.lstrip("\n"))
    return text
