"""The table of Ray's names is true; and programs that say ``import ray`` find minray, in their workers too."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import minray
from minray.in_rays_place.finder import RAY_VERSION
from minray.run_as_ray import FOLDER, command, environment, minray_as_ray, split_options
from tests.conformance.__main__ import FILES
from tests.conformance.examples import ONLY_MINRAY, SAYS, for_ray
from tests.conformance.plugin import differences

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "ray_programs.md"


def rows(column: str) -> Iterator[str]:
    """The names in the rows whose second column says this."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and cells[1] == column:
            yield from re.findall(r"`([\w.]+)`", cells[0])


def options(kind: str) -> list[str]:
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {kind} |"))
    return re.findall(r"`(\w+)`", line)


def resolves(root: str, name: str) -> bool:
    """Whether ``root.name`` is a module, or an attribute of one."""
    parts = [root, *name.split(".")]
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
            for attribute in parts[count:]:
                found = getattr(found, attribute)
            return True
        except (ImportError, AttributeError):
            continue
    return False


# -- Names


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_the_table_calls_here_is_here() -> None:
    names = list(rows("yes"))
    assert len(names) > 100 and len(names) == len(set(names))
    assert [name for name in names if not resolves("minray", name)] == []


@pytest.mark.usefixtures("without_ray")
def test_what_is_only_in_rays_place_is_there() -> None:
    names = list(rows("in Ray's place"))
    assert len(names) > 50 and len(names) == len(set(names))
    with minray_as_ray():
        assert [name for name in names if not resolves("ray", name)] == []
    assert [name for name in names if resolves("minray", name)] == []


def test_what_it_calls_missing_is_missing() -> None:
    names = list(rows("no"))
    assert names and [name for name in names if resolves("minray", name)] == []


def test_all_exceptions_are_in_the_table() -> None:
    public = {name for name, value in vars(minray.exceptions).items() if isinstance(value, type) and value.__module__ ==
              "minray.exceptions" and issubclass(value, BaseException) and not name.startswith("_")}  # fmt: skip
    assert public == {name.removeprefix("exceptions.") for name in rows("yes") if name.startswith("exceptions.")}


def test_the_options_are_known() -> None:
    class Counter:
        def add(self) -> None: ...

    def work() -> None: ...

    for option in options("tasks"):
        minray.remote(**{option: None})(work)
    for option in options("actors"):
        minray.remote(**{option: None})(Counter)
    for option in options("methods"):
        minray.method(**{option: None})(Counter.add)
    with pytest.raises(ValueError, match="not_an_option"):
        minray.remote(not_an_option=None)(work)


def test_an_id_of_an_object_is_not_its_reference() -> None:
    name = minray.ObjectRef.from_hex("00" * 28)
    assert name.hex() == "00" * 28 and name == minray.ObjectRef.from_hex("00" * 28) != minray.ObjectRef.from_random()
    assert minray.ObjectRef.nil().is_nil() and not name.is_nil()
    with pytest.raises(ValueError, match="28 bytes, not 2"):
        minray.ObjectRef.from_hex("0000")
    with pytest.raises(TypeError, match="comes from .remote.. or put"):
        minray.ObjectRef(b"0" * 28)
    with pytest.raises(ValueError, match="without an owner"):
        name.future()


def test_the_tests_that_differ_on_ray_exist() -> None:
    text = "".join((ROOT / "tests" / "real" / f"test_{name}.py").read_text() for name in FILES)
    known = [name.partition("[")[0] for name in differences()]
    assert known and [name for name in known if f"def {name}(" not in text] == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_tests_for_both_imports_only_what_ray_has(name: str) -> None:
    """Tests may look inside minray by ``support.core`` and ``support.api``, which skip them on Ray."""
    imports = re.findall(r"^(?:from|import) minray\.(\w+)", (ROOT / "tests" / "real" / f"test_{name}.py").read_text(), re.M)
    public = {known.partition(".")[0] for known in rows("yes")}
    assert set(imports) <= public, "on Ray no test of this file would run"


def test_every_example_runs_on_both_or_says_why_not() -> None:
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == SAYS.keys() | ONLY_MINRAY.keys()
    assert for_ray("import minray as ray\nfrom minray.util import a") == "import ray\nfrom ray.util import a"


