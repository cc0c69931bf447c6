"""Quicksort as a tree of tasks: a task starts two children and waits for them.

There are more waiting parents than CPUs here, and by default there is only one CPU. It works because a task that
blocks in `get` gives its CPU back until its children are done. Each task also reports how many tasks its part of the
tree took.
"""

import random

import minray as ray

SMALL = 200  # lists up to this length are sorted on the spot: a task should be worth its journey


@ray.remote
def quicksort(values: list[int]) -> tuple[list[int], int]:
    """The values in order, and the number of tasks that it took."""
    if len(values) <= SMALL:
        return sorted(values), 1
    pivot = sorted(values[:: len(values) // 9])[4]
    lower = quicksort.remote([value for value in values if value < pivot])
    upper = quicksort.remote([value for value in values if value > pivot])
    same = [value for value in values if value == pivot]
    (before, tasks_before), (after, tasks_after) = ray.get([lower, upper])
    return before + same + after, tasks_before + tasks_after + 1


def main(size: int = 2_000, num_cpus: int = 1) -> tuple[list[int], int]:
    dice = random.Random(0)
    values = [dice.randrange(10 * size) for _ in range(size)]
    with ray.init(num_cpus=num_cpus):
        result, tasks = ray.get(quicksort.remote(values))
    assert result == sorted(values)
    print(f"sorted {size:,} numbers with {tasks} tasks on {num_cpus} CPU")
    return result, tasks


if __name__ == "__main__":
    main()
