"""Words of the pages that no dictionary has: ``python -m tests.site.spelling``, as part of ``make docs``.

The dictionary is that of pyspellchecker, which has American English. ``docs/words.txt`` has the other words of these pages:
British forms, and words of the field. Code, names with capitals, and words of less than four letters are not checked. With
``--write``, the list becomes what the pages have today; read the difference before you commit it.

The automated readability index of each page is checked as well. It is 4.71 times the letters of a word plus half the words
of a sentence, less 21.43. That is about the number of years at school that a reader needs.
"""

from __future__ import annotations

import re
import sys

from tests.site.pages import ROOT, pages
from tests.tidy import english

WORDS = ROOT / "docs/words.txt"
MOST_YEARS = 8.0
"""Years at school that a page may need. Many readers have learned English as a second language."""
NOT_PROSE = re.compile(
    r"^---\n.*?^---\n"  # the head of a page
    r"|^ *(`{3,}).*?^ *\1"  # blocks
    r"|<!--.*?-->|<[^>]*>|`[^`]*`"
    r"|\]\([^)]*\)|https?://\S+|\{[\w:]+\}",
    re.MULTILINE | re.DOTALL,
)
WORD = re.compile(r"(?<![\w./~-])[a-z]{4,}(?![\w/]|\.\w|\(|-\w*[A-Z0-9])")


def words(page: str) -> dict[str, int]:
    """Return the words of a page's prose that can be checked, each with the line where it is first."""
    text = NOT_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page)
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORD.findall(line):
            found.setdefault(word, number)
    return found


def years(page: str) -> float:
    """Return the automated readability index of a page; 0 for one with less than 100 words."""
    prose = [re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>|[*\[\]]", " ", text) for _, text, _ in english.prose(page, None)]
    count = sum(len(re.findall(r"[A-Za-z]+", text)) for text in prose)
    letters = sum(len(word) for text in prose for word in re.findall(r"[A-Za-z]+", text))
    sentences = sum(max(1, len(re.findall(r"[.!?:](?:\s|$)", text))) for text in prose)
    return 0.0 if count < 100 else 4.71 * letters / count + 0.5 * count / sentences - 21.43


def unknown() -> dict[str, str]:
    """Return the words that the dictionary does not have, each with the first place where it is."""
    from spellchecker import SpellChecker

    dictionary = SpellChecker()
    found: dict[str, str] = {}
    for page in pages():
        for word, line in words((ROOT / page).read_text()).items():
            found.setdefault(word, f"{page}:{line}")
    return {word: found[word] for word in dictionary.unknown(found)}


def complaints() -> list[str]:
    listed, there = set(WORDS.read_text().split()), unknown()
    found = [f"{there[word]}: {word!r} is in no dictionary, nor in docs/words.txt" for word in there.keys() - listed]
    for page in pages():
        if (needed := years((ROOT / page).read_text())) > MOST_YEARS:
            found.append(f"{page}: needs {needed:.1f} years at school, at most {MOST_YEARS}: shorter words or sentences")
    return sorted(found)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        WORDS.write_text("".join(f"{word}\n" for word in sorted(unknown())))
    wrong = complaints()
    print("\n".join(wrong), end="\n" if wrong else "")
    raise SystemExit(bool(wrong))
