"""Estimate pi by throwing darts: independent tasks, whose results are used in the order in which they arrive.

Each task throws its own darts with its own seed, so the result does not depend on where or when a task runs. `wait` returns
the finished tasks, and the estimate gets better while others are still running.
"""

import random

import minray as ray


@ray.remote
def hits(seed: int, darts: int) -> int:
    """Return how many darts, thrown at the unit square, land within the quarter of a circle."""
    dice = random.Random(seed)
    return sum(dice.random() ** 2 + dice.random() ** 2 < 1 for _ in range(darts))


def main(tasks: int = 40, darts: int = 100_000) -> float:
    with ray.init():
        pending = [hits.remote(seed, darts) for seed in range(tasks)]
        total, done = 0, 0
        while pending:
            ready, pending = ray.wait(pending)
            total += sum(ray.get(ready))
            done += len(ready)
            if done % 10 == 0:
                print(f"after {done:3} tasks: {4 * total / (done * darts):.5f}")
    return 4 * total / (tasks * darts)


if __name__ == "__main__":
    print(f"pi is about {main():.5f}")
