"""Tours of the user API: Hypothesis writes a driver's program, rule by rule, and a world.

Hypothesis also shrinks a failure. The runs are judged like a campaign's.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from minray.core_worker.submission.lease_client import LeaseClient
from tests.seeds import WANTS_ALL
from tests.spec.actors import Create, Kill
from tests.spec.programs import (
    Body,
    Call,
    Cancel,
    Drop,
    Exit,
    Generate,
    Get,
    Operation,
    Program,
    Put,
    Raise,
    Return,
    Sleep,
    Submit,
    Wait,
    Why,
)
from tests.spec.scenario import Scenario, World
from tests.spec.strategies import worlds
from tests.spec.trial import run

TOURS = settings(
    max_examples=25 if WANTS_ALL else 8, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
SECONDS = st.sampled_from((0.0, 0.02, 0.5))
ENDS = st.sampled_from((Return(), Return(), Raise("ValueError"), Exit(1)))


class Tour(RuleBasedStateMachine):
    """Writes the program of one driver, an operation for each rule, and runs it at the end."""

    objects = Bundle("objects")
    """Names of objects whose references the driver holds."""
    actors = Bundle("actors")
    """Names of actors whose handles the driver holds."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.seed = 0
        self.operations: list[Operation] = []

    def _name(self, kind: str) -> str:
        return f"{kind}{len(self.operations)}"

    @initialize(world=worlds(), seed=st.integers(0, 2**32 - 1))
    def begin(self, world: World, seed: int) -> None:
        self.world, self.seed = world, seed

    @rule(target=objects, inside=st.lists(objects, max_size=2, unique=True))
    def put(self, inside: list[str]) -> str:
        self.operations.append(Put(self._name("put"), tuple(inside)))
        return self.operations[-1].name

    @rule(
        target=objects,
        args=st.lists(objects, max_size=2, unique=True),
        seconds=SECONDS,
        end=ENDS,
        max_retries=st.sampled_from((0, 1, 3)),
    )
    def submit(self, args: list[str], seconds: float, end: Any, max_retries: int) -> str:
        name = self._name("task")
        body = Body((Sleep(f"{name} sleeps", seconds),), end)
        self.operations.append(Submit(name, body, tuple(args), max_retries=max_retries))
        return name

    @rule(target=objects, nested=st.lists(objects, min_size=1, max_size=3, unique=True), returns=st.booleans())
    def submit_reader(self, nested: list[str], returns: bool) -> str:
        """Submit a task that gets the given references, and perhaps returns them."""
        name = self._name("task")
        body = Body((Get(f"{name} gets", tuple(nested)),), Return(tuple(nested) if returns else ()))
        self.operations.append(Submit(name, body, nested=tuple(nested)))
        return name

    @rule(target=actors, max_restarts=st.sampled_from((0, 1, -1)), max_task_retries=st.sampled_from((0, -1)))
    def create(self, max_restarts: int, max_task_retries: int) -> str:
        name = self._name("actor")
        self.operations.append(Create(name, max_restarts=max_restarts, max_task_retries=max_task_retries, num_cpus=0))
        return name

    @rule(target=objects, actor=actors, nested=st.lists(objects, max_size=2, unique=True), seconds=SECONDS)
    def call(self, actor: str, nested: list[str], seconds: float) -> str:
        name = self._name("call")
        body = Body((Sleep(f"{name} sleeps", seconds),), Return(tuple(nested)))
        self.operations.append(Call(name, actor, body, nested=tuple(nested)))
        return name

    @rule(target=objects, yields=st.integers(0, 3), read=st.integers(0, 4), seconds=SECONDS)
    def generate(self, yields: int, read: int, seconds: float) -> Any:
        generator = Generate(self._name("generator"), yields, read, pause_s=seconds)
        self.operations.append(generator)
        return multiple(*generator.item_names())

    @rule(refs=st.lists(objects, min_size=1, max_size=3, unique=True), timeout=st.sampled_from((None, 0.0, 0.1)))
    def get(self, refs: list[str], timeout: float | None) -> None:
        self.operations.append(Get(self._name("get"), tuple(refs), timeout))

    @rule(refs=st.lists(objects, min_size=1, max_size=4, unique=True), timeout=st.sampled_from((None, 0.1)), data=st.data())
    def wait(self, refs: list[str], timeout: float | None, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(refs)))
        self.operations.append(Wait(self._name("wait"), tuple(refs), count, timeout))

    @rule(ref=objects)
    def why(self, ref: str) -> None:
        self.operations.append(Why(self._name("why"), ref))

    @rule(ref=objects, recursive=st.booleans())
    def cancel(self, ref: str, recursive: bool) -> None:
        if ref.startswith(("task", "call")):
            self.operations.append(Cancel(self._name("cancel"), ref, recursive=recursive))

    @rule(actor=actors, no_restart=st.booleans())
    def kill(self, actor: str, no_restart: bool) -> None:
        self.operations.append(Kill(self._name("kill"), actor, no_restart))

    @rule(ref=consumes(objects))
    def drop(self, ref: str) -> None:
        self.operations.append(Drop(self._name("drop"), ref))

    @rule(seconds=SECONDS)
    def sleep(self, seconds: float) -> None:
        self.operations.append(Sleep(self._name("sleep"), seconds))

    def teardown(self) -> None:
        scenario = Scenario(Program((Body(tuple(self.operations)),)), self.world, self.seed)
        assert scenario.is_feasible()
        verdict = run(scenario)
        assert verdict.ok, "\n".join([*verdict.problems, verdict.story, scenario.to_json()])


def test_a_tour_of_the_user_api_finds_nothing() -> None:
    run_state_machine_as_test(Tour, settings=TOURS)


def test_a_tour_sees_a_lease_that_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseClient, "return_lease", lambda *_: None)
    with pytest.raises(AssertionError, match=r"L2: raylet/\w+: \d+ leases"):
        run_state_machine_as_test(Tour, settings=settings(TOURS, phases=[Phase.generate]))
