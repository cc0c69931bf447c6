"""Pods without Kubernetes: processes in namespaces of their own, started as a kubelet starts containers.

Each pod has a network namespace with an address on a bridge, and namespaces for mounts, processes and its host name. Its
root file system is read-only, and has this machine's ``/usr``, a Python, the checkout and the volumes of the manifest. The
names of Services are in its ``/etc/hosts``. Its processes are those of user 1000 without any capability. The limits of the
manifest are in its control group's files. There is no ``/dev/shm``.

A kubelet's order: init containers, the container, its startup probe; and at the end the hook, SIGTERM, SIGKILL. Volumes
have the owners and modes that Kubernetes gives them: a scratch volume is open to all, a claimed one to its group.

These need Linux, root, and the right to make namespaces; ``why_not`` says what is missing.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from tests.helpers import wait_for_condition
from tests.kubernetes.manifests import ROOT, Container, PodTemplate, template

NETWORK = "10.213.78"
USER = 1000
TOOLS = ("ip", "unshare", "nsenter", "setpriv", "mount", "chroot", "hostname")
START_S = 60.0
"""Seconds within which a node must have started, on a machine that is busy with tests."""
PYTHON = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
OF_THE_IMAGE = {
    "PATH": "/opt/bin:/usr/bin:/bin",
    "PYTHONPATH": "/source:/opt/site",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "LD_LIBRARY_PATH": "/opt/python/lib",
    **{name: value for name, value in os.environ.items() if name == "MINRAY_TRANSPORT"},
}
"""Variables that an image would set, so that its ``minray`` and ``python`` are found."""
SETUP = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$ROOT"
cd "$ROOT"
mkdir -p usr etc proc dev opt/python opt/site opt/bin source run sys/fs/cgroup
mount --rbind /usr usr
for name in bin lib lib64 sbin; do
    if [ -L /$name ]; then cp -d /$name $name; elif [ -d /$name ]; then mkdir $name; mount --rbind /$name $name; fi
done
cp /etc/passwd /etc/group etc/
for name in nsswitch.conf ld.so.cache; do [ ! -e /etc/$name ] || cp /etc/$name etc/; done
touch etc/hosts
mount --bind "$PLACE/hosts" etc/hosts
mount -t proc proc proc
for name in null zero random urandom; do touch dev/$name; mount --bind /dev/$name dev/$name; done
ln -s /proc/self/fd dev/fd
mount --bind "$PYTHON_PREFIX" opt/python
mount --bind "$SITE" opt/site
mount --bind "$CHECKOUT" source
printf '#!/bin/sh\nexec %s -m minray "$@"\n' "$PYTHON" > opt/bin/minray
printf '#!/bin/sh\nexec %s "$@"\n' "$PYTHON" > opt/bin/python
chmod 755 opt/bin/minray opt/bin/python
cp "$PLACE/cgroup/"* sys/fs/cgroup/
eval "$MOUNTS"
hostname "$NAME"
mount -o remount,ro,mode=755 "$ROOT"
exec chroot "$ROOT" setpriv --reuid=1000 --regid=1000 --groups=1000 --bounding-set=-all --inh-caps=-all \
    --no-new-privs env -i "$@"
"""
"""Makes the root file system of a container at $ROOT, then becomes the container's command."""


