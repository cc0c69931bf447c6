"""The tests of this folder that a cluster inside one process cannot pass, each with the reason.

``make test-local`` runs all others there (``MINRAY_TRANSPORT=local``). At most a tenth of the tests may be listed; a test of
``tests/in_process`` counts.
"""

from __future__ import annotations

FORKS = "it forks, which a task of local_mode refuses"
OUTPUT = "it reads what a worker has printed; in one process that goes to the program's own streams"
DRIVERS = "another program joins the cluster, which no other process can reach"

NOT_LOCAL: dict[str, str] = {
    "test_actor_endings.py::test_a_child_that_an_actor_forks_answers_no_calls": FORKS,
    "test_actor_endings.py::test_a_clean_up_that_nobody_can_await_is_said_to_be_none": OUTPUT,
    "test_actor_endings.py::test_the_death_of_an_actor_is_told_as_fully_as_that_of_a_worker": OUTPUT,
}
"""File and test -> reason. A name ends before its parameters, or is that of a whole file."""


def reason_for(node_id: str) -> str:
    """Return why a test, by its id, is not for local mode; empty if it is."""
    name = node_id.rpartition("/")[2].partition("[")[0]
    file, _, function = name.partition("::")
    return NOT_LOCAL.get(f"{file}::{function}") or NOT_LOCAL.get(file, "")
