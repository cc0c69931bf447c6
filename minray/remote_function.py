"""``@minray.remote`` on a function.

Ray: python/ray/remote_function.py

A ``RemoteFunction`` is a definition with options. Calling ``.remote(...)`` submits a task and returns at once with a
reference to its result. The definition is pickled and exported at the first call (G15), or when it is first captured by
something else that is pickled; copies made by ``.options`` and copies in other processes share that export.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from minray import worker
from minray.core_worker.task_manager import FunctionExport, PreparedTemplate
from minray.core_worker.user_api import UserApi
from minray.object_ref import ObjectRef
from minray.task_options import STREAMING, check_options, make_template

P = ParamSpec("P")
R = TypeVar("R")


class _Definition:
    """One Python function, shared by all RemoteFunctions made from it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.function_id = b""
        """Empty before its first use in the job below."""
        self.job_id = b""
        self.export: FunctionExport | None = None
        """In a process that has exported it itself."""
        self.exported_by: UserApi | None = None

    def export_through(self, api: UserApi) -> FunctionExport:
        """Make the definition known to the cluster, unless it is."""
        export = self.export
        if export is None or self.exported_by is not api:
            # A copy was exported by whom it comes from. (Job ids repeat in other clusters, so equal ones prove nothing.)
            is_copy = self.exported_by is None
            self.exported_by = api
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


class RemoteFunction(Generic[P, R]):
    """A function whose calls are tasks: ``f.remote(x)`` returns an ``ObjectRef``."""

    def __init__(self, definition: _Definition, options: dict[str, Any]) -> None:
        self._definition = definition
        self._options = options
        self._prepared: PreparedTemplate | None = None
        self._prepared_by: UserApi | None = None
        functools.update_wrapper(self, definition.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        raise TypeError(
            f"remote function {self._name()} cannot be called directly: use {self._name()}.remote(...) to run it as a task"
        )

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R]:
        """Submit a task; returns an ObjectRef, a list of ``num_returns`` of them, or None for ``num_returns=0``.

        A generator function returns an ObjectRefGenerator, unless it has another ``num_returns`` than "streaming".
        """
        api = worker.current_api()
        prepared = self._prepared
        if prepared is None or self._prepared_by is not api:
            prepared = self._prepare(api)
        reference: ObjectRef[R] = api.submit(prepared, args, kwargs)
        return reference

    def options(self, **options: Any) -> RemoteFunction[P, R]:
        """The same function with other options; this object stays as it is."""
        check_options(options, at_call=True)
        merged = dict(self._options)
        for name, value in options.items():
            if name == "runtime_env" and value and merged.get(name):
                value = {**merged[name], **value}
            merged[name] = value
        return RemoteFunction(self._definition, merged)

    def _prepare(self, api: UserApi) -> PreparedTemplate:
        export = self._definition.export_through(api)
        options = self._options
        if options.get("num_returns") is None and inspect.isgeneratorfunction(self._definition.function):
            options = {**options, "num_returns": STREAMING}
        template = make_template(export.function_id, self._name(), options, api.core.job_id, api.base_environment())
        self._prepared, self._prepared_by = api.prepare(template, export), api
        return self._prepared

    def _name(self) -> str:
        return str(getattr(self._definition.function, "__qualname__", repr(self._definition.function)))

    def __getstate__(self) -> dict[str, Any]:
        return {"definition": self._definition, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._definition, self._options = state["definition"], state["options"]
        self._prepared = self._prepared_by = None

    def __repr__(self) -> str:
        return f"<remote function {self._name()}>"


@overload
def remote(function: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote(**options: Any) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...
def remote(*args: Any, **options: Any) -> Any:
    """Make a function remote: ``@remote``, ``@remote(num_cpus=2)``, or ``remote(f)``.

    Options and their defaults: ``num_cpus`` 1, ``num_gpus`` 0 (logical), ``memory`` (bytes), ``resources`` {},
    ``num_returns`` 1 ("streaming" for a generator function), ``max_retries`` 3, ``retry_exceptions`` False, ``max_calls`` 0
    (without limit; 1 with GPUs), ``name``, ``scheduling_strategy`` "DEFAULT", ``runtime_env``,
    ``_generator_backpressure_num_objects`` -1 (how many items of a generator may be unread; any number). Raises
    ValueError for an unknown option, TypeError for a wrong type.
    """
    if args:
        if len(args) != 1 or options or not callable(args[0]):
            raise TypeError("remote takes one function, or keyword options only: @remote or @remote(num_cpus=2, ...)")
        return _make_remote(args[0], {})
    if not options:
        raise TypeError("@remote() without options is written @remote")
    check_options(options, at_call=False)
    return lambda function: _make_remote(function, options)


def _make_remote(function: Any, options: dict[str, Any]) -> RemoteFunction[Any, Any]:
    if isinstance(function, RemoteFunction):
        raise TypeError(f"{function!r} is remote already; use .options(...) to change its options")
    if inspect.isclass(function):
        raise TypeError(f"class {function.__name__}: minray runs functions as tasks; classes (actors) are not supported")
    if not callable(function):
        raise TypeError(f"remote takes a function, not {type(function).__name__}")
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"{function.__name__} is an async function; make it a plain one and use asyncio.run inside")
    if inspect.isasyncgenfunction(function):
        raise ValueError(f"{function.__name__} is an async generator; make it a plain one and use asyncio.run inside")
    return RemoteFunction(_Definition(function), options)
