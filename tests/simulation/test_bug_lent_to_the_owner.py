"""A ticket that a dead process had noted for the owner itself stayed for ever.

A task gives a reference back to the process that owns it. Before it answers, its worker has the owner note a ticket, for the
owner as borrower; then the worker dies. The owner learnt of deaths only when it had lent something to somebody else, so
the ticket was never doubted, and the object never freed. (Found by a campaign with generators.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import minray
from tests.simulation.judge import judged


@minray.remote
def give_back(refs: list[Any]) -> list[Any]:
    return refs


@minray.remote
def yield_back(refs: list[Any]) -> Iterator[Any]:
    yield refs


@pytest.mark.parametrize("word", ["PushTask reply", "ReportGeneratorItem"])
def test_a_ticket_of_a_dead_lender_does_not_outlive_it(word: str) -> None:
    def body() -> Any:
        mine = minray.put(1)
        if word == "PushTask reply":
            return minray.get(minray.get(give_back.remote([mine])))
        return [minray.get(minray.get(ref)) for ref in yield_back.remote([mine])][0]

    assert judged(body, lambda cluster: cluster.when(word).of("worker").kill())[0] == [1]
