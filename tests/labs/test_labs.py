"""The machinery of the labs, by a sample: holes, the contract's tests, scores. ``tests/labs/in_full.py`` has the rest."""

from __future__ import annotations

import ast
import base64
import dataclasses
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from labs import archive, contract, grade, holes, limits, mutants, permalink, scenarios, stories
from labs.lab import CLAUSE_POINTS, ROOT, Clause, Hole, NoSuchLab, Scenarios, Specification, Stories, load, names
from labs.score import Part, Score
from minray.simulation.trace import first_difference
from tests.labs.another_design import pull_manager
from tests.labs.stories import STORIES, Story, bug_of, write_stories
from tests.labs.wrong import WRONG, Wrong
from tests.spec.scenario import Scenario
from tests.spec.trial import run
from tests.syntax import NoSuchFunction, find_function
from tests.zoo.in_a_page import show_scenario
from tests.zoo.transplant import mutate, planted

SAMPLE = "04-pull-manager"
LABS = [lab for lab in map(load, names()) if isinstance(lab, Hole)]


def source_of(lab: Hole) -> str:
    return (ROOT / lab.file).read_text()


def hole(name: str) -> Hole:
    lab = load(name)
    assert isinstance(lab, Hole)
    return lab


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_a_starter_lacks_what_is_to_be_written_and_nothing_else(lab: Hole) -> None:
    starter = holes.starter(source_of(lab), lab)
    for symbol in lab.write:
        assert starter.count(f'raise RuntimeError("lab {lab.name}: write {symbol}")') == 1
    removed = {symbol.rpartition(".")[2] for symbol in lab.remove}
    defined = {node.name for node in ast.walk(ast.parse(starter)) if isinstance(node, ast.FunctionDef)}
    assert not removed & defined
    real = {node.name for node in ast.walk(ast.parse(source_of(lab))) if isinstance(node, ast.FunctionDef)}
    assert real - defined == removed
    assert ast.get_docstring(ast.parse(starter)) == ast.get_docstring(ast.parse(source_of(lab)))
    assert 60 <= holes.lines_to_write(source_of(lab), lab) <= 200


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_the_tests_of_each_clause_are_there(lab: Hole) -> None:
    for clause in lab.clauses:
        for test in clause.tests:
            path, _, name = test.partition("::")
            assert not path.startswith(archive.WITHHELD)
            assert not name or f"\ndef {name}(" in (ROOT / path).read_text(), test


@pytest.mark.parametrize("name", names())
def test_each_lab_has_its_pages(name: str) -> None:
    folder = ROOT / "labs" / name
    page = (folder / "README.md").read_text()
    assert load(name).file in page and "](hints.md)" in page and (folder / "hints.md").exists()
    assert name in (ROOT / "labs/TEACHING.md").read_text() and f"({name}/README.md)" in (ROOT / "labs/README.md").read_text()


@pytest.mark.parametrize("name", names())
def test_the_readme_of_a_hand_out_says_how_this_lab_is_graded(name: str) -> None:
    lab = load(name)
    text = archive.filled(ROOT, "README.md", lab)
    assert "@" not in text and f"labs.grade {name}" in text and lab.file in text
    assert ("--jobs" in text, "scenarios of the simulation" in text) == (isinstance(lab, Hole),) * 2
    assert ("eleven times" in text) == isinstance(lab, Specification)
    assert ("your answers" in text) == isinstance(lab, Stories)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.lab}: {wrong.thought}")
def test_wrong_solutions_still_fit_the_code(wrong: Wrong) -> None:
    lab = hole(wrong.lab)
    assert wrong.symbol in (*lab.write, *lab.remove)
    assert mutate(source_of(lab), wrong.mutation) != source_of(lab)


def test_the_solution_of_another_design_still_fits_the_starter() -> None:
    compile(pull_manager(hole(SAMPLE)), "pull_manager", "exec")


def test_a_function_that_the_code_does_not_have_is_an_error() -> None:
    lab = dataclasses.replace(LABS[0], write=("LocalLeaseManager.assing",))
    with pytest.raises(NoSuchFunction, match="local_lease_manager.py: .*assing is there 0 times"):
        holes.starter(source_of(lab), lab)


