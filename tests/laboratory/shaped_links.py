"""Sets real runs beside simulated ones on nodes whose links are shaped: namespaces of this machine, with ``tc``.

    python -m tests.laboratory.shaped_links                                   # the table of docs/laboratory.md
    python -m tests.laboratory.shaped_links --runs 1 fan-out:width=8,output=50e6

``make validate-links`` runs it. Each node has a network namespace with an address on a bridge. It sends through a token
bucket, and what it receives has come through another one. The costs of the simulation are those that ``minray lab
calibrate`` measures at that moment, with the bandwidth of the links. This needs Linux, root, and ``ip`` and ``tc`` of
iproute2; ``why_not`` says what is missing. Namespaces, bridge and processes are gone at the end.

Left out: links with different bandwidths, and a link's latency.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import click

from minray.laboratory.validation import CLOSE, NOISE_BYTES
from tests.helpers import wait_for_condition

LOADS = (
    "single:count=24,arrivals=poisson,rate=2,duration=4,durations=exponential",
    "chain:depth=3,duration=6,output=20e6",
    "fan-out:width=12,duration=6,output=50e6",
    "map-reduce:width=6,depth=3,duration=6,output=20e6",
    "tree:width=2,depth=4,duration=4,output=20e6",
    "actors:width=3,depth=3,duration=4,output=20e6",
)
"""Steps of some seconds: each takes some tenths longer than simulated while the machine is busy (docs/laboratory.md)."""
BRIDGE, PREFIX, NETWORK, PORT = "mrlab", "mrlab-n", "10.214.91", 7391
CPUS = 2
GOODPUT = 0.95
"""Share of a link's bandwidth that is left for values, with frames of 1,500 bytes: the rest are headers."""
START_S, STOP_S = 60.0, 30.0
"""Seconds within which a node must have started, and ended."""


def why_not() -> str:
    """Return what is missing to run this; empty if nothing is."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 missing"
    if os.geteuid():
        return "network namespaces need root"
    made = subprocess.run(["ip", "netns", "add", f"{PREFIX}0"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", f"{PREFIX}0"], capture_output=True)
    return "" if made.returncode == 0 else f"no network namespaces here: {made.stderr.strip()}"


def _do(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True)


@contextmanager
def links(nodes: int, mbit: float) -> Iterator[list[str]]:
    """Make a namespace for each node, on one bridge, with a shaped link; return their names."""
    names = [f"{PREFIX}{number}" for number in range(1, nodes + 1)]
    with ExitStack() as ends:
        ends.callback(subprocess.run, ["ip", "link", "delete", BRIDGE], check=False)
        _do("ip", "link", "add", BRIDGE, "type", "bridge")
        _do("ip", "link", "set", BRIDGE, "up")
        for number, name in enumerate(names, 1):
            ends.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
            _do("ip", "netns", "add", name)
            _do("ip", "link", "add", f"{BRIDGE}{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _do("ip", "link", "set", f"{BRIDGE}{number}", "master", BRIDGE, "up")
            _do("ip", "-n", name, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _do("ip", "-n", name, "link", "set", device, "up")
            shape = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms")
            _do("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)
            _do("tc", "qdisc", "add", "dev", f"{BRIDGE}{number}", *shape)
        yield names


@dataclass(frozen=True)
class ShapedNode:
    """A node in a namespace, or the place for one."""

    namespace: str
    folder: Path
    token: str

    def command(self, *words: object) -> list[str]:
        """Return a command of minray in this namespace."""
        environment = (f"MINRAY_TMPDIR={self.folder}", f"MINRAY_TOKEN={self.token}")
        program = (sys.executable, "-m", "minray")
        return ["ip", "netns", "exec", self.namespace, "env", *environment, *program, *map(str, words)]

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True)


@contextmanager
def cluster(namespaces: Sequence[str], folder: Path) -> Iterator[ShapedNode]:
    """Start a node in each namespace, the first of them as the head, and return that one."""
    token = secrets.token_hex(16)
    nodes = [ShapedNode(name, folder / name, token) for name in namespaces]
    with ExitStack() as ends:
        for number, node in enumerate(nodes, 1):
            node.folder.mkdir(mode=0o700)
            place = ("--head", "--port", PORT, "--storage", "") if number == 1 else ("--address", f"{NETWORK}.1:{PORT}")
            words = ("start", "--block", *place, "--node-ip-address", f"{NETWORK}.{number}", "--num-cpus", CPUS)
            with (node.folder / "output").open("w") as output:
                process = subprocess.Popen(node.command(*words), stdout=output, stderr=subprocess.STDOUT)
            ends.callback(process.wait, STOP_S)
            ends.callback(process.terminate)
            wait_for_condition(lambda number=number: _alive(nodes[0]) == number, START_S)
        yield nodes[0]


def _alive(head: ShapedNode) -> int:
    told = head.run("status", "--format=json", "--address", f"{NETWORK}.1:{PORT}")
    return sum(node["state"] == "ALIVE" for node in json.loads(told.stdout)["nodes"]) if told.returncode == 0 else 0


def costs(head: ShapedNode, mbit: float) -> Path:
    """Measure this machine, and write a cost model with the links' bandwidth."""
    path = head.folder / "costs.json"
    done = head.run("lab", "calibrate", "-o", path, "--folder", head.folder)
    assert done.returncode == 0, done.stderr
    path.write_text(json.dumps(json.loads(path.read_text()) | {"node_bytes_per_s": mbit * 1e6 / 8 * GOODPUT}))
    return path


