"""The tests of this folder that a cluster inside one process cannot pass, each with the reason.

``MINRAY_TRANSPORT=local`` runs all others there. Names are as in ``tests/real/not_local.py``.
"""

from __future__ import annotations

from tests.real.not_local import OUTPUT, PROCESSES, SHARED, names_of

COMMANDS = "it starts nodes from the command line, which no other process can reach when they are inside one"
VARIABLES = "it gives a node's processes variables of their own, which local_mode refuses"

NOT_LOCAL: dict[str, str] = {
    "test_cli.py": COMMANDS,
    "test_cluster_utils.py::test_a_node_has_variables_of_its_own": VARIABLES,
    "test_cluster_utils.py::test_labels_that_ray_defines_lead_tasks_to_their_nodes": VARIABLES,
    "test_cluster_utils.py::test_what_makes_no_sense_is_refused_before_a_process_begins"
    "[argument7-RuntimeError-could not be started: illegal environment variable name]": VARIABLES,
    "test_killed_while_moving.py": PROCESSES,
    "test_check_command.py": COMMANDS,
    "test_logs_command.py": COMMANDS,
    "test_memory_command.py": COMMANDS,
    "test_microbenchmark_command.py": COMMANDS,
    "test_packages_on_nodes.py": SHARED,
    "test_process_commands.py": COMMANDS,
    "test_several_nodes.py::test_what_workers_of_other_nodes_print_reaches_the_driver": OUTPUT,
    "test_state_commands.py": COMMANDS,
    "test_who_survives_whom.py": COMMANDS,
}
"""File and test -> reason."""
TCP = "its nodes listen on TCP, which local_mode does not"


def reason_for(node_id: str) -> str:
    """Return why a test, by its id, is not for local mode; empty if it is."""
    listed = next((NOT_LOCAL[name] for name in names_of(node_id) if name in NOT_LOCAL), "")
    return listed or (TCP if "[tcp" in node_id else "")
