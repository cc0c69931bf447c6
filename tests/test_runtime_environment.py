"""Runtime environments as users write them: what is accepted, and what an error says. No cluster is needed."""

from __future__ import annotations

import email
import io
import json
import logging
import os
import sys
import types
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import minray.node.packages
from minray.api.runtime_environment import check_runtime_env, merge_runtime_env
from minray.common.task_spec import RuntimeEnvInfo
from minray.exceptions import RuntimeEnvSetupError
from minray.node.packages import pack
from minray.runtime_env import RuntimeEnv, RuntimeEnvConfig

PYTEST = metadata.version("pytest")
MISSING = "surely-not-installed is not installed"
NOTHING = "minray installs nothing: install it on every node, into the environment from which the cluster is started"


def complaint(**fields: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        RuntimeEnv(**fields)
    return f"{type(caught.value).__name__}: {caught.value}"


# --- pip, uv, conda, py_executable


@pytest.mark.parametrize("field", ["pip", "uv"])
def test_packages_that_are_here_are_accepted_in_every_form(tmp_path: Path, field: str) -> None:
    requirements, more = tmp_path / "requirements.txt", tmp_path / "more.txt"
    more.write_text(f"pytest=={PYTEST} --hash=sha256:0123\n")
    requirements.write_text(
        "# comment\n\n--index-url https://example.org/simple\n-r more.txt\npytest>=1 \\\n  ,<1000  # and a comment\n"
        "gone; python_version < '3'\n--no-binary :all:\n"
    )
    version = {f"{field}_version": "==1.2", f"{field}_check": True}
    options = {"pip": {"pip_install_options": ["--pre"]}, "uv": {"uv_pip_install_options": ["--pre"]}}[field]
    for given in ([], ["pytest>=1", "msgspec"], {"packages": ["pytest"]}, {"packages": ["pytest"], **version, **options}):
        assert RuntimeEnv(**{field: given})[field] == given
    for path in (str(requirements), requirements, {"packages": str(requirements)}):
        assert RuntimeEnv(**{field: path})[field] == path


@pytest.mark.parametrize("field", ["pip", "uv"])
def test_packages_that_are_missing_are_named_with_what_is_here(tmp_path: Path, field: str) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("pytest\nsurely-not-installed\n")
    for given in (["surely-not-installed"], {"packages": ["surely-not-installed"]}, str(requirements)):
        assert complaint(**{field: given}) == f"ValueError: RuntimeEnv[{field!r}]: {MISSING}. {NOTHING}"
    both = complaint(**{field: ["surely-not-installed", "pytest<2"]})
    assert f"{MISSING}; pytest<2 is not installed; pytest {PYTEST} is. " in both


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "TypeError: RuntimeEnv['pip'] must be a list of str, the path of a requirements.txt or a dict, not 3"),
        ([3], "TypeError: RuntimeEnv['pip'] must be a list of str"),
        ("nowhere.txt", "ValueError: RuntimeEnv['pip']: 'nowhere.txt' is not a file here"),
        ({}, "ValueError: RuntimeEnv['pip'] must include the field 'packages'"),
        ({"packages": [], "x": 1}, "ValueError: RuntimeEnv['pip'] can only have the fields packages, pip_check"),
        ({"packages": [], "pip_check": 1}, "TypeError: RuntimeEnv['pip']['pip_check'] must be a bool, not 1"),
        ({"packages": [], "pip_version": 1}, "TypeError: RuntimeEnv['pip']['pip_version'] must be a str, not 1"),
        ({"packages": [], "pip_install_options": [1]}, "['pip_install_options'] must be a list of str, not [1]"),
        (["-e ."], "ValueError: RuntimeEnv['pip']: '-e .' is not a requirement such as 'numpy>=2'; minray can only look"),
    ],
)
def test_forms_that_ray_refuses_too(given: Any, words: str) -> None:
    assert words in complaint(pip=given)


