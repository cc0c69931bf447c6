"""Questions and notes that belong to no task: ``Inquiry``.

A driver asks where the copies of objects are, of its own and of others. It stores values under keys in the gcs, lists them
and removes them. It asks the gcs whether a machine could join, as ``minray check`` does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import minray
from minray.api.calls import current_api
from minray.experimental import get_object_locations
from minray.in_rays_place.names.experimental import internal_kv as kv
from minray.protocol.gcs import CheckJoin
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

SIZE = 300
"""Bytes of each value, more than worlds with stores keep in messages."""
UNREACHABLE = "tcp:nowhere:1"


class Inquiry(Story, frozen=True):
    """Rounds of questions about two objects and some keys."""

    rounds: int = 2
    pause_s: float = 0.05
    keys: int = 3

    def tell(self) -> list[Look]:
        """The task that makes the second object lends it the third, which is the task's own."""
        own, made = minray.put(b"i" * SIZE), produce.remote()
        looks: list[Look] = []
        for number in range(self.rounds):
            looks += [self._places([own, made]), self._notes(number), self._race(number)]
            time.sleep(self.pause_s)
        kind, shown = look_at(made)
        looks.append(("value", len(shown[0])) if kind == "value" else (kind, shown))
        looks.append(self._places([own, made, *(shown[1:] if kind == "value" else [])]))
        return [*looks, self._join()]

    def _places(self, refs: list[Any]) -> Look:
        """Say whether what is known of own objects is possible; others may be lost."""
        nodes, found = {node["NodeID"] for node in minray.nodes()}, get_object_locations(refs)
        sizes = [place["object_size"] for place in found.values()]
        are_right = set(refs[:2]) <= set(found) <= set(refs) and all(size is None or size >= SIZE for size in sizes)
        are_known = all(nodes.issuperset(place["node_ids"]) for place in found.values())
        return ("value", "possible") if are_right and are_known else ("value", list(found.values()))

    def _notes(self, number: int) -> Look:
        """Store values, read them again, and remove them."""
        room = f"{self.name} {minray.get_runtime_context().get_job_id()} {number}"
        keys = [f"key{count}" for count in range(self.keys)]
        had = [kv._internal_kv_put(key, key * 2, namespace=room) for key in keys]
        again = kv._internal_kv_put(keys[0], "other", overwrite=False, namespace=room)
        listed = kv._internal_kv_list("key", namespace=room)
        values = [kv._internal_kv_get(key, namespace=room) for key in keys]
        removed = kv._internal_kv_del(keys[0], namespace=room)
        removed += self._remove_all(room)
        wanted = [key.encode() for key in keys], [(key * 2).encode() for key in keys]
        is_right = not any(had) and again and (listed, values) == wanted and removed >= len(keys)
        return "value", "kept" if is_right else [had, again, [str(key) for key in listed], removed]

    def _race(self, number: int) -> Look:
        """Let several processes store a value at once, unless there is one; one stores it."""
        room = f"{self.name} {minray.get_runtime_context().get_job_id()} race {number}"
        racers = [store.remote(room, str(count)) for count in range(self.keys)]
        looks = [look_at(racer) for racer in racers]
        kept = kv._internal_kv_get("key", namespace=room)
        self._remove_all(room)
        failed = [look for look in looks if look[0] == "error"]
        winners = [str(count).encode() for count, (_, had) in enumerate(looks) if not had]
        return failed[0] if failed else ("value", "kept" if winners == [kept] else [winners, kept])

    def _remove_all(self, room: str) -> int:
        """Remove all keys, again if a late put has brought one back; return how many, or -1000 if some stay."""
        removed = 0
        for _ in range(5):
            removed += kv._internal_kv_del("key", del_by_prefix=True, namespace=room)
            if not kv._internal_kv_list("key", namespace=room):
                return removed
        return -1000

    def _join(self) -> Look:
        """Ask whether a machine that does not listen could join, and one that asks nothing of the kind."""
        api = current_api()
        replies = [api.run_on_loop(lambda end=end: api.port.process.gcs.call(CheckJoin(end))) for end in ("", UNREACHABLE)]
        return "value", [bool(reply.unreachable) for reply in replies]

    def wanted(self) -> list[Any]:
        return [*["possible", "kept", "kept"] * self.rounds, SIZE, "possible", [False, True]]

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_task(0)

    def busy_s(self) -> float:
        return self.rounds * self.pause_s


@minray.remote(num_cpus=0, max_retries=0)
def store(room: str, value: str) -> bool:
    """Store the value, and say whether there was one."""
    return bool(kv._internal_kv_put("key", value, overwrite=False, namespace=room))


@minray.remote(num_cpus=0)
def produce() -> list[Any]:
    """Return a large value, with a reference to another one."""
    return [b"p" * SIZE, minray.put(b"q" * SIZE)]
