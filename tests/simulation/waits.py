"""User threads that wait although they need not (L1): rules of ``Progress``, with the calls that they look at.

A thread in ``get`` or ``wait`` goes on when it has what it asked for, and when its time is up. Few programs see how late
that was. So the open calls are noted here, and looked at whenever time passes and when they end. A task lends its CPUs only
while a thread waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from minray.api.calls import current_process_api
from minray.core_worker.fetching.value_fetcher import RAYLET_PATIENCE_S
from minray.core_worker.user_threads.object_reader import MOST_PATIENCE_S
from minray.simulation.loop import TICKS_PER_SECOND, SimProcess

AWAY = "UserThread.stay_away.<locals>.end"
"""Name of the callback that lets a thread go on from which a fault has switched away."""
SLACK_S = RAYLET_PATIENCE_S + MOST_PATIENCE_S + 0.25
"""Seconds by which a call may be late: its raylet may be silent, it asks why a value is missing, and a slow node takes its
time."""


@dataclass(eq=False)
class Call:
    """A ``get`` or ``wait`` that has not returned."""

    object_ids: list[bytes]
    most: int | None
    """Number of ready values with which ``wait`` returns; None: this is a ``get``."""
    fetches: bool
    """Whether values count as ready only when they are on this node."""
    until: float | None
    """Time of the world at which the call is to return at the latest."""
    lacks: frozenset[bytes] = frozenset()
    """Ids for which its thread waits, copies left out. A value that was here may be lost, and nobody waits for that."""


class Waits:
    """Knows the open calls of one cluster's user threads."""

    def __init__(self, on_broken: Callable[[str, str], None]) -> None:
        self._on_broken = on_broken
        self._calls: dict[bytes, dict[Call, None]] = {}
        """Calls by worker id."""
        self._processes: dict[bytes, SimProcess] = {}
        """Processes by worker id."""
        self._of_thread: dict[int, Call] = {}
        """The call in which each thread is."""
        self._parked: Counter[bytes] = Counter()
        """Number of threads that wait for values, by worker id."""

    def add(self, process: SimProcess, core: Any) -> None:
        """Note the calls of one process, which is connected."""
        api = process.context.get(current_process_api)
        if api is None:
            return
        reader: Any = api.reader
        worker_id = core.config.worker_id
        calls = self._calls.setdefault(worker_id, {})
        self._processes[worker_id] = process
        get, wait, park, reach = reader.get, reader.wait, reader._wait, reader._reach

        def begin(refs: Sequence[Any], most: int | None, timeout_s: float | None, fetches: bool) -> Call:
            until = None if timeout_s is None else process.loop.ticks / TICKS_PER_SECOND + max(0.0, timeout_s)
            call = Call([ref._id for ref in refs], most, fetches, until)
            calls[call] = None
            self._of_thread[get_ident()] = call
            return call

        def end(call: Call) -> None:
            calls.pop(call, None)
            self._of_thread.pop(get_ident(), None)
            if call.until is not None and process.alive:
                late_s = process.loop.ticks / TICKS_PER_SECOND - max(call.until, process.stalled_until / TICKS_PER_SECOND)
                if late_s > SLACK_S:
                    self._on_broken("L1", f"{process.name} lets a thread wait {late_s:.1f} s longer than its time-out")

        def watched_get(refs: Sequence[Any], timeout_s: float | None) -> Any:
            call = begin(refs, None, timeout_s, False)
            try:
                return get(refs, timeout_s)
            finally:
                end(call)

        def watched_wait(refs: list[Any], most: int, timeout_s: float | None, fetch_local: bool = True) -> Any:
            call = begin(refs, most, timeout_s, fetch_local)
            try:
                return wait(refs, most, timeout_s, fetch_local)
            finally:
                end(call)

        def watched_park(refs: Sequence[Any], *args: Any) -> None:
            elsewhere = {large.object_id for large in args[3]} if len(args) > 3 else set()
            self._expect_need(process, core, [ref._id for ref in refs], elsewhere)
            park(refs, *args)

        def watched_reach(refs: Sequence[Any], values: Sequence[Any], *args: Any) -> Any:
            large = {ref._id for ref, stored in zip(refs, values, strict=True) if stored.place is not None}
            self._expect_need(process, core, (), large)
            return reach(refs, values, *args)

        def parked(wait_for_values: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*args: Any) -> Any:
                self._parked[worker_id] += 1
                try:
                    return wait_for_values(*args)
                finally:
                    self._parked[worker_id] -= 1

            return watched

        reader.get, reader.wait = watched_get, watched_wait
        reader._wait, reader._reach = parked(watched_park), parked(watched_reach)

    def _expect_need(self, process: SimProcess, core: Any, missing: Sequence[bytes], elsewhere: set[bytes]) -> None:
        """Is a thread about to wait that knows enough already? What comes at this moment is among what it waits for."""
        if (call := self._of_thread.get(get_ident())) is None:
            return
        call.lacks = frozenset(missing)
        asked = elsewhere.union(missing)
        known = [core.store.objects.get(object_id) for object_id in call.object_ids if object_id not in asked]
        if call.most is None and any(one is not None and one.is_error for one in known):
            self._on_broken("L1", f"{process.name} lets a get wait, and one of its values is an error, which is here")
        elif call.most is not None and sum(one is not None for one in known) >= call.most:
            self._on_broken("L1", f"{process.name} lets a wait for {call.most} values wait, which were here")

    def open_waits(self, core: Any, _now: float) -> Iterator[str]:
        """A thread waits only for what it lacks. One that was switched away from is excused, and one that is late."""
        now_s = self._processes[core.config.worker_id].loop.ticks / TICKS_PER_SECOND
        calls = [call for call in self._calls.get(core.config.worker_id, ()) if call.until is None or now_s < call.until]
        texts = [text for call in calls if (text := _needless(call, core))]
        if texts and not _is_away(self._processes[core.config.worker_id]):
            yield from texts

    def lent_cpus(self, core: Any, _now: float) -> Iterator[str]:
        """A process lends the CPUs of its task only while a thread waits, or a generator is held up."""
        lent, held_up = core.blocked._blocking, core.execution.generator_executor._waiting
        if lent and not held_up and not self._parked[core.config.worker_id]:
            yield f"lends the CPUs of {len(lent)} waits, and no thread waits"


def _needless(call: Call, core: Any) -> str:
    """Say why a call need not wait; empty if it has to."""
    objects = core.store.objects
    if call.most is None:
        has_error = any(one in objects and objects[one].is_error for one in call.lacks)
        return "lets a get wait, and one of its values is an error, which is here" if has_error else ""
    found = [objects.get(object_id) for object_id in call.object_ids]
    if sum(one is not None and (one.place is None or not call.fetches) for one in found) >= call.most:
        return f"lets a wait for {call.most} values wait, which are here"
    return ""


def _is_away(process: SimProcess) -> bool:
    """Tell whether a thread of this process stands still for a while, because a fault has switched away from it."""
    return any(
        timer.process is process and not timer._cancelled and getattr(timer._callback, "__qualname__", "") == AWAY
        for _, _, timer in process.loop._timers
    )
