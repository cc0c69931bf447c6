"""A run in a browser is the one of this Python: twenty runs, compared by the hashes of their traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minray.simulation.browser.answers import PageQuestion, explained
from minray.simulation.script import Aim, Performance, Script, Stage
from minray.simulation.trace import SEND
from tests.dashboard.browser.visitor import Visitor
from tests.spec.strategies import scenario_of
from tests.spec.test_filled import PADDED
from tests.spec.trial import run
from tests.zoo.bugs import BUGS, Bug
from tests.zoo.in_a_page import show

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = {path.stem: path.read_text() for path in sorted(Path("docs/playground/programs").glob("*.py"))}
QUIET = ("delay", "stall", "preempt", "duplicate", "break")
LOUD = ("crash", "long_stall", "reset")
RUNS = [
    *(Script(source, seed=7) for source in PROGRAMS.values()),
    *(Script(source, seed, nodes=2 + seed % 3, faults=(*QUIET, *LOUD)) for seed, source in enumerate(PROGRAMS.values())),
    Script(PROGRAMS["05_spillback"], seed=-3, nodes=8, faults=("node_loss", "cut", "long_delay")),
    Script("while True:\n    import time\n    time.sleep(1)\n", seed=1, nodes=1),
]
RAISES = "import minray\n\n@minray.remote\ndef fail():\n    raise ValueError('no')\n\n"
ASYNC_ACTOR = """
import asyncio
import minray

@minray.remote
class Counter:
    async def count(self, number):
        await asyncio.sleep(0.1)
        return 1 / number

counter = Counter.remote()
print(minray.get([counter.count.remote(number) for number in (1, 2)]))
minray.get(counter.count.remote(0))
"""
ASYNC_DRIVER = """
import asyncio
import minray

@minray.remote
def double(number):
    return 2 * number

async def numbers():
    for number in range(3):
        yield await double.remote(number)

async def main():
    print([number async for number in numbers()])

asyncio.run(main())
asyncio.run(main())
"""
ENDINGS = [
    RAISES + "minray.get(fail.remote())\n",
    RAISES + "try:\n    [minray.get(ref) for ref in [fail.remote()]]\nexcept ValueError as error:\n    print(error)\n",
    "import minray\nrefs = [minray.put(number) for number in range(3)]\n[minray.get(ref) / 0 for ref in refs]\n",
    "import sys\nsys.exit(3)\n",
    ASYNC_ACTOR,
    ASYNC_DRIVER,
]
SWITCHING = 10
"""The seed of a scenario in which threads give way between any two lines of minray (``minray.simulation.switches``)."""
BARE = "site.json"
"""A page of the site without a script of its own, so that only the test's worker is loaded."""
ASK = """
async ([what, question]) => {
  const { Cluster } = await import("./cluster.js");
  window.states ??= [];
  window.asked ??= new Cluster((text) => window.states.push(text));
  const told = () => `no answer in four minutes; the worker: ${window.states.join("; ")}`;
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error(told())), 240_000));
  return await Promise.race([window.asked.ask(what, question), late]);
}
"""
COUNT = """
async ([question, runs]) => {
  const { loadPyodide } = await import("./pyodide/pyodide.mjs");
  const python = await loadPyodide({ indexURL: new URL("pyodide/", location.href).href });
  const site = await (await fetch("site.json")).json();
  for (const wheel of site.wheels) python.unpackArchive(await (await fetch(wheel)).arrayBuffer(), "wheel");
  const session = python.runPython("from minray.simulation.browser.session import Session; Session(lambda _: None)");
  const counts = [];
  for (let run = 0; run < runs; run++) {
    await session.perform.callPromising(JSON.stringify(question));
    const count = "import gc, threading; gc.collect(); [len(gc.get_objects()), len(threading._active)]";
    counts.push([...python.runPython(count).toJs(), python._module.HEAPU8.length]);
  }
  return counts;
}
"""


@pytest.fixture(scope="module")
def visitor(visit: Callable[..., Visitor]) -> Visitor:
    return visit(BARE)


def asked(visitor: Visitor, question: PageQuestion, what: str = "perform") -> Any:
    """Ask a worker in the browser, past the page."""
    return visitor.page.evaluate(ASK, [what, msgspec.to_builtins(question)])


