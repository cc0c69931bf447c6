"""debugpy in workers, asked through its Debug Adapter Protocol as an editor does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from minray.platform.transport.endpoints import free_port
from tests.debugging.adapter_client import AdapterClient
from tests.helpers import wait_for_condition

pytest.importorskip("debugpy")
pytestmark = pytest.mark.slow

TASK = """\
import minray

@minray.remote
def increment(number):
    result = number + 1
    return result  # line 6
"""
PROGRAM = TASK + """
import debugpy

def hook():
    print("the hook was called", flush=True)

debugpy.configure(subProcess=FOLLOWS)
debugpy.listen(("127.0.0.1", PORT))
print("listening", flush=True)
debugpy.wait_for_client()

minray.init(num_cpus=1, runtime_env={"worker_process_setup_hook": hook})
print("result", minray.get(increment.remote(41)), flush=True)
"""
LISTENING = TASK + """
def listen():
    import debugpy
    debugpy.listen(("127.0.0.1", PORT))
    print("listening", flush=True)
    debugpy.wait_for_client()

minray.init(num_cpus=1, runtime_env={"worker_process_setup_hook": listen})
print("result", minray.get(increment.remote(41)), flush=True)
"""
LINE = 6


class Program:
    """A Python process. Its output goes to a file, since a debug adapter outlives it for a moment and would keep a pipe."""

    def __init__(self, path: Path) -> None:
        self._output = path.with_suffix(".output")
        environment = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        with self._output.open("w") as output:
            argv = [sys.executable, str(path)]
            self.process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def connect(self, port: int) -> AdapterClient:
        """Connect to the adapter at this port when a process of the program has connected to it."""
        wait_for_condition(lambda: "listening" in self._output.read_text(), 60, "an adapter listens")
        return AdapterClient(port)

    def output(self) -> str:
        """Wait until the process ends well, and return what it has said."""
        code = self.process.wait(60)
        assert code == 0, self._output.read_text()
        return self._output.read_text()


@contextmanager
def running(path: Path) -> Generator[Program, None, None]:
    program = Program(path)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()


def local(client: AdapterClient, name: str) -> Any:
    """Wait for a breakpoint, evaluate a name there, and let the process go on."""
    thread = client.event("stopped")["body"]["threadId"]
    client.send("stackTrace", threadId=thread)
    frame = client.answer("stackTrace")["stackFrames"][0]
    assert (frame["name"], frame["line"]) == ("increment", LINE)
    client.send("evaluate", expression=name, frameId=frame["id"])
    value = client.answer("evaluate")["result"]
    client.send("continue", threadId=thread)
    return value


def test_the_workers_of_a_debugged_driver_are_its_children_for_the_editor(tmp_path: Path) -> None:
    program, port = tmp_path / "program.py", free_port("127.0.0.1")
    program.write_text(PROGRAM.replace("PORT", str(port)).replace("FOLLOWS", "True"))
    with running(program) as running_program, closing(running_program.connect(port)) as driver, ExitStack() as stack:
        driver.attach(str(program), LINE, subProcess=True)
        child = driver.event("debugpyAttach")["body"]
        worker = stack.enter_context(closing(AdapterClient(child["connect"]["port"])))
        worker.attach(str(program), LINE, **{name: value for name, value in child.items() if name != "connect"})
        assert local(worker, "result") == "42"
        driver.event("terminated")
        said = running_program.output()
        assert "result 42" in said and "the hook was called" in said


def test_without_subprocess_the_workers_are_left_alone(tmp_path: Path) -> None:
    program, port = tmp_path / "program.py", free_port("127.0.0.1")
    program.write_text(PROGRAM.replace("PORT", str(port)).replace("FOLLOWS", "False"))
    with running(program) as running_program, closing(running_program.connect(port)) as driver:
        driver.attach(str(program), LINE, subProcess=False)
        assert driver.event("debugpyAttach", "terminated")["event"] == "terminated"
        assert "result 42" in running_program.output()


def test_a_setup_hook_may_let_a_worker_listen_for_an_editor(tmp_path: Path) -> None:
    program, port = tmp_path / "program.py", free_port("127.0.0.1")
    program.write_text(LISTENING.replace("PORT", str(port)))
    with running(program) as running_program, closing(running_program.connect(port)) as worker:
        worker.attach(str(program), LINE, justMyCode=True)
        assert local(worker, "number") == "41"
        assert "result 42" in running_program.output()
