"""The checks of the built site and of its words notice each kind of mistake."""

from __future__ import annotations

import base64
import inspect
import json
import re
from pathlib import Path

import pytest

import minray
from docs.building import files, reference
from minray import exceptions
from minray.cli.main import main
from minray.common.config import SystemConfig
from minray.simulation.script import Script, Stage
from minray.simulation.trace import LIFE
from tests.site import built, spelling


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        ("b.html", True), ("b.html#there", True), ("b.html#at=0.01", True), ("#here", True), ("/minray/b.html", True),
        ("folder/", True), ("https://example.org/c", True),
        ("c.html", False), ("b.html#not", False), ("#not", False), ("/b/c.html", False), ("empty/", False),
    ],
)  # fmt: skip
def test_every_link_is_followed(tmp_path: Path, link: str, leads: bool) -> None:
    (tmp_path / "a.html").write_text(f'<h1 id="here"></h1><a href="{link}">link</a>')
    (tmp_path / "b.html").write_text('<h1 id="there"></h1>')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/index.html").write_text("")
    (tmp_path / "empty").mkdir()
    assert built.broken_links(tmp_path, "/minray/") == ([] if leads else [f"a.html: {link} leads nowhere"])


def test_a_search_finds_words_of_texts_and_titles(tmp_path: Path) -> None:
    index = '{"docnames":["a","b"],"terms":{"lineag":1,"retri":[0,1]},"titleterms":{"lineag":[0]}}'
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({index})")
    assert built.found_by_search(tmp_path, "lineag") == built.found_by_search(tmp_path, "retri") == ["a", "b"]
    assert built.found_by_search(tmp_path, "raylet") == []


def test_a_site_without_its_files_is_incomplete(tmp_path: Path) -> None:
    assert list(built.complaints(tmp_path)) == [f"{name} is missing" for name in built.FILES]


def test_the_landing_page_begins_with_the_death_of_the_worker() -> None:
    packed = re.findall(r"index\.html#(\w+)", (Path(files.__file__).parent / "templates/playground.html").read_text())[0]
    link = json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
    source = (files.ROOT / "docs/playground/programs/02_a_retry.py").read_text()
    events = Stage(Script(source, link["seed"], link["nodes"])).perform().cluster.trace.events
    deaths = [number for number, event in enumerate(events) if event.kind == LIFE and event.details == ("ends",)]
    assert link["program"] == "a_retry" and link["event"] == deaths[0] and events[deaths[0]].process.startswith("worker/")


def test_the_table_of_labs_names_each_folder() -> None:
    folders = sorted(path.parent.name for path in (files.ROOT / "labs").glob("*/lab.toml"))
    assert re.findall(r"\(`labs/([\w-]+)`\)", reference.labs()) == folders and "](" not in reference.labs()


def test_a_copied_playground_knows_where_the_book_is(tmp_path: Path) -> None:
    (tmp_path / "site.json").write_text('{"wheels": ["a.whl"]}')
    files.name_book(tmp_path / "site.json")
    assert json.loads((tmp_path / "site.json").read_text()) == {"wheels": ["a.whl"], "book": "../index.html"}


def test_what_a_quick_build_lacks_is_no_complaint(tmp_path: Path) -> None:
    for name in ("index.html", "search.html", "404.html", "genindex.html", "robots.txt"):
        (tmp_path / name).write_text('<a href="zoo_runs/a.html"><a href="zoo.html">')
    (tmp_path / "llms.txt").write_text("[a](http://localhost/m/index.html) [b](http://localhost/m/b.html)")
    row = "<url><loc>http://localhost/m/index.html</loc></url>"
    (tmp_path / "sitemap.xml").write_text(f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{row}</urlset>')
    names, terms = [*built.SEARCHED.values()], {word: place for place, word in enumerate(built.SEARCHED)}
    index = json.dumps({"docnames": names, "terms": terms, "titleterms": {}})
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({index})")
    assert list(built.complaints(tmp_path, "zoo_runs", "playground")) == [
        "http://localhost/m/b.html is in the sitemap or in llms.txt, and leads nowhere",
        *(f"{name}: zoo.html leads nowhere" for name in ("404.html", "genindex.html", "index.html", "search.html")),
    ]


def test_links_into_the_playground_are_links_of_the_site() -> None:
    found = files.INTO_PLAYGROUND.findall("[a\nrun](../playground/index.html#abc) [page](../playground.md)")
    assert found == [("a\nrun", "../playground/index.html#abc")]


def test_the_reference_has_all_names() -> None:
    public = {name for name in minray.__all__ if inspect.isroutine(found := getattr(minray, name)) or inspect.isclass(found)}
    assert set(re.findall(r":: minray\.(\w+)", reference.names())) == public - {"ObjectID"}
    assert set(re.findall(r"^`(\w+)` \(", reference.settings(), re.M)) == set(SystemConfig.__struct_fields__)
    assert re.findall(r"exceptions\.(\w+)`", reference.exceptions_list()) == exceptions.__all__
    assert {f"## `minray {name}`" for name in main.commands} <= set(reference.commands().splitlines())


def test_links_of_the_page_for_missing_addresses_begin_at_the_root() -> None:
    page = '<html data-content_root="./"><a href="index.html"><a href="#x"><a href="https://a.b/"><img src="a.svg">'
    assert files.from_the_root(page, "/m/") == (
        '<html data-content_root="/m/"><a href="/m/index.html"><a href="#x"><a href="https://a.b/"><img src="/m/a.svg">'
    )


def test_code_and_names_are_no_words() -> None:
    head, blocks = "---\nhidetoc: true\n---\n", "```text\nblockk\n```\n<divv>\n"
    page = f"{head}wordd `codee` [linkk](pagee.md) a.filee Namee fooo() 2ndd\n{blocks}last\n"
    assert spelling.words(page) == {"wordd": 4, "linkk": 4, "last": 9}


def test_long_words_and_sentences_need_more_years() -> None:
    easy, hard = "The dog ran to the cat. " * 30, "Institutional considerations necessitate reorganisation, " * 30
    assert spelling.years(easy) < spelling.MOST_YEARS < spelling.years(hard)
    assert spelling.years("Institutional considerations.") == 0
