"""Show how a task can fail, and which exception its caller gets.

An exception keeps its type and its attributes on the way to `get`. A task that raises is retried only with
`retry_exceptions`. A task whose worker dies is retried by default; `get` raises WorkerCrashedError when no retries are left.
A `get` may have a time limit.
"""

import os
import signal
import tempfile
import time

import minray as ray


class OutOfStock(Exception):
    def __init__(self, article: str, missing: int) -> None:
        super().__init__(article, missing)
        self.article, self.missing = article, missing


@ray.remote
def order(article: str, amount: int) -> str:
    raise OutOfStock(article, amount - 2)


def attempt(journal: str) -> int:
    """Count its calls in a file, since state that survives a failed attempt must be outside of the process."""
    with open(journal, "a+") as file:
        file.write("attempt\n")
        file.seek(0)
        return len(file.readlines())


@ray.remote(max_retries=3, retry_exceptions=[ConnectionError])
def fetch(journal: str) -> int:
    if (number := attempt(journal)) < 3:
        raise ConnectionError("the line is busy")
    return number


@ray.remote
def crash_once(journal: str) -> int:
    """Kill its own process in the first attempt, as a fault in a C library would."""
    if (number := attempt(journal)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@ray.remote
def dawdle() -> None:
    while True:
        time.sleep(0.01)


def main() -> dict[str, object]:
    seen: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, ray.init(num_cpus=2):
        try:
            ray.get(order.remote("pears", 5))
        except OutOfStock as error:
            seen["exception"] = (error.article, error.missing)
        seen["attempts after exceptions"] = ray.get(fetch.remote(f"{folder}/fetch"))
        seen["attempts after a crash"] = ray.get(crash_once.remote(f"{folder}/crash"))
        try:
            ray.get(crash_once.options(max_retries=0).remote(f"{folder}/crash for good"))
        except ray.exceptions.WorkerCrashedError as error:
            seen["crash for good"] = type(error).__name__
        slow = dawdle.remote()
        try:
            ray.get(slow, timeout=0.1)
        except ray.exceptions.GetTimeoutError as error:
            seen["too slow"] = type(error).__name__
            ray.cancel(slow)
    return seen


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name}: {value}")