def why_not() -> str:
    """Return why pods cannot be made here, or ""."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "pods are made of namespaces, which need root on Linux"
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"pods are made of namespaces, which need {', '.join(lacking)}"
    try_out = ["unshare", "-n", "-m", "-p", "-u", "-f", "sh", "-c", "mount --make-rprivate / && mount -t tmpfs x /mnt"]
    tried = subprocess.run(try_out, capture_output=True, text=True, check=False)
    return f"namespaces are not allowed here ({tried.stderr.strip()})" if tried.returncode else ""


class Machine:
    """Holds what a cluster of Kubernetes has beside its pods: the network, the names of Services, the claimed volumes."""

    def __init__(self, directory: Path, token: str) -> None:
        self.directory = directory
        self.secrets = {"minray-token": {"token": f"{token}\n"}}
        """Name of each Secret -> the texts of its files."""
        self.overlay = ""
        """The overlay whose patches the pods have; empty: none."""
        self.names: dict[str, str] = {}
        """Name of each Service -> the address of its pod."""
        self.pods: list[Pod] = []
        self._addresses = itertools.count(1)
        self._bridge = f"mrk{os.getpid() % 100_000}"

    def __enter__(self) -> Self:
        self.directory.chmod(0o755)
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "link", "set", self._bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for pod in list(self.pods):
            pod.kill()
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    def pod(self, file: str, name: str, machine: str = "machine-1") -> Pod:
        """Make a pod of the workload in a file of the manifests, with a new address; nothing runs in it yet."""
        return Pod(self, template(file, self.overlay), name, next(self._addresses), machine)

    def claimed(self, name: str) -> Path:
        """The volume of a claim, which outlives its pods: it belongs to root, and the pod's group may write to it."""
        path = self.directory / f"claim-{name}"
        if not path.exists():
            path.mkdir()
            os.chown(path, 0, USER)
            path.chmod(0o2775)
        return path

    def resolve(self, name: str, pod: Pod | None) -> None:
        """Let the name of a Service lead to a pod, or nowhere."""
        self.names.pop(name, None)
        if pod is not None:
            self.names[name] = pod.address
        for each in self.pods:
            each.write_hosts()

    def link(self, pod: Pod) -> None:
        """Connect a pod's network namespace with the bridge."""
        _run("ip", "netns", "add", pod.namespace)
        _run("ip", "link", "add", pod.namespace, "type", "veth", "peer", "name", "eth0", "netns", pod.namespace)
        _run("ip", "link", "set", pod.namespace, "master", self._bridge, "up")
        for words in (
            ("addr", "add", f"{pod.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _run("ip", "-n", pod.namespace, *words)


class Pod:
    """One pod with one container, as the kubelet of a machine runs it."""

    def __init__(self, machine: Machine, described: PodTemplate, name: str, number: int, node_name: str) -> None:
        self.machine = machine
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.namespace = f"mrk{os.getpid() % 100_000}p{number}"
        self._place = machine.directory / self.namespace
        self._place.mkdir()
        self._root = self._place / "root"
        self._root.mkdir()
        self._described = described
        facts = {"status.podIP": self.address, "metadata.name": name, "spec.nodeName": node_name}
        (self.container,) = described.containers("containers", facts)
        self._init_containers = list(described.containers("initContainers", facts))
        self._log = (self._place / "log").open("w+")
        self._process: subprocess.Popen[bytes] | None = None
        """The container's process; None before it starts."""
        self._volumes = self._make_volumes()
        self.write_hosts()
        machine.pods.append(self)
        machine.link(self)

    def _make_volumes(self) -> dict[str, Path]:
        volumes: dict[str, Path] = {}
        for volume in self._described.pod["volumes"]:
            path = volumes[volume["name"]] = self._place / volume["name"]
            path.mkdir()
            os.chown(path, 0, USER)
            if "emptyDir" in volume:
                path.chmod(0o2777)
            else:
                for name, text in self.machine.secrets[volume["secret"]["secretName"]].items():
                    (path / name).write_text(text)
                    os.chown(path / name, 0, USER)
                    (path / name).chmod(volume["secret"]["defaultMode"])
                path.chmod(0o2755)
        for name in set(self.container.mounts.values()) - volumes.keys():
            volumes[name] = self.machine.claimed(name)
        return volumes

    def write_hosts(self) -> None:
        """Write the names of Services; processes read the file each time they resolve a name."""
        lines = ["127.0.0.1 localhost", f"{self.address} {self.name}"]
        lines += [f"{address} {name}" for name, address in self.machine.names.items()]
        (self._place / "hosts").write_text("\n".join([*lines, ""]))

    # --- Its life ---

    def initialize(self) -> subprocess.Popen[bytes]:
        """Start the init container, which must end before the pod may start."""
        (container,) = self._init_containers
        return self._start(container)

    def start(self) -> None:
        """Start the container; return when its startup probe succeeds."""
        self._process = self._start(self.container)
        wait_for_condition(lambda: self.probe("startup").returncode == 0 or self.ended, START_S, f"{self.name} starts")
        assert not self.ended, self.log()

    def _start(self, container: Container) -> subprocess.Popen[bytes]:
        cgroup = self._place / "cgroup"
        cgroup.mkdir(exist_ok=True)
        cpus, memory = container.limits.get("cpu"), container.limits["memory"]
        files = {
            "cpu.max": f"{int(cpus * 100_000) if cpus else 'max'} 100000",
            "memory.max": f"{int(memory)}",
            "memory.current": f"{100 << 20}",
            "memory.stat": "inactive_file 0",
        }
        for name, text in files.items():
            (cgroup / name).write_text(f"{text}\n")
        mounts = []
        for path, volume in container.mounts.items():
            place = path.lstrip("/")
            mounts.append(f"mkdir -p {shlex.quote(place)}")
            mounts.append(f"mount --bind {shlex.quote(str(self._volumes[volume]))} {shlex.quote(place)}")
        environment = {
            "ROOT": str(self._root),
            "PLACE": str(self._place),
            "NAME": self.name,
            "PYTHON": PYTHON,
            "PYTHON_PREFIX": sys.base_prefix,
            "SITE": str(Path(psutil.__file__).parents[1]),
            "CHECKOUT": str(ROOT),
            "MOUNTS": "; ".join(mounts),
        }
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--pid", "--uts", "--fork"]
        command = [*inside, "sh", "-c", SETUP, "container", *self._variables(container), *container.command]
        return subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    @staticmethod
    def _variables(container: Container) -> list[str]:
        return [f"{name}={value}" for name, value in {**OF_THE_IMAGE, **container.environment}.items()]

    @property
    def ended(self) -> bool:
        """Whether the container's process has ended."""
        return self._process is not None and self._process.poll() is not None

    @property
    def exit_code(self) -> int:
        assert self._process is not None
        return self._process.wait(START_S)

    def _first_process(self) -> int:
        """The container's first process, by its number outside of the container."""
        assert self._process is not None
        (child,) = psutil.Process(self._process.pid).children()
        return child.pid

    def execute(self, command: Sequence[str], timeout_s: float = START_S) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as probes, hooks and ``kubectl exec`` do."""
        with self.begin(command) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def begin(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command in the container, without waiting for its end."""
        enter = ["nsenter", f"--target={self._first_process()}", "--mount", "--net", "--pid", "--uts", "--root", "--wd"]
        become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={USER}", "--bounding-set=-all"]
        become += ["--inh-caps=-all", "--no-new-privs", "env", "-i", *self._variables(self.container)]
        return subprocess.Popen(
            [*enter, *become, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def signal(self, role: str, name: str) -> None:
        """Send a signal to the process of the container's node that has this role: gcs, raylet, zygote."""
        first = psutil.Process(self._first_process())
        (process,) = (each for each in first.children(recursive=True) if each.name() == f"minray:{role}")
        process.send_signal(getattr(signal, f"SIG{name}"))

    def probe(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run a probe; its exit code 0 is success."""
        try:
            return self.execute(self.container.probes[name])
        except (ValueError, psutil.NoSuchProcess):  # the container has not begun, or has ended
            return subprocess.CompletedProcess(name, 1, "", "no process")

    def python(self, program: str) -> str:
        """Run a program in the container; return its output. Raises AssertionError if it fails."""
        done = self.execute(["python", "-c", program])
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        """Return all that the containers of the pod have printed."""
        return (self._place / "log").read_text()

    # --- Its end ---

    def stop(self, *, with_hook: bool = True) -> int:
        """End the pod as ``kubectl delete pod`` does: the hook, then SIGTERM; return the container's exit code."""
        if with_hook and self.container.pre_stop:
            self.execute(self.container.pre_stop, timeout_s=600)
        if not self.ended:
            with suppress(ValueError, psutil.NoSuchProcess, ProcessLookupError):  # It has just ended.
                os.kill(self._first_process(), signal.SIGTERM)
        code = self.exit_code
        self.kill()
        return code

    def kill(self, *, is_silent: bool = False) -> None:
        """End all processes at once, and take the address away. ``is_silent``: no peer is told, as when a machine dies."""
        if is_silent:
            _run("ip", "link", "set", self.namespace, "down")
        if self._process is not None:
            with suppress(ValueError, psutil.NoSuchProcess, ProcessLookupError):  # It has ended.
                os.kill(self._first_process(), signal.SIGKILL)
            self._process.wait(START_S)
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.namespace], capture_output=True, check=False)
        self._log.close()
        self.machine.pods.remove(self)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)
