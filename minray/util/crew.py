"""Actors that run whatever calls they are given: the inside of ``Executor`` and of ``multiprocessing.Pool``.

Ray: python/ray/util/multiprocessing/pool.py (PoolActor, and how Pool hands out its batches)

Rules
  * Of minray only the public API is used, and ``shown`` for messages.
  * One thread, the foreman, schedules all calls. Everything that happens is an event in its queue: a call came, a result
    came, the crew was closed. So its tables need no lock, and no caller waits for another.
  * A call waits with the foreman until a worker is idle, and can be cancelled until then. A worker has one call at a time:
    a second one would wait behind the first, even if other workers became idle.
  * Workers (actors) are hired, that is started, when there are calls for them. They end with the crew, or after
    ``calls_per_worker`` calls. A new one gets no call before it has answered: the cluster may have no room for it.
  * When a call fails as if its worker had died, the worker is asked whether it lives. The call itself may have met such an
    error.
  * The foreman does not refer to the crew. When nothing else refers to the crew, it finishes all submitted calls, and ends.
  * No callback of a call's future can end the foreman, on which all callers depend: one that raises SystemExit is logged. If
    arguments raise SystemExit when they are pickled, that is the error of their call.
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
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from minray import exceptions
from minray.actor import kill
from minray.api.calls import cluster_resources, connect, connected_api, current_process_api
from minray.common.shown import shown
from minray.remote_function import remote

T = TypeVar("T")
logger = logging.getLogger("minray")


class CrewCall(NamedTuple):
    """A submitted call, and the future that receives its result."""

    future: Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Crew:
    """Runs submitted calls in actors. It may be used by any thread."""

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
        """``size``: the largest number of workers; None: the number of CPUs of the cluster. ``calls_per_worker``: number of
        calls after which a worker ends; None: any number. ``breaks``: a worker's death fails all unfinished and all later
        calls; otherwise it fails the worker's call only, and another worker takes its place. ``remote_args``: options of the
        workers' actors. ``finishes``: submitted calls are finished before the program ends; otherwise they are ended then.
        """
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be callable, but is {shown(initializer)}")
        connect()
        self.size = size if size is not None else cluster_cpus()
        self.finishes = finishes
        make = remote(_CrewMember).options(**(remote_args or {}))
        self._foreman = foreman = _Foreman(self.size, lambda: make.remote(initializer, initargs), calls_per_worker, breaks)
        self._lock = threading.Lock()
        """Held while a call or the crew's end is put into the foreman's queue, so that no call comes after the end."""
        self._is_closed = False
        self._thread = threading.Thread(target=foreman.work, name="minray-crew", daemon=True)
        self._thread.start()
        weakref.finalize(self, foreman.events.put, _Foreman.on_close).atexit = False
        _crews.add(self)
        # atexit calls the latest function first, so this one runs before the connection to the cluster ends.
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call and return its future. Raises RuntimeError if the crew is closed, BrokenExecutor if it is broken."""
        call = CrewCall(Future(), function, args, kwargs)
        with self._lock:
            if self._foreman.breakage is not None:
                raise _broken(self._foreman.breakage)
            if self._is_closed:
                raise RuntimeError("no more work can be submitted: this was shut down")
            self._foreman.events.put(lambda foreman: foreman.on_call(call))
        call.future.add_done_callback(partial(_tell_if_cancelled, self._foreman.events))
        return call.future

    def close(self, cancels: bool = False) -> None:
        """Accept no more calls. Submitted ones are finished; with ``cancels`` those that wait are cancelled instead."""
        with self._lock:
            self._is_closed = True
            self._foreman.events.put(_Foreman.on_cancel_all if cancels else _Foreman.on_close)

    def start_all(self) -> None:
        """Start all workers, and wait until their initializers have run. Raises the first error of a worker."""
        started: Future[None] = Future()
        self._foreman.events.put(lambda foreman: foreman.on_start_all(started))
        started.result()

    def kill(self) -> None:
        """End all workers at once; unfinished calls fail with ActorDiedError."""
        with self._lock:
            self._is_closed = True
            self._foreman.events.put(_Foreman.on_kill)

    def join(self) -> None:
        """Wait until a closed crew has finished its calls, or a killed crew's workers have ended."""
        self._thread.join()


class _Worker:
    """The foreman's record of one worker (an actor)."""

    def __init__(self, actor: Any, left: int | None) -> None:
        self.actor = actor
        self.left = left
        """Number of further calls that it may be given; None: any number."""
        self.call: CrewCall | None = None
        """The call that it runs now; None if it has none."""
        self.ref: Any = None
        """The reference to the answer that is awaited from the worker; None if there is none."""


