"""Where the package lies, and which of its modules say something of themselves."""

from __future__ import annotations

import os
import sys
from types import FrameType

import minray
from minray.common.package import COUNTS_REFERENCES, DIRECTORY, HOLDS_LOCKS, has_mark
from minray.core_worker.execution import outgoing_stream, task_profile
from minray.core_worker.fetching import results
from minray.core_worker.introspection import metric_registry
from minray.core_worker.submission import actor_clients
from minray.core_worker.user_threads import actor_api, generator_reader, object_reader, port, user_api
from minray.node import worker_output
from minray.values import object_ref


def test_the_directory_is_the_packages() -> None:
    assert DIRECTORY == os.path.dirname(str(minray.__file__))


def test_modules_have_the_marks_that_others_look_for() -> None:
    for module in (
        object_ref, actor_api, generator_reader, object_reader, outgoing_stream, port, results, user_api
    ):
        assert getattr(module, COUNTS_REFERENCES) is True
    for module in (actor_clients, metric_registry, task_profile, worker_output):
        assert getattr(module, HOLDS_LOCKS) is True


def test_a_frame_is_asked_for_the_mark_of_its_module() -> None:
    names: dict[str, object] = {"frame_here": sys._getframe, HOLDS_LOCKS: True}
    exec("frame = frame_here()", names)
    frame = names["frame"]
    assert isinstance(frame, FrameType) and has_mark(frame, HOLDS_LOCKS)
    assert not has_mark(frame, COUNTS_REFERENCES) and not has_mark(sys._getframe(), HOLDS_LOCKS)
