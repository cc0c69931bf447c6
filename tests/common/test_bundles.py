"""The names of reserved resources: there and back, and nobody else's."""

from __future__ import annotations

import pytest

from minray.common import bundles

GROUP = bytes(range(18))
HEX = GROUP.hex()


def test_what_is_asked_for_in_a_bundle_is_offered_by_it() -> None:
    offered = bundles.offered(GROUP, 2, {"CPU": 40_000, "my_group_x": 5})
    assert offered[f"CPU_group_2_{HEX}"] == offered[f"CPU_group_{HEX}"] == 40_000
    for index, names in ((2, 6), (bundles.ANY_BUNDLE, 3)):
        wanted = bundles.within(GROUP, index, {"CPU": 10_000, "my_group_x": 5})
        assert len(wanted) == names and all(offered[name] >= amount for name, amount in wanted.items())
        assert bundles.plain(wanted) == {"CPU": 10_000, "my_group_x": 5}
    assert all(map(bundles.is_reserved, offered)) and not bundles.without_bundles(offered)


def test_work_without_needs_asks_for_its_bundle_alone() -> None:
    assert bundles.within(GROUP, 0, {}).keys() == {f"bundle_group_0_{HEX}", f"bundle_group_{HEX}"}
    assert bundles.plain(bundles.within(GROUP, 0, {})) == {}


@pytest.mark.parametrize("name", ["CPU", "bundle", "my_group_x", "CPU_group_1", "accelerator_group_12_ab"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert not bundles.is_reserved(name) and bundles.plain_name(name) == name
    assert bundles.plain({name: 7}) == bundles.without_bundles({name: 7}) == {name: 7}
