"""Tidiness is a test: the rules of rules.py hold in this checkout, and each of them can fail."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy import method_names, rules

ROOT = Path(__file__).resolve().parents[2]
RULES = [
    rules.import_arrows, rules.import_circles, rules.banned_calls, rules.libraries_of_extras, rules.headers, rules.sizes,
    rules.dead_files, rules.sleeping_tests, rules.shapeless_fakes, rules.unwanted_words, rules.missing_paths,
    rules.missing_commands, rules.core_path, rules.plain_english, rules.class_names, rules.positional_fields,
    method_names.method_names,
]  # fmt: skip
HEADER = '"""What it is.\n\nRay: src/ray/x.h\n\nRule.\nRule.\n"""\n'


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_checkout_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    complaints = rule(ROOT)
    assert not complaints, f"{rule.__doc__}\n" + "\n".join(complaints)


def test_the_pictures_are_what_their_script_draws() -> None:
    folder = ROOT / "docs/pictures"
    drawn = {name: draw() for name, draw in runpy.run_path(str(folder / "draw.py"))["PICTURES"].items()}
    assert drawn == {path.name: path.read_text() for path in folder.glob("*.svg")}, "run docs/pictures/draw.py"


def test_there_is_something_to_check() -> None:
    assert len(rules.sources(ROOT)) > 10
    reasons = [*rules.EXCEPTIONS.values(), *rules.WITHOUT_COUNTERPART.values(), *rules.LARGE_ON_THE_CORE_PATH.values()]
    reasons += rules.SHAPELESS.values()
    assert all(reasons)


def plant(root: Path, files: dict[str, str]) -> Path:
    """A small checkout with the given files, and a README that mentions nothing."""
    for path, text in {"README.md": "", **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("minray/gcs/server.py", "from minray.raylet import raylet"),
        ("minray/gcs/server.py", "import minray.raylet.raylet"),
        ("minray/gcs/server.py", "from ..raylet.raylet import Raylet"),
        ("minray/common/ids.py", "def f():\n    from minray import raylet"),
        ("minray/rpc/service.py", "if TYPE_CHECKING:\n    from minray.raylet.raylet import Raylet"),
        ("minray/raylet/node_manager.py", "from minray.platform.transport import sockets"),
        ("minray/attic.py", ""),
    ],
)
def test_an_arrow_in_the_wrong_direction_is_seen(tmp_path: Path, path: str, line: str) -> None:
    files = {"minray/raylet/__init__.py": "", "minray/raylet/raylet.py": "", "minray/platform/transport/sockets.py": ""}
    assert len(rules.import_arrows(plant(tmp_path, {**files, path: line}))) == 1


def test_a_circle_is_seen_also_if_only_type_checkers_go_round_it(tmp_path: Path) -> None:
    files = {
        "minray/gcs/a.py": "import minray.gcs.b",
        "minray/gcs/b.py": "from minray.gcs import c",
        "minray/gcs/c.py": "if TYPE_CHECKING:\n    from minray.gcs.a import A",
        "minray/gcs/d.py": "import minray.gcs.a",
    }
    (circle,) = rules.import_circles(plant(tmp_path, files))
    assert all(f"minray/gcs/{name}.py" in circle for name in "abc") and "minray/gcs/d.py" not in circle
    (tmp_path / "minray/gcs/c.py").write_text("")
    assert rules.import_circles(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""What a caller sends."""', "a docstring begins with 'What'"),
        ('"""Ends a worker, whoever has made it."""', "'whoever'"),
        ("# so many tasks", "'so many'"),
        (
            f'"""A name {"and another " * 20}end."""',
            "a sentence of 43 words: ['A', 'name', 'and', 'another', 'and', 'another']",
        ),
        ('"""Number of tasks. The worker ends after it has run them: `he` and ``so long`` are code."""', ""),
    ],
)
def test_foreign_english_is_seen(tmp_path: Path, text: str, found: str) -> None:
    complaints = rules.plain_english(plant(tmp_path, {"minray/a.py": f"{text}\n"}))
    assert [complaint.partition(": ")[2] for complaint in complaints] == ([found] if found else [])


FOREIGN = {".py": "# A worker and his task\n", ".md": "A worker and his task.\n"}


@pytest.mark.parametrize("path", ["README.md", "docs/a.md", "tests/b/a.py", "benchmarks/a.py", "examples/a.md"])
def test_foreign_english_is_seen_in_every_folder(tmp_path: Path, path: str) -> None:
    assert rules.plain_english(plant(tmp_path, {path: FOREIGN[Path(path).suffix]})) == [f"{path}:1: 'his'"]