# -- minray in Ray's place, in this process


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("without_ray")
def test_ray_is_minray_while_the_block_lasts() -> None:
    finders, path = list(sys.meta_path), list(sys.path)
    with minray_as_ray():
        ray = importlib.import_module("ray")
        assert ray is minray
        assert importlib.import_module("ray.util.queue") is importlib.import_module("minray.util.queue")
        assert importlib.import_module("ray.util.placement_group").PlacementGroup
        assert importlib.import_module("ray.exceptions") is minray.exceptions
        assert importlib.import_module("ray.cloudpickle") is importlib.import_module("minray.cloudpickle")
        assert minray.exceptions.__spec__ is not None and minray.exceptions.__spec__.name == "minray.exceptions"
        with minray_as_ray():
            assert importlib.import_module("ray") is ray
        with pytest.raises(ModuleNotFoundError, match="ray.train is not part of minray, which stands in Ray's place"):
            importlib.import_module("ray.train")
        with pytest.raises(ModuleNotFoundError, match="ray.util.nothing.at_all|ray.util.nothing"):
            importlib.import_module("ray.util.nothing.at_all")
    assert (sys.meta_path, sys.path) == (finders, path)
    assert not any(name.partition(".")[0] == "ray" for name in sys.modules)


@pytest.mark.usefixtures("without_ray")
def test_who_only_looks_for_a_module_finds_it_or_nothing() -> None:
    with minray_as_ray():
        for name, is_package in (("ray", True), ("ray.util", True), ("ray.util.queue", False), ("ray.util.state", True)):
            spec = importlib.util.find_spec(name)
            assert spec is not None and (spec.submodule_search_locations is not None) == is_package
        assert importlib.util.find_spec("ray.tune") is None
        assert importlib.util.find_spec("ray.util.nothing") is None
        with pytest.raises(ModuleNotFoundError, match="ray.tune is not part of minray"):
            importlib.util.find_spec("ray.tune.search")


def functions_of_packages() -> dict[str, object]:
    """Objects in minray's packages that have the name of one of the modules there, and are no modules."""
    return {
        f"{package.name}.{module.name}": found
        for package in pkgutil.walk_packages(minray.__path__, "minray.")
        if package.ispkg and "in_rays_place" not in package.name
        for module in pkgutil.iter_modules(importlib.import_module(package.name).__path__)
        if not isinstance(found := getattr(sys.modules[package.name], module.name, sys), ModuleType)
    }


@pytest.mark.usefixtures("without_ray")
def test_a_module_never_hides_a_function_of_its_name() -> None:
    before = functions_of_packages()
    assert "minray.util.placement_group" in before
    with minray_as_ray():
        for name in before:
            importlib.import_module(f"ray{name.removeprefix('minray')}")
        assert functions_of_packages() == before
        assert importlib.import_module("ray.util").placement_group is before["minray.util.placement_group"]


BOTH = """
from ray.util.placement_group import PlacementGroup
import ray
from types import ModuleType

def kinds():
    import ray.util.queue, ray.actor, ray.remote_function, ray.exceptions, ray.util.state, ray.runtime_context
    names = "util.placement_group remote_function actor exceptions method util.queue util.state runtime_context remote"
    found = []
    for name in names.split():
        value = ray
        for part in name.split("."):
            value = getattr(value, part)
        found.append(name if callable(value) else f"<{name}>" if isinstance(value, ModuleType) else "?")
    return " ".join(found)

@ray.remote
def in_a_worker():
    from ray.util.placement_group import PlacementGroup
    return kinds()

if __name__ == "__main__":
    print(kinds())
    ray.init(num_cpus=1, logging_level="ERROR")
    print(ray.get(in_a_worker.remote()))
    print(ray.util.placement_group([{"CPU": 1}]).wait(20))
"""


def test_from_its_first_import_on_no_module_hides_a_function(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BOTH)
    kinds = "util.placement_group <remote_function> <actor> <exceptions> method <util.queue> <util.state> <runtime_context>"
    done = run_as_ray(str(tmp_path / "program.py"))
    assert done.stdout.splitlines() == [f"{kinds} remote"] * 2 + ["True"], done.stderr


# -- Names that only Ray has, and those of its libraries


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize(
    "name", ["experimental.x", "runtime_env.x", "internal.x", "cloudpickle.x", "_private.x", "util.x.y"]
)
def test_a_missing_part_of_anything_is_named(name: str) -> None:
    with minray_as_ray():
        with pytest.raises(ModuleNotFoundError, match=r"ray\..*x is not part of minray, which stands in Ray's place"):
            importlib.import_module(f"ray.{name}")
        importlib.import_module("ray")
        assert importlib.util.find_spec(f"ray.{name.removesuffix('.y')}") is None


