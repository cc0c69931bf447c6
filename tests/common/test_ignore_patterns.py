"""Patterns of a ``.gitignore`` leave out what git leaves out."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minray.common.ignore_patterns import IgnorePatterns


def is_left_out(lines: str, path: str) -> bool:
    """Whether a walk that looks into no directory that is left out comes to this file."""
    patterns = IgnorePatterns(lines.split("\n"))
    parts = path.split("/")
    paths = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(patterns.matches(each, each != path) for each in paths)


@pytest.mark.parametrize(
    ("lines", "out", "kept"),
    [
        ("build", ["build", "a/build", "build/x"], ["builds", "a/rebuild"]),
        ("build/", ["build/x", "a/build/x"], ["build", "a/build"]),
        ("/build", ["build", "build/x"], ["a/build"]),
        ("docs/*.txt", ["docs/a.txt"], ["docs/a/b.txt", "a/docs/a.txt"]),
        ("*.py[co]", ["a.pyc", "a/b.pyo"], ["a.py", "a.pyx"]),
        ("**/logs", ["logs", "a/logs", "a/b/logs/x"], ["logs2"]),
        ("logs/**", ["logs/a", "logs/a/b"], ["logs", "a/logs/b"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["b", "x/a/b"]),
        ("a**b", ["ab", "axb"], ["a/b"]),
        ("*\n!keep.txt", ["a", "b/c"], ["keep.txt"]),
        ("!keep.txt\n*.txt", ["keep.txt"], ["keep.py"]),
        ("# text\n\n\\#text", ["#text"], ["# text", "text"]),
        ("\\!x", ["!x"], ["x"]),
        ("x  ", ["x"], ["x  "]),
        ("x\\ ", ["x "], ["x"]),
        ("[!a]x", ["bx"], ["ax"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("[]-]x", ["]x", "-x"], ["ax"]),
        ("[[:digit:]]x", ["1x"], ["ax"]),
        ("a[!b]c", ["axc"], ["a/c"]),
        ("?", ["a"], ["ab"]),
        ("[a", [], ["[a", "a"]),
        ("a\\", [], ["a", "a\\"]),
        ("/", [], ["a"]),
        ("x//", [], ["x/y"]),
        (".git\n.venv", [".git/HEAD", "a/.venv/bin"], [".gitignore"]),
    ],
)
def test_what_is_left_out(lines: str, out: list[str], kept: list[str]) -> None:
    assert [path for path in out if not is_left_out(lines, path)] == []
    assert [path for path in kept if is_left_out(lines, path)] == []


PIECES = "a b ab * ** ? / ! [ab] [!a] \\* \\ *.py foo # [ ] []a] [[:digit:]] 1 [a-c] - .".split(" ") + [" "]
NAMES = "a b ab foo x.py 1 * #a ] [ - a\\ !a foo.py .a".split(" ")


def git_leaves_out(directory: Path, lines: str, paths: list[str]) -> Iterator[bool]:
    (directory / ".gitignore").write_text(lines + "\n")
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin", "-v", "-n"]
    asked = subprocess.run(command, cwd=directory, input="\0".join(paths).encode(), capture_output=True, check=False)
    fields = asked.stdout.split(b"\0")[:-1]
    for pattern in fields[2::4]:
        yield bool(pattern) and not pattern.startswith(b"!")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_says_the_same_of_random_patterns(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    chance = random.Random(7)
    paths = sorted({"/".join(chance.choices(NAMES, k=depth)) for depth in (1, 2, 3) for _ in range(50)})
    for _ in range(300):
        lines = "\n".join("".join(chance.choices(PIECES, k=chance.randint(1, 5))) for _ in range(chance.randint(1, 2)))
        ours = [is_left_out(lines, path) for path in paths]
        differing = itertools.compress(paths, map(bool.__ne__, ours, git_leaves_out(tmp_path, lines, paths)))
        assert list(differing) == [], lines
