"""An error that nobody looks at is reported; one that is forgotten is seen by the judge."""

from __future__ import annotations

import time
from typing import Any

import pytest

import minray
from minray.core_worker.ownership.objects import Objects
from tests.simulation.judge import judged


@minray.remote(max_retries=0)
def fail_later() -> None:
    time.sleep(0.5)
    raise ValueError("later")


def drop_early_and_late() -> None:
    fail_later.remote()
    ref = fail_later.remote()
    time.sleep(2)
    del ref
    time.sleep(2)


def store_only(self: Any, object_id: bytes, stored: Any) -> None:
    if self._references.is_in_scope(object_id):
        self._store.put(object_id, stored)


def test_an_error_that_is_neither_seen_nor_reported_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    judged(drop_early_and_late)
    monkeypatch.setattr(Objects, "on_value", store_only)
    with pytest.raises(AssertionError, match="state: the error of task .* was neither seen nor reported"):
        judged(drop_early_and_late)
