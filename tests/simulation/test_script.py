"""Scripts: the programs of the playground run as their first lines say, one fault strikes where it is aimed, runs repeat."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from minray.simulation.browser.answers import PageQuestion, answer_of, explained
from minray.simulation.script import Aim, Performance, Script, Stage, main
from minray.simulation.trace import FAULT, LIFE, OUTPUT, SEND

PROGRAMS = {path.stem: path.read_text() for path in sorted(Path("docs/playground/programs").glob("*.py"))}
PRINTS = {
    "01_a_task": ["42"],
    "02_a_retry": ["attempt 2 has succeeded"],
    "03_a_borrowed_reference": ["still here"],
    "04_an_actor_restart": ["[1, 2, 3]", "ActorUnavailableError", "1"],
    "05_spillback": ["has run 2 tasks", "has run 4 tasks", "has run 2 tasks"],
    "06_a_broadcast": ["[1048576, 1048576, 1048576]"],
    "07_spilling": ["[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"],
    "08_a_placement_group": ["2 nodes"],
    "09_a_gcs_restart": ["1", "2 without a gcs", "1 with the next gcs"],
}
"""Ends of the lines that the drivers print."""


def performed(source: str, seed: int = 7, aim: Aim | None = None, **fields: object) -> Performance:
    return Stage(msgspec.convert({"source": source, "seed": seed, **fields}, Script), aim).perform()


def printed(done: Performance) -> list[str]:
    lines = [event.details[1] for event in done.cluster.trace.events if event.kind == OUTPUT and event.process == "driver/0"]
    return [line for line in lines if not line.startswith("(")]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_menu_prints_what_it_is_about(name: str) -> None:
    done = performed(PROGRAMS[name])
    assert done.outcome == "the program has ended", done.details
    assert all(line.endswith(end) for line, end in zip(printed(done), PRINTS[name], strict=True)), printed(done)


def test_a_fault_strikes_the_process_at_its_next_step_and_is_repeated_by_its_name() -> None:
    source = PROGRAMS["01_a_task"]
    sent = next(n for n, event in enumerate(performed(source).cluster.trace.events) if event.details[0] == "PushTask")
    done = performed(source, aim=Aim("crash", 1, sent, "raylet/head"))
    (key,) = done.cluster.oracle.answers
    assert key[:2] == ("crash", "raylet/head")
    struck = next(n for n, event in enumerate(done.cluster.trace.events) if event.kind == FAULT)
    assert struck > sent and done.cluster.trace.events[struck].process == "raylet/head"
    assert performed(source, overrides=[[key, 1]]).digest == done.digest


def test_a_fault_strikes_the_one_message_it_is_aimed_at() -> None:
    source = PROGRAMS["01_a_task"]
    events = performed(source).cluster.trace.events
    sent = next(n for n, event in enumerate(events) if event.kind == SEND and event.details[0] == "PushTask")
    done = performed(source, aim=Aim("reset", 1, sent))
    assert done.outcome == "the program has ended" and printed(done) == ["42"]
    assert done.cluster.trace.events[: sent + 1] == events[: sent + 1]
    assert sent not in done.cluster.trace.senders.values() and done.cluster.trace.events[sent + 1].kind == FAULT


def test_a_gcs_that_is_killed_is_started_again() -> None:
    done = performed(PROGRAMS["01_a_task"], aim=Aim("crash", 1, 0, "gcs"))
    starts = [event for event in done.cluster.trace.events if event.kind == LIFE and event.process == "gcs"]
    assert [event.details for event in starts] == [("starts",), ("ends",), ("starts",)]


def test_what_ends_a_script_is_said_with_its_own_lines() -> None:
    done = performed("import minray\n1 / 0\n")
    assert done.outcome == "ZeroDivisionError: division by zero"
    assert '"program.py", line 2' in done.details and "script.py" not in done.details
    assert performed("def f(:\n").outcome.startswith("SyntaxError")
    done = performed("import time\nwhile True:\n    time.sleep(60)\n", nodes=1)
    assert done.outcome == "not done after 600 virtual seconds" and "what waits" in done.details


COMPREHENSION = """
import minray

refs = [minray.put(number) for number in range(3)]
[minray.get(ref) / 0 for ref in refs]
"""
IN_A_FUNCTION = """
import minray

def main():
    refs = [minray.put(number) for number in range(3)]
    raise ValueError("no")

main()
"""


@pytest.mark.parametrize("source", [COMPREHENSION, IN_A_FUNCTION])
def test_an_exception_keeps_no_variable_of_the_script(source: str) -> None:
    """Otherwise the run would depend on the version of Python, which decides whose variables an exception keeps."""
    done = performed(source)
    gone = [event.details[1] for event in done.cluster.trace.events if event.details[::2] == ("object", "HERE")]
    assert len(gone) == 3 and "Error" in done.outcome


def test_a_printed_traceback_underlines_nothing() -> None:
    """Versions of Python underline different parts of a line."""
    raising = "import minray\n@minray.remote\ndef fail():\n    return [][0] + 1\n"
    done = performed(f"{raising}try:\n    minray.get(fail.remote())\nexcept IndexError as error:\n    print(error)\n")
    assert "    return [][0] + 1" in printed(done) and not any("^" in line for line in printed(done))


def test_a_script_may_exit() -> None:
    outcomes = [performed(f"import sys\nsys.exit({code})\n", nodes=1).outcome for code in ("", "0", "3")]
    assert outcomes == ["the program has ended", "the program has ended", "SystemExit: 3"]


def test_an_explanation_is_that_of_the_moment() -> None:
    script = Script(PROGRAMS["05_spillback"], seed=7)
    events = Stage(script).perform().cluster.trace.events
    sent = next(n for n, event in enumerate(events) if event.details[0] == "PushTask")
    found = explained(PageQuestion(script, event=sent))
    assert len(found) == 8 and {process for process, _ in found} == {"driver/0"}
    assert any("waits for a worker" in line for _, lines in found for line in lines)
    assert explained(PageQuestion(script, event=len(events) - 1)) == []


def test_an_answer_has_all_that_the_page_shows() -> None:
    script = Script(PROGRAMS["01_a_task"], seed=7, faults=("delay",))
    done = Stage(script).perform()
    answer = json.loads(msgspec.json.encode(answer_of(script, done)))
    assert answer["digest"] == done.digest and len(answer["page"]["events"]) == len(done.cluster.trace.events)
    assert answer["answers"] and all(key[0] == "delay" for key, _ in answer["answers"])


def test_a_saved_run_is_repeated_by_its_command(tmp_path: Path) -> None:
    path, page = tmp_path / "run.json", tmp_path / "run.html"
    path.write_bytes(msgspec.json.encode(Script(PROGRAMS["01_a_task"], seed=7)))
    said = CliRunner().invoke(main, [str(path), "--html", str(page)])
    assert said.exit_code == 0 and performed(PROGRAMS["01_a_task"]).digest in said.stdout
    assert "the program has ended" in page.read_text()
    path.write_text('{"source": "", "faults": ["rain"]}')
    said = CliRunner().invoke(main, [str(path)])
    assert said.exit_code == 2 and "there is no fault 'rain'" in said.stderr
