"""The list of ``minray debug``, and its refusals. test_debugger.py attaches to breakpoints."""

from __future__ import annotations

import re
import sys

import click
import msgspec
import pytest

from minray.cli.debug import Waiting, _attach, _choose, list_text
from minray.protocol.base import Address
from minray.protocol.gcs import NodeInfo
from minray.protocol.state import Breakpoint

AT = Breakpoint(
    id="1f3c2a4b-1",
    task_name="f",
    task_id=b"t" * 16,
    actor_id=b"",
    function="f",
    filename="/home/me/prog.py",
    line=12,
    error="",
    since=0.0,
    endpoint="unix:/nowhere/b-1f3c2a4b-1",
    is_attached=False,
)


def waiting(number: int = 1, is_here: bool = True, **changes: object) -> Waiting:
    address = Address(b"n" * 16, b"n" * 16, "")
    node = NodeInfo(b"n" * 16, "second", "10.0.0.2", "host", address, {}, {}, False)
    at = msgspec.structs.replace(AT, id=f"1f3c2a4b-{number}", **changes)
    return Waiting(at, node, 123, is_here)


def test_the_list_says_where_each_task_waits_and_which_are_elsewhere() -> None:
    lines = list_text([waiting(), waiting(2, False, task_name="", error="ValueError: no", is_attached=True)])
    assert lines[0] == "2 breakpoints" and lines[2].split("  ")[0] == "NUMBER"
    first, second = (re.split(r" {2,}", line) for line in lines[3:])
    time = first.pop(-2)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time) and second.pop(-2) == time
    assert first == ["1", "1f3c2a4b-1", "f", "f (/home/me/prog.py:12)", "-", "second", "123", "-"]
    assert second[1:3] == ["1f3c2a4b-2", "(a thread)"]
    assert second[4:] == ["ValueError: no", "second (10.0.0.2)", "123", "attached"]
    assert list_text([waiting()])[0] == "1 breakpoint" and list_text([]) == ["No task waits in a debugger."]


def test_an_id_is_chosen_by_its_beginning_if_that_is_clear() -> None:
    some = [waiting(1), waiting(12), waiting(2)]
    assert _choose(some, "1f3c2a4b-1") is some[0] and _choose(some, "1f3c2a4b-12") is some[1]
    assert _choose(some, "1f3c2a4b-2") is some[2]
    with pytest.raises(click.ClickException, match="3 ids begin with 1f: 1f3c2a4b-1, 1f3c2a4b-12, 1f3c2a4b-2"):
        _choose(some, "1f")
    with pytest.raises(click.ClickException, match="no task waits at a breakpoint whose id begins with 2"):
        _choose(some, "2")


def test_what_cannot_be_attached_to_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.ClickException, match="log in there and run: minray debug 1f3c2a4b-1") as raised:
        _attach(waiting(is_here=False))
    assert "process 123 runs on node second (10.0.0.2), not on this machine" in raised.value.message
    with pytest.raises(click.ClickException, match="another terminal is attached to 1f3c2a4b-1"):
        _attach(waiting(is_attached=True))
    monkeypatch.setattr(sys, "stdin", sys.__stdin__)
    with pytest.raises(click.ClickException, match="cannot attach to 1f3c2a4b-1: unix:/nowhere/b-1f3c2a4b-1: No such file"):
        _attach(waiting())
