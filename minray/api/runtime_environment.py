"""Runtime environments of jobs, tasks and actors: their checks, and how a child's is merged into its parent's.

Ray: python/ray/_private/runtime_env/validation.py, python/ray/runtime_env/runtime_env.py

Errors are Ray's: TypeError for a wrong type, ValueError for everything else. A local path belongs to a job, because only
``init`` packs and uploads directories. A task or an actor names a package that is uploaded already (``gcs://``), or a
directory that every node has (``local://``).

Left out: containers, profilers, and what is downloaded from elsewhere (``https://``, ``s3://``). Ray takes unknown fields
for those of plugins; here they are errors, because a misspelled field would have no effect.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import types
from collections.abc import Mapping
from typing import Any

from minray.common.environment_variables import is_environment
from minray.common.package_uri import ARCHIVES, LOCAL, SCHEME, UPLOADED, WHEEL
from minray.common.shown import check_encodable, shown
from minray.common.task_spec import RuntimeEnvInfo
from minray.errors.tracebacks import hides_from_pytest

__tracebackhide__ = hides_from_pytest
logger = logging.getLogger("minray")

SETUP_HOOK = "worker_process_setup_hook"
INSTALLERS = ("pip", "uv", "conda", "py_executable")
"""Fields for which Ray installs something; ``installed_packages`` checks them."""
RUNTIME_ENV_FIELDS = ("env_vars", "working_dir", "py_modules", "excludes", SETUP_HOOK, *INSTALLERS, "config")
CONFIG_FIELDS = ("setup_timeout_seconds", "eager_install", "log_files")
"""Fields of ``config``. They are about installing, and have no effect."""
REFUSED_FIELDS = {
    **dict.fromkeys(("container", "image_uri"), "minray starts no containers: start the cluster inside of one"),
    **dict.fromkeys(
        ("nsight", "_nsight", "rocprof_sys", "_rocprof_sys"), "minray starts its workers without profilers"
    ),
    "java_jars": "minray runs Python alone",
}
"""Fields of Ray that minray refuses, and why."""


def check_runtime_env(name: str, value: Any) -> None:
    """Check the runtime environment of a task or an actor.

    Raises TypeError for wrong types, ValueError for unknown fields, missing packages, and what only a job can have.
    """
    if isinstance(value, Mapping):
        _refuse_what_is_a_jobs(name, value)
    check_job_runtime_env(name, value)


def _refuse_what_is_a_jobs(name: str, value: Mapping[str, Any]) -> None:
    if value.get(SETUP_HOOK) is not None:
        raise ValueError(f"{name}: {SETUP_HOOK} is for all workers of a job: pass it to minray.init(runtime_env=...)")
    modules = value.get("py_modules")
    paths = [value.get("working_dir"), *(modules if isinstance(modules, list | tuple) else ())]
    for path in filter(None, paths):
        if not isinstance(path, str) or not SCHEME.match(path):
            named = path.__name__ if isinstance(path, types.ModuleType) else path
            raise ValueError(
                f"{name}: {shown(named)} is not a valid URI. Directories and modules are uploaded for whole jobs alone: "
                f"pass them to minray.init(runtime_env=...), or write {LOCAL}/path for a directory that every node has"
            )


def check_job_runtime_env(name: str, value: Any) -> None:
    """Check the runtime environment of a job, which may also have a setup hook and local paths.

    Raises TypeError, ValueError.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, not {type(value).__name__}")
    for key in value:
        if key in REFUSED_FIELDS:
            raise ValueError(f"{name} has the field {shown(key)}, which is not supported: {REFUSED_FIELDS[key]}")
        if key not in RUNTIME_ENV_FIELDS:
            raise ValueError(f"{name} has the unknown field {shown(key)}; fields are {', '.join(RUNTIME_ENV_FIELDS)}")
    _check_hook(name, value.get(SETUP_HOOK))
    _check_env_vars(name, value.get("env_vars"))
    if value.get("working_dir"):
        _check_working_dir(name, value["working_dir"])
    modules = value.get("py_modules") or []
    if not isinstance(modules, list | tuple):
        raise TypeError(f"{name}: py_modules must be a list, not {type(modules).__name__}")
    for module in modules:
        _check_module(name, module)
    excludes = value.get("excludes") or []
    if not isinstance(excludes, list | tuple) or not all(isinstance(pattern, str) for pattern in excludes):
        raise TypeError(f"{name}: excludes must be a list of str, not {shown(excludes)}")
    if value.get("config") is not None:
        checked_config(f"{name}['config']", value["config"])
    if not value.keys().isdisjoint(INSTALLERS):
        from minray.api.installed_packages import check_installed  # It imports much, and few programs need it.

        check_installed(name, value)


def _check_env_vars(name: str, value: Any) -> None:
    if value is None:
        return
    if is_environment(value):
        for text in itertools.chain(*value.items()):
            check_encodable(f"{name}: a text of env_vars", text)
        return
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: env_vars must be a dict from str to str, not {type(value).__name__}")
    for key, text in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{name}: env_vars must be a dict from str to str, but has the key {shown(key)}")
        if not isinstance(text, str):
            wrong = f"the value of {shown(key)} is {shown(text)}"
            raise TypeError(f"{name}: env_vars must be a dict from str to str, but {wrong}")