class _Foreman:
    """The thread that gives calls to workers. It calls its own methods ``on_...``, in the order of the events."""

    def __init__(self, size: int, make_actor: Callable[[], Any], calls_per_worker: int | None, breaks: bool) -> None:
        self.events: queue.SimpleQueue[Callable[[_Foreman], None]] = queue.SimpleQueue()
        """The events, as functions of the foreman. They do not refer to it, since some stay in the queue when it has
        ended."""
        self.breakage: str | None = None
        """Why the crew is broken; None if it is not. Other threads read it."""
        self._size = size
        self._make_actor = make_actor
        self._calls_per_worker = calls_per_worker
        self._breaks = breaks
        self._waiting: OrderedDict[Future[Any], CrewCall] = OrderedDict()
        """The calls that wait for a worker, oldest first."""
        self._workers: list[_Worker] = []
        self._hired: list[_Worker] = []
        """The workers that have not answered for the first time yet."""
        self._idle: list[_Worker] = []
        """The workers without a call; the one that finished last is at the end."""
        self._starting: Future[None] | None = None
        """Set when all hired workers have answered; None if nobody waits for that."""
        self._is_closed = False
        self._awaited = 0
        """Number of answers of workers that are still to come; killed workers' answers come too."""

    def work(self) -> None:
        while not self._is_closed or self._waiting or self._awaited:
            event = self.events.get()
            event(self)
            del event  # The event refers to a call and its result, which should be freed.
            if self._is_closed and not self._waiting:
                self._dismiss()
        self._workers.clear()
        self._idle.clear()

    def on_call(self, call: CrewCall) -> None:
        self._waiting[call.future] = call
        if self.breakage is None:
            self._hand_out()
        else:
            self._end(_broken(self.breakage))

    def on_start_all(self, started: Future[None]) -> None:
        self._starting = started
        try:
            while len(self._workers) < self._size:
                self._hire()
        except Exception as error:
            self._tell_started(error)

    def _tell_started(self, error: BaseException | None = None) -> None:
        """Tell a program that waits for all workers that they have started, or that one has failed."""
        if self._starting is not None and (error is not None or not self._hired):
            starting, self._starting = self._starting, None
            if error is None:
                starting.set_result(None)
            else:
                starting.set_exception(error)

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
        self._end(exceptions.ActorDiedError(reason="the workers were terminated before this was done"))

    def on_there(self, worker: _Worker, answer: Future[Any]) -> None:
        """Handle the first answer of a new worker, which may be an error."""
        self._awaited -= 1
        if worker not in self._hired:  # The worker was ended meanwhile.
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
        self._tell_started(error)
        self._hand_out()

    def on_result(self, worker: _Worker, done: Future[Any]) -> None:
        self._awaited -= 1
        call = worker.call
        if call is None:  # The worker was ended meanwhile.
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
        """Ask a worker whose call has failed with ``error`` whether it lives."""

        try:
            with _staying():
                worker.ref = worker.actor.__ray_ready__.remote()
                self._await(worker, lambda answer: self.on_asked(worker, error, answer.exception()))
        except Exception as gone:  # The cluster has gone, and the worker with it.
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

    def _lose(self, worker: _Worker, call: CrewCall | None, error: BaseException, death: BaseException) -> None:
        """Remove a dead worker and fail ``call`` with ``error``; if a death breaks the crew, end everything."""
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

    def _next(self) -> CrewCall | None:
        """Take the oldest call that was not cancelled; from now on it cannot be cancelled. None if there is none."""
        while self._waiting:
            future, call = self._waiting.popitem(last=False)
            if future.set_running_or_notify_cancel():
                return call
        return None

    def _hire(self) -> None:
        with _staying():
            worker = _Worker(self._make_actor(), self._calls_per_worker)
            worker.ref = worker.actor.__ray_ready__.remote()
            self._await(worker, lambda answer: self.on_there(worker, answer))
        self._workers.append(worker)
        self._hired.append(worker)

    def _dismiss(self) -> None:
        """End the workers that have not answered yet: no call waits for them."""
        for worker in self._hired:
            self._workers.remove(worker)
            _kill(worker)
        self._hired.clear()

    def _give(self, worker: _Worker, call: CrewCall) -> None:
        worker.call = call
        try:
            with _staying():
                worker.ref = worker.actor.run.remote(call.function, *call.args, **call.kwargs)
                self._await(worker, lambda done: self.on_result(worker, done))
        except BaseException as error:  # The arguments cannot be pickled, or exit; or this process has left the cluster.
            self._release(worker)
            _tell(call.future.set_exception, error)
            return
        if worker.left is not None:
            worker.left -= 1

    def _await(self, worker: _Worker, on_answer: Callable[[Future[Any]], None]) -> None:
        """Make the answer of ``worker.ref`` an event. Raises RuntimeError if this process has left the cluster."""
        answer: Future[Any] = worker.ref.future()
        self._awaited += 1
        answer.add_done_callback(lambda done: self.events.put(lambda _foreman: on_answer(done)))

    def _release(self, worker: _Worker) -> None:
        """Make a worker idle, or drop it after its last call: its actor ends with this last handle."""
        worker.call = worker.ref = None
        if worker.left == 0:
            self._workers.remove(worker)
        else:
            self._idle.append(worker)

    def _end(self, error: Exception, cause: BaseException | None = None) -> None:
        """Kill all workers and fail all unfinished calls with ``error``."""
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
        """Fail all calls that wait."""
        while (call := self._next()) is not None:
            _tell(call.future.set_exception, error)


