"""``RuntimeEnv``: a runtime environment that is checked when it is made.

Ray: python/ray/runtime_env/runtime_env.py

The option ``runtime_env`` takes any dict with the same keys.
"""

from __future__ import annotations

from typing import Any

from minray.api.task_options import check_job_runtime_env

__all__ = ["RuntimeEnv"]


class RuntimeEnv(dict[str, Any]):
    """``RuntimeEnv(env_vars={"A": "1"}, working_dir=..., py_modules=[...])``; fields that are None are left out.

    For ``init`` also ``worker_process_setup_hook``: a function, or the name of one, which each worker calls first.

    Raises ValueError for other fields and for paths that do not exist, TypeError for wrong types.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})
        check_job_runtime_env("RuntimeEnv", self)

    def env_vars(self) -> dict[str, str]:
        return dict(self.get("env_vars") or {})

    def working_dir(self) -> str | None:
        return self.get("working_dir")

    def py_modules(self) -> list[Any]:
        return list(self.get("py_modules") or ())

    def to_dict(self) -> dict[str, Any]:
        """Return the given fields as a plain dict."""
        return dict(self)
