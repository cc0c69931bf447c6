"""What a user has written once, a function or a class, and how it comes to the workers.

Ray: python/ray/_private/function_manager.py (export, export_actor_class), python/ray/remote_function.py

A definition is pickled and exported at its first use (G15), or when it is first captured by something else that is pickled.
Copies made by ``.options`` share the export, and copies in other processes of the job find it by its id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray import worker
from minray.core_worker.task_manager import FunctionExport
from minray.core_worker.user_api import UserApi


class Definition:
    """One Python function or class, shared by everything remote that is made of it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.function_id = b""
        """Empty before its first use in the job below."""
        self.job_id = b""
        self.export: FunctionExport | None = None
        """In a process that has exported it itself."""
        self.exported_by: object = None

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", repr(self.function)))

    def export_through(self, api: UserApi) -> FunctionExport:
        """Make the definition known to the cluster, unless it is."""
        export = self.export
        if export is None or self.exported_by is not api.mark:
            # A copy was exported by whom it comes from. (Job ids repeat in other clusters, so equal ones prove nothing.)
            is_copy = self.exported_by is None
            self.exported_by = api.mark
            if is_copy and self.function_id and self.job_id == api.core.job_id:
                self.export = export = FunctionExport(self.function_id, True)
            else:
                self.function_id, self.job_id = api.new_function_id(), api.core.job_id
                self.export = export = FunctionExport(self.function_id, False)  # first: it may refer to itself
                try:
                    api.export(export, self.function)
                except BaseException:
                    self.function_id, self.export = b"", None
                    raise
        return export

    def __getstate__(self) -> dict[str, Any]:
        api = worker.connected_api()
        if api is not None:
            self.export_through(api)
        return {"function": self.function, "function_id": self.function_id, "job_id": self.job_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, export=None, exported_by=None)
