"""The manifests of ``deploy/kubernetes``, executed: commands, environments, probes and hooks, in pods without Kubernetes.

``make test-kubernetes`` runs these; pytest does not collect them by itself, since they need root and a minute or two.
``pods`` says what such a pod is.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import wait_for_condition
from tests.kubernetes.manifests import DEPLOY
from tests.kubernetes.pods import START_S, Machine, Pod, why_not
from tests.kubernetes.programs import CALL_ACTORS, JOB, LASTING_DRIVER, MAKE_ACTORS
from tests.platform.certificates import authority

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(400)]
SILENCE_S = 60.0
"""Seconds within which peers notice that a machine is gone which has said nothing: its connections break after 30."""


class Cluster:
    """The head's pod, and worker pods, of the manifests."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.head: Pod
        self.workers: list[Pod] = []
        self._count = 0

    def start_head(self) -> None:
        """Make the head's pod, under the old name and with a new address, and let the Service's name lead to it."""
        self.head = self.machine.pod("head.yaml", "minray-head-0")
        self.machine.resolve("minray-head", self.head)
        self.head.start()

    def add_worker(self, node_name: str = "machine-1") -> Pod:
        self._count += 1
        pod = self.machine.pod("worker.yaml", f"minray-worker-{self._count}", node_name)
        assert pod.initialize().wait(START_S) == 0, pod.log()
        pod.start()
        self.workers.append(pod)
        return pod

    def nodes(self, asked: Pod | None = None) -> list[dict[str, Any]]:
        """The nodes, as the command line of a pod tells them."""
        done = (asked or self.head).execute(["minray", "status", "--format=json"])
        return list(json.loads(done.stdout)["nodes"]) if done.returncode == 0 else []

    def alive(self, asked: Pod | None = None) -> set[str]:
        return {node["node_name"] for node in self.nodes(asked) if node["state"] == "ALIVE"}


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("pods")
    for above in directory.parents:
        if not above.stat().st_mode & 0o005 == 0o005 and str(above).startswith("/tmp"):
            above.chmod(0o755)
    with Machine(directory, secrets.token_hex(32)) as made:
        yield made
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "mrk" not in left


@pytest.fixture
def cluster(machine: Machine) -> Cluster:
    """A head and two workers on one machine."""
    made = Cluster(machine)
    made.start_head()
    for _ in range(2):
        made.add_worker()
    return made


def test_a_job_runs_on_workers_that_have_waited_for_the_gcs(machine: Machine) -> None:
    cluster = Cluster(machine)
    early = machine.pod("worker.yaml", "minray-worker-0", "machine-2")
    waiting = early.initialize()
    cluster.start_head()
    assert waiting.wait(START_S) == 0, early.log()
    early.start()
    worker = cluster.add_worker()
    told = json.loads(worker.python(JOB))
    assert told["sum"] == sum(number * number for number in range(40))
    assert set(told["pods"]) <= {"minray-worker-0", "minray-worker-1"}
    nodes = {node["name"]: node for node in told["nodes"]}
    assert nodes.keys() == {"minray-head-0", "minray-worker-0", "minray-worker-1"}
    assert nodes["minray-head-0"]["cpus"] == 0
    for pod, node_name in ((early, "machine-2"), (worker, "machine-1")):
        node, limits = nodes[pod.name], pod.container.limits
        assert node["ip"] == pod.address
        assert (node["cpus"], node["memory"]) == (limits["cpu"], int(0.7 * limits["memory"]))
        labels = {"minray.io/pod": pod.name, "minray.io/machine": node_name}
        assert labels.items() <= node["labels"].items()
    for pod in (cluster.head, early, worker):
        for name in ("startup", "readiness", "liveness"):
            assert pod.probe(name).returncode == 0, (pod.name, name)
        assert pod.execute(["touch", "/written"]).returncode != 0, "the root file system is read-only"
        assert pod.execute(["id", "-u"]).stdout == "1000\n"
        assert pod.execute(["test", "-e", "/dev/shm"]).returncode == 1


