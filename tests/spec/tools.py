"""Tools on top of the API: ``Tool``, which uses pools, queues and helpers of ``minray.util``.

These make actors and tasks of their own. A fault may take one of them at any time. Then the tool raises an error, or, if
it tries again, does its work once more. So their values are judged as far as nothing is lost. What they leave behind is
judged always.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import minray
import minray.util
from minray.exceptions import RayError
from tests.spec.stage import Outcome
from tests.spec.stories import Look, Story

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

NUMBERS = list(range(5))
DOUBLED = [0, 2, 4, 6, 8]
PATIENCE_S = 60.0
"""Seconds for which a queue is waited for."""


class Tool(Story, frozen=True):
    """One tool of ``minray.util``."""

    tool: str = "pool"
    """The one of ``TOOLS`` that is used."""

    def tell(self) -> list[Look]:
        try:
            return [("value", TOOLS[self.tool]())]
        except (RayError, queue.Empty, queue.Full) as error:
            return [("error", type(error).__name__)]

    def wanted(self) -> list[Any]:
        return [DOUBLED]

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_task(0) | losses.of_any_actor(0)

    def busy_s(self) -> float:
        return PATIENCE_S * len(NUMBERS)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        if not self.errors(reading.model.losses):
            yield from super().check(reading, outcome)


def _pool() -> list[int]:
    pool = minray.util.ActorPool([Doubler.remote() for _ in range(2)])
    return list(pool.map(lambda actor, number: actor.double.remote(number), NUMBERS))


def _unordered_pool() -> list[int]:
    pool = minray.util.ActorPool([Doubler.remote() for _ in range(2)])
    return sorted(pool.map_unordered(lambda actor, number: actor.double.remote(number), NUMBERS))


def _queue() -> list[int]:
    """Let a task put more than the queue holds, and get it all."""
    line = minray.util.queue.Queue(maxsize=2, actor_options={"num_cpus": 0})
    filled = fill.options(num_cpus=0).remote(line)
    doubled = [line.get(timeout=PATIENCE_S) for _ in NUMBERS]
    minray.get(filled)
    line.shutdown()
    return doubled


def _completed() -> list[int]:
    refs = [double.remote(number) for number in NUMBERS]
    return sorted(minray.util.as_completed(refs, chunk_size=2))


def _completed_references() -> list[int]:
    refs = [double.remote(number) for number in NUMBERS]
    return sorted(minray.get(list(minray.util.as_completed(refs, yield_obj_refs=True))))


def _unordered() -> list[int]:
    return sorted(minray.util.map_unordered(double, NUMBERS, backpressure_size=3, chunk_size=2))


def _unordered_references() -> list[int]:
    refs = list(minray.util.map_unordered(double, NUMBERS, yield_obj_refs=True))
    return sorted(minray.get(refs))


def _survey() -> list[int]:
    """Ask the cluster about itself. Every node has a CPU, and none has more than all of them."""
    total, available, nodes = minray.cluster_resources(), minray.available_resources(), minray.nodes()
    assert all(amount <= total.get(key, 0) for key, amount in available.items() if key == "CPU")
    assert minray.get_runtime_context().get_node_id() in [node["NodeID"] for node in nodes]
    assert minray.util.get_node_ip_address() and minray.util.get_node_instance_id() is not None
    assert minray.util.get_current_placement_group() is None and minray.get_gpu_ids() == []
    assert minray.util.list_named_actors() is not None
    return DOUBLED


TOOLS: Mapping[str, Callable[[], list[int]]] = {
    "pool": _pool,
    "unordered pool": _unordered_pool,
    "queue": _queue,
    "completed": _completed,
    "completed references": _completed_references,
    "unordered": _unordered,
    "unordered references": _unordered_references,
    "survey": _survey,
}
"""Name -> what is done with the tool, which returns the double of ``NUMBERS``."""


@minray.remote(num_cpus=0)
class Doubler:
    """An actor of a pool."""

    def double(self, number: int) -> int:
        return 2 * number


@minray.remote
def double(number: int) -> int:
    return 2 * number


@minray.remote
def fill(line: Any) -> None:
    """Put the doubles into a queue, which is full in between."""
    for number in DOUBLED:
        line.put(number, timeout=PATIENCE_S)
