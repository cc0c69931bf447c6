"""Rare words in programs: wishes of tasks, actors and calls, glances, and stories.

They come after all other variations, each from a stream of chance of its own. So a seed that draws none of them has the
program that it had without them, and a seed that draws some has the same program around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from tests.spec.awkward import PLACES, Awkward
from tests.spec.bouquets import Bouquet
from tests.spec.brief import ENDS, STATES, Brief
from tests.spec.bundles import Benches, Booths, Bundles, Crowd
from tests.spec.burdens import Burdens
from tests.spec.census import CLERKS, Census
from tests.spec.closures import Closure
from tests.spec.contests import Contest
from tests.spec.customs import CUSTOMS, Customs
from tests.spec.environments import IMPOSSIBLE, Environments
from tests.spec.fickle import Fickle
from tests.spec.founders import Endowment, Founding
from tests.spec.generators import ASKS, READS, WAITS, Stream
from tests.spec.grumblers import PLACES as DEATHBEDS
from tests.spec.grumblers import Grumbling
from tests.spec.hasty import THINGS, Hasty
from tests.spec.held import ACTOR as KEEPER
from tests.spec.held import FATES, KINDS, LARGE, LATE_LARGE, OWNERS, QUICK, USERS, WAYS, Held
from tests.spec.held import KILL as KILLED
from tests.spec.homecomers import Homecoming
from tests.spec.homeless import Homeless
from tests.spec.inquiries import Inquiry
from tests.spec.job_environments import Hooked, Spoiled
from tests.spec.lanes import Lanes
from tests.spec.lines import Line
from tests.spec.luggage import Luggage
from tests.spec.overtaken import MANNERS as OVERTAKINGS
from tests.spec.overtaken import Overtaken
from tests.spec.poured import MANNERS as READINGS
from tests.spec.poured import READERS, SIZES, SOURCES, Poured
from tests.spec.programs import Body, Exit, Leave, Operation, Program
from tests.spec.remade import ARGUMENTS, MAKERS, Remade
from tests.spec.remade import READERS as INSPECTORS
from tests.spec.residents import NEEDS, Seating
from tests.spec.rushes import CALLERS, RESULTS, Rush
from tests.spec.rushes import PLACES as TRACKS
from tests.spec.smuggled import MANNERS, Smuggled
from tests.spec.spaces import Spaces
from tests.spec.stopped import FORCE, KILL, STOPS, TASK, WORKS, Stopped
from tests.spec.stopped import PLACES as WORKPLACES
from tests.spec.stories import Story
from tests.spec.tools import TOOLS, Tool
from tests.spec.towers import Tower
from tests.spec.variations import Tree, rewritten
from tests.spec.wishes import RICHES

if TYPE_CHECKING:
    from tests.spec.scenario import Node

PAUSES_S = (0.0, 0.02, 0.5)
"""Virtual seconds that calls of stories take."""
SHORT = (0, 1, 3, 5)
"""Numbers of items of most streams."""
LONG = (100, 130)
"""Numbers of items of the others, which are more than any window of a stream."""


def with_vocabulary(program: Program, seed: int, has_gpus: bool) -> Program:
    """Write rare words into a program; ``has_gpus``: the head has a GPU."""
    program = with_wishes(program, Random(f"wishes of {seed}"))
    program = with_glances(program, Random(f"glances of {seed}"))
    return with_stories(program, Random(f"stories of {seed}"), has_gpus)


def with_riches(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Give nodes the resources that rare words need."""
    return tuple(msgspec.structs.replace(node, resources=node.resources | RICHES) for node in nodes)


def needs_gpus(program: Program) -> bool:
    return any(isinstance(operation, Story) and "GPU" in operation.needs() for operation in program.walk())


def with_wishes(program: Program, random: Random) -> Program:
    """In a fifth of the programs, let many tasks, actors and calls have options that are rare."""
    if random.random() >= 0.2:
        return program
    residents: Counter[str] = Counter()
    """Placement group -> the number of actors in it that are bound to bundles so far."""
    are_bound = random.random() < 0.7

    def change(tree: Tree) -> Tree:
        if tree.get("kind") == "Create" and tree.get("group"):
            residents[tree["group"]] += 1
            return _house(residents[tree["group"]] - 1, random) if are_bound else {}
        writer = WRITERS.get(tree.get("kind", ""))
        return writer(tree, random) if writer is not None and random.random() < 0.6 else {}

    return rewritten(program, change)


