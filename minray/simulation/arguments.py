"""The arguments of a simulated run, checked before anything starts: the program, its result, the nodes and the faults.

A program is an ordinary function without arguments. Coroutines and generators would do nothing until somebody runs them, so
they are refused with the words that turn them into a program. A description of a node has some of the keys of
``NodeOptions``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minray.common.labels import check_labels
from minray.simulation.faults import LOUD, FaultPlan

DESCRIBED = {"num_cpus", "num_gpus", "memory", "object_store_memory", "resources", "labels"}
"""The keys that a description of a node may have."""
MAX_NODES = 1000
"""The largest number of nodes that a cluster begins with. A hundred take a second of real time; a thousand take half a
minute and 3 GB, since each node keeps a view of each other one. Tens of thousands exhaust the kernel's memory mappings, and
the interpreter crashes."""


def check_program(program: Callable[[], Any]) -> None:
    """Raise TypeError if a program is no ordinary function, and say what to give instead."""
    if not callable(program):
        raise TypeError(f"a program is a function without arguments, not {program!r}")
    name = getattr(program, "__name__", repr(program))
    if inspect.iscoroutinefunction(program):
        raise TypeError(f"a program is an ordinary function, but {name} is async; give lambda: asyncio.run({name}())")
    if inspect.isgeneratorfunction(program):
        raise TypeError(f"a program is an ordinary function, but {name} is a generator; give lambda: list({name}())")
    if inspect.isasyncgenfunction(program):
        raise TypeError(f"a program is an ordinary function, but {name} is an async generator; let a coroutine read it")


def check_result(result: Any) -> None:
    """Raise TypeError if the program returned a coroutine or a generator, which has yet to run."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the program returned a coroutine, which nobody has run; let it call asyncio.run")
    if inspect.isgenerator(result):
        result.close()
        raise TypeError("the program returned a generator, which nobody has read; let it return a list")
    if inspect.isasyncgen(result):
        raise TypeError("the program returned an async generator, which nobody has read; let it return a list")


def check_plan(plan: FaultPlan, is_drawn: bool) -> None:
    """Raise TypeError or ValueError for faults that are no plan, or that would never strike.

    ``is_drawn``: whether the plan draws the faults; otherwise overrides say which strike.
    """
    if not isinstance(plan, FaultPlan):
        raise TypeError(f"faults are a FaultPlan, or one of the words none, quiet and swarm, not {plan!r}")
    loud = [kind for kind, rate in plan.rates.items() if kind in LOUD and rate > 0]
    if loud and is_drawn and not plan.budget:
        raise ValueError(f"{' and '.join(loud)} would never strike: say how often at most, as in FaultPlan(..., budget=2)")


def node_descriptions(nodes: int | Sequence[Mapping[str, Any]], num_cpus: float = 2) -> Sequence[Mapping[str, Any]]:
    """Return a description of each node, the head first. Raises TypeError or ValueError for what is none."""
    how_many = len(nodes) if isinstance(nodes, Sequence) else nodes
    if isinstance(how_many, int) and how_many > MAX_NODES:
        raise ValueError(f"a simulated cluster begins with at most {MAX_NODES} nodes, not {how_many}")
    if isinstance(nodes, int) and not isinstance(nodes, bool):
        described: Sequence[Mapping[str, Any]] = [{"num_cpus": num_cpus}] * nodes
    elif isinstance(nodes, Sequence) and all(isinstance(node, Mapping) for node in nodes):
        described = nodes
    else:
        raise TypeError(f'nodes are a number, or a list of descriptions such as {{"num_cpus": 2}}, not {nodes!r}')
    unknown = sorted({str(key) for node in described for key in node} - DESCRIBED)
    if unknown:
        raise ValueError(f"a node has no {' and no '.join(unknown)}; it is described by {', '.join(sorted(DESCRIBED))}")
    if not described:
        raise ValueError(f"a cluster has at least one node, its head; nodes={nodes!r} has none")
    for node in described:
        _check_node(node)
    return described


def _check_node(node: Mapping[str, Any]) -> None:
    """Check resources and labels of a description. ``node_resources`` checks the amounts."""
    for name, example in (("resources", '{"disk": 1}'), ("labels", '{"zone": "a"}')):
        if not isinstance(node.get(name, {}), Mapping):
            raise TypeError(f"the {name} of a node are a mapping such as {example}, not {node[name]!r}")
    check_labels(node.get("labels", {}))
