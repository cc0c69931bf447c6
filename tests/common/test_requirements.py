"""Requirements of packages, and what is installed: the judgement is that of pip's library ``packaging``."""

from __future__ import annotations

import itertools
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from minray.common.requirements import satisfies, unmet, version_of

VERSIONS = (
    "1 1.0 1.0.0 1.1 1.10 1.2 2 2!1 1a1 1.0b2 1rc1 1.0.post1 1.0.dev3 1.0a1.dev2 1.0+abc 1.0+abc.5 1.0+5 1.post2.dev1"
    " 0.9 1.1.1 1.0-1 1.0alpha v1.0 1.0.1rc2 1.1.post3 1.0c1 1.post2 1.0.post1+x 1a1.post2 1a1+x 2024.1.1 1.0.preview2"
).split()
SIGNS = ("==", "!=", "<=", ">=", "<", ">", "~=", "===")


def test_versions_are_ordered_as_pep_440_says() -> None:
    for one, other in itertools.product(VERSIONS, VERSIONS):
        assert (version_of(one) < version_of(other)) is (Version(one) < Version(other)), (one, other)
        assert (version_of(one) == version_of(other)) is (Version(one) == Version(other)), (one, other)
    for text in ("", "one", "1..2", "1.x", "1.0+", "1 2"):
        with pytest.raises(ValueError, match="is not a version"):
            version_of(text)


def outcome(function: Any, *args: Any) -> bool | None:
    try:
        return bool(function(*args))
    except (ValueError, InvalidSpecifier):
        return None


def test_conditions_hold_as_pep_440_says() -> None:
    wanted = [*VERSIONS, "1.*", "1.0.*", "1.1.*", "2!1.*", "1.0.0.*", "1", "x"]
    for installed, sign, version in itertools.product(VERSIONS, SIGNS, wanted):
        condition = f"{sign}{version}"
        expected = outcome(lambda have, text: SpecifierSet(text).contains(have, prereleases=True), installed, condition)
        if sign != "===":
            assert outcome(satisfies, installed, condition) is expected, (installed, condition)
    assert satisfies("1.5", ">=1.2, <2 ,!=1.4") and not satisfies("1.4", ">=1.2,<2,!=1.4") and satisfies("1", "")


def installed(folder: Path, name: str, version: str, *requires: str, url: str = "") -> None:
    """Install an empty distribution into the folder."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    if url:
        (info / "direct_url.json").write_text(f'{{"url": "{url}"}}')


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    installed(tmp_path, "there", "2.5")
    installed(tmp_path, "Odd_Name", "1.0rc1", 'there>=2; extra == "fast"', 'gone; extra == "slow"', "never_asked_for")
    installed(tmp_path, "linked", "1.0", url="https://example.org/linked.whl")
    return tmp_path


@pytest.mark.parametrize(
    "requirement",
    [
        "there",
        "there>=2,<3",
        "there (>=2)",
        "  there == 2.5  ",
        "odd-name",
        "Odd.Name>=1.0rc1",
        "odd_name[fast]",
        'gone; python_version < "3"',
        "gone ; sys_platform == 'nowhere' or (os_name == 'nowhere' and python_version > '3')",
        'gone; "linux" not in sys_platform and sys_platform == "linux"',
        "linked @ https://example.org/linked.whl",
        f"pytest=={metadata.version('pytest')}",
    ],
)
def test_what_is_met(here: Path, requirement: str) -> None:
    assert unmet([requirement]) == []


@pytest.mark.parametrize(
    ("requirement", "complaint"),
    [
        ("gone", "gone is not installed"),
        ("gone>=1", "gone>=1 is not installed"),
        ("there>=3", "there>=3 is not installed; there 2.5 is"),
        ("odd_name[slow]", "gone is not installed"),
        ("odd_name[fast,slow]", "gone is not installed"),
        ("odd_name>=1", "odd_name>=1 is not installed; odd_name 1.0rc1 is"),
        ('gone; python_version >= "3" and implementation_name != "x"', "gone is not installed"),
        ("there @ https://x.org/a.whl", "there @ https://x.org/a.whl is not installed; there 2.5 is, from an index"),
    ],
)
def test_what_is_missing(here: Path, requirement: str, complaint: str) -> None:
    assert unmet(["there", requirement]) == [complaint]


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("", "is not a requirement"),
        ("./folder", "is not a requirement"),
        ("git+https://example.org/x.git", "is not a condition on a version"),
        ("there>", "is not a condition on a version"),
        ("there=1", "is not a condition on a version"),
        ("gone>=x", "'x' is not a version"),
        ("there; nonsense", "is not a marker"),
        ("there; python_version", "is not a marker"),
        ("there; (python_version > '3'", "is not a marker"),
        ("there; python_version > '3' os_name", "is not a marker"),
        ("there; python_version > $", "is not a marker"),
    ],
)
def test_what_cannot_be_read_is_never_taken_for_met(here: Path, requirement: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unmet([requirement])


@pytest.mark.parametrize(
    "marker",
    [
        'python_version >= "3.11"',
        "python_full_version < '3.11.1'",
        "platform_python_implementation == 'CPython'",
        'os_name == "posix" and not_in == "x"',
        '"3" in python_version',
        "python_version not in '2.7 3.0'",
        "sys_platform == 'win32' or sys_platform == 'linux' and python_version > '3.9'",
        "implementation_version >= '3' and platform_machine != 'x'",
        "python_version ~= '3.0'",
        "platform_release >= '1'",
        "extra == 'x'",
        "platform_system >= 'Linux' or platform_system > 'A'",
        "platform_system != 'Linux' or platform_system < 'Z'",
    ],
)
def test_markers_hold_as_packaging_says(marker: str) -> None:
    try:
        expected: int | None = int(not Marker(marker).evaluate({"extra": ""}))
    except ValueError:
        expected = None
    try:
        found: int | None = len(unmet([f"pytest>=1000; {marker}"]))
    except ValueError:
        found = None
    assert found == (None if expected is None else 1 - expected)
