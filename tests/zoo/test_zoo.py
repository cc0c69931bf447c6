"""The zoo: every bug is caught with its recorded seed, with which the true code passes; and mutations are where they say.

`make test-seeds` tries every bug in each way, `make test` a third of them in one way each.
"""

from __future__ import annotations

import pytest

from tests.seeds import sample
from tests.spec.scenario import Scenario
from tests.spec.shrink import is_small
from tests.spec.trial import run
from tests.zoo import mutants
from tests.zoo.bugs import BUGS, Bug
from tests.zoo.measure import PAGE, load, search, written_page
from tests.zoo.scenarios import CAMPAIGN, SCENARIOS
from tests.zoo.transplant import CHECKOUT, Mutation, NotTransplanted, mutate, run_python, transplanted
from tests.zoo.witness import in_copy, told

CAUGHT_BY_CAMPAIGN = [bug for bug in BUGS if load()[bug.name].get(CAMPAIGN, {}).get("seed") is not None]
SOURCE = '''
class Counter:
    def add(self, n: int) -> None:
        """Adds."""
        if n in self.seen:  # a repetition
            return
        self.seen.add(n)
        self.sum += n

    def clear(self) -> None:
        self.sum = 0
'''


@pytest.mark.slow
@pytest.mark.parametrize("bug", sample(BUGS), ids=lambda bug: bug.name)
def test_a_bug_is_caught_with_its_seed_and_only_the_bug(bug: Bug) -> None:
    seed = load()[bug.name]["seed"]
    assert SCENARIOS[bug.scenario](seed).props == ()
    found = search(bug, bug.scenario, seed, 1, bug.prop, timeout_s=60)
    assert found["seed"] == seed, f"{bug.prop} is not broken any more; `make zoo` looks for another seed"


@pytest.mark.slow
@pytest.mark.parametrize("bug", sample(CAUGHT_BY_CAMPAIGN, 3), ids=lambda bug: bug.name)
def test_the_campaign_catches_it_with_its_seed_and_only_the_bug(bug: Bug) -> None:
    seed = load()[bug.name][CAMPAIGN]["seed"]
    assert SCENARIOS[CAMPAIGN](seed).props == ()
    found = search(bug, CAMPAIGN, seed, 1, "", timeout_s=60)
    assert found["seed"] == seed, "the campaign does not see it any more; measure again with ZOO_ARGS='--by campaign'"


@pytest.mark.slow
@pytest.mark.parametrize("bug", sample(BUGS, 6), ids=lambda bug: bug.name)
def test_its_witness_is_small_and_fails_with_the_bug_alone(bug: Bug) -> None:
    scenario = Scenario.from_json(bug.witness.read_text())
    assert is_small(scenario)
    assert run(scenario).ok
    assert in_copy(bug, "replay", str(bug.witness))["problems"]


def test_a_bug_is_told_in_words() -> None:
    lines = told(next(bug for bug in BUGS if bug.name == "own-no-ticket")).splitlines()
    assert [" ".join(line.split()[:3]) for line in lines[1:]] == ["with it S7:", "without it nothing"]


def test_the_page_shows_what_was_measured() -> None:
    page = PAGE.read_text()
    assert written_page(page, load()) == page


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_mutation_of_the_zoo_is_in_its_place(bug: Bug) -> None:
    for mutation in bug.mutations:
        path = CHECKOUT / mutation.path
        assert mutate(path.read_text(), mutation) != path.read_text()


def planted(symbol: str, fragment: str, replacement: str) -> str:
    return mutate(SOURCE, Mutation("m", symbol, fragment, replacement))


def test_a_mutation_finds_statements_and_expressions_whatever_their_layout() -> None:
    assert "if n in self.seen" not in planted("Counter.add", "if n in self.seen:\n    return", "pass")
    assert "if False:  # a repetition" in planted("Counter.add", "(n in self.seen)", "False")
    swapped = planted("Counter.add", "self.seen.add(n)\nself.sum += n", "self.sum += n\nself.seen.add(n)")
    assert swapped.index("self.sum += n") < swapped.index("self.seen.add(n)")


@pytest.mark.parametrize(
    ("symbol", "fragment", "replacement"),
    [
        ("Counter.add", "self.sum = 0", "pass"),
        ("Counter.add", "self.seen", "self.unseen"),
        ("Counter.remove", "pass", "return"),
        ("Counter", "self.sum = 0", "pass"),
        ("Counter.clear", "self.sum = 0", "(self.sum) = 0"),
    ],
    ids=["elsewhere", "twice", "no such function", "a class", "no change"],
)
def test_a_mutation_without_its_one_place_is_an_error(symbol: str, fragment: str, replacement: str) -> None:
    with pytest.raises(NotTransplanted):
        planted(symbol, fragment, replacement)


def test_programs_run_on_the_copy() -> None:
    mutation = Mutation("minray.common.ids", "short", "return", "return")
    with pytest.raises(NotTransplanted), transplanted([mutation]):
        pass
    program = "import minray; from tests.zoo.transplant import assert_transplanted as a; a(); print(minray.__file__)"
    with transplanted() as root:
        done = run_python(root, ["-c", program])
        assert done.stdout.strip() == str(root / "minray" / "__init__.py"), done.stderr


PROTOCOL = """
async def handle(self, request, call):
    if request.lease_id in self.ended:
        return
    if request.sequence <= self.sequence:
        call.reply(OLD)
        return
    self.sequence = request.sequence
    del self.table[request.key]
    await self.commit()
    call.reply(NEW)
    try:
        self.tell()
    except LookupError:
        raise TellError(request) from None
    finally:
        self.lock.release()
"""


def test_every_operator_makes_mutants_that_differ() -> None:
    found = mutants.mutants_of("minray/rpc/handler.py", PROTOCOL)
    assert {mutant.operator for mutant in found} == {operator.__name__ for operator in mutants.OPERATORS}
    assert len({mutant.text for mutant in found}) == len(found)
    for mutant in found:
        compile(mutant.text, mutant.path, "exec")


def test_a_mutant_keeps_the_rest_of_its_file() -> None:
    swapped = next(mutant for mutant in mutants.mutants_of("minray/rpc/a.py", PROTOCOL) if mutant.operator == "swap")
    assert sorted(map(str.strip, swapped.text.splitlines())) == sorted(map(str.strip, PROTOCOL.splitlines()))
    assert swapped.line == PROTOCOL[: PROTOCOL.index("self.sequence = ")].count("\n") + 1