def validate(head: ShapedNode, load: str, nodes: int, model: Path, runs: int) -> str:
    """Run a load several times; return its line of the table."""
    real, moved, simulated = [], [], {}
    for _ in range(runs):
        out = head.folder / "both.json"
        place = ("--address", f"{NETWORK}.1:{PORT}", "--nodes", nodes, "--cpus", CPUS)
        done = head.run("lab", "validate", load, *place, "--costs", model, "--warm", "--json", out)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = {row["figure"]: row for row in json.loads(out.read_text())["rows"]}
        real.append(rows["makespan_s"]["real"])
        moved.append(rows["moved_bytes"]["real"])
        simulated = {name: row["simulated"] for name, row in rows.items()}
    of_time = _difference(simulated["makespan_s"], fmean(real))
    of_bytes = _difference(simulated["moved_bytes"], fmean(moved), NOISE_BYTES)
    cells = [
        f"`{load}`",
        f"{fmean(real):.2f} s ({min(real):.2f} to {max(real):.2f})",
        f"{simulated['makespan_s']:.2f} s",
        of_time,
        f"{fmean(moved) / 1e6:.0f} MB ({min(moved) / 1e6:.0f} to {max(moved) / 1e6:.0f})",
        f"{simulated['moved_bytes'] / 1e6:.0f} MB",
        of_bytes,
    ]
    return f"| {' | '.join(cells)} |"


def _difference(simulated: float, real: float, noise: float = 0.0) -> str:
    if abs(simulated - real) <= noise:
        return "equal"
    difference = (simulated - real) / real
    return f"{difference:+.1%}" if abs(difference) <= CLOSE else f"**{difference:+.1%}**"


@click.command()
@click.argument("loads", nargs=-1)
@click.option("--nodes", type=click.IntRange(2, 9), default=3, show_default=True)
@click.option("--mbit", type=click.FloatRange(1), default=100.0, show_default=True, help="Bandwidth of each link, in Mb/s.")
@click.option("--runs", type=click.IntRange(1), default=2, show_default=True, help="Real runs of each load.")
def main(loads: tuple[str, ...], nodes: int, mbit: float, runs: int) -> None:
    """Run LOADS on nodes with shaped links and simulated, and print a table."""
    reason = why_not()
    if reason:
        raise click.ClickException(reason)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that namespaces and nodes end, too
    with tempfile.TemporaryDirectory(prefix="mrlab-") as folder, links(nodes, mbit) as namespaces:
        with cluster(namespaces, Path(folder)) as head:
            model = costs(head, mbit)
            click.echo("| load | makespan, real | simulated | difference | moved, real | simulated | difference |")
            click.echo("|---|---|---|---|---|---|---|")
            for load in loads or LOADS:
                click.echo(validate(head, load, nodes, model, runs))


if __name__ == "__main__":
    main()
