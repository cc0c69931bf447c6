"""Checks that hold of the built site, beyond Sphinx's own warnings; a part of ``make docs``.

    python -m tests.site.built docs/_build/html [FOLDERS THAT THIS BUILD LACKS]

Sphinx checks links between pages. Here every link of the built HTML is followed, also those that a page has as HTML, those
of the theme, and those into the playground and the simulated runs. No other host is asked.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

FILES = (
    "index.html", "search.html", "404.html", "searchindex.js", "llms.txt", "sitemap.xml", "robots.txt", "genindex.html",
    "playground/index.html", "zoo_runs",
)  # fmt: skip
SEARCHED = {"spillback": "architecture", "lineag": "specification", "pytest": "testing"}
"""Word, as Sphinx's stemmer shortens it -> a page that a search for it finds."""
LEFT_ALONE = {"playground": "loads what its scripts name", "_modules": "source code, which Sphinx links"}
"""Folder whose own pages are not read -> why not."""
SITEMAP = "{http://www.sitemaps.org/schemas/sitemap/0.9}loc"


class Links(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" or name == "name" and tag == "a":
                self.anchors.add(value or "")
            elif name in ("href", "src") and value and not re.match(r"[a-z]+:|//", value):
                self.links.append(value)


def broken_links(site: Path, root: str = "/") -> list[str]:
    """Return the links of a site that lead to no file, or to no anchor of a page.

    :param root: path of the site on its host, with which links of the page for missing addresses begin.
    """
    found: dict[Path, Links] = {}
    for path in sorted(site.rglob("*.html")):
        if path.relative_to(site).parts[0] not in LEFT_ALONE:
            found[path] = Links()
            found[path].feed(path.read_text())
    return [
        f"{page.relative_to(site)}: {link} leads nowhere"
        for page, links in found.items()
        for link in sorted(set(links.links))
        if not _leads_somewhere(link, page, site, root, found)
    ]


def _leads_somewhere(link: str, page: Path, site: Path, root: str, pages: dict[Path, Links]) -> bool:
    parts = urlsplit(link)
    path = unquote(parts.path)
    start = site / path.removeprefix(root) if path.startswith("/") else page.parent / path
    target = (start if path else page).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    # A run has an anchor with a moment, "#at=0.01", which its script reads.
    is_anchor = bool(parts.fragment) and "=" not in parts.fragment and target in pages
    return not is_anchor or unquote(parts.fragment) in pages[target].anchors


def found_by_search(site: Path, word: str) -> list[str]:
    """Return the pages in whose text or titles Sphinx's search finds a word."""
    index = json.loads((site / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    places = [index[part].get(word, []) for part in ("terms", "titleterms")]
    numbers = {number for place in places for number in (place if isinstance(place, list) else [place])}
    return [index["docnames"][number] for number in sorted(numbers)]


def complaints(site: Path, *without: str) -> Iterator[str]:
    """Yield what is wrong with a site.

    :param without: folders that this build does not have, so that links into them do not count.
    """
    site = site.resolve()
    wanted = [name for name in FILES if name.partition("/")[0] not in without]
    lacking = [f"{name} is missing" for name in wanted if not (site / name).exists()]
    if lacking:
        yield from lacking
        return
    for word, page in SEARCHED.items():
        if page not in found_by_search(site, word):
            yield f"searchindex.js: a search for {word!r} does not find {page}"
    addresses = [element.text or "" for element in ElementTree.parse(site / "sitemap.xml").iter(SITEMAP)]
    root = urlsplit(addresses[0]).path.rpartition("/")[0] + "/" if addresses else "/"
    for address in addresses + re.findall(r"\]\((\S+)\)", (site / "llms.txt").read_text()):
        if not (site / urlsplit(address).path.removeprefix(root)).exists():
            yield f"{address} is in the sitemap or in llms.txt, and leads nowhere"
    for complaint in broken_links(site, root):
        if not any(re.search(rf"[ /]{folder}/", complaint) for folder in without):
            yield complaint


if __name__ == "__main__":
    wrong = list(complaints(Path(sys.argv[1]), *sys.argv[2:]))
    print("\n".join(wrong), end="\n" if wrong else "")
    raise SystemExit(bool(wrong))
