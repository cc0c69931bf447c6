"""Run quicksort as a tree of tasks: a task submits two child tasks and waits for them.

More parents wait here than there are CPUs; by default there is only one CPU. This works because a task that blocks in `get`
releases its CPU until its children are done. Each task also returns the number of tasks in its part of the tree.
"""

import random

import minray as ray

SMALL = 200  # lists up to this length are sorted without child tasks, whose overhead would be larger than the work


@ray.remote
def quicksort(values: list[int]) -> tuple[list[int], int]:
    """Return the sorted values, and the number of tasks that sorted them."""
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
