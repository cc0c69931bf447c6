"""The tests of this folder that a cluster inside one process cannot pass, each with the reason.

``make test-local`` runs all others there (``MINRAY_TRANSPORT=local``). At most a tenth of the tests may be listed; a test of
``tests/in_process`` counts.
"""

from __future__ import annotations

COMPILED = "a worker stays in compiled code for ever; only a process can be ended there"
FORKS = "it forks, which a task of local_mode refuses"
OUTPUT = "it reads what a worker has printed; in one process that goes to the program's own streams"
DRIVERS = "another program joins the cluster, which no other process can reach"
PROCESSES = "it looks at the worker's process from outside, as the system shows it"
CRASHES = "it crashes in compiled code, which ends the whole program"
FALLBACK = "memory for what the store cannot keep is no file in one process"
SOCKETS = "it looks at the sockets, logs or token of a session, which one process has not"
LIMITS = "it sets a limit of the whole process"
SHARED = "it needs a worker's own modules, variables or working directory, of which one process has one"
COUNTS = "it counts steps of the driver's loop or objects of its heap, which all processes share here"
STREAMS = "a dead worker has no standard error of its own whose last lines could be told"
UNWINDS = "a killed worker is a thread in which an exception is raised, so its finally blocks run"

MEMORY = "test_large_values.py::test_memory"
NOT_LOCAL: dict[str, str] = {
    "test_actor_endings.py::test_a_child_that_an_actor_forks_answers_no_calls": FORKS,
    "test_actor_endings.py::test_a_clean_up_that_nobody_can_await_is_said_to_be_none": OUTPUT,
    "test_actor_endings.py::test_the_death_of_an_actor_is_told_as_fully_as_that_of_a_worker": OUTPUT,
    "test_actor_exits.py::test_c2_g28_g29_an_actor_ends_although_a_call_never_does[async-kill]": UNWINDS,
    "test_actors.py::test_g26_g32_a_detached_actor_outlives_its_driver_in_its_namespace": DRIVERS,
    "test_cancellation.py::test_g42_c4_force_ends_the_worker": COMPILED,
    "test_cancellation.py::test_g46_force_with_recursive_ends_the_childrens_workers": COMPILED,
    "test_bad_input.py::test_a_directory_that_is_a_file": SOCKETS,
    "test_bad_input.py::test_a_directory_too_long_for_sockets": SOCKETS,
    "test_bad_input.py::test_a_limit_of_open_files_that_is_too_low": LIMITS,
    "test_bad_input.py::test_a_log_that_cannot_be_written_ends_nobody": SOCKETS,
    "test_bad_input.py::test_a_session_whose_processes_are_gone_is_swept_by_the_next_one": SOCKETS,
    "test_bad_input.py::test_a_token_that_is_wrong_or_cannot_be_read": SOCKETS,
    "test_bad_input.py::test_a_worker_that_cannot_reach_the_store_says_why": LIMITS,
    "test_bad_input.py::test_garbage_on_every_socket_disturbs_nobody": SOCKETS,
    "test_bad_input.py::test_strangers_that_say_nothing_do_not_hold_anything_up": SOCKETS,
    "test_bad_input.py::test_the_defaults_of_rays_init_may_be_given": OUTPUT,
    "test_drivers.py::TestSeveralDrivers": DRIVERS,
    "test_drivers.py::test_a_child_that_is_told_to_end_before_it_has_run_ends"
    "[ray.get(ray.remote(forks_and_ends).remote(5))]": FORKS,
    "test_drivers.py::test_a_driver_that_is_killed_leaves_nothing": PROCESSES,
    "test_drivers.py::test_a_driver_whose_raylet_stands_still_leaves_nothing": PROCESSES,
    "test_drivers.py::test_a_forked_driver_may_connect_by_itself": DRIVERS,
    "test_drivers.py::test_a_future_whose_value_is_on_its_way_at_shutdown_raises": PROCESSES,
    "test_drivers.py::test_a_limit_of_open_files_that_may_be_too_low_is_told": LIMITS,
    "test_drivers.py::test_actors_for_which_no_worker_can_be_started_fail_and_name_the_limit": LIMITS,
    "test_drivers.py::test_the_context_has_the_addresses_that_ray_has": SOCKETS,
    "test_large_values.py::test_g62_objects_of_other_drivers_go_with_them": DRIVERS,
    "test_logging_config.py::test_records_are_json_with_the_fields_that_ray_has": OUTPUT,
    "test_logging_config.py::test_records_are_text_that_ends_in_the_ids": OUTPUT,
    f"{MEMORY}_that_only_garbage_keeps_makes_room_wherever_the_garbage_is[memfd-another driver]": DRIVERS,
    "test_notebook.py": OUTPUT,
    "test_options.py::test_the_title_of_a_worker_says_what_it_runs": PROCESSES,
    "test_other_users.py::test_a_user_whose_directory_is_taken_gets_one_in_the_login_s_directory": SOCKETS,
    "test_other_users.py::test_logs_rotate": SOCKETS,
    "test_other_users.py::test_no_process_of_a_cluster_inherits_a_token": SHARED,
    "test_output.py::test_a_line_that_a_call_has_begun_in_another_thread_ends_with_the_call": OUTPUT,
    "test_output.py::test_a_line_without_an_end_is_its_tasks_alone": OUTPUT,
    "test_output.py::test_de_duplication_can_be_switched_off": OUTPUT,
    "test_output.py::test_lines_carry_the_tasks_name_and_pid_on_the_same_stream": OUTPUT,
    "test_output.py::test_lines_of_an_actor_carry_what_it_says_of_itself": OUTPUT,
    "test_output.py::test_lines_of_threads_do_not_mix": OUTPUT,
    "test_output.py::test_output_is_kept_in_the_sessions_logs": OUTPUT,
    "test_output.py::test_output_need_not_come_to_the_driver": OUTPUT,
    "test_output.py::test_strange_lines_come_through_or_do_no_harm": OUTPUT,
    "test_output.py::test_the_last_words_of_a_worker_that_dies_are_shown": OUTPUT,
    "test_output.py::test_what_does_not_pass_pythons_streams_is_not_shown_as_the_words_of_an_earlier_task": OUTPUT,
    "test_output.py::test_what_many_workers_print_alike_is_shown_once_and_counted": OUTPUT,
    "test_output.py::test_what_tasks_log_is_shown_as_they_have_configured_it": OUTPUT,
    "test_placement_groups.py::test_g106_a_group_of_another_driver_ends_with_it_unless_it_is_detached": DRIVERS,
    "test_private_names.py::test_the_global_node_is_the_node_of_this_process": SOCKETS,
    "test_progress.py::test_bars_of_tasks_are_shown_at_the_driver_beside_their_lines": OUTPUT,
    "test_references.py::test_a_reference_knows_where_it_was_made_if_that_is_recorded": COUNTS,
    "test_retries.py::test_a_crash_in_compiled_code_is_told_with_the_tasks_last_words": STREAMS,
    "test_retries.py::test_g16_a_task_whose_worker_dies_runs_again[segfault]": CRASHES,
    "test_retries.py::test_g17_a_crash_in_compiled_code_tells_where": CRASHES,
    "test_retries.py::test_g17_sys_exit_with_a_message_leaves_it_on_stderr": STREAMS,
    "test_retries.py::test_g17_the_error_is_a_death_certificate": STREAMS,
    "test_runtime_env.py::test_a_working_dir_leads_also_if_workers_look_there_anyway": SHARED,
    "test_runtime_env.py::test_directories_that_every_node_has": SHARED,
    "test_runtime_env.py::test_variables_that_python_reads_when_it_begins": SHARED,
    "test_scheduling.py::test_a_task_or_a_call_takes_few_steps_in_its_driver": COUNTS,
    "test_scheduling.py::test_calls_that_wait_and_answers_that_are_kept_are_little_work_for_the_garbage_collector": COUNTS,
    "test_seeing_processes.py::test_niceness_and_oom_adjustment_are_settings": PROCESSES,
    "test_seeing_processes.py::test_the_kernel_takes_memory_and_time_from_workers_before_others": PROCESSES,
    "test_spilling.py::test_a_full_disk_says_what_helps": FALLBACK,
    "test_spilling.py::test_the_directory_is_for_starting_and_a_path": DRIVERS,
    "test_values.py::test_g15_rebinding_globals_does_not_change_what_workers_run": SHARED,
    "test_why.py::test_a_long_get_in_a_task_is_heard_of_in_the_driver": OUTPUT,
    "test_working_dir.py::test_a_large_package_is_an_object_of_the_driver": SHARED,
    "test_working_dir.py::test_an_upload_that_fails_ends_the_connection_and_the_cluster": SHARED,
    "test_working_dir.py::test_an_archive_can_be_the_working_dir": SHARED,
    "test_working_dir.py::test_tasks_and_actors_run_in_a_copy_that_the_original_no_longer_changes": SHARED,
}
"""File and test -> reason. A name has its parameters, or ends before them, or is that of a whole class or file."""


def reason_for(node_id: str) -> str:
    """Return why a test, by its id, is not for local mode; empty if it is."""
    return next((NOT_LOCAL[name] for name in names_of(node_id) if name in NOT_LOCAL), "")


def names_of(node_id: str) -> list[str]:
    """Return the names under which a test may be listed, by its id."""
    before, _, after = node_id.partition("::")
    whole = f"{before.rpartition('/')[2]}::{after}"
    function = whole.partition("[")[0]
    return [whole, function, function.rpartition("::")[0], whole.partition("::")[0]]
