"""The page in a real browser: a visitor runs a program, strikes a process, shares the link, and plants a bug of the zoo."""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from labs import permalink
from tests.dashboard.browser.visitor import NARROW, Visitor
from tests.playground.conftest import ASKED
from tests.zoo.bugs import BUGS
from tests.zoo.transplant import CHECKOUT, mutate

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., Visitor]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SITE_BYTES = 15 << 20
"""The largest size of the compressed site."""
RUN_MS = 120_000
"""Milliseconds in which a run ends, on a busy machine."""
BREAKS = {
    "memory": "import ctypes\nimport minray\n\n@minray.remote\ndef read():\n    return ctypes.string_at(2**32 - 8)\n\n"
    "minray.get(read.remote())\n",
    "stack": "from minray.simulation.browser.stacks import start_new_thread\n\nstart_new_thread(lambda: 1 / 0, ())\n",
    "room": "halves = [bytes(1 << 30) for _ in range(2)]\nprint('done')\n",
}
"""Program that ends Python itself: it reads outside of WebAssembly's memory, ends a stack by an error, or takes 2 GiB."""
MANY_TASKS = "import minray\n\n@minray.remote\ndef rest():\n    pass\n\nminray.get([rest.remote() for _ in range(300)])\n"
"""Program whose run takes seconds in a browser."""
WITHOUT_JSPI = "delete WebAssembly.Suspending; delete WebAssembly.promising;"


def run(page: Page, program: str = "") -> None:
    """Run a program of the menu, or what the page has, to its end."""
    if program:
        page.select_option("#program", program)
    page.click("#run")
    wait_end(page)


def wait_end(page: Page) -> None:
    page.locator("#stop:disabled").wait_for(timeout=RUN_MS)
    page.locator("#run:enabled").wait_for(timeout=RUN_MS)


def text(page: Page, selector: str) -> str:
    return page.locator(selector).text_content() or ""


def select(page: Page, number: int) -> None:
    """Move the slider of the lanes, as a visitor does."""
    page.frame_locator("#lanes").locator("#slider").fill(str(number))


@pytest.fixture(scope="module")
def visitor(visit: Visit) -> Visitor:
    return visit()


@pytest.fixture
def page(visitor: Visitor) -> Page:
    """The page that most tests share; each chooses its own program."""
    return visitor.page


def test_a_program_runs_and_a_click_kills_its_worker(page: Page) -> None:
    run(page, "a_retry")
    assert text(page, "#outcome") == "the program has ended" and text(page, "#output") == "attempt 2 has succeeded"
    undisturbed = text(page, "#digest")
    page.frame_locator("#lanes").locator("text.lane", has_text="raylet/n1").click()
    page.locator("#strikes button", has_text="Kill raylet/n1").click()
    page.locator("#faults li", has_text="crash (1): raylet/n1").wait_for(timeout=RUN_MS)
    wait_end(page)
    assert text(page, "#digest") != undisturbed
    page.locator("#faults button", has_text="Take back").click()
    page.locator("#digest", has_text=undisturbed).wait_for(timeout=RUN_MS)


def test_a_link_shows_the_same_run(page: Page, visit: Visit) -> None:
    page.select_option("#program", "")
    page.fill("#source", "import minray\nprint(minray.get(minray.put('grüezi')))\n")
    page.fill("#seed", "11")
    page.locator("#kinds summary").click()
    page.check("#kinds input[value=delay]")
    run(page)
    assert text(page, "#output") == "grüezi"
    other = visit("index.html#" + page.url.partition("#")[2]).page
    wait_end(other)
    other.locator("#digest", has_text=text(page, "#digest")).wait_for(timeout=RUN_MS)
    assert other.input_value("#seed") == "11" and other.is_checked("#kinds input[value=delay]")
    page.uncheck("#kinds input[value=delay]")


def test_a_link_shows_its_moment_also_if_the_run_is_drawn_before_it_ends(visit: Visit) -> None:
    link = {"source": MANY_TASKS, "seed": 7, "nodes": 3, "event": 50}
    page = visit("index.html#" + base64.urlsafe_b64encode(json.dumps(link).encode()).decode()).page
    wait_end(page)
    assert int(page.frames[1].url.partition("?")[2].partition("#")[0]) > 1, "no picture before the end"
    page.locator("#what", has_text="Event 51: ").wait_for(timeout=RUN_MS)