def test_a_requirements_file_that_includes_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r a.txt\n")
    assert "includes itself" in complaint(pip=str(tmp_path / "a.txt"))


def test_only_one_installer_at_a_time() -> None:
    words = "the fields 'pip', 'uv' and 'conda' cannot be specified at the same time, but ['pip', 'conda'] are"
    assert words in complaint(pip=["pytest"], conda="x")


@pytest.fixture
def conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conda environment ``mine`` in which this Python seems to run."""
    prefix = tmp_path / "mine"
    (prefix / "conda-meta").mkdir(parents=True)
    for name, version in (("ffmpeg", "6.1.1"), ("numpy-base", "9.9")):
        record = {"name": name, "version": version}
        (prefix / "conda-meta" / f"{name}-{version}-h0123_0.json").write_text(json.dumps(record))
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return prefix


def test_a_conda_environment_that_runs_here_is_accepted_in_every_form(conda: Path) -> None:
    dependencies = [
        "python", f"python={sys.version_info.major}", "ffmpeg=6", "ffmpeg=6.1.1=h0123_0", "conda-forge::ffmpeg>=5,<7",
        "ffmpeg 6.1.1 h0123_0", f"pytest=={PYTEST}", {"pip": ["pytest>=1", "msgspec"]},
    ]  # fmt: skip
    whole = {"name": "any", "channels": ["defaults"], "dependencies": dependencies}
    path = conda.parent / "environment.yml"
    path.write_text(json.dumps(whole))
    for given in ("mine", str(conda), whole, {}, str(path), path):
        assert RuntimeEnv(conda=given)["conda"] == given


def test_a_conda_environment_that_is_not_here_is_an_error_that_says_what_to_do(conda: Path) -> None:
    for given in ("other", str(conda.parent / "other")):
        words = f"does not run in the conda environment {given!r} but in {conda}. minray starts its workers in the"
        assert words in complaint(conda=given)
    for dependency, words in (
        ("ffmpeg=7", "ffmpeg=7 is not installed; ffmpeg 6.1.1 is"),
        ("surely-not-installed=1.2", "surely-not-installed==1.2.* is not installed"),
        ("python=2.7", "python=2.7 is not installed; python 3."),
        ({"pip": ["surely-not-installed"]}, f"RuntimeEnv['conda']['pip']: {MISSING}. {NOTHING}"),
    ):
        assert words in complaint(conda={"dependencies": [dependency]})
    assert "there is no YAML file 'nowhere.yml' here" in complaint(conda="nowhere.yml")
    assert complaint(conda=3).startswith("TypeError: RuntimeEnv['conda'] must be the name or path of an environment")


def test_the_python_of_this_program_may_be_named() -> None:
    RuntimeEnv(py_executable=sys.executable)
    words = f"is not the Python of this program, {os.path.abspath(sys.executable)}. minray starts its workers with"
    for other in ("/bin/sh", "uv run --python 3.9", "nowhere", f"{sys.executable} -X dev"):
        assert words in complaint(py_executable=other)
    assert complaint(py_executable=3).startswith("TypeError: RuntimeEnv['py_executable'] must be a path or a command")


# --- other fields


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("container", "minray starts no containers"),
        ("image_uri", "minray starts no containers"),
        ("nsight", "minray starts its workers without profilers"),
        ("_rocprof_sys", "minray starts its workers without profilers"),
        ("java_jars", "minray runs Python alone"),
    ],
)
def test_fields_that_minray_refuses_say_why(field: str, why: str) -> None:
    words = f"ValueError: RuntimeEnv has the field {field!r}, which is not supported: {why}"
    assert complaint(**{field: "x"}).startswith(words)
    assert "RuntimeEnv has the unknown field 'piip'; fields are env_vars, working_dir" in complaint(piip=["x"])


def test_a_variable_that_is_no_text_is_named() -> None:
    assert complaint(env_vars={"A": 1}) == (
        "TypeError: RuntimeEnv: env_vars must be a dict from str to str, but the value of 'A' is 1"
    )
    assert "but has the key 1" in complaint(env_vars={1: "1"})
    assert "env_vars must be a dict from str to str, not list" in complaint(env_vars=["A"])


def test_the_config_is_checked_and_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    config = RuntimeEnvConfig(setup_timeout_seconds=60, eager_install=False)
    assert config == {"setup_timeout_seconds": 60, "eager_install": False, "log_files": []}
    assert type(config.to_dict()) is dict and config.to_dict() == config
    assert RuntimeEnvConfig() == {"setup_timeout_seconds": 600, "eager_install": True, "log_files": []}
    for given in (config, {"setup_timeout_seconds": -1}, {}):
        assert RuntimeEnv(config=given)["config"] == given
    for wrong in ({"setup_timeout_seconds": 0}, {"setup_timeout_seconds": "1"}, {"eager_install": 1}, {"log_files": "x"}, 3):
        assert "RuntimeEnv['config']" in complaint(config=wrong)
    with pytest.raises(ValueError, match="greater than zero or -1, but is 0"):
        RuntimeEnvConfig(setup_timeout_seconds=0)
    with caplog.at_level(logging.WARNING, "minray"):
        RuntimeEnv(config={"timeout": 3})
    assert "the unknown fields ['timeout'] are ignored" in caplog.text


def test_a_runtime_env_says_what_it_was_given() -> None:
    empty, full = RuntimeEnv(), RuntimeEnv(env_vars={"A": "1"}, working_dir=".", py_modules=["."], pip=["pytest"])
    assert (empty.env_vars(), empty.working_dir(), empty.py_modules(), empty.to_dict()) == ({}, "", [], {})
    assert (full.env_vars(), full.working_dir(), full.py_modules()) == ({"A": "1"}, ".", ["."])
    assert type(full.to_dict()) is dict and full.to_dict() == full
    assert (full.has_working_dir(), full.has_pip(), full.has_uv(), full.has_conda()) == (True, True, False, False)
    assert full.py_executable() is None and not empty.has_working_dir()


# --- directories


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"working_dir": 3}, "TypeError: RuntimeEnv: working_dir must be a path, not int"),
        ({"working_dir": "no/where"}, "ValueError: RuntimeEnv: working_dir 'no/where' is not a directory here"),
        ({"working_dir": __file__}, "is not a directory here, and no .zip, .tar.gz, .tgz, .tar.xz file"),
        ({"working_dir": "s3://bucket/x.zip"}, "would have to be downloaded, which minray does not do"),
        ({"working_dir": "local://x"}, "has no absolute path"),
        ({"working_dir": "gcs://"}, "does not name an uploaded package"),
        ({"working_dir": "gcs://../x.zip"}, "does not name an uploaded package"),
        ({"working_dir": "gcs://...zip"}, "does not name an uploaded package"),
        ({"py_modules": "x"}, "TypeError: RuntimeEnv: py_modules must be a list, not str"),
        ({"py_modules": [3]}, "TypeError: RuntimeEnv: py_modules holds paths or modules, not int"),
        ({"py_modules": ["no/where"]}, "ValueError: RuntimeEnv: py_modules names 'no/where', which does not exist here"),
        ({"py_modules": [sys]}, "ValueError: RuntimeEnv: py_modules names None"),
        ({"py_modules": ["setup.cfg"]}, "is no directory, no .py file and no .whl file"),
        ({"excludes": "*.log"}, "TypeError: RuntimeEnv: excludes must be a list of str, not '*.log'"),
        ({"excludes": [1]}, "TypeError: RuntimeEnv: excludes must be a list of str, not [1]"),
    ],
)
def test_what_cannot_be_uploaded_is_said_where_it_is_written(fields: dict[str, Any], words: str) -> None:
    assert words in complaint(**fields)


def test_a_module_in_several_directories_is_refused() -> None:
    module = types.ModuleType("spread")
    module.__path__ = ["/a", "/b"]
    assert "'spread', which lies in several directories" in complaint(py_modules=[module])


@pytest.mark.parametrize(
    "environment",
    [
        {"working_dir": "."},
        {"working_dir": os.getcwd()},
        {"working_dir": Path()},
        {"working_dir": "no/where"},
        {"py_modules": ["."]},
        {"py_modules": [email]},
        {"py_modules": ["local:///x", "."]},
        RuntimeEnv(working_dir="."),
    ],
)
def test_a_task_cannot_have_local_paths(environment: Any) -> None:
    """As in Ray, where only ``init`` uploads."""
    with pytest.raises(ValueError, match="is not a valid URI. Directories and modules are uploaded for whole jobs alone"):
        check_runtime_env("runtime_env", environment)


def test_a_task_may_name_what_is_uploaded_or_on_every_node() -> None:
    environment = {"working_dir": "gcs://_ray_pkg_01.zip", "py_modules": ["local:///x"], "excludes": [], "pip": ["pytest"]}
    check_runtime_env("runtime_env", environment)
    check_runtime_env("runtime_env", {"working_dir": "", "py_modules": [], "env_vars": {}, "config": None})
    base = RuntimeEnvInfo((("A", "1"), ("B", "1")), "gcs://of_the_job.zip", ("gcs://m.zip",))
    assert merge_runtime_env(base, {"env_vars": {"B": "2", "C": "2"}, "working_dir": ""}) == RuntimeEnvInfo(
        (("A", "1"), ("B", "2"), ("C", "2")), "gcs://of_the_job.zip", ("gcs://m.zip",)
    )
    merged = merge_runtime_env(base, environment)
    assert (merged.working_dir, merged.py_modules) == ("gcs://_ray_pkg_01.zip", ("local:///x",))


# --- packing


def test_equal_directories_are_one_package_with_a_name_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text("x = 1\n")
    uris = [pack({"working_dir": tmp_path / name}).environment["working_dir"] for name in ("one", "other")]
    assert uris[0] == uris[1] and uris[0].startswith("gcs://_ray_pkg_") and uris[0].endswith(".zip")
    both = pack({"py_modules": [str(tmp_path / "one"), str(tmp_path / "one"), str(tmp_path / "other"), "local:///x"]})
    modules = both.environment["py_modules"]
    assert modules[0] == modules[1] != modules[2] and modules[3] == "local:///x" and len(both.packages) == 2


def test_what_ray_leaves_out_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".git", ".venv", "venv", "__pycache__", "kept", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    (tmp_path / ".gitignore").write_text("kept\n")

    def packed(**environment: Any) -> set[str]:
        (package,) = pack({"working_dir": str(tmp_path), **environment}).packages
        return {name.removesuffix("/x") for name in zipfile.ZipFile(io.BytesIO(package.archive)).namelist()} - {".gitignore"}

    assert packed() == {"mine"} and packed(excludes=["mine"]) == set()
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    assert packed() == {"mine", "kept"}
    monkeypatch.setenv("MINRAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", "venv, mine")
    assert packed() == {".git", ".venv", "__pycache__", "kept"}


def test_a_directory_above_the_limit_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minray.node.packages, "LIMIT_BYTES", 1 << 20)
    (tmp_path / "large").write_bytes(bytes(1 << 20))
    words = r"cannot be uploaded: it has more than 1 MiB. Leave large files out with runtime_env=\{'excludes': \[...\]\}"
    for environment in ({"working_dir": str(tmp_path)}, {"py_modules": [str(tmp_path)]}):
        with pytest.raises(RuntimeEnvSetupError, match=words):
            pack(environment)
    assert len(pack({"working_dir": str(tmp_path), "excludes": ["large"]}).packages) == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(b"no archive")
    with pytest.raises(RuntimeEnvSetupError, match="cannot be packed: .*bad.zip' is no archive that can be read"):
        pack({"working_dir": str(tmp_path / "bad.zip")})
