"""A dashboard with ``--allow-control`` changes something after a question, and one without has no such buttons."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from tests.dashboard.browser.conftest import Program, serve
from tests.dashboard.browser.visitor import Visitor

Visit = Callable[..., Visitor]
SPARE = "actors?filter=name=spare"


@pytest.fixture
def controlling(cluster: Program) -> Generator[str, None, None]:
    dashboard, address = serve(cluster, "--port=0", "--allow-control")
    try:
        yield address
    finally:
        dashboard.end()


def test_a_dashboard_that_only_shows_has_no_buttons_for_changes(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(SPARE)
    with page.expect_response("**/api/cluster"):
        page.locator("tbody tr a").first.click()
    page.locator("dd", has_text="spare").wait_for()
    assert page.locator("main button.danger").count() == 0


def test_an_actor_is_killed_when_the_question_is_answered_with_yes(controlling: str, visit: Visit) -> None:
    page = visit(url=controlling).open(SPARE)
    page.locator("tbody tr a").first.click()
    page.get_by_role("button", name="Kill").click()
    page.locator("#ask[open]", has_text="Kill the actor spare?").wait_for()
    page.keyboard.press("Enter")
    page.locator("#ask:not([open])").wait_for(state="attached")
    assert page.locator("dd", has_text="ALIVE").count() == 1, "the focus is on Cancel"
    page.get_by_role("button", name="Kill").click()
    page.locator("#ask").get_by_role("button", name="Kill").click()
    page.locator("h2", has_text="Death certificate").wait_for()
