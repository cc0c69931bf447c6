"""Entries of Ray's ``_system_config`` are accepted; those that nobody knows are mistakes."""

from __future__ import annotations

import json
import logging
import os

import msgspec
import pytest

from minray.common.config import SystemConfig
from minray.node import config_of_ray
from minray.node.config_of_ray import KNOWN_TO_RAY, without_entries_of_ray
from minray.node.discovery import with_environment


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_of_ray, "_named", set())


def test_entries_that_only_ray_knows_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    overrides = {"object_timeout_milliseconds": 200, "object_store_full_delay_ms": 100, "get_warning_s": 3.0}
    with caplog.at_level(logging.WARNING, "minray"):
        assert SystemConfig.from_overrides(with_environment(overrides)) == SystemConfig(get_warning_s=3.0)
        assert without_entries_of_ray(overrides) == {"get_warning_s": 3.0}
        assert without_entries_of_ray({"event_stats": False, "object_timeout_milliseconds": 1}) == {}
    assert [record.getMessage().partition(": ")[2].rpartition(": ")[2] for record in caplog.records] == [
        "object_store_full_delay_ms, object_timeout_milliseconds",
        "event_stats",
    ]


@pytest.mark.parametrize("name", ["object_timeout_millisecond", "no_such_entry", "ray_object_timeout_milliseconds"])
def test_typing_errors_stay_errors(name: str) -> None:
    with pytest.raises(ValueError, match=f"_system_config has no entry '{name}'"):
        SystemConfig.from_overrides(with_environment({name: 1}))


def test_own_entries_are_kept_whether_or_not_ray_knows_them() -> None:
    own = {field.name: field.default for field in msgspec.structs.fields(SystemConfig)}
    assert without_entries_of_ray(own) == own
    assert len(KNOWN_TO_RAY) > 200 and len(KNOWN_TO_RAY & own.keys()) > 30


@pytest.mark.parametrize(
    ("config", "directory"),
    [
        ({"type": "filesystem", "params": {"directory_path": "/spill"}}, "/spill"),
        ({"type": "filesystem", "params": {"directory_path": ["/a", "/b"]}}, os.pathsep.join(["/a", "/b"])),
        ({"type": "smart_open", "params": {"uri": "s3://bucket/spill"}}, "s3://bucket/spill"),
    ],
)
def test_places_for_spill_files_are_translated(config: object, directory: str) -> None:
    assert without_entries_of_ray({"object_spilling_config": json.dumps(config)}) == {"object_spilling_directory": directory}


@pytest.mark.parametrize("config", ["no json", "{}", '{"type": "filesystem"}', None, 3])
def test_a_spilling_config_that_cannot_be_read_is_named(config: object) -> None:
    with pytest.raises(ValueError, match="object_spilling_config must be JSON such as"):
        without_entries_of_ray({"object_spilling_config": config})


def test_entries_with_another_name_here() -> None:
    assert without_entries_of_ray({"log_rotation_max_bytes": 5}) == {"rotation_max_bytes": 5}
