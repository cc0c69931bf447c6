"""Runtime environments of tasks, and how workers find the driver's modules."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import minray as ray
from minray.exceptions import RuntimeEnvSetupError
from minray.runtime_env import RuntimeEnv
from tests.real.support import run_driver

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"runtime_env": {"env_vars": {"OF_THE_JOB": "job", "OF_BOTH": "job"}}}


@ray.remote
def variable(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


def test_variables_of_the_job_reach_every_task() -> None:
    assert ray.get(variable.remote("OF_THE_JOB", "OF_BOTH")) == ["job", "job"]
    assert "OF_THE_JOB" not in os.environ


def test_a_tasks_variables_are_put_on_top_of_the_jobs() -> None:
    task = variable.options(runtime_env={"env_vars": {"OF_BOTH": "task", "OF_THE_TASK": "task"}})
    assert ray.get(task.remote("OF_THE_JOB", "OF_BOTH", "OF_THE_TASK")) == ["job", "task", "task"]
    assert ray.get(variable.remote("OF_BOTH", "OF_THE_TASK")) == ["job", None]


def test_options_replace_what_the_decorator_says_of_tasks_and_actors() -> None:
    def look() -> list[str | None]:
        return [os.environ.get(name) for name in ("OF_THE_JOB", "OF_THE_DECORATOR", "OF_THE_OPTIONS")]

    class Looker:
        def look(self) -> list[str | None]:
            return look()

    decorated = ray.remote(runtime_env={"env_vars": {"OF_THE_DECORATOR": "decorator"}})
    assert ray.get(decorated(look).remote()) == ["job", "decorator", None]
    for environment, value in (({"env_vars": {"OF_THE_OPTIONS": "options"}}, "options"), ({"excludes": ["x"]}, None)):
        options: Any = {"runtime_env": environment}
        looker = decorated(Looker).options(**options).remote()
        found = ray.get([decorated(look).options(**options).remote(), looker.look.remote()])
        assert found == [["job", None, value]] * 2


def test_an_environment_may_be_written_down_first() -> None:
    task = variable.options(runtime_env=RuntimeEnv(env_vars={"OF_THE_TASK": "task"}, working_dir=None))
    assert ray.get(task.remote("OF_THE_TASK")) == ["task"]


def test_packages_that_are_installed_change_nothing() -> None:
    environment = RuntimeEnv(pip=["pytest"], config={"setup_timeout_seconds": 60}, py_executable=sys.executable)
    assert ray.get(variable.options(runtime_env=environment).remote("OF_THE_JOB")) == ["job"]
    with pytest.raises(ValueError, match="surely-not-installed is not installed. minray installs nothing"):
        variable.options(runtime_env={"uv": ["surely-not-installed"]})


def test_tasks_of_tasks_inherit() -> None:
    @ray.remote(runtime_env={"env_vars": {"OF_THE_PARENT": "parent"}})
    def parent() -> Any:
        child = variable.options(runtime_env={"env_vars": {"OF_THE_CHILD": "child"}})
        names = ("OF_THE_JOB", "OF_THE_PARENT", "OF_THE_CHILD")
        return ray.get([variable.remote(*names), child.remote(*names)])

    assert ray.get(parent.remote()) == [["job", "parent", None], ["job", "parent", "child"]]


def test_environments_do_not_mix_in_one_worker() -> None:
    tasks = [variable.options(runtime_env={"env_vars": {"WHO": str(number)}}) for number in range(3)]
    for _ in range(3):
        assert ray.get([task.remote("WHO") for task in tasks]) == [["0"], ["1"], ["2"]]
    assert ray.get(variable.remote("WHO")) == [None]


def test_a_variable_may_refer_to_what_the_worker_has() -> None:
    task = variable.options(runtime_env={"env_vars": {"PATH": "${PATH}:/opt/bin", "OF_THE_TASK": "<${NOWHERE}>"}})
    assert ray.get(task.remote("PATH", "OF_THE_TASK")) == [f"{os.environ['PATH']}:/opt/bin", "<>"]


def test_variables_that_python_reads_when_it_begins(tmp_path: Path) -> None:
    (tmp_path / "a_module_elsewhere.py").write_text("value = 'from elsewhere'\n")

    @ray.remote(runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path), "TZ": "JST-9"}})
    def look() -> Any:
        import a_module_elsewhere  # type: ignore[import-not-found]

        return a_module_elsewhere.value, time.tzname

    assert ray.get(look.remote()) == ("from elsewhere", ("JST", "JST"))


def test_a_working_dir_leads_also_if_workers_look_there_anyway(tmp_path: Path) -> None:
    for name in ("program", "working"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module_of_both.py").write_text(f"value = {name!r}\n")
    done = run_driver(
        """
        sys.path.insert(0, sys.argv[1] + "/program")
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def look():
            import module_of_both
            return module_of_both.value
        working_dir = "local://" + sys.argv[1] + "/working"
        print(ray.get([look.remote(), look.options(runtime_env={"working_dir": working_dir}).remote()]))
        """,
        str(tmp_path),
        PYTHONPATH=os.pathsep.join(filter(None, [str(tmp_path / "working"), os.environ.get("PYTHONPATH")])),
    )
    assert done.stdout == "['program', 'working']\n", done.stderr


def test_directories_that_every_node_has(tmp_path: Path) -> None:
    working, modules = tmp_path / "working", tmp_path / "modules"
    package = modules / "a_package_of_mine"
    package.mkdir(parents=True)
    working.mkdir()
    (package / "__init__.py").write_text("value = 'from the package'\n")
    (working / "a_module_of_mine.py").write_text("value = 'from the working directory'\n")
    (working / "data.txt").write_text("data")

    @ray.remote(runtime_env={"working_dir": f"local://{working}", "py_modules": [f"local://{modules}"]})
    def look() -> Any:
        import a_module_of_mine  # type: ignore[import-not-found]
        import a_package_of_mine  # type: ignore[import-not-found]

        return Path("data.txt").read_text(), a_module_of_mine.value, a_package_of_mine.value

    assert ray.get(look.remote()) == ("data", "from the working directory", "from the package")
    assert ray.get(directory.remote()) == os.getcwd()


@ray.remote
def directory() -> str:
    return os.getcwd()


def test_a_working_dir_that_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    working = tmp_path / "gone"
    working.mkdir()
    task = directory.options(runtime_env={"working_dir": f"local://{working}"})
    working.rmdir()
    with pytest.raises(RuntimeEnvSetupError, match="local://.*/gone must be a directory of every node, but .* is none here"):
        ray.get(task.remote())
    assert ray.get(directory.remote()) == os.getcwd()


def test_the_context_tells_the_environment() -> None:
    @ray.remote(runtime_env={"env_vars": {"A": "1"}})
    def look() -> Any:
        return ray.get_runtime_context().runtime_env

    env_vars = {"OF_THE_JOB": "job", "OF_BOTH": "job", "A": "1"}
    assert ray.get(look.remote()) == {"env_vars": env_vars}
    uri = f"local://{os.getcwd()}"
    assert ray.get(look.options(runtime_env={"working_dir": uri}).remote())["working_dir"] == uri


def test_a_child_task_cannot_bring_a_directory_of_its_own(tmp_path: Path) -> None:
    """As in Ray: only ``init`` uploads."""

    @ray.remote
    def parent(environment: dict[str, Any]) -> str:
        with pytest.raises(ValueError, match="is not a valid URI") as caught:
            directory.options(runtime_env=environment)
        return str(caught.value)

    for environment in ({"working_dir": str(tmp_path)}, {"py_modules": [str(tmp_path)]}):
        assert "pass them to minray.init(runtime_env=...)" in ray.get(parent.remote(environment))
        with pytest.raises(ValueError, match="is not a valid URI"):
            ray.remote(runtime_env=environment)(directory._function)
        with pytest.raises(ValueError, match="is not a valid URI"):
            ray.remote(type("Actor", (), {})).options(runtime_env=environment)


def test_workers_import_the_drivers_modules(tmp_path: Path) -> None:
    (tmp_path / "my_functions.py").write_text("def double(x):\n    return 2 * x\n\nclass Mine(Exception):\n    pass\n")
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "import minray as ray\n"
        "from my_functions import Mine, double\n"
        "ray.init(num_cpus=1, logging_level='ERROR')\n"
        "@ray.remote\n"
        "def fail():\n"
        "    raise Mine(double(2))\n"
        "print(ray.get(ray.remote(double).remote(4)))\n"
        "try:\n"
        "    ray.get(fail.remote())\n"
        "except Mine as error:\n"
        "    print(error.cause.args)\n"
    )
    text = "import runpy; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[1] + '/program.py', run_name='__main__')"
    done = run_driver(text, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "8\n(4,)\n"), done.stderr


def test_modules_in_the_working_directory_do_not_hide_pythons(tmp_path: Path) -> None:
    """As little as they do in a driver whose program lies elsewhere."""
    for name in ("random", "queue", "minray"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    done = run_driver(
        """
        import os
        sys.path[:] = [entry for entry in sys.path if entry]
        os.chdir(sys.argv[1])
        ray.init(num_cpus=1, logging_level="ERROR")

        @ray.remote
        def look():
            import queue, random
            return os.getcwd() == sys.argv[1], sys.argv[1] in sys.path, queue.__file__ and random.__file__ and "found"

        print(ray.get(look.remote()))
        """.replace("sys.argv[1]", repr(str(tmp_path))),
    )
    assert done.stdout == "(True, False, 'found')\n", done.stderr


def test_workers_share_the_drivers_working_directory_and_python(tmp_path: Path) -> None:
    @ray.remote
    def look() -> Any:
        return os.getcwd(), sys.executable, sys.version

    assert ray.get(look.remote()) == (os.getcwd(), sys.executable, sys.version)


def test_the_drivers_variables_reach_its_workers() -> None:
    done = run_driver(
        """
        import os
        ray.init(num_cpus=1, logging_level="ERROR")
        print(ray.get(ray.remote(lambda: os.environ["OF_THE_DRIVER"]).remote()))
        """,
        OF_THE_DRIVER="yes",
    )
    assert done.stdout == "yes\n", done.stderr
