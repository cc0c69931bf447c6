"""``RuntimeEnv`` and ``RuntimeEnvConfig``: a runtime environment that is checked when it is made.

Ray: python/ray/runtime_env/runtime_env.py

The option ``runtime_env`` takes any dict with the same keys.
"""

from __future__ import annotations

from typing import Any

from minray.api.runtime_environment import check_job_runtime_env, checked_config

__all__ = ["RuntimeEnv", "RuntimeEnvConfig"]


class RuntimeEnvConfig(dict[str, Any]):
    """``RuntimeEnvConfig(setup_timeout_seconds=600, eager_install=True, log_files=None)``: how Ray sets an environment up.

    minray checks the values, and they have no effect: nothing is installed. Raises TypeError, ValueError.
    """

    def __init__(
        self, setup_timeout_seconds: int = 600, eager_install: bool = True, log_files: list[str] | None = None
    ) -> None:
        given = {"setup_timeout_seconds": setup_timeout_seconds, "eager_install": eager_install}
        super().__init__(checked_config("RuntimeEnvConfig", {**given, "log_files": log_files}), log_files=log_files or [])

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


class RuntimeEnv(dict[str, Any]):
    """``RuntimeEnv(env_vars={"A": "1"}, working_dir=..., py_modules=[...])``; fields that are None are left out.

    ``excludes``: patterns, as in a ``.gitignore``, of files that are not uploaded. ``pip``, ``uv``, ``conda`` and
    ``py_executable`` must be met by the Python that is here, since minray installs nothing. ``config`` has no effect. For
    ``init`` also ``worker_process_setup_hook``: a function, or the name of one, which each worker calls first.

    Raises ValueError for other fields, for paths that do not exist and for packages that are not installed, TypeError for
    wrong types.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})
        check_job_runtime_env("RuntimeEnv", self)

    def env_vars(self) -> dict[str, str]:
        return dict(self.get("env_vars") or {})

    def has_working_dir(self) -> bool:
        return bool(self.get("working_dir"))

    def working_dir(self) -> str:
        """Return the path or URI; empty if there is none."""
        return self.get("working_dir") or ""

    def py_modules(self) -> list[Any]:
        return list(self.get("py_modules") or ())

    def py_executable(self) -> str | None:
        return self.get("py_executable")

    def has_pip(self) -> bool:
        return bool(self.get("pip"))

    def has_uv(self) -> bool:
        return bool(self.get("uv"))

    def has_conda(self) -> bool:
        return bool(self.get("conda"))

    def to_dict(self) -> dict[str, Any]:
        """Return the given fields as a plain dict."""
        return dict(self)
