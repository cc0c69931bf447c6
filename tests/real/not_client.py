"""The tests of this folder that a remote client does not run, each with the reason.

``make test-client`` connects all others to a head as a remote client (``MINRAY_TEST_AS=client``). Tests that start clusters
of their own have no use for that, and are not listed here.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.real.not_local import names_of

OWN_CLUSTER = "it starts a cluster of its own"

SHARED_MEMORY = "it looks at the memory that a driver on a node shares with the object store"
COPIES = "it fills the store with arrays that it holds; a remote client holds copies, which take no memory of the store"
FRAMES = "it counts the frames of a driver's sockets; a remote client counts its messages"
DRIVER = "the cluster takes the client's driver process for the driver, and knows its process id"
OWN_STORE = "it breaks the part of a driver on a node that talks to the object store"

LARGE = "test_large_values.py::test"
NOT_CLIENT: dict[str, str] = {
    f"{LARGE}_g13_g76_an_array_is_read_where_it_lies": SHARED_MEMORY,
    f"{LARGE}_a_value_is_copied_once_when_it_is_put_and_never_when_it_is_read": SHARED_MEMORY,
    f"{LARGE}_all_processes_of_a_node_read_the_same_memory": SHARED_MEMORY,
    f"{LARGE}_many_small_arrays_and_a_large_one_in_one_value": SHARED_MEMORY,
    f"{LARGE}_tables_of_other_libraries_are_read_where_they_lie": SHARED_MEMORY,
    f"{LARGE}_g61_g59_an_array_outlives_its_reference_and_then_its_memory_is_free": COPIES,
    f"{LARGE}_g79_a_full_store_says_so_and_goes_on": COPIES,
    "test_private_names.py::test_the_tables_of_the_state": DRIVER,
    "test_scheduling.py::test_a_thousand_tasks_of_one_shape_cost_little_more_than_one_request_each": FRAMES,
    "test_seeing_objects.py::test_a_driver_and_a_worker_are_seen_with_what_they_refer_to": DRIVER,
    "test_seeing_objects.py::test_what_was_read_before_it_was_freed_stays_valid": SHARED_MEMORY,
    "test_seeing_processes.py::test_busy_processes_say_where_they_are": DRIVER,
    "test_wait_and_get.py::test_a_caller_that_waits_is_told_of_a_bug_of_minray[provider._client-create-<lambda>]": OWN_STORE,
}
"""File and test -> reason, as in ``not_local``."""


def reason_for(node_id: str, fixtures: Collection[str]) -> str:
    """Return why a test, by its id and its fixtures, is not for a remote client; empty if it is."""
    if "node" not in fixtures:
        return OWN_CLUSTER
    return next((NOT_CLIENT[name] for name in names_of(node_id) if name in NOT_CLIENT), "")
