"""Definitions: a user's function or class, and its export to the workers.

Ray: python/ray/_private/function_manager.py (export, export_actor_class), python/ray/remote_function.py

A definition is pickled and exported at its first use (G15), or when another pickled value first refers to it.
Copies made by ``.options`` share the export, and copies in other processes of the job find it by its id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minray.api import calls as worker
from minray.api.unserializable import PICKLING_ERRORS, explain_value
from minray.core_worker.records.pending_task import FunctionExport
from minray.errors.tracebacks import hides_from_pytest

if TYPE_CHECKING:
    from minray.core_worker.user_threads.user_api import UserApi

__tracebackhide__ = hides_from_pytest


class Definition:
    """One Python function or class, shared by all remote functions or actor classes made of it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.function_id = b""
        """Id under which the definition was exported in job ``job_id``; empty before the first export."""
        self.job_id = b""
        self.export: FunctionExport | None = None
        """The export, once this process has used the definition; None before, and in an unpickled copy."""
        self.exported_by: object = None
        """Mark of the connection that made ``export``; a later connection exports again."""
        self._underway: dict[int, FunctionExport] = {}
        """Unfinished export of each thread, by thread id. It ends the recursion of a definition that refers to itself."""

    @property
    def name(self) -> str:
        name = str(getattr(self.function, "__name__", None) or repr(self.function))
        return name.encode(errors="backslashreplace").decode()

    def export_through(self, api: UserApi) -> FunctionExport:
        """Export the definition to the cluster, unless it is exported already; return the export.

        Several threads may do so at once. The definition then has several ids, and if it cannot be pickled, each thread
        raises the error.
        """
        export = self.export
        if export is not None and self.exported_by is api.mark:
            return export
        thread = threading.get_ident()
        if thread in self._underway:
            return self._underway[thread]
        # An unpickled copy was exported by its sender. (Equal job ids alone prove nothing: they repeat in other clusters.)
        if self.exported_by is None and self.function_id and self.job_id == api.job_id:
            export = FunctionExport(self.function_id, True)
        else:
            export = self._underway[thread] = FunctionExport(api.new_function_id(), False)
            try:
                api.export(export, self.function)
            except PICKLING_ERRORS:
                kind = "actor class" if isinstance(self.function, type) else "function"
                explain_value(f"the {kind} {self.name}", self.name, self.function)
            except Exception as error:
                error.add_note(f"(raised while {self.name} was serialized)")
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
