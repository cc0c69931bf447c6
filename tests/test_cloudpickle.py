"""Pickling functions of programs keeps all that a remote traceback needs."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import threading
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


def test_the_debugging_variants_name_the_object_and_who_finds_the_part() -> None:
    assert cloudpickle.loads(cloudpickle.dumps_debug({"a": 1})) == {"a": 1}
    with io.BytesIO() as file:
        cloudpickle.dump_debug([1], file)
        assert cloudpickle.loads(file.getvalue()) == [1]
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cloudpickle.dumps of \[1, <unlocked .*inspect_serializability") as caught:
        cloudpickle.dumps_debug([1, lock])
    assert "cannot pickle" in str(caught.value.__cause__)
    with io.BytesIO() as file, pytest.raises(TypeError, match="cloudpickle.dump of"):
        cloudpickle.dump_debug(lock, file)
