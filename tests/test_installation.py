"""An installed minray: where Python finds it, beside which files, and how much a program loads with it.

Ray: python/ray/tests/test_runtime_env_packaging.py tests packages of users; how Ray is installed has no test there

Programs here run without the PYTHONPATH that the other tests' programs have: it would hide a broken installation.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from click.testing import CliRunner

from minray import __version__
from minray.cli.main import main
from minray.common.config import SystemConfig
from minray.platform.real import io_thread

CHECKOUT = Path(__file__).resolve().parents[1]

PROGRAM = """
import minray as ray

@ray.remote
def file_of_minray():
    import minray
    return minray.__file__

if __name__ == "__main__":
    with ray.init(num_cpus=1, log_to_driver=False):
        assert ray.get(file_of_minray.remote()) == ray.__file__
        print(ray.__file__)
"""


def run(python: Path | str, *arguments: str, cwd: Path) -> str:
    """Run a Python program that finds only the packages of its environment, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([python, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


# --- Where Python finds it ---


@pytest.fixture
def beside_a_clone(tmp_path: Path) -> Path:
    """A directory with a program and a folder called minray, whose package lies one level deeper, as in a clone."""
    (tmp_path / "minray").mkdir()
    (tmp_path / "program.py").write_text("import minray\nprint(minray.remote.__module__)")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py"],
        ["-m", "program"],
        ["-c", "import program"],
        ["-P", "program.py"],
    ],
    ids=" ".join,
)
def test_a_folder_called_minray_beside_a_program_does_not_hide_the_package(
    beside_a_clone: Path, arguments: list[str]
) -> None:
    """Fails in an environment that ``make venv`` made before setup.cfg named the package's directory."""
    assert run(sys.executable, *arguments, cwd=beside_a_clone) == "minray.remote_function"


def copy_what_is_built(clone: Path) -> None:
    """Make a clone with the files that a build of the package reads."""
    clone.mkdir()
    shutil.copytree(CHECKOUT / "minray", clone / "minray", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, clone)


def link_requirements(site_packages: Path) -> None:
    """Link the packages that setup.cfg requires, and no other ones, out of this process's environment."""
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    for requirement in setup["options"]["install_requires"].split("\n")[1:]:
        found = re.match(r"[\w-]+", requirement)
        assert found
        package = distribution(found[0])
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (site_packages / top).symlink_to(str(package.locate_file(top)))


def install(how: str, clone: Path, environment: Path) -> Path:
    """Build a wheel of this clone, and have pip install it in a new environment, without a network.

    The environment has minray's requirements and nothing else; pip fails if minray requires more. Returns its Python.
    """
    venv.create(environment, symlinks=True, with_pip=False)
    python = environment / "bin" / "python"
    link_requirements(Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=clone)))
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.{how}({str(environment)!r})", cwd=clone)
    (wheel,) = environment.glob("*.whl")
    pip = ["-m", "pip", "--isolated", "--quiet", f"--python={python}"]
    run(sys.executable, *pip, "install", "--no-index", "--no-compile", str(wheel), cwd=clone)
    return python


@pytest.mark.slow
@pytest.mark.parametrize("how", ["build_editable", "build_wheel"])
def test_a_program_beside_its_clone_runs_its_tasks_with_the_installed_minray(tmp_path: Path, how: str) -> None:
    clone, environment = tmp_path / "minray", tmp_path / "environment"
    copy_what_is_built(clone)
    (tmp_path / "program.py").write_text(PROGRAM)
    python = install(how, clone, environment)
    installed = Path(run(python, "program.py", cwd=tmp_path))
    assert installed.is_relative_to(clone if how == "build_editable" else environment)


@pytest.fixture(scope="module")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs of an environment that has minray's wheel and its requirements."""
    directory = tmp_path_factory.mktemp("wheel")
    copy_what_is_built(directory / "clone")
    return install("build_wheel", directory / "clone", directory / "environment").parent