def test_decorators_go_and_blank_lines_do_not_pile_up(tmp_path: Path) -> None:
    head = '"""Head."""\n\n\nclass A:\n'
    source = head + '    @property\n    def b(self): return 1\n\n    def c(self):\n        """Do."""\n        return 2\n'
    lab = dataclasses.replace(LABS[0], name="lab", write=("A.c",), remove=("A.b",))
    starter = head + '    def c(self):\n        """Do."""\n        raise RuntimeError("lab lab: write A.c")\n'
    assert holes.starter(source, lab) == starter


def test_comments_of_a_body_go_with_it() -> None:
    head = "class A:\n    # --- a part\n\n"
    removed = "    # How b is done.\n    def b(self):\n        return 1\n\n        # else: nothing\n\n"
    written = "    def c(self):\n        # First this.\n        if self:\n            return 2\n        # else: that\n\n"
    rest = "    # --- another part\n\n    d = 1\n"
    lab = dataclasses.replace(LABS[0], name="lab", write=("A.c",), remove=("A.b",))
    hole = '    def c(self):\n        raise RuntimeError("lab lab: write A.c")\n\n'
    assert holes.starter(head + removed + written + rest, lab) == head + hole + rest


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_no_comment_of_a_solution_is_left_behind_a_hole(lab: Hole) -> None:
    lines = [line for line in holes.starter(source_of(lab), lab).splitlines() if line.strip()]
    for line, following in zip(lines, lines[1:], strict=False):
        indent = len(line) - len(line.lstrip())
        assert not (f'"lab {lab.name}: write' in line and following.startswith(" " * indent + "#")), following


def test_a_lab_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(NoSuchLab, match="there is no lab '99-none'.* 01-lease-manager"):
        load("99-none")
    assert "there is no lab" in CliRunner().invoke(grade.main, ["99-none"]).output


def test_a_test_that_imports_a_solution_is_not_handed_out() -> None:
    with pytest.raises(archive.SolutionInside, match="tests/zoo/mistakes.py"):
        archive.needed_tests(ROOT, ["tests/zoo/mistakes.py"])


def root_for_pytest(root: Path) -> None:
    """Write what a run of pytest needs of an archive, and an empty file of the student's."""
    (root / "setup.cfg").write_text("[tool:pytest]\naddopts = --import-mode=importlib -p no:asyncio\n")
    (root / "its.py").write_text("")
    (root / "labs").mkdir()
    (root / "labs/__init__.py").write_text("")
    real = (ROOT / "labs/limits.py").read_text()
    short = real.replace("TEST_CPU_S = 60\n", "TEST_CPU_S = 0.2\n")
    assert short != real
    (root / "labs/limits.py").write_text(short)


