"""``LocalCluster``: a cluster for a test, inside the test's process or in processes of its own, with a check for leaks.

Ray: python/ray/cluster_utils.py

    with LocalCluster(num_cpus=2):
        assert minray.get(f.remote(1)) == 2

The fixtures of the pytest plugin and ``LocalClusterTestCase`` are made of this class.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

from minray.api.calls import connected_api
from minray.cluster_utils import Cluster
from minray.common.config import LOCAL as LOCAL_TRANSPORT
from minray.common.shown import shown
from minray.node import init as driver
from minray.node.discovery import setting
from minray.testing import cluster_leaks, process_leaks
from minray.testing.cluster_leaks import ClusterState
from minray.testing.process_leaks import ProcessState

LOCAL, PROCESSES = "local", "processes"
WORLDS = (LOCAL, PROCESSES)
ERROR, WARN, OFF = "error", "warn", "off"
CHECKS = (ERROR, WARN, OFF)
CPUS = 4
"""CPUs of a node, unless a test says otherwise. They do not depend on the machine, so that a test behaves alike on all."""
OF_CONNECTION = {"namespace", "runtime_env", "log_to_driver", "logging_level", "ignore_reinit_error"}
"""Arguments of ``init`` that are about the driver. All others describe the node."""
NAMES_OF_NODE = {"_memory": "memory", "_node_name": "node_name"}
"""Arguments of ``init`` -> the names that ``Cluster.add_node`` has for them."""


class LeakError(AssertionError):
    """A test has left something that outlives it."""


class LeakWarning(UserWarning):
    """A test has left something that outlives it, and leaks are only warned of."""


class LocalCluster:
    """A cluster of one or several nodes, to which this process is connected between ``__enter__`` and ``__exit__``."""

    def __init__(
        self,
        nodes: int | Sequence[Mapping[str, Any]] = 1,
        *,
        world: str = LOCAL,
        leaks: str = ERROR,
        **arguments: Any,
    ) -> None:
        """Describe a cluster; ``__enter__`` starts it.

        ``nodes``: the number of nodes, or the arguments of ``Cluster.add_node`` for each, the head first. ``world``:
        ``"local"`` (inside this process) or ``"processes"``. ``leaks``: ``"error"`` (``__exit__`` raises LeakError),
        ``"warn"`` or ``"off"``. ``arguments``: those of ``minray.init``, such as ``num_cpus`` (4). Those about a node hold
        for every node that does not say otherwise. Raises ValueError for other worlds and checks, and for no nodes.
        """
        if world not in WORLDS:
            raise ValueError(f"world must be one of {', '.join(WORLDS)}, not {shown(world)}")
        if leaks not in CHECKS:
            raise ValueError(f"leaks must be one of {', '.join(CHECKS)}, not {shown(leaks)}")
        self.context: Any = None
        """Result of ``init``: a mapping with the cluster's addresses."""
        self.cluster: Cluster | None = None
        """The nodes, to which more can be added; None for a cluster that was described as one node."""
        self._world = world
        self._leaks = leaks
        self._arguments = arguments
        self._nodes = _described(nodes)
        self._is_alone = nodes == 1 and not isinstance(nodes, bool)
        self._processes_before: ProcessState | None = None
        self._before: ClusterState | None = None

    def __enter__(self) -> Self:
        self._processes_before = ProcessState.now() if self._leaks != OFF else None
        self.start()
        api = connected_api()
        if self._leaks != OFF and api is not None:
            self._before = ClusterState.of(api)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        checks = self._leaks != OFF and error is None
        try:
            lines = self.left() if checks else []
        finally:
            directories = self.stop()
        if checks and self._processes_before is not None:
            lines += process_leaks.left_since(self._processes_before, directories)
        report(lines, self._leaks)

    def start(self) -> None:
        """Start the nodes and connect this process. Raises RuntimeError if it is connected already."""
        if connected_api() is not None:
            raise RuntimeError("this process is connected to a cluster already; call minray.shutdown() first")
        of_driver = {name: value for name, value in self._arguments.items() if name in OF_CONNECTION}
        of_node = {name: value for name, value in self._arguments.items() if name not in OF_CONNECTION}
        of_driver.setdefault("logging_level", "WARNING")
        config = {"transport": self._transport(), **(of_node.pop("_system_config", None) or {})}
        if self._is_alone:
            of_node.setdefault("num_cpus", CPUS)
            self.context = driver.init(address="local", _system_config=config, **of_node, **of_driver)
            return
        of_node = {NAMES_OF_NODE.get(name, name): value for name, value in of_node.items()}
        self.cluster = Cluster()
        try:
            for index, node in enumerate(self._nodes):
                of_head = {"_system_config": config} if index == 0 else {}
                self.cluster.add_node(**{**of_head, **of_node, **node})
            self.context = driver.init(address=self.cluster.address, **of_driver)
        except BaseException:
            self.cluster.shutdown()
            raise

    def _transport(self) -> str:
        """Return the transport of the nodes. For processes the environment chooses it, unless it chooses this process."""
        if self._world == LOCAL:
            return LOCAL_TRANSPORT
        named = setting("TRANSPORT") or "stream"
        return "stream" if named == LOCAL_TRANSPORT else named

    def left(self) -> list[str]:
        """Return a line for each actor, placement group, task and reference that came since the start and would stay."""
        api = connected_api()
        if self._before is None or api is None:
            return []
        return [leak.line for leak in cluster_leaks.left_since(self._before, api)]

    def stop(self) -> list[str]:
        """Disconnect this process and end the nodes. Returns the directories of their sessions. May be called again."""
        context, self.context = self.context, None
        nodes = self.cluster.list_all_nodes() if self.cluster is not None else []
        directories = {node.session_dir for node in nodes} | ({context["session_dir"]} if context else set())
        driver.shutdown()
        if self.cluster is not None:
            if self._world == LOCAL and self.cluster.head_node is not None:
                self.cluster.head_node.close()  # All nodes end with it, and its gcs reports no death of a node.
            self.cluster.shutdown()
            self.cluster = None
        return sorted(filter(os.path.isdir, directories))


def _described(nodes: int | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if isinstance(nodes, bool) or not isinstance(nodes, int | Sequence) or isinstance(nodes, str | bytes):
        raise TypeError(f'nodes are a number, or a list of arguments such as {{"num_cpus": 2}}, not {shown(nodes)}')
    described = [{}] * nodes if isinstance(nodes, int) else list(nodes)
    if not described:
        raise ValueError(f"a cluster has at least one node, its head; got nodes={nodes!r}")
    if not all(isinstance(node, Mapping) for node in described):
        raise TypeError(f'a node is a dict of arguments such as {{"num_cpus": 2}}, not one of {shown(nodes)}')
    return described


def report(lines: Sequence[str], check: str) -> None:
    """Raise LeakError, or warn with LeakWarning, if lines say that something was left."""
    if not lines or check == OFF:
        return
    text = "left by the test:\n" + "\n".join(f"  {line}" for line in lines)
    if check == ERROR:
        raise LeakError(text)
    warnings.warn(text, LeakWarning, stacklevel=2)
