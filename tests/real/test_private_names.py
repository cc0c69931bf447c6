"""Private modules of Ray that programs import by habit do here what they do in Ray."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import time
from typing import Any

import pytest

import minray as ray
from tests.helpers import wait_for_condition
from tests.real.support import ON_RAY

pytestmark = pytest.mark.usefixtures("cluster")


def private(name: str) -> Any:
    """A module that only Ray's users see."""
    return importlib.import_module(f"ray.{name}" if ON_RAY else f"minray.in_rays_place.names.{name}")


@ray.remote
def whoami() -> tuple[Any, ...]:
    worker = private("_private.worker").global_worker
    context = ray.get_runtime_context()
    return (
        worker.mode == private("_private.worker").WORKER_MODE,
        worker.current_task_id.hex() == context.get_task_id(),
        worker.current_job_id.hex() == context.get_job_id(),
        worker.actor_id.is_nil(),
        worker.connected,
    )


@ray.remote
class Member:
    def whoami(self) -> tuple[Any, ...]:
        worker = private("_private.worker").global_worker
        return worker.actor_id.hex(), worker.actor_name, worker.namespace, worker.worker_id.hex()

    def get_pid(self) -> int:
        return os.getpid()


def test_the_global_worker_is_this_process() -> None:
    module = private("_private.worker")
    worker, context = module.global_worker, ray.get_runtime_context()
    assert (worker.mode, worker.connected) == (module.SCRIPT_MODE, True)
    assert worker.current_node_id.hex() == context.get_node_id() and worker.namespace == context.namespace
    assert worker.current_job_id.hex() == context.get_job_id() and worker.worker_id.hex() == context.get_worker_id()
    assert worker.actor_id.is_nil() and worker.placement_group_id.is_nil()
    assert worker.node_ip_address == ray.nodes()[0]["NodeManagerAddress"]
    assert ray.get(whoami.remote()) == (True, True, True, True, True)
    worker.check_connected()
    actor = Member.options(name="a member").remote()
    assert ray.get(actor.whoami.remote())[:3] == (actor._actor_id.hex(), "a member", context.namespace)


def test_the_global_node_is_the_node_of_this_process() -> None:
    node = private("_private.worker")._global_node
    assert node is not None and node.node_id == ray.get_runtime_context().get_node_id()
    assert node.node_ip_address == ray.nodes()[0]["NodeManagerAddress"] and node.is_head()
    assert node.address_info["node_ip_address"] == node.node_ip_address
    assert os.path.isdir(node.get_session_dir_path()) and os.path.isdir(node.get_logs_dir_path())
    assert os.path.basename(node.get_session_dir_path()) == node.session_name
    assert isinstance(ray.init(ignore_reinit_error=True), private("_private.worker").BaseContext)


def test_the_tables_of_the_state() -> None:
    state = private("_private.state")
    node_id = ray.get_runtime_context().get_node_id()
    total = state.total_resources_per_node()
    assert set(total) == {node_id} and total[node_id]["CPU"] == 2
    wait_for_condition(lambda: state.available_resources_per_node()[node_id].get("CPU") == 2)
    assert state.current_node_id() in total[node_id] and state.node_ids() == [state.current_node_id()]
    assert [node["NodeID"] for node in state.state.node_table()] == [node_id]
    [job] = [job for job in state.jobs() if not job["IsDead"]]
    assert (job["JobID"], job["DriverPid"]) == (ray.get_runtime_context().get_job_id(), os.getpid())
    assert abs(job["StartTime"] / 1000 - time.time()) < 600


def test_the_table_of_actors() -> None:
    state, actor = private("_private.state"), Member.options(name="counted").remote()
    pid, actor_id = ray.get(actor.get_pid.remote()), actor._actor_id.hex()
    row = state.actors(actor_id)
    assert (row["ActorID"], row["ActorClassName"], row["Name"]) == (actor_id, "Member", "counted")
    assert (row["State"], row["Pid"], row["IsDetached"], row["NumRestarts"]) == ("ALIVE", pid, False, 0)
    assert row["Address"]["NodeID"] == ray.get_runtime_context().get_node_id()
    assert actor_id in state.actors() and actor_id in state.actors(actor_state_name="ALIVE")
    assert actor_id not in state.actors(actor_state_name="DEAD")
    assert state.actors("00" * 16) == {}


def test_the_table_of_placement_groups() -> None:
    state, group = private("_private.state"), ray.util.placement_group([{"CPU": 1}])
    ray.get(group.ready())
    row = state.state.placement_group_table(group.id)
    assert (row["placement_group_id"], row["state"], row["strategy"]) == (group.id.hex(), "CREATED", "PACK")
    assert row["bundles"] == {0: {"CPU": 1}}
    assert row["bundles_to_node_id"] == {0: ray.get_runtime_context().get_node_id()}
    assert group.id.hex() in state.state.placement_group_table()
    ray.util.remove_placement_group(group)


def test_the_address_of_the_node() -> None:
    services = private("_private.services")
    assert services.get_node_ip_address() == ray.nodes()[0]["NodeManagerAddress"] == ray.util.get_node_ip_address()


def test_values_in_the_gcs() -> None:
    kv = private("experimental.internal_kv")
    assert kv._internal_kv_initialized()
    assert kv._internal_kv_get("k") is None and not kv._internal_kv_exists(b"k")
    assert kv._internal_kv_put("k", "one") is False and kv._internal_kv_get(b"k") == b"one"
    assert kv._internal_kv_put("k", "two", overwrite=False) is True and kv._internal_kv_get("k") == b"one"
    assert kv._internal_kv_put("k", "one", overwrite=False) is True
    assert kv._internal_kv_put("k", "two") is True and kv._internal_kv_get("k") == b"two"
    assert kv._internal_kv_get("k", namespace="other") is None
    assert kv._internal_kv_put("key", b"\0", namespace=b"other") is False
    assert kv._internal_kv_list("k", namespace="other") == [b"key"] and kv._internal_kv_list("x") == []
    assert kv._internal_kv_del("k", del_by_prefix=True, namespace="other") == 1
    assert kv._internal_kv_del("k") == 1 and kv._internal_kv_del("k") == 0
    assert kv._internal_kv_get("k") is None


