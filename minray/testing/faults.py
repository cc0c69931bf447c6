"""``faults``: runs a program of the user's in the simulation, under many seeds of injected faults.

Ray: has no counterpart. Jepsen does this to databases, with real processes and one run at a time.

    from minray.testing import faults

    def program():
        assert pipeline(range(20)) == 380

    faults(program, seeds=200, nodes=3)

The program is the driver of a simulated cluster. Seed 0 has no faults. Every other seed draws its faults, and decides all
that happens in its run. The first seed that fails raises the program's own error. Its note says which faults are enough, in
one sentence, with a command to replay them and a story of the run.

This file imports nothing of the simulation until ``faults`` is called. pytest is never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minray.simulation.faults import FaultPlan
    from minray.testing.search import FaultReport


def faults(
    program: Callable[[], Any],
    *,
    seeds: int = 200,
    nodes: int | Sequence[Mapping[str, Any]] = 3,
    faults: FaultPlan | str = "swarm",
    budget: int | None = None,
    lose_driver: bool = False,
    timeout: float = 600.0,
    seconds: float | None = None,
    directory: str | Path = ".minray_faults",
    name: str = "",
    replay: str | Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> FaultReport:
    """Run ``program`` as the driver of a simulated cluster, once per seed.

    ``seeds``: the number of seeds, from 0 on; seed 0 has no faults and is run twice. ``nodes``: the number of nodes with two
    CPUs each (at most 1000), or a description of each, the head first: ``[{"num_cpus": 1}, {"resources": {"disk": 1}}]``.

    ``faults``: ``"swarm"`` (a few kinds of faults at some rates, both drawn by the seed, at most two of them loud),
    ``"quiet"`` (only delays, repeated messages and the like, which no program may notice), or a
    ``minray.simulation.FaultPlan``. ``budget``: the largest number of loud faults in a run (None: 2 for a swarm). Loud are
    crashes, lost nodes, long stalls, long delays, broken connections and partitions.

    ``lose_driver``: whether the driver may crash too. It is then started again, as a supervisor would do. ``timeout``:
    virtual seconds that one run may take. ``seconds``: real seconds after which no further seed is begun.

    ``directory``: where the faults of a failure and the page of its run are written. ``name``: what the program is called
    there; by default its module and its name. ``replay``: a file of saved faults; then only these are run.
    ``on_progress(done, total)`` is called after each seed.

    Raises the exception of the first run that fails, with a note. Raises NotRepeatable if two runs of a seed differ,
    and ValueError or TypeError for arguments that make no sense.
    """
    from minray.testing.program_runs import FaultSettings
    from minray.testing.saved_faults import file_name
    from minray.testing.search import FaultSearch, shown_path

    settings = FaultSettings(
        seeds=seeds,
        nodes=nodes,
        faults=faults,
        budget=budget,
        lose_driver=lose_driver,
        timeout=timeout,
        seconds=seconds,
    )
    called = name or _name_of(program)
    path = Path(directory) / file_name(called) if replay is None else Path(replay)
    search = FaultSearch(
        program,
        settings,
        called,
        path,
        f'minray.testing.faults({called.rpartition(".")[2]}, replay="{shown_path(path)}", ...)',
        on_progress,
    )
    return search.run() if replay is None else search.replay()


def _name_of(program: Callable[[], Any]) -> str:
    """Return module and name of a program; the name of its file for a script's."""
    module = str(getattr(program, "__module__", "") or "program")
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", "") or "main").stem
    return f"{module}.{getattr(program, '__qualname__', type(program).__name__)}"