@pytest.mark.usefixtures("without_ray")
def test_an_import_of_ray_brings_its_private_modules() -> None:
    before = {module: set(vars(module)) for module in (minray, minray.util, minray.experimental, minray.internal)}
    own_version = minray.__version__
    with minray_as_ray():
        ray: Any = importlib.import_module("ray")
        assert ray._private.services.get_node_ip_address() == "127.0.0.1"
        assert ray._private.worker.global_worker.mode is None and ray._private.worker._global_node is None
        assert not ray.experimental.internal_kv._internal_kv_initialized()
        assert ray.__version__ == RAY_VERSION == minray.node.init.RayContext.ray_version != own_version
        assert ray.logger.name == "minray" and not ray.util.client.ray.get_context().is_connected()
        assert ray.runtime_context.RuntimeContext.worker is ray._private.worker.global_worker
        assert ray.util.annotations.PublicAPI and importlib.import_module("ray._private.state") is ray._private.state
        assert importlib.import_module("ray.experimental.state.api").list_tasks
        assert ray.experimental is minray.experimental and ray.experimental.get_object_locations
        with pytest.raises(RuntimeError, match="not connected"):
            ray._private.worker.global_worker.check_connected()
    after = {module: set(vars(module)) for module in before}
    assert after == before
    assert minray.__version__ == own_version == minray.node.init.RayContext.ray_version
    assert type(minray) is ModuleType and not hasattr(minray.runtime_context.RuntimeContext, "worker")


@pytest.mark.usefixtures("without_ray")
def test_a_part_is_named_however_it_is_imported() -> None:
    before = set(vars(minray)) | set(minray.__all__)  # Names of the porch are loaded when they are first used.
    with minray_as_ray(pretend=["ray.data"]):
        for statement in ("from ray import tune", "from ray.experimental import channel", "import ray.tune as tune"):
            with pytest.raises(ModuleNotFoundError, match=r"ray\.\S+ is not part of minray, which stands in Ray's place"):
                exec(statement, {})
        found: dict[str, Any] = {}
        exec("from ray import data; import ray.data as same; from ray.experimental import tqdm_ray, internal_kv", found)
        exec("from ray._private import state, test_utils; from ray._common.utils import env_bool", found)
        exec("from ray import util", found)
        assert found["data"] is found["same"] and found["tqdm_ray"].tqdm and found["util"] is minray.util
        assert found["state"].state and found["test_utils"].wait_for_condition and found["internal_kv"]
        with pytest.raises(ImportError, match="no_such_name"):
            exec("from minray.util.queue import no_such_name", {})
    assert set(vars(minray)) <= before and "minray.data" not in sys.modules


@pytest.mark.usefixtures("without_ray")
def test_pretended_names_can_do_everything_but_be_called() -> None:
    with minray_as_ray(pretend=["ray.data", "ray.train"]):
        data: Any = importlib.import_module("ray.data")
        assert importlib.util.find_spec("ray.data") and importlib.util.find_spec("ray.tune") is None
        assert not isinstance(1, data.Dataset) and data.Dataset is data.Dataset and data.Dataset | None
        trainer: Any = importlib.import_module("ray.train.torch").TorchTrainer

        class Mine(trainer[list[int]]):  # type: ignore[misc]
            def fit(self) -> None: ...

        assert issubclass(Mine, trainer)

        for value, name in ((data.from_pandas_refs, "ray.data.from_pandas_refs"), (Mine, "ray.train.torch.TorchTrainer"),
                            (data.Dataset.map, "ray.data.Dataset.map")):  # fmt: skip
            with pytest.raises(ModuleNotFoundError, match=f"{name} was called, but .* is not part of minray"):
                value(1)
        with pytest.raises(AttributeError):
            data.__all__  # noqa: B018
        with pytest.raises(ModuleNotFoundError, match="ray.tune is not part"):
            importlib.import_module("ray.tune")
    with minray_as_ray(), pytest.raises(ModuleNotFoundError, match="ray.data is not part"):
        importlib.import_module("ray.data")
    with pytest.raises(ValueError, match="not 'os'"), minray_as_ray(pretend=["os"]):
        pass


@pytest.mark.usefixtures("without_ray")
def test_the_real_ray_is_not_replaced_after_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(RuntimeError, match="imported already"), minray_as_ray():
        pass


