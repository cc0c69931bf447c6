"""The tables that notebooks show for references, actors, clusters and rows: what they say, and that they disturb nothing."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import minray as ray
from minray.api import html
from minray.util.state import list_actors, list_nodes
from tests.helpers import wait_for_condition
from tests.real.support import ON_RAY, Files, echo, hold, run_driver

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.skipif(ON_RAY, reason="Ray shows contexts only")]


def rows(thing: Any) -> dict[str, str]:
    """The rows of a table by their names; the title under ``title``."""
    text = thing._repr_html_()
    found = re.findall(r"<tr><th[^>]*>([^<]*)</th><td[^>]*>(.*?)</td></tr>", text)
    title = re.search(r"<b>(.*?)</b>", text)
    return {"title": title[1] if title else "", **{name: re.sub("</?code>", "", value) for name, value in found}}


@ray.remote(max_retries=0)
def refuse(text: str) -> None:
    raise ValueError(text)


@ray.remote
class Worker:
    def work(self) -> int:
        return 1


def test_references_say_what_they_are(files: Files) -> None:
    small, large, failed = echo.remote(1), ray.put(bytes(1_000_000)), refuse.remote("<script>&")
    running = hold.remote(files.signal("started"), files.signal("release"))
    lacking = echo.options(resources={"unobtainium": 1}).remote(1)
    files.signal("started").wait()
    ray.wait([small, failed], num_returns=2)
    assert rows(small)["state"] == "ready" and rows(small)["where"] == "with its owner"
    assert rows(large)["id"] == large.hex() and rows(large)["size"].endswith("bytes (976.6 KiB)")
    assert rows(large)["where"].startswith("in shared memory of node ")
    assert (rows(failed)["state"], rows(failed)["why"]) == ("failed", "ValueError: &lt;script&gt;&amp;")
    assert rows(running)["state"] == "pending" and "runs on worker pid=" in rows(running)["why"]
    wait_for_condition(lambda: "no node has unobtainium" in rows(lacking)["why"])
    assert rows(small)["owner"].startswith("this process, node ")
    ray.cancel(lacking)
    ray.internal.free([large])
    wait_for_condition(lambda: rows(large)["state"] in ("freed", "unknown"))


def test_a_borrowed_reference_names_its_owner() -> None:
    @ray.remote
    def lend() -> list[Any]:
        return [ray.put(1)]

    borrowed = ray.get(lend.remote())[0]
    assert re.fullmatch("worker [0-9a-f]{8}, node [0-9a-f]{8}", rows(borrowed)["owner"])
    assert rows(borrowed)["state"] == "ready"


def test_an_id_alone_leads_to_nothing() -> None:
    assert rows(ray.ObjectRef.from_random())["note"] == "an id without an owner, which leads to no value"


def test_showing_an_error_does_not_count_as_looking_at_it() -> None:
    failed = refuse.remote("no")
    ray.wait([failed])
    before = vars_of(failed)
    failed._repr_html_()
    assert vars_of(failed) == before


def vars_of(ref: Any) -> int:
    from tests.real.support import core

    unseen: int = core().store.objects[ref.binary()].unseen
    return unseen


def test_actors_say_where_they_live_and_why_they_died() -> None:
    actor = Worker.options(max_restarts=2).remote()
    assert ray.get(actor.work.remote()) == 1
    told = rows(actor)
    assert (told["title"], told["state"], told["owner"]) == ("Actor Worker", "ALIVE", "this process")
    assert told["restarts"] == "0 of 2"
    assert re.fullmatch(r"pid \d+, node [0-9a-f]{8}", told["process"])
    ray.kill(actor)
    wait_for_condition(lambda: rows(actor)["state"] == "DEAD")
    assert "kill" in rows(actor)["why"]


def test_the_context_and_lists_are_tables(node: Any) -> None:
    told = rows(node)
    assert told["title"] == "minray" and told["nodes"] == "1" and re.search(r"CPU: \d of 2 free", told["resources"])
    actor = Worker.remote()
    ray.get(actor.work.remote())
    for listed in (list_nodes(), ray.nodes(), list_actors(filters=[("state", "=", "ALIVE")])):
        assert isinstance(listed, list) and listed == list(listed)
        text = listed._repr_html_()
        assert text.count("<tr>") == len(listed) + 1 and "<code title=" in text
    assert rows(list_actors()[0])["class_name"] == "Worker"
    assert list_actors(filters=[("state", "=", "none")])._repr_html_() == "<div>no rows</div>"


def test_many_rows_and_long_texts_are_cut() -> None:
    from minray.common.shown import RowsInNotebooks

    text = RowsInNotebooks({"name": "x" * 1000, "amount": 2.0, "empty": None} for _ in range(60))._repr_html_()
    assert text.count("<tr>") == 51 and "and 10 more" in text and "x" * 301 not in text
    assert text.count("min-width:12em") == 50, "a long text keeps room beside other columns"
    assert ">2<" in text and "empty" not in text


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1 byte"), (0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1,536 bytes (1.5 KiB)")]
)
def test_sizes(size: int, text: str) -> None:
    assert html.size_text(size) == text


def test_a_cluster_that_does_not_answer_is_waited_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def never(*_: object) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(html, "ANSWER_S", 0.05)
    monkeypatch.setattr(html, "_describe_reference", never)
    ref, began = ray.put(1), time.monotonic()
    assert "has not answered" in rows(ref)["note"] and time.monotonic() - began < 1


def test_nothing_is_raised_whatever_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("<broken>")

    ref = ray.put(1)
    monkeypatch.setattr(html, "_rows_of_reference", broken)
    assert ref._repr_html_().startswith("<code>ObjectRef(") and "&lt;broken&gt;" in ref._repr_html_()


def test_tables_of_a_cluster_that_was_left_say_so() -> None:
    done = run_driver(
        """
        import re
        def note(thing):
            return re.findall("<th[^>]*>note</th><td[^>]*>(.*?)</td>", thing._repr_html_())
        @ray.remote
        class Worker:
            def work(self): return 1
        context = ray.init("local", num_cpus=1, logging_level="ERROR")
        actor, ref, nodes = Worker.remote(), ray.put(1), ray.nodes()
        ray.shutdown()
        print([note(thing) for thing in (context, actor, ref)], "<table" in nodes._repr_html_())
        assert not ray.is_initialized()
        ray.init("local", num_cpus=1, logging_level="ERROR")
        print([note(thing) for thing in (context, actor)], "unknown" in ref._repr_html_())
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    gone, left = [html.NOT_CONNECTED], [html.LEFT]
    assert done.stdout.splitlines() == [f"{[gone, gone, gone]} True", f"{[left, left]} True"]
