"""The house rules as functions: each takes the root of a checkout and returns its complaints, one line each.

The tables come first; they are the rules, and docs/architecture.md explains them. An exception needs a reason, and one
that nothing uses any more is a complaint itself.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from tests.tidy import english

GROUND = {"common", "protocol", "platform.base", "errors", "exceptions", "cloudpickle", "values"}
"""Rooms whose words every process uses. None of them knows a process."""
BELOW_PROCESSES = GROUND | {"rpc", "policies", "scheduling", "object_store", "object_manager"}
PORCH = {
    "actor", "remote_function", "runtime_context", "logging_config", "runtime_env", "internal", "experimental", "types",
    "_version", "__init__",
}  # fmt: skip
"""Names that a user of Ray imports."""
BEHIND_THE_PORCH = GROUND | {
    "core_worker.user_threads", "core_worker.records", "core_worker.introspection", "observability",
}  # fmt: skip
"""How the porch reaches its process: through the port for user threads, its records, and what can be asked of it."""
COMPOSE = {
    "__main__", "cli", "dashboard", "simulation", "in_process", "testing", "cluster_utils", "node", "in_rays_place",
    "laboratory", "run_as_ray", "remote_client", "client_builder",
    "__init__",
}  # fmt: skip
"""Rooms that put processes together."""
EVERYTHING = None

CORE_WORKER = ["ground", "records", "ownership", "fetching", "submission", "execution", "introspection", "user_threads"]
"""The rooms of ``core_worker/``. Each may import those before it, but for ``APART``."""
APART = {("core_worker.execution", "core_worker.submission"), ("core_worker.user_threads", "core_worker.introspection")}
"""(room, room): the first does not import the second."""


def _rooms_of_core_worker() -> dict[str, set[str]]:
    rooms = [f"core_worker.{name}" for name in CORE_WORKER]
    table = {"core_worker": BELOW_PROCESSES | set(rooms)}
    for index, room in enumerate(rooms):
        table[room] = BELOW_PROCESSES | {other for other in rooms[:index] if (room, other) not in APART}
    return table


MAY_IMPORT: dict[str, set[str] | None] = {
    **dict.fromkeys(COMPOSE, EVERYTHING),
    # what a user types, and what stands behind it
    **dict.fromkeys(PORCH - {"__init__", "_version"}, PORCH | BEHIND_THE_PORCH | {"api"}),
    "util": PORCH | BEHIND_THE_PORCH | {"api", "util"},
    "api": BEHIND_THE_PORCH,
    "observability": GROUND | {"rpc", "_version"},
    "_version": set(),
    # one room per kind of process; they talk by messages alone, even when they share a process
    "gcs": BELOW_PROCESSES | {"_version"},
    "raylet": BELOW_PROCESSES,
    **_rooms_of_core_worker(),
    "object_manager": {"object_store", "policies", "rpc", "protocol", "platform.base", "common"},
    "object_store": {"policies", "rpc", "protocol", "platform.base", "common"},
    "scheduling": {"policies", "common"},
    "policies": {"platform.base", "common"},
    "rpc": {"protocol", "platform.base", "common"},
    # the ground
    "values": {"errors", "exceptions", "cloudpickle", "common"},
    "exceptions": {"errors", "common"},
    "errors": {"cloudpickle", "common"},
    "cloudpickle": set(),
    "protocol": {"common"},
    "platform.base": {"common"},
    "common": set(),
    # the real side of the seam, imported by what composes alone
    "platform": {"platform.base", "common"},
}
"""Room -> the rooms it may import, besides itself. Imports for type checkers count: they are arrows too."""

BANNED = {
    "open", "os.open", "os.urandom", "os.fork", "random", "secrets", "socket", "subprocess", "threading.Thread",
    "time.monotonic", "time.perf_counter", "time.sleep", "time.time", "time.time_ns", "uuid",
    "cloudpickle", "sys._current_frames",
}  # fmt: skip
"""Outside minray/platform/ nobody uses these: what reaches past the seam, cloudpickle, which forgets files, and
``sys._current_frames``, with which a caller keeps values alive."""

EXCEPTIONS = {
    ("minray/cloudpickle.py", "cloudpickle"): "the others come here, so that functions keep the name of their file",
    ("minray/in_process/definitions.py", "cloudpickle"): "changes how the package reduces functions",
    ("minray/common/thread_frames.py", "sys._current_frames"): "the others come here",
    ("minray/common/ids.py", "os.urandom"): "`from_random` is part of Ray's API for users; protocol code asks its host",
    ("minray/common/clock.py", "time.monotonic"): "kept for minray/platform/ before user code can replace it",
    ("minray/values/object_ref.py", "os.urandom"): "`from_random`, as above",
    ("minray/util/crew.py", "threading.Thread"): "an executor hands out work while its callers do something else",
    ("minray/util/multiprocessing/pool.py", "threading.Thread"): "`imap` reads an iterable that may block",
    ("minray/cli/block.py", "time.monotonic"): "a command waits for a node, without a loop",
    ("minray/cli/drain.py", "time.monotonic"): "a command waits for a node, without a loop",
    ("minray/cli/drain.py", "time.sleep"): "a command waits for a node, without a loop",
    ("minray/cli/stop.py", "time.monotonic"): "a command waits for processes, without a loop",
    ("minray/cli/stop.py", "time.sleep"): "a command waits for processes, without a loop",
    ("minray/in_rays_place/names/_common/test_utils.py", "subprocess"): "runs a test's program, as in Ray",
    ("minray/in_rays_place/names/_common/test_utils.py", "time.monotonic"): "a test waits in its own thread, as in Ray",
    ("minray/in_rays_place/names/_common/test_utils.py", "time.sleep"): "a test waits in its own thread, as in Ray",
    ("minray/in_rays_place/names/_private/test_utils.py", "time.monotonic"): "a test waits in its own thread, as in Ray",
    ("minray/in_rays_place/names/_private/test_utils.py", "time.sleep"): "a test waits in its own thread, as in Ray",
    ("minray/cluster_utils.py", "time.monotonic"): "the caller's thread waits for nodes, as in Ray",
    ("minray/cluster_utils.py", "time.sleep"): "the caller's thread waits for nodes, as in Ray",
    ("minray/cli/microbenchmark.py", "time.perf_counter"): "a program like a user's, which measures how long its calls take",
    ("minray/testing/pending.py", "threading.Thread"): "the cluster that is asked may be what is broken",
    ("minray/testing/process_leaks.py", "open"): "reads the pids of the children of the test's process",
    ("minray/testing/process_leaks.py", "threading.Thread"): "names threads, and starts none",
    ("minray/laboratory/calibration.py", "time.perf_counter"): "measures the machine, without a loop",
    ("minray/laboratory/program.py", "time.sleep"): "tasks like a user's, which sleep for as long as they are busy",
    ("minray/laboratory/program.py", "time.time"): "a program like a user's, which notes when its tasks run",
    ("minray/node/cluster_client.py", "secrets"): "names an incarnation before there is a platform",
    ("minray/remote_client/connect.py", "secrets"): "names an incarnation before there is a platform",
    ("minray/node/driver_connection.py", "secrets"): "names an incarnation before there is a platform",
    ("minray/node/node.py", "secrets"): "names an incarnation before there is a platform",
    ("minray/node/raylet_restart.py", "time.monotonic"): "the caller's thread waits for a raylet, without a loop",
    ("minray/node/raylet_restart.py", "time.sleep"): "the caller's thread waits for a raylet, without a loop",
    ("minray/in_process/interpreter.py", "subprocess"): "runs what a worker gives to os.system",
    ("minray/in_process/interpreter.py", "threading.Thread"): "replaces what a worker's code calls",
    ("minray/in_process/process.py", "threading.Thread"): "names the threads of a worker's code",
    ("minray/in_process/supervisor.py", "subprocess"): "raises its exception, as a process would",
    ("minray/in_process/supervisor.py", "time.sleep"): "the caller's thread waits for a process, without a loop",
    ("minray/in_process/user_code.py", "threading.Thread"): "names the threads of a worker's code",
    ("minray/in_process/user_code.py", "time.sleep"): "keeps the function that it replaces",
    ("minray/in_process/worker_thread.py", "threading.Thread"): "is the main thread of a worker",
    ("minray/node/discovery.py", "secrets"): "makes tokens and names of sessions",
    ("minray/node/discovery.py", "time.time"): "names sessions in the order of their starts",
    ("minray/node/discovery.py", "os.open"): "writes tokens that nobody else may read",
}
"""(path, banned name) -> why this file may."""

IMPORTED_BY = {
    "aiohttp": ("minray/dashboard/", "only clusters with a dashboard have it"),
    "dask": ("minray/util/dask/", "only programs that use Dask have it"),
    "debugpy": ("minray/node/ide_debugger.py", "only drivers that an editor debugs have it"),
    "pydevd": ("minray/node/ide_debugger.py", "debugpy brings it"),
    "grpc": ("minray/platform/transport/grpc_", "only clusters whose transport it is have it"),
    "joblib": ("minray/util/joblib.py", "only programs that use joblib have it"),
    "js": ("minray/simulation/browser/", "only a browser has it"),
    "prometheus_client": ("minray/observability/prometheus_exposition.py", "only servers of metrics have it"),
    "pyodide": ("minray/simulation/browser/", "only a browser has it"),
    "pytest": ("minray/testing/", "only a run of pytest loads its plugins"),
}
"""Library of an extra -> the beginning of the paths that may import it, and why no others may."""

WITHOUT_COUNTERPART = {"simulation": "Ray has no simulated world"}
"""Rooms whose headers need no ``Ray:`` line."""

FOR_USERS = {"cluster_utils", "policies", "testing", "util", "in_rays_place"}
"""Rooms whose files users import, so that nothing in minray has to."""

VIRTUAL_TIME = (
    "tests/policies/test_heft.py",
    "tests/policies/test_simulated.py",
    "tests/testing/test_faults.py",
    "tests/testing/test_strikes.py",
)
"""Test files whose programs sleep in the simulation only."""

HEADER_LINES = 5
FILE_CODE_LINES = 450
FUNCTION_CODE_LINES = 50

POSITIONAL_FIELDS = 4
"""Most fields of a record that a call may give by position: nobody knows the fifth by heart."""
POSITIONAL_ON_THE_HOT_PATH = {
    "minray/core_worker/execution/task_errors.py:Execution",
    "minray/core_worker/execution/task_executor.py:Execution",
    "minray/core_worker/execution/task_intake.py:Execution",
    "minray/core_worker/execution/task_intake.py:PushTaskReply",
    "minray/core_worker/fetching/results.py:StoredObject",
    "minray/core_worker/records/received_task.py:ReceivedTask",
    "minray/core_worker/records/values.py:StoredObject",
    "minray/core_worker/records/values.py:Value",
    "minray/core_worker/submission/actor_manager.py:PushActorTask",
    "minray/core_worker/submission/dependency_resolver.py:Value",
    "minray/core_worker/submission/lease_client.py:PushTask",
    "minray/core_worker/user_threads/user_api.py:PendingTask",
    "minray/core_worker/user_threads/user_api.py:StoredObject",
    "minray/platform/transport/grpc_server.py:GrpcIncoming",
    "minray/platform/transport/stream_connection.py:StreamIncoming",
    "minray/rpc/connection.py:_Call",
    "minray/platform/transport/queued_channel.py:Message",
}
"""Records that are made for each task, value or message. A keyword costs 3 to 5 ns, and a task makes about ten records of
six to twelve fields: 0.3 us of the 18 us that a task takes."""

CORE_PATH_PAGE = "docs/reading_order.md"
CORE_PATH_CODE_LINES = 11_000
"""Lines of code that a reader of all chapters reads: about a week, at 2,000 lines a day."""
CHAPTER_CODE_LINES = 1_500
"""Lines of code in which one mechanism is explained whole."""
CORE_FILE_CODE_LINES = 300
CORE_FUNCTION_CODE_LINES = 50

SHAPELESS: dict[str, str] = {}
"""Test file -> why it may have a ``SimpleNamespace``. What is minray's own never needs one: a record can be made, a port be
played by a class with a name."""

LARGE_ON_THE_CORE_PATH: dict[str, str] = {}
"""A path, or a path and a function -> why it is larger than the core path allows."""

NOT_SAID_HERE = ["../" + "shared", "/." + "library", "/work" + "/", "before-" + "stop"]
"""The repository speaks of itself alone, and of no machine."""


@dataclass(frozen=True)
class Source:
    """One Python file of a checkout."""

    root: Path
    path: str
    """Relative to the root, with slashes."""

    @cached_property
    def text(self) -> str:
        return (self.root / self.path).read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        parts = self.path.removesuffix(".py").split("/")[1:]
        if parts[0] == "platform" and parts[1] in ("base", "__init__"):
            return "platform.base"
        if parts[0] == "core_worker" and len(parts) > 2:
            return f"core_worker.{parts[1]}"
        return parts[0]

    @cached_property
    def code_lines(self) -> set[int]:
        """The numbers of the lines that are neither blank nor comment nor docstring."""
        quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in quiet:
                lines |= set(range(token.start[0], token.end[0] + 1))
        for node in self.nodes:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return lines

    @cached_property
    def imports(self) -> list[tuple[int, str, str]]:
        """(line, dotted name, name it is bound to) of every import anywhere in the file; relative ones made absolute."""
        found = []
        package = self.module if self.path.endswith("__init__.py") else self.module.rpartition(".")[0]
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(node.lineno, alias.name, alias.asname or alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                found += [(node.lineno, f"{base}.{alias.name}", alias.asname or alias.name) for alias in node.names]
        return found


def sources(root: Path, folder: str = "minray") -> list[Source]:
    return [_source(root, path) for path in sorted((root / folder).rglob("*.py"))]


def _source(root: Path, path: Path) -> Source:
    return _as_it_was(root, path.relative_to(root).as_posix(), path.stat().st_mtime_ns)


@cache
def _as_it_was(root: Path, path: str, _modified_ns: int) -> Source:
    """One file as it was at a time, so that each is parsed once for all rules."""
    return Source(root, path)


def imports_of_ours(source: Source, modules: dict[str, Source]) -> Iterator[tuple[int, Source]]:
    for line, name, _ in source.imports:
        while name not in modules and "." in name:
            name = name.rpartition(".")[0]
        if name in modules and modules[name].path != source.path:
            yield line, modules[name]


def import_arrows(root: Path) -> list[str]:
    """Rooms import only what the table allows, and every room is in the table."""
    modules = {source.module: source for source in sources(root)}
    complaints = []
    for source in modules.values():
        if source.room not in MAY_IMPORT:
            complaints.append(f"{source.path}: the room {source.room} has no line in the table of arrows")
            continue
        allowed = MAY_IMPORT[source.room]
        for line, target in imports_of_ours(source, modules):
            if allowed is not EVERYTHING and target.room not in allowed | {source.room}:
                complaints.append(f"{source.path}:{line}: {source.room} may not import {target.room}")
    return complaints


def import_circles(root: Path) -> list[str]:
    """No file needs itself, by whatever way: neither inside a room nor between rooms. Imports for type checkers count."""
    modules = {source.module: source for source in sources(root)}
    arrows = {source.path: {target.path for _, target in imports_of_ours(source, modules)} for source in modules.values()}
    return [f"a circle of imports: {', '.join(circle)}" for circle in _circles(arrows)]


def _circles(arrows: dict[str, set[str]]) -> Iterator[list[str]]:
    """The groups of files of which each reaches all others (Kosaraju: once along the arrows, once against them)."""

    def walk(start: str, along: dict[str, set[str]], seen: set[str]) -> list[str]:
        """All that is reached, in the order in which it is left."""
        left, stack = [], [(start, iter(sorted(along[start])))]
        seen.add(start)
        while stack:
            place, ways = stack[-1]
            onward = next((way for way in ways if way not in seen), None)
            if onward is None:
                left.append(stack.pop()[0])
            else:
                seen.add(onward)
                stack.append((onward, iter(sorted(along[onward]))))
            del place
        return left

    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(arrows):
        if start not in seen:
            order += walk(start, arrows, seen)
    backwards: dict[str, set[str]] = {path: set() for path in arrows}
    for path, targets in arrows.items():
        for target in targets:
            backwards[target].add(path)
    seen = set()
    for start in reversed(order):
        if start not in seen:
            group = walk(start, backwards, seen)
            if len(group) > 1:
                yield sorted(group)


def banned_calls(root: Path, exceptions: dict[tuple[str, str], str] | None = None) -> list[str]:
    """The outside world is reached through the seam, but for the exceptions, all of which are needed."""
    exceptions = EXCEPTIONS if exceptions is None else exceptions
    complaints, used = [], set()
    for source in sources(root):
        if source.path.startswith("minray/platform/"):
            continue
        for line, name in _banned_uses(source):
            used.add((source.path, name))
            if (source.path, name) not in exceptions:
                complaints.append(f"{source.path}:{line}: {name}")
    return complaints + [f"{path}: does not use {name} any more" for path, name in sorted(exceptions.keys() - used)]


def _banned_uses(source: Source) -> Iterator[tuple[int, str]]:
    bound = {}
    for line, name, alias in source.imports:
        bound[alias] = name
        for banned in BANNED:
            if name == banned or name.startswith(f"{banned}."):
                yield line, banned
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = f"{bound.get(node.value.id, '')}.{node.attr}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == "open":
            used = bound.get("open", "open")
        else:
            continue
        if used in BANNED:
            yield node.lineno, used


def libraries_of_extras(root: Path) -> list[str]:
    """A library that minray does not require is imported only by the files that are made for it, all of which are there."""
    users = {(library, source.path) for source in sources(root) for library in _libraries(source) & IMPORTED_BY.keys()}
    complaints = [
        f"{path}: may not import {library}, for {IMPORTED_BY[library][1]}"
        for library, path in sorted(users)
        if not path.startswith(IMPORTED_BY[library][0])
    ]
    unused = IMPORTED_BY.keys() - {library for library, _ in users}
    return complaints + [f"nothing imports {library} any more" for library in sorted(unused)]


def _libraries(source: Source) -> set[str]:
    return {name.partition(".")[0] for _, name, _ in source.imports}


def headers(root: Path) -> list[str]:
    """Every file says what it is before the code, and what it is called in Ray."""
    complaints = []
    for source in sources(root):
        header = ast.get_docstring(source.tree) or ""
        if source.path.endswith("__init__.py") and not source.code_lines:
            continue
        if len(header.splitlines()) < HEADER_LINES:
            complaints.append(f"{source.path}: a header of at least {HEADER_LINES} lines")
        if "Ray:" not in header and source.room not in WITHOUT_COUNTERPART:
            complaints.append(f"{source.path}: the header does not name the counterpart (`Ray: ...`)")
    return complaints


def sizes(root: Path) -> list[str]:
    """No file and no function grows far beyond its neighbours; explanations are free."""
    complaints = []
    for source in sources(root):
        if len(source.code_lines) > FILE_CODE_LINES:
            complaints.append(f"{source.path}: {len(source.code_lines)} lines of code")
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = len(source.code_lines & set(range(node.lineno, (node.end_lineno or 0) + 1)))
                if length > FUNCTION_CODE_LINES:
                    complaints.append(f"{source.path}:{node.lineno}: {node.name} has {length} lines of code")
    return complaints


def class_names(root: Path) -> list[str]:
    """One class name is one class: a reader who searches for it finds it."""
    places: dict[str, list[str]] = {}
    for source in sources(root):
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(source.path)
    return [f"{name}: {', '.join(sorted(paths))}" for name, paths in sorted(places.items()) if len(set(paths)) > 1]


def positional_fields(root: Path, exceptions: set[str] | None = None) -> list[str]:
    """A record's fifth field and those after it are given by keyword, except on the hot path."""
    exceptions = POSITIONAL_ON_THE_HOT_PATH if exceptions is None else exceptions
    modules, complaints, used = sources(root), [], set()
    records = _records(modules)
    for source in modules:
        for node in source.nodes:
            if isinstance(node, ast.Call) and len(node.args) > POSITIONAL_FIELDS:
                name = ast.unparse(node.func).rpartition(".")[2]
                if name in records:
                    used.add(f"{source.path}:{name}")
                    if f"{source.path}:{name}" not in exceptions:
                        complaints.append(f"{source.path}:{node.lineno}: {name} with {len(node.args)} fields by position")
    return complaints + [f"{name}: gives no such fields by position any more" for name in sorted(exceptions - used)]


