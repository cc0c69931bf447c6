"""Run a race: several tasks search for the same answer, the first one wins, and the others are cancelled.

`wait` returns as soon as one task is done. A cancelled task is interrupted if it runs, and never starts if it has not
started. In both cases `get` raises TaskCancelledError. Each task makes a file when it starts, to show which tasks did.
"""

import pathlib
import tempfile
import time

import minray as ray


@ray.remote
def search(marks: str, number: int) -> int:
    """Task 0 finds the answer at once after task 1 has started; the others would search for ever."""
    pathlib.Path(marks, str(number)).touch()
    while number != 0 or not pathlib.Path(marks, "1").exists():
        time.sleep(0.01)
    return number


def main(tasks: int = 6) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as marks, ray.init(num_cpus=2):
        searches = [search.remote(marks, number) for number in range(tasks)]
        ready, pending = ray.wait(searches, num_returns=1)
        winner = ray.get(ready[0])
        for reference in reversed(pending):  # the last first, so that no freed CPU starts a task that is cancelled next
            ray.cancel(reference)
        cancelled = 0
        for reference in pending:
            try:
                ray.get(reference)
            except ray.exceptions.TaskCancelledError:
                cancelled += 1
        started = len(list(pathlib.Path(marks).iterdir()))
    return {"winner": winner, "cancelled": cancelled, "started": started}


if __name__ == "__main__":
    print(main())
