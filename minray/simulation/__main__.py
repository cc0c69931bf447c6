"""``python -m minray.simulation --seed N``: a small program on a simulated cluster, its story and the digest of its trace.

    python -m minray.simulation --seed 7 --nodes 3 --faults swarm     one run: result, faults, story, digest
    python -m minray.simulation --seed 7 --html run.html              the run as a page for a browser
    python -m minray.simulation --seed 7 --faults swarm --save it     writes the faults that struck to a file
    python -m minray.simulation --replay it --html run.html           repeats the run of such a file
    python -m minray.simulation --digest                              one line over a fixed list of seeds

The last form is for comparing interpreters: the line may not depend on hash seeds, memory addresses or the machine.

The program ``tree`` has a tree of tasks that sleep, print and get values. Its driver puts a value, waits for half of the
leaves and cancels a task; another task fails. The program ``single`` has one task with one argument: enough to see the life
of a task.

A file to replay is JSON: ``{"seed": 7, "nodes": 3, "program": "tree", "overrides": [[key, answer], ...]}``. A key is a list
of words and numbers, as the run prints them after ``chance``. All chances that the file does not name have the answer 0,
which is "nothing special". The program may be left out. Overrides that do not strike are named on stderr.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

import minray
from minray.simulation.arguments import MAX_NODES
from minray.simulation.cluster import SimCluster
from minray.simulation.faults import MAX_SEED, MIN_SEED, FaultPlan, Key, Oracle
from minray.simulation.page import headline, write_page

DIGEST_SEEDS = range(8)
LEAVES = 8
WORLD = ("seed", "nodes", "faults", "name")
"""The command-line parameters that a file to replay decides; ``name`` is the program's."""


def program() -> dict[str, Any]:
    """Run the driver ``tree``. Its tasks are defined inside, so that they travel by value."""
    time: Any = importlib.import_module("time")

    @minray.remote
    def leaf(number: int) -> int:
        time.sleep(0.01 * (number % 4))
        print(f"leaf {number}")
        return number * number

    @minray.remote(retry_exceptions=True, max_retries=2)
    def sum_of(numbers: list[Any], above: Any) -> int:
        values: list[int] = minray.get(numbers)
        return sum(values) + int(above)

    @minray.remote(max_retries=0)
    def failing() -> None:
        raise ValueError("on purpose")

    @minray.remote
    def endless() -> None:
        time.sleep(100_000)

    leaves = [leaf.remote(number) for number in range(LEAVES)]
    first, rest = minray.wait(leaves, num_returns=LEAVES // 2)
    branches = [sum_of.remote(first, minray.put(1000)), sum_of.remote(rest, 1)]
    doomed, unwanted = failing.remote(), endless.remote()
    minray.cancel(unwanted)
    outcomes = [type(error).__name__ for error in (_error_of(doomed), _error_of(unwanted))]
    return {"sum": sum(minray.get(branches)), "outcomes": outcomes, "nodes": len(minray.nodes())}


def _error_of(ref: Any) -> Exception | None:
    try:
        minray.get(ref)
    except Exception as error:
        return error
    return None


def single() -> int:
    """Run the driver ``single``, which has one task."""
    time: Any = importlib.import_module("time")

    @minray.remote
    def double(number: int) -> int:
        time.sleep(0.01)
        print(f"doubling {number}")
        return 2 * number

    argument: Any = minray.put(21)
    result: int = minray.get(double.remote(argument))
    return result


PROGRAMS: dict[str, Callable[[], Any]] = {"tree": program, "single": single}


def simulate(
    seed: int,
    nodes: int,
    faults: str | Mapping[Key, int],
    show_output: bool = True,
    driver: Callable[[], Any] = program,
) -> tuple[SimCluster, str]:
    """Run a program; return the cluster, whose trace can be read, and the program's outcome or the name of its error.

    ``faults`` is the name of a plan, or exactly the faults that strike.
    """
    described = [{"num_cpus": 2}] * nodes
    plan, overrides = (FaultPlan.named(faults, seed), None) if isinstance(faults, str) else (None, faults)
    with SimCluster(described, seed, plan, overrides, show_output=show_output) as cluster:
        try:
            outcome = repr(cluster.run(driver))
        except minray.exceptions.RayError as error:
            outcome = type(error).__name__
        cluster.settle()
    return cluster, outcome


def digest_of(seeds: range) -> str:
    """Return one digest of the traces of all seeds, with and without faults."""
    hasher = hashlib.blake2b(digest_size=16)
    for seed in seeds:
        for faults in ("none", "swarm"):
            cluster, outcome = simulate(seed, 1 + seed % 5, faults, show_output=False)
            hasher.update(f"{seed} {faults} {outcome} {cluster.trace.digest()}\n".encode())
    return hasher.hexdigest()


class SavedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file to replay."""

    seed: int
    nodes: Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)]
    overrides: list[tuple[tuple[str | int, ...], int]]
    program: str = "tree"

    @classmethod
    def read(cls, path: Path) -> SavedRun:
        """Read a file that ``write`` has written. Raises UsageError for any other file."""
        try:
            run = msgspec.json.decode(path.read_bytes(), type=cls)
            if run.program not in PROGRAMS:
                raise ValueError(f"there is no program {run.program!r}, only {', '.join(PROGRAMS)}")
            Oracle(run.seed, overrides=dict(run.overrides))  # raises for overrides that make no sense
        except (OSError, ValueError, RecursionError) as error:
            others = f"A witness of a campaign is run by `make spec SPEC_ARGS='--replay {path}'`."
            raise click.UsageError(f"{path} is no run that --save has written: {error}. {others}") from None
        return run

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def refuse_beside(option: str, others: Iterable[str]) -> None:
    """Raise UsageError if one of the other parameters was given too, although it has no effect beside the option."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in others and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} and {parameter.opts[0]} cannot be given together")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from None