def _records(modules: list[Source]) -> set[str]:
    """Names of the classes that only hold fields: structs, messages, dataclasses and named tuples."""
    bases: dict[str, set[str]] = {}
    for source in modules:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                above = [*node.bases, *node.decorator_list]
                bases[node.name] = {re.sub(r"[\[(].*", "", ast.unparse(one)).rpartition(".")[2] for one in above}
    records = {"Struct", "NamedTuple", "dataclass"}
    while more := {name for name, above in bases.items() if above & records} - records:
        records |= more
    return records


def dead_files(root: Path) -> list[str]:
    """Every file is imported by another, or named (as a role or an entry point), or made for users."""
    modules = {source.module: source for source in sources(root)}
    alive = {target.path for source in modules.values() for _, target in imports_of_ours(source, modules)}
    named = (root / "setup.cfg").read_text() if (root / "setup.cfg").exists() else ""
    for source in modules.values():
        for node in source.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named += f" {node.value} "
    return [
        f"{source.path}: nothing imports it"
        for source in modules.values()
        if source.path not in alive
        and source.room not in FOR_USERS
        and not source.path.endswith(("__init__.py", "__main__.py"))
        and not re.search(rf"(?<![\w.]){re.escape(source.module)}(?![\w.])", named)
    ]


def sleeping_tests(root: Path) -> list[str]:
    """Tests wait for conditions (tests/helpers.py), never for time to pass, unless that time is virtual.

    In ``tests/in_process`` tasks sleep, and the tests end these sleeps.
    """
    complaints = []
    for source in sources(root, "tests"):
        if source.path.startswith(("tests/simulation/", "tests/spec/", "tests/zoo/", "tests/in_process/", *VIRTUAL_TIME)):
            continue
        bound = {alias: name for _, name, alias in source.imports}
        for node in source.nodes:
            if isinstance(node, ast.Call):
                head, _, rest = ast.unparse(node.func).partition(".")
                called = ".".join(filter(None, [bound.get(head, head), rest]))
                if called in ("time.sleep", "asyncio.sleep"):
                    complaints.append(f"{source.path}:{node.lineno}: {called}")
    return complaints