def _check_hook(name: str, hook: Any) -> None:
    if isinstance(hook, str):
        if "." not in hook or not all(part.isidentifier() for part in hook.split(".")):
            raise ValueError(f"{name}: {SETUP_HOOK} {shown(hook)} is not a name such as module.function")
    elif hook is not None and not callable(hook):
        raise TypeError(f"{name}: {SETUP_HOOK} must be a function or the name of one, not {type(hook).__name__}")


def _check_working_dir(name: str, path: Any) -> None:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name}: working_dir must be a path, not {type(path).__name__}")
    path = os.fspath(path)
    check_encodable(f"{name}: working_dir", os.fsdecode(path))
    if SCHEME.match(path):
        _check_uri(f"{name}: working_dir", path)
    elif not os.path.isdir(path) and not (os.path.isfile(path) and path.endswith(ARCHIVES)):
        raise ValueError(f"{name}: working_dir {shown(path)} is not a directory here, and no {', '.join(ARCHIVES)} file")


def _check_module(name: str, module: Any) -> None:
    if isinstance(module, types.ModuleType):
        if len(getattr(module, "__path__", [""])) != 1:
            raise ValueError(f"{name}: py_modules has {module.__name__!r}, which lies in several directories: name them")
    elif not isinstance(module, str | os.PathLike):
        raise TypeError(f"{name}: py_modules holds paths or modules, not {type(module).__name__}")
    path = module_path(module)
    if path is not None and SCHEME.match(path):
        _check_uri(f"{name}: py_modules", path)
    elif path is None or not os.path.exists(path):
        raise ValueError(f"{name}: py_modules names {shown(path)}, which does not exist here")
    elif not os.path.isdir(path) and not path.endswith((".py", WHEEL)):
        raise ValueError(f"{name}: py_modules names {shown(path)}, which is no directory, no .py file and no {WHEEL} file")


def module_path(module: Any) -> str | None:
    """Return the path or URI of an entry of ``py_modules``; None for a module without a file."""
    if isinstance(module, types.ModuleType):
        path: str | None = next(iter(getattr(module, "__path__", ())), getattr(module, "__file__", None))
        return path
    return str(os.fspath(module))


def _check_uri(what: str, uri: str) -> None:
    path = uri.partition("://")[2]
    if uri.startswith(LOCAL):
        if not path.startswith("/"):
            raise ValueError(f"{what} {shown(uri)} has no absolute path; write {LOCAL}/path/on/every/node")
    elif not uri.startswith(UPLOADED):
        raise ValueError(
            f"{what} {shown(uri)} would have to be downloaded, which minray does not do: pass a local path to "
            f"minray.init(runtime_env=...), or {LOCAL}/path for a directory that every node has"
        )
    elif not re.fullmatch(r"\w[\w.-]*\.\w+", path):
        raise ValueError(f"{what} {shown(uri)} does not name an uploaded package such as {UPLOADED}_ray_pkg_0123abcd.zip")


def checked_config(name: str, config: Any) -> dict[str, Any]:
    """Return the known fields of ``config``; warn of others. Raises TypeError, ValueError."""
    if not isinstance(config, Mapping):
        raise TypeError(f"{name} must be a dict or a RuntimeEnvConfig, not {type(config).__name__}")
    if unknown := [key for key in config if key not in CONFIG_FIELDS]:
        logger.warning("%s: the unknown fields %s are ignored; fields are %s", name, unknown, ", ".join(CONFIG_FIELDS))
    timeout_s, eager = config.get("setup_timeout_seconds", -1), config.get("eager_install", True)
    if not isinstance(timeout_s, int) or isinstance(timeout_s, bool):
        raise TypeError(f"{name}: setup_timeout_seconds must be of type int, not {type(timeout_s).__name__}")
    if timeout_s <= 0 and timeout_s != -1:
        raise ValueError(f"{name}: setup_timeout_seconds must be greater than zero or -1, but is {timeout_s}")
    if not isinstance(eager, bool):
        raise TypeError(f"{name}: eager_install must be True or False, not {type(eager).__name__}")
    files = config.get("log_files") or []
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise TypeError(f"{name}: log_files must be a list of str, not {shown(files)}")
    return {key: config[key] for key in CONFIG_FIELDS if key in config}


def merge_runtime_env(base: RuntimeEnvInfo, value: Mapping[str, Any] | None) -> RuntimeEnvInfo:
    """Merge a checked runtime environment into that of the job or the parent task: variables are merged, URIs replaced."""
    if not value:
        return base
    env_vars = dict(base.env_vars) | dict(value.get("env_vars") or {})
    return RuntimeEnvInfo(
        env_vars=tuple(env_vars.items()),
        working_dir=value.get("working_dir") or base.working_dir,
        py_modules=tuple(value.get("py_modules") or base.py_modules),
    )
