"""Submits the tasks of one graph in order, a limited number ahead of the finished ones.

Ray: python/ray/util/dask/scheduler_utils.py (``get_async``; there everything is submitted at once)

If all tasks were submitted at once, those that read data would all be runnable and run first, and all their data would have
to be kept. So tasks are submitted in Dask's order until enough of them could run at the same time. That number (the window)
depends on how fast tasks finish: for tiny tasks it must be large, for long ones small. Tasks that wait for others do not
count. So a chain is submitted at once, and its tasks follow each other without the driver.

Each task returns a second, tiny object, its *report*. The driver waits for reports alone. So it never fetches a value that
was not asked for, learns of a failure at once, and knows the key that has failed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from dask.task_spec import Alias, DataNode
from dask.utils import key_split

import minray as ray

from .callbacks import Listeners
from .futures import FutureKey, given, value_of
from .graph import Graph
from .shipping import Luggage, dask_task

PER_CPU = 2
"""Smallest window, in runnable tasks per CPU of the cluster: one runs and one is next. Results of more would fill memory."""
AT_MOST = 4096
PATIENCE_S = 0.05
"""Seconds within which half of the window must finish; otherwise the tasks are long ones, and the window shrinks."""
MOST_NAMES = 100
UNLIMITED = float("inf")

SENT_AS_THEY_ARE = frozenset({type(None), bool, int, float, complex, str, slice})
"""Types of data that are sent with every task that needs them; other data is put once."""


class GraphSubmission:
    """Submits the tasks of a graph and fetches its results."""

    def __init__(self, graph: Graph, listeners: Listeners, limit: float | None = None) -> None:
        self._graph = graph
        self._listeners = listeners
        self._luggage = Luggage()
        self._functions: dict[Any, Any] = {}
        """The remote function with options, by (name, num_returns, other options)."""
        self._fixed = limit is not None
        self._least = limit or _narrowest(graph)
        self._limit = self._least
        """The window: number of tasks that may be runnable."""
        self.results: dict[Any, Any] = {}
        """Key -> a reference, or data that is sent as it is. An entry is dropped when the last task that needs it is
        submitted."""
        self._uses = dict(graph.uses)
        """Key -> number of nodes that depend on it and were not submitted yet."""
        self._makers: dict[Any, Any] = {}
        """Key -> key of the submitted task that makes its value; may be an ended task."""
        self._reports: dict[Any, Any] = {}
        """Key of an unfinished task -> the reference to its report."""
        self._unfinished: dict[Any, Any] = {}
        """Report of an unfinished task -> its key, in the order of submission."""
        self._runnable: dict[Any, None] = {}
        """Reports of unfinished tasks that wait for no other task."""
        self._blockers: dict[Any, int] = {}
        """Key of a task that had to wait for others -> number of those that are unfinished."""
        self._blocked: defaultdict[Any, list[Any]] = defaultdict(list)
        """Key of an unfinished task -> keys of the tasks that wait for it."""

    def submit_all(self) -> None:
        """Submit every task; wait whenever the window is full."""
        for key in self._graph.order:
            if key not in self.results:
                self._submit(key)
            while len(self._runnable) >= self._limit:
                self._collect(list(self._runnable))

    def wait_all(self) -> None:
        """Wait until every task has finished. Raises the exception of the first one that has failed."""
        while self._unfinished:
            self._collect(list(itertools.islice(self._unfinished, AT_MOST)))

    def fetch(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return the values of these keys."""
        values = {key: self.results[key] for key in keys}
        refs = {key: value for key, value in values.items() if isinstance(value, ray.ObjectRef)}
        with contextlib.suppress(Exception):
            return {**values, **dict(zip(refs, ray.get(list(refs.values())), strict=True))}
        return {**values, **{key: self._value_of(key, ref) for key, ref in refs.items()}}

    def cancel(self) -> None:
        """Cancel all unfinished tasks, the last one first. In the other order tasks would fail because of a cancelled one,
        and report that."""
        reports = list(self._reports.values())
        _, unfinished = ray.wait(reports, num_returns=len(reports), timeout=0) if reports else ([], [])
        for report in reversed(unfinished):
            ray.cancel(report)

    def _submit(self, key: Any) -> None:
        node = self._graph.nodes[key]
        if isinstance(node, DataNode):
            self._keep(key, self._data(node))
        elif type(node) is Alias:
            if node.target in self._makers:
                self._makers[key] = self._makers[node.target]
            self._keep(key, self.results[node.target])
        else:
            self._submit_task(key, node)
        for dependency in node.dependencies:
            self._let_go(dependency)

    def _data(self, node: DataNode) -> Any:
        value = node.value
        if isinstance(value, ray.ObjectRef) or type(value) in SENT_AS_THEY_ARE:
            return value
        with _naming(node.key, "cannot be sent to a worker"):
            return ray.put(value)

    def _submit_task(self, key: Any, node: Any) -> None:
        alternative = self._listeners.before_submission(node, key, self.results)
        if alternative is not None:
            self._keep(key, alternative)
            return
        pieces = self._graph.splits.get(key)
        items = None if pieces is None else [self._item(piece) for piece in pieces]
        with _naming(key, "cannot be sent to a worker"):
            function, args, kwargs = self._luggage.call(node, self.results)
            remote = self._remote_function(key, 2 if items is None else len(items) + 1)
            with given(node.dependencies):
                *refs, report = remote.remote(self._listeners.in_worker(node, key), items, function, *args, **kwargs)
        self._reports[key], self._unfinished[report] = report, key
        self._makers[key] = key
        self._block(key, node)
        for made, ref in zip([key] if pieces is None else pieces, refs, strict=True):
            self._makers[made] = key
            self._keep(made, ref)
        self._listeners.submitted(node, key, self.results, refs[0])

    def _item(self, piece: Any) -> tuple[Any, Any]:
        take = self._graph.nodes[piece]
        return take.func, take.args[1]

    def _block(self, key: Any, node: Any) -> None:
        makers = {self._makers[dependency] for dependency in node.dependencies if dependency in self._makers}
        unfinished = [maker for maker in makers if maker in self._reports]
        if unfinished:
            self._blockers[key] = len(unfinished)
            for maker in unfinished:
                self._blocked[maker].append(key)
        else:
            self._runnable[self._reports[key]] = None

    def _keep(self, key: Any, result: Any) -> None:
        if key in self._graph.wanted or self._uses.get(key):
            self.results[key] = result

    def _let_go(self, dependency: Any) -> None:
        self._uses[dependency] -= 1
        if not self._uses[dependency] and dependency not in self._graph.wanted:
            self.results.pop(dependency, None)

    def _remote_function(self, key: Any, num_returns: int) -> Any:
        """Return the remote function with a key's options, named after the key's first part, which many keys share.

        After ``MOST_NAMES`` such functions, further ones are named "task".
        """
        name = key_split(key) if len(self._functions) < MOST_NAMES else "task"
        options = self._graph.options.get(key, {})
        described = name, num_returns, repr(options) if options else ""
        if described not in self._functions:
            self._functions[described] = dask_task.options(**{"name": f"dask:{name}", **options, "num_returns": num_returns})
        return self._functions[described]

    def _collect(self, reports: list[Any]) -> None:
        """Wait for some of these tasks, adapt the window, and mark tasks that waited for them as runnable."""
        half = (len(reports) + 1) // 2
        ready, _ = ray.wait(reports, num_returns=half, timeout=PATIENCE_S)
        if not self._fixed:
            grown = 2 * self._limit if len(ready) >= half else 2 * len(ready)
            self._limit = min(max(grown, self._least), AT_MOST)
        if not ready:
            ready, _ = ray.wait(reports)
        for report, pid in zip(ready, self._get_reports(ready), strict=True):
            self._finish(report, pid)

    def _get_reports(self, reports: list[Any]) -> list[int]:
        """Return the pids in these reports. Raises the failure of the first task in Dask's order, whose dependencies have
        not failed."""
        with contextlib.suppress(Exception):
            pids: list[int] = ray.get(reports)
            return pids
        return [self._value_of(self._unfinished[report], report) for report in reports]

    def _value_of(self, key: Any, ref: Any) -> Any:
        """Return the value of a key, or its task's report. An error is raised with the key that has failed, which may be
        that of a persisted value that this key needs."""
        with contextlib.suppress(Exception):
            return ray.get(ref)
        for persisted in self._persisted_for(key):
            if ray.wait([persisted.ref], timeout=0, fetch_local=False)[0]:
                value_of(persisted.task_key, persisted.ref)
        return value_of(key, ref)

    def _persisted_for(self, key: Any) -> Iterator[FutureKey]:
        """Yield the keys of the persisted values that a node needs, directly or through aliases."""
        for dependency in self._graph.nodes[key].dependencies:
            if isinstance(dependency, FutureKey):
                yield dependency
            elif type(self._graph.nodes[dependency]) is Alias:
                yield from self._persisted_for(dependency)

    def _finish(self, report: Any, pid: int) -> None:
        key = self._unfinished.pop(report)
        del self._reports[key]
        self._runnable.pop(report, None)
        for waiting in self._blocked.pop(key, ()):
            self._blockers[waiting] -= 1
            if not self._blockers[waiting] and waiting in self._reports:
                self._runnable[self._reports[waiting]] = None
        self._listeners.finished(key, pid)


def _narrowest(graph: Graph) -> int:
    """Return the smallest window. The cluster is not asked for a graph that fits into any window."""
    return PER_CPU if len(graph.order) <= PER_CPU else PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))


class _naming:
    """A context that adds a note with the key to any exception."""

    def __init__(self, key: Any, trouble: str) -> None:
        self._key, self._trouble = key, trouble

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, Exception):
            error.add_note(f"the Dask key {self._key!r} {self._trouble}")