def shapeless_fakes(root: Path, exceptions: dict[str, str] | None = None) -> list[str]:
    """No test has a ``SimpleNamespace``, which stays as it is when the class that it stands for changes."""
    exceptions = SHAPELESS if exceptions is None else exceptions
    complaints, used = [], set()
    for source in sources(root, "tests"):
        lines = [line for line, name, _ in source.imports if name.endswith("SimpleNamespace")]
        for node in source.nodes:
            if isinstance(node, ast.Attribute) and node.attr == "SimpleNamespace":
                lines.append(node.lineno)
        if lines and source.path in exceptions:
            used.add(source.path)
        else:
            complaints += [f"{source.path}:{line}: SimpleNamespace" for line in lines]
    return complaints + [f"{path}: has no SimpleNamespace any more" for path in sorted(exceptions.keys() - used)]


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """(path, text) of everything that a reader of the repository sees."""
    folders = [root / name for name in ("minray", "tests", "docs", "examples", "benchmarks", "labs", ".ci", ".github")]
    top = [path for path in root.iterdir() if path.is_file() and path.name != ".git"]
    for path in sorted([*top, *(path for folder in folders for path in folder.rglob("*") if path.is_file())]):
        if "__pycache__" in path.parts or "_build" in path.parts:
            continue
        try:
            yield path.relative_to(root).as_posix(), path.read_text()
        except UnicodeDecodeError:
            continue


