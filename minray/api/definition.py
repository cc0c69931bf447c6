"""What a user has written once, a function or a class, and how it comes to the workers.

Ray: python/ray/_private/function_manager.py (export, export_actor_class), python/ray/remote_function.py

A definition is pickled and exported at its first use (G15), or when it is first captured by something else that is pickled.
Copies made by ``.options`` share the export, and copies in other processes of the job find it by its id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from minray.api import calls as worker
from minray.core_worker.records.pending_task import FunctionExport
from minray.core_worker.user_threads.user_api import UserApi


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
        self._underway: dict[int, FunctionExport] = {}
        """By thread: its exports that have begun. What is being pickled may refer to itself."""

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", repr(self.function)))

    def export_through(self, api: UserApi) -> FunctionExport:
        """Make the definition known to the cluster, unless it is.

        Several threads may do so at once: then it is known by several ids, and if it cannot be pickled, each hears of that.
        """
        export = self.export
        if export is not None and self.exported_by is api.mark:
            return export
        thread = threading.get_ident()
        if thread in self._underway:
            return self._underway[thread]
        # A copy was exported by whom it comes from. (Job ids repeat in other clusters, so equal ones prove nothing.)
        if self.exported_by is None and self.function_id and self.job_id == api.job_id:
            export = FunctionExport(self.function_id, True)
        else:
            export = self._underway[thread] = FunctionExport(api.new_function_id(), False)
            try:
                api.export(export, self.function)
            except Exception as error:
                error.add_note(f"(raised while {self.name} was pickled; minray.util.inspect_serializability finds the part)")
                raise
            finally:
                del self._underway[thread]
        self.function_id, self.job_id = export.function_id, api.job_id
        self.export, self.exported_by = export, api.mark
        return export

    def __getstate__(self) -> dict[str, Any]:
        api = worker.connected_api()
        if api is None:
            return {"function": self.function, "function_id": self.function_id, "job_id": self.job_id}
        export = self.export_through(api)
        return {"function": self.function, "function_id": export.function_id, "job_id": api.job_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, export=None, exported_by=None, _underway={})
