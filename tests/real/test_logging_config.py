"""``init(logging_config=...)``: records of driver, tasks and actors carry the ids of where they were made."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import minray
from minray.logging_config import LoggingConfig
from tests.real.support import run_driver

PROGRAM = """
    import logging
    from minray.util.state import get_log
    logger = logging.getLogger("mine")
    ray.init(num_cpus=1, log_to_driver=False, logging_config=ray.LoggingConfig({options}))
    logger.info("in the driver", extra={{"color": "red"}})
    @ray.remote
    def f():
        logger.warning("in a task of %s", "mine")
        logger.debug("too little to say")
        return ray.get_runtime_context().get_task_id()
    @ray.remote
    class A:
        async def m(self):
            try:
                1 / 0
            except ZeroDivisionError:
                logger.exception("in an actor")
            return ray.get_runtime_context().get_actor_id()
    task_id = ray.get(f.remote())
    actor = A.options(name="anna").remote()
    actor_id = ray.get(actor.m.remote())
    print(ray.get_runtime_context().get_job_id(), task_id, actor_id)
    for where in ({{"task_id": task_id}}, {{"actor_id": actor_id}}):
        print("".join(get_log(suffix="err", **where)), end="")
"""


def test_records_are_json_with_the_fields_that_ray_has() -> None:
    done = run_driver(PROGRAM.format(options='encoding="JSON", additional_log_standard_attrs=["name"]'))
    ids, *lines = done.stdout.splitlines()
    job_id, task_id, actor_id = ids.split()
    driver = next(json.loads(line) for line in done.stderr.splitlines() if "in the driver" in line)
    assert driver["job_id"] == job_id and driver["color"] == "red" and "task_id" not in driver
    task, actor = map(json.loads, lines)
    shown = {name: task[name] for name in ("levelname", "message", "name", "task_id", "task_name", "job_id")}
    assert shown == {
        "levelname": "WARNING",
        "message": "in a task of mine",
        "name": "mine",
        "task_id": task_id,
        "task_name": "f",
        "job_id": job_id,
    }
    usual = {"asctime", "levelname", "message", "filename", "lineno", "process", "timestamp_ns"}
    assert usual | {"worker_id", "node_id", "task_func_name"} <= task.keys()
    assert "actor_id" not in task and task["node_id"] == driver["node_id"] and task["worker_id"] != driver["worker_id"]
    assert (actor["actor_id"], actor["actor_name"], actor["task_name"]) == (actor_id, "anna", "A.m")
    assert actor["exc_text"].endswith("ZeroDivisionError: division by zero")


def test_records_are_text_that_ends_in_the_ids() -> None:
    done = run_driver(PROGRAM.format(options='log_level="WARNING"'))
    ids, task, *_ = done.stdout.splitlines()
    job_id, task_id, _ = ids.split()
    head, _, tail = task.partition(" -- in a task of mine ")
    assert "\tWARNING " in head and f"job_id={job_id} " in tail and f"task_id={task_id} task_name=f" in tail
    assert "in the driver" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"encoding": "INVALID"}, "Invalid encoding type: INVALID"),
        ({"additional_log_standard_attrs": ["nonsense"]}, "Unknown python logging standard attribute: nonsense"),
        ({"log_level": "LOUD"}, "log_level must be one of"),
        ({"log_level": None}, "log_level must be one of"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LoggingConfig(**arguments)


def test_init_takes_a_logging_config_alone() -> None:
    with pytest.raises(TypeError, match="logging_config must be a LoggingConfig, not dict"):
        minray.init(logging_config={"encoding": "JSON"})  # type: ignore[arg-type]


def test_a_second_configuration_replaces_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers])
    monkeypatch.setattr(root, "level", root.level)
    before = len(root.handlers)
    for encoding in ("JSON", "TEXT"):
        LoggingConfig.decode(LoggingConfig(encoding=encoding).encode()).apply()
    assert len(root.handlers) == before + 1