def _order(task: Tree, random: Random) -> Tree:
    body = task.get("body", {}).get("operations", ())
    is_bound = task.get("node", -1) >= 0 or task.get("zone") or task.get("gpus")
    wishes = _wishes(random) | {
        "cpus": random.choice((0.0, 0.25, 0.5)),
        "most_calls": random.choice((0, 0, 3)),
        "captures": not body and random.random() < 0.5,
        "in_bundle": random.random() < 0.5,
        "in_old_words": random.random() < 0.5,
    }
    wishes["falls_back"] = wishes["falls_back"] and not is_bound
    return {"kind": "Order", "wishes": wishes}


def _settle(actor: Tree, random: Random) -> Tree:
    """All actors with one name have the same options, so those with a name have no wishes."""
    if actor.get("called"):
        return {}
    wishes = _wishes(random) | {"has_seat": random.random() < 0.5, "mark": random.choice(("", "a"))}
    wishes["falls_back"] = wishes["falls_back"] and actor.get("away", -1) < 0
    return {"kind": "Settle", "wishes": wishes, "num_cpus": 0}


def _house(bundle: int, random: Random) -> Tree:
    """Bind an actor of a placement group to a bundle. It captures child tasks, of which it has none."""
    wishes = {"bundle": bundle, "in_old_words": True, "captures": random.random() < 0.7}
    return {"kind": "Settle", "wishes": wishes}


def _ask(_call: Tree, random: Random) -> Tree:
    return {"kind": "Ask", "wishes": {"returns": random.choice((1, 2, 3)), "is_unrecorded": random.random() < 0.5}}


def _wishes(random: Random) -> Tree:
    """Wishes that tasks and actors share."""
    return {
        "memory": random.choice((0, 0, 1000)),
        "has_kind": random.random() < 0.3,
        "is_unrecorded": random.random() < 0.4,
        "falls_back": random.random() < 0.4,
    }


WRITERS: dict[str, Callable[[Tree, Random], Tree]] = {"Submit": _order, "Create": _settle, "Call": _ask}


def with_glances(program: Program, random: Random) -> Program:
    """In a fifth of the programs, let most waits fetch nothing."""

    def change(tree: Tree) -> Tree:
        return {"kind": "Glance"} if tree.get("kind") == "Wait" and random.random() < 0.7 else {}

    return rewritten(program, change) if random.random() < 0.2 else program


def with_stories(program: Program, random: Random, has_gpus: bool) -> Program:
    """In a third of the programs, let drivers tell a story or two."""
    if random.random() >= 0.33:
        return program
    kind, drivers = random.choice(STORIES), []
    for number, driver in enumerate(program.drivers):
        operations: list[Operation] = list(driver.operations)
        for count in range(random.choice((1, 1, 2))):
            story = (kind if random.random() < 0.7 else random.choice(STORIES))(f"story{number}.{count}", random, has_gpus)
            operations.insert(random.randint(0, len(operations)), story)
        drivers.append(Body(tuple(operations), driver.end))
    return Program(tuple(drivers))


def with_later_stories(program: Program, random: Random) -> Program:
    """In a tenth of the programs, let a driver tell one of the later stories; for the simulation only."""
    if random.random() >= 0.1:
        return program
    return _with_story(program, random, lambda number: random.choice(LATER_STORIES)(f"later{number}", random))


def with_new_stories(program: Program, random: Random) -> Program:
    """In an eighth of the programs, let a driver tell one of the newest stories; for the simulation only."""
    if random.random() >= 0.125:
        return program
    return _with_story(program, random, lambda number: random.choice(NEW_STORIES)(f"new{number}", random))


def with_lines(program: Program, random: Random) -> Program:
    """In an eighth of the programs, let a driver use CPUs of bundles, or a line of short tasks; for the simulation only."""
    if random.random() >= 0.125:
        return program
    return _with_story(program, random, lambda number: random.choice((_benches, _line))(f"line{number}", random))


def with_odd_stories(program: Program, random: Random) -> Program:
    """In a fifth of the programs, let a driver tell one of the odd stories; for the simulation only."""
    if random.random() >= 0.2:
        return program
    return _with_story(program, random, lambda number: random.choice(ODD_STORIES)(f"odd{number}", random))


def with_crossings(program: Program, random: Random, keeps_drivers: bool = True) -> Program:
    """In most programs, let drivers tell some stories in which rare things meet; for the simulation only.

    A driver that may be killed (not ``keeps_drivers``) could leave a detached actor behind, and makes none.
    """
    if random.random() >= 0.75:
        return program

    def write(count: int) -> Story:
        story = random.choice(CROSSINGS)(f"cross{count}", random)
        is_too_bold = isinstance(story, Brief) and not keeps_drivers
        return msgspec.structs.replace(story, is_detached=False) if is_too_bold else story

    return _with_some(program, random, random.randint(2, 4), write)


