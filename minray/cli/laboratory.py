"""``minray lab``: workload traces on simulated clusters, with reports about them.

Ray: has no counterpart

    minray lab run montage.json --nodes 8 --html run.html             a trace: WfCommons, DAGBench, a timeline
    minray lab run fft:width=16,count=4 --set scheduler_spread_threshold=0    a generated load
    minray lab generate map-reduce:width=32,rate=2,arrivals=poisson,count=50 -o load.json
    minray lab compare TRACE --variant 'packed:' --variant 'spread:scheduler_spread_threshold=0' --seeds 5
    minray lab calibrate -o costs.json                                what this machine's memory, disk and starts cost
    minray lab validate TRACE                                         on real processes of this machine, and simulated

``--set`` and the entries of ``--variant`` go to the cluster's ``_system_config``: whatever a real cluster can be told can be
compared. The commands import the laboratory only when they run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from minray.laboratory.setup import Setup  # imports numpy and the simulation, which other commands do not need
    from minray.laboratory.workload import Workload

INPUT = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
SEED = click.option("--seed", type=click.IntRange(0, 2**32), default=0, show_default=True, help="Decides all chance.")


class Entries(click.ParamType):  # type: ignore[type-arg]  # Generic in some versions only.
    """Type of an option that is one or more entries of the system config: ``name=value,name=value``."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if not isinstance(value, str):
            return dict(value)
        entries = {}
        for part in value.split(",") if value else []:
            name, equals, given = part.partition("=")
            if not equals or not name:
                self.fail(f"{part!r} is not name=value", param, ctx)
            entries[name] = value_of(given)
        return entries


