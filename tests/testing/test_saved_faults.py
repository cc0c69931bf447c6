"""Files of saved faults: their names, their content, and what is said about a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from minray.testing.saved_faults import MOST_FAILURES, file_name, read_faults, save_failure
from minray.testing.shrink import Answers

FAULT = (("crash", "worker/1f3c", "user_code", 2), 1)


def save(path: Path, *faults: tuple[tuple[str | int, ...], int], seed: int = 7) -> None:
    save_failure(path, "test_a.py::test_b", seed, faults, "AssertionError at test_a.py:3", "fails when worker 1 dies")


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test_jobs.py::test_total", "test_jobs.test_total.json"),
        ("tests/jobs/test_a.py::TestB::test_c", "tests.jobs.test_a.TestB.test_c.json"),
        ("jobs.program", "jobs.program.json"),
    ],
)
def test_the_name_of_a_file_is_that_of_its_test(test: str, name: str) -> None:
    assert file_name(test) == name


def test_tests_whose_names_have_other_characters_have_other_files() -> None:
    tests = ["test_a.py::test_b[1/2]", "test_a.py::test_b[1-2]", "test_a.py::test_b[1*2]", f"test_a.py::test_{'b' * 300}"]
    names = [file_name(test) for test in tests]
    assert len(set(names)) == len(tests) and all(len(name) < 100 and "/" not in name for name in names)


def test_a_failure_is_read_as_it_was_written_and_the_latest_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "faults" / "a.json"
    assert read_faults(path) is None
    save(path, FAULT)
    save(path, seed=8)
    saved = read_faults(path)
    assert saved is not None and saved.test == "test_a.py::test_b"
    assert [(failure.seed, failure.overrides) for failure in saved.failures] == [(8, ()), (7, (FAULT,))]
    assert sorted(file.name for file in path.parent.iterdir()) == [".gitignore", "a.json"]


def test_equal_faults_are_saved_once_and_old_ones_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for number in (*range(20), 15):
        save(path, (("crash", "worker/1f3c", "user_code", number + 1), 1), seed=number)
    saved = read_faults(path)
    assert saved is not None and len(saved.failures) == MOST_FAILURES
    assert [failure.seed for failure in saved.failures] == [15, 19, 18, 17, 16, 14, 13, 12]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"test": "a", "failures": [{"seed": 1}]}'])
def test_a_file_that_is_none_is_named_in_the_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="a.json is no file of saved faults.*Restore it, or delete it"):
        read_faults(path)


def test_a_kind_of_fault_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    answers: Answers = ((("krash", "worker/1"), 1),)
    save(path, *answers)
    with pytest.raises(ValueError, match="krash"):
        read_faults(path)