def test_a_clause_passes_if_all_its_tests_do(tmp_path: Path) -> None:
    """The tests run in a tree of their own. A test that is not there, or raises, fails its clause alone."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_good(n): pass\n"
        "class TestMany:\n    def test_inside(self): pass\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_half(n): assert n == 1\n"
    )
    root_for_pytest(tmp_path)
    tests = {"good": "test_good", "many": "TestMany", "half": "test_half", "no": "test_no"}
    clauses = tuple(Clause(name, 5, (f"test_it.py::{test}",)) for name, test in tests.items())
    lab = Hole("x", "x", "its.py", (), (), Scenarios(0, 1, "small"), clauses)
    parts = {part.name: part for part in contract.check(lab, tmp_path)}
    assert {name: part.earned for name, part in parts.items()} == {"good": 5, "many": 5, "half": 0, "no": 0}
    again = contract.command(tmp_path, "-m", "pytest", "test_it.py::test_half")
    assert "assert 2 == 1" in parts["half"].reason and parts["half"].reason.endswith(f"run it with: {again}")
    assert parts["good"].reason == "1 of 1 tests pass" and "did not run" in parts["no"].reason


def test_a_loop_fails_its_test_by_its_processor_time_and_a_test_that_waits_does_not(tmp_path: Path) -> None:
    root_for_pytest(tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import select\n"
        "def test_loop():\n    while True: pass\n"
        "def test_wait():\n    select.select([], [], [], 0.5)\n"
        "def test_other(): pass\n"
    )
    outcomes, _ = contract.outcomes_of(["test_it.py"], tmp_path)
    assert "0.2 s of processor time: look for an endless loop" in outcomes.pop("test_it.py::test_loop")
    assert outcomes == {"test_it.py::test_wait": "", "test_it.py::test_other": ""}


def test_a_process_that_uses_up_its_processor_time_is_ended_and_says_so() -> None:
    program = "from labs.limits import limit_process\nlimit_process(1)\nwhile True: pass"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60)
    assert "1 s of processor time" in limits.why_ended(ended.returncode, 1) and limits.why_ended(1, 1) == ""


def test_a_file_that_is_no_python_is_named_with_the_line_and_no_test_runs(tmp_path: Path) -> None:
    (tmp_path / "its.py").write_text("a = 1\ndef b(:\n")
    lab = dataclasses.replace(LABS[0], file="its.py")
    (reason,) = {part.reason for part in contract.check(lab, tmp_path)}
    assert reason == "its.py:2: SyntaxError: invalid syntax"
    (tmp_path / "tests/mine").mkdir(parents=True)
    (tmp_path / "tests/mine/test_own.py").write_text("def b(:\n")
    part = mutants._truth(tmp_path)
    assert not part.passed and part.reason == "tests/mine/test_own.py:1: SyntaxError: invalid syntax"


def test_a_module_that_cannot_be_imported_is_a_failure_with_its_place_and_without_a_time(tmp_path: Path) -> None:
    root_for_pytest(tmp_path)
    (tmp_path / "its.py").write_text("one = 1\ntwo = three\n")
    (tmp_path / "test_it.py").write_text("import its\ndef test_good(): pass\n")
    lab = Hole("x", "x", "its.py", (), (), Scenarios(0, 1, "small"), (Clause("good", 55, ("test_it.py::test_good",)),))
    (part,) = contract.check(lab, tmp_path)
    assert "its.py:2: in <module> / NameError: name 'three' is not defined" in part.reason
    assert contract._trouble("a\nb\n1 error in 15.50s (0:00:15)") == "a / b / 1 error"


def test_a_command_has_the_interpreter_that_runs_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter below the root has a relative path."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    assert contract.command(tmp_path, "-m", "pytest", "t.py::a") == ".venv/bin/python -m pytest t.py::a"
    assert contract.command(tmp_path / "tree", "-V") == f"{tmp_path}/.venv/bin/python -V"


def test_the_names_of_tests_are_those_that_pytest_takes(tmp_path: Path) -> None:
    """Also for a folder, whose files nobody has named."""
    report = tmp_path / "report.xml"
    one, two = '<testcase classname="tests.a.TestB" name="test_c[1]"/>', '<testcase classname="tests.d" name="test_e"/>'
    report.write_text(f"<suite>{one}{two}</suite>")
    assert list(contract._read(report, ["tests/a.py", "tests/d.py"])) == ["tests/a.py::TestB::test_c", "tests/d.py::test_e"]
    assert "tests/d.py::test_e" in contract._read(report, ["tests/"])


def test_the_failure_of_the_lowest_seed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def block(root: Path, size: str, seeds: range) -> scenarios.Failing | None:
        return scenarios.Failing(seeds[3], ("L2: a reference is left",), "{}") if seeds[0] >= 40 else None

    monkeypatch.setattr(scenarios, "_run_block", block)
    for jobs in (1, 2, 5):
        part = scenarios.check(LABS[0], ROOT, jobs, None)
        assert not part.passed and "seed 43" in part.reason and "L2: a reference is left" in part.reason
        assert f"{contract.command(ROOT, '-m', 'labs.scenarios', 'medium', '43', '1')}" in part.reason


def test_what_is_known_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(contract, "outcomes_of", lambda paths, root: (told.append("(pytest)"), ({}, "it has died"))[1])
    score = grade.grade(LABS[0], ROOT, tell=told.append)
    clauses = [part.line() for part in score.parts[:-1]]
    assert told == [f"the tests of {len(clauses)} clauses run", "(pytest)", *clauses]
    assert clauses[0].startswith("FAIL   0 of ")
    told.clear()
    monkeypatch.setattr(scenarios, "_run_block", lambda root, size, seeds: None)
    assert scenarios.check(LABS[0], ROOT, 2, None, told.append).passed
    assert told == [f"scenarios: {done} of 200" for done in range(0, 201, 20)]


def test_a_link_has_the_students_code_and_the_scenario_and_the_playground_runs_that(tmp_path: Path) -> None:
    scenario = bug_of(STORIES[4]).witness.read_text()
    (tmp_path / "labs").mkdir()
    (tmp_path / "its.py").write_text("'student'")
    assert permalink.link(tmp_path, "its.py", scenario) == ""
    (tmp_path / permalink.ADDRESS).write_text("https://play/\n")
    address, _, packed = permalink.link(tmp_path, "its.py", scenario).partition("#attempt=")
    attempt = json.loads(zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))))
    assert address == "https://play/" and (attempt["file"], attempt["text"]) == ("its.py", "'student'")
    answer = json.loads(show_scenario(attempt["scenario"]))
    assert answer["problems"] == [] and answer["page"]["events"]
    score = Score("01-x", [Part("two", 45, False, "seed 7 fails", "https://play/#attempt=x")])
    assert "--link" in score.text() and "https://play/#attempt=x" not in score.text()
    assert json.loads(score.gradescope())["tests"][0]["output"].endswith("https://play/#attempt=x")


def test_a_score_in_all_its_formats() -> None:
    parts = [Part("one", CLAUSE_POINTS, True, "3 of 3 tests pass"), Part("two", 45, False, "seed 7\nfails")]
    score = Score("01-x", parts, ["note"])
    assert score.points == 55 and score.most == 100
    assert score.text().startswith("lab 01-x: 55 of 100 points\n") and score.text().endswith("\nnote")
    assert "FAIL   0 of 45  two\n         seed 7\n         fails" in score.text()
    table = json.loads(score.gradescope())
    assert table["score"] == 55 and [test["score"] for test in table["tests"]] == [55, 0]
    assert [test["status"] for test in table["tests"]] == ["passed", "failed"]
    classroom = json.loads(base64.b64decode(score.classroom()))
    assert (classroom["status"], classroom["max_score"]) == ("fail", 100)
    assert sum(test["score"] for test in classroom["tests"]) == 55


def test_mutants_are_ten_changes_of_the_real_file_and_are_graded_in_an_archive(tmp_path: Path) -> None:
    lab = load("06-specification")
    assert isinstance(lab, Specification)
    packed = archive.mutants_of(lab, ROOT)
    sources = {mutant.source for mutant in packed}
    assert len(sources) == 10 and (ROOT / lab.subject).read_text() not in sources
    assert mutants.unpack(mutants.pack(packed)) == packed
    with pytest.raises(mutants.NoMutants, match="unpack the archive"):
        mutants.check(lab, tmp_path)


def test_a_mutant_is_caught_by_any_test_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that fail on the right code catch nothing."""
    (tmp_path / "labs/x").mkdir(parents=True)
    two = [mutants.PackedMutant("clause 1", "bad"), mutants.PackedMutant("clause 2", "worse")]
    (tmp_path / "labs/x" / mutants.PACKED).write_text(mutants.pack(two))
    (tmp_path / "it.py").write_text("good")
    bad = {"worse"}

    def outcomes(paths: list[str], root: Path) -> tuple[contract.Outcomes, str]:
        return {"t.py::one": "fails" if (root / "it.py").read_text() in bad else ""}, ""

    monkeypatch.setattr(mutants, "outcomes_of", outcomes)
    told: list[str] = []
    parts = mutants.check(Specification("x", "x", "x", "it.py"), tmp_path, told.append)
    assert told == [f"your tests run on {what}" for what in ("the right code", "mutant 1 of 2", "mutant 2 of 2")]
    assert [(part.earned, part.points) for part in parts] == [(10, 10), (0, 45), (45, 45)]
    assert parts[1].reason == "all tests pass, although it breaks clause 1" and parts[2].reason == "by t.py::one"
    bad = {"good", "worse"}
    assert sum(part.earned for part in mutants.check(Specification("x", "x", "x", "it.py"), tmp_path)) == 0
    assert (tmp_path / "it.py").read_text() == "good"


