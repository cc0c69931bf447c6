"""Actors that run whatever calls they are given: the inside of ``Executor`` and of ``multiprocessing.Pool``.

Ray: python/ray/util/multiprocessing/pool.py (PoolActor, and how Pool hands out its batches)

Rules
  * The public API alone is used, so that the same file runs on Ray.
  * All that happens is an event in the queue of one thread, the foreman: a call came, a result came, no more will come. So
    its tables need no lock, and no caller waits for another.
  * A call waits with the foreman until a worker is idle, and can be cancelled until then. A worker has one call at a time:
    a second one would wait behind the first, whatever other workers do meanwhile.
  * Workers are hired when there is something for them to do, and stay. They end with the crew, or after
    ``calls_per_worker``. A new one has no call before it says that it is there: the cluster may have no room for it.
  * When a call fails as if its worker had died, the worker is asked: the error may be one that the call has met.
  * The foreman does not refer to the crew. When nobody does any more, it finishes what was submitted, and ends.
  * No callback of a call's future ends the foreman, for whom everybody waits: one that raises SystemExit is logged. Nor do
    arguments that raise it when they are pickled: it is their call's error.
"""

from __future__ import annotations

import atexit
import inspect
import itertools
import logging
import queue
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from minray import exceptions
from minray.actor import kill
from minray.api.calls import cluster_resources, connect, connected_api, current_process_api
from minray.remote_function import remote

T = TypeVar("T")
logger = logging.getLogger("minray")


