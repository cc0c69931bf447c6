"""Lines that tasks print, as their driver shows them: each arrives, and those of one worker in their order.

The judge of a scenario reads what tasks print where they print it. A user reads what the driver shows. ``unheard`` compares
both. A line may be missing if its driver has ended or left, or if the raylet of its worker has ended or was silent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from minray.simulation import SimCluster
from minray.simulation.trace import OUTPUT
from tests.spec.charges import Blows
from tests.spec.programs import Program


def unheard(cluster: SimCluster, program: Program, gone: Collection[int], blows: Blows) -> Iterator[str]:
    """Yield what drivers have not shown, or in another order; ``gone``: the numbers of drivers that have ended or left."""
    driver_of = {
        task.name: f"driver/{number}"
        for number, driver in enumerate(program.drivers)
        if number not in gone
        for task in driver.tasks_of_job()
    }
    printed: dict[tuple[str, str], list[str]] = {}
    shown: dict[str, dict[str, int]] = {}
    nodes, alive = cluster.trace.nodes(), cluster.alive()
    for number, event in enumerate(cluster.trace.events):
        if event.kind != OUTPUT:
            continue
        line = event.details[1]
        if event.process.startswith("driver/"):
            _, mark, text = line.partition(") ")
            shown.setdefault(event.process, {}).setdefault(text if mark else line, number)
        elif line.startswith("[") and (driver := driver_of.get(json.loads(line)[1])) is not None:
            printed.setdefault((event.process, driver), []).append(line)
    counts = Counter(line for lines in printed.values() for line in lines)
    for (worker, driver), lines in printed.items():
        is_there = f"raylet/{nodes[worker]}" in alive and nodes[worker] not in blows.lost_nodes
        if is_there and _can_hear(driver, nodes, nodes[worker], blows):
            yield from _compare(f"{driver} of {worker}", lines, shown.get(driver, {}), counts)


def _can_hear(driver: str, nodes: Mapping[str, str], node: str, blows: Blows) -> bool:
    """Tell whether a raylet cannot have given up a driver, nor the gcs one of them."""
    company, places = {driver, f"raylet/{node}", "gcs"}, frozenset({nodes[driver], node, "head"})
    return not (
        any(is_long for process, is_long in blows.silent.items() if process in company)
        or any(is_long for link, is_long in blows.silent_links.items() if link <= company)
        or any(pair <= places for pair in blows.cut_nodes)
    )


def _compare(whose: str, lines: list[str], shown: Mapping[str, int], counts: Mapping[str, int]) -> Iterator[str]:
    if missing := [line for line in lines if line not in shown]:
        yield f"output: {len(missing)} of {len(lines)} lines are not shown to {whose}, such as {missing[0][:80]}"
    once = [shown[line] for line in lines if line in shown and counts[line] == 1]
    if once != sorted(once):
        yield f"output: lines are shown out of order to {whose}"