def with_remakes(program: Program, random: Random) -> Program:
    """Let drivers read values whose nodes may have gone; for worlds that lose nodes, in the simulation only."""
    return _with_some(program, random, random.randint(0, 3), lambda count: _remade(f"remade{count}", random))


def with_last_moments(program: Program, random: Random) -> Program:
    """Let most drivers that leave begin things at the last moment, and in a seventh of the programs another one that does
    nothing else; for the simulation only."""
    drivers = list(program.drivers)
    for number in sorted(program.leavers()):
        if random.random() < 0.8:
            driver = drivers[number]
            drivers[number] = Body((*driver.operations, _hasty(f"last{number}", random)), driver.end)
    if random.random() < 0.15:
        drivers.append(Body((_hasty(f"last{len(drivers)}", random),), random.choice((Exit(), Leave()))))
    return Program(tuple(drivers))


def with_setup_hooks(program: Program, random: Random) -> Program:
    """In a twentieth of the programs, let a driver have a setup hook, and a story about it; for the simulation only."""
    if random.random() >= 0.05:
        return program
    max_retries, by_name = random.choice((0, 3)), random.random() < 0.5
    return _with_story(program, random, lambda number: Hooked(f"hooked{number}", max_retries, by_name))


def with_spoiled_jobs(program: Program, random: Random) -> Program:
    """In a twentieth of the programs, add a driver whose setup hook fails; for the simulation only."""
    if random.random() >= 0.05:
        return program
    story = Spoiled(f"spoiled{len(program.drivers)}", random.random() < 0.4, random.choice((0, 3)), random.randint(1, 3))
    return Program((*program.drivers, Body((story,))))


def with_homecomings(program: Program, random: Random) -> Program:
    """In a tenth of the programs, add a driver that leaves and joins again; for the simulation only."""
    if random.random() >= 0.1:
        return program
    pause_s, rounds = random.choice((0.0, 0.0, 0.5, 20.0)), random.randint(2, 3)
    story = Homecoming(f"home{len(program.drivers)}", rounds, pause_s, random.choice((0, 3)), random.random() < 0.5)
    return Program((*program.drivers, Body((story,))))


def with_endowments(program: Program, random: Random) -> Program:
    """In a twentieth of the programs, let a driver have a detached actor make a placement group; for the simulation only."""
    if random.random() >= 0.05:
        return program
    return _with_story(
        program, random, lambda number: Endowment(f"endowed{number}", random.randint(1, 2), random.random() < 0.4)
    )


def _with_some(program: Program, random: Random, count: int, story: Callable[[int], Story]) -> Program:
    """Let drivers tell ``count`` stories, each at any place."""
    for told in map(story, range(count)):
        program = _with_story(program, random, lambda _, told=told: told)
    return program


def _with_story(program: Program, random: Random, story: Callable[[int], Operation]) -> Program:
    """Let one driver tell a story, which is made from the driver's number, at any place."""
    number = random.randrange(len(program.drivers))
    driver = program.drivers[number]
    operations: list[Operation] = list(driver.operations)
    operations.insert(random.randint(0, len(operations)), story(number))
    told = Body(tuple(operations), driver.end)
    return Program((*program.drivers[:number], told, *program.drivers[number + 1 :]))


def _seating(name: str, random: Random, has_gpus: bool) -> Story:
    need = random.choice([need for need in NEEDS if has_gpus or "GPU" not in need])
    restarts, kills = random.choice((0, 1, -1)), random.random() < 0.4
    return Seating(name, random.randint(3, 5), need, restarts, kills, random.choice(PAUSES_S))


def _stream(name: str, random: Random, _has_gpus: bool) -> Story:
    yields = random.choice(LONG if random.random() < 0.2 else SHORT)
    manner, retries = random.choice((WAITS, ASKS, READS)), random.choice((0, 3, -1))
    pause_s = 0.0 if yields in LONG else random.choice(PAUSES_S)
    return Stream(name, yields, manner, random.choice((-1, 1, 10)), pause_s, retries)


def _bundles(name: str, random: Random, _has_gpus: bool) -> Story:
    strategy = random.choice(("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD", "STRICT_SPREAD"))
    captures, pause_s, is_labelled = random.random() < 0.5, random.choice((1.0, 1.0, 20.0)), random.random() < 0.3
    return Bundles(name, random.randint(1, 3), strategy, captures, pause_s, is_labelled)