def test_a_story_is_told_of_a_function_that_there_is_and_breaks_what_its_bug_breaks() -> None:
    lab = load("10-stories")
    assert isinstance(lab, Stories) and lab.stories == len(STORIES)
    page = (ROOT / "labs/10-stories/README.md").read_text()
    for story in STORIES:
        bug = bug_of(story)
        paths = {mutation.symbol: ROOT / mutation.path for mutation in (*bug.mutations, *story.twins)}
        for symbol in story.functions:
            find_function(ast.parse(paths[symbol].read_text()), symbol)
            assert symbol not in page
        assert story.guarantee == bug.prop and f"| {story.guarantee} |" in page


@pytest.mark.parametrize("story", [story for story in STORIES if story.twins], ids=lambda story: story.bug)
def test_a_mistake_whose_function_also_counts_gives_the_same_page(story: Story) -> None:
    bug = bug_of(story)
    scenario = Scenario.from_json(bug.witness.read_text())
    with planted(bug.mutations):
        wrong = run(scenario).trace
    for twin in story.twins:
        with planted((twin,)):
            assert first_difference(run(scenario).trace, wrong) == ""


def test_a_page_is_that_of_the_run_that_goes_wrong(tmp_path: Path) -> None:
    """Two pages of a story are equal, since a page's digest is the salt of its answers' hashes."""
    (answer,), (again,) = (write_stories(tmp_path, STORIES[:1]) for _ in range(2))
    assert answer == again and answer.event == 102  # one lease goes after the exit of its worker, if the code is right
    assert "in which one function is wrong" in (tmp_path / "story-1.html").read_text()