def unwanted_words(root: Path) -> list[str]:
    """The repository speaks of itself alone."""
    return [
        f"{path}:{number}: {word}"
        for path, text in texts(root)
        for number, line in enumerate(text.splitlines(), 1)
        for word in NOT_SAID_HERE
        if word in line
    ]


def plain_english(root: Path) -> list[str]:
    """Docstrings, comments and pages name their objects, call a process "it", and have short sentences."""
    folders = [root / name for name in ("minray", "tests", "benchmarks", "examples", "labs", "docs/building")]
    files = [*root.glob("*.md"), *_documents(root)]
    files += [path for folder in folders for pattern in ("*.py", "*.md") for path in folder.rglob(pattern)]
    found = []
    for source in (_source(root, path) for path in sorted(files)):
        tree = source.tree if source.path.endswith(".py") else None
        found += [f"{source.path}:{line}: {what}" for line, what in english.complaints(source.text, tree)]
    return found


def missing_paths(root: Path) -> list[str]:
    """Every file that a page at the root, in docs/ or in .github/ mentions or links is there; NAME stands for any."""
    mention = re.compile(r"(?<![\w/.])(?:minray|tests|examples|benchmarks|docs|\.github)/[\w/.-]+\.(?:py|md|json|yml)\b")
    link = re.compile(r"\]\(([\w/.-]+)[)#]")
    complaints = []
    for page in _pages(root):
        text = page.read_text()
        paths = {path: root / path for path in mention.findall(text) if "NAME" not in path}
        paths |= {path: page.parent / path for path in link.findall(text)}
        missing = sorted(path for path in paths if not paths[path].exists())
        complaints += [f"{page.relative_to(root)}: {path} does not exist" for path in missing]
    return complaints


