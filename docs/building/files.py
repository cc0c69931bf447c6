"""Files of the site beside its pages: the playground, the sitemap, llms.txt, and the page for addresses without a page.

``llms.txt`` (https://llmstxt.org) is a list of all pages as text, with a sentence about each, for programs that read sites.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
PLAYGROUND = ROOT / "build/playground"
"""Where ``make playground`` assembles it."""
INTO_PLAYGROUND = re.compile(r"\[([^\[\]]+)\]\(((?:\.\./)?playground/index\.html[^\s)]*)\)")
SECTIONS = {
    "Learn": "learn/index", "Use": "use", "Reference": "reference/index", "Specification": "promises", "Inside": "inside",
}  # fmt: skip
"""Section of the site -> its first page."""


def playground_part() -> str:
    """Return the landing page's playground, or the reason why this copy of the site has none."""
    if not (PLAYGROUND / "index.html").exists():
        return "This copy of the site was built without the playground. `make docs` builds it with the playground.\n"
    return (Path(__file__).parent / "templates/playground.html").read_text()


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the playground into the landing page, and make links of the links into it.

    Sphinx would take a link to ``playground/index.html`` for one to the file that the playground is built from.
    """
    page = source[0].replace("<!-- playground -->", playground_part())
    source[0] = INTO_PLAYGROUND.sub(r'<a href="\2">\1</a>', page)


def pages_below(app: Sphinx, name: str) -> list[str]:
    """Return a page and all pages below it, in reading order."""
    found = [name]
    for inner in app.env.toctree_includes.get(name, []):
        found += pages_below(app, inner)
    return list(dict.fromkeys(found))


def first_sentence(app: Sphinx, name: str) -> str:
    """Return the first sentence of a page's first paragraph as plain text."""
    for paragraph in app.env.get_doctree(name).findall(lambda node: node.tagname == "paragraph"):
        text = " ".join(paragraph.astext().split())
        return re.split(r"(?<=[.!?]) ", text, maxsplit=1)[0]
    return ""


def text_of(app: Sphinx, name: str) -> str:
    """Return the path of a page's text: its Markdown, but the HTML of a page that is made from the code."""
    made = re.search(r"<!-- generated: |^\.\. automodule::", Path(app.env.doc2path(name)).read_text(), re.MULTILINE)
    return f"{name}.html" if made else f"_sources/{name}.md.txt"


def llms_text(app: Sphinx) -> str:
    """Return the text of llms.txt."""
    text = f"# minray\n\n> {first_sentence(app, 'index')}\n"
    listed = {"index"}
    for section, first in SECTIONS.items():
        text += f"\n## {section}\n\n"
        for name in pages_below(app, first):
            if name not in listed:
                listed.add(name)
                about = first_sentence(app, name)
                title = app.env.titles[name].astext()
                text += f"- [{title}]({app.config.html_baseurl}{text_of(app, name)}): {about}\n"
    return text


def sitemap(app: Sphinx) -> str:
    """Return the sitemap of the pages."""
    names = sorted(app.env.found_docs - {"404"})
    rows = "".join(f"  <url><loc>{escape(app.config.html_baseurl + name)}.html</loc></url>\n" for name in names)
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="{space}">\n{rows}</urlset>\n'


def from_the_root(page: str, root: str) -> str:
    """Return a page with links from the root of its host, since a server shows it at any address that does not exist."""
    page = re.sub(r'\b(href|src)="(?!#|/|[a-z]+:)', rf'\1="{root}', page)
    return page.replace('data-content_root="./"', f'data-content_root="{root}"')


def name_book(description: Path) -> None:
    """Note in the description of a copied playground where the book is, to which its page then has a link."""
    description.write_text(json.dumps(json.loads(description.read_text()) | {"book": "../index.html"}))


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the files when the pages are there."""
    if error is None:
        out = Path(app.outdir)
        (out / "llms.txt").write_text(llms_text(app))
        (out / "sitemap.xml").write_text(sitemap(app))
        (out / "robots.txt").write_text(f"Sitemap: {app.config.html_baseurl}sitemap.xml\n")
        missing = out / "404.html"
        missing.write_text(from_the_root(missing.read_text(), urlsplit(app.config.html_baseurl).path))
        if (PLAYGROUND / "index.html").exists():
            shutil.copytree(PLAYGROUND, out / "playground", dirs_exist_ok=True)
            name_book(out / "playground/site.json")


def setup(app: Sphinx) -> None:
    app.connect("source-read", fill)
    app.connect("build-finished", write)
