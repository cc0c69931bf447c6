"""Pickling functions of programs keeps all that a remote traceback needs."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import types
from typing import Any

import pytest

from minray import cloudpickle

PROGRAM = """
def outer():
    def inner():
        return 1 / 0
    return inner

class Account:
    def withdraw(self):
        return [amount for amount in ()]
"""

ELSEWHERE = """
import pickle, sys
function = pickle.load(sys.stdin.buffer)
assert "minray" not in sys.modules
print(function.__code__.co_filename)
"""


def codes(code: types.CodeType) -> list[types.CodeType]:
    nested = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [code, *(below for each in nested for below in codes(each))]


@pytest.fixture
def program() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(PROGRAM, "/home/me/program.py", "exec"), names)
    return names


@pytest.mark.parametrize("name", ["outer", "Account.withdraw"])
def test_a_function_and_those_inside_of_it_keep_the_name_of_their_file(name: str, program: dict[str, Any]) -> None:
    given = eval(name, program)
    copy = pickle.loads(cloudpickle.dumps(given))
    assert {code.co_filename for code in codes(copy.__code__)} == {"/home/me/program.py"}
    assert copy.__code__ == given.__code__ and copy.__code__ is not given.__code__


def test_what_is_pickled_is_readable_without_minray(program: dict[str, Any]) -> None:
    """As by a program that stores its functions and reads them elsewhere."""
    file = io.BytesIO()
    cloudpickle.dump(program["outer"](), file, protocol=5)
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=file.getvalue(), stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().strip() == "/home/me/program.py"


def test_buffers_go_out_of_band_as_in_the_package() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(pickle.PickleBuffer(b"x" * 1000), 5, buffers.append)
    assert len(data) < 100 and bytes(cloudpickle.loads(data, buffers=buffers)) == b"x" * 1000