@pytest.mark.slow
def test_the_command_line_of_a_wheel_starts_a_cluster_that_a_program_joins(
    wheel_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINRAY_TMPDIR", os.environ["MINRAY_TMPDIR"] + "/w")
    Path(os.environ["MINRAY_TMPDIR"]).mkdir(parents=True, mode=0o700)
    minray = wheel_environment / "minray"
    (tmp_path / "program.py").write_text(PROGRAM.replace("num_cpus=1, ", ""))
    assert run(minray, "--version", cwd=tmp_path) == f"minray, version {__version__}"
    run(minray, "start", "--head", "--num-cpus=1", cwd=tmp_path)
    try:
        installed = Path(run(wheel_environment / "python", "program.py", cwd=tmp_path))
        assert installed.is_relative_to(wheel_environment.parent)
    finally:
        assert "1 node" in run(minray, "stop", cwd=tmp_path)


@pytest.mark.slow
def test_a_wheel_says_about_itself_what_setup_and_the_package_say(wheel_environment: Path, tmp_path: Path) -> None:
    program = "from importlib.metadata import metadata; m = metadata('minray'); print(m['Version'], m['Author'], sep='|')"
    assert run(wheel_environment / "python", "-c", program, cwd=tmp_path) == f"{__version__}|The minray authors"


# --- What it does without an extra ---


GRPC = '{"transport": "grpc"}'
WHAT_TO_INSTALL = "transport=\"grpc\" needs grpcio, which is not installed here: pip install 'minray[grpc]'"


@pytest.mark.slow
def test_a_wheel_without_grpcio_says_what_to_install_for_the_transport(wheel_environment: Path, tmp_path: Path) -> None:
    program = f"""
import minray
try:
    minray.init(_system_config={GRPC})
except RuntimeError as error:
    print(error)
"""
    assert run(wheel_environment / "python", "-c", program, cwd=tmp_path) == WHAT_TO_INSTALL


@pytest.fixture
def without_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)


def test_without_grpcio_minray_start_says_what_to_install(without_grpcio: None) -> None:
    done = CliRunner().invoke(main, ["start", "--head", "--system-config", GRPC])
    assert (done.exit_code, done.output) == (1, f"Error: {WHAT_TO_INSTALL}\n")


def test_without_grpcio_a_driver_cannot_join_a_cluster_that_uses_it(without_grpcio: None) -> None:
    with pytest.raises(RuntimeError, match=re.escape(WHAT_TO_INSTALL)):
        io_thread(SystemConfig.from_overrides({"transport": "grpc"}))


# --- What it loads ---


MOST_MODULES = {"import": 64, "begin": 111, "driver": 222, "zygote": 318}
"""Bounds on minray's own modules: after ``import minray``, when ``init`` starts the zygote, in a driver whose task has run,
and in the zygote, from which gcs, raylet and workers have theirs.

Each takes a part of a program's start: 200 take 0.1 s, and 0.3 s without byte code.
"""
NOT_BEFORE_INIT = {
    "asyncio",
    "concurrent.futures.thread",
    "hashlib",
    "minray.cluster_utils",
    "minray.core_worker.core_worker",
    "minray.core_worker.user_threads.user_api",
    "minray.node",
    "minray.object_store",
    "minray.observability",
    "minray.platform",
    "minray.rpc",
    "minray.util",
    "socket",
    "ssl",
    "subprocess",
}
"""Modules that a program has no use for while it only defines tasks and actors."""
FOR_OTHER_PROCESSES = {
    "minray.cli",
    "minray.common.machine_usage",
    "minray.dashboard",
    "minray.gcs",
    "minray.node.cluster_client",
    "minray.node.ide_debugger",
    "minray.observability",
    "minray.platform.transport.tls",
    "minray.protocol.logs",
    "minray.protocol.metrics",
    "minray.remote_client",
    "minray.object_store.store",
    "minray.platform.transport.grpc_transport",
    "minray.platform.threads.main_thread",
    "minray.platform.storage.sqlite_storage",
    "minray.platform.process.zygote",
    "minray.raylet",
    "minray.node.roles",
    "minray.scheduling",
    "minray.simulation",
    "minray.util.dask",
    "minray.util.joblib",
    "minray.util.metrics",
    "minray.util.multiprocessing",
    "minray.util.state",
}
"""Rooms and files of minray that a driver has no use for, or not before its program names them."""
FOR_FEW_PROGRAMS = {
    "click",
    "ctypes",
    "dask",
    "email",
    "fsspec",
    "grpc",
    "http",
    "importlib.metadata",
    "joblib",
    "json",
    "multiprocessing",
    "numpy",
    "psutil",
    "shutil",
    "sqlite3",
    "tempfile",
    "tomllib",
    "unittest",
    "uvloop",
    "xml",
}
"""Modules of others that minray imports only in the function that needs them, if at all."""