def here(function: Callable[[], Any]) -> Any:
    """Call a function in a thread of its own: in this one an event loop of playwright runs."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def test_twenty_runs_are_those_of_this_python(visitor: Visitor) -> None:
    assert len(RUNS) == 20
    differ = []
    for script in RUNS:
        done, there = here(Stage(script).perform), asked(visitor, PageQuestion(script))
        if (there["digest"], there["outcome"]) != (done.digest, done.outcome):
            differ.append(f"{script}: {done.outcome} / {there['outcome']} {there['details']}")
    assert differ == []


def test_errors_and_event_loops_are_those_of_this_python(visitor: Visitor) -> None:
    differ = []
    for source in ENDINGS:
        script = Script(source, seed=7)
        done, there = here(Stage(script).perform), asked(visitor, PageQuestion(script))
        if (there["digest"], there["outcome"]) != (done.digest, done.outcome):
            differ.append(f"{source}: {done.outcome} / {there['outcome']} {there['details']}")
    assert differ == []


def test_an_aimed_fault_strikes_the_same_place(visitor: Visitor) -> None:
    script = Script(PROGRAMS["05_spillback"], seed=7)
    event = pushed(here(Stage(script).perform))
    for aim in (Aim("crash", 1, event, "raylet/n1"), Aim("reset", 1, event)):
        done, there = here(Stage(script, aim).perform), asked(visitor, PageQuestion(script, aim))
        assert there["digest"] == done.digest
        assert [tuple(key) for key, _ in there["answers"]] == list(done.cluster.oracle.answers) != []


def test_an_explanation_says_the_same(visitor: Visitor) -> None:
    script = Script(PROGRAMS["05_spillback"], seed=7)
    question = PageQuestion(script, event=pushed(here(Stage(script).perform)))
    found = [[process, lines] for process, lines in here(lambda: explained(question))]
    assert len(found) == 8 and "waits for a worker" in str(found)
    assert asked(visitor, question, "explain") == found


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_the_same_guarantee(visitor: Visitor, bug: Bug) -> None:
    wish = {"name": bug.name, "planted": True}
    done, there = json.loads(here(lambda: show(json.dumps(wish)))), visitor.page.evaluate(ASK, ["bug", wish])
    assert there["outcome"] == done["outcome"] == "a guarantee is broken"
    assert (there["digest"], there["events"]) == (done["digest"], done["events"])


@pytest.mark.parametrize("seed", [seed for seed in PADDED if seed != SWITCHING])
def test_a_scenario_with_arrays_needs_no_numpy(visitor: Visitor, seed: int) -> None:
    scenario = scenario_of(seed)
    assert visitor.page.evaluate(ASK, ["scenario", scenario.to_json()])["digest"] == here(lambda: run(scenario)).digest


def test_threads_may_switch_between_lines(visitor: Visitor) -> None:
    """The trace is another one in another version of Python, whose lines have other bounds."""
    question = ["scenario", scenario_of(SWITCHING).to_json()]
    first, again = (visitor.page.evaluate(ASK, question) for _ in range(2))
    assert first["outcome"] == again["outcome"] == "nothing is broken" and first["digest"] == again["digest"]


def test_a_run_leaves_nothing_for_the_next(visitor: Visitor) -> None:
    """Count what runs leave in the page's Python. Their time would say it too, but a busy machine decides that."""
    question = msgspec.to_builtins(PageQuestion(Script(PROGRAMS["04_an_actor_restart"], seed=7)))
    counts = visitor.page.evaluate(COUNT, [question, 4])
    assert [threads for _, threads, _ in counts] == [1] * 4
    objects, at_the_end = counts[1][0], counts[-1][0]
    assert at_the_end - objects < objects // 100, counts


def test_the_largest_cluster_leaves_most_of_the_memory(visitor: Visitor) -> None:
    """Pyodide reads wrong memory above 2 GiB."""
    question = msgspec.to_builtins(PageQuestion(Script(PROGRAMS["05_spillback"], seed=7, nodes=8)))
    ((_, _, memory_bytes),) = visitor.page.evaluate(COUNT, [question, 1])
    assert memory_bytes < 1 << 30


def pushed(done: Performance) -> int:
    """Return the number of the event in which the driver first pushes a task."""
    numbers = enumerate(done.cluster.trace.events)
    return next(number for number, event in numbers if event.kind == SEND and event.details[0] == "PushTask")