def test_with_the_overlay_of_tls_nodes_join_probes_pass_and_all_ports_speak_tls(machine: Machine) -> None:
    files = authority().sign("pods", extensions="subjectAltName=DNS:minray-head")
    paths = {"tls.crt": files.cert, "tls.key": files.key, "ca.crt": files.ca}
    machine.secrets["minray-tls"] = {name: Path(path).read_text() for name, path in paths.items()}
    machine.overlay = "tls"
    cluster = Cluster(machine)
    cluster.start_head()
    worker = cluster.add_worker()
    assert json.loads(worker.python(JOB))["sum"] == sum(number * number for number in range(40))
    for pod in (cluster.head, worker):
        for name in ("startup", "readiness", "liveness"):
            assert pod.probe(name).returncode == 0, (pod.name, name)
    plain = ["env", "-u", "MINRAY_TLS_CERT", "-u", "MINRAY_TLS_KEY", "-u", "MINRAY_TLS_CA", "MINRAY_TMPDIR=/tmp/elsewhere"]
    ask = ["minray", "health-check", "--address=minray-head:6379", "--token-file=/run/secrets/minray/token"]
    refused = worker.execute([*plain, *ask])
    assert refused.returncode != 0 and "speaks TLS" in refused.stdout + refused.stderr
    assert worker.stop() == 0


def test_two_actors_are_on_one_pod_on_one_machine_and_on_two(cluster: Cluster) -> None:
    cluster.add_worker("machine-2")
    program = (DEPLOY / "kubernetes" / "two_actors.py").read_text()
    told: dict[str, list[dict[str, str]]] = {}
    for line in cluster.workers[0].python(program).splitlines():
        told |= json.loads(line)
    assert told.keys() == {"one pod", "one machine", "two machines"}
    for case, (first, second) in told.items():
        assert (first["pod"] == second["pod"]) == (case == "one pod"), case
        assert (first["machine"] == second["machine"]) == (case != "two machines"), case


@pytest.mark.parametrize("is_silent", [False, True], ids=["killed", "vanished"])
def test_the_head_comes_back_from_its_volume_with_another_address(cluster: Cluster, is_silent: bool) -> None:
    worker = cluster.workers[0]
    worker.python(MAKE_ACTORS)
    driver = LastingDriver(worker)
    former = cluster.head
    former.kill(is_silent=is_silent)
    cluster.machine.resolve("minray-head", None)
    assert all(pod.probe("liveness").returncode == 0 for pod in cluster.workers), "workers wait for their head"
    cluster.start_head()
    assert cluster.head.address != former.address
    everything = {"minray-head-0", "minray-worker-1", "minray-worker-2"}
    wait_for_condition(lambda: cluster.alive(worker) == everything, SILENCE_S, "workers find the head")
    dead = [node for node in cluster.nodes() if node["state"] == "DEAD"]
    assert [node["node_ip"] for node in dead] == [former.address]
    assert json.loads(worker.python(CALL_ACTORS)) == [2, 2, 2, 2]
    assert json.loads(cluster.workers[1].python(CALL_ACTORS)) == [3, 3, 3, 3]
    assert json.loads(cluster.head.python(CALL_ACTORS)) == [4, 4, 4, 4]
    assert driver.end() == [2, 3, 4, 1_000_000]
    newer = cluster.add_worker()
    assert json.loads(newer.python(JOB))["sum"] == sum(number * number for number in range(40))


