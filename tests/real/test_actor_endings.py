"""How actors' processes end: G24, G27, G29, C2 on a real cluster."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

import pytest

import minray as ray
from minray.util.state import list_actors
from tests.helpers import wait_for_condition
from tests.real.support import Files, Journal, Signal, is_alive, run_driver

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
class Guest:
    """Writes down how it leaves."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        atexit.register(journal.note, "atexit")

    def pid(self) -> int:
        return os.getpid()

    def work(self) -> None:
        self.journal.note("work")

    def __ray_shutdown__(self) -> None:
        self.journal.note("shutdown")

    def __del__(self) -> None:
        self.journal.note("deleted")


def test_g24_g27_an_actor_without_handles_cleans_up_after_its_last_call(files: Files) -> None:
    journal = files.journal()
    guest = Guest.remote(journal)
    pid = ray.get(guest.pid.remote())
    calls = [guest.work.remote() for _ in range(3)]
    del guest
    ray.get(calls)
    wait_for_condition(lambda: not is_alive(pid))
    assert journal.lines() == ["work"] * 3 + ["shutdown", "atexit", "deleted"]


def test_g27_g29_a_killed_actor_cleans_up_nothing(files: Files) -> None:
    journal = files.journal()
    guest = Guest.remote(journal)
    pid = ray.get(guest.pid.remote())
    ray.kill(guest)
    with pytest.raises(ray.exceptions.ActorDiedError, match=r"killed by minray\.kill"):
        ray.get(guest.work.remote())
    wait_for_condition(lambda: not is_alive(pid))
    assert journal.lines() == []


def test_c2_exit_actor_is_orderly_and_for_good(files: Files) -> None:
    @ray.remote(max_restarts=5, max_concurrency=2)
    class Leaver:
        def __init__(self, journal: Journal) -> None:
            self.journal = journal
            journal.note("made")

        def finish(self, begun: Signal, may_end: Signal) -> str:
            begun.set()
            may_end.wait()
            return "finished"

        def leave(self) -> None:
            ray.exit_actor()

    journal, begun, may_end = files.journal(), files.signal("begun"), files.signal("end")
    leaver = Leaver.remote(journal)
    running = leaver.finish.remote(begun, may_end)
    begun.wait()
    with pytest.raises(ray.exceptions.ActorDiedError, match="exit_actor was called"):
        ray.get(leaver.leave.remote())
    may_end.set()
    assert ray.get(running) == "finished", "running calls finish"
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(leaver.leave.remote())
    assert journal.lines() == ["made"], "it was not restarted"


@pytest.mark.parametrize("end", ["return 'child'", "sys.exit(0)", "raise ValueError"])
def test_a_child_that_an_actor_forks_answers_no_calls(end: str) -> None:
    """However it comes back from the method: the connections are its parent's."""
    method: dict[str, Any] = {}
    exec(f"def fork(self):\n  if pid := os.fork(): return os.waitpid(pid, 0)[0] == pid\n  {end}", globals(), method)
    actor = ray.remote(type("Forking", (), {**method, "pid": lambda self: os.getpid()})).remote()
    pid = ray.get(actor.pid.remote())
    assert ray.get(actor.fork.remote(), timeout=20) is True and ray.get(actor.pid.remote()) == pid


def test_a_constructor_that_exits_without_an_error_code_is_not_called_again(files: Files) -> None:
    journal = files.journal()

    @ray.remote(max_restarts=3)
    class Leaver:
        def __init__(self, journal: Journal, code: int) -> None:
            journal.note(f"exits with {code}")
            sys.exit(code)

        def work(self) -> None: ...

    for code in (0, 3):
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(Leaver.remote(journal, code).work.remote())
    assert sorted(journal.lines()) == ["exits with 0"] + ["exits with 3"] * 4


def test_a_handle_of_a_cluster_that_was_left_kills_nothing() -> None:
    done = run_driver(
        """
        @ray.remote
        class Actor:
            pass
        ray.init(num_cpus=1, logging_level="ERROR")
        actor = Actor.remote()
        ray.shutdown()
        ray.init(num_cpus=1, logging_level="ERROR")
        for arguments in ({}, {"no_restart": "x"}):
            try:
                ray.kill(actor, **arguments)
            except (ray.exceptions.ActorHandleNotFoundError, TypeError) as error:
                print(error)
        from minray.util.state import list_actors
        print(list_actors())
        """
    )
    assert done.stdout.splitlines() == [
        "this handle belongs to a cluster that this process has left",
        "no_restart must be True or False, not str",
        "[]",
    ], done.stderr


def test_a_clean_up_that_nobody_can_await_is_said_to_be_none(capfd: pytest.CaptureFixture[str]) -> None:
    @ray.remote
    class Guest:
        def work(self) -> None: ...

        async def __ray_shutdown__(self) -> None: ...

    guest = Guest.remote()
    ray.get(guest.work.remote())
    del guest
    wait_for_condition(lambda: "it must be a plain method: nobody can await it" in capfd.readouterr().err)


@ray.remote(max_restarts=0)
class Dying:
    def __init__(self, now: bool = False) -> None:
        if now:
            self.die("in the constructor")

    def die(self, words: str) -> None:
        print(words, file=sys.stderr)
        os._exit(4)


@pytest.mark.parametrize("number", range(8))
def test_the_death_of_an_actor_is_told_as_fully_as_that_of_a_worker(number: int) -> None:
    actor = Dying.remote(now=number % 2 == 0)
    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        ray.get(actor.die.remote("in a call"))
    said = str(caught.value)
    assert "class Dying" in said and "(pid=" in said and "node=" in said and "died: exit code 4" in said
    assert said.endswith(f"  | in {'a call' if number % 2 else 'the constructor'}")
    assert "\n" not in ray.why(actor) and ray.why(actor).endswith("died: exit code 4")


def test_why_and_list_actors_say_what_a_constructor_has_raised() -> None:
    @ray.remote
    class Failing:
        def __init__(self) -> None:
            raise KeyError("cannot be made")

        def work(self) -> None: ...

    actor = Failing.remote()
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(actor.work.remote())
    message = "its constructor did not succeed: KeyError: 'cannot be made'"
    assert ray.why(actor).endswith(message)
    [(death, namespace)] = [
        (row.death_cause, row.ray_namespace) for row in list_actors(detail=True) if row.class_name == "Failing"
    ]
    assert namespace == ray.get_runtime_context().namespace
    assert death == {"kind": "CREATION_TASK_FAILED", "message": message}