def test_it_says_what_tasks_wait_for_at_a_moment(page: Page) -> None:
    run(page, "spillback")
    page.frame_locator("#lanes").locator("#now", has_text="event").wait_for(timeout=RUN_MS)
    select(page, 120)
    page.click("#why")
    page.locator("#reasons li", has_text="waits for").first.wait_for(timeout=RUN_MS)


def test_a_planted_bug_breaks_its_guarantee_and_the_true_code_does_not(page: Page) -> None:
    run(page, "bug:ray-55469")
    assert "At most one lease per worker" in text(page, "#bug-guarantee")
    assert text(page, "#outcome") == "a guarantee is broken" and text(page, "#problems").startswith("S2: ")
    page.uncheck("#planted")
    run(page)
    assert text(page, "#outcome") == "nothing is broken" and text(page, "#problems") == ""


def test_a_link_of_a_lab_runs_the_students_code_in_the_scenario_where_it_fails(visit: Visit, tmp_path: Path) -> None:
    """The student's reference counter notes a ticket again that was given back."""
    bug = next(bug for bug in BUGS if bug.name == "ray-18552")
    (mutation,) = bug.mutations
    (tmp_path / "labs").mkdir()
    (tmp_path / permalink.ADDRESS).write_text("index.html")
    (tmp_path / mutation.path).parent.mkdir(parents=True)
    (tmp_path / mutation.path).write_text(mutate((CHECKOUT / mutation.path).read_text(), mutation))
    page = visit(permalink.link(tmp_path, mutation.path, bug.witness.read_text())).page
    page.locator("#outcome", has_text="a guarantee is broken").wait_for(timeout=RUN_MS)
    assert "L2: driver/0: 1 references" in text(page, "#problems")
    assert "a student's minray/core_worker/ownership/reference_counter.py" in text(page, "#source-name")
    assert not page.locator("#program").is_visible()


def test_a_program_without_an_end_is_stopped(page: Page) -> None:
    page.select_option("#program", "")
    page.fill("#source", "while True:\n    pass\n")
    page.click("#run")
    page.click("#stop")
    page.locator("#outcome", has_text="The run was stopped.").wait_for()
    page.locator("#state", has_text="Ready").wait_for(timeout=RUN_MS)
    run(page, "a_task")
    assert text(page, "#outcome") == "the program has ended"


@pytest.mark.parametrize("breaks", BREAKS, ids=BREAKS)
def test_a_program_that_breaks_python_is_told_and_the_next_one_runs(browser: Any, url: str, breaks: str) -> None:
    page = browser.new_page()  # its console has the error
    page.goto(f"{url}/index.html")
    page.locator("#state", has_text="Ready").wait_for(timeout=RUN_MS)
    page.fill("#source", BREAKS[breaks])
    page.click("#run")
    page.locator("#outcome", has_text="Python in this page has failed (").wait_for(timeout=RUN_MS)
    page.locator("#state", has_text="Ready").wait_for(timeout=RUN_MS)
    run(page, "a_task")
    assert text(page, "#outcome") == "the program has ended"
    page.close()


def test_it_is_read_on_a_phone_and_in_the_dark_and_used_by_keys(visit: Visit) -> None:
    visitor = visit(width=NARROW, theme="dark")
    page = visitor.page
    page.locator("#source").press("Control+Enter")
    wait_end(page)
    assert text(page, "#output").startswith("42")
    assert visitor.faint_texts() == []
    before = text(page, "#what")
    page.locator("#story").focus()
    page.keyboard.press("ArrowRight")
    assert text(page, "#what") != before


def test_it_can_be_read_in_the_light(visitor: Visitor) -> None:
    run(visitor.page, "a_task")
    assert visitor.faint_texts() == []


def test_a_browser_that_cannot_suspend_is_told_so(browser: Any, url: str) -> None:
    page = browser.new_page()
    page.add_init_script(WITHOUT_JSPI)
    page.goto(f"{url}/index.html")
    page.locator("#state", has_text="cannot suspend WebAssembly (JSPI)").wait_for()
    assert page.locator("#run").is_disabled()
    page.close()


def test_the_site_is_light_enough() -> None:
    files = [path for path in Path(os.environ[ASKED]).rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < SITE_BYTES


def test_runs_are_no_steps_of_the_way_back(page: Page) -> None:
    before = page.evaluate("history.length")
    run(page, "a_task")
    run(page, "a_task")
    assert page.evaluate("history.length") == before
