"""Forms of what commands print: tables that fit, short ids that are told apart, YAML that reads back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml

from minray.cli.output import formatted
from minray.cli.state import list_text
from minray.common.text_table import WIDTH, fitted, short_ids
from minray.util.state.common import TaskState
from minray.util.state.rows import KINDS

ODD = [
    "", " ", "a: b", "- a", "#", "yes", "NO", "null", "~", "1", "1e5", "0x10", "12:30:45", "2026-11-27", "a\nb", "\t", "'",
    '"', "\\", "{}", "[x]", "&a", "*a", "!t", "%", "@", "`", "é", "日本", "😀", "\x07", "\x7f", "\u2028",
    "a" * 300, "-", "=",
]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(
    "facts",
    [
        {},
        [],
        {"rows": [], "empty": {}, "nothing": None, "yes": True, "number": 3, "negative": -1.5},
        [{"a": [1, 2, [3, [4]]], "b": {"c": {"d": [{"e": "f"}, {}, []]}}}, [], [[]], "text"],
        {text: text for text in ODD},
        [ODD, {"odd": ODD}],
        [1e300, 1e-7, 5e-324, 0.1, 1.0, 1e16, -0.0, 2**70],
    ],
)
def test_what_is_written_reads_back(form: str, facts: Any) -> None:
    text = formatted(form, facts)
    assert (json.loads if form == "json" else yaml.safe_load)(text) == facts


def test_numbers_that_json_lacks_read_back_from_yaml() -> None:
    high, low, none = yaml.safe_load(formatted("yaml", [math.inf, -math.inf, math.nan]))
    assert (high, low) == (math.inf, -math.inf) and math.isnan(none)


def test_short_ids_are_told_apart_and_are_beginnings() -> None:
    ids = [f"{number:016x}{'ab' * 12}" for number in range(1, 100)]
    short = short_ids([*ids, *ids])
    assert len(set(short.values())) == 99 and all(one.startswith(short[one]) for one in ids)
    assert {len(text) for text in short.values()} == {16}
    assert short_ids(["1f3c2a4b00", "2f3c2a4b00"]) == {"1f3c2a4b00": "1f3c2a4b", "2f3c2a4b00": "2f3c2a4b"}
    assert short_ids(["aaaaaaaaaaaa", "aaaaaaaaaaab"])["aaaaaaaaaaab"] == "aaaaaaaaaaab" and short_ids([]) == {}
    assert short_ids(["", "abcd"]) == {"": "", "abcd": "abcd"}


def task(number: int, **fields: Any) -> TaskState:
    values: dict[str, Any] = {
        "task_id": f"{number:016x}{'cd' * 12}{'01' * 4}", "attempt_number": 0, "name": "f",
        "state": "PENDING_NODE_ASSIGNMENT",
        "job_id": "01000000", "actor_id": "ee" * 16, "type": "ACTOR_CREATION_TASK", "func_or_class_name": "module.function",
        "parent_task_id": "ab" * 24, "node_id": "aa" * 16, "worker_id": "bb" * 16, "worker_pid": 4711,
        "required_resources": {"CPU": 1.0}, "error_type": "TASK_EXECUTION_EXCEPTION", **fields,
    }  # fmt: skip
    return TaskState(**values)


@pytest.mark.parametrize("name", ["f", "x" * 500, "日本" * 60, "a\nb"])
def test_a_table_fits_whatever_programs_call_their_tasks(name: str) -> None:
    rows = [task(number, name=name, func_or_class_name=name) for number in range(1, 30)]
    columns = KINDS["tasks"].state.columns(False)
    lines = list_text("tasks", rows, 20, columns, [row.task_id for row in rows])
    assert max(map(len, lines)) <= WIDTH and lines[0] == "29 tasks, 20 shown"
    assert {"TASK_ID", "NAME", "STATE", "TYPE", "WORKER_PID"} <= set(lines[2].split())
    assert any(line.startswith("Left out for lack of room: ") for line in lines) and lines[-1].endswith("--detail")
    first = lines[3].split()[0]
    assert [row.task_id for row in rows if row.task_id.startswith(first)] == [rows[0].task_id]
    wide = list_text("tasks", rows, 20, columns)
    assert rows[0].task_id in wide[3] and len(wide) == 23


def test_a_small_table_is_left_as_it_is() -> None:
    assert fitted(("A", "B"), [("1", "")], ("A",)) == ["", "A  B", "1"]
    assert fitted(("A", "B"), [], ("A",)) == []


def test_columns_without_content_go_first() -> None:
    wide = "x" * 60
    lines = fitted(("A", "EMPTY", "B", "C"), [(wide, "", "b" * 40, "c")], ("A",))
    assert lines[1].split() == ["A", "B", "C"] and max(map(len, lines)) <= WIDTH
