"""Show a classic mistake: calling `get` in the loop that submits the tasks.

`get` waits. If it is called after every `remote`, a cluster is as slow as one process: the second task is submitted only
when the first is done. Submit all tasks first, then get all results. Each task here returns when it ran, so that the number
of tasks that ran at the same time can be counted.
"""

import time

import minray as ray

Span = tuple[float, float]


@ray.remote
def work(seconds: float) -> Span:
    """Sleep instead of working; return when the task began and ended. All processes of a machine share this clock."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def most_at_once(spans: list[Span]) -> int:
    """Return the greatest number of tasks that ran at the same moment; it is reached when some task begins."""
    return max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)


def main(tasks: int = 16, seconds: float = 0.1, num_cpus: int = 4) -> dict[str, int]:
    with ray.init(num_cpus=num_cpus):
        slow = [ray.get(work.remote(seconds)) for _ in range(tasks)]  # the mistake
        right = ray.get([work.remote(seconds) for _ in range(tasks)])
    for title, spans in {"get in the loop": slow, "get after the loop": right}.items():
        whole = max(ended for _, ended in spans) - min(began for began, _ in spans)
        print(f"{title}: at most {most_at_once(spans)} tasks at once, {whole:.2f} s")
    return {"get in the loop": most_at_once(slow), "get after the loop": most_at_once(right)}


if __name__ == "__main__":
    main()
