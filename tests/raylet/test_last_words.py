"""Last lines of a dead worker's standard error, in reports about its death."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import minray
from minray.errors.tracebacks import spellings
from minray.protocol.core_worker import TASK_NAME_MARK
from minray.raylet.last_words import MOST_LINES, LastWords

OURS = os.path.join(os.path.dirname(minray.__file__), "core_worker", "task_executor.py")
CRASH = f"""\
Fatal Python error: Segmentation fault

Thread 0x00007f5c1a7fc6c0 (most recent call first):
  File "{OURS}", line 239 in _relieve
  File "/usr/lib/python3.11/threading.py", line 982 in run
  ...

Current thread 0x00007f5c1ae8eb80 (most recent call first):
  Garbage-collecting
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/a user/program.py", line 6 in f
  File "{OURS}", line 282 in _call
  File "<string>", line 1 in <module>

Extension modules: msgspec._core, numpy (total: 2)"""


def words(*lines: str) -> list[str]:
    spoken = LastWords()
    for line in lines:
        spoken.add_line(line)
    return spoken.lines()


def test_they_are_the_last_lines_of_the_last_task() -> None:
    lines = [f"line {number}" for number in range(100)]
    assert words(*lines) == lines[-MOST_LINES:]
    assert words("earlier", f"{TASK_NAME_MARK}f", "its own", "  and more") == ["its own", "  and more"]
    assert words(f"{TASK_NAME_MARK}f", "earlier", TASK_NAME_MARK) == []


def test_a_crash_in_compiled_code_leaves_the_users_words_and_frames() -> None:
    assert words(f"{TASK_NAME_MARK}f", "the task says", "", *CRASH.splitlines(), "a child of it says", "", "  more") == [
        "the task says",
        "",
        "Fatal Python error: Segmentation fault",
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "/home/a user/program.py", line 6 in f',
        "a child of it says",
        "",
        "  more",
    ]


def test_a_directory_is_told_from_others_also_in_what_faulthandler_writes(tmp_path: Path) -> None:
    """Wherever minray is installed, its own frames are left out."""
    directory = "/home/Zoë/\u6587\u4ef6/\U0001f40d/minray"
    code = compile("faulthandler.dump_traceback(file, all_threads=False)", f"{directory}/worker.py", "exec")
    with (tmp_path / "crash").open("w+") as file:
        exec(code, {"faulthandler": faulthandler, "file": file})
        file.seek(0)
        assert f'  File "{spellings(directory)[1]}worker.py", line 1 in <module>' in file.read().splitlines()


def test_what_only_looks_like_a_crash_is_the_users() -> None:
    lines = ["Thread 0x1 (most recent call first):", f'  File "{OURS}", line 1 in f', "Extension modules: none"]
    assert words(*lines) == lines
