"""The cost of a dashboard: processor time and memory without one, with one, and with ten clients.

``python -m benchmarks.dashboard_cost [SECONDS]`` starts a cluster of one node with 2,000 finished tasks and 50 actors, and
prints a line for each state. A client follows the news of two tables and fetches both after each event, as an open page
does. The times are processor seconds of all processes of the node, so that a busy machine does not change them much.
"""

from __future__ import annotations

import gzip
import http.client
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

import minray
from minray.dashboard.access import cookie_name, dashboard_token
from minray.dashboard.page_files import read_page
from minray.node.discovery import find_nodes, session_token

CLIENTS = 10
TASKS, ACTORS = 2000, 50
TABLES = ("tasks", "actors")


@minray.remote
def nothing() -> None: ...


@minray.remote(num_cpus=0)
class Idle:
    def ready(self) -> None: ...


class Client:
    """An open page: it reads events, and after each of them the tables."""

    def __init__(self, address: str, token: str) -> None:
        self.answers = self.bytes = 0
        self._address = address
        self._cookie = {"Cookie": f"{cookie_name(int(address.rpartition(':')[2]))}={token}"}
        self._connection = http.client.HTTPConnection(address)
        self._connection.request("GET", f"/api/events?tables={','.join(TABLES)}", headers=self._cookie)
        self._events = self._connection.getresponse()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while line := self._events.readline():
            if line.startswith(b"data: "):
                for table in TABLES:
                    self._fetch(f"/api/{table}?limit=100")

    def _fetch(self, path: str) -> None:
        connection = http.client.HTTPConnection(self._address)
        connection.request("GET", path, headers={**self._cookie, "Accept-Encoding": "gzip"})
        self.bytes += len(connection.getresponse().read())
        self.answers += 1
        connection.close()


def processes() -> Iterator[tuple[str, psutil.Process]]:
    """The processes of this cluster's node, by role."""
    zygote = psutil.Process(find_nodes()[-1].zygote_pid)
    for process in (zygote, *zygote.children(recursive=True)):
        yield Path(f"/proc/{process.pid}/comm").read_text().strip().removeprefix("minray:"), process


def seconds_by_role() -> dict[str, float]:
    sums: dict[str, float] = {}
    for role, process in processes():
        times = process.cpu_times()
        sums[role] = sums.get(role, 0.0) + times.user + times.system
    return sums


@contextmanager
def cluster(**options: bool) -> Iterator[str]:
    context = minray.init(num_cpus=1, log_to_driver=False, logging_level="ERROR", **options)
    actors = [Idle.remote() for _ in range(ACTORS)]
    minray.get([nothing.remote() for _ in range(TASKS)] + [actor.ready.remote() for actor in actors])
    try:
        yield context.dashboard_url
    finally:
        minray.shutdown()


def measure(state: str, seconds: float, works: bool = False) -> None:
    before, is_over = seconds_by_role(), threading.Event()
    if works:  # something must happen, or there is no news
        while not is_over.wait(1.0):
            minray.get(nothing.remote())
            seconds -= 1
            if seconds <= 0:
                is_over.set()
    else:
        is_over.wait(seconds)
    spent = {role: used - before.get(role, 0.0) for role, used in seconds_by_role().items()}
    shown = ", ".join(f"{role} {used:.2f} s" for role, used in sorted(spent.items()) if used >= 0.005) or "nothing"
    memory = sum(process.memory_full_info().uss for role, process in processes() if role.startswith("dash"))
    print(f"{state}: {shown}; own memory of the dashboard {memory / 1e6:.0f} MB", flush=True)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    page = read_page()
    small = sum(len(gzip.compress(file.body)) for file in page.values())
    print(f"page: {len(page)} files, {sum(len(file.body) for file in page.values())} bytes, {small} compressed")
    with cluster():
        measure("no dashboard", seconds)
    with cluster(include_dashboard=True) as address:
        measure("a dashboard, no client", seconds)
        token = dashboard_token(session_token(find_nodes()[-1].session_dir))
        clients = [Client(address, token)]
        measure("a client, a task a second", seconds, works=True)
        clients += [Client(address, token) for _ in range(CLIENTS - 1)]
        measure(f"{CLIENTS} clients, a task a second", seconds, works=True)
        print(f"{sum(one.answers for one in clients)} answers, {sum(one.bytes for one in clients)} bytes")


if __name__ == "__main__":
    main()
