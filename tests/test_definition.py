"""How a definition becomes known to a cluster: once, or by each of several threads, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from minray.api.definition import Definition
from minray.core_worker.records.pending_task import FunctionExport

JOB = b"job1"


class Api:
    """As ``UserApi``, in a process of its own."""

    def __init__(self, job_id: bytes = JOB) -> None:
        self.mark = object()
        self.job_id = job_id
        self.count = 0
        self.exported: list[bytes] = []
        self.while_pickling: Callable[[], None] = lambda: None

    def new_function_id(self) -> bytes:
        self.count += 1
        return b"function %d" % self.count

    def export(self, export: FunctionExport, function: Callable[..., Any]) -> None:
        self.while_pickling()
        self.exported.append(export.function_id)


def through(definition: Definition, api: Any) -> FunctionExport:
    return definition.export_through(api)


def in_another_thread(work: Callable[[], FunctionExport]) -> FunctionExport:
    done: list[FunctionExport] = []
    thread = threading.Thread(target=lambda: done.append(work()))
    thread.start()
    thread.join()
    return done[0]


def test_g15_a_definition_is_exported_once_in_each_cluster() -> None:
    definition, first, second = Definition(len), Api(), Api()
    assert through(definition, first) is through(definition, first) and first.exported == [b"function 1"]
    assert through(definition, second) is through(definition, second) and second.exported == [b"function 1"]


def test_what_refers_to_itself_is_known_by_one_id() -> None:
    definition, api, found = Definition(len), Api(), []
    api.while_pickling = lambda: found.append(through(definition, api))
    assert through(definition, api) is found[0] and api.exported == [b"function 1"]


def test_each_of_two_threads_that_are_the_first_has_an_export_that_is_really_made() -> None:
    """Not one that the other may have to give up."""
    definition, api, others = Definition(len), Api(), []

    def other() -> None:
        api.while_pickling = lambda: None
        others.append(in_another_thread(lambda: through(definition, api)))

    api.while_pickling = other
    own = through(definition, api)
    assert {own.function_id, others[0].function_id} == set(api.exported) and own is not others[0]
    assert through(definition, api) is own


def test_what_cannot_be_pickled_leaves_nothing_behind() -> None:
    definition, api = Definition(len), Api()

    def fail() -> None:
        raise TypeError("cannot pickle")

    api.while_pickling = fail
    for _ in range(2):
        with pytest.raises(TypeError):
            through(definition, api)
    api.while_pickling = lambda: None
    assert not through(definition, api).done and api.exported == [b"function 3"]


def test_a_copy_in_the_same_job_is_known_already_and_in_another_job_not() -> None:
    definition, api = Definition(len), Api()
    through(definition, api)
    for there, done in ((Api(), True), (Api(b"job2"), False)):
        copy = Definition(len)
        copy.__setstate__({"function": len, "function_id": definition.function_id, "job_id": definition.job_id})
        assert through(copy, there).done == done and bool(there.exported) != done