def value_of(text: str) -> Any:
    """Return the value that a text means: a number or true and false as in JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class Variant(click.ParamType):  # type: ignore[type-arg]  # Generic in some versions only.
    """Type of an option that names a configuration: ``NAME:name=value,name=value``."""

    name = "NAME:name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, dict[str, Any]]:
        if isinstance(value, tuple):
            return value
        name, colon, entries = value.partition(":")
        if not colon or not name:
            self.fail(f"{value!r} is not NAME:name=value,...; NAME: alone means the plain configuration", param, ctx)
        return name, Entries().convert(entries, param, ctx)


def setup_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that describe the simulated cluster."""
    options = [
        click.option("--nodes", type=click.IntRange(1), default=4, show_default=True, help="Nodes, the head included."),
        click.option("--cpus", type=click.FloatRange(0), default=4.0, show_default=True, help="CPUs of each node."),
        click.option("--resources", default="{}", help="What each node has besides, as JSON: '{\"GPU\": 1}'."),
        click.option("--store-bytes", type=click.IntRange(1), default=1 << 30, show_default=True, help="Each object store."),
        click.option("--machines", type=INPUT, help='Unequal nodes: JSON such as [{"cpus": 8, "speed": 2}, {"count": 5}].'),
        click.option("--costs", type=INPUT, help="Cost model of links, disks and starts: JSON or TOML. Default: 10 Gb/s."),
        click.option("--failures", type=INPUT, help='Node failures: JSON such as [{"node": 2, "down_s": 10, "up_s": 60}].'),
        click.option("--set", "entries", type=Entries(), multiple=True, help="Entries of the cluster's _system_config."),
        click.option("--plan", type=click.Choice(["heft"]), default=None, help="Place all tasks before the run."),
        click.option("--warm", is_flag=True, help="Start all workers before the time begins."),
        click.option("--shrink", type=click.IntRange(1), default=1, show_default=True, help="Divide values by this."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def errors_of_traces() -> Iterator[None]:
    """Turn errors of traces, settings and files into one line."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from None
    except ConnectionError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from None


def _setup(options: dict[str, Any]) -> Setup:
    from minray.laboratory.cost_model import CostModel, read_costs
    from minray.laboratory.setup import Setup, machines_in

    resources = value_of(options["resources"])
    if not isinstance(resources, dict) or not all(isinstance(amount, int | float) for amount in resources.values()):
        raise ValueError(f"--resources must be a JSON object of numbers, got {options['resources']}")
    if options["machines"] is not None:
        context = click.get_current_context()
        for name in ("nodes", "cpus", "resources", "store_bytes"):
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise ValueError(f"--machines describes all nodes; leave out --{name.replace('_', '-')}")
    return Setup(
        machines=machines_in(options["machines"]) if options["machines"] is not None else (),
        nodes=options["nodes"],
        cpus=options["cpus"],
        resources=resources,
        store_bytes=options["store_bytes"],
        costs=read_costs(options["costs"]) if options["costs"] else CostModel(),
        system_config=checked_config({name: value for entries in options["entries"] for name, value in entries.items()}),
        plan=options["plan"] or "",
        warm=options["warm"],
        shrink=options["shrink"],
    )


def checked_config(entries: dict[str, Any]) -> dict[str, Any]:
    """Return entries of the system config. Raises ValueError or TypeError for those that no cluster accepts."""
    from minray.common.config import SystemConfig

    SystemConfig.from_overrides(entries)
    return entries


def _varied(plain: Setup, entries: dict[str, Any]) -> Setup:
    """Return a setup with entries of the system config; the entry ``plan`` is the setup's own."""
    import msgspec

    config = {name: value for name, value in entries.items() if name != "plan"}
    both = checked_config({**plain.system_config, **config})
    return msgspec.structs.replace(plain, system_config=both, plan=entries.get("plan", plain.plan))


def _workload(trace: str, failures: Path | None, seed: int) -> Workload:
    import msgspec

    from minray.laboratory.traces.reading import failures_in, workload_of
    from minray.laboratory.workload import checked

    workload = workload_of(trace, seed)
    if failures is not None:
        workload = checked(msgspec.structs.replace(workload, failures=failures_in(failures)), str(failures))
    return workload


@click.group("lab")
def laboratory_commands() -> None:
    """Run workload traces on simulated clusters, compare configurations, and write reports."""


@laboratory_commands.command("run")
@click.argument("trace")
@setup_options
@SEED
@click.option("--json", "json_file", type=OUTPUT, help="Write all figures to this file.")
@click.option("--csv", "csv_file", type=OUTPUT, help="Write a table of all tasks to this file.")
@click.option("--html", "page", type=OUTPUT, help="Write a page with plots to this file.")
def run_command(
    trace: str, seed: int, json_file: Path | None, csv_file: Path | None, page: Path | None, **options: Any
) -> None:
    """Run TRACE, a file or a load such as fft:width=16, on a simulated cluster."""
    from minray.laboratory.experiment import simulate
    from minray.laboratory.page import run_page
    from minray.laboratory.report import summarise, task_rows, text, to_csv, to_json

    with errors_of_traces():
        record = simulate(_workload(trace, options["failures"], seed), _setup(options), seed)
        figures = summarise(record)
        click.echo(text(figures))
        if json_file is not None:
            json_file.write_bytes(to_json(figures))
        if csv_file is not None:
            csv_file.write_text(to_csv(task_rows(record)), encoding="utf-8")
        if page is not None:
            page.write_text(run_page(record, figures), encoding="utf-8")


@laboratory_commands.command("generate")
@click.argument("load")
@SEED
@click.option("-o", "--output", type=OUTPUT, required=True, help="File to write.")
def generate_command(load: str, seed: int, output: Path) -> None:
    """Write the workload that LOAD, such as chain:depth=8,count=20, means with a seed. Any trace is converted, too."""
    from minray.laboratory.traces.reading import workload_of
    from minray.laboratory.workload import critical_path_s, encode, work_s

    with errors_of_traces():
        workload = workload_of(load, seed)
        output.write_bytes(encode(workload))
        work, path = work_s(workload), critical_path_s(workload.tasks)
        click.echo(f"{len(workload.tasks)} tasks of {work:.1f} CPU seconds, critical path {path:.1f} s, are in {output}")
        for note in workload.notes:
            click.echo(f"left out: {note}", err=True)


@laboratory_commands.command("compare")
@click.argument("trace")
@setup_options
@click.option("--variant", "variants", type=Variant(), multiple=True, required=True, help="A configuration; give several.")
@click.option("--seeds", type=click.IntRange(2), default=5, show_default=True, help="Number of seeds: 0, 1, 2, ...")
@click.option("--json", "json_file", type=OUTPUT, help="Write means, intervals and values to this file.")
@click.option("--csv", "csv_file", type=OUTPUT, help="Write a table of all runs to this file.")
@click.option("--html", "page", type=OUTPUT, help="Write a page with plots to this file.")
def compare_command(
    trace: str,
    variants: tuple[tuple[str, dict[str, Any]], ...],
    seeds: int,
    json_file: Path | None,
    csv_file: Path | None,
    page: Path | None,
    **options: Any,
) -> None:
    """Run TRACE with each configuration and seed, and compare them with confidence intervals."""
    from minray.laboratory.comparison import ComparedRow, compare, comparison_text, summarise_comparison
    from minray.laboratory.page import comparison_page
    from minray.laboratory.report import to_csv, to_json

    def tell(row: ComparedRow) -> None:
        click.echo(f"{row.configuration}, seed {row.seed}: {row.makespan_s:.3f} s", err=True)

    with errors_of_traces():
        plain = _setup(options)
        if len(dict(variants)) < len(variants):
            raise ValueError("two variants have the same name; give each its own")
        setups = {name: _varied(plain, entries) for name, entries in variants}
        rows = compare(lambda seed: _workload(trace, options["failures"], seed), setups, range(seeds), tell)
        figures = summarise_comparison(trace, rows, setups)
        click.echo(comparison_text(figures))
        if json_file is not None:
            json_file.write_bytes(to_json(figures))
        if csv_file is not None:
            csv_file.write_text(to_csv(rows), encoding="utf-8")
        if page is not None:
            page.write_text(comparison_page(figures), encoding="utf-8")


@laboratory_commands.command("calibrate")
@click.option("-o", "--output", type=OUTPUT, required=True, help="File to write: JSON for --costs.")
@click.option("--folder", type=FOLDER, help="Folder whose disk to measure.")
@click.option("--values", type=click.Choice(["arrays", "objects"]), default="arrays", show_default=True, help="To pickle.")
def calibrate_command(output: Path, folder: Path | None, values: str) -> None:
    """Measure this machine's memory, pickling, disk, latency and starts of workers, and write a cost model."""
    import tempfile

    import msgspec

    from minray.laboratory.calibration import NOT_MEASURED, calibrate

    with errors_of_traces():
        costs = calibrate(folder or Path(tempfile.gettempdir()), values)
        output.write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=1) + b"\n")
    for name, value in msgspec.structs.asdict(costs).items():
        click.echo(f"{name:<24}{value:>14g}" + ("   (kept: one machine cannot show it)" if name in NOT_MEASURED else ""))


@laboratory_commands.command("validate")
@click.argument("trace")
@setup_options
@SEED
@click.option("--address", metavar="HOST:PORT", help="Cluster to run on, with a node here. Default: a new one, here.")
@click.option("--json", "json_file", type=OUTPUT, help="Write both runs' figures to this file.")
def validate_command(trace: str, seed: int, address: str | None, json_file: Path | None, **options: Any) -> None:
    """Run TRACE on a real cluster, whose tasks sleep, and simulated; show both."""
    from minray.laboratory.experiment import simulate
    from minray.laboratory.report import to_json
    from minray.laboratory.validation import compared, run_for_real, validation_lines

    with errors_of_traces():
        workload, setup = _workload(trace, options["failures"], seed), _setup(options)
        rows = compared(run_for_real(workload, setup, address), simulate(workload, setup, seed))
        click.echo("\n".join(validation_lines(rows)))
        if json_file is not None:
            json_file.write_bytes(to_json({"minray_validation": 1, "rows": rows}))
