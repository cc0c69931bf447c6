"""Entries of ``_system_config`` that Ray knows and minray does not.

Ray: src/ray/common/ray_config_def.h

A program for Ray may set constants of parts that minray does not have, or does otherwise. Such entries change nothing here,
and the log names each of them once. An entry that neither knows is a mistake, which ``SystemConfig`` reports.

Three mean something under another name: ``object_spilling_config``, whose directory or URLs become
``object_spilling_directory``, and the two for the rotation of logs.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec

from minray.common.config import SystemConfig

KNOWN_TO_RAY = frozenset(
    """
    AUTH_MODE ENABLE_K8S_TOKEN_AUTH actor_excess_queueing_warn_threshold actor_graceful_shutdown_timeout_ms
    actor_scheduling_queue_max_reorder_wait_seconds agent_manager_retry_interval_ms agent_max_grpc_message_size
    agent_register_timeout_ms automatic_object_spilling_enabled cancellation_retry_ms cancelled_lease_tombstone_ttl_ms
    core_worker_internal_heartbeat_ms core_worker_num_server_call_thread core_worker_rpc_server_reconnect_timeout_base_s
    core_worker_rpc_server_reconnect_timeout_max_s count_swap_in_memory_monitor custom_unit_instance_resources
    debug_dump_period_milliseconds disable_open_telemetry_sdk_log emit_event_to_log_file emit_main_service_metrics
    enable_autoscaler_v2 enable_cluster_auth enable_core_worker_ray_event_to_aggregator
    enable_core_worker_task_event_to_gcs enable_export_api_write enable_export_api_write_config
    enable_grpc_metrics_collection_for enable_infeasible_task_early_exit enable_metrics_collection enable_open_telemetry
    enable_output_error_log_if_still_retry enable_pipe_based_agent_to_parent_health_check enable_ray_event
    enable_ray_task_event_recorder enable_task_events_to_dashboard_head enable_timeline enable_worker_prestart
    event_level event_log_reporter_enabled event_stats event_stats_print_interval_ms
    experimental_object_manager_enable_multiple_connections export_task_events_write_batch_size
    external_storage_namespace fetch_fail_timeout_milliseconds fetch_warn_timeout_milliseconds
    free_local_objects_backlog_warn_objects_per_node free_objects_batch_size free_objects_period_milliseconds
    gcs_actor_table_min_duration_ms gcs_create_actor_retry_interval_ms gcs_create_placement_group_retry_max_interval_ms
    gcs_create_placement_group_retry_min_interval_ms gcs_create_placement_group_retry_multiplier
    gcs_grpc_initial_reconnect_backoff_ms gcs_grpc_max_reconnect_backoff_ms gcs_grpc_max_request_queued_max_bytes
    gcs_grpc_min_reconnect_backoff_ms gcs_lease_worker_retry_interval_ms gcs_mark_task_failed_on_job_done_delay_ms
    gcs_mark_task_failed_on_worker_dead_delay_ms gcs_max_active_rpcs_per_handler
    gcs_pull_resource_loads_period_milliseconds gcs_redis_heartbeat_interval_milliseconds
    gcs_redis_payload_metrics_enabled gcs_resource_broadcast_max_batch_delay_ms gcs_resource_broadcast_max_batch_size
    gcs_rocksdb_io_pool_size gcs_rocksdb_strand_buckets gcs_rpc_server_connect_timeout_s
    gcs_rpc_server_reconnect_timeout_s gcs_server_request_timeout_seconds gcs_server_rpc_client_thread_num
    gcs_server_rpc_server_thread_num gcs_storage gcs_storage_path get_check_signal_interval_milliseconds
    global_gc_min_interval_s grpc_client_check_connection_status_interval_milliseconds grpc_client_idle_timeout_ms
    grpc_client_keepalive_time_ms grpc_client_keepalive_timeout_ms grpc_enable_http_proxy grpc_keepalive_time_ms
    grpc_keepalive_timeout_ms grpc_server_retry_timeout_milliseconds grpc_stream_buffer_size handler_warning_timeout_ms
    health_check_failure_threshold health_check_initial_delay_ms health_check_period_ms health_check_timeout_ms
    idle_worker_killing_memory_threshold_bytes idle_worker_killing_time_threshold_ms
    io_context_event_loop_lag_collection_interval_ms io_context_monitor_healthy_deadline_ms
    io_context_monitor_latency_window_ms io_context_monitor_probe_interval_ms is_external_storage_type_fs
    kill_child_processes_on_worker_exit kill_child_processes_on_worker_exit_with_raylet_subreaper
    kill_idle_workers_interval_ms kill_worker_timeout_milliseconds lineage_pinning_enabled local_fs_capacity_threshold
    local_fs_monitor_interval_ms local_gc_interval_s local_gc_min_interval_s locality_aware_leasing_enabled
    log_rotation_backup_count log_rotation_max_bytes max_cancelled_lease_tombstones max_command_batch_size
    max_direct_call_object_size max_error_msg_size_bytes max_free_local_objects_batch_size max_fused_object_count
    max_grpc_message_size max_io_workers max_kill_memory_buffer_bytes max_lineage_bytes max_num_generator_returns
    max_object_report_batch_size max_pending_lease_requests_per_scheduling_category max_placement_group_load_report_size
    max_resource_shapes_per_load_report max_spilling_file_size_bytes max_task_args_memory_fraction
    maximum_actor_previous_incarnations maximum_gcs_dead_node_cached_count maximum_gcs_dead_worker_cached_count
    maximum_gcs_deletion_batch_size maximum_gcs_destroyed_actor_cached_count maximum_gcs_storage_operation_batch_size
    memory_monitor_refresh_ms memory_usage_threshold metric_cardinality_level metrics_report_batch_size
    metrics_report_interval_ms min_memory_free_bytes min_spilling_size num_grpc_internal_threads
    num_redis_request_retries num_server_call_thread num_workers_soft_limit nums_py_gcs_reconnect_retry
    object_manager_client_connection_num object_manager_default_chunk_size object_manager_max_bytes_in_flight
    object_manager_pull_timeout_ms object_manager_push_timeout_ms object_manager_rpc_threads_num
    object_manager_timer_freq_ms object_spilling_config object_spilling_directory object_spilling_threshold
    object_store_full_delay_ms object_store_get_max_ids_to_print_in_warning object_timeout_milliseconds
    oom_grace_period_s pipe_logger_read_buf_size plasma_store_usage_trigger_gc_threshold pop_worker_max_retries
    preallocate_plasma_memory predefined_unit_instance_resources preload_python_modules prestart_worker_first_driver
    process_group_cleanup_enabled publish_batch_size publisher_entity_buffer_max_bytes py_gcs_connect_timeout_s
    ray_cookie ray_event_recorder_max_queued_events ray_events_report_interval_ms ray_syncer_message_refresh_interval_ms
    raylet_check_for_unexpected_worker_disconnect_interval_ms raylet_check_gc_period_milliseconds
    raylet_client_connect_timeout_milliseconds raylet_client_num_connect_attempts raylet_core_dump_exclude_plasma_store
    raylet_death_check_interval_milliseconds raylet_liveness_self_check_interval_ms
    raylet_report_resources_period_milliseconds raylet_rpc_server_reconnect_timeout_base_s
    raylet_rpc_server_reconnect_timeout_max_s raylet_start_wait_time_s record_ref_creation_sites
    record_task_actor_creation_sites redis_db_connect_retries redis_db_connect_wait_milliseconds
    redis_db_probe_timeout_milliseconds redis_namespace_cleanup_use_unlink redis_retry_base_ms redis_retry_max_ms
    redis_retry_multiplier report_actor_placement_resources report_worker_backlog_interval_ms runtime_env_skip_local_gc
    scheduler_avoid_gpu_nodes scheduler_report_pinned_bytes_only scheduler_spread_threshold scheduler_top_k_absolute
    scheduler_top_k_fraction start_python_gc_manager_thread subscriber_timeout_ms support_fork
    system_concurrency_group_name system_memory_bytes_min task_actor_unavailable_retry_delay_base_ms
    task_actor_unavailable_retry_max_delay_ms task_events_dropped_task_attempt_batch_size
    task_events_gc_job_summary_interval_ms task_events_max_dropped_task_attempts_tracked_per_job_in_gcs
    task_events_max_num_export_status_events_buffer_on_worker task_events_max_num_profile_events_buffer_on_worker
    task_events_max_num_profile_events_per_task task_events_max_num_status_events_buffer_on_worker
    task_events_max_num_task_in_gcs task_events_report_interval_ms task_events_send_batch_size
    task_events_shutdown_flush_timeout_ms task_events_skip_driver_for_test task_failure_entry_ttl_ms task_oom_retries
    task_oom_retry_delay_base_ms task_retry_delay_ms task_rpc_inlined_bytes_limit testing_asio_delay_us
    testing_rpc_failure testing_rpc_failure_avoid_intra_node_failures timeout_ms_task_wait_for_death_info
    user_memory_proportion_high user_memory_proportion_max verbose_spill_logs worker_cap_enabled
    worker_cap_initial_backoff_delay_ms worker_cap_max_backoff_delay_ms worker_core_dump_exclude_plasma_store
    worker_fetch_request_size worker_killing_policy_by_group worker_lease_timeout_milliseconds
    worker_max_resource_analysis_iteration worker_maximum_startup_concurrency worker_niceness
    worker_num_grpc_internal_threads worker_oom_score_adjustment worker_register_timeout_seconds
    yield_plasma_lock_workaround
    """.split()
)
"""Names of all entries in Ray 2.60."""
SPILLING_CONFIG = "object_spilling_config"
OTHER_NAMES = {"log_rotation_max_bytes": "rotation_max_bytes", "log_rotation_backup_count": "rotation_backup_count"}
"""Ray's name of an entry -> its name here."""