class LastingDriver:
    """A program that has begun before the head goes, and that goes on when it is told to."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._process = pod.begin(["python", "-c", LASTING_DRIVER])
        wait_for_condition(lambda: pod.execute(["test", "-e", "/tmp/begun"]).returncode == 0, START_S, "the driver begins")

    def end(self) -> Any:
        self._pod.execute(["touch", "/tmp/go"])
        out, err = self._process.communicate(timeout=START_S)
        assert self._process.returncode == 0, err
        return json.loads(out)


def test_workers_are_added_and_taken_away_without_losing_anything(cluster: Cluster) -> None:
    added = cluster.add_worker()
    assert cluster.alive() == {"minray-head-0", "minray-worker-1", "minray-worker-2", "minray-worker-3"}
    steady = cluster.workers[0]
    driver = steady.begin(["python", "-c", SPREAD_DRIVER])
    wait_for_condition(lambda: steady.execute(["test", "-e", "/tmp/begun"]).returncode == 0, START_S, "the driver begins")
    assert added.stop() == 0, added.log()
    assert cluster.workers[1].stop(with_hook=False) == 0, "SIGTERM alone drains too"
    steady.execute(["touch", "/tmp/go"])
    out, err = driver.communicate(timeout=START_S)
    assert driver.returncode == 0, err
    assert json.loads(out) == {"slow": [0, 1, 2, 3, 4, 5], "large": [1_000_000] * 6, "attempts": 6}
    dead = {node["node_name"]: node["death_cause"] for node in cluster.nodes() if node["state"] == "DEAD"}
    assert dead == {"minray-worker-3": "its pod is taken away", "minray-worker-2": "its machine is taken away (SIGTERM)"}
    assert cluster.alive() == {"minray-head-0", "minray-worker-1"}


SPREAD_DRIVER = """
import json, os, pathlib, time, minray
minray.init(log_to_driver=False)
@minray.remote(scheduling_strategy="SPREAD", num_cpus=1)
def large():
    return bytes(1_000_000)
@minray.remote(num_cpus=0)
class Count:
    def __init__(self):
        self.count = 0
    def add(self):
        self.count += 1
        return self.count
    def get(self):
        return self.count
node_id = minray.get_runtime_context().get_node_id()
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
count = Count.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()
@minray.remote(scheduling_strategy="SPREAD", num_cpus=1)
def slow(number):
    minray.get(count.add.remote())
    time.sleep(3)
    return number
kept = [large.remote() for _ in range(6)]
minray.wait(kept, num_returns=6, fetch_local=False)
running = [slow.remote(number) for number in range(6)]
while minray.get(count.get.remote()) < 6:
    time.sleep(0.05)
pathlib.Path("/tmp/begun").touch()
while not pathlib.Path("/tmp/go").exists():
    time.sleep(0.05)
print(json.dumps({
    "slow": minray.get(running),
    "large": [len(value) for value in minray.get(kept)],
    "attempts": minray.get(count.get.remote()),
}))
"""


def test_a_busy_worker_stays_alive_and_a_dead_one_is_found(cluster: Cluster) -> None:
    busy = cluster.workers[0]
    driver = busy.begin(["python", "-c", BUSY_DRIVER])
    wait_for_condition(lambda: busy.execute(["test", "-e", "/tmp/begun"]).returncode == 0, START_S, "the tasks begin")
    for name in ("liveness", "readiness"):
        assert busy.probe(name).returncode == 0, name
    cluster.head.signal("gcs", "STOP")
    assert busy.probe("liveness").returncode == 0, "a silent gcs kills no worker"
    cluster.head.signal("gcs", "CONT")
    busy.execute(["touch", "/tmp/go"])
    _, err = driver.communicate(timeout=START_S)
    assert driver.returncode == 0, err
    busy.signal("raylet", "KILL")
    assert busy.exit_code != 0, "the container ends with its raylet"


BUSY_DRIVER = """
import os, pathlib, minray
minray.init(log_to_driver=False)
@minray.remote(num_cpus=0.1, label_selector={"minray.io/pod": os.uname().nodename})
def spin():
    while not pathlib.Path("/tmp/go").exists():
        sum(range(10_000))
refs = [spin.remote() for _ in range(8)]
pathlib.Path("/tmp/begun").touch()
minray.get(refs)
"""
