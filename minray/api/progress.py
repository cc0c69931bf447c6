"""``minray.progress``: a bar that counts references as they become ready.

Ray: has no counterpart in its core; programs wrap ``ray.wait`` in tqdm

It is used like tqdm, around the list that a loop goes through. The loop gets the references in the order in which they
become ready. So a program that reads each value at once holds few values at a time. No value is fetched: a large one counts
as ready when it exists on any node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import IO, Generic, TypeVar

from minray.api.calls import check_timeout, current_api
from minray.common.progress_bars import Bar, new_number, progress_bars
from minray.common.shown import a, shown
from minray.errors.tracebacks import hides_from_pytest
from minray.exceptions import GetTimeoutError, RayError
from minray.values.object_ref import ObjectName, ObjectRef

__tracebackhide__ = hides_from_pytest

T = TypeVar("T")

LOOK_S = 0.1
"""Seconds after which the bar is drawn again although no reference has become ready, because time is shown too."""
LOOKS = 100
"""Least part of the missing references, as a divisor, for which a look waits. So a hundred thousand references cost hundreds
of looks at all of them and not a hundred thousand."""


class Progress(Generic[T]):
    """References, and how many of them are ready. Iterate over it, or call ``wait()``.

    ``len`` is the number of references. ``finished`` and ``failed`` count those that have become ready since the loop began;
    ``pending`` counts the others.
    """

    def __init__(self, refs: list[ObjectRef[T]], bar: Bar | None, timeout_s: float | None, file: IO[str] | None) -> None:
        """Make it; only ``minray.progress`` does. Without a ``bar`` nothing is shown."""
        self.finished = 0
        self.failed = 0
        self._missing = refs
        self._ready: deque[ObjectRef[T]] = deque()
        self._count = len(refs)
        self._bar = bar
        self._timeout_s = timeout_s
        self._file = file
        self._is_begun = False

    @property
    def pending(self) -> int:
        """Number of references that were not ready at the last look."""
        return len(self._missing)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Generator[ObjectRef[T], None, None]:
        """Yield the references in the order in which they become ready, those that have failed too.

        Raises GetTimeoutError after ``timeout``, RuntimeError if the loop has begun before.
        """
        if self._is_begun:
            raise RuntimeError("this progress has been iterated over before; make a new one with minray.progress(refs)")
        self._is_begun = True
        return self._follow()

    def wait(self) -> Progress[T]:
        """Wait until all references are ready, and return this. Raises what a loop over it would raise."""
        for _ in self:
            pass
        return self

    def _follow(self) -> Generator[ObjectRef[T], None, None]:
        api = current_api()
        now = api.port.process.platform.user_code.time
        began = now()
        self._show(0.0, is_ended=False)
        try:
            while self._missing:
                self._look(self._left_s(now() - began))
                self._show(now() - began, is_ended=False)
                while self._ready:
                    yield self._ready.popleft()
        finally:
            self._show(now() - began, is_ended=True)

    def _left_s(self, elapsed_s: float) -> float | None:
        if self._timeout_s is None or elapsed_s < self._timeout_s:
            return None if self._timeout_s is None else self._timeout_s - elapsed_s
        count = f"{len(self._missing)} of {self._count} references are not ready"
        raise GetTimeoutError(timeout_s=self._timeout_s, reason=f"{count}, such as {self._missing[0].hex()}")

    def _look(self, left_s: float | None) -> None:
        """Move references that are ready; wait a moment if there is none."""
        api = current_api()
        most = len(self._missing)
        try:
            ready, rest = api.reader.wait(self._missing, most, 0, fetch_local=False)
            if not ready:
                wait_s = LOOK_S if left_s is None else min(LOOK_S, left_s)
                api.reader.wait(self._missing, max(1, most // LOOKS), wait_s, fetch_local=False)
                ready, rest = api.reader.wait(self._missing, most, 0, fetch_local=False)
        except (RayError, KeyboardInterrupt) as error:
            raise error.with_traceback(None)  # noqa: B904 (the same exception: its frames here tell users nothing)
        self._missing = rest
        self._ready.extend(ready)
        objects = api.port.store.objects
        failed = sum(1 for ref in ready if (stored := objects.get(ref.binary())) is not None and stored.is_error)
        self.failed += failed
        self.finished += len(ready) - failed

    def _show(self, elapsed_s: float, *, is_ended: bool) -> None:
        bar = self._bar
        if bar is not None:
            bar.done, bar.failed = self.finished + self.failed, self.failed
            bar.elapsed_s, bar.is_ended = elapsed_s, is_ended
            progress_bars().show(bar.number, bar, self._file)

    def __repr__(self) -> str:
        return f"Progress({self.finished} finished, {self.failed} failed, {self.pending} pending)"


def progress(
    refs: Iterable[ObjectRef[T]] | ObjectRef[T],
    *,
    desc: str = "",
    timeout: float | None = None,
    leave: bool = True,
    disable: bool | None = False,
    file: IO[str] | None = None,
) -> Progress[T]:
    """Show a bar of how many references are ready: finished, failed and pending.

    ``for ref in minray.progress(refs)`` yields each reference when it is ready, in that order, as tqdm does with items.
    Those of failed tasks come too, and ``get`` of one raises its error. ``minray.progress(refs).wait()`` only shows the bar.
    In a notebook the bar is below the cell; on a terminal it is the last line; elsewhere it is a line every five seconds. In
    a task or actor the driver shows it.

    ``refs``: references, without duplicates. ``desc``: text before the bar. ``timeout``: seconds from the beginning of the
    loop until it raises GetTimeoutError; None means no end. ``leave``: whether the ended bar stays on a terminal.
    ``disable``: show nothing; None means unless ``file`` is a terminal. ``file``: stream for the bar; None means standard
    error. The names and defaults are those of tqdm, but for ``timeout``.

    Interrupting the loop, or leaving it, cancels no task. Raises TypeError for anything but references, ValueError for
    duplicates and for a ``timeout`` that is negative or nan.
    """
    if isinstance(refs, ObjectRef):
        refs = [refs]
    if not isinstance(refs, Iterable) or isinstance(refs, str | bytes | dict):
        raise TypeError(f"progress takes a list of ObjectRefs, not {a(refs)}")
    given = list(refs)
    for ref in given:
        if not isinstance(ref, ObjectRef) or isinstance(ref, ObjectName):
            raise TypeError(f"progress takes ObjectRefs, but the list has {a(ref)}: {shown(ref)}")
    if len(set(given)) != len(given):
        repeated = len(given) - len(set(given))
        raise ValueError(f"progress takes each reference once, but {repeated} of {len(given)} are repetitions")
    if not isinstance(desc, str):
        raise TypeError(f"desc must be a str, not {a(desc)}")
    if timeout is not None:
        check_timeout(timeout)
        if timeout < 0:
            raise ValueError(f"timeout must not be negative, but is {shown(timeout)}")
    if file is not None and not hasattr(file, "write"):
        raise TypeError(f"file must be a text stream or None, not {a(file)}")
    is_hidden = not progress_bars().are_drawn_on(file) if disable is None else disable
    bar = Bar(new_number(), desc, total=len(given), unit="task", is_left=bool(leave))
    return Progress(given, None if is_hidden else bar, timeout, file)