def test_an_arrow_in_the_right_direction_is_not(tmp_path: Path) -> None:
    text = "import asyncio\nfrom minray.platform.base import Platform\nfrom . import worker_pool\nimport minray.protocol.gcs"
    files = {"minray/platform/base.py": "", "minray/raylet/worker_pool.py": "", "minray/protocol/gcs.py": ""}
    assert rules.import_arrows(plant(tmp_path, {**files, "minray/raylet/raylet.py": text})) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import time\ntime.time()", "time.time"),
        ("import time as clock\nwait = clock.sleep", "time.sleep"),
        ("from time import time", "time.time"),
        ("import random", "random"),
        ("from os import urandom", "os.urandom"),
        ("with open('x') as file: pass", "open"),
        ("import threading\nthreading.Thread()", "threading.Thread"),
    ],
)
def test_a_call_past_the_seam_is_seen(tmp_path: Path, text: str, name: str) -> None:
    plant(tmp_path, {"minray/gcs/server.py": text, "minray/platform/storage/disk.py": text})
    complaints = rules.banned_calls(tmp_path, exceptions={})
    assert [complaint.rpartition(" ")[2] for complaint in complaints] == [name]
    assert rules.banned_calls(tmp_path, {("minray/gcs/server.py", name): "because"}) == []


def test_an_exception_that_nobody_needs_is_seen(tmp_path: Path) -> None:
    plant(tmp_path, {"minray/node/node.py": "import asyncio\nasyncio.sleep(1)"})
    assert len(rules.banned_calls(tmp_path, {("minray/node/node.py", "open"): "reads a file"})) == 1


def test_a_library_of_an_extra_is_imported_only_by_its_own_files(tmp_path: Path) -> None:
    plant(tmp_path, {"minray/platform/transport/grpc_server.py": "import grpc.aio"})
    plant(tmp_path, {"minray/util/dask/graph.py": "import dask", "minray/testing/plugin.py": "import pytest"})
    plant(tmp_path, {"minray/node/ide_debugger.py": "import debugpy, pydevd"})
    plant(tmp_path, {"minray/observability/prometheus_exposition.py": "import prometheus_client"})
    plant(tmp_path, {"minray/dashboard/server.py": "import aiohttp"})
    plant(tmp_path, {"minray/simulation/browser/stacks.py": "import js, pyodide"})
    plant(tmp_path, {"minray/platform/base.py": "def f():\n    import grpc", "minray/util/joblib.py": "import joblib"})
    assert [complaint.partition(":")[0] for complaint in rules.libraries_of_extras(tmp_path)] == ["minray/platform/base.py"]
    (tmp_path / "minray/util/joblib.py").write_text("")
    assert rules.libraries_of_extras(tmp_path)[1:] == ["nothing imports joblib any more"]


def test_a_missing_header_is_seen(tmp_path: Path) -> None:
    files = {"a.py": HEADER, "b.py": '"""Ray: short."""', "c.py": HEADER.replace("Ray", "Day"), "d/__init__.py": ""}
    complaints = rules.headers(plant(tmp_path, {f"minray/{name}": text for name, text in files.items()}))
    assert [complaint.partition(":")[0] for complaint in complaints] == ["minray/b.py", "minray/c.py"]


def test_only_code_counts_as_size(tmp_path: Path) -> None:
    free = HEADER + "# comment\n\n" * 1000 + "def f():\n" + '    """Long.' + "\n" * 100 + '    """\n' + "    return 1\n"
    assert rules.sizes(plant(tmp_path, {"minray/a.py": free + "x = 1\n" * (rules.FILE_CODE_LINES - 2)})) == []
    assert len(rules.sizes(plant(tmp_path, {"minray/a.py": free + "x = 1\n" * rules.FILE_CODE_LINES}))) == 1
    function = "def f():\n" + "    x = 1\n" * rules.FUNCTION_CODE_LINES
    assert len(rules.sizes(plant(tmp_path, {"minray/a.py": function}))) == 1


def test_a_class_name_that_stands_for_two_classes_is_seen(tmp_path: Path) -> None:
    files = {"a.py": "class A: pass\nclass B: pass", "b.py": "class B:\n    class C: pass", "c.py": "class D: pass"}
    assert rules.class_names(plant(tmp_path, {f"minray/{name}": text for name, text in files.items()})) == [
        "B: minray/a.py, minray/b.py"
    ]


def test_a_method_of_too_many_classes_of_one_process_is_seen(tmp_path: Path) -> None:
    text = "class {0}:\n    def add(self): pass\n    def _end(self): pass\n    def __len__(self): pass"
    files = {f"minray/gcs/{name}.py": text.format(name.upper()) for name in "abc"}
    assert method_names.method_names(plant(tmp_path, files), {}) == [], "three may have it"
    ours = {"minray/rpc/d.py": text.format("D"), "minray/gcs/e.py": "from minray.rpc.d import D"}
    port = {"minray/gcs/f.py": "class F(Protocol):\n    def add(self): pass", "minray/raylet/g.py": text.format("G")}
    root = plant(tmp_path, {**ours, **port})
    assert method_names.method_names(root, {}) == ["add stands in 4 classes of the gcs: A, B, C, D"]
    assert method_names.method_names(root, {("gcs", "add"): "a reason"}) == []
    assert method_names.method_names(root, {("gcs", "add"): "a reason", ("raylet", "add"): "none"}) == [
        "add: few classes of the raylet have it now"
    ]