@pytest.mark.usefixtures("without_ray")
def test_after_init_it_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minray, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="before init"), minray_as_ray():
        pass


# -- A program


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["-m", "minray.run_as_ray"], []),
        (["-W", "error", "-m", "minray.run_as_ray"], ["-W", "error"]),
        (["-um", "minray.run_as_ray"], ["-u"]),
        (["-mminray.run_as_ray"], []),
    ],
)
def test_the_options_of_python_are_kept(options: list[str], kept: list[str]) -> None:
    own = ["program.py", "-m", "minray.run_as_ray"]
    assert command(["python", *options, *own], ["run_as_ray.py", *own]) == [*kept, *own]


def test_pretended_modules_come_before_the_program() -> None:
    assert split_options(["--pretend", "ray.a,ray.b", "--pretend=ray.c", "x.py", "--pretend", "d"]) == (
        ["ray.a", "ray.b", "ray.c"],
        ["x.py", "--pretend", "d"],
    )
    own = ["--pretend", "ray.data", "program.py", "-x"]
    assert command(["python", "-m", "minray.run_as_ray", *own], ["run_as_ray.py", *own]) == ["program.py", "-x"]
    assert run_as_ray("--pretend", "ray.data").returncode == 2
    assert run_as_ray("--pretend", "numpy", "x.py").stderr.startswith("run_as_ray: --pretend: only a module of ray")


PRETENDING = """
import ray
from ray.data import from_pandas_refs

@ray.remote
def f():
    import ray.data
    ray.data.range(10)

if __name__ == "__main__":
    ray.init(num_cpus=1, logging_level="ERROR")
    try:
        ray.get(f.remote())
    except ModuleNotFoundError as error:
        print(str(error.cause).partition(",")[0])
"""


def test_a_program_and_its_workers_pretend(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PRETENDING)
    done = run_as_ray("--pretend", "ray.data", str(tmp_path / "program.py"))
    assert done.stdout == "ray.data.range was called\n", done.stderr
    done = run_as_ray(str(tmp_path / "program.py"))
    assert done.returncode == 1 and "ray.data is not part of minray" in done.stderr


def test_the_path_of_the_environment_comes_after() -> None:
    assert environment({"A": "1", "PYTHONPATH": "/x"}) == {"A": "1", "PYTHONPATH": f"{FOLDER}{os.pathsep}/x"}
    assert environment({}) == {"PYTHONPATH": FOLDER}


def run_as_ray(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "minray.run_as_ray", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)


PROGRAM = """
import sys
import my_library
import ray
from ray.exceptions import RayTaskError
from ray.util.actor_pool import ActorPool

@ray.remote
def fail():
    import ray.util.queue
    raise ray.exceptions.RayError(f"{ray.__name__} {ray.util.queue.Queue.__module__}")

@ray.remote
def read_private_names():
    return ray._private.worker.global_worker.mode, ray.logger.name, ray.util.client.ray.is_connected()

if __name__ == "__main__":
    ray.init(num_cpus=1, logging_level="ERROR")
    print(ray.get(read_private_names.remote()))  # Nothing has imported ray in this worker yet.
    try:
        ray.get(fail.remote())
    except RayTaskError as error:
        print(error.cause)
    pool = ActorPool([my_library.Doubler.remote()])
    print(list(pool.map(lambda actor, number: actor.double.remote(number), range(3))), sys.argv[1:], sys.warnoptions)
    sys.exit(7)
"""
LIBRARY = """
import ray

@ray.remote(num_cpus=0)
class Doubler:
    def double(self, number):
        return 2 * number
"""


def test_a_program_and_its_workers_import_minray_as_ray(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "my_library.py").write_text(LIBRARY)
    done = run_as_ray(str(tmp_path / "program.py"), "-x", "y")
    expected = "(1, 'minray', False)\nminray minray.util.queue\n[0, 2, 4] ['-x', 'y'] ['error']\n"
    assert (done.returncode, done.stdout) == (7, expected), done.stderr


def test_without_a_program_it_says_how_it_is_used() -> None:
    done = run_as_ray()
    assert done.returncode == 2 and done.stderr.startswith("usage: python -m minray.run_as_ray [--pretend")
    done = subprocess.run([sys.executable, "-E", "-c", "import minray.run_as_ray as r, sys; sys.argv = ['', 'x']; r.main()"],
                          capture_output=True, text=True, cwd=ROOT)  # fmt: skip
    assert done.returncode == 1 and "needs PYTHONPATH" in done.stderr
