"""Tracebacks between processes: taken apart in one process, rebuilt as real tracebacks in another.

Ray: python/ray/exceptions.py sends text only

Frames of minray itself are left out, so that users see only their own code. tblib rebuilds tracebacks too, but its frames
have the columns of a stand-in statement, so that Python underlines the wrong part of every line. Here the columns are kept.
"""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, cast

from minray.cloudpickle import PACKAGE
from minray.common.package import DIRECTORY

FRAMES = 200
"""Most frames of a traceback; a longer one (a runaway recursion) loses its middle."""

WORKERS_PROGRAM = ("<string>", "<module>")
"""File and function of the code line with which a worker was started."""


def spellings(directory: str) -> tuple[str, str]:
    """Return the prefixes of a path below this directory: in a Python traceback, and in faulthandler's, which is ASCII."""
    prefix = directory + os.sep
    return prefix, prefix.encode("ascii", "backslashreplace").decode()


_RUNTIME_DIRECTORIES = (*spellings(DIRECTORY), *spellings(PACKAGE))


class Frame(NamedTuple):
    """One line of a traceback."""

    filename: str
    function: str
    module: str
    place: tuple[int, int, int, int]
    """Line, end line, column and end column of the expression that Python underlines; columns are 0 if unknown."""


def is_runtime(filename: str) -> bool:
    """Return whether frames of this file belong to minray or to cloudpickle, not to the user."""
    return filename.startswith(_RUNTIME_DIRECTORIES)


def hides_from_pytest(raised: Any) -> bool:
    """Return whether pytest leaves out the frames of a module, which names it ``__tracebackhide__``.

    ``raised`` is pytest's ExceptionInfo. An assertion that fails in minray is minray's own bug, so its frames are shown.
    """
    return not raised.errisinstance(AssertionError)


def users_level() -> int:
    """Return the ``stacklevel`` with which the caller warns the user's line that has led to it."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and is_runtime(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def frames_of(error: BaseException, *, keep_ours: bool) -> tuple[Frame, ...]:
    """Return the user's frames that an exception was raised through.

    If there are none, return minray's frames with ``keep_ours``, else nothing.
    """
    entries, entry = [], error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    users = [entry for entry in entries if not is_runtime(entry.tb_frame.f_code.co_filename)]
    entries = users or (entries if keep_ours else [])
    if len(entries) > FRAMES:
        entries = entries[: FRAMES // 2] + entries[-FRAMES // 2 :]
    return tuple(_frame_of(entry) for entry in entries)


def _frame_of(entry: types.TracebackType) -> Frame:
    code, line = entry.tb_frame.f_code, entry.tb_lineno or 1
    start, end, column, end_column = next(islice(code.co_positions(), max(entry.tb_lasti, 0) // 2, None), (None,) * 4)
    known = start == line and end is not None and column is not None and end_column is not None
    place = (line, end, column, end_column) if known else (line, line, 0, 0)
    module = str(entry.tb_frame.f_globals.get("__name__", "?"))
    return Frame(code.co_filename, code.co_name, module, cast(tuple[int, int, int, int], place))


def rebuild_traceback(frames: Iterable[Frame]) -> types.TracebackType | None:
    """Make a real traceback: each of its frames runs a `raise` compiled for the place that the frame stands for.

    A frame keeps its caller's frame alive, and all values in it. These frames keep nothing of the process that unpacks
    them: their caller is a generator, which is suspended as long as they exist, and a suspended generator has no caller.
    """
    entries: list[types.TracebackType] = []
    namespace: dict[str, Any] = {}
    namespace["_raising"] = raising = _raise_each(tuple(frames), namespace, entries)
    next(raising)
    following: types.TracebackType | None = None
    for entry in reversed(entries):
        entry.tb_next, following = following, entry
    entries.clear()
    return following


def _raise_each(frames: Iterable[Frame], namespace: dict[str, Any], entries: list[types.TracebackType]) -> Iterator[None]:
    """Append a traceback entry for each frame to ``entries``, then stay suspended.

    The frames look up names in copies of ``namespace``.
    """
    for frame in frames:
        place: Any = dict(zip(("lineno", "end_lineno", "col_offset", "end_col_offset"), frame.place, strict=True))
        statement = ast.Raise(ast.Constant(None, **place), None, **place)
        code = compile(ast.Module([statement], []), frame.filename, "exec").replace(co_name=frame.function)
        try:
            exec(code, {**namespace, "__name__": frame.module, "__file__": frame.filename})
        except TypeError as raised:  # "exceptions must derive from BaseException"
            entries.append(cast(types.TracebackType, cast(types.TracebackType, raised.__traceback__).tb_next))
    namespace.clear()
    yield
