"""Each lab as it is handed out: the starter, the real file, wrong solutions, edited tests; ``make test-labs`` runs this.

A run takes about a quarter of an hour of one idle core, a third of it for two times 200 scenarios. ``LABS_ARGS="-k wrong"``
is a part.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from labs import archive, contract, holes, manifest, permalink, scenarios, stories
from labs.grade import UNCHANGED, grade
from labs.lab import CLAUSE_POINTS, ROOT, Hole, Lab, Scenarios, Specification, Stories, load, names
from tests.labs.another_design import pull_manager
from tests.labs.answers import WRONG_ANSWERS, filled_in, right_answers
from tests.labs.specifications import WEAK, WHOLE
from tests.labs.wrong import WRONG, Wrong
from tests.zoo.transplant import mutate

PASSED = 60
"""Points below which a wrong solution must stay."""
FEW = 20
"""Points below which a starter must stay in which nothing was written."""
HOLES = [name for name in names() if isinstance(load(name), Hole)]
FEW_SCENARIOS = 5
"""Number of scenarios that each archive runs: a file that it lacks shows in the first."""
SPECIFICATIONS = [name for name in names() if isinstance(load(name), Specification)]
STORIES = [name for name in names() if isinstance(load(name), Stories)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
Submit = Callable[[Lab, str | None], Path]


@pytest.fixture
def submit(tmp_path: Path) -> Submit:
    """Unpack the archive of a lab, and write a solution into it; None: none."""

    def unpack(lab: Lab, solution: str | None) -> Path:
        archive.unpack(lab, tmp_path)
        if solution is not None:
            (tmp_path / lab.file).write_text(solution)
        return tmp_path

    return unpack


def real_file(lab: Lab) -> str:
    return (ROOT / lab.file).read_text()


@pytest.mark.parametrize("name", HOLES)
def test_the_real_file_keeps_the_contract(name: str, submit: Submit) -> None:
    """In each archive, with the first of its scenarios."""
    lab = load(name)
    assert isinstance(lab, Hole)
    root = submit(lab, real_file(lab))
    parts = contract.check(lab, root)
    assert sum(part.earned for part in parts) == CLAUSE_POINTS, parts
    few = dataclasses.replace(lab, scenarios=dataclasses.replace(lab.scenarios, count=FEW_SCENARIOS))
    part = scenarios.check(few, root, 1, None)
    assert part.passed, part.reason


def test_the_real_files_have_all_points(submit: Submit) -> None:
    """The labs have the same scenarios, and with its real file each archive has the same code. So one stands for all."""
    labs = [lab for lab in map(load, HOLES) if isinstance(lab, Hole)]
    assert {lab.scenarios for lab in labs} == {Scenarios(0, 200, "medium")}
    score = grade(labs[0], submit(labs[0], real_file(labs[0])))
    assert score.points == score.most == 100, score.text()


def test_a_solution_of_another_design_has_all_points(submit: Submit) -> None:
    lab = load("04-pull-manager")
    assert isinstance(lab, Hole)
    score = grade(lab, submit(lab, pull_manager(lab)))
    assert score.points == score.most, score.text()


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.lab}: {wrong.thought}")
def test_a_wrong_solution_has_less_than_sixty_points(wrong: Wrong, submit: Submit) -> None:
    lab = load(wrong.lab)
    score = grade(lab, submit(lab, mutate(real_file(lab), wrong.mutation)))
    assert score.points < PASSED, score.text()


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_minrays_own_tests_catch_every_mutant(name: str, submit: Submit) -> None:
    lab = load(name)
    score = grade(lab, submit(lab, WHOLE))
    assert score.points == score.most == 100, score.text()


@pytest.mark.parametrize("name", SPECIFICATIONS)
@pytest.mark.parametrize("thought", WEAK)
def test_a_weak_specification_has_less_than_sixty_points(name: str, thought: str, submit: Submit) -> None:
    lab = load(name)
    score = grade(lab, submit(lab, WEAK[thought]))
    assert score.points < PASSED, score.text()


@pytest.mark.parametrize("name", STORIES)
def test_the_right_answers_have_all_points(name: str, submit: Submit) -> None:
    lab = load(name)
    score = grade(lab, submit(lab, filled_in(right_answers())))
    assert score.points == score.most == 100, score.text()


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("thought", WRONG_ANSWERS)
def test_wrong_answers_have_less_than_sixty_points(name: str, thought: str, submit: Submit) -> None:
    lab = load(name)
    score = grade(lab, submit(lab, filled_in(WRONG_ANSWERS[thought](right_answers()))))
    assert score.points < PASSED, score.text()


@pytest.mark.parametrize("name", STORIES)
def test_no_file_of_the_archive_tells_an_answer(name: str, submit: Submit) -> None:
    """Pages, programs, hints and hashes: none of them names a function that is an answer."""
    lab = load(name)
    folder = submit(lab, None) / "labs" / name
    told = "".join(path.read_text() for path in folder.iterdir())
    for answer in right_answers():
        assert not any(function in told for function in answer.functions)
    assert (folder / stories.ANSWERS).is_file() and not (folder.parent.parent / "docs/zoo.md").exists()


def test_each_lab_has_three_wrong_solutions() -> None:
    assert SPECIFICATIONS and len(WEAK) >= 3 and STORIES and len(WRONG_ANSWERS) >= 3
    for name in HOLES:
        assert len([wrong for wrong in WRONG if wrong.lab == name]) >= 3, name


def test_an_archive_has_the_starter_and_no_solution(tmp_path: Path) -> None:
    sample = names()[0]
    lab = load(sample)
    files, digest = archive.pack(lab, tmp_path, playground="https://play/")
    with tarfile.open(files[0]) as tar:
        members = {member.name.removeprefix(f"{sample}/"): member for member in tar.getmembers()}
        inside = tar.extractfile(members[lab.file])
        assert inside is not None and inside.read().decode() == holes.starter(real_file(lab), lab)
        tar.extractall(tmp_path, filter="data")
    assert not [name for name in members if name.startswith(archive.WITHHELD)]
    root = tmp_path / sample
    assert manifest.digest_of(root / manifest.NAME) == digest and manifest.changes(root) == []
    assert (root / permalink.ADDRESS).read_text() == "https://play/\n"
    (root / lab.file).write_text("")
    assert manifest.changes(root) == [], "the student's file is the student's"
    steps = yaml.safe_load((root / archive.WORKFLOW).read_text())["jobs"]["grade"]["steps"]
    assert any(f"labs.grade {sample}" in step.get("run", "") for step in steps)
    with zipfile.ZipFile(files[1]) as packed:
        assert packed.getinfo("run_autograder").external_attr >> 16 == archive.MODE_OF_PROGRAMS
        assert f"tree=/autograder/source/{sample}" in packed.read("run_autograder").decode()
    again, _ = archive.pack(lab, tmp_path / "again", playground="https://play/")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in files]


def test_edited_removed_and_added_files_are_noticed(submit: Submit) -> None:
    lab = load(names()[0])
    root = submit(lab, real_file(lab))
    (root / lab.test_files[0]).write_text("def test_nothing() -> None: ...\n")
    (root / "minray/scheduling/lease.py").unlink()
    (root / "conftest.py").write_text("")
    (root / "tests/mine").mkdir()
    (root / "tests/mine/test_own.py").write_text("")
    score = grade(lab, root)
    assert score.points == 0 and [part.name for part in score.parts] == [UNCHANGED]
    assert manifest.changes(root) == [
        "minray/scheduling/lease.py was removed",
        f"{lab.test_files[0]} was edited",
        "conftest.py was added",
    ]


def test_a_failing_scenario_is_the_same_each_time_and_has_a_page_and_a_link(submit: Submit) -> None:
    """Also with more processes: the lowest seed that fails counts."""
    wrong = next(wrong for wrong in WRONG if wrong.symbol == "Reference.is_in_scope")
    lab = load(wrong.lab)
    assert isinstance(lab, Hole)
    root = submit(lab, mutate(real_file(lab), wrong.mutation))
    (root / permalink.ADDRESS).write_text("https://play/\n")
    pages = [root / "build/one.html", root / "build/two.html"]
    pages[0].parent.mkdir()
    one, two = (scenarios.check(lab, root, jobs, page) for jobs, page in zip((1, 2), pages, strict=True))
    assert not one.passed and "its story is the page one.html" in one.reason
    assert one.reason.replace("one.html", "two.html") == two.reason
    assert pages[0].read_text() == pages[1].read_text()
    assert one.link == two.link and one.link.startswith("https://play/#attempt=")


@pytest.mark.parametrize("name", names())
def test_an_archive_grades_itself_and_its_starter_has_few_points(name: str, submit: Submit) -> None:
    """As a student starts it: from its folder, with the interpreter of an environment."""
    lab = load(name)
    root = submit(lab, None)
    command = [sys.executable, "-m", "labs.grade", name, "--results", "results.json", "--github", "output"]
    done = subprocess.run(command, cwd=root, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(f"lab {name}: ")
    assert bool(done.stderr) == (name not in STORIES), "what runs is told on the way"
    assert json.loads((root / "results.json").read_text())["score"] < FEW
    assert (root / "output").read_text().startswith("result=")