def _spaces(name: str, random: Random, _has_gpus: bool) -> Story:
    return Spaces(name, random.choice((0, -1)), random.random() < 0.5, random.randint(1, 3))


def _closure(name: str, random: Random, _has_gpus: bool) -> Story:
    return Closure(name, random.choice((0, 3)))


def _lanes(name: str, random: Random, _has_gpus: bool) -> Story:
    seconds, cancels = random.choice((0.02, 0.5, 20.0)), random.randint(0, 3)
    return Lanes(name, random.random() < 0.5, random.randint(4, 7), seconds, cancels, random.choice((0, -1)))


def _environments(name: str, random: Random, _has_gpus: bool) -> Story:
    return Environments(name, random.randrange(len(IMPOSSIBLE)), random.choice((0, 3)))


def _tool(name: str, random: Random, _has_gpus: bool) -> Story:
    return Tool(name, random.choice(list(TOOLS)))


def _awkward(name: str, random: Random, _has_gpus: bool) -> Story:
    return Awkward(name, random.choice(list(PLACES)))


def _founding(name: str, random: Random) -> Story:
    return Founding(name, random.random() < 0.5, random.randint(1, 2))


def _grumbling(name: str, random: Random) -> Story:
    return Grumbling(name, random.choice(list(DEATHBEDS)))


def _contest(name: str, random: Random) -> Story:
    strategy, seconds = random.choice(("PACK", "SPREAD", "STRICT_PACK")), random.choice((0.05, 0.3, 1.0))
    rounds, rivals, fills, pause_s = random.randint(2, 4), random.randint(1, 4), random.random() < 0.5, (0.0, 0.003, 0.03)
    return Contest(name, rounds, rivals, seconds, 2, strategy, fills, random.choice(pause_s))


def _burdens(name: str, random: Random) -> Story:
    return Burdens(name, random.randint(3, 5), random.choice((0, 3)))


def _luggage(name: str, random: Random) -> Story:
    return Luggage(name, random.choice((0, 3)))


def _benches(name: str, random: Random) -> Story:
    strategy = random.choice(("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"))
    bundles, captures, impatience_s = random.randint(1, 2), random.random() < 0.7, random.choice((0.0, 0.01, 0.3))
    return Benches(name, bundles, strategy, captures, impatience_s=impatience_s)


def _line(name: str, random: Random) -> Story:
    tasks, retries = random.randint(4, 14), random.choice((0, 3, -1))
    return Line(name, tasks, random.randrange(tasks), random.choice((0.05, 0.5, 5.0)), random.random() < 0.4, retries)


def _homeless(name: str, random: Random) -> Story:
    return Homeless(name, random.choice((0.0, 0.05, 2.0)), random.random() < 0.5, random.random() < 0.3)


def _smuggled(name: str, random: Random) -> Story:
    return Smuggled(name, random.choice(MANNERS), random.choice((10, 300)), random.choice((0.0, 0.0, 0.1)))


def _tower(name: str, random: Random) -> Story:
    return Tower(name, random.randint(2, 5), random.randint(1, 3), random.choice((0.0, 0.02, 0.3)), random.choice((3, -1)))


def _inquiry(name: str, random: Random) -> Story:
    return Inquiry(name, random.randint(1, 3), random.choice((0.0, 0.05, 1.0)), random.randint(1, 3))


def _booths(name: str, random: Random) -> Story:
    return Booths(name, random.randint(1, 2), random.choice(("PACK", "SPREAD", "STRICT_PACK")))


def _customs(name: str, random: Random) -> Story:
    return Customs(name, random.choice(list(CUSTOMS)), random.choice((0.0, 0.001, 0.05, 0.5)))


def _bouquet(name: str, random: Random) -> Story:
    return Bouquet(name, random.choice((20, 60)), random.randint(1, 3), random.choice((0, 3)))


def _overtaken(name: str, random: Random) -> Story:
    return Overtaken(name, random.randint(3, 9), random.choice(OVERTAKINGS), random.choice((0, 3)))


def _fickle(name: str, random: Random) -> Story:
    items = random.randint(2, 6)
    return Fickle(name, items, random.randrange(items), random.choice((0.0, 2.0, 5.0)), random.random() < 0.3)


def _held(name: str, random: Random) -> Story:
    """Only an actor is killed as an owner. Before the fate comes at times a use that brings no value here."""
    owner, kind, user = random.choice(OWNERS), random.choice((*KINDS, LARGE, LATE_LARGE)), random.choice(USERS)
    fate = KILLED if owner == KEEPER and random.random() < 0.5 else random.choice(FATES[:-1])
    uses = tuple(random.choice(list(WAYS)) for _ in range(random.randint(1, 3)))
    before = 0 if user == TASK else random.randint(0, len(uses) - 1)
    if before == 0 and user != TASK and random.random() < 0.5:
        uses, before = (random.choice(QUICK), *uses), 1
    is_far = random.random() < 0.7
    return Held(name, owner, kind, fate, user, uses, before, is_far, random.choice((0.0, 0.0, 0.02, 1.0)))