@click.command()
@click.option("--seed", type=click.IntRange(MIN_SEED, MAX_SEED), default=0, help="Decides everything that happens.")
@click.option("--nodes", type=click.IntRange(1, MAX_NODES), default=3, show_default=True, help="The head included.")
@click.option("--faults", type=click.Choice(["none", "quiet", "swarm"]), default="none", show_default=True)
@click.option("--program", "name", type=click.Choice(list(PROGRAMS)), default="tree", show_default=True)
@click.option("--rows", type=click.IntRange(0), default=40, show_default=True, help="How many events of the story to show.")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write a page of the run to this file."
)
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write what chance decided to this file.")
@click.option("--replay", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Run such a file again.")
@click.option("--digest", is_flag=True, help="Print one line over a fixed list of seeds instead.")
def main(
    seed: int,
    nodes: int,
    faults: str,
    name: str,
    rows: int,
    page: Path | None,
    save: Path | None,
    replay: Path | None,
    digest: bool,
) -> None:
    """Run a small program of tasks on a simulated cluster."""
    if digest:
        refuse_beside("--digest", (*WORLD, "rows", "page", "save", "replay"))
        click.echo(digest_of(DIGEST_SEEDS))
        return
    struck: str | Mapping[Key, int] = faults
    if replay is not None:
        refuse_beside("--replay", WORLD)
        run = SavedRun.read(replay)
        seed, nodes, name, struck = run.seed, run.nodes, run.program, dict(run.overrides)
    cluster, outcome = simulate(seed, nodes, struck, driver=PROGRAMS[name])
    click.echo(f"result  {outcome}")
    for key, answer in cluster.oracle.answers.items():
        click.echo(f"chance  {key}: {answer}")
    click.echo(cluster.trace.story(rows))
    for key, answer in cluster.missed.items():
        click.echo(f"{key}, with the answer {answer}, has not struck", err=True)
    seconds = cluster.world.loop.ticks / (1 << 20)
    click.echo(f"{cluster.world.loop.steps} steps, {seconds:.1f} virtual seconds, digest {cluster.trace.digest()}")
    if page is not None:
        with writing(page):
            write_page(cluster.trace, page, headline(seed, nodes, outcome, cluster.trace))
        click.echo(f"page    {page}")
    if save is not None:
        with writing(save):
            SavedRun(seed, nodes, list(cluster.oracle.answers.items()), name).write(save)
        click.echo(f"saved   {save}")


if __name__ == "__main__":
    main()
