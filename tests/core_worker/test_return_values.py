"""Values that a call has returned or yielded: they become as many results as it has, or an error and no results.

``Shelf`` keeps results in place of the real keeper. It says which results it has, and may be full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from minray.common.bounds import BOUNDS
from minray.common.config import TASK_RPC_INLINED_BYTES_LIMIT
from minray.common.ids import return_id
from minray.common.task_spec import ActorOptions
from minray.core_worker.execution.return_values import BrokenOff, ReturnValues
from minray.core_worker.fetching.results import UNWANTED
from minray.core_worker.records.received_task import ReceivedTask, Result
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import ObjectStoreFullError
from minray.protocol.base import Address
from minray.protocol.core_worker import Rerun
from minray.values import serialization
from minray.values.object_ref import ObjectRef
from minray.values.serialization import Serialized
from tests.core_worker.parts import OWN, RECEIVED_ID, id_of, received, template
from tests.core_worker.user_thread import UserThread

ATTEMPT = 2


class Shelf:
    """See the head of this file."""

    def __init__(self, most_references: int = BOUNDS.max_references_per_answer) -> None:
        self.kept: dict[bytes, Any] = {}
        """Object id -> the value that it has at present."""
        self.rooms: list[int] = []
        """How much room each had in the answer."""
        self.most = 100
        """Number of results at which it is full."""
        results: Any = self
        self.thread = UserThread()
        user_code: Any = self.thread
        self.returns = ReturnValues(results, user_code, most_references)
        self.keeps_discarded = False
        """Whether it is slow to say that it has dropped something."""
        self.on_discarded: list[Callable[[], None]] = []
        """Callbacks to which it has not said so."""

    def keep_result(self, object_id: bytes, attempt: int, value: Serialized, owner: Address, room: int) -> Result:
        assert (attempt, owner) == (ATTEMPT, OWN)
        if len(self.kept) == self.most:
            raise ObjectStoreFullError(reason="the shelf is full")
        self.kept[object_id] = serialization.deserialize(value.data, value.buffers, [])
        self.rooms.append(room)
        return Result(StoredObject(value.data, (), False, ()), [], value.size())

    def discard_result(self, object_id: bytes, attempt: int, on_discarded: Callable[[], None]) -> None:
        assert attempt == ATTEMPT
        self.kept.pop(object_id, None)
        if self.keeps_discarded:
            self.on_discarded.append(on_discarded)
        else:
            on_discarded()

    def has(self, *values: Any, beginning: int = 1) -> bool:
        """These, as the results of the task, and nothing else."""
        return self.kept == {return_id(RECEIVED_ID, index): value for index, value in enumerate(values, beginning)}


def task(num_returns: int, unwanted: Sequence[int] = (), actor: ActorOptions | None = None) -> ReceivedTask:
    made = template(num_returns=num_returns, actor=actor)
    return received(made, attempt=ATTEMPT, rerun=Rerun(list(unwanted), 0, []))


def shown(results: list[Result]) -> list[Any]:
    return [serialization.deserialize(result.stored.data, (), []) for result in results]


def yielding(*values: Any, then: BaseException | None = None) -> Iterator[Any]:
    yield from values
    if then is not None:
        raise then


def test_several_results_hold_no_more_references_than_one_answer_carries() -> None:
    def keep(object_id: bytes, attempt: int, value: Serialized, owner: Address, room: int) -> Result:
        shelf.kept[object_id] = len(value.refs)
        return Result(StoredObject(value.data, (), False, ()), value.refs)

    shelf = Shelf(most_references=3)
    shelf.keep_result = keep  # type: ignore[method-assign]
    a, b, c, d = (ObjectRef(id_of(name), OWN) for name in "abcd")
    shelf.returns.keep(task(2), [[a], [b, c]])
    assert shelf.has(1, 2)
    with pytest.raises(ValueError, match="values hold 4 references, and at most 3"):
        shelf.returns.keep(task(3), [[a], [b, c], d])
    assert shelf.has()


def test_a_call_has_one_result_none_or_several() -> None:
    for num_returns, returned, expected in [
        (1, [1, 2], [[1, 2]]),
        (0, "ignored", []),
        (2, (1, 2), [1, 2]),
        (2, {3: 4, 5: 6}, [3, 5]),
        (2, iter([1, 2]), [1, 2]),
    ]:
        shelf = Shelf()
        assert shown(shelf.returns.keep(task(num_returns), returned)) == expected and shelf.has(*expected)


def test_nobody_gets_what_a_constructor_returns() -> None:
    shelf = Shelf()
    assert shelf.returns.keep(task(1, actor=ActorOptions()), yielding(1)) == [] and shelf.has()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ((1, 2, 3), "3 objects"),
        (iter([1]), "1 objects"),
        (range(10**12), "1000000000000 objects"),
        (count(), "more objects"),
        (7, "one object of type int"),
    ],
)
def test_another_number_of_results_is_an_error_and_nothing_is_kept(returned: Any, words: str) -> None:
    shelf = Shelf()
    with pytest.raises(ValueError, match=f"task f has num_returns=2, but returned {words}") as raised:
        shelf.returns.keep(task(2), returned)
    assert raised.value.__cause__ is None and raised.value.__suppress_context__ == (returned == 7)
    assert shelf.has()


@pytest.mark.parametrize("kind", [tuple, yielding])
def test_the_results_of_one_call_share_the_room_of_its_answer(kind: Any) -> None:
    shelf = Shelf()
    values = ["a" * 100, "b" * 50, "c"]
    results = shelf.returns.keep(task(3), yielding(*values) if kind is yielding else tuple(values))
    first, second, _ = (result.inlined for result in results)
    all_of_it = TASK_RPC_INLINED_BYTES_LIMIT
    assert shelf.rooms == [all_of_it, all_of_it - first, all_of_it - first - second] and first > 100


@pytest.mark.parametrize("kind", [tuple, yielding])
def test_what_the_owner_does_not_need_is_not_kept(kind: Any) -> None:
    shelf = Shelf()
    results = shelf.returns.keep(task(3, unwanted=[1, 3]), yielding(1, 2, 3) if kind is yielding else (1, 2, 3))
    assert [result is UNWANTED for result in results] == [True, False, True] and shelf.has(2, beginning=2)


@pytest.mark.parametrize("wrong", [lambda: 0, ObjectStoreFullError(reason="the shelf is full")])
def test_when_one_result_cannot_be_kept_none_is(wrong: Any) -> None:
    """Here it cannot be pickled, or there is no room."""
    shelf = Shelf()
    if isinstance(wrong, Exception):
        shelf.most = 2
        with pytest.raises(ObjectStoreFullError):
            shelf.returns.keep(task(3), (1, 2, 3))
    else:
        with pytest.raises(TypeError):
            shelf.returns.keep(task(2), (1, (part for part in ())))
    assert shelf.has()


def test_of_a_task_that_is_cancelled_while_its_results_are_kept_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    keep_result = shelf.keep_result

    def keep_two(*arguments: Any) -> Result:
        if len(shelf.kept) == 2:
            raise KeyboardInterrupt
        return keep_result(*arguments)

    monkeypatch.setattr(shelf, "keep_result", keep_two)
    with pytest.raises(KeyboardInterrupt):
        shelf.returns.keep(task(3), (1, 2, 3))
    assert shelf.has()


# --- generators that fill returns


def test_a_generator_fills_its_returns_as_it_yields() -> None:
    shelf = Shelf()
    had: list[int] = []

    def values() -> Iterator[int]:
        for value in (1, 2, 3):
            yield value
            had.append(len(shelf.kept))

    assert shown(shelf.returns.keep(task(3), values())) == [1, 2, 3]
    assert had == [1, 2, 3] and shelf.has(1, 2, 3)


@pytest.mark.parametrize("num_returns", [1, 0])
def test_a_generator_of_one_result_yields_one_and_of_none_nothing(num_returns: int) -> None:
    shelf = Shelf()
    assert shown(shelf.returns.keep(task(num_returns), yielding(*["value"] * num_returns))) == ["value"] * num_returns


def test_when_a_generator_raises_what_it_has_yielded_stays() -> None:
    shelf = Shelf()
    error = ValueError("in between")
    with pytest.raises(BrokenOff) as raised:
        shelf.returns.keep(task(3), yielding(1, 2, then=error))
    assert raised.value.error is error and shown(raised.value.results) == [1, 2] and shelf.has(1, 2)


def test_a_generator_that_yields_too_little_has_broken_off() -> None:
    shelf = Shelf()
    with pytest.raises(BrokenOff) as raised:
        shelf.returns.keep(task(3), yielding(1, 2))
    assert str(raised.value.error) == "task f has num_returns=3, but yielded 2 objects" and shelf.has(1, 2)


def test_of_a_generator_that_yields_too_much_nothing_stays() -> None:
    shelf = Shelf()
    with pytest.raises(ValueError, match="task f has num_returns=2, but yielded more objects"):
        shelf.returns.keep(task(2), yielding(1, 2, 3, 4))
    assert shelf.has()


@pytest.mark.parametrize("error", [ValueError("at the end"), KeyboardInterrupt()])
def test_of_a_generator_that_raises_when_all_returns_are_filled_nothing_stays(error: BaseException) -> None:
    """There is none left for its error."""
    shelf = Shelf()
    with pytest.raises(type(error)) as raised:
        shelf.returns.keep(task(2), yielding(1, 2, then=error))
    assert raised.value is error and shelf.has()


def test_of_a_generator_that_is_cancelled_nothing_stays() -> None:
    shelf = Shelf()
    with pytest.raises(KeyboardInterrupt):
        shelf.returns.keep(task(3), yielding(1, 2, then=KeyboardInterrupt()))
    assert shelf.has()


def test_what_was_about_to_be_kept_is_taken_back_too() -> None:
    """The interrupt came when it was in the store, and not yet on the list."""
    shelf = Shelf()
    results = shelf.returns.keep(task(3), (1, 2, 3))
    shelf.returns.discard(task(3), results[:2])
    assert shelf.has()


def test_g67_a_rerun_that_fails_leaves_what_its_owner_has_from_an_earlier_attempt() -> None:
    shelf = Shelf()
    shelf.kept[return_id(RECEIVED_ID, 2)] = "of an earlier attempt"
    rerun = task(3, unwanted=[2])
    with pytest.raises(BrokenOff) as error:
        shelf.returns.keep(rerun, yielding("a", "b", then=ValueError("no")))
    shelf.returns.discard(rerun, error.value.results)
    assert shelf.has("of an earlier attempt", beginning=2)
    shelf.returns.discard(rerun, [])
    assert shelf.has("of an earlier attempt", beginning=2)


def test_a_call_ends_when_the_store_knows_that_its_results_are_dropped() -> None:
    """The answer of the call follows. If its process dies before that, the owner frees the results."""
    shelf = Shelf()
    shelf.keeps_discarded = True
    shelf.thread.begin(lambda: shelf.returns.keep(task(3), yielding(1, 2, then=KeyboardInterrupt())))
    assert shelf.has() and len(shelf.on_discarded) == 3
    for on_discarded in shelf.on_discarded:
        assert shelf.thread.waits_at is not None
        on_discarded()
    with pytest.raises(KeyboardInterrupt):
        shelf.thread.result()