logger = logging.getLogger("minray")
_named: set[str] = set()
"""Entries that the log of this process has named already."""


def without_entries_of_ray(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the overrides that mean something here, under the names that they have here.

    Raises ValueError for an ``object_spilling_config`` of another form than Ray's.
    """
    own = set(SystemConfig.__struct_fields__)
    found = {OTHER_NAMES.get(name, name): value for name, value in overrides.items()}
    if SPILLING_CONFIG in found:
        found = {"object_spilling_directory": _spilling_directory(found.pop(SPILLING_CONFIG)), **found}
    ignored = [name for name in found if name in KNOWN_TO_RAY - own]
    new = sorted(set(ignored) - _named)
    if new:
        logger.warning("_system_config: these entries mean something in Ray alone, and are ignored: %s", ", ".join(new))
        _named.update(new)
    return {name: value for name, value in found.items() if name not in ignored}


def _spilling_directory(text: Any) -> str:
    """Return the places for spill files that Ray's JSON names, as one text."""
    try:
        config = msgspec.json.decode(text) if isinstance(text, str | bytes) else text
        params = config.get("params") or {}
        places = params["directory_path" if config["type"] == "filesystem" else "uri"]
    except (ValueError, KeyError, AttributeError, TypeError):
        example = '{"type": "filesystem", "params": {"directory_path": "/path"}}'
        raise ValueError(f"_system_config: {SPILLING_CONFIG} must be JSON such as {example}, not {text!r}") from None
    return places if isinstance(places, str) else os.pathsep.join(map(str, places))
