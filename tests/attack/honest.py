"""An honest program that runs while its cluster is attacked: each of its answers must be right, until it is told to end.

    python -m tests.attack.honest ADDRESS
"""

from __future__ import annotations

import os
import sys
import threading

import minray


@minray.remote
def square(value: int) -> int:
    return value * value


@minray.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()


def main(address: str) -> None:
    minray.init(address, log_to_driver=False)
    told_to_end = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told_to_end.set()), daemon=True).start()
    counter = Counter.options(num_cpus=0).remote()
    print(minray.get(counter.pid.remote()), flush=True)
    rounds = 0
    while not told_to_end.is_set():
        rounds += 1
        numbers = list(range(rounds, rounds + 20))
        assert minray.get([square.remote(number) for number in numbers], timeout=60) == [n * n for n in numbers]
        assert minray.get(counter.add.remote(), timeout=60) == rounds
        large = bytes([rounds % 256]) * 300_000
        assert minray.get(minray.put(large), timeout=60) == large
    print(rounds, flush=True)
    minray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
