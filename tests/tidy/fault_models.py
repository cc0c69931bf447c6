"""Where each guarantee is tested, and what goes wrong there: read off the sources of its tests.

A test is *alone* (parts of minray by themselves), in the *simulation* or in *real* processes, by the folder it lies in. What
goes wrong is what its function says, or the functions and constants of its module that it mentions: kinds of
``minray.simulation.faults``, helpers that aim at a message, signals.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from minray.simulation.faults import KINDS
from tests.tidy.rules import Source

WORDS = {
    r"kill_sender\(": "crash",
    r"cluster\.kill\(": "crash",
    r"\.(?:raylet|worker_of|actor|process|owner_of_actor|of|gcs|sender)\b(?:\(.*\))?\.kill\(": "crash",
    r"break_channels\(": "break",
    r"replay_requests\(|\.replay\(": "duplicate",
    r"lose_node\(|\.node(?:_of_actor)?\([^()]*\)\.(?:lose|kill_raylet)\(": "node_loss",
    r"wire\.cut\(|\b(?:cluster|now|after\(.*\))\.partition\(|\.isolate\(": "cut",
    r"start_gcs\(|\.gcs\.(?:re)?start\(": "restart of the gcs",
    r"FaultPlan\.quiet\(": "all quiet ones",
    r"FaultPlan\.swarm\(": "a swarm",
    r"SIGKILL": "kill -9",
    r"remove_node\(": "kill -9",
    r"SIGSTOP": "stop",
    r"os\._exit\(": "exit",
}
"""Pattern of what stands in a test -> what goes wrong."""
WORLDS = {"simulation": "simulation", "spec": "simulation", "real": "real", "cluster": "real", "debugging": "real"}
"""By folder; others are alone."""


def worlds(source: Source) -> Iterator[tuple[str, str, set[str]]]:
    """Yield (name, world, faults) for each test of a file."""
    folder = source.path.split("/")[1]
    parts = _parts(source.tree, source.text)
    for name in parts:
        if name.startswith("test_"):
            yield name, WORLDS.get(folder, "alone"), _faults(_with_what_it_mentions(name, parts))


def _parts(module: ast.Module, text: str) -> dict[str, str]:
    """The functions, classes and constants of a module, with their sources and decorators."""
    lines = text.splitlines()
    parts: dict[str, str] = {}
    for node in module.body:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            parts[node.name] = source
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts |= {target.id: source for target in targets if isinstance(target, ast.Name)}
    return parts


def _with_what_it_mentions(name: str, parts: dict[str, str]) -> str:
    found, new = {name}, [name]
    while new:
        mentioned = set(re.findall(r"\w+", parts[new.pop()])) & parts.keys() - found
        mentioned = {each for each in mentioned if not each.startswith("test_")}
        found |= mentioned
        new += mentioned
    return "\n".join(parts[each] for each in found)


def _faults(source: str) -> set[str]:
    return {kind for kind in re.findall(r'"(\w+)": ', source) if kind in KINDS} | {
        what for pattern, what in WORDS.items() if re.search(pattern, source)
    }


def described(found: list[tuple[str, set[str]]]) -> str:
    """The cell of a guarantee whose tests have these worlds and faults."""
    cells = []
    for world in ("alone", "simulation", "real"):
        faults = [faults for where, faults in found if where == world]
        if faults:
            named = ", ".join(sorted(set().union(*faults)))
            cells.append(f"{world}: {named}" if named else world)
    return "; ".join(cells)
