"""Titles of processes: a program of its own shows some, since the title of this one stays as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minray.platform.process import title

PROGRAM = """
import ctypes, os, subprocess, sys
from minray.platform.process.title import ProcessTitle

title = ProcessTitle()
for text in sys.stdin.read().split(","):
    title.show(text.replace("NUL", chr(0)))
    print(open("/proc/self/cmdline").read().rstrip(chr(0)))
"""
ARGUMENT = 200 * "-"


def shown(*titles: str) -> list[str]:
    command = [sys.executable, "-X", "utf8", "-c", PROGRAM, ARGUMENT]
    done = subprocess.run(command, input=",".join(titles), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_title_replaces_the_longer_one_before_it() -> None:
    assert shown("ray::a_long_name", "ray::f", "") == ["ray::a_long_name", "ray::f", ""]


def test_a_title_ends_where_the_command_line_ended_and_nothing_behind_it_shows() -> None:
    (text,) = shown(10_000 * "x")
    assert set(text) == {"x"} and len(ARGUMENT) < len(text) < 1000


def test_what_no_title_can_hold_is_left_out() -> None:
    assert shown("ray::\u00e4NULb", "x" + 5000 * "\u00e4")[0] == "ray::\u00e4b"


def test_a_process_whose_command_line_is_not_found_shows_no_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(title, "_ARG_START", 10_000)
    title.ProcessTitle().show("ray::f")
