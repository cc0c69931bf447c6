"""The ``working_dir`` and ``py_modules`` of a job: packed by ``init``, unpacked where tasks run."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.real.support import run_driver

LOOK = """
import os

@ray.remote
def look(*modules):
    return os.getcwd(), sorted(set(os.listdir(".")) - {"__pycache__"}), [__import__(name).value for name in modules]

@ray.remote
class Looker:
    def look(self, *modules):
        return os.getcwd(), sorted(set(os.listdir(".")) - {"__pycache__"}), [__import__(name).value for name in modules]
"""


def output_of(program: str, *arguments: str, **environment: str) -> list[str]:
    lines = "\n".join(line.removeprefix(" " * 8) for line in program.splitlines())
    done = run_driver(LOOK + lines, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def working(tmp_path: Path) -> Path:
    made = tmp_path / "working"
    (made / "data").mkdir(parents=True)
    (made / "a_module_of_mine.py").write_text("value = 'working'\n")
    (made / "data" / "x.log").write_text("log")
    return made


@pytest.fixture
def package(tmp_path: Path) -> Path:
    made = tmp_path / "modules" / "a_package_of_mine"
    made.mkdir(parents=True)
    (made / "__init__.py").write_text("value = 'package'\n")
    return made


def test_tasks_and_actors_run_in_a_copy_that_the_original_no_longer_changes(working: Path) -> None:
    printed = output_of(
        """
        ray.init(num_cpus=1, logging_level="ERROR", runtime_env={"working_dir": sys.argv[1], "excludes": ["*.log"]})
        open(sys.argv[1] + "/later.txt", "w").close()
        directory, names, values = ray.get(look.remote("a_module_of_mine"))
        print(os.path.dirname(directory) == ray.get_runtime_context().get_temp_dir() + "/"
              + ray.get_runtime_context().get_session_name() + "/runtime_resources", names, values)
        print(ray.get(Looker.remote().look.remote("a_module_of_mine")) == (directory, names, values))
        uri = ray.get_runtime_context().runtime_env["working_dir"]
        print(uri == "gcs://" + os.path.basename(directory) + ".zip")
        child = look.options(runtime_env={"working_dir": uri, "env_vars": {"A": "1"}})
        print(ray.get(child.remote())[0] == directory, oct(os.stat(directory).st_mode & 0o777))
        ray.shutdown()
        print(os.path.exists(directory))
        """,
        str(working),
    )
    assert printed == ["True ['a_module_of_mine.py'] ['working']", "True", "True", "True 0o700", "False"]


def test_modules_are_imported_wherever_they_come_from(tmp_path: Path, package: Path) -> None:
    (tmp_path / "a_file_of_mine.py").write_text("value = 'file'\n")
    wheel = tmp_path / "wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a_wheel_of_mine.py", "value = 'wheel'\n")
        archive.writestr("wheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: wheel\nRequires-Dist: pytest\n")
    printed = output_of(
        """
        sys.path.insert(0, os.path.dirname(sys.argv[1]))
        import a_package_of_mine
        sys.path.pop(0)
        ray.init(num_cpus=1, logging_level="ERROR", runtime_env={"py_modules": [a_package_of_mine, *sys.argv[2:]]})
        print(ray.get(look.remote("a_package_of_mine", "a_file_of_mine", "a_wheel_of_mine"))[2])
        """,
        *map(str, (package, tmp_path / "a_file_of_mine.py", wheel)),
    )
    assert printed == ["['package', 'file', 'wheel']"]


def test_an_archive_can_be_the_working_dir(tmp_path: Path, working: Path) -> None:
    with zipfile.ZipFile(tmp_path / "working.zip", "w") as archive:
        archive.write(working / "a_module_of_mine.py", "a_module_of_mine.py")
    subprocess.run(["tar", "czf", tmp_path / "working.tar.gz", "-C", working, "."], check=True)
    for name in ("working.zip", "working.tar.gz"):
        printed = output_of(
            """
            ray.init(num_cpus=1, logging_level="ERROR", runtime_env={"working_dir": sys.argv[1]})
            print(ray.get(look.remote("a_module_of_mine"))[2])
            """.replace("    " * 3, "    " * 2),
            str(tmp_path / name),
        )
        assert printed == ["['working']"]


def test_a_large_package_is_an_object_of_the_driver(working: Path) -> None:
    (working / "large.bin").write_bytes(os.urandom(6 << 20))
    printed = output_of(
        """
        from minray.util.state import list_objects
        ray.init(num_cpus=2, logging_level="ERROR", runtime_env={"working_dir": sys.argv[1]})
        print(ray.get([look.remote("a_module_of_mine") for _ in range(4)])[3][1:])
        print([one.object_size > 6 << 20 for one in list_objects()])
        ray.shutdown()
        ray.init(num_cpus=1, logging_level="ERROR")
        print(list_objects(), "working" in ray.get(look.remote())[0])
        """,
        str(working),
    )
    assert printed == ["(['a_module_of_mine.py', 'data', 'large.bin'], ['working'])", "[True]", "[] False"]


def test_a_directory_that_cannot_be_uploaded_is_an_error_before_a_cluster_begins(working: Path) -> None:
    printed = output_of(
        """
        import minray.node.packages
        minray.node.packages.LIMIT_BYTES = 100
        try:
            ray.init(num_cpus=1, runtime_env={"working_dir": sys.argv[1]})
        except ray.exceptions.RuntimeEnvSetupError as error:
            print("Leave large files out" in str(error), ray.is_initialized())
        """,
        str(working),
    )
    assert printed == ["True False"]


def test_an_upload_that_fails_ends_the_connection_and_the_cluster(working: Path) -> None:
    (working / "large.bin").write_bytes(os.urandom(6 << 20))
    printed = output_of(
        """
        from minray.core_worker.user_threads.user_api import UserApi
        from minray.exceptions import ObjectStoreFullError
        put = UserApi.put

        def full(self, value):
            raise ObjectStoreFullError(reason="no room")

        UserApi.put = full
        try:
            ray.init(num_cpus=1, logging_level="ERROR", runtime_env={"working_dir": sys.argv[1]})
        except ray.exceptions.RuntimeEnvSetupError as error:
            print("cannot be uploaded" in str(error) and "no room" in str(error), ray.is_initialized())
        UserApi.put = put
        ray.init(num_cpus=1, logging_level="ERROR", runtime_env={"working_dir": sys.argv[1]})
        print(ray.get(look.remote("a_module_of_mine"))[2])
        """,
        str(working),
    )
    assert printed == ["True False", "['working']"]


def test_a_package_of_another_job_is_not_there(working: Path) -> None:
    printed = output_of(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        try:
            ray.get(look.options(runtime_env={"working_dir": "gcs://_ray_pkg_0123.zip"}).remote())
        except ray.exceptions.RuntimeEnvSetupError as error:
            print("has not uploaded gcs://_ray_pkg_0123.zip" in str(error))
        """
    )
    assert printed == ["True"]
