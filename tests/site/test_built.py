"""The checks of the built site and of its words notice each kind of mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.building.files import from_the_root
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


def test_links_of_the_page_for_missing_addresses_begin_at_the_root() -> None:
    page = '<html data-content_root="./"><a href="index.html"><a href="#x"><a href="https://a.b/"><img src="a.svg">'
    assert from_the_root(page, "/m/") == (
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