def missing_commands(root: Path) -> list[str]:
    """Every ``make`` target, and every module that ``python -m`` starts, which a page or a workflow mentions is there."""
    makefile = root / "Makefile"
    targets = set(re.findall(r"^([a-z-]+):", makefile.read_text(), re.M)) if makefile.exists() else set()
    mentions = [
        (page, f"make {target}", target in targets)
        for page in _pages(root)
        for target in re.findall(r"(?:`|run: |^ {4}|^)make ([a-z-]+)", page.read_text(), re.M)
    ]
    for page in _pages(root):
        for module in re.findall(r"python -m ((?:minray|tests|benchmarks)[\w.]*)", page.read_text()):
            path = root / module.replace(".", "/")
            mentions.append((page, f"python -m {module}", path.is_dir() or path.with_suffix(".py").exists()))
    return sorted({f"{page.relative_to(root)}: {what} does not exist" for page, what, exists in mentions if not exists})


def _pages(root: Path) -> list[Path]:
    """The pages at the root and in docs/, and the forms and workflows of .github/."""
    pages = [*root.glob("*.md"), *_documents(root), *(root / ".github").rglob("*.md")]
    return sorted([*pages, *(root / ".github").rglob("*.yml")])


def _documents(root: Path) -> list[Path]:
    """The pages of docs/, without what is built there."""
    return [path for path in (root / "docs").rglob("*.md") if "_build" not in path.parts]