FOR_FEW_TASKS = {
    "minray.api.progress",
    "minray.cluster_utils",
    "minray.logging_config",
    "minray.node.init",
    "minray.node.node",
    "minray.observability.state_reader",
    "minray.platform.storage.compressed_disk",
    "minray.platform.transport.remote_terminal",
    "minray.util.executor",
    "minray.util.queue",
}
"""Files that a zygote does not import: a worker whose task needs one of them does."""


def loaded_by(statement: str, tmp_path: Path) -> list[str]:
    program = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return run(sys.executable, "-c", program, cwd=tmp_path).split()


def of_minray(modules: list[str]) -> list[str]:
    return [name for name in modules if name.partition(".")[0] == "minray"]


@pytest.mark.slow
def test_import_minray_loads_no_more_than_definitions_need(tmp_path: Path) -> None:
    loaded = loaded_by("import minray; minray.remote(max); minray.remote(dict)", tmp_path)
    assert (NOT_BEFORE_INIT | FOR_OTHER_PROCESSES | FOR_FEW_PROGRAMS).isdisjoint(loaded)
    assert len(of_minray(loaded)) <= MOST_MODULES["import"]


@pytest.mark.slow
def test_a_cluster_that_runs_loads_nothing_of_other_processes(tmp_path: Path) -> None:
    program = "import minray; minray.init(num_cpus=1, logging_level='ERROR'); minray.get(minray.remote(lambda: 1).remote())"
    assert FOR_OTHER_PROCESSES & set(loaded_by(program, tmp_path)) == set()


@pytest.mark.slow
def test_init_loads_no_core_worker_before_it_has_started_a_zygote(tmp_path: Path) -> None:
    loaded = loaded_by("import minray; minray.init", tmp_path)
    assert (FOR_OTHER_PROCESSES | FOR_FEW_PROGRAMS | {"minray.core_worker.core_worker"}).isdisjoint(loaded)
    assert len(of_minray(loaded)) <= MOST_MODULES["begin"]


@pytest.mark.slow
def test_each_process_of_a_cluster_loads_no_more_modules_than_it_needs(tmp_path: Path) -> None:
    program = """
import os, sys
import minray
os.environ["PYTHONPROFILEIMPORTTIME"] = "1"  # Each process of the cluster writes the modules that it imports to its log.
task = minray.remote(lambda: list(sys.modules))
with minray.init(num_cpus=1, logging_level="ERROR", log_to_driver=False) as context:
    print("worker", *minray.get(task.remote()))
    print("driver", *sys.modules)
    for name in ("zygote", "gcs", "raylet"):
        with open(f"{context['session_dir']}/logs/{name}.log") as log:
            print(name, *(line.split()[-1] for line in log if line.startswith("import time:")))
"""
    lines = map(str.split, run(sys.executable, "-c", program, cwd=tmp_path).splitlines())
    loaded = {name: set(of_minray(modules)) for name, *modules in lines}
    assert FOR_FEW_TASKS.isdisjoint(loaded["zygote"])
    assert loaded["worker"] == loaded["zygote"], "a worker has what its zygote has"
    assert loaded["gcs"] == loaded["raylet"] == set(), "they import nothing after they were forked"
    assert len(loaded["driver"]) <= MOST_MODULES["driver"]
    assert len(loaded["zygote"]) <= MOST_MODULES["zygote"]


