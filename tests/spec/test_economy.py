"""Without faults each program costs what it has cost before, to the message."""

from __future__ import annotations

import pytest

from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from tests.spec.economy import SCENARIOS, counts_of, read_counts


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_program_costs_what_it_has_cost_before(name: str) -> None:
    assert counts_of(name) == read_counts()[name], "meant so? python -m tests.spec.economy --write"


def test_a_detour_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is given to a new lease, because none is kept for the next one."""
    monkeypatch.setattr(NormalTaskSubmitter, "_may_take", lambda self, worker, now: worker.next_sequence == 1)
    assert counts_of("nested") != read_counts()["nested"] or counts_of("argument") != read_counts()["argument"]