def test_answers_are_compared_with_hashes_and_a_near_event_counts(tmp_path: Path) -> None:
    lab = Stories("x", "x", "labs/x/answers.toml", 1)
    (tmp_path / "labs/x").mkdir(parents=True)
    with pytest.raises(stories.NoStories, match="unpack the archive"):
        stories.check(lab, tmp_path)
    stories.page_of(tmp_path, lab, 1).write_text("a page")
    stories.write_hashes(tmp_path, lab, [stories.Answer("S7", 20, ("A.b", "A.c"))])
    assert "A.b" not in (tmp_path / "labs/x" / stories.ANSWERS).read_text()

    def check(text: str) -> tuple[list[int], str]:
        (tmp_path / lab.file).write_text(f"[story-1]\n{text}")
        parts = stories.check(lab, tmp_path)
        return [part.earned for part in parts], "\n".join(part.reason for part in parts)

    assert check('guarantee = "S7"\nevent = 17\nfunction = "A.c"')[0] == [5, 7, 8]
    assert check('guarantee = "S2"\nevent = 16\nfunction = "A.d"') == ([0] * 3, "S2 is wrong\n16 is wrong\nA.d is wrong")
    earned, reason = check('event = "17"\nfunction = ""')
    assert earned == [0] * 3 and "event must be a number, got '17'" in reason and "not answered" in reason
    earned, reason = check('event = 3\nfunction = "A.b')
    assert earned == [0] and "cannot be read" in reason and "in the last line, 3" in reason
    assert "at line 2" in check("event = \nfunction = 1")[1]


def test_scenarios_wait_for_the_clauses(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = load(SAMPLE)
    monkeypatch.setattr(contract, "check", lambda lab, root, tell: [Part("clause", CLAUSE_POINTS, False, "it fails")])
    score = grade.grade(lab, ROOT)
    assert score.points == 0 and score.parts[-1].reason.startswith("not run: 200 scenarios")