def _stopped(name: str, random: Random) -> Story:
    """Only a task is stopped by force, and only an actor is killed."""
    place = random.choice(WORKPLACES)
    stops = random.choice([stops for stops in STOPS if (KILL if place == TASK else FORCE) not in stops])
    return Stopped(name, place, random.choice(WORKS), stops, random.choice((0.0, 0.01, 0.2, 1.0)), random.choice((0, 3)))


def _poured(name: str, random: Random) -> Story:
    source, reader, manner = random.choice(SOURCES), random.choice(READERS), random.choice(list(READINGS))
    most_unread, pause_s = random.choice((-1, 1, 2)), random.choice((0.0, 0.0, 0.02, 0.2))
    size, raises, retries = random.choice(SIZES), random.random() < 0.3, random.choice((0, 3))
    return Poured(name, source, reader, manner, random.randint(2, 5), size, most_unread, pause_s, raises, retries)


def _crowd(name: str, random: Random) -> Story:
    strategy = random.choice(("PACK", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"))
    captures, is_labelled = random.random() < 0.5, random.random() < 0.4
    return Crowd(name, random.randint(1, 2), strategy, captures=captures, is_labelled=is_labelled)


def _rush(name: str, random: Random) -> Story:
    count, is_long = random.randint(4, 12), random.random() < 0.4
    cancelled = tuple(number for number in range(count) if random.random() < 0.3) if random.random() < 0.7 else ()
    return Rush(
        name, random.choice(TRACKS), random.choice(RESULTS), random.choice(CALLERS), count, random.randrange(count),
        random.choice((0.05, 0.5) if is_long else (0.05, 0.5, 5.0)), cancelled, random.choice((0.0, 0.01, 0.05, 0.3)),
        random.choice((0, 3)), is_long, random.random() < 0.4,
    )  # fmt: skip


def _brief(name: str, random: Random) -> Story:
    """A detached actor is not dropped."""
    is_detached = random.random() < 0.3
    ends = tuple(random.choice(ENDS) for _ in range(random.randint(1, 3)))
    pause_s, is_called = random.choice((0.0, 0.0, 0.001, 0.01, 0.2)), random.random() < 0.5
    return Brief(name, random.choice(STATES), ends, random.random() < 0.7, is_detached, is_called, pause_s)


def _census(name: str, random: Random) -> Story:
    return Census(name, random.choice(CLERKS), *(random.random() < 0.5 for _ in range(4)))


def _remade(name: str, random: Random) -> Story:
    arguments = tuple(random.choice(ARGUMENTS) for _ in range(random.randint(0, 3)))
    pause_s = random.choice((0.1, 1.0, 5.0, 15.0))
    maker, reader = random.choice(MAKERS), random.choice(INSPECTORS)
    return Remade(name, maker, arguments, reader, random.random() < 0.3, random.random() < 0.3, pause_s)


def _hasty(name: str, random: Random) -> Story:
    things = tuple(random.choice(list(THINGS)) for _ in range(random.randint(1, 4)))
    return Hasty(name, things, random.choice((0.0, 0.0, 0.001, 0.02)))


CROSSINGS: tuple[Callable[[str, Random], Story], ...] = (
    _held, _held, _held, _stopped, _stopped, _stopped, _poured, _poured, _crowd, _rush, _rush, _brief, _census,
)  # fmt: skip
ODD_STORIES: tuple[Callable[[str, Random], Story], ...] = (
    _homeless, _homeless, _smuggled, _tower, _inquiry, _booths, _bouquet, _overtaken, _fickle,
    _customs, _customs, _customs,
)  # fmt: skip
NEW_STORIES: tuple[Callable[[str, Random], Story], ...] = (_contest, _contest, _burdens, _luggage)
LATER_STORIES: tuple[Callable[[str, Random], Story], ...] = (_founding, _founding, _grumbling)
STORIES: tuple[Callable[[str, Random, bool], Story], ...] = (
    _seating, _seating, _stream, _stream, _bundles, _bundles, _spaces, _spaces, _lanes, _lanes, _closure, _environments,
    _tool, _tool, _awkward,
)  # fmt: skip
"""Writers of stories, some of which are told more often."""
