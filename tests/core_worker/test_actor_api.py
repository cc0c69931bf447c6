"""A user thread makes, finds, kills and asks about actors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import minray
from minray.core_worker.submission.named_actors import HeldActor
from minray.core_worker.user_threads import actor_api
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.exceptions import ActorAlreadyExistsError, ActorDiedError
from minray.platform.threads import main_thread
from minray.protocol.actor import ALIVE, DEAD, ActorInfo, HandleSpec
from tests.core_worker.cores import Core, Cores, cores, let_pass, sent
from tests.core_worker.parts import pending, prepare
from tests.core_worker.process_record import process_record


@pytest.fixture
def cluster() -> Iterator[Cores]:
    with cores(2) as made:
        yield made


@minray.remote(num_cpus=0)
class Clerk:
    def __init__(self, number: int = 0) -> None:
        self.number = number

    def read(self) -> int:
        self.number += 1
        return self.number

    def rest(self, seconds: float) -> None:
        let_pass(seconds)


@minray.remote(max_retries=0)
def rest(seconds: float) -> None:
    let_pass(seconds)


def api() -> ActorApi:
    return ActorApi(minray.api.calls.current_api())


def test_an_actor_without_a_name_is_there_at_once_and_one_with_a_name_is_asked_for_first(
    cluster: Cores, driver: Core
) -> None:
    def program() -> None:
        words = sent(cluster, driver.process.name)
        plain = Clerk.remote()
        assert "RegisterActor" not in words
        named = Clerk.options(name="n").remote()
        assert words.count("RegisterActor") == 2
        assert minray.get([plain.read.remote(), named.read.remote()]) == [1, 1]

    driver.run(program)


def test_whose_name_is_taken_is_not_made_and_the_other_one_may_be_had_instead(driver: Core) -> None:
    def program() -> None:
        first = Clerk.options(name="n").remote(10)
        with pytest.raises(ActorAlreadyExistsError, match="'n' exists"):
            Clerk.options(name="n").remote(20)
        again = Clerk.options(name="n", get_if_exists=True).remote(20)
        assert again._actor_id == first._actor_id and minray.get(again.read.remote()) == 11
        assert len(api().all()) == 1

    driver.run(program)


def test_a_name_finds_a_living_actor_and_an_id_any(driver: Core) -> None:
    def program() -> None:
        actor = Clerk.options(name="n").remote()
        minray.get(actor.read.remote())
        namespace = api().namespace()
        found, same = api().named("n", namespace), api().get_info(actor._actor_id, actor._minray_owner)
        assert found is not None and same is not None and found.info.actor_id == same.actor_id == actor._actor_id
        assert found.info.state == ALIVE and api().named("n", "elsewhere") is None
        minray.kill(actor)
        dead = api().get_info(actor._actor_id, actor._minray_owner)
        assert api().named("n", namespace) is None and dead is not None and dead.state == DEAD
        assert [info.state for info in api().all()] == [DEAD]

    driver.run(program)


def test_g29_who_has_killed_an_actor_knows_that_it_is_dead(driver: Core) -> None:
    def program() -> None:
        actor = Clerk.options(max_restarts=1).remote()
        minray.get(actor.read.remote())
        api().kill(actor._actor_id, True)
        info = driver.worker.submission.actors.info_of(actor._actor_id)
        assert info is not None and info.state == DEAD
        with pytest.raises(ActorDiedError):
            minray.get(actor.read.remote(), timeout=0.001)

    driver.run(program)


def test_g29_an_actor_that_may_restart_is_not_dead_for_its_killer(driver: Core) -> None:
    def program() -> None:
        actor = Clerk.options(max_restarts=-1, max_task_retries=-1).remote()
        for restarts in (1, 2):
            minray.get(actor.read.remote())
            api().kill(actor._actor_id, False)
            let_pass(1)
            info = driver.worker.submission.actors.info_of(actor._actor_id)
            assert info is not None and info.restarts == restarts and minray.get(actor.read.remote()) == 1

    driver.run(program)


def test_g44_a_call_is_known_from_a_task_as_long_as_it_goes_on(driver: Core) -> None:
    def program() -> None:
        actor = Clerk.remote()
        call, task = actor.rest.remote(1), rest.remote(1)
        assert (api().is_call(call), api().is_call(task), api().is_call(minray.put(1))) == (True, False, False)
        minray.get([call, task])
        assert not api().is_call(call)

    driver.run(program)


def test_what_an_actor_does_is_told(driver: Core) -> None:
    def program() -> None:
        actor = Clerk.remote()
        resting = actor.rest.remote(1)
        let_pass(0.5)
        assert api().why(actor._actor_id, actor._minray_owner).endswith("Clerk.rest runs")
        minray.get(resting)

    driver.run(program)


# --- between the gcs's answer and a handle


class Registering:
    """Plays a ``UserApi``, and the parts of its port that create actors.

    Its actors are registered, refused for a reason, or not waited for because of an error.
    """

    def __init__(self, refused: str = "", error: BaseException | None = None) -> None:
        self._refused = refused
        self._error = error
        self.port = self.submission = self.actors = self.creator = self.named_actors = self
        self.process = process_record()
        self.posted: list[str] = []

    # --- as the port and its parts

    def drop_ref(self, name: bytes) -> None:
        """No reference of these tests counts."""

    def register(self, info: ActorInfo) -> HeldActor:
        return HeldActor(info, None, self._refused)

    def create_actor(self, *_arguments: Any) -> None:
        self.posted.append("create")

    def abandon(self, actor_id: bytes) -> None:
        self.posted.append("abandon")

    # --- as the API

    def make_task(self, prepared: Any, args: Any, kwargs: Any) -> Any:
        return pending(prepare()), []

    def run_on_loop(self, question: Any) -> Any:
        if self._error is not None:
            raise self._error
        return question()

    def post(self, work: Callable[..., None], *arguments: Any) -> None:
        work(*arguments)

    # --- what a test says

    def make(self) -> Any:
        myself: Any = self
        spec = HandleSpec("A", [], 0, -1, True, False)
        return ActorApi(myself).create_actor(prepare(), (), {}, [], spec, name="n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ActorDiedError(actor_id="00", reason="gone")])
def test_g31_who_does_not_wait_until_it_is_registered_gives_the_actor_up(error: BaseException) -> None:
    thread = Registering(error=error)
    with pytest.raises(type(error)):
        thread.make()
    assert thread.posted == ["abandon"]


def test_a_registration_that_is_refused_says_why() -> None:
    thread = Registering("its job has finished")
    with pytest.raises(ActorDiedError, match="its job has finished"):
        thread.make()
    assert thread.posted == []


def test_g31_a_cancelled_creator_is_not_interrupted_between_the_registration_and_the_handle() -> None:
    """The gcs has an actor then, and nobody else: it would keep its name until the job ends."""
    moments: list[bool] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == actor_api.__file__:
            moments.append(main_thread.is_bad_moment(frame))
        return trace

    thread = Registering()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        thread.make()
    finally:
        sys.settrace(before)
    assert thread.posted == ["create"] and len(moments) > 10 and all(moments)


def test_a_number_that_no_message_can_say_is_refused_before_anything_is_made(driver: Core) -> None:
    def program() -> None:
        with pytest.raises(ValueError, match="max_restarts must be at most"):
            Clerk.options(max_restarts=1 << 63).remote()

    driver.run(program)
    assert not driver.worker.submission.tasks.tasks