@dataclass(frozen=True)
class Chapter:
    """A chapter of the reading order, with the files that it names, in its order."""

    title: str
    files: list[Source]

    @property
    def code_lines(self) -> int:
        return sum(len(source.code_lines) for source in self.files)


def chapters(root: Path) -> list[Chapter]:
    """The chapters of the reading order. A file belongs to the first chapter that names it."""
    found: list[Chapter] = []
    seen: set[str] = set()
    for part in re.split(r"^## ", (root / CORE_PATH_PAGE).read_text(), flags=re.MULTILINE):
        paths = [path for path in dict.fromkeys(re.findall(r"minray/[\w/]+\.py\b", part)) if (root / path).exists()]
        found.append(Chapter(part.partition("\n")[0], [_source(root, root / path) for path in paths if path not in seen]))
        seen |= set(paths)
    return [chapter for chapter in found if chapter.files]


def core_path(root: Path, exceptions: dict[str, str] | None = None) -> list[str]:
    """The files of docs/reading_order.md stay small enough to be read: in total, by chapter, by file, by function."""
    exceptions = LARGE_ON_THE_CORE_PATH if exceptions is None else exceptions
    complaints, used = [], set()
    total = sum(chapter.code_lines for chapter in chapters(root))
    if total > CORE_PATH_CODE_LINES:
        complaints.append(f"{CORE_PATH_PAGE}: {total} lines of code, of {CORE_PATH_CODE_LINES}")
    for chapter in chapters(root):
        if chapter.code_lines > CHAPTER_CODE_LINES:
            complaints.append(f"{CORE_PATH_PAGE}: {chapter.title!r} has {chapter.code_lines} lines of code")
        for source in chapter.files:
            for name, length in _too_large(source):
                used.add(name)
                if name not in exceptions:
                    complaints.append(f"{name}: {length} lines of code on the core path")
    return complaints + [f"{name}: is not too large any more" for name in sorted(exceptions.keys() - used)]


def _too_large(source: Source) -> Iterator[tuple[str, int]]:
    """The file, and each of its functions, that the core path does not allow, with its lines of code."""
    if len(source.code_lines) > CORE_FILE_CODE_LINES:
        yield source.path, len(source.code_lines)
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = len(source.code_lines & set(range(node.lineno, (node.end_lineno or 0) + 1)))
            if length > CORE_FUNCTION_CODE_LINES:
                yield f"{source.path}:{node.name}", length