def _kill(worker: _Worker) -> None:
    try:
        with _staying():
            kill(worker.actor)
    except Exception:
        logger.debug("a worker could not be killed; it ends with its cluster", exc_info=True)


@contextmanager
def _staying() -> Iterator[None]:
    """Keep the foreman with its cluster. Outside of this, a call that comes just after the program has left its cluster
    would start another one. Raises RuntimeError if the program has left already."""
    api = connected_api()
    if api is None:
        raise RuntimeError("this process has left the cluster")
    token = current_process_api.set(api)
    try:
        yield
    finally:
        current_process_api.reset(token)


def cluster_cpus() -> int:
    """Return the number of CPUs, at least 1, of the cluster that this process is connected to."""
    return max(1, int(cluster_resources().get("CPU", 1)))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut an iterable into lists of ``size`` items; the last one has the rest."""
    iterator = iter(items)
    return iter(lambda: list(itertools.islice(iterator, size)), [])


def call_each_starred(function: Callable[..., T], calls: Iterable[Iterable[Any]]) -> list[T]:
    """Call ``function(*args)``, in the worker, for each of several calls that were sent together."""
    return [function(*args) for args in calls]


def _tell_if_cancelled(events: queue.SimpleQueue[Callable[[_Foreman], None]], future: Future[Any]) -> None:
    if future.cancelled():
        events.put(lambda foreman: foreman.on_cancelled(future))


def _tell(tell: Callable[..., object], *outcome: Any) -> None:
    """Call ``tell``, a method of a future, and log what the future's callbacks raise."""
    try:
        tell(*outcome)
    except BaseException:
        logger.warning("a callback of a future has raised", exc_info=True)


def _broken(reason: str) -> BrokenExecutor:
    """Return the error that programs for ``ProcessPoolExecutor`` expect. It is imported only here, since its module is
    large."""
    from concurrent.futures.process import BrokenProcessPool

    return BrokenProcessPool(reason)


def _may_be_dead(error: BaseException) -> bool:
    """Whether this error may mean that the worker is dead. The call, or one of its arguments, may have raised it instead."""
    wanting = (
        exceptions.ActorDiedError,
        exceptions.ActorUnschedulableError,
        exceptions.ActorPlacementGroupRemoved,
        exceptions.RuntimeEnvSetupError,
    )
    return isinstance(error, wanting) and not isinstance(error, exceptions.RayTaskError)


def _original(error: BaseException) -> BaseException:
    """Return the exception that the call has raised, in its own type."""
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else None
    if isinstance(cause, _Exit):
        cause = cause.stop
    return error if cause is None else cause


class _Exit(Exception):
    """A call has raised SystemExit. That is the call's error, as in the standard library, and must not end the actor."""

    def __init__(self, stop: SystemExit) -> None:
        super().__init__(stop)
        self.stop = stop


class _CrewMember:
    """The actor class of workers: runs any function it is given."""

    def __init__(self, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
        if initializer is not None:
            initializer(*initargs)

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except SystemExit as stop:
            raise _Exit(stop) from None
        if inspect.isgenerator(result):  # Its items would be taken for the results of this method.
            raise TypeError("cannot pickle 'generator' object")
        return result


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


def _finish_all() -> None:
    """Finish the calls of executors and terminate pools at the end of the program, as the standard library does."""
    for crew in list(_crews):
        if crew.finishes:
            crew.close()
        else:
            crew.kill()
    for crew in list(_crews):
        if connected_api() is not None:
            crew.join()
