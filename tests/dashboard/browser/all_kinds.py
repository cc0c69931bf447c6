"""A program with rows of all kinds for the dashboard. It says when they are there, and goes on with small tasks until its
stdin ends.

Names, errors and lines of logs are those of an attacker: HTML, marks that turn text round, escape sequences, and ten
thousand characters.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

import minray
from minray.util.placement_group import placement_group

MARKUP = "<img src=x onerror=\"window.ran='%s'\"><script>window.ran='%s'</script>"
TURNED = "abc\u202efdp.exe\u202c\u2066\u200f\x07\x1b[31mred"
LONG = "n" * 10_000
PAUSE_S = 0.3


def markup(place: str) -> str:
    return MARKUP % (place, place)


@minray.remote
class Counter:
    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise ValueError(markup("death") + TURNED)
        self.other: minray.actor.ActorHandle | None = None

    def add(self, number: int) -> int:
        return number + 1

    def meet(self, other: minray.actor.ActorHandle) -> None:
        self.other = other

    def call_back(self, depth: int) -> int:
        """Ask the other actor, which asks this one: nobody ever answers."""
        assert self.other is not None
        return minray.get(self.other.call_back.remote(depth + 1))


@minray.remote(max_retries=0)
def fail(text: str) -> None:
    print(f"a line of a log {markup('log')} {TURNED}")
    raise RuntimeError(text)


@minray.remote
def tick(number: int) -> int:
    return number


@minray.remote
def hold(array: np.ndarray, path: str) -> int:
    threading.Event().wait()
    return len(array)


@minray.remote(num_gpus=7)
def too_large() -> None:
    pass


@minray.remote(num_cpus=0)
def after(value: int) -> int:
    return value


def main() -> None:
    context = minray.init(num_cpus=4, _node_name=f"node {markup('node')[:60]}", object_store_memory=80 << 20)
    array = minray.put(np.zeros(1 << 20))
    counter = Counter.options(num_cpus=0, name=markup("actor") + TURNED).remote()
    Counter.options(num_cpus=0, name=LONG, lifetime="detached").remote()
    spare = Counter.options(num_cpus=0, name="spare").remote()
    dead = Counter.options(num_cpus=0, name="dead").remote(True)
    pair = [Counter.options(num_cpus=0, name=f"pair-{number}").remote() for number in range(2)]
    minray.get([pair[0].meet.remote(pair[1]), pair[1].meet.remote(pair[0])])
    minray.get([counter.add.remote(number) for number in range(5)])
    kept = [spare, pair[0].call_back.remote(0), hold.options(name=markup("task")).remote(array, "x"), too_large.remote()]
    kept += [after.remote(kept[2]), Counter.options(num_gpus=5, name="never").remote()]
    failed = [fail.options(name=LONG).remote("long name"), fail.remote(markup("error") + TURNED), fail.remote(LONG)]
    minray.wait([*failed, dead.add.remote(1)], num_returns=4)
    group = placement_group([{"CPU": 1}], name=markup("group"))
    minray.get(group.ready())
    kept += [placement_group([{"CPU": 64}], strategy="STRICT_PACK", name="too large")]
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print(f"ready {context['session_dir']}", flush=True)
    number = 0
    while not ended.wait(PAUSE_S):
        number = minray.get(tick.remote(number + 1))


ended = threading.Event()

if __name__ == "__main__":
    main()