class Call(NamedTuple):
    """What is to be done, and where its result goes."""

    future: Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Crew:
    """The users' side: may be used by any thread."""

    def __init__(
        self,
        size: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        calls_per_worker: int | None = None,
        breaks: bool = False,
        remote_args: dict[str, Any] | None = None,
        finishes: bool = True,
    ) -> None:
        """``size``: None is the number of CPUs of the cluster. ``breaks``: a worker's death fails everything, also what is
        submitted later; otherwise it fails its call alone, and another worker takes its place. ``remote_args``: options of
        the workers' actors. ``finishes``: what was submitted is done before the program ends; otherwise it ends then."""
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be callable, but is {initializer!r}")
        connect()
        self.size = size if size is not None else cluster_cpus()
        self.finishes = finishes
        make = remote(_CrewMember).options(**(remote_args or {}))
        self._foreman = foreman = _Foreman(self.size, lambda: make.remote(initializer, initargs), calls_per_worker, breaks)
        self._lock = threading.Lock()
        """Orders calls and the end of calls."""
        self._is_closed = False
        self._thread = threading.Thread(target=foreman.work, name="minray-crew", daemon=True)
        self._thread.start()
        weakref.finalize(self, foreman.events.put, _Foreman.on_close).atexit = False
        _crews.add(self)
        # The latest to register is the first to be called: before the connection ends.
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The result to come. Raises RuntimeError when the crew is closed, BrokenExecutor when it is broken."""
        call = Call(Future(), function, args, kwargs)
        with self._lock:
            if self._foreman.breakage is not None:
                raise _broken(self._foreman.breakage)
            if self._is_closed:
                raise RuntimeError("no more work can be submitted: this was shut down")
            self._foreman.events.put(lambda foreman: foreman.on_call(call))
        call.future.add_done_callback(partial(_tell_if_cancelled, self._foreman.events))
        return call.future

    def close(self, cancels: bool = False) -> None:
        """No more calls are taken. The others are finished, or with ``cancels`` those that wait are cancelled."""
        with self._lock:
            self._is_closed = True
            self._foreman.events.put(_Foreman.on_cancel_all if cancels else _Foreman.on_close)

    def kill(self) -> None:
        """End at once; unfinished calls fail."""
        with self._lock:
            self._is_closed = True
            self._foreman.events.put(_Foreman.on_kill)

    def join(self) -> None:
        """Wait until a closed crew has finished, or its killed workers have ended."""
        self._thread.join()


class _Worker:
    """One actor."""

    def __init__(self, actor: Any, left: int | None) -> None:
        self.actor = actor
        self.left = left
        """How many more calls it may be given; None: any number."""
        self.call: Call | None = None
        """What it does now."""
        self.ref: Any = None
        """The result of that, to come."""


class _Foreman:
    """The thread that hands out calls. Its methods ``on_...`` are called by itself, in the order of the events."""

    def __init__(self, size: int, make_actor: Callable[[], Any], calls_per_worker: int | None, breaks: bool) -> None:
        self.events: queue.SimpleQueue[Callable[[_Foreman], None]] = queue.SimpleQueue()
        """What is left in it when the thread has ended stays there, so those that others put into it do not lead here."""
        self.breakage: str | None = None
        """Why nothing is taken any more; read by others."""
        self._size = size
        self._make_actor = make_actor
        self._calls_per_worker = calls_per_worker
        self._breaks = breaks
        self._waiting: OrderedDict[Future[Any], Call] = OrderedDict()
        """Oldest first."""
        self._workers: list[_Worker] = []
        self._hired: list[_Worker] = []
        """Those of them that are not there yet."""
        self._idle: list[_Worker] = []
        """Those that have nothing to do; the last one had most recently."""
        self._is_closed = False
        self._awaited = 0
        """How many answers of workers are to come; those of killed ones come too."""

    def work(self) -> None:
        while not self._is_closed or self._waiting or self._awaited:
            event = self.events.get()
            event(self)
            del event  # and with it the call and its result, which nobody may want any more
            if self._is_closed and not self._waiting:
                self._dismiss()
        self._workers.clear()
        self._idle.clear()

    def on_call(self, call: Call) -> None:
        self._waiting[call.future] = call
        if self.breakage is None:
            self._hand_out()
        else:
            self._end(_broken(self.breakage))

    def on_cancelled(self, future: Future[Any]) -> None:
        if self._waiting.pop(future, None) is not None:
            future.set_running_or_notify_cancel()

    def on_close(self) -> None:
        self._is_closed = True

    def on_cancel_all(self) -> None:
        self._is_closed = True
        while self._waiting:
            future, _ = self._waiting.popitem(last=False)
            _tell(future.cancel)
            future.set_running_or_notify_cancel()

    def on_kill(self) -> None:
        self._is_closed = True
        self._end(RuntimeError("the workers were terminated before this was done"))

    def on_there(self, worker: _Worker, answer: Future[Any]) -> None:
        """Or it will never be."""
        self._awaited -= 1
        if worker not in self._hired:  # It was ended.
            return
        self._hired.remove(worker)
        worker.ref = None
        error = answer.exception()
        if error is None:
            self._idle.append(worker)
        elif _may_be_dead(error):
            self._lose(worker, self._next(), error, error)
        else:  # the cluster has gone
            self._workers.remove(worker)
            self._fail_all(error)
        self._hand_out()

    def on_result(self, worker: _Worker, done: Future[Any]) -> None:
        self._awaited -= 1
        call = worker.call
        if call is None:  # It was ended.
            return
        error = done.exception()
        if error is not None and _may_be_dead(error):
            self._ask(worker, error)
            return
        self._release(worker)
        self._hand_out()
        if error is None:
            _tell(call.future.set_result, done.result())
        else:
            _tell(call.future.set_exception, _original(error))

    def _ask(self, worker: _Worker, error: BaseException) -> None:
        """Does it live? Its call has failed with ``error``."""

        try:
            worker.ref = worker.actor.__ray_ready__.remote()
            self._await(worker, lambda answer: self.on_asked(worker, error, answer.exception()))
        except Exception as gone:  # together with the cluster
            self._learn(worker, error, gone)

    def on_asked(self, worker: _Worker, error: BaseException, death: BaseException | None) -> None:
        self._awaited -= 1
        self._learn(worker, error, death)

    def _learn(self, worker: _Worker, error: BaseException, death: BaseException | None) -> None:
        call = worker.call
        if call is None:
            return
        if death is None:
            self._release(worker)
            _tell(call.future.set_exception, _original(error))
        else:
            self._lose(worker, call, error, death)
        self._hand_out()

    def _lose(self, worker: _Worker, call: Call | None, error: BaseException, death: BaseException) -> None:
        """It is dead, and so its call, or the next one if it was to have that, has failed with ``error``."""
        if self._breaks:
            self.breakage = f"a worker has died, and with it all that was submitted: {death}"
            if call is not None and worker.call is None:
                worker.call = call
            self._end(_broken(self.breakage), error)
            return
        self._workers.remove(worker)
        if call is not None:
            _tell(call.future.set_exception, error)

    def _hand_out(self) -> None:
        while self._idle and (call := self._next()) is not None:
            self._give(self._idle.pop(), call)
        while len(self._waiting) > len(self._hired) and len(self._workers) < self._size:
            try:
                self._hire()
            except Exception as error:
                if (call := self._next()) is not None:
                    _tell(call.future.set_exception, error)

    def _next(self) -> Call | None:
        """The oldest call that nobody has cancelled; it cannot be cancelled any more."""
        while self._waiting:
            future, call = self._waiting.popitem(last=False)
            if future.set_running_or_notify_cancel():
                return call
        return None

    def _hire(self) -> None:
        api = connected_api()
        if api is None:
            raise RuntimeError("this process has left the cluster")
        staying = current_process_api.set(api)  # or, if it leaves just now, this would start another cluster
        try:
            worker = _Worker(self._make_actor(), self._calls_per_worker)
            worker.ref = worker.actor.__ray_ready__.remote()
            self._await(worker, lambda answer: self.on_there(worker, answer))
        finally:
            current_process_api.reset(staying)
        self._workers.append(worker)
        self._hired.append(worker)

    def _dismiss(self) -> None:
        """There is nothing to do for those who have not come yet."""
        for worker in self._hired:
            self._workers.remove(worker)
            _kill(worker)
        self._hired.clear()

    def _give(self, worker: _Worker, call: Call) -> None:
        worker.call = call
        try:
            worker.ref = worker.actor.run.remote(call.function, *call.args, **call.kwargs)
            self._await(worker, lambda done: self.on_result(worker, done))
        except BaseException as error:  # The arguments cannot be pickled, or exit; or this process has left the cluster.
            self._release(worker)
            _tell(call.future.set_exception, error)
            return
        if worker.left is not None:
            worker.left -= 1

    def _await(self, worker: _Worker, on_answer: Callable[[Future[Any]], None]) -> None:
        """Raises RuntimeError if this process has left the cluster."""
        answer: Future[Any] = worker.ref.future()
        self._awaited += 1
        answer.add_done_callback(lambda done: self.events.put(lambda _foreman: on_answer(done)))

    def _release(self, worker: _Worker) -> None:
        """It has nothing to do any more; if it is used up, its handle was the last one, and it ends."""
        worker.call = worker.ref = None
        if worker.left == 0:
            self._workers.remove(worker)
        else:
            self._idle.append(worker)

    def _end(self, error: Exception, cause: BaseException | None = None) -> None:
        """Kill all workers; whatever is unfinished fails."""
        error.__cause__ = cause
        for worker in self._workers:
            if worker.call is not None:
                _tell(worker.call.future.set_exception, error)
            worker.call = worker.ref = None
            _kill(worker)
        self._fail_all(error)
        self._workers.clear()
        self._hired.clear()
        self._idle.clear()

    def _fail_all(self, error: BaseException) -> None:
        """All calls that wait."""
        while (call := self._next()) is not None:
            _tell(call.future.set_exception, error)


def _kill(worker: _Worker) -> None:
    if connected_api() is not None:
        try:
            kill(worker.actor)
        except Exception:
            logger.debug("a worker could not be killed; it ends with its cluster", exc_info=True)


def cluster_cpus() -> int:
    """Of the cluster that this process is connected to; at least one."""
    return max(1, int(cluster_resources().get("CPU", 1)))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """In lists of ``size`` items, the last one of what is left."""
    iterator = iter(items)
    return iter(lambda: list(itertools.islice(iterator, size)), [])


def call_each_starred(function: Callable[..., T], calls: Iterable[Iterable[Any]]) -> list[T]:
    """In the worker: ``function(*args)`` for each of several calls that were sent together."""
    return [function(*args) for args in calls]


def _tell_if_cancelled(events: queue.SimpleQueue[Callable[[_Foreman], None]], future: Future[Any]) -> None:
    if future.cancelled():
        events.put(lambda foreman: foreman.on_cancelled(future))


def _tell(tell: Callable[..., object], *outcome: Any) -> None:
    """``tell`` is a method of a future, which calls its callbacks."""
    try:
        tell(*outcome)
    except BaseException:
        logger.warning("a callback of a future has not returned", exc_info=True)


def _broken(reason: str) -> BrokenExecutor:
    """The error that programs for ``ProcessPoolExecutor`` expect; its module is large, and seldom needed."""
    from concurrent.futures.process import BrokenProcessPool

    return BrokenProcessPool(reason)


def _may_be_dead(error: BaseException) -> bool:
    """Whether this is an error of the worker; it may be the call's, which has let it through, or an argument's."""
    wanting = (
        exceptions.ActorDiedError,
        exceptions.ActorUnschedulableError,
        exceptions.ActorPlacementGroupRemoved,
        exceptions.RuntimeEnvSetupError,
    )
    return isinstance(error, wanting) and not isinstance(error, exceptions.RayTaskError)


def _original(error: BaseException) -> BaseException:
    """What the call has raised, as its own type."""
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else None
    if isinstance(cause, _Exit):
        cause = cause.stop
    return error if cause is None else cause


class _Exit(Exception):
    """A call has raised SystemExit, which is its error as in the standard library, and would end an actor."""

    def __init__(self, stop: SystemExit) -> None:
        super().__init__(stop)
        self.stop = stop


class _CrewMember:
    """The worker's side."""

    def __init__(self, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
        if initializer is not None:
            initializer(*initargs)

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except SystemExit as stop:
            raise _Exit(stop) from None
        if inspect.isgenerator(result):  # whose items would be taken for the results of this method
            raise TypeError("cannot pickle 'generator' object")
        return result


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


def _finish_all() -> None:
    """At the end of the program: what was submitted to an executor is done, and pools are terminated, as in the standard
    library."""
    for crew in list(_crews):
        if crew.finishes:
            crew.close()
        else:
            crew.kill()
    for crew in list(_crews):
        if connected_api() is not None:
            crew.join()
