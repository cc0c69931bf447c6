"""Which line of the user's code has made a reference."""

from __future__ import annotations

import inspect

import minray
from minray.core_worker.call_sites import MOST_FRAMES, CallSites


def here() -> int:
    """The number of the caller's line."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_the_innermost_line_comes_first() -> None:
    sites = CallSites(is_driver=True)
    sites.note([b"x", b"y"], "put object")
    line = here() - 1
    what, *lines = sites.of(b"x").split(" | ")
    assert what == "(put object)" and len(lines) == MOST_FRAMES
    assert lines[0] == f"{__file__}:test_the_innermost_line_comes_first:{line}"
    assert sites.of(b"y") == sites.of(b"x") and sites.of(b"z") == ""


def test_lines_of_minray_are_no_lines_of_the_user() -> None:
    sites = CallSites(is_driver=True)
    code = compile("sites.note([b'x'], 'put object')", minray.__file__, "exec")
    exec(code, {"sites": sites})
    assert minray.__file__ not in sites.of(b"x") and "test_lines_of_minray" in sites.of(b"x")


def test_the_first_place_counts_until_it_is_forgotten() -> None:
    sites = CallSites(is_driver=True)
    sites.note([b"x"], "first")
    sites.note([b"x"], "second")
    assert "(first)" in sites.of(b"x")
    sites.forget([b"x"])
    sites.forget([b"x"])
    assert len(sites) == 0
    sites.note([b"x"], "third")
    assert "(third)" in sites.of(b"x")