@pytest.mark.parametrize(
    "record",
    [
        "class A(Record, frozen=True): pass",
        "class A(Request[Done]): pass",
        "class A(msgspec.Struct): pass",
        "class A(NamedTuple): pass",
        "@dataclass(slots=True)\nclass A: pass",
    ],
)
def test_a_fifth_field_that_is_given_by_position_is_seen(tmp_path: Path, record: str) -> None:
    base = "class Record(msgspec.Struct, gc=False): pass\nclass Request(Record, Generic[R]): pass\nclass Other: pass"
    calls = "a.A(1, 2, 3, 4, 5)\nA(1, 2, 3, 4, e=5)\nOther(1, 2, 3, 4, 5)"
    plant(tmp_path, {"minray/a.py": f"{base}\n{record}", "minray/b.py": calls})
    assert rules.positional_fields(tmp_path, set()) == ["minray/b.py:1: A with 5 fields by position"]
    assert rules.positional_fields(tmp_path, {"minray/b.py:A"}) == []
    assert len(rules.positional_fields(tmp_path, {"minray/b.py:A", "minray/a.py:A"})) == 1


def test_a_core_path_that_is_too_long_is_seen(tmp_path: Path) -> None:
    def complaints(page: str, exceptions: dict[str, str]) -> int:
        plant(tmp_path, {rules.CORE_PATH_PAGE: page})
        return len(rules.core_path(tmp_path, exceptions))

    function = "def f():\n" + "    x = 1\n" * rules.CORE_FUNCTION_CODE_LINES
    plant(tmp_path, {"minray/a.py": "x = 1\n" * (rules.CORE_FILE_CODE_LINES + 1), "minray/b.py": function})
    assert complaints("# Order\n## One\n`minray/a.py`\n## Two\n`minray/a.py` `minray/b.py`", {}) == 2
    allowed = {"minray/a.py": "because", "minray/b.py:f": "because"}
    assert complaints("# Order\n## One\n`minray/a.py`\n## Two\n`minray/a.py` `minray/b.py`", allowed) == 0
    assert complaints("# Order\n## One\n`minray/b.py`", allowed) == 1
    names = [f"minray/c{number}.py" for number in range(40)]
    plant(tmp_path, dict.fromkeys(names, "x = 1\n" * rules.CORE_FILE_CODE_LINES))
    assert complaints("# Order\n## One\n" + "\n".join(names[:5]), {}) == 0
    assert complaints("# Order\n## One\n" + "\n".join(names[:6]), {}) == 1
    assert complaints("# Order\n" + "\n".join(f"## Chapter\n{name}" for name in names), {}) == 1


def test_a_dead_file_is_seen(tmp_path: Path) -> None:
    files = {"__init__.py": "from minray import used", "used.py": "ROLE = 'minray.role'", "role.py": "", "dead.py": ""}
    assert rules.dead_files(plant(tmp_path, {f"minray/{name}": text for name, text in files.items()})) == [
        "minray/dead.py: nothing imports it"
    ]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md", ".github/workflows/test.yml"])
def test_a_missing_command_is_seen(tmp_path: Path, page: str) -> None:
    there = "`make test`\n`python -m tests.leaks`\n"
    text = f"{there}`make tost`\n\n    make teest\n\n- run: make docs\n`python -m tests.gone`\n"
    plant(tmp_path, {"Makefile": "test: lint\n", "tests/leaks.py": "", page: text})
    missing = ["make docs", "make teest", "make tost", "python -m tests.gone"]
    assert rules.missing_commands(tmp_path) == [f"{page}: {what} does not exist" for what in missing]


def test_a_fake_without_a_shape_is_seen_however_it_is_made(tmp_path: Path) -> None:
    imported = "from types import SimpleNamespace as Fake\nplatform = Fake(pid=7)"
    found = {"tests/a.py": imported, "tests/b.py": "import types\nplatform = types.SimpleNamespace()", "tests/c.py": ""}
    plant(tmp_path, found)
    assert rules.shapeless_fakes(tmp_path, {}) == ["tests/a.py:1: SimpleNamespace", "tests/b.py:2: SimpleNamespace"]
    reasons = {"tests/b.py": "a module of the user", "tests/c.py": "it had one"}
    assert rules.shapeless_fakes(tmp_path, reasons)[1:] == ["tests/c.py: has no SimpleNamespace any more"]


def test_a_sleep_a_foreign_word_and_a_missing_file_are_seen(tmp_path: Path) -> None:
    sleep = "from asyncio import sleep as nap\nimport time\nasync def test():\n    await nap(1)\n    time.sleep(1)"
    assert len(rules.sleeping_tests(plant(tmp_path, {"tests/unit/test_a.py": sleep}))) == 2
    assert len(rules.unwanted_words(plant(tmp_path, {"docs/index.md": f"see {rules.NOT_SAID_HERE[0]}/x"}))) == 1
    assert len(rules.missing_paths(plant(tmp_path, {"README.md": "`minray/a.py` `minray/b.py`", "minray/b.py": ""}))) == 1
    assert len(rules.missing_paths(plant(tmp_path, {"SECURITY.md": "[a](docs/a.md) tests/regressions/a.json"}))) == 2
    assert len(rules.missing_paths(plant(tmp_path, {"docs/b.md": "[a](a.md) [b](b.md#c)", "SECURITY.md": ""}))) == 1