@pytest.mark.slow
def test_a_worker_imports_nothing_that_its_zygote_could_have_imported(tmp_path: Path) -> None:
    program = """
import asyncio, sys
import minray
@minray.remote
def imported():
    before = set(sys.modules)
    async def wait_for(ref):
        return await ref
    ref = minray.put(1)
    asyncio.run(wait_for(ref))
    minray.why(ref), minray.is_initialized(), minray.wait([ref])
    minray.internal.free([ref]), minray.experimental.get_object_locations([ref]), minray.get_runtime_context().get()
    minray.util.ActorPool([]), minray.util.list_named_actors(), minray.util.placement_group
    return sorted(set(sys.modules) - before)
with minray.init(num_cpus=1, logging_level="ERROR"):
    print(minray.get(imported.remote()))
"""
    assert run(sys.executable, "-c", program, cwd=tmp_path) == "[]"


@pytest.mark.slow
def test_neither_a_driver_nor_its_worker_loads_numpy_or_grpc_for_small_values(tmp_path: Path) -> None:
    program = """
import sys
import minray
@minray.remote
def loaded():
    import sys
    return {"numpy", "grpc"} & set(sys.modules)
with minray.init(num_cpus=1, logging_level="ERROR"):
    import minray.util.actor_pool, minray.util.dask, minray.util.metrics, minray.util.queue, minray.util.state
    print(minray.get(loaded.remote()), {"numpy", "grpc"} & set(sys.modules))
"""
    assert run(sys.executable, "-c", program, cwd=tmp_path) == "set() set()"


@pytest.mark.slow
def test_make_venv_compiles_the_checkout_where_python_writes_no_byte_code(tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", symlinks=True, with_pip=False)
    for name in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, tmp_path)
    (tmp_path / "environment" / ".installed").touch()
    (tmp_path / "minray" / "common").mkdir(parents=True)
    (tmp_path / "minray" / "common" / "ids.py").write_text("")
    command = ["make", "--silent", "venv", "VENV=environment"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=True)
    assert [path.name.partition(".")[0] for path in tmp_path.glob("minray/common/__pycache__/*.pyc")] == ["ids"]


def test_make_compiles_the_checkout_when_it_makes_the_environment_of_another_target(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "demo", f"VENV={tmp_path}"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    install, compile_, demo = (done.stdout.index(text) for text in (" --editable ", "compileall", "examples/"))
    assert install < compile_ < demo


# --- When a required package is missing ---


def run_without(library: str, program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program on a cluster none of whose processes can import this library."""
    (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('No module named {library}', name={library!r})")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


def test_a_cluster_without_psutil_says_what_to_install(tmp_path: Path) -> None:
    ended = run_without("psutil", "import minray; minray.init(num_cpus=1)", tmp_path)
    assert ended.stderr.splitlines()[-2:] == [
        "RuntimeError: the node could not be started: gcs could not be started: the zygote has ended",
        f"  {sys.executable} lacks psutil, which minray needs: pip install psutil",
    ]


def test_a_cluster_without_uvloop_warns_and_runs(tmp_path: Path) -> None:
    program = "import minray as ray\nray.init(num_cpus=1)\nprint(ray.get(ray.remote(max).remote([1, 2])))"
    ended = run_without("uvloop", program, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr
    assert "RuntimeWarning: uvloop is not installed; minray will be slower" in ended.stderr
