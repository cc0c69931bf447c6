"""Every witness of ``tests/regressions/`` fails when the mistake that it is a witness of is made again; and planting."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spec.campaign import REGRESSIONS
from tests.spec.scenario import Scenario
from tests.spec.trial import run
from tests.zoo import transplant
from tests.zoo.mistakes import MISTAKES
from tests.zoo.transplant import Mutation, NotTransplanted, planted

WITNESSES = sorted(REGRESSIONS.glob("*.json"))
GARDEN = '''
import functools
from dataclasses import dataclass


def loud(function):
    @functools.wraps(function)
    def shouts():
        return function() + "!"

    return shouts


def say(word="hello"):
    return word + " there"


class Plant:
    def name(self):
        return "plant"


class Tree(Plant):
    def name(self):
        return "tree, a " + super().name()

    @staticmethod
    @loud
    def grow():
        return "it grows"


@dataclass(slots=True)
class Flower(Plant):
    height: int = 3

    @property
    def top(self):
        return self.height + 0

    def leaves(self):
        number = self.height

        def leaf():
            return number + 1

        return leaf()
'''


def test_it_is_known_of_every_witness_what_it_is_a_witness_of() -> None:
    """A new witness needs an entry in ``mistakes.py`` that says what it shows."""
    assert list(MISTAKES) == [path.stem for path in WITNESSES]


@pytest.mark.parametrize("path", WITNESSES, ids=lambda path: path.stem)
def test_a_witness_fails_when_its_mistake_is_made_again(path: Path) -> None:
    """With what it shows broken, and not because the mutation is nonsense."""
    mistake = MISTAKES[path.stem]
    with planted(mistake.mutations):
        verdict = run(Scenario.from_json(path.read_text()))
    assert mistake.prop in verdict.codes, verdict.problems or "nothing is broken"


@pytest.fixture
def garden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of its own."""
    (tmp_path / "garden.py").write_text(GARDEN)
    monkeypatch.setattr(transplant, "CHECKOUT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("garden")
    monkeypatch.delitem(sys.modules, "garden")


def in_garden(symbol: str, fragment: str, replacement: str) -> Mutation:
    return Mutation("garden", symbol, fragment, replacement)


def test_a_planted_function_is_the_same_object_with_another_code(garden: Any) -> None:
    say, name = garden.say, garden.Tree().name
    with planted([in_garden("say", '" there"', '" here"'), in_garden("Tree.name", '"tree, a "', '"bush, a "')]):
        assert (say(), name()) == ("hello here", "bush, a plant")
    assert (say(), name()) == ("hello there", "tree, a plant")


def test_what_is_planted_is_found_behind_decorators(garden: Any) -> None:
    mutations = [
        in_garden("Tree.grow", '"it grows"', '"it withers"'),
        in_garden("Flower.top", "self.height + 0", "self.height + 1"),
    ]
    with planted(mutations):
        assert (garden.Tree.grow(), garden.Flower().top) == ("it withers!", 4)
    assert (garden.Tree.grow(), garden.Flower().top) == ("it grows!", 3)


def test_two_mutations_of_one_function_are_planted_together(garden: Any) -> None:
    with planted([in_garden("Flower.leaves", "self.height", "5"), in_garden("Flower.leaves", "number + 1", "number + 2")]):
        assert garden.Flower().leaves() == 7


def test_nothing_stays_planted_after_an_error(garden: Any) -> None:
    with pytest.raises(KeyError), planted([in_garden("say", '" there"', '" here"')]):
        raise KeyError(garden.say())
    assert garden.say() == "hello there"


@pytest.mark.parametrize(
    ("symbol", "fragment", "replacement"),
    [
        ("say", '"hello"', '"goodbye"'),
        ("say", "return word + ' there'", "yield word"),
        ("Tree.name", "super().name()", "Plant.name(self)"),
        ("Tree.name", "return 'bush'", "return 'tree'"),
    ],
    ids=["its default", "another kind", "without a cell", "nowhere"],
)
def test_what_no_exchange_of_code_can_do_is_an_error(garden: Any, symbol: str, fragment: str, replacement: str) -> None:
    with pytest.raises(NotTransplanted), planted([in_garden(symbol, fragment, replacement)]):
        pass
