"""A task or call runs again for a value that was made of its own and is lost, if its own is gone by then (G67)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.spec.actors import Create
from tests.spec.charges import Attempt, Blows, Charges
from tests.spec.losses import losses_of
from tests.spec.model import Losses, Model
from tests.spec.moves import Move
from tests.spec.programs import Body, Call, Drop, Generate, Operation, Program, Return, Submit
from tests.spec.scenario import World

NODE_OF = {"driver/0": "head", "worker/a": "head", "worker/b": "n1"}
PLACES = {"maker": "worker/a", "other": "worker/a", "taker": "worker/b", "twin": "worker/b", "actor": "worker/a"}
"""Task, call, generator or actor -> its worker."""
MAKER, DROP = Submit("maker", Body()), Drop("drop maker", "maker")
CREATE = Create("actor", max_task_retries=-1)


def losses(inline_limit: int = 1, places: Mapping[str, str] = PLACES) -> Losses:
    """Losses of a run in which the node ``n1`` has died."""
    moves = (Move(1, dies=True),)
    attempts = [Attempt(name, name.encode(), 0, host, "driver/0") for name, host in places.items()]
    told = Charges(attempts, Blows.of({}, NODE_OF, moves), NODE_OF, ("worker/b",))
    return losses_of({}, World(inline_limit=inline_limit, moves=moves), told)


def most_runs(*operations: Operation, **options: Any) -> float:
    """How often ``maker`` may run."""
    model = Model(Program((Body(operations),)), losses(**options))
    return model.most_runs(model.tasks["maker"])


def taker(name: str = "taker", *args: str, **options: Any) -> Submit:
    return Submit(name, Body(), args or ("maker",), **options)


def test_g16_a_maker_runs_again_for_a_lost_value_that_took_its_own() -> None:
    assert most_runs(MAKER, taker(), DROP) == 2
    assert most_runs(MAKER, Submit("taker", Body(), nested=("maker",)), DROP) == 2
    assert most_runs(MAKER, taker(), taker("twin"), DROP) == 3
    assert most_runs(MAKER, Generate("taker", 2, refs=("maker",)), DROP) == 4


def test_g16_a_maker_runs_again_for_a_lost_value_far_down_the_chain() -> None:
    other = Submit("other", Body(), ("maker",))
    assert most_runs(MAKER, other, taker("taker", "other"), DROP, Drop("drop other", "other")) == 2
    assert most_runs(MAKER, other, taker("taker", "other"), DROP) == 1
    assert most_runs(MAKER, other, DROP) == 1


def test_g16_a_call_may_run_again_for_a_lost_value_that_took_its_own() -> None:
    call = Call("maker", "actor", Body())
    assert most_runs(CREATE, call, taker(), DROP) > 1
    assert most_runs(CREATE, call, taker()) == 1
    assert most_runs(MAKER, CREATE, Call("taker", "actor", Body(), ("maker",)), DROP) == 2


@pytest.mark.parametrize(
    "operations",
    [
        (MAKER, taker()),
        (MAKER, taker(), Submit("other", Body((DROP,)), nested=("maker",))),
        (MAKER, taker(max_retries=0), DROP),
        (MAKER, CREATE, Call("taker", "actor", Body(), ("maker",), max_task_retries=0), DROP),
        (MAKER, Submit("other", Body(), ("maker",)), DROP),
        (Submit("maker", Body(), max_retries=0), taker(), DROP),
    ],
    ids=["held", "dropped elsewhere", "never made again", "call never made again", "not lost", "kept for want of retries"],
)
def test_g16_a_maker_runs_once_if_nothing_needs_its_value_again(operations: tuple[Operation, ...]) -> None:
    assert most_runs(*operations) == 1


def test_g16_small_values_are_never_made_again() -> None:
    assert most_runs(MAKER, taker(), DROP, inline_limit=0) == 1


def test_g16_what_a_task_makes_or_an_actor_keeps_may_be_let_go_without_a_word() -> None:
    assert most_runs(Submit("parent", Body((MAKER, taker()), Return(("taker",))))) == 2
    assert most_runs(MAKER, taker(), Create("actor", nested=("taker",))) == 2


def test_g17_retries_that_went_into_lost_values_of_others_are_used_up() -> None:
    """Retries of a call whose actor crashes, and of a generator whose items are lost."""
    call = Call("maker", "actor", Body(), max_task_retries=1)
    operations = (Create("actor", max_restarts=-1), call, taker(), DROP)
    lost = losses(places=dict.fromkeys(PLACES, "worker/b"))

    def errors_of(name: str, *operations: Operation) -> frozenset[str]:
        return Model(Program((Body(operations),)), lost).objects[name].errors

    assert "ActorUnavailableError" in errors_of("maker", *operations)
    assert "ActorUnavailableError" not in errors_of("maker", *operations[:-1])
    items = Generate("maker", 1, max_retries=2)
    reader = Submit("taker", Body(), ("maker.1",))
    assert errors_of("maker.1", items, reader) == set()
    assert "ObjectReconstructionFailedError" in errors_of("maker.1", items, reader, Drop("drop item", "maker.1"))
