"""The one place of constants: overrides are checked, and travel to every process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from minray.common.config import SystemConfig, WorkerConfig


def test_nothing_overridden_is_the_default() -> None:
    assert SystemConfig.from_overrides(None) == SystemConfig.from_overrides({}) == SystemConfig()


def test_overrides_of_any_number_like_type_are_taken() -> None:
    config = SystemConfig.from_overrides({"health_check_period_ms": 50, "get_warning_s": 1, "transport": "grpc"})
    assert (config.health_check_period_ms, config.get_warning_s, config.transport) == (50, 1.0, "grpc")


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no entry 'helth_check'; known are .*health_check_period_ms"):
        SystemConfig.from_overrides({"helth_check": 1})


@pytest.mark.parametrize("wrong", ["fast", None, 1.5, [1]])
def test_a_wrong_type_is_an_error_that_names_the_entry(wrong: Any) -> None:
    with pytest.raises(TypeError, match="health_check_period_ms"):
        SystemConfig.from_overrides({"health_check_period_ms": wrong})


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("health_check_period_ms", -5, 1),
        ("health_check_period_ms", 0, 1),
        ("task_retry_delay_ms", -1, 0),
        ("get_warning_s", float("nan"), 0),
        ("num_prestart_workers", -2, -1),
        ("lease_requests_per_task", 0, 1),
    ],
)
def test_a_number_that_makes_no_sense_is_an_error_that_says_what_would(name: str, value: float, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number from {least}, not {value}"):
        SystemConfig.from_overrides({name: value})
    assert getattr(SystemConfig.from_overrides({name: least}), name) == least


def test_the_kinds_of_transports() -> None:
    with pytest.raises(ValueError, match="transport must be 'stream', 'grpc' or 'local', not 'pigeon'"):
        SystemConfig.from_overrides({"transport": "pigeon"})


def test_the_kinds_of_arenas() -> None:
    with pytest.raises(ValueError, match="arena must be '', 'memfd' or 'shared_memory', not 'tape'"):
        SystemConfig.from_overrides({"arena": "tape"})


def test_a_process_is_started_with_the_same_constants() -> None:
    config = SystemConfig(task_retry_delay_ms=7)
    worker = WorkerConfig(b"w", b"n", "127.0.0.1", "unix:/r", "unix:/g", "/s", "", "/d", False, config)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(worker), type=WorkerConfig) == worker
