"""The owner's table of streams, and the executor's counters: both pure, driven directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.bounds import BOUNDS
from minray.common.ids import TaskIdFactory, item_id, return_id, task_of
from minray.common.state_table import InvalidTransition
from minray.core_worker.execution.outgoing_stream import OutgoingStream, Report
from minray.core_worker.records.object_ref_streams import ObjectRefStreams
from minray.core_worker.records.received_task import Result
from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.core_worker import GeneratorItemReply, Rerun
from minray.values.serialization import serialize
from tests.core_worker.parts import JOB, OWN, received, template

TASK = TaskIdFactory(OWN.worker_id, JOB).next()


def streams_with(*numbers: int) -> ObjectRefStreams:
    streams = ObjectRefStreams()
    streams.begin_stream(TASK)
    for number in numbers:
        streams.on_item(TASK, number)
    return streams


def test_g94_an_item_s_id_is_its_task_and_its_position() -> None:
    ids = [item_id(TASK, number) for number in range(1, 1000)]
    assert len(set(ids)) == 999 and return_id(TASK, 1) not in ids
    assert {task_of(object_id) for object_id in ids} == {TASK}


# --- the owner


@given(st.permutations(range(1, 8)), st.lists(st.integers(1, 7)))
def test_items_count_once_whenever_they_come(order: list[int], again: list[int]) -> None:
    streams = streams_with()
    assert all(streams.on_item(TASK, number) for number in order)
    assert not any(streams.on_item(TASK, number) for number in again)
    stream = streams.stream_of(TASK)
    assert stream is not None and stream.arrived == 7 and not stream.beyond


def test_what_has_arrived_ends_before_the_first_that_is_missing() -> None:
    streams = streams_with(1, 3, 4)
    stream: Any = streams.stream_of(TASK)
    assert (stream.arrived, list(stream.beyond)) == (1, [3, 4])
    streams.on_item(TASK, 2)
    assert (stream.arrived, list(stream.beyond)) == (4, [])


def test_g93_an_error_takes_the_place_of_the_first_that_is_missing() -> None:
    streams = streams_with(1, 2, 4, 6)
    ending = streams.on_ended(TASK, with_error=True)
    assert ending is not None and (ending.end, ending.surplus) == (3, [4, 6])


@pytest.mark.parametrize(
    ("numbers", "total", "is_good"),
    [((), 0, True), ((1, 2), 2, True), ((1, 2), 1, False), ((1, 2), 3, False), ((1, 3), 3, False), ((1,), None, False)],
)
def test_g95_what_was_said_and_what_has_arrived_must_agree(
    numbers: tuple[int, ...], total: int | None, is_good: bool
) -> None:
    streams = streams_with(*numbers)
    if total is not None:
        streams.on_total(TASK, total)
    assert (streams.contradiction(TASK) == "") is is_good


def test_g97_what_nobody_reads_contradicts_nothing() -> None:
    streams = streams_with(1)
    streams.on_dropped(TASK)
    assert streams.contradiction(TASK) == ""


def test_g91_who_waits_for_the_reader_is_answered_when_enough_is_read() -> None:
    streams = streams_with(1, 2, 3)
    assert not streams.wait_read(TASK, 0, "none")
    assert all(streams.wait_read(TASK, count, f"until {count}") for count in (2, 1, 3, 2))
    assert [streams.on_read(TASK, number) for number in (1, 2, 3)] == [["until 1"], ["until 2", "until 2"], ["until 3"]]
    assert not streams.wait_read(TASK, 3, "late")


@pytest.mark.parametrize("end_first", [False, True])
def test_g97_dropping_frees_what_is_unread_and_lets_everybody_go(end_first: bool) -> None:
    streams = streams_with(1, 2, 3, 5)
    streams.on_read(TASK, 1)
    streams.wait_read(TASK, 2, "held up")
    if end_first:
        ending = streams.on_ended(TASK, with_error=False)
        assert ending is not None and ending == (3, [5], ["held up"])
        assert streams.on_dropped(TASK) == ([2, 3], 3, [])
    else:
        assert streams.on_dropped(TASK) == ([2, 3, 5], None, ["held up"])
        assert not streams.is_wanted(TASK) and not streams.wait_read(TASK, 9, "later")
        assert streams.on_ended(TASK, with_error=True) is None
    assert len(streams) == 0 and streams.stream_of(TASK) is None


def test_a_stream_ends_once() -> None:
    streams = streams_with(1)
    streams.on_ended(TASK, with_error=False)
    streams.on_dropped(TASK)
    streams.begin_stream(TASK)
    with pytest.raises(InvalidTransition):
        streams.begin_stream(TASK)


# --- the executor


class Executor:
    """Keeps results, and takes the reports of a stream."""

    def __init__(self, items_arrived: int = 0, most_unread: int = 0) -> None:
        self.reports: list[Report] = []
        self.discarded: list[bytes] = []
        myself: Any = self
        rerun = Rerun([], items_arrived, [])
        task = received(template(most_unread=most_unread), task_id=TASK, attempt=0, rerun=rerun)
        in_flight = BOUNDS.generator_max_reports_in_flight
        self.stream = OutgoingStream(task, myself, lambda stream, report: self.reports.append(report), in_flight)

    def keep_result(self, object_id: bytes, attempt: int, value: Any, owner: Any) -> Result:
        return Result(StoredObject(value.data, (), False, ()), [])

    def discard_result(self, object_id: bytes, attempt: int, on_discarded: Callable[[], None]) -> None:
        self.discarded.append(object_id)
        on_discarded()

    def yields(self, count: int) -> None:
        for number in range(count):
            if self.stream.count_item():
                self.stream.report(serialize(number))

    def answer(self, count: int, read: int = 0, is_unwanted: bool = False) -> None:
        for _ in range(count):
            self.stream.answered += 1
            self.stream.on_answer(GeneratorItemReply(read, is_unwanted))


def test_g91_reports_in_flight_are_bounded() -> None:
    executor = Executor()
    executor.yields(BOUNDS.generator_max_reports_in_flight - 1)
    assert executor.stream.may_go_on()
    executor.yields(1)
    assert not executor.stream.may_go_on() and not executor.stream.is_held_up()
    executor.answer(1)
    assert executor.stream.may_go_on() and not executor.stream.is_settled()


@pytest.mark.parametrize("most_unread", [1, 3])
def test_g91_backpressure_counts_what_is_unread(most_unread: int) -> None:
    executor = Executor(most_unread=most_unread)
    executor.yields(most_unread)
    executor.answer(most_unread)
    assert executor.stream.is_settled() and executor.stream.is_held_up() and executor.stream.enough_read() == 1
    executor.stream.on_answer(GeneratorItemReply(1, False))
    assert executor.stream.may_go_on()
    executor.stream.on_answer(GeneratorItemReply(0, False))
    assert executor.stream.may_go_on(), "an old answer that comes late takes nothing back"


def test_g94_what_the_owner_has_is_not_reported_again() -> None:
    executor = Executor(items_arrived=2)
    executor.yields(4)
    executor.stream.report_end()
    assert [report.number for report in executor.reports] == [3, 4, 5]
    assert executor.reports[-1].result is None


@pytest.mark.parametrize("reply", [None, GeneratorItemReply(0, True)])
def test_g97_what_nobody_wants_is_not_reported_and_holds_nobody_up(reply: GeneratorItemReply | None) -> None:
    executor = Executor(most_unread=1)
    executor.yields(1)
    executor.stream.on_answer(reply)
    assert executor.stream.may_go_on()
    executor.yields(5)
    assert len(executor.reports) == 1
