"""A name in ``_system_config`` leads to a policy, or to an error that says what is wrong with it."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

import minray
from minray.common.config import SystemConfig
from minray.policies.making import HOOKS
from minray.policies.names import DEFAULTS, SETTINGS, check_policies, has_foreign_policies
from minray.simulation.cluster import SimCluster

FOLDER = "tests.policies.questions"


def config(**entries: Any) -> SystemConfig:
    return SystemConfig.from_overrides(entries)


def test_all_built_in_policies_can_be_made() -> None:
    for setting, hook in HOOKS.items():
        for name in (DEFAULTS[setting], *hook.built_in):
            check_policies(config(**{setting: name}))
            assert not has_foreign_policies(config(**{setting: name}))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_path_names_a_programs_policy(setting: str) -> None:
    mine = config(**{setting: f"{FOLDER}:Undecided"})
    check_policies(mine)
    assert has_foreign_policies(mine)


def test_an_entry_point_names_an_installed_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = EntryPoints([EntryPoint("undecided", f"{FOLDER}:Undecided", "minray.policies")])

    def entry_points(**wanted: str) -> EntryPoints:
        return installed.select(**wanted)

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    check_policies(config(scheduling_policy="undecided"))
    with pytest.raises(ValueError, match="no installed package has an entry point"):
        check_policies(config(scheduling_policy="decided"))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("hybird", "none of 'hybrid', 'random', .*'sparrow', and no installed package .* \"package.module:attribute\""),
        ("no.such.module:Policy", "imported: ModuleNotFoundError: No module named 'no'; put its folder into PYTHONPATH"),
        (f"{FOLDER}:Absent", "AttributeError: .* has no attribute 'Absent'"),
        ("__main__:Mine", "other processes cannot import __main__; give the name of the file's module"),
        (f"{FOLDER}:NO_CLASS", "is 7, which cannot be called to make a policy"),
        (f"{FOLDER}:Unmade", "could not be made: OSError: no such table"),
        (f"{FOLDER}:Unfinished", "which has no method choose_node"),
        ("", "none of 'hybrid'"),
    ],
)
def test_a_wrong_name_is_an_error_that_says_why(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        check_policies(config(scheduling_policy=name))
    assert str(caught.value).startswith("_system_config: scheduling_policy ")


def test_a_real_and_a_simulated_cluster_refuse_a_wrong_name_before_they_start() -> None:
    for start in (minray.init, SimCluster):
        with pytest.raises(ValueError, match="bundle_policy 'dense' could not be imported: it is none of 'ray'"):
            start(**{"system_config" if start is SimCluster else "_system_config": {"bundle_policy": "dense"}})
    assert not minray.is_initialized()


def test_each_setting_has_a_hook() -> None:
    assert tuple(HOOKS) == SETTINGS