@ray.remote(num_cpus=0.5)
def lead(name: str) -> bool:
    existed: bool = private("experimental.internal_kv")._internal_kv_put("leader", "the same", overwrite=False)
    return not existed


def test_of_many_equal_puts_one_is_first() -> None:
    assert sum(ray.get([lead.remote(str(number)) for number in range(8)])) == 1
    private("experimental.internal_kv")._internal_kv_del("leader")


def test_the_waits_and_actors_of_tests() -> None:
    helpers = private("_common.test_utils")
    signal = helpers.SignalActor.remote()
    waiting = [signal.wait.remote() for _ in range(3)]
    helpers.wait_for_condition(lambda: ray.get(signal.cur_num_waiters.remote()) == 3)
    ray.get(signal.send.remote())
    assert ray.get(waiting) == [None] * 3 and ray.get(signal.cur_num_waiters.remote()) == 0
    with pytest.raises(RuntimeError, match="wasn't met"):
        helpers.wait_for_condition(lambda: False, timeout=0.2)
    with pytest.raises(KeyError):
        helpers.wait_for_condition(lambda: {}[1], timeout=1, raise_exceptions=True)
    semaphore = helpers.Semaphore.remote(value=1)
    ray.get(semaphore.acquire.remote())
    assert ray.get(semaphore.locked.remote())
    asyncio.run(helpers.async_wait_for_condition(lambda: True))
    older = private("_private.test_utils")
    older.wait_for_pid_to_exit(2**22 + 1)
    older.wait_for_assertion(lambda: None)
    assert older.same_elements([[1], [2]], [[2], [1]]) and not older.same_elements([1, 1], [1, 2])
    assert older.wait_for_condition is helpers.wait_for_condition


@pytest.mark.skipif(ON_RAY, reason="Ray asks its dashboard")
def test_an_actor_is_killed_and_has_failed() -> None:
    actor = Member.remote()
    private("_private.test_utils").kill_actor_and_wait_for_failure(actor)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(actor.get_pid.remote())


@pytest.mark.skipif(ON_RAY, reason="Ray's needs an address")
def test_the_summary_of_memory() -> None:
    ref = ray.put(b"x" * 200_000)
    assert ref.hex() in private("_private.internal_api").memory_summary()
    with pytest.raises(ValueError, match="not '1.2.3.4:5'"):
        private("_private.internal_api").memory_summary("1.2.3.4:5")


def test_a_text_runs_as_a_program() -> None:
    helpers = private("_common.test_utils")
    assert helpers.run_string_as_driver("print('here')").strip() == "here"
    with pytest.raises(subprocess.CalledProcessError):
        helpers.run_string_as_driver("raise SystemExit(3)")


def test_facts_about_the_machine() -> None:
    utils = private("_private.utils")
    assert 1 <= utils.get_num_cpus() <= (os.cpu_count() or 1)
    assert 0 < utils.get_used_memory() and 0 < utils.estimate_available_memory()
    assert utils.is_main_thread()


def test_constants_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = private("_private.ray_constants")
    monkeypatch.setenv("A_NUMBER", "7")
    monkeypatch.setenv("A_WORD", "True")
    assert constants.env_integer("A_NUMBER", 1) == 7 and constants.env_float("A_NUMBER", 1.0) == 7.0
    assert constants.env_integer("A_WORD", 1) == 1 and constants.env_bool("A_WORD", False)
    assert constants.env_bool("NOT_SET", True) and constants.env_integer("NOT_SET", 3) == 3
    assert constants.MIN_RESOURCE_GRANULARITY == 0.0001
    assert constants.ID_SIZE == 28 and constants.RAY_ADDRESS_ENVIRONMENT_VARIABLE == "RAY_ADDRESS"


def test_small_conversions() -> None:
    utils = private("_common.utils")
    assert utils.binary_to_hex(b"\1\2") == "0102" and utils.hex_to_binary("0102") == b"\1\2"
    assert utils.decode(b"x") == "x" and utils.decode(None, allow_none=True) == ""
    assert utils.import_attr("os.path:join") is os.path.join is utils.import_attr("os.path.join")


def test_annotations_mark_functions() -> None:
    annotations = private("util.annotations")

    @annotations.PublicAPI(stability="beta")
    def work() -> int:
        """Works."""
        return 1

    @annotations.Deprecated(message="Use work().", warning=True)
    class Old:
        """Is old."""

    assert work() == 1 and work.__doc__ is not None and "PublicAPI (beta)" in work.__doc__
    assert annotations._get_annotation_type(work) == "PublicAPI"
    with pytest.warns(annotations.RayDeprecationWarning, match="Use work"):
        Old()
    assert Old.__doc__ is not None and "DEPRECATED" in Old.__doc__

    @annotations.DeveloperAPI
    class Inner: ...

    assert annotations._get_annotation_type(Inner) == "DeveloperAPI"
    assert annotations._get_annotation_type(type("Derived", (Inner,), {})) is None


def test_references_have_one_class() -> None:
    assert private("_raylet").ObjectRefGenerator is ray.ObjectRefGenerator and private("_raylet").ObjectRef is ray.ObjectRef
    assert private("experimental.state.api").list_actors is importlib.import_module("minray.util.state").list_actors
